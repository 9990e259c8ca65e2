/* Deleting what has files: mark the row, remove the files, delete the row. A row that is marked is
 * nobody's any more; where the daemon dies in between, asking again goes on from there. */
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/routes.h"
#include "store/checkpoints.h"
#include "store/datasets.h"

#define DESCRIPTORS 16 /* that nftw holds open */

struct removal {
    struct err *(*mark)(struct store_tx *tx, int64_t id, char **directory);
    struct err *(*delete)(struct store_tx *tx, int64_t id);
    char *directory;
};

static void free_removal(void *state)
{
    struct removal *removal = state;
    free(removal->directory);
    free(removal);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

/* Links are removed, not followed. */
static struct err *remove_tree(const char *path)
{
    if (nftw(path, remove_one, DESCRIPTORS, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return err_errno(errno, "cannot remove %s", path);
    return NULL;
}

/* In the pool. First the name goes, at once, so that nobody finds half of what it stood for. */
static struct err *remove_files(struct request *r)
{
    const char *path = ((struct removal *)r->state)->directory;
    const char *name = strrchr(path, '/');
    char *away = NULL;
    if (!name || asprintf(&away, "%.*s/.deleting-%s", (int)(name - path), path, name + 1) < 0)
        return name ? err_no_memory() : err_new(ERR_INTERNAL, "%s is not absolute", path);
    struct err *err = remove_tree(away);
    if (!err && rename(path, away) != 0 && errno != ENOENT)
        err = err_errno(errno, "cannot rename %s", path);
    if (!err)
        err = remove_tree(away);
    free(away);
    return err;
}

static struct err *delete_row(struct store_tx *tx, struct request *r)
{
    struct removal *removal = r->state;
    request_clear_reply(r);
    struct err *err = removal->delete (tx, r->id);
    if (err && err_kind(err) != ERR_NOT_FOUND) /* somebody else may have done the last of it */
        return err;
    err_free(err);
    request_reply_nothing(r);
    return NULL;
}

static struct err *mark_row(struct store_tx *tx, struct request *r)
{
    struct removal *removal = r->state;
    free(removal->directory);
    removal->directory = NULL;
    return removal->mark(tx, r->id, &removal->directory);
}

static void go_delete(struct request *r)
{
    request_write(r, delete_row);
}

static void go_remove(struct request *r)
{
    r->next = go_delete;
    request_work(r, remove_files);
}

static void begin(struct request *r,
                  struct err *(*mark)(struct store_tx *tx, int64_t id, char **directory),
                  struct err *(*delete)(struct store_tx *tx, int64_t id))
{
    struct removal *removal = calloc(1, sizeof *removal);
    if (!removal) {
        request_reply_err(r, err_no_memory());
        return;
    }
    r->state = removal;
    r->free_state = free_removal;
    removal->mark = mark;
    removal->delete = delete;
    if (!request_query(r, NULL, 0))
        return;
    r->next = go_remove;
    request_write(r, mark_row);
}

static struct err *copy(const char *text, char **out)
{
    return (*out = strdup(text)) ? NULL : err_no_memory();
}

static struct err *mark_checkpoint(struct store_tx *tx, int64_t id, char **directory)
{
    struct store_checkpoint checkpoint;
    TRY(store_checkpoint_get(tx, id, &checkpoint));
    if (!checkpoint.deleting)
        TRY(store_checkpoint_mark_deleting(tx, id));
    return copy(checkpoint.directory, directory);
}

void route_checkpoint_delete(struct request *r)
{
    begin(r, mark_checkpoint, store_checkpoint_delete);
}

static struct err *mark_dataset(struct store_tx *tx, int64_t id, char **directory)
{
    struct store_dataset dataset;
    TRY(store_dataset_get(tx, id, &dataset));
    if (!dataset.deleting)
        TRY(store_dataset_mark_deleting(tx, id));
    return copy(dataset.path, directory);
}

void route_dataset_delete(struct request *r)
{
    begin(r, mark_dataset, store_dataset_delete);
}
