/* A manifest as its writers put it together (store/checkpoint_manifest.h reads it). */
#ifndef CHECKPOINT_COMPOSE_H
#define CHECKPOINT_COMPOSE_H

#include "daemon/worker/model/parameters.h"
#include "store/checkpoint_manifest.h"

/* The manifest's part that all ranks know alike; NULL without memory. */
cJSON *checkpoint_manifest_head(const struct checkpoint_facts *facts,
                                const struct parameters *parameters);
/* A shard's entry; NULL without memory. ranges: parameter -> [begin, end]; copied. */
cJSON *checkpoint_manifest_shard(int rank, int world, int64_t bytes, const char *xxh3,
                                 const cJSON *ranges);
/* The whole: a copy of the head, id, created_s and the shards' entries (an array, consumed). NULL
 * without memory. */
cJSON *checkpoint_manifest_whole(const cJSON *head, const char *id, double created_s,
                                 cJSON *shards);

#endif
