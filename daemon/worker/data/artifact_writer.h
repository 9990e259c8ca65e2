/* Writing an artifact: documents in, directory out. Private to data/.
 *
 * Everything goes to a temporary directory inside the datasets directory, under a lock that dies
 * with the process, so that whoever comes next can tell an abandoned one from one at work.
 */
#ifndef WORKER_ARTIFACT_WRITER_H
#define WORKER_ARTIFACT_WRITER_H

#include <cjson/cJSON.h>

#include "daemon/worker/data/artifact.h"

struct artifact_writer;

/* Makes the temporary directory, after removing those that dead processes left behind. */
struct err *artifact_writer_create(const char *datasets_directory,
                                   const struct tokenizer *tokenizer, struct artifact_writer **out);
/* Appends to the present document. */
struct err *artifact_writer_text(struct artifact_writer *w, const char *text, size_t bytes);
/* Ends the present document, which has had some text. */
struct err *artifact_writer_end_document(struct artifact_writer *w);
/* Writes what is left and the manifest (`about`, an object, is extended by counts and sums), syncs
 * all and renames the directory to `<datasets_directory>/<hash>`. Where another process was faster,
 * its directory stays. There has been a document. */
struct err *artifact_writer_finish(struct artifact_writer *w, const char *hash, cJSON *about);
uint64_t artifact_writer_documents(const struct artifact_writer *w);
/* Frees; removes the temporary directory if it was not finished. NULL is fine. */
void artifact_writer_destroy(struct artifact_writer *w);

/* Removes an artifact in one step as seen from outside: moved to a temporary name first. */
struct err *artifact_remove(const char *datasets_directory, const char *hash);

#endif
