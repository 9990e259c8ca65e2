/* Damaged checkpoints: whatever stands in manifest.json or in a shard, opening and reading it is an
 * error that names file and place, never a crash and never other values. */
#include "tests/unit/checkpoint_fixture.h"

#include "daemon/base/file.h"
#include "store/safetensors.h"

#define WORLD 4 /* q.weight lies in shards 2 and 3 */
#define STEP 3

struct place {
    char directory[64];
    char checkpoint[128], manifest[256], shards[WORLD][256];
    char *text; /* of the manifest as it was written */
    size_t length;
};

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    if (!p)
        return -1;
    *state = p;
    fixture_directory(p->directory);
    fixture_write(p->directory, 1, WORLD, STEP);
    snprintf(p->checkpoint, sizeof p->checkpoint, "%s/step-%09d", p->directory, STEP);
    snprintf(p->manifest, sizeof p->manifest, "%s/manifest.json", p->checkpoint);
    for (int r = 0; r < WORLD; r++)
        snprintf(p->shards[r], sizeof p->shards[r], "%s/shard-%05d-of-%05d.safetensors",
                 p->checkpoint, r, WORLD);
    OK(file_read(p->manifest, 1 << 20, &p->text, &p->length));
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;
    fixture_remove(p->directory);
    free(p->text);
    free(p);
    return 0;
}

static void put(const char *path, const void *bytes, size_t length)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, length, f), length);
    assert_int_equal(fclose(f), 0);
}

static struct err *open_and_close(const char *path, bool verify)
{
    struct checkpoint *c;
    TRY(checkpoint_open(path, verify, &c));
    checkpoint_close(c);
    return NULL;
}

/* Opens without hashes and reads everything. */
static struct err *read_all(const char *path)
{
    struct checkpoint *c;
    TRY(checkpoint_open(path, false, &c));
    struct err *e = fixture_check_range(c, 0, FIXTURE_ELEMENTS);
    checkpoint_close(c);
    return e;
}

static cJSON *parsed(const struct place *p)
{
    cJSON *json = cJSON_ParseWithLength(p->text, p->length);
    assert_non_null(json);
    return json;
}

static void put_json(const struct place *p, const cJSON *json)
{
    char *text = cJSON_PrintUnformatted(json);
    assert_non_null(text);
    put(p->manifest, text, strlen(text));
    cJSON_free(text);
}

static cJSON *shard_of(cJSON *manifest, int rank)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItem(manifest, "shards"), rank);
}

static void set_range(cJSON *manifest, int rank, const char *name, double begin, double end)
{
    const double range[2] = {begin, end};
    cJSON *ranges = cJSON_GetObjectItem(shard_of(manifest, rank), "ranges");
    assert_true(cJSON_ReplaceItemInObject(ranges, name, cJSON_CreateDoubleArray(range, 2)));
}

/* ---- The manifest ---- */

static void test_every_cut_of_the_manifest(void **state)
{
    struct place *p = *state;
    for (size_t n = 0; n < p->length; n++) {
        put(p->manifest, p->text, n);
        FAILS(open_and_close(p->checkpoint, false), ERR_INVALID, "manifest.json: line 1");
    }
    put(p->manifest, p->text, p->length);
    OK(fixture_check(p->checkpoint));
}

static void test_any_byte_of_the_manifest(void **state)
{
    struct place *p = *state;
    static const char flips[] = {0x01, 0x10, 0x20, (char)0x80};
    char *text = malloc(p->length);
    assert_non_null(text);
    for (size_t i = 0; i < p->length; i++) {
        for (size_t f = 0; f < sizeof flips; f++) {
            memcpy(text, p->text, p->length);
            text[i] ^= flips[f];
            put(p->manifest, text, p->length);
            /* Some facts may read as others; what was trained may not. */
            struct err *e = read_all(p->checkpoint);
            if (e && !strstr(err_message(e), "/step-000000003"))
                fail_msg("byte %zu: %s", i, err_message(e));
            err_free(e);
        }
    }
    free(text);
}

/* Values that are wrong wherever a value of the item's type belongs. */
static const char *const garbage[] = {"null", "true", "\"\"", "[]", "{}", "-1.5", "1e300", "\"x\""};

static bool is_right_after_all(const cJSON *item, const char *value)
{
    bool number = value[0] == '-' || value[0] == '1', string = strcmp(value, "\"x\"") == 0;
    if (item->string && strcmp(item->string, "created") == 0)
        return number;
    if (item->string && strcmp(item->string, "mode") == 0)
        return string;
    return item->string && strcmp(item->string, "spec") == 0 && strcmp(value, "{}") == 0;
}

/* Exchanges what two items hold; names and places stay. */
static void swap_values(cJSON *a, cJSON *b)
{
    cJSON kept = *a;
    a->type = b->type, b->type = kept.type;
    a->child = b->child, b->child = kept.child;
    a->valuestring = b->valuestring, b->valuestring = kept.valuestring;
    a->valuedouble = b->valuedouble, b->valuedouble = kept.valuedouble;
    a->valueint = b->valueint, b->valueint = kept.valueint;
}

/* Every item below `parent`, in turn, is replaced by garbage, then taken away; `root` is what is
 * written. */
static void spoil(const struct place *p, const cJSON *root, cJSON *parent, int *tried)
{
    for (cJSON *item = parent->child; item; item = item->next) {
        for (size_t g = 0; g < sizeof garbage / sizeof *garbage; g++) {
            if (is_right_after_all(item, garbage[g]))
                continue;
            cJSON *wrong = cJSON_Parse(garbage[g]);
            assert_non_null(wrong);
            swap_values(item, wrong);
            put_json(p, root);
            FAILS(open_and_close(p->checkpoint, false), ERR_INVALID, "manifest.json: ");
            swap_values(item, wrong);
            cJSON_Delete(wrong);
            ++*tried;
        }
        if (!item->string || strcmp(item->string, "spec") != 0)
            spoil(p, root, item, tried);
    }
    for (int i = 0; i < cJSON_GetArraySize(parent); i++) {
        cJSON *copy = cJSON_Duplicate(parent, true);
        assert_non_null(copy);
        cJSON_DeleteItemFromArray(copy, i);
        swap_values(parent, copy);
        put_json(p, root);
        FAILS(open_and_close(p->checkpoint, false), ERR_INVALID, "manifest.json: ");
        swap_values(parent, copy);
        cJSON_Delete(copy);
        ++*tried;
    }
}

static void test_garbage_in_every_field(void **state)
{
    struct place *p = *state;
    cJSON *root = parsed(p);
    int tried = 0;
    spoil(p, root, root, &tried);
    assert_true(tried > 500);
    put_json(p, root);
    OK(fixture_check(p->checkpoint)); /* everything was put back */
    cJSON_Delete(root);
}

static void test_fields_are_named(void **state)
{
    struct place *p = *state;
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"\"version\":1", "\"version\":2", "version is 2, but this program reads version 1"},
        {"\"step\":3", "\"step\":-3", "step must be a whole number from 0 to 9007199254740992"},
        {"\"world\":4", "\"world\":5", "world is 5, but parallel.degree x data is 4 x 1"},
        {"\"degree\":4", "\"degree\":\"4\"", "parallel.degree must be a whole number from 1 to 4"},
        {"\"shape\":[6]", "\"shape\":[6,2,1]", "parameters[1].shape must be an array of one or"},
        {"\"shape\":[6]", "\"shape\":[0]", "parameters[1].shape must hold whole numbers"},
        {"[7,5]", "[9007199254740991,9007199254740991]", "parameters[0].shape must hold whole"},
        {"\"name\":\"k.weight\"", "\"name\":\"q.weight\"", "parameters holds q.weight twice"},
        {"shard-00001-of", "../x1-of", "shards[1].file must be shard-00001-of-00004.safetensors"},
        {"\"rank\":2", "\"rank\":1", "shards[2].rank must be a whole number from 2 to 2"},
        {"\"xxh3\":\"", "\"xxh3\":\"0", "shards[0].xxh3 must be 32 lower-case hex digits"},
        {"\"embed.weight\":[0", "\"other.weight\":[0", "shards[0].ranges names other.weight"},
        {"\"embed.weight\":[0,35", "\"embed.weight\":[0,36",
         "shards[0].ranges of embed.weight must be two rising whole numbers up to 35"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[8192];
        const char *at = strstr(p->text, cases[i].from);
        assert_non_null(at);
        int n = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - p->text), p->text, cases[i].to,
                         at + strlen(cases[i].from));
        assert_true(n > 0 && (size_t)n < sizeof text);
        put(p->manifest, text, (size_t)n);
        FAILS(open_and_close(p->checkpoint, false), ERR_INVALID, cases[i].message);
    }
}

static void test_pieces_that_overlap_or_are_missing(void **state)
{
    struct place *p = *state;
    static const struct {
        int rank;
        double begin, end;
        const char *message;
    } cases[] = {
        {3, 15, 24,
         "elements from 15 of q.weight stand in two places: in shard-00002-of-00004.safetensors "
         "and in shard-00003-of-00004.safetensors"},
        {3, 17, 24, "no shard holds elements 16 to 17 of q.weight"},
        {3, 16, 20, "no shard holds elements 20 to 24 of q.weight"},
        {2, 1, 16, "no shard holds elements 0 to 1 of q.weight"},
        {2, 0, 24, "stand in two places"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON *json = parsed(p);
        set_range(json, cases[i].rank, "q.weight", cases[i].begin, cases[i].end);
        put_json(p, json);
        cJSON_Delete(json);
        FAILS(open_and_close(p->checkpoint, false), ERR_INVALID, cases[i].message);
    }
    cJSON *json = parsed(p);
    cJSON_DeleteItemFromObject(cJSON_GetObjectItem(shard_of(json, 1), "ranges"), "norm.weight");
    put_json(p, json);
    cJSON_Delete(json);
    FAILS(open_and_close(p->checkpoint, false), ERR_INVALID,
          "no shard holds elements 0 to 6 of norm.weight");
}

/* ---- Shards ---- */

static void test_a_shard_that_is_missing(void **state)
{
    struct place *p = *state;
    assert_int_equal(unlink(p->shards[1]), 0);
    FAILS(open_and_close(p->checkpoint, false), ERR_INVALID,
          "shard-00001-of-00004.safetensors is missing");
    assert_int_equal(mkdir(p->shards[1], 0777), 0);
    FAILS(open_and_close(p->checkpoint, false), ERR_INVALID, "shard-00001-of-00004");
    assert_int_equal(unlink(p->manifest), 0);
    FAILS(open_and_close(p->checkpoint, false), ERR_NOT_FOUND, "manifest.json does not exist");
}

/* The manifest as if the shard had always had this length. */
static void put_length(const struct place *p, int rank, size_t length)
{
    cJSON *json = parsed(p);
    cJSON_SetNumberValue(cJSON_GetObjectItem(shard_of(json, rank), "bytes"), (double)length);
    put_json(p, json);
    cJSON_Delete(json);
}

static void test_every_cut_of_a_shard(void **state)
{
    struct place *p = *state;
    char *bytes;
    size_t length;
    OK(file_read(p->shards[3], 1 << 20, &bytes, &length));
    for (size_t n = 0; n < length; n++) {
        put(p->shards[3], bytes, n);
        put(p->manifest, p->text, p->length);
        FAILS(open_and_close(p->checkpoint, false), ERR_INVALID, "shard-00003-of-00004");
        put_length(p, 3, n);
        FAILS(open_and_close(p->checkpoint, true), ERR_INVALID, "has XXH3");
        FAILS(read_all(p->checkpoint), ERR_INVALID, "shard-00003-of-00004");
    }
    free(bytes);
}

static void test_any_byte_of_a_shard(void **state)
{
    struct place *p = *state;
    static const char flips[] = {0x01, 0x20, (char)0x80};
    char *bytes;
    size_t length;
    OK(file_read(p->shards[2], 1 << 20, &bytes, &length));
    for (size_t i = 0; i < length; i++) {
        for (size_t f = 0; f < sizeof flips; f++) {
            bytes[i] ^= flips[f];
            put(p->shards[2], bytes, length);
            bytes[i] ^= flips[f];
            FAILS(open_and_close(p->checkpoint, true), ERR_INVALID, "has XXH3");
            err_free(read_all(p->checkpoint)); /* without hashes a value may differ */
        }
    }
    free(bytes);
}

static void copy_file(const char *from, const char *to)
{
    char *bytes;
    size_t length;
    OK(file_read(from, 1 << 20, &bytes, &length));
    put(to, bytes, length);
    free(bytes);
}

static void test_a_shard_of_another_checkpoint(void **state)
{
    struct place *p = *state;
    char other[256];
    fixture_write(p->directory, 1, WORLD, STEP + 1);
    snprintf(other, sizeof other, "%s/step-%09d/shard-00001-of-00004.safetensors", p->directory,
             STEP + 1);
    copy_file(other, p->shards[1]); /* of the same size */
    OK(open_and_close(p->checkpoint, false));
    FAILS(read_all(p->checkpoint), ERR_INVALID, "belongs to another checkpoint than its manifest");
    FAILS(open_and_close(p->checkpoint, true), ERR_INVALID, "shard-00001-of-00004");
}

static void test_a_shard_and_a_manifest_that_disagree(void **state)
{
    struct place *p = *state;
    cJSON *json = parsed(p);
    set_range(json, 2, "q.weight", 0, 15);
    set_range(json, 3, "q.weight", 15, 24);
    put_json(p, json);
    FAILS(read_all(p->checkpoint), ERR_INVALID,
          "the range of q.weight is not 0 to 15 as the manifest says");
    cJSON_Delete(json);
}

/* Shard 1 (norm.weight alone) written anew, with the id that its manifest has. */
static void rewrite(const struct place *p, const char *ranges, size_t n, enum safetensors_dtype m,
                    int64_t elements)
{
    static const float zeros[64];
    cJSON *json = parsed(p);
    const struct safetensor tensors[] = {
        {.name = "weights/norm.weight",
         .dtype = SAFETENSORS_F32,
         .dims = 1,
         .shape = {6},
         .data = zeros},
        {.name = "m/norm.weight", .dtype = m, .dims = 1, .shape = {elements}, .data = zeros},
        {.name = "v/norm.weight", .dtype = SAFETENSORS_F32, .dims = 1, .shape = {6}, .data = zeros},
    };
    const struct safetensors_pair metadata[] = {
        {"checkpoint", cJSON_GetStringValue(cJSON_GetObjectItem(json, "id"))},
        {"ranges", ranges},
    };
    struct stat st;
    OK(safetensors_write(p->shards[1], tensors, n, metadata, ranges ? 2 : 1));
    assert_int_equal(stat(p->shards[1], &st), 0);
    put_length(p, 1, (size_t)st.st_size);
    cJSON_Delete(json);
}

static void test_what_a_shard_holds(void **state)
{
    struct place *p = *state;
    static const char right[] = "{\"norm.weight\": [0, 6]}";
    rewrite(p, NULL, 3, SAFETENSORS_F32, 6);
    FAILS(read_all(p->checkpoint), ERR_INVALID, "the metadata has no ranges");
    rewrite(p, "{\"norm", 3, SAFETENSORS_F32, 6);
    FAILS(read_all(p->checkpoint), ERR_INVALID, "the metadata's ranges: line 1");
    rewrite(p, "[]", 3, SAFETENSORS_F32, 6);
    FAILS(read_all(p->checkpoint), ERR_INVALID, "the range of norm.weight is not 0 to 6");
    rewrite(p, "{\"norm.weight\": [0, \"6\"]}", 3, SAFETENSORS_F32, 6);
    FAILS(read_all(p->checkpoint), ERR_INVALID, "the range of norm.weight is not 0 to 6");
    rewrite(p, right, 2, SAFETENSORS_F32, 6);
    FAILS(read_all(p->checkpoint), ERR_INVALID, "has no tensor v/norm.weight of 6 F32 elements");
    rewrite(p, right, 3, SAFETENSORS_I32, 6);
    FAILS(read_all(p->checkpoint), ERR_INVALID, "has no tensor m/norm.weight of 6 F32 elements");
    rewrite(p, right, 3, SAFETENSORS_F32, 5);
    FAILS(read_all(p->checkpoint), ERR_INVALID, "has no tensor m/norm.weight of 6 F32 elements");
    rewrite(p, right, 3, SAFETENSORS_F32, 6); /* zeros, but read */
    FAILS(read_all(p->checkpoint), ERR_INTERNAL, "element 64 of kind 0 is 0");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_every_cut_of_the_manifest),
        TEST(test_any_byte_of_the_manifest),
        TEST(test_garbage_in_every_field),
        TEST(test_fields_are_named),
        TEST(test_pieces_that_overlap_or_are_missing),
        TEST(test_a_shard_that_is_missing),
        TEST(test_every_cut_of_a_shard),
        TEST(test_any_byte_of_a_shard),
        TEST(test_a_shard_of_another_checkpoint),
        TEST(test_a_shard_and_a_manifest_that_disagree),
        TEST(test_what_a_shard_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
