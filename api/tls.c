#include "api/tls.h"

#include <gnutls/x509.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/base/file.h"
#include "daemon/base/log.h"

#define FILE_BYTES ((size_t)1 << 20)
#define CHAIN_MOST 16
#define LOOK_MS 5000

struct identity {
    gnutls_x509_crt_t chain[CHAIN_MOST];
    unsigned count;
    gnutls_x509_privkey_t key;
};

/* What changes when a file is replaced. */
struct look {
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec mtime;
};

struct tls {
    struct async *async;
    char *certificate, *key;
    struct identity identity;
    struct look looks[2];
    uv_timer_t timer;
    bool busy, forced; /* forced: read even what looks unchanged */
    struct async_item item;
    struct identity read; /* in the pool */
    struct look read_looks[2];
    bool reading; /* forced */
    bool changed;
};

static struct tls *in_use; /* GnuTLS's callback takes no pointer of ours */

static void free_identity(struct identity *id)
{
    for (unsigned i = 0; i < id->count; i++)
        gnutls_x509_crt_deinit(id->chain[i]);
    if (id->key)
        gnutls_x509_privkey_deinit(id->key);
    *id = (struct identity){0};
}

static struct err *wrong(const char *path, int rc)
{
    return err_new(rc == GNUTLS_E_MEMORY_ERROR ? ERR_NO_MEMORY : ERR_INVALID, "%s: %s", path,
                   gnutls_strerror(rc));
}

static struct err *read_chain(struct identity *id, const char *path)
{
    char *text;
    size_t bytes;
    TRY(file_read(path, FILE_BYTES, &text, &bytes));
    gnutls_datum_t datum = {(unsigned char *)text, (unsigned)bytes};
    unsigned count = CHAIN_MOST;
    int rc = gnutls_x509_crt_list_import(id->chain, &count, &datum, GNUTLS_X509_FMT_PEM,
                                         GNUTLS_X509_CRT_LIST_IMPORT_FAIL_IF_EXCEED);
    free(text);
    if (rc < 0)
        return wrong(path, rc);
    id->count = count;
    return count ? NULL : err_new(ERR_INVALID, "%s holds no certificate", path);
}

static struct err *read_key(struct identity *id, const char *path)
{
    char *text;
    size_t bytes;
    TRY(file_read(path, FILE_BYTES, &text, &bytes));
    gnutls_datum_t datum = {(unsigned char *)text, (unsigned)bytes};
    int rc = gnutls_x509_privkey_init(&id->key);
    if (rc == 0)
        rc = gnutls_x509_privkey_import2(id->key, &datum, GNUTLS_X509_FMT_PEM, NULL, 0);
    gnutls_memset(text, 0, bytes);
    free(text);
    return rc < 0 ? wrong(path, rc) : NULL;
}

/* The key must be the certificate's: both name the same public key. */
static struct err *check_pair(const struct identity *id, const char *certificate, const char *key)
{
    unsigned char a[64], b[64];
    size_t na = sizeof a, nb = sizeof b;
    int rc = gnutls_x509_crt_get_key_id(id->chain[0], GNUTLS_KEYID_USE_SHA256, a, &na);
    if (rc == 0)
        rc = gnutls_x509_privkey_get_key_id(id->key, GNUTLS_KEYID_USE_SHA256, b, &nb);
    if (rc < 0)
        return wrong(key, rc);
    return na == nb && memcmp(a, b, na) == 0
               ? NULL
               : err_new(ERR_INVALID, "%s is not the key of the certificate %s", key, certificate);
}

static struct err *read_identity(const char *certificate, const char *key, struct identity *out)
{
    *out = (struct identity){0};
    struct err *err = read_chain(out, certificate);
    if (!err)
        err = read_key(out, key);
    if (!err)
        err = check_pair(out, certificate, key);
    if (err)
        free_identity(out);
    return err;
}

struct err *tls_check(const char *certificate, const char *key)
{
    struct identity id;
    TRY(read_identity(certificate, key, &id));
    free_identity(&id);
    return NULL;
}

/* ---- Again ---- */

static struct look look_at(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return (struct look){0};
    return (struct look){st.st_dev, st.st_ino, st.st_size, st.st_mtim};
}

static bool same(const struct look *a, const struct look *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
           a->mtime.tv_sec == b->mtime.tv_sec && a->mtime.tv_nsec == b->mtime.tv_nsec;
}

/* In the pool. */
static struct err *look_again(void *arg)
{
    struct tls *tls = arg;
    tls->read_looks[0] = look_at(tls->certificate);
    tls->read_looks[1] = look_at(tls->key);
    tls->changed = tls->reading || !same(&tls->looks[0], &tls->read_looks[0]) ||
                   !same(&tls->looks[1], &tls->read_looks[1]);
    return tls->changed ? read_identity(tls->certificate, tls->key, &tls->read) : NULL;
}

static void after_look(void *arg, struct err *err)
{
    struct tls *tls = arg;
    tls->busy = false;
    memcpy(tls->looks, tls->read_looks, sizeof tls->looks); /* one warning for each change */
    if (err) {
        log_warning("the certificate stays as it is: %s", err_message(err));
        err_free(err);
    } else if (tls->changed) {
        free_identity(&tls->identity);
        tls->identity = tls->read;
        tls->read = (struct identity){0};
        log_info("the certificate %s was read again", tls->certificate);
    }
}

static void look(struct tls *tls, bool force)
{
    tls->forced = tls->forced || force;
    if (tls->busy)
        return; /* a forced look that comes too late for this one is the timer's next */
    tls->busy = true;
    tls->reading = tls->forced;
    tls->forced = false;
    async_work(tls->async, &tls->item, look_again, tls, after_look);
}

static void on_timer(uv_timer_t *timer)
{
    look(timer->data, false);
}

void tls_reload(struct tls *tls)
{
    if (tls)
        look(tls, true);
}

/* ---- Life ---- */

static void free_tls(struct tls *tls)
{
    free_identity(&tls->identity);
    free(tls->certificate);
    free(tls->key);
    free(tls);
}

struct err *tls_open(uv_loop_t *loop, struct async *async, const char *certificate, const char *key,
                     struct tls **out)
{
    struct tls *tls = calloc(1, sizeof *tls);
    if (!tls)
        return err_no_memory();
    tls->async = async;
    tls->certificate = strdup(certificate);
    tls->key = strdup(key);
    tls->looks[0] = look_at(certificate);
    tls->looks[1] = look_at(key);
    struct err *err = tls->certificate && tls->key ? NULL : err_no_memory();
    if (!err)
        err = read_identity(certificate, key, &tls->identity);
    if (err) {
        free_tls(tls);
        return err;
    }
    uv_timer_init(loop, &tls->timer);
    tls->timer.data = tls;
    uv_timer_start(&tls->timer, on_timer, LOOK_MS, LOOK_MS);
    in_use = tls;
    *out = tls;
    return NULL;
}

static void on_closed(uv_handle_t *handle)
{
    free_tls(handle->data);
}

void tls_stop(struct tls *tls)
{
    if (tls)
        uv_timer_stop(&tls->timer);
}

void tls_close(struct tls *tls)
{
    if (!tls)
        return;
    in_use = NULL;
    uv_close((uv_handle_t *)&tls->timer, on_closed);
}

int tls_retrieve(gnutls_session_t session, const struct gnutls_cert_retr_st *info,
                 gnutls_pcert_st **certificates, unsigned *count, gnutls_ocsp_data_st **ocsp,
                 unsigned *ocsp_count, gnutls_privkey_t *key, unsigned *flags)
{
    (void)session, (void)info;
    *ocsp = NULL;
    *ocsp_count = 0;
    if (!in_use)
        return -1;
    const struct identity *id = &in_use->identity;
    gnutls_pcert_st *list = gnutls_calloc(id->count, sizeof *list);
    gnutls_privkey_t copy = NULL;
    unsigned n = 0;
    if (!list)
        return -1;
    while (n < id->count && gnutls_pcert_import_x509(&list[n], id->chain[n], 0) == 0)
        n++;
    if (n == id->count && gnutls_privkey_init(&copy) == 0 &&
        gnutls_privkey_import_x509(copy, id->key, GNUTLS_PRIVKEY_IMPORT_COPY) == 0) {
        *certificates = list;
        *count = n;
        *key = copy;
        *flags = GNUTLS_CERT_RETR_DEINIT_ALL;
        return 0;
    }
    if (copy)
        gnutls_privkey_deinit(copy);
    while (n > 0)
        gnutls_pcert_deinit(&list[--n]);
    gnutls_free(list);
    return -1;
}
