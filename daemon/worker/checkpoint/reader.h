/* Loading checkpoints, whoever wrote them: any number of ranks in any mode on any device.
 *
 * What is read is never believed: manifest, sizes and headers are checked, and errors name file and
 * field or parameter. An open checkpoint may be read by several threads at once.
 */
#ifndef CHECKPOINT_READER_H
#define CHECKPOINT_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/worker/model/parameters.h"
#include "store/checkpoint_manifest.h"

struct checkpoint;

/* Checks the manifest and the size of each shard; with verify_hashes also what is in them, which
 * reads everything once. ERR_NOT_FOUND where there is no manifest: it is no checkpoint (yet). */
struct err *checkpoint_open(const char *path, bool verify_hashes, struct checkpoint **out);
void checkpoint_close(struct checkpoint *c); /* NULL is fine */
/* Both belong to c. */
const char *checkpoint_path(const struct checkpoint *c);
const struct checkpoint_manifest *checkpoint_manifest(const struct checkpoint *c);

/* The state of elements [begin, begin + count) of a flat buffer of these parameters, host memory
 * [count] each; zeros where no parameter lies. ERR_INVALID names a parameter that the checkpoint
 * has not, has in another shape or has beside these. */
struct err *checkpoint_read(const struct checkpoint *c, const struct parameters *parameters,
                            int64_t begin, int64_t count, float *weights, float *m, float *v);

/* Path of the checkpoint of the largest step that opens; freed by the caller. NULL where there is
 * none, or no directory. One that is damaged is logged and passed over. */
struct err *checkpoint_newest(const char *directory, char **path);

#endif
