/* The files that a spec names: that they are there, may be read, and hold what they should.
 * Blocking; belongs into the thread pool. Everything wrong becomes a problem at the field's
 * pointer. */
#ifndef API_INPUTS_H
#define API_INPUTS_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "api/control.h"
#include "daemon/plan/model.h"
#include "daemon/plan/problems.h"

/* The absolute path behind `path`, symlinks resolved; a relative one is looked for under each root
 * in order. NULL and a problem when it is not there or leads out of all roots. Owned by the
 * caller. */
char *inputs_resolve(const struct api_control *control, const char *pointer, const char *path,
                     struct problems *problems);
/* Whether `path`, symlinks resolved, lies under a root; a problem if it does not. A path where
 * nothing is passes: whoever opens it says so. */
bool inputs_allowed(const struct api_control *control, const char *pointer, const char *path,
                    struct problems *problems);
/* The config.json of a model directory; NULL and a problem when there is none that can be read. */
cJSON *inputs_model_config(const struct api_control *control, const char *pointer,
                           const char *directory, struct problems *problems);
/* Its files of weights: every tensor of the decoder is there in its shape, and no other. */
void inputs_check_weights(const struct api_control *control, const char *pointer,
                          const char *directory, const struct model_config *config,
                          struct problems *problems);
/* Where the job's tokenizer is its model's: writes into the spec which token is the mask, where it
 * does not say, and how many tokens the model must have for it (plan/mask_token.h). */
void inputs_mask_token(const struct api_control *control, cJSON *spec, const char *directory,
                       struct problems *problems);
/* A file that the preparation reads (daemon/base/source_kind.h), or a directory of such: not empty,
 * and text. */
void inputs_check_data(const struct api_control *control, const char *pointer, const char *path,
                       struct problems *problems);

#endif
