#include "store/backup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/file.h"
#include "store/sql.h"

#define PARTIAL ".partial"

/* The copy takes the source's WAL mode with it; a single file that stands for itself has none. */
static struct err *copy(struct store_tx *tx, const char *partial)
{
    sqlite3 *to = NULL;
    int rc = sqlite3_open_v2(partial, &to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    sqlite3_backup *backup =
        rc == SQLITE_OK ? sqlite3_backup_init(to, "main", tx->db, "main") : NULL;
    if (backup) {
        sqlite3_backup_step(backup, -1);
        rc = sqlite3_backup_finish(backup);
    }
    if (rc == SQLITE_OK)
        rc = backup ? sqlite3_exec(to, "PRAGMA journal_mode = DELETE", NULL, NULL, NULL)
                    : sqlite3_errcode(to);
    struct err *err = NULL;
    if (rc != SQLITE_OK)
        err = err_new(rc == SQLITE_NOMEM || rc == SQLITE_IOERR_NOMEM ? ERR_NO_MEMORY : ERR_IO,
                      "cannot write the copy %s: %s", partial,
                      to ? sqlite3_errmsg(to) : sqlite3_errstr(rc));
    sqlite3_close(to);
    return err;
}

static struct err *sync_and_name(const char *partial, const char *path, int64_t *bytes)
{
    struct stat st;
    int fd = open(partial, O_RDONLY | O_CLOEXEC);
    struct err *err = NULL;
    if (fd < 0 || fsync(fd) != 0 || fstat(fd, &st) != 0)
        err = err_errno(errno, "cannot sync %s", partial);
    else
        *bytes = st.st_size;
    if (fd >= 0)
        close(fd);
    if (!err && rename(partial, path) != 0)
        err = err_errno(errno, "cannot rename %s to %s", partial, path);
    return err ? err : file_sync_parent(path);
}

struct err *store_backup(struct store_tx *tx, const char *path, int64_t *bytes)
{
    char *partial = NULL;
    if (asprintf(&partial, "%s" PARTIAL, path) < 0)
        return err_no_memory();
    int fd = open(partial, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        struct err *err = err_errno(errno, "cannot make %s", partial);
        free(partial);
        return err;
    }
    close(fd);
    struct err *err = copy(tx, partial);
    if (!err)
        err = sync_and_name(partial, path, bytes);
    if (err)
        unlink(partial);
    free(partial);
    return err;
}

/* "<name>.partial", and SQLite's journal of it. */
static bool is_unfinished(const char *name)
{
    const char *end = strstr(name, ".db" PARTIAL);
    if (!end)
        return false;
    end += strlen(".db" PARTIAL);
    return *end == '\0' || strcmp(end, "-journal") == 0;
}

struct err *store_backup_tidy(const char *directory)
{
    DIR *dir = opendir(directory);
    if (!dir)
        return errno == ENOENT ? NULL : err_errno(errno, "cannot look into %s", directory);
    struct err *err = NULL;
    for (struct dirent *entry; !err && (entry = readdir(dir));)
        if (is_unfinished(entry->d_name) && unlinkat(dirfd(dir), entry->d_name, 0) != 0)
            err = err_errno(errno, "cannot remove %s/%s", directory, entry->d_name);
    closedir(dir);
    return err;
}
