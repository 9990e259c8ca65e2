/* The job spec: what a user submits, resolved. Pure: JSON in, struct and JSON out.
 *
 * A spec is parsed twice by the same code: when it is submitted (defaults filled in, every problem
 * reported at once) and by each worker from the resolved JSON that the database keeps. Resolving
 * a resolved spec changes nothing. Existence of files is not looked at here: that is api/'s part.
 */
#ifndef PLAN_SPEC_H
#define PLAN_SPEC_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/plan/model.h"
#include "daemon/plan/problems.h"

/* Ranks that can share a sequence: what everybody who indexes them has room for. */
#define SPEC_MAX_DEGREE 1024

enum spec_device { SPEC_DEVICE_AUTO, SPEC_DEVICE_CPU, SPEC_DEVICE_CUDA };
enum spec_precision { SPEC_PRECISION_AUTO, SPEC_PRECISION_FP32, SPEC_PRECISION_BF16 };
enum objective_type { OBJECTIVE_BLOCK_DIFFUSION, OBJECTIVE_FAST_DLLM_V2, OBJECTIVE_AUTOREGRESSIVE };
enum loss_weighting { LOSS_INVERSE_T, LOSS_UNIT };
enum parallel_mode { MODE_NONE, MODE_BP, MODE_CP, MODE_CSBP };
enum schedule_type { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE };
enum recompute { RECOMPUTE_LAYER, RECOMPUTE_NONE };

struct objective_spec {
    enum objective_type type;
    int64_t block_size;    /* rows; 1 for autoregressive, where the fields below mean nothing */
    int32_t mask_token_id; /* -1 for autoregressive */
    int views;             /* 0 for autoregressive, 2 for fast_dllm_v2 */
    enum loss_weighting loss_weighting;
    float t_min, t_max;
    bool antithetic;
};

struct job_spec {
    char *name;
    enum spec_device device;
    enum spec_precision precision;
    struct {
        char *path;                 /* directory with config.json (and weights), or NULL */
        bool random_init;           /* "init": "random" */
        int64_t vocab_size;         /* config's, or a grown one */
        struct model_config config; /* from /model/config of the resolved spec, grown */
    } model;
    struct objective_spec objective;
    struct {
        char *path;
        char *format;    /* "text" */
        char *field;     /* JSONL: the field that holds the text */
        char *tokenizer; /* "bytes" */
        int64_t sequence_length;
        double validation_fraction; /* of documents */
    } data;
    struct {
        bool automatic; /* "parallel": "auto": until the planner has chosen */
        enum parallel_mode mode;
        int degree; /* ranks that share one sequence */
        int data;   /* replicas */
    } parallel;
    struct {
        int64_t sequences;       /* per optimizer step, over the whole job; multiple of data */
        int64_t micro_sequences; /* sequences that a replica processes together; divides
                                  * sequences / data */
    } batch;
    struct {
        float lr, beta1, beta2, eps, weight_decay;
        float max_grad_norm; /* 0: no clipping */
    } optimizer;
    struct {
        enum schedule_type type;
        int64_t warmup_steps;
        float min_lr;
    } schedule;
    enum recompute recompute;
    int64_t steps;
    uint64_t seed;
    struct {
        int64_t every, keep;
    } checkpoint;
    struct {
        int64_t every;         /* steps between evaluations; 0: only at the end */
        int64_t max_sequences; /* of the held-out split, at most */
    } evaluate;
    struct {
        int max;
    } restart;
};

/* Of the tokenizer "bytes" (daemon/worker/data/tokenizer.h), which fills in and limits fields. */
#define SPEC_BYTES_MASK 257
#define SPEC_BYTES_VOCAB 259

/* Fills *out and, for each wrong field, *problems (JSON pointers into the document). Unknown keys
 * are problems. Strings in *out are owned by it. If problems were added *out must still be freed,
 * and nothing else. model.path without model.config: the caller (api/) has put the directory's
 * config.json at /model/config first. */
void spec_parse(const cJSON *json, struct job_spec *out, struct problems *problems);
void spec_free(struct job_spec *spec);

/* The whole spec with every default written out; NULL when memory is short. `model_config` (the
 * parsed config.json, copied) stands at /model/config. Fields that mean nothing for the objective
 * are left out. */
cJSON *spec_to_json(const struct job_spec *spec, const cJSON *model_config);

/* JSON Schema (2020-12) of what is submitted: fields, types, ranges, defaults, descriptions; rules
 * between fields are not in it. NULL when memory is short. */
cJSON *spec_schema(void);

int spec_world_size(const struct job_spec *spec); /* degree x data */
/* Of an activation, and of a weight to compute with: 2 in bf16, 4 in fp32. Where the precision is
 * auto it is the device's: bf16 on GPUs. */
size_t spec_dtype_bytes(const struct job_spec *spec);
const char *objective_type_name(enum objective_type type);
const char *parallel_mode_name(enum parallel_mode mode);

#endif
