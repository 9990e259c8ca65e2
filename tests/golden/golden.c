/* Golden vectors: losses, gradients and optimizer steps that independent implementations computed
 * in double precision. A case is a .safetensors file with an `objective` in its metadata, beside
 * the config.json and weights of its model. Each case runs on one process a rank.
 *
 * Asked of fp32: loss within 1e-5 relative; each gradient within 2e-4 of its norm; AdamW's
 * parameters within 2e-4 of their norms. Of bf16, whose numbers have 8 bits: loss within 1e-3, each
 * gradient within 5e-2, parameters within 2e-2 (the first steps of AdamW turn a gradient that is
 * lost in rounding into a whole step).
 */
#include <dirent.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/err.h"
#include "daemon/worker/engine.h"
#include "kernels/load.h"
#include "store/safetensors.h"
#include "tests/support/ranks.h"

#define RANK_TIMEOUT_S 120.0
#define MAX_SEQUENCES 2
#define MAX_DEGREE 4

/* What computes. */
static struct {
    const char *plugin; /* NULL: the CPU backend */
    enum dtype dtype;
} backend;

static const struct tolerances {
    double loss, gradient, parameter;
} tolerances[] = {[DTYPE_F32] = {1e-5, 2e-4, 2e-4}, [DTYPE_BF16] = {1e-3, 5e-2, 2e-2}};

struct golden_case {
    char *path, *directory;
    struct safetensors *file;
    struct model_config model;
    struct objective_spec objective;
    int n_batches;
    struct batch *batches[MAX_SEQUENCES];
    enum parallel_mode mode;
};

/* The worst relative errors of a case, and where. */
struct outcome {
    double loss, gradient, parameter;
    char worst[96];
};

/* ---- Reading a case ---- */

static double metadata_number(const struct golden_case *c, const char *key, double otherwise)
{
    const char *text = safetensors_metadata(c->file, key);
    return text ? atof(text) : otherwise;
}

static bool metadata_is(const struct golden_case *c, const char *key, const char *json_string)
{
    const char *text = safetensors_metadata(c->file, key);
    return text && !strcmp(text, json_string);
}

static const struct safetensor *tensor_of(const struct golden_case *c, int sequence,
                                          const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "%d.%s", sequence, name);
    const struct safetensor *t = safetensors_find(c->file, full);
    return t ? t : safetensors_find(c->file, name);
}

static void read_objective(struct golden_case *c)
{
    struct objective_spec *o = &c->objective;
    memset(o, 0, sizeof *o);
    o->type = metadata_is(c, "objective", "\"fast_dllm_v2\"")     ? OBJECTIVE_FAST_DLLM_V2
              : metadata_is(c, "objective", "\"autoregressive\"") ? OBJECTIVE_AUTOREGRESSIVE
                                                                  : OBJECTIVE_BLOCK_DIFFUSION;
    o->block_size = (int64_t)metadata_number(c, "block_size", 1);
    o->mask_token_id = (int32_t)metadata_number(c, "mask_token_id", -1);
    o->views = o->type == OBJECTIVE_AUTOREGRESSIVE ? 0 : o->type == OBJECTIVE_FAST_DLLM_V2 ? 2 : 1;
    o->loss_weighting =
        metadata_is(c, "loss_weighting", "\"inverse_t\"") ? LOSS_INVERSE_T : LOSS_UNIT;
}

static void read_documents(const struct golden_case *c, int sequence, struct batch *b)
{
    const struct safetensor *t = tensor_of(c, sequence, "document_ids");
    if (!t) {
        batch_add_document(b, 0, b->length);
        return;
    }
    const int32_t *ids = t->data;
    for (int64_t begin = 0, i = 1; i <= b->length; i++) {
        if (i < b->length && ids[i] == ids[begin])
            continue;
        if (ids[begin] >= 0)
            batch_add_document(b, begin, i);
        begin = i;
    }
}

static struct err *read_batch(struct golden_case *c, int sequence)
{
    const struct objective_spec *o = &c->objective;
    const struct safetensor *ids = tensor_of(c, sequence, "input_ids");
    const struct safetensor *noisy = tensor_of(c, sequence, "noisy_ids");
    const struct safetensor *corrupted = tensor_of(c, sequence, "corrupted");
    const struct safetensor *supervised = tensor_of(c, sequence, "supervised");
    const struct safetensor *t = tensor_of(c, sequence, "t");
    int64_t length = ids->elements, blocks = length / o->block_size;
    TRY(batch_create(length, o->block_size, o->views, &c->batches[sequence]));
    struct batch *b = c->batches[sequence];
    memcpy(b->ids, ids->data, (size_t)length * sizeof *b->ids);
    if (supervised)
        memcpy(b->supervised, supervised->data, (size_t)length);
    else
        memset(b->supervised, 1, (size_t)length);
    read_documents(c, sequence, b);
    for (int v = 0; v < o->views; v++) {
        memcpy(b->corrupted + v * length, (const uint8_t *)corrupted->data + v * length,
               (size_t)length);
        memcpy(b->t + v * blocks, t->data, (size_t)blocks * sizeof *b->t);
        for (int64_t i = 0; i < length; i++) {
            int32_t expected = b->corrupted[v * length + i] ? o->mask_token_id : b->ids[i];
            if (((const int32_t *)noisy->data)[v * length + i] != expected)
                return err_new(ERR_INVALID, "%s: noisy_ids and corrupted disagree", c->path);
        }
    }
    return NULL;
}

static struct err *read_model(const char *directory, struct model_config *out)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", directory);
    FILE *f = fopen(path, "r");
    if (!f)
        return err_new(ERR_NOT_FOUND, "%s cannot be read", path);
    char text[65536];
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    cJSON *json = cJSON_Parse(text);
    struct problems problems = {0};
    model_config_parse(json, "", out, &problems);
    cJSON_Delete(json);
    struct err *e = NULL;
    if (problems_count(&problems))
        e = err_new(ERR_INVALID, "%s: %s: %s", path, problems.items[0].path,
                    problems.items[0].message);
    problems_free(&problems);
    return e;
}

static void close_case(struct golden_case *c)
{
    for (int i = 0; i < c->n_batches; i++)
        batch_destroy(c->batches[i]);
    safetensors_close(c->file);
    free(c->path);
    free(c->directory);
}

/* *is_case: the file has an objective that this program knows. */
static struct err *open_case(const char *directory, const char *name, struct golden_case *c,
                             bool *is_case)
{
    memset(c, 0, sizeof *c);
    *is_case = false;
    c->directory = strdup(directory);
    if (!c->directory || asprintf(&c->path, "%s/%s", directory, name) < 0)
        return err_no_memory();
    TRY(safetensors_open(c->path, &c->file));
    if (!safetensors_metadata(c->file, "objective") || metadata_is(c, "objective", "\"dflash\"") ||
        metadata_is(c, "objective", "\"dflash2\""))
        return NULL;
    TRY(read_model(directory, &c->model));
    read_objective(c);
    c->n_batches = (int)metadata_number(c, "sequences", 1);
    if (c->n_batches < 1 || c->n_batches > MAX_SEQUENCES)
        return err_new(ERR_INVALID, "%s: %d sequences", c->path, c->n_batches);
    for (int i = 0; i < c->n_batches; i++)
        TRY(read_batch(c, i));
    *is_case = true;
    return NULL;
}

/* ---- Running it on one rank ---- */

static double relative(double got, double expected)
{
    return fabs(got - expected) / fabs(expected);
}

/* ||got - reference|| / ||reference|| of every parameter against `prefix`NAME; the worst. */
static struct err *compare(const struct golden_case *c, const struct parameters *parameters,
                           const float *flat, const char *prefix, double *worst, char *where)
{
    for (int i = 0; i < parameters->n; i++) {
        const struct parameter *p = &parameters->items[i];
        char name[128];
        snprintf(name, sizeof name, "%s%s", prefix, p->name);
        const struct safetensor *reference = safetensors_find(c->file, name);
        if (!reference || reference->elements != p->count)
            return err_new(ERR_INVALID, "%s has no %s of %lld elements", c->path, name,
                           (long long)p->count);
        const float *expected = reference->data;
        double difference = 0, norm = 0;
        for (int64_t j = 0; j < p->count; j++) {
            double d = (double)flat[p->offset + j] - expected[j];
            difference += d * d;
            norm += (double)expected[j] * expected[j];
        }
        double error = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
        if (!(error <= *worst)) { /* NaN is the worst */
            *worst = error;
            snprintf(where, 96, "%s", p->name);
        }
    }
    return NULL;
}

static struct err *accumulate_all(struct engine *engine, const struct golden_case *c,
                                  struct engine_sums *sums)
{
    memset(sums, 0, sizeof *sums);
    engine_zero_gradients(engine);
    for (int i = 0; i < c->n_batches; i++)
        TRY(engine_accumulate(engine, c->batches[i], &c->objective, true, sums));
    return engine_finish_sums(engine, sums, NULL, 0);
}

static struct err *check_gradients(struct engine *engine, const struct golden_case *c, float *flat,
                                   struct outcome *out)
{
    struct engine_sums sums;
    TRY(accumulate_all(engine, c, &sums));
    const struct safetensor *loss = safetensors_find(c->file, "loss");
    out->loss = relative(sums.loss / sums.denominator, *(const float *)loss->data);
    TRY(engine_gradients(engine, sums.denominator, flat));
    return compare(c, engine_parameters(engine), flat, "grad.", &out->gradient, out->worst);
}

static struct err *check_adamw(struct engine *engine, const struct golden_case *c, float *flat,
                               struct outcome *out)
{
    const float *losses = safetensors_find(c->file, "losses")->data;
    const float *norms = safetensors_find(c->file, "grad_norms")->data;
    float beta1 = 0, beta2 = 0;
    sscanf(safetensors_metadata(c->file, "betas"), "[%f, %f]", &beta1, &beta2);
    struct adamw options = {
        .lr = (float)metadata_number(c, "lr", 0),
        .beta1 = beta1,
        .beta2 = beta2,
        .eps = (float)metadata_number(c, "eps", 0),
        .weight_decay = (float)metadata_number(c, "weight_decay", 0),
    };
    int64_t steps = (int64_t)metadata_number(c, "steps", 0);
    for (int64_t step = 1; step <= steps; step++) {
        struct engine_sums sums;
        double norm;
        TRY(accumulate_all(engine, c, &sums));
        options.step = step;
        TRY(engine_update(engine, sums.denominator, &options,
                          (float)metadata_number(c, "max_grad_norm", 0), &norm));
        out->loss = fmax(out->loss, relative(sums.loss / sums.denominator, losses[step - 1]));
        out->gradient = fmax(out->gradient, relative(norm, norms[step - 1]));
    }
    TRY(engine_weights(engine, flat));
    return compare(c, engine_parameters(engine), flat, "param.", &out->parameter, out->worst);
}

static struct err *run_engine(struct comm *comm, const struct golden_case *c, struct outcome *out)
{
    const struct kernels *kernels = kernels_cpu();
    if (backend.plugin)
        TRY(kernels_load(backend.plugin, &kernels));
    struct engine_options options = {
        .kernels = kernels,
        .world = comm,
        .group = comm,
        .model = &c->model,
        .objective = c->objective,
        .mode = c->mode,
        .recompute = RECOMPUTE_LAYER,
        .dtype = backend.dtype,
        .lengths = {c->batches[0]->length, c->batches[c->n_batches - 1]->length},
    };
    struct engine *engine = NULL;
    TRY(engine_create(&options, &engine));
    float *flat = malloc((size_t)engine_parameters(engine)->count * sizeof *flat);
    struct err *e = flat ? engine_load(engine, c->directory, NULL) : err_no_memory();
    if (!e)
        e = safetensors_find(c->file, "losses") ? check_adamw(engine, c, flat, out)
                                                : check_gradients(engine, c, flat, out);
    free(flat);
    engine_destroy(engine);
    return e;
}

static struct err *run_rank(int rank, int world, const struct meeting *meeting, void *user)
{
    struct outcome out = {0};
    struct comm *comm;
    if (world == 1)
        TRY(comm_create_self(&comm));
    else
        TRY(comm_create_gloo(meeting, "world", rank, world, "127.0.0.1", RANK_TIMEOUT_S, &comm));
    struct err *e = run_engine(comm, user, &out);
    comm_destroy(comm);
    if (!e)
        ranks_result(&out, sizeof out);
    return e;
}

/* ---- The program ---- */

struct totals {
    int cases, failures;
    double loss, gradient, parameter;
};

/* Every rank has the same sums; the worst of them counts, and NaN is the worst. */
static struct outcome worst_of(const struct rank_outcome *ranks, int degree)
{
    struct outcome worst = {0};
    for (int r = 0; r < degree; r++) {
        const struct outcome *o = ranks[r].result;
        if (!(o->gradient <= worst.gradient) || !(o->parameter <= worst.parameter))
            strcpy(worst.worst, o->worst);
        worst.loss = o->loss <= worst.loss ? worst.loss : o->loss;
        worst.gradient = o->gradient <= worst.gradient ? worst.gradient : o->gradient;
        worst.parameter = o->parameter <= worst.parameter ? worst.parameter : o->parameter;
    }
    return worst;
}

static void run_case(struct golden_case *c, int degree, struct totals *totals)
{
    struct rank_outcome ranks[MAX_DEGREE] = {0};
    char label[24];
    snprintf(label, sizeof label, "%s %d", parallel_mode_name(c->mode), degree);
    struct err *e = ranks_run(degree, run_rank, c, RANK_TIMEOUT_S, ranks);
    totals->cases++;
    if (e) {
        totals->failures++;
        printf("%-7s FAILED  %s: %s\n", label, c->path, err_message(e));
    } else {
        struct outcome worst = worst_of(ranks, degree);
        const struct tolerances *t = &tolerances[backend.dtype];
        bool ok = worst.loss <= t->loss && worst.gradient <= t->gradient &&
                  worst.parameter <= t->parameter;
        totals->failures += !ok;
        totals->loss = fmax(totals->loss, worst.loss);
        totals->gradient = fmax(totals->gradient, worst.gradient);
        totals->parameter = fmax(totals->parameter, worst.parameter);
        printf("%-7s %s  loss %.1e  gradient %.1e  parameter %.1e  %s (%s)\n", label,
               ok ? "ok    " : "FAILED", worst.loss, worst.gradient, worst.parameter, c->path,
               worst.worst);
    }
    fflush(stdout);
    err_free(e);
    ranks_free(ranks, degree);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* mode < 0: all modes; degree 0: 1, 2 and 4. */
static struct err *run_directory(const char *directory, int mode, int degree, struct totals *totals)
{
    struct dirent **entries;
    int n = scandir(directory, &entries, NULL, alphasort);
    if (n < 0)
        return err_new(ERR_NOT_FOUND, "%s is not a directory that can be read", directory);
    struct err *e = NULL;
    for (int i = 0; i < n; i++) {
        struct golden_case c = {0};
        bool is_case = false;
        if (!e && ends_with(entries[i]->d_name, ".safetensors"))
            e = open_case(directory, entries[i]->d_name, &c, &is_case);
        for (int m = MODE_NONE; !e && is_case && m <= MODE_CSBP; m++) {
            if (mode >= 0 && m != mode)
                continue;
            c.mode = (enum parallel_mode)m;
            for (int d = 1; d <= MAX_DEGREE; d *= 2)
                if ((!degree || d == degree) && (m != MODE_NONE || d == 1))
                    run_case(&c, d, totals);
        }
        close_case(&c);
        free(entries[i]);
    }
    free(entries);
    return e;
}

static int usage(FILE *to)
{
    fputs("usage: golden [--backend cpu|PLUGIN] [--precision fp32|bf16]\n"
          "              [--mode none|csbp|cp|bp] [--degree 1|2|4] DIRECTORY...\n"
          "\n"
          "Runs the golden cases in the directories and prints each one's largest relative\n"
          "errors, the worst last. Exits with 1 if any is beyond its tolerance. Without\n"
          "--mode and --degree: every mode at degrees 1, 2 and 4. A plugin is a file,\n"
          "libdllm-cuda.so; the CPU backend computes in fp32 alone.\n",
          to);
    return to == stdout ? EXIT_SUCCESS : 2;
}

static int mode_named(const char *name)
{
    for (int m = MODE_NONE; m <= MODE_CSBP; m++)
        if (!strcmp(name, parallel_mode_name((enum parallel_mode)m)))
            return m;
    return -1;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"backend", required_argument, NULL, 'b'}, {"precision", required_argument, NULL, 'p'},
        {"mode", required_argument, NULL, 'm'},    {"degree", required_argument, NULL, 'd'},
        {"help", no_argument, NULL, 'h'},          {0},
    };
    int mode = -1, degree = 0, option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'h')
            return usage(stdout);
        else if (option == 'b')
            backend.plugin = strcmp(optarg, "cpu") ? optarg : NULL;
        else if (option == 'p' && !strcmp(optarg, "fp32"))
            backend.dtype = DTYPE_F32;
        else if (option == 'p' && !strcmp(optarg, "bf16"))
            backend.dtype = DTYPE_BF16;
        else if (option == 'm' && mode_named(optarg) >= 0)
            mode = mode_named(optarg);
        else if (option == 'd' && strlen(optarg) == 1 && strchr("124", *optarg))
            degree = *optarg - '0';
        else
            return usage(stderr);
    }
    if (optind == argc || (backend.dtype == DTYPE_BF16 && !backend.plugin))
        return usage(stderr);
    struct totals totals = {0};
    for (int i = optind; i < argc; i++) {
        struct err *e = run_directory(argv[i], mode, degree, &totals);
        if (e) {
            fprintf(stderr, "golden: %s\n", err_message(e));
            err_free(e);
            return EXIT_FAILURE;
        }
    }
    printf("%d runs, %d beyond tolerance; worst: loss %.1e, gradient %.1e, parameter %.1e\n",
           totals.cases, totals.failures, totals.loss, totals.gradient, totals.parameter);
    return totals.failures || !totals.cases ? EXIT_FAILURE : EXIT_SUCCESS;
}
