/* Weights of a model directory: one file or shards, of each dtype, whole or a range; and everything
 * that is wrong with them, by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/worker/model/parameters.h"
#include "tests/support/model_files.h"

static char directory[] = "/tmp/test-weights-XXXXXX";

static void empty(const char *path)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char file[512];
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(file);
    }
    closedir(dir);
}

static int make_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

static int empty_directory(void **state)
{
    (void)state;
    empty(directory);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    return rmdir(directory);
}

static const char *at(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static void ok(struct err *e)
{
    if (e)
        fail_msg("%s", err_message(e));
}

static void expect_error(struct err *e, enum err_kind kind, const char *says)
{
    if (!e)
        fail_msg("nothing is wrong, but it should say \"%s\"", says);
    if (err_kind(e) != kind || !strstr(err_message(e), says))
        fail_msg("it says \"%s\" (%s), not \"%s\" (%s)", err_message(e), err_kind_name(err_kind(e)),
                 says, err_kind_name(kind));
    err_free(e);
}

#define SIZES                                                                                      \
    "\"hidden_size\": 12, \"intermediate_size\": 20, \"num_hidden_layers\": 3, "                   \
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 50"

static const char *const configs[] = {
    "{\"model_type\": \"qwen3\", \"head_dim\": 8, " SIZES "}",
    "{\"model_type\": \"qwen2\", \"tie_word_embeddings\": true, " SIZES "}",
    "{\"model_type\": \"llama\", \"attention_bias\": true, " SIZES "}",
    "{\"model_type\": \"mistral\", \"head_dim\": 4, " SIZES "}",
};
#define N_CONFIGS (sizeof configs / sizeof *configs)
#define QWEN3 configs[0]
#define TIED configs[1]

static struct parameters parameters_of(const char *config, int64_t added)
{
    struct model_config model;
    struct problems problems = {0};
    struct parameters p;
    cJSON *json = cJSON_Parse(config);
    assert_non_null(json);
    model_config_parse(json, "", &model, &problems);
    assert_int_equal(problems_count(&problems), 0);
    model.vocab += added;
    model.added_vocab = added;
    ok(parameters_create(&model, &p));
    cJSON_Delete(json);
    return p;
}

static void write_files(const char *config, int shards, const char *dtype)
{
    empty(directory);
    ok(model_files_write(&(struct model_files){
        .directory = directory, .config = config, .seed = 5, .shards = shards, .dtype = dtype}));
}

/* ---- What is right ---- */

/* Reads [begin, end) in pieces and compares. */
static void read_in_pieces(const struct parameters *p, const struct weights *w, int64_t begin,
                           int64_t end, int64_t piece, const float *expected)
{
    for (int64_t from = begin; from < end; from += piece) {
        int64_t n = end - from < piece ? end - from : piece;
        float *got = calloc((size_t)n, sizeof *got);
        assert_non_null(got);
        ok(parameters_read(p, w, from, n, got));
        assert_memory_equal(got, expected + from, (size_t)n * sizeof *got);
        free(got);
    }
}

static void every_layout_and_dtype(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"F32", "BF16", "F16", "mixed"};
    for (size_t c = 0; c < N_CONFIGS; c++) {
        struct parameters p = parameters_of(configs[c], 0);
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            for (int shards = 1; shards <= 5; shards += 2) {
                struct weights *w;
                struct model_files like = {.dtype = dtypes[d]};
                write_files(configs[c], shards, dtypes[d]);
                ok(weights_open(directory, NULL, &w));
                ok(parameters_expect(&p, w));
                float *expected = calloc((size_t)p.count, sizeof *expected);
                assert_non_null(expected);
                parameters_draw(&p, 5, 0, p.count, expected);
                for (int i = 0; i < p.n; i++)
                    for (int64_t k = 0; k < p.items[i].count; k++) {
                        float *value = &expected[p.items[i].offset + k];
                        *value = model_files_round(*value, model_files_dtype(&like, i));
                    }
                read_in_pieces(&p, w, 0, p.count, p.count, expected);
                read_in_pieces(&p, w, 0, p.count, 613, expected);
                read_in_pieces(&p, w, p.count / 3, p.count / 3 * 2, 1000, expected);
                free(expected);
                weights_close(w);
            }
        parameters_free(&p);
    }
}

static void drawing_a_range_is_drawing_all(void **state)
{
    (void)state;
    struct parameters p = parameters_of(QWEN3, 0);
    float *whole = calloc((size_t)p.count, sizeof *whole);
    float *parts = calloc((size_t)p.count, sizeof *parts);
    assert_true(whole && parts);
    parameters_draw(&p, 3, 0, p.count, whole);
    for (int64_t from = 0; from < p.count; from += 777)
        parameters_draw(&p, 3, from, p.count - from < 777 ? p.count - from : 777, parts + from);
    assert_memory_equal(whole, parts, (size_t)p.count * sizeof *whole);
    free(whole);
    free(parts);
    parameters_free(&p);
}

/* Added rows are the mean of the others, in the embedding and in a head of its own. */
static void a_grown_vocabulary(void **state)
{
    (void)state;
    const int64_t added = 14, rows = 50, columns = 12;
    for (size_t c = 0; c < 2; c++) {
        static const char *const matrices[] = {"model.embed_tokens.weight", "lm_head.weight"};
        struct parameters small = parameters_of(configs[c], 0);
        struct parameters large = parameters_of(configs[c], added);
        struct weights *w;
        write_files(configs[c], 3, "F32");
        ok(weights_open(directory, NULL, &w));
        ok(parameters_expect(&large, w));
        float *before = calloc((size_t)small.count, sizeof *before);
        float *after = calloc((size_t)large.count, sizeof *after);
        assert_true(before && after);
        ok(parameters_read(&small, w, 0, small.count, before));
        ok(parameters_read(&large, w, 0, large.count, after));
        read_in_pieces(&large, w, 0, large.count, 100, after);
        for (int i = 0; i < small.n; i++)
            assert_memory_equal(before + small.items[i].offset, after + large.items[i].offset,
                                (size_t)small.items[i].count * sizeof *before);
        for (int m = 0; m < (large.config.tie_embeddings ? 1 : 2); m++) {
            const float *matrix = after + parameters_find(&large, matrices[m])->offset;
            for (int64_t k = 0; k < columns; k++) {
                double mean = 0;
                for (int64_t r = 0; r < rows; r++)
                    mean += matrix[r * columns + k] / (double)rows;
                for (int64_t r = rows; r < rows + added; r++)
                    assert_true(fabs(matrix[r * columns + k] - mean) < 1e-7);
            }
        }
        free(before);
        free(after);
        weights_close(w);
        parameters_free(&small);
        parameters_free(&large);
    }
}

/* Opens, expects and reads it all. */
static struct err *load(const char *config, int64_t added)
{
    struct weights *w;
    struct parameters p = parameters_of(config, added);
    struct err *e = weights_open(directory, NULL, &w);
    if (!e) {
        float *flat = calloc((size_t)p.count, sizeof *flat);
        assert_non_null(flat);
        e = parameters_expect(&p, w);
        if (!e)
            e = parameters_read(&p, w, 0, p.count, flat);
        free(flat);
        weights_close(w);
    }
    parameters_free(&p);
    return e;
}

static void write_with(struct model_files m)
{
    empty(directory);
    m.directory = directory;
    m.seed = 5;
    m.dtype = m.dtype ? m.dtype : "BF16";
    m.shards = m.shards ? m.shards : 2;
    ok(model_files_write(&m));
}

static void a_tied_head(void **state)
{
    (void)state;
    write_with((struct model_files){.config = TIED});
    ok(load(TIED, 0));
    write_with((struct model_files){.config = TIED, .tied_head = 1});
    ok(load(TIED, 0));
    ok(load(TIED, 3));
    write_with((struct model_files){.config = TIED, .tied_head = 2});
    expect_error(load(TIED, 0), ERR_INVALID,
                 "lm_head.weight that differs from model.embed_tokens.weight");
    write_with((struct model_files){.config = TIED, .extra = "lm_head.weight"});
    expect_error(load(TIED, 0), ERR_INVALID,
                 "lm_head.weight is [4], but config.json asks for [50,");
}

/* ---- What is wrong with tensors ---- */

static void tensors_that_are_wrong(void **state)
{
    (void)state;
    static const char down[] = "model.layers.1.mlp.down_proj.weight";
    write_with((struct model_files){.config = QWEN3, .skip = down});
    expect_error(load(QWEN3, 0), ERR_INVALID, "index.json lacks the tensor model.layers.1.mlp.");
    write_with((struct model_files){.config = QWEN3, .skip = down, .shards = 1});
    expect_error(load(QWEN3, 0), ERR_INVALID,
                 "model.safetensors lacks the tensor model.layers.1.mlp.down_proj.weight [12, 20]");
    write_with((struct model_files){.config = QWEN3, .extra = "model.layers.1.mlp.down_proj.bias"});
    expect_error(load(QWEN3, 0), ERR_INVALID,
                 "00002.safetensors has a tensor model.layers.1.mlp.down_proj.bias, of which");
    write_with((struct model_files){.config = QWEN3,
                                    .extra = "model.layers.0.self_attn.rotary_emb.inv_freq"});
    ok(load(QWEN3, 0));
    write_with((struct model_files){.config = QWEN3, .skip = down, .extra = down});
    expect_error(load(QWEN3, 0), ERR_INVALID,
                 "model.layers.1.mlp.down_proj.weight is [4], but config.json asks for [12, 20]");
    write_with((struct model_files){.config = QWEN3});
    expect_error(load("{\"model_type\": \"qwen3\", \"head_dim\": 6, " SIZES "}", 0), ERR_INVALID,
                 "q_proj.weight is [16, 12], but config.json asks for [12, 12], and 17 more");
}

static void put(const char *name, const char *text)
{
    ok(file_replace(at(name), text, strlen(text)));
}

static void a_dtype_that_is_not_read(void **state)
{
    (void)state;
    const int64_t zeros[16 * 12] = {0};
    struct safetensor t = {.name = "model.layers.0.self_attn.q_proj.weight",
                           .dtype = SAFETENSORS_I64,
                           .dims = 2,
                           .shape = {16, 12},
                           .data = zeros};
    write_with((struct model_files){.config = QWEN3, .skip = t.name, .shards = 2});
    ok(safetensors_write(at("model-00003-of-00003.safetensors"), &t, 1, NULL, 0));
    char *text;
    size_t bytes;
    ok(file_read(at("model.safetensors.index.json"), 1 << 20, &text, &bytes));
    cJSON *json = cJSON_Parse(text);
    cJSON_AddStringToObject(cJSON_GetObjectItem(json, "weight_map"), t.name,
                            "model-00003-of-00003.safetensors");
    free(text);
    text = cJSON_PrintUnformatted(json);
    put("model.safetensors.index.json", text);
    cJSON_free(text);
    cJSON_Delete(json);
    expect_error(load(QWEN3, 0), ERR_INVALID,
                 "00003.safetensors: model.layers.0.self_attn.q_proj.weight is I64, but must be");
}

/* ---- What is wrong with files ---- */

static void put_tensor(const char *file, const char *name)
{
    const float zeros[4] = {0};
    struct safetensor t = {
        .name = name, .dtype = SAFETENSORS_F32, .dims = 1, .shape = {4}, .data = zeros};
    ok(safetensors_write(at(file), &t, 1, NULL, 0));
}

static void indexes_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *index, *says;
    } cases[] = {
        {"{\"weight_map\": {\"a\": ", "index.json"},
        {"[]", "weight_map must be an object"},
        {"{}", "weight_map must be an object"},
        {"{\"weight_map\": {}}", "weight_map must be an object"},
        {"{\"weight_map\": [\"a.safetensors\"]}", "weight_map must be an object"},
        {"{\"weight_map\": {\"a\": 3}}", "weight_map/a is no string"},
        {"{\"weight_map\": {\"a\": \"../a.safetensors\"}}", "weight_map/a is \"../a.safetensors\""},
        {"{\"weight_map\": {\"a\": \"/etc/a.safetensors\"}}", "in the same directory"},
        {"{\"weight_map\": {\"a\": \"b/a.safetensors\"}}", "in the same directory"},
        {"{\"weight_map\": {\"a\": \".safetensors\"}}", "in the same directory"},
        {"{\"weight_map\": {\"a\": \"a.bin\"}}", "must be the name of a .safetensors file"},
        {"{\"weight_map\": {\"a\": \"\"}}", "must be the name of a .safetensors file"},
        {"{\"weight_map\": {\"a\": \"3.safetensors\"}}", "names a shard that is missing"},
        {"{\"weight_map\": {\"a\": \"1.safetensors\", \"c\": \"1.safetensors\"}}",
         "tensor c should lie in 1.safetensors, which does not have it"},
        {"{\"weight_map\": {\"a\": \"2.safetensors\", \"b\": \"1.safetensors\"}}",
         "tensor a should lie in 2.safetensors, but lies in 1.safetensors"},
        {"{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"again.safetensors\"}}",
         "tensor a lies in"},
    };
    put_tensor("1.safetensors", "a");
    put_tensor("2.safetensors", "b");
    put_tensor("again.safetensors", "a");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weights *w;
        put("model.safetensors.index.json", cases[i].index);
        expect_error(weights_open(directory, NULL, &w),
                     strstr(cases[i].says, "missing") ? ERR_NOT_FOUND : ERR_INVALID, cases[i].says);
        assert_null(w);
    }
}

static void too_many_shards(void **state)
{
    (void)state;
    cJSON *json = cJSON_CreateObject(), *map = cJSON_AddObjectToObject(json, "weight_map");
    for (int i = 0; i < 257; i++) {
        char name[16], file[32];
        snprintf(name, sizeof name, "t%d", i);
        snprintf(file, sizeof file, "%d.safetensors", i);
        cJSON_AddStringToObject(map, name, file);
        put_tensor(file, name);
    }
    char *text = cJSON_PrintUnformatted(json);
    put("model.safetensors.index.json", text);
    cJSON_free(text);
    cJSON_Delete(json);
    struct weights *w;
    expect_error(weights_open(directory, NULL, &w), ERR_INVALID, "more than 256 files");
}

static void directories_without_weights(void **state)
{
    (void)state;
    struct weights *w;
    expect_error(weights_open(directory, NULL, &w), ERR_NOT_FOUND,
                 "has no model.safetensors and no model.safetensors.index.json");
    put("pytorch_model.bin", "x");
    expect_error(weights_open(directory, NULL, &w), ERR_NOT_FOUND, "pytorch_model.bin is not read");
    put("model.safetensors", "short");
    expect_error(weights_open(directory, NULL, &w), ERR_INVALID, "model.safetensors has 5 bytes");
    empty(directory);
    assert_int_equal(symlink("nowhere", at("model.safetensors")), 0);
    expect_error(weights_open(directory, NULL, &w), ERR_NOT_FOUND, "model.safetensors does not");
}

/* Links are followed, but not out of the roots. */
static void links(void **state)
{
    (void)state;
    char outside[] = "/tmp/test-weights-XXXXXX", file[128];
    struct weights *w;
    assert_non_null(mkdtemp(outside));
    write_with((struct model_files){.config = QWEN3, .shards = 2});
    const char *const shard = "model-00002-of-00002.safetensors";
    snprintf(file, sizeof file, "%s/blob", outside);
    assert_int_equal(rename(at(shard), file), 0);
    assert_int_equal(symlink(file, at(shard)), 0);
    const char *both[] = {directory, outside}, *neither[] = {"/usr"};
    ok(weights_open(directory, NULL, &w));
    weights_close(w);
    ok(weights_open(directory, &(struct file_roots){both, 2}, &w));
    weights_close(w);
    expect_error(weights_open(directory, &(struct file_roots){both, 1}, &w), ERR_INVALID,
                 "blob lies outside of the directories");
    expect_error(weights_open(directory, &(struct file_roots){neither, 1}, &w), ERR_INVALID,
                 "index.json lies outside of the directories that this daemon reads from: /usr");
    expect_error(weights_open(directory, &(struct file_roots){neither, 0}, &w), ERR_INVALID,
                 "lies outside");
    /* the directory itself may be reached through a link, as may a root */
    snprintf(file, sizeof file, "%s/link", outside);
    assert_int_equal(symlink(directory, file), 0);
    const char *through_link[] = {file, outside};
    ok(weights_open(directory, &(struct file_roots){through_link, 2}, &w));
    weights_close(w);
    empty(outside);
    rmdir(outside);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, NULL, empty_directory)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_layout_and_dtype),      TEST(drawing_a_range_is_drawing_all),
        TEST(a_grown_vocabulary),          TEST(a_tied_head),
        TEST(tensors_that_are_wrong),      TEST(a_dtype_that_is_not_read),
        TEST(indexes_that_are_wrong),      TEST(too_many_shards),
        TEST(directories_without_weights), TEST(links),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
