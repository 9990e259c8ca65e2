#include "daemon/plan/spec_fields.h"

#include <math.h>
#include <string.h>

static const char *const device_names[] = {
    [SPEC_DEVICE_AUTO] = "auto", [SPEC_DEVICE_CPU] = "cpu", [SPEC_DEVICE_CUDA] = "cuda", NULL};
static const char *const precision_names[] = {[SPEC_PRECISION_AUTO] = "auto",
                                              [SPEC_PRECISION_FP32] = "fp32",
                                              [SPEC_PRECISION_BF16] = "bf16",
                                              NULL};
static const char *const objective_names[] = {[OBJECTIVE_BLOCK_DIFFUSION] = "block_diffusion",
                                              [OBJECTIVE_FAST_DLLM_V2] = "fast_dllm_v2",
                                              [OBJECTIVE_AUTOREGRESSIVE] = "autoregressive",
                                              NULL};
static const char *const weighting_names[] = {
    [LOSS_INVERSE_T] = "inverse_t", [LOSS_UNIT] = "unit", NULL};
static const char *const mode_names[] = {
    [MODE_NONE] = "none", [MODE_BP] = "bp", [MODE_CP] = "cp", [MODE_CSBP] = "csbp", NULL};
static const char *const schedule_names[] = {[SCHEDULE_CONSTANT] = "constant",
                                             [SCHEDULE_LINEAR] = "linear",
                                             [SCHEDULE_COSINE] = "cosine",
                                             NULL};
static const char *const recompute_names[] = {
    [RECOMPUTE_LAYER] = "layer", [RECOMPUTE_NONE] = "none", NULL};
static const char *const init_names[] = {"weights", "random", NULL};
static const char *const optimizer_names[] = {"adamw", NULL};
static const char *const format_names[] = {"text", NULL};
static const char *const tokenizer_names[] = {"bytes", NULL};

#define AT(member) offsetof(struct job_spec, member)
#define FROM_TO(a, b)                                                                              \
    {                                                                                              \
        .least = (a), .most = (b)                                                                  \
    }
#define FROM(a)                                                                                    \
    {                                                                                              \
        .least = (a), .most = INFINITY                                                             \
    }
#define ABOVE(a)                                                                                   \
    {                                                                                              \
        .least = (a), .most = INFINITY, .open_least = true                                         \
    }
#define FRACTION_BELOW_1                                                                           \
    {                                                                                              \
        .least = 0, .most = 1, .open_most = true                                                   \
    }
#define TIME                                                                                       \
    {                                                                                              \
        .least = 0, .most = 1, .open_least = true                                                  \
    }

/* What the type of a job cannot do without is bounded far above what anybody needs, so that no
 * product of sizes leaves 63 bits. */
#define MAX_BLOCK (1 << 20)
#define MAX_RANKS 4096
#define MAX_MICRO_SEQUENCES 4096
#define MAX_SEQUENCES (MAX_RANKS * MAX_MICRO_SEQUENCES)
#define MAX_STEPS 1e12

/* In the order of the resolved JSON; a section stands before its fields. */
const struct spec_field spec_fields[] = {
    {"/name", SPEC_STRING, AT(name), "What the job is called in lists", .fallback = SPEC_FIXED,
     .text = "job"},
    {"/device", SPEC_ENUM, AT(device), "Where to train; auto takes GPUs where there are some",
     .fallback = SPEC_FIXED, .number = SPEC_DEVICE_AUTO, .names = device_names},
    {"/precision", SPEC_ENUM, AT(precision),
     "What activations and the weights to compute with are kept in; auto is bf16 on GPUs, fp32 on "
     "CPUs",
     .fallback = SPEC_FIXED, .number = SPEC_PRECISION_AUTO, .names = precision_names},

    {"/model", SPEC_OBJECT, 0, "The decoder to train", .fallback = SPEC_REQUIRED},
    {"/model/path", SPEC_STRING, AT(model.path),
     "Directory with config.json and, unless init is random, weights as safetensors",
     .fallback = SPEC_NONE},
    {"/model/init", SPEC_SWITCH, AT(model.random_init),
     "First weights: weights reads them from path, random draws them from the seed",
     .fallback = SPEC_DERIVED, .names = init_names},
    {"/model/vocab_size", SPEC_INT64, AT(model.vocab_size),
     "Tokens of the model: config's vocab_size, or more, of which those that the weights do not "
     "have "
     "start as the mean of the others",
     .fallback = SPEC_DERIVED, .range = FROM_TO(1, MODEL_MAX_VOCAB)},
    {"/model/config", SPEC_CONFIG, AT(model.config),
     "A Hugging Face config.json of the Llama, Mistral, Qwen2 or Qwen3 family; default: that of "
     "path",
     .fallback = SPEC_NONE},

    {"/objective", SPEC_OBJECT, 0, "What is learnt", .fallback = SPEC_FIXED},
    {"/objective/type", SPEC_ENUM, AT(objective.type), "The objective", .fallback = SPEC_FIXED,
     .number = OBJECTIVE_BLOCK_DIFFUSION, .names = objective_names},
    {"/objective/block_size", SPEC_INT64, AT(objective.block_size), "Tokens a block",
     .fallback = SPEC_FIXED, .number = 32, .objective = FOR_DIFFUSION,
     .range = FROM_TO(1, MAX_BLOCK)},
    {"/objective/mask_token_id", SPEC_INT, AT(objective.mask_token_id),
     "Token that replaces a masked one; default: the tokenizer's", .fallback = SPEC_DERIVED,
     .objective = FOR_DIFFUSION, .range = FROM_TO(0, INT32_MAX)},
    {"/objective/views", SPEC_INT, AT(objective.views),
     "Corrupted copies of a sequence; fast_dllm_v2 has two", .fallback = SPEC_DERIVED,
     .objective = FOR_DIFFUSION, .range = FROM_TO(1, 16)},
    {"/objective/loss_weighting", SPEC_ENUM, AT(objective.loss_weighting),
     "Weight of a masked token's loss at time t: 1/t or 1", .fallback = SPEC_FIXED,
     .number = LOSS_INVERSE_T, .objective = FOR_BLOCK_DIFFUSION, .names = weighting_names},
    {"/objective/t_min", SPEC_FLOAT, AT(objective.t_min), "Least share of tokens masked",
     .fallback = SPEC_FIXED, .number = 0.001, .objective = FOR_DIFFUSION, .range = TIME},
    {"/objective/t_max", SPEC_FLOAT, AT(objective.t_max), "Largest share of tokens masked",
     .fallback = SPEC_FIXED, .number = 1.0, .objective = FOR_DIFFUSION, .range = TIME},
    {"/objective/antithetic", SPEC_BOOL, AT(objective.antithetic),
     "Spread the times of a sequence's blocks evenly instead of drawing each",
     .fallback = SPEC_FIXED, .number = true, .objective = FOR_DIFFUSION},

    {"/data", SPEC_OBJECT, 0, "What it is learnt from", .fallback = SPEC_REQUIRED},
    {"/data/path", SPEC_STRING, AT(data.path),
     "A .jsonl, .ndjson or .txt file, or a directory of such files", .fallback = SPEC_REQUIRED},
    {"/data/format", SPEC_NAME, AT(data.format), "What a record is", .fallback = SPEC_FIXED,
     .text = "text", .names = format_names},
    {"/data/field", SPEC_STRING, AT(data.field),
     "JSONL: the member that holds the text, dots between nested names", .fallback = SPEC_FIXED,
     .text = "text"},
    {"/data/tokenizer", SPEC_NAME, AT(data.tokenizer), "How text becomes tokens",
     .fallback = SPEC_FIXED, .text = "bytes", .names = tokenizer_names},
    {"/data/sequence_length", SPEC_INT64, AT(data.sequence_length), "Tokens a sequence",
     .fallback = SPEC_REQUIRED, .range = FROM_TO(1, INT32_MAX)},
    {"/data/validation", SPEC_OBJECT, 0, "The held-out split", .fallback = SPEC_FIXED},
    {"/data/validation/fraction", SPEC_DOUBLE, AT(data.validation_fraction),
     "Share of the documents that is held out for evaluation", .fallback = SPEC_FIXED,
     .number = 0.01, .range = FROM_TO(0, 0.5)},

    {"/parallel", SPEC_PARALLEL, 0, "How ranks share the work, or \"auto\"",
     .fallback = SPEC_FIXED},
    {"/parallel/mode", SPEC_ENUM, AT(parallel.mode), "How the ranks of a group share a sequence",
     .fallback = SPEC_FIXED, .number = MODE_CSBP, .names = mode_names},
    {"/parallel/degree", SPEC_INT, AT(parallel.degree), "Ranks that share a sequence",
     .fallback = SPEC_FIXED, .number = 1, .range = FROM_TO(1, SPEC_MAX_DEGREE)},
    {"/parallel/data", SPEC_INT, AT(parallel.data), "Groups that train side by side",
     .fallback = SPEC_FIXED, .number = 1, .range = FROM_TO(1, MAX_RANKS)},

    {"/batch", SPEC_OBJECT, 0, "How much an optimizer step sees", .fallback = SPEC_FIXED},
    {"/batch/sequences", SPEC_INT64, AT(batch.sequences),
     "Sequences an optimizer step over the whole job, a multiple of parallel.data",
     .fallback = SPEC_DERIVED, .range = FROM_TO(1, MAX_SEQUENCES)},
    {"/batch/micro_sequences", SPEC_INT64, AT(batch.micro_sequences),
     "Sequences that a group computes together; divides sequences / parallel.data",
     .fallback = SPEC_FIXED, .number = 1, .range = FROM_TO(1, MAX_MICRO_SEQUENCES)},

    {"/optimizer", SPEC_OBJECT, 0, "How weights follow gradients", .fallback = SPEC_FIXED},
    {"/optimizer/type", SPEC_ENUM, SPEC_NOT_STORED, "The optimizer", .fallback = SPEC_FIXED,
     .names = optimizer_names},
    {"/optimizer/lr", SPEC_FLOAT, AT(optimizer.lr), "Largest learning rate", .fallback = SPEC_FIXED,
     .number = 1e-5, .range = ABOVE(0)},
    {"/optimizer/betas", SPEC_PAIR, AT(optimizer.beta1), "Decay of the two moments",
     .fallback = SPEC_FIXED, .number = 0.9, .second = 0.95, .range = FRACTION_BELOW_1},
    {"/optimizer/eps", SPEC_FLOAT, AT(optimizer.eps), "Keeps the update's divisor from zero",
     .fallback = SPEC_FIXED, .number = 1e-8, .range = ABOVE(0)},
    {"/optimizer/weight_decay", SPEC_FLOAT, AT(optimizer.weight_decay),
     "Decoupled decay of matrices", .fallback = SPEC_FIXED, .number = 0.1, .range = FROM(0)},
    {"/optimizer/max_grad_norm", SPEC_FLOAT, AT(optimizer.max_grad_norm),
     "Gradients are clipped to this norm; 0: not at all", .fallback = SPEC_FIXED, .number = 1.0,
     .range = FROM(0)},

    {"/schedule", SPEC_OBJECT, 0, "How the learning rate moves", .fallback = SPEC_FIXED},
    {"/schedule/type", SPEC_ENUM, AT(schedule.type), "Shape of the decay after the warm-up",
     .fallback = SPEC_FIXED, .number = SCHEDULE_COSINE, .names = schedule_names},
    {"/schedule/warmup_steps", SPEC_INT64, AT(schedule.warmup_steps),
     "Steps of linear growth from 0; default: a tenth of steps, 100 at most",
     .fallback = SPEC_DERIVED, .range = FROM_TO(0, MAX_STEPS)},
    {"/schedule/min_lr", SPEC_FLOAT, AT(schedule.min_lr), "Learning rate at the end of the decay",
     .fallback = SPEC_FIXED, .number = 0, .range = FROM(0)},

    {"/recompute", SPEC_ENUM, AT(recompute),
     "layer keeps only each layer's input for the backward pass, none keeps everything",
     .fallback = SPEC_FIXED, .number = RECOMPUTE_LAYER, .names = recompute_names},
    {"/steps", SPEC_INT64, AT(steps), "Optimizer steps", .fallback = SPEC_REQUIRED,
     .range = FROM_TO(1, MAX_STEPS)},
    {"/seed", SPEC_INT64, AT(seed), "All randomness comes from it", .fallback = SPEC_FIXED,
     .number = 1, .range = FROM_TO(0, FIELDS_MAX_INTEGER)},

    {"/checkpoint", SPEC_OBJECT, 0, "Checkpoints", .fallback = SPEC_FIXED},
    {"/checkpoint/every", SPEC_INT64, AT(checkpoint.every),
     "Steps between checkpoints; 0: only at the end", .fallback = SPEC_FIXED, .number = 100,
     .range = FROM_TO(0, MAX_STEPS)},
    {"/checkpoint/keep", SPEC_INT64, AT(checkpoint.keep), "Newest checkpoints that are kept",
     .fallback = SPEC_FIXED, .number = 3, .range = FROM_TO(1, 1000000)},

    {"/evaluate", SPEC_OBJECT, 0, "Evaluation on the held-out split", .fallback = SPEC_FIXED},
    {"/evaluate/every", SPEC_INT64, AT(evaluate.every),
     "Steps between evaluations; 0: only at the end", .fallback = SPEC_FIXED, .number = 100,
     .range = FROM_TO(0, MAX_STEPS)},
    {"/evaluate/max_sequences", SPEC_INT64, AT(evaluate.max_sequences),
     "Held-out sequences that an evaluation reads at most", .fallback = SPEC_FIXED, .number = 64,
     .range = FROM_TO(1, MAX_SEQUENCES)},

    {"/restart", SPEC_OBJECT, 0, "What happens after a failure", .fallback = SPEC_FIXED},
    {"/restart/max", SPEC_INT, AT(restart.max), "Attempts after the first", .fallback = SPEC_FIXED,
     .number = 3, .range = FROM_TO(0, 1000)},
};
const int spec_n_fields = sizeof spec_fields / sizeof *spec_fields;
_Static_assert(sizeof spec_fields / sizeof *spec_fields <= SPEC_MAX_FIELDS, "room in spec.c");

size_t spec_text_limit(const struct spec_field *f)
{
    return strcmp(f->pointer, "/name") == 0 ? SPEC_MAX_NAME : SPEC_MAX_TEXT;
}

int spec_field_find(const char *pointer)
{
    for (int i = 0; i < spec_n_fields; i++)
        if (strcmp(spec_fields[i].pointer, pointer) == 0)
            return i;
    return -1;
}

const char *spec_field_key(const struct spec_field *f)
{
    return strrchr(f->pointer, '/') + 1;
}

bool spec_is_section(const struct spec_field *f)
{
    return f->type == SPEC_OBJECT || f->type == SPEC_PARALLEL;
}

int spec_field_section(int i)
{
    size_t length = (size_t)(strrchr(spec_fields[i].pointer, '/') - spec_fields[i].pointer);
    for (int k = i - 1; k >= 0; k--)
        if (spec_is_section(&spec_fields[k]) && strlen(spec_fields[k].pointer) == length &&
            strncmp(spec_fields[k].pointer, spec_fields[i].pointer, length) == 0)
            return k;
    return -1;
}

const char *objective_type_name(enum objective_type type)
{
    return objective_names[type];
}

const char *parallel_mode_name(enum parallel_mode mode)
{
    return mode_names[mode];
}
