/* How the ranks of an attempt make one checkpoint of their shards without talking: through names.
 *
 *   .partial-2-step-000000012-1/          the work directory, made by rank 0, once
 *       step-000000012/                   what becomes the checkpoint
 *           shard-00000-of-00002.safetensors
 *           manifest.json
 *       rank-00000.json                   what rank 0 says of its shard, once that is on disk
 *       manifest-00001.json               rank 1's idea of the manifest, for a moment
 *
 * A rank writes its shard, then its side file. A rank that sees the side files of all ranks writes
 * the manifest, renames it in and renames the inner directory to `step-000000012` beside the work
 * directory: the commit. Everything is synced before a name says that it is there.
 *
 * Any rank may be killed anywhere: what it had to do is done by the next rank that looks. Several
 * may commit at once: each makes the same manifest out of the same side files, so it does not
 * matter whose is renamed in last, and only one rename of the inner directory finds it. A rank that
 * fails renames the work directory to `.aborted-…`; then no commit can happen any more, and the
 * other ranks find the reason there. So commit and abort exclude each other by rename(2) alone.
 *
 * A newer attempt sweeps the work directory away by one rename, and it never comes back: what is
 * renamed to `step-…` is the directory that all ranks wrote into, never one that was made anew in
 * the middle. So only rank 0 makes it, and the others wait until it is there.
 *
 * The step may be taken: by the same step of an older attempt, which saw the same samples and is as
 * good. Then the checkpoint that is there stays, and this one is given up without an error.
 */
#ifndef CHECKPOINT_COMMIT_H
#define CHECKPOINT_COMMIT_H

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdbool.h>

#include "daemon/base/err.h"
#include "daemon/worker/model/parameters.h"
#include "store/checkpoint_digest.h"
#include "store/checkpoint_directory.h"
#include "store/checkpoint_manifest.h"

struct commit {
    const char *directory; /* kept, not owned */
    int rank, world;
    int64_t job, step;
    cJSON *head;               /* of the manifest */
    char id[DIGEST_CHARS + 1]; /* of the head: equal where all ranks mean the same */
    char work_name[CHECKPOINT_NAME_BYTES];
    char work[PATH_MAX], inner[PATH_MAX], aborted[PATH_MAX], final[PATH_MAX];
    char shard[PATH_MAX]; /* this rank's */
    bool entered;         /* the work directory was there */
};

/* number: of this checkpoint within the attempt, the same on all ranks. After an error c can still
 * be asked with commit_look and given up with commit_abort; commit_free in any case. */
struct err *commit_init(struct commit *c, const char *directory, int rank, int64_t number,
                        const struct checkpoint_facts *facts, const struct parameters *parameters);
void commit_free(struct commit *c);

/* Rank 0 makes the work directory; another rank looks whether it is there: *entered. */
struct err *commit_enter(struct commit *c, bool *entered);
/* Says that this rank's shard is on disk at c->shard. */
struct err *commit_shard(const struct commit *c, double created_s, const cJSON *ranges);

/* *done: the checkpoint is on disk under its name, or another one of this step is. An error:
 * another rank gave it up, or the name is taken by something else. */
struct err *commit_look(const struct commit *c, bool *done);
/* Commits if all ranks' side files are there. To be called until commit_look knows the end.
 * *missing: the first rank whose side file is not there; -1: none. */
struct err *commit_try(const struct commit *c, int *missing);

/* After an error of this rank, which it may hand to the others: nothing can be committed any more.
 * What there was is removed as far as possible. */
void commit_abort(const struct commit *c, const struct err *reason);
/* After commit_look said done: removes the work directory. */
void commit_clear(const struct commit *c);

#endif
