/* Split and packing of a prepared dataset. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/philox.h"
#include "daemon/worker/data/dataset.h"
#include "daemon/worker/data/prepare.h"

static char root[] = "/tmp/test-dataset-XXXXXX";

static void ok(struct err *e)
{
    if (e)
        fail_msg("%s", err_message(e));
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

/* An artifact of n documents with lengths (before their end) 1..max; returns its path. */
static char *make_artifact(int n, int max, uint64_t seed)
{
    char path[128], datasets[128];
    snprintf(path, sizeof path, "%s/x.jsonl", root);
    snprintf(datasets, sizeof datasets, "%s/datasets", root);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < n; i++) {
        uint64_t length = 1 + philox_bits(seed, PHILOX_INIT, 0, 0, (uint64_t)i) % (uint64_t)max;
        fprintf(f, "{\"text\":\"");
        for (uint64_t k = 0; k < length; k++)
            fputc('a' + (int)(philox_bits(seed, PHILOX_INIT, 1, 0, (uint64_t)i * 4096 + k) % 26),
                  f);
        fprintf(f, "\"}\n");
    }
    fclose(f);
    struct prepare_options options = {.path = path,
                                      .format = "text",
                                      .field = "text",
                                      .tokenizer = "bytes",
                                      .datasets_directory = datasets};
    struct prepare_result result;
    ok(prepare_run(&options, &result));
    return result.artifact;
}

/* Reads all of a split; checks each sequence's shape; appends the documents' tokens to *out, and
 * returns their count. */
static size_t read_split(const struct dataset *d, enum dataset_split split, int64_t length,
                         int64_t block, uint32_t pad, int32_t *out)
{
    size_t total = 0, n;
    int32_t *ids = malloc((size_t)length * sizeof *ids);
    uint8_t *supervised = malloc((size_t)length);
    struct plan_document *documents = malloc((size_t)(length / block) * sizeof *documents);
    assert_true(ids && supervised && documents);
    int64_t sequences = dataset_sequences(d, split);
    for (int64_t i = 0; i < sequences; i++) {
        ok(dataset_sequence(d, split, i, ids, supervised, documents, &n));
        assert_true(n >= 1 && n <= (size_t)(length / block));
        int64_t row = 0;
        for (size_t k = 0; k < n; k++) {
            /* At the first boundary behind the document before: nothing is wasted. */
            assert_int_equal(documents[k].begin, (row + block - 1) / block * block);
            assert_true(documents[k].end > documents[k].begin && documents[k].end <= length);
            for (; row < documents[k].begin; row++)
                assert_true(ids[row] == (int32_t)pad && supervised[row] == 0);
            for (; row < documents[k].end; row++) {
                assert_int_equal(supervised[row], 1);
                out[total++] = ids[row];
            }
        }
        /* Only the last sequence may have room for another document. */
        if (i + 1 < sequences)
            assert_true((row + block - 1) / block * block == length);
        for (; row < length; row++)
            assert_true(ids[row] == (int32_t)pad && supervised[row] == 0);
    }
    free(ids);
    free(supervised);
    free(documents);
    assert_int_equal(total, dataset_tokens(d, split));
    return total;
}

/* If the document's tokens come next in `tokens`, at *at: moves behind them. */
static bool take(const struct artifact *a, uint64_t document, const int32_t *tokens, size_t n,
                 size_t *at)
{
    uint64_t begin = a->documents[document], length = a->documents[document + 1] - begin;
    if (n - *at < length)
        return false;
    for (uint64_t k = 0; k < length; k++)
        if (tokens[*at + k] != (int32_t)a->tokens[begin + k])
            return false;
    *at += length;
    return true;
}

static double entropy_of(const int32_t *tokens, size_t n)
{
    uint64_t counts[512] = {0};
    for (size_t i = 0; i < n; i++)
        counts[tokens[i]]++;
    double sum = 0;
    for (int i = 0; i < 512; i++)
        if (counts[i])
            sum -= (double)counts[i] / (double)n * log((double)counts[i] / (double)n);
    return sum;
}

static void every_token_once_and_in_order(void **state)
{
    (void)state;
    static const struct {
        int documents, max;
        int64_t length, block;
        double fraction;
    } shapes[] = {
        {50, 40, 64, 8, 0.1},    {50, 40, 64, 64, 0.3}, {50, 40, 64, 1, 0.5},
        {200, 5, 32, 4, 0.02},   {7, 300, 32, 16, 0.2}, {3, 2000, 128, 32, 0.5},
        {2, 10, 8, 8, 0.001},    {1, 10, 8, 4, 0.5},    {130, 31, 4096, 32, 0.01},
        {64, 31, 32, 32, 0.499}, {65, 63, 64, 64, 0.0}, {20, 1, 2, 1, 0.25},
    };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        char *path = make_artifact(shapes[s].documents, shapes[s].max, s);
        struct artifact a;
        struct dataset *d;
        ok(artifact_open(path, true, &a));
        ok(dataset_open(path, shapes[s].length, shapes[s].block, shapes[s].fraction, &d));
        assert_int_equal(dataset_vocab(d), a.vocab);
        int32_t *tokens[2];
        size_t n[2], at[2] = {0, 0};
        for (int i = 0; i < 2; i++) {
            tokens[i] = malloc((a.n_tokens + 1) * sizeof *tokens[i]);
            assert_non_null(tokens[i]);
            n[i] = read_split(d, (enum dataset_split)i, shapes[s].length, shapes[s].block, a.pad,
                              tokens[i]);
            if (n[i] > 0)
                assert_float_equal(dataset_unigram_entropy(d, (enum dataset_split)i),
                                   entropy_of(tokens[i], n[i]), 1e-9);
            else
                assert_true(dataset_unigram_entropy(d, (enum dataset_split)i) == 0);
        }
        assert_int_equal(n[0] + n[1], a.n_tokens);
        int64_t held_out = dataset_documents(d, DATASET_VALIDATION);
        assert_int_equal(dataset_documents(d, DATASET_TRAINING) + held_out, a.n_documents);
        assert_true(held_out < shapes[s].documents);
        assert_true((held_out > 0) == (shapes[s].fraction > 0 && shapes[s].documents > 1));
        for (uint64_t document = 0; document < a.n_documents; document++)
            assert_true(take(&a, document, tokens[0], n[0], &at[0]) ||
                        take(&a, document, tokens[1], n[1], &at[1]));
        assert_true(at[0] == n[0] && at[1] == n[1]);
        for (int i = 0; i < 2; i++)
            free(tokens[i]);
        dataset_close(d);
        artifact_close(&a);
        free(path);
    }
}

/* The split depends on the artifact and the fraction, not on the shape of sequences. */
static void the_split_is_fixed(void **state)
{
    (void)state;
    char *path = make_artifact(2000, 10, 99);
    struct dataset *a, *b, *c;
    ok(dataset_open(path, 64, 8, 0.1, &a));
    ok(dataset_open(path, 256, 1, 0.1, &b));
    ok(dataset_open(path, 64, 8, 0.2, &c));
    int64_t held_out = dataset_documents(a, DATASET_VALIDATION);
    assert_in_range(held_out, 150, 250); /* 200 +- 13.4 */
    assert_in_range(dataset_documents(c, DATASET_VALIDATION), 330, 470);
    assert_int_equal(dataset_documents(b, DATASET_VALIDATION), held_out);
    assert_int_equal(dataset_tokens(b, DATASET_VALIDATION), dataset_tokens(a, DATASET_VALIDATION));
    assert_true(dataset_unigram_entropy(b, DATASET_VALIDATION) ==
                dataset_unigram_entropy(a, DATASET_VALIDATION));
    dataset_close(a);
    dataset_close(b);
    dataset_close(c);
    free(path);
}

static void a_long_document_goes_on(void **state)
{
    (void)state;
    char file[128], datasets[128];
    snprintf(file, sizeof file, "%s/long.txt", root);
    snprintf(datasets, sizeof datasets, "%s/datasets", root);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    for (int i = 0; i < 20; i++)
        fputc('a' + i, f);
    fclose(f);
    struct prepare_options options = {.path = file,
                                      .format = "text",
                                      .field = "text",
                                      .tokenizer = "bytes",
                                      .datasets_directory = datasets};
    struct prepare_result result;
    ok(prepare_run(&options, &result));
    struct dataset *d;
    ok(dataset_open(result.artifact, 8, 4, 0.5, &d));
    assert_int_equal(dataset_sequences(d, DATASET_TRAINING), 3);
    assert_int_equal(dataset_sequences(d, DATASET_VALIDATION), 0);
    int32_t ids[8];
    uint8_t supervised[8];
    struct plan_document documents[2];
    size_t n;
    ok(dataset_sequence(d, DATASET_TRAINING, 1, ids, supervised, documents, &n));
    assert_int_equal(n, 1);
    assert_true(documents[0].begin == 0 && documents[0].end == 8);
    assert_int_equal(ids[0], 'i');
    ok(dataset_sequence(d, DATASET_TRAINING, 2, ids, supervised, documents, &n));
    assert_int_equal(n, 1);
    assert_true(documents[0].begin == 0 && documents[0].end == 5);
    assert_int_equal(ids[4], 256);
    assert_int_equal(ids[5], 258);
    assert_int_equal(supervised[4], 1);
    assert_int_equal(supervised[5], 0);
    dataset_close(d);
    dataset_close(NULL);
    free(result.artifact);
}

static void refuses(struct err *e, enum err_kind kind, const char *says)
{
    assert_non_null(e);
    if (err_kind(e) != kind || !strstr(err_message(e), says))
        fail_msg("the message is: %s", err_message(e));
    err_free(e);
}

static void damage(void **state)
{
    (void)state;
    char *path = make_artifact(10, 20, 5), file[256];
    struct dataset *d;
    refuses(dataset_open("/nonexistent/x", 32, 8, 0.1, &d), ERR_NOT_FOUND, "/nonexistent/x");
    refuses(dataset_open(root, 32, 8, 0.1, &d), ERR_INVALID, "manifest.json is missing");
    refuses(dataset_open(path, 33, 8, 0.1, &d), ERR_INVALID, "multiple");
    assert_null(d);

    snprintf(file, sizeof file, "%s/tokens", path);
    int fd = open(file, O_RDWR);
    assert_true(fd >= 0);
    const uint32_t beyond = 259;
    assert_int_equal(pwrite(fd, &beyond, sizeof beyond, 0), sizeof beyond);
    ok(dataset_open(path, 1024, 8, 0, &d)); /* the checksum is not looked at for a job */
    int32_t ids[1024];
    uint8_t supervised[1024];
    struct plan_document documents[128];
    size_t n;
    refuses(dataset_sequence(d, DATASET_TRAINING, 0, ids, supervised, documents, &n), ERR_INVALID,
            "token 0 is 259");
    dataset_close(d);
    assert_int_equal(ftruncate(fd, 4), 0);
    close(fd);
    refuses(dataset_open(path, 32, 8, 0, &d), ERR_INVALID, "tokens has 4 bytes instead of");
    free(path);

    path = make_artifact(11, 20, 6);
    snprintf(file, sizeof file, "%s/documents", path);
    fd = open(file, O_RDWR);
    assert_true(fd >= 0);
    const uint64_t falls = 1;
    assert_int_equal(pwrite(fd, &falls, sizeof falls, 16), sizeof falls);
    close(fd);
    refuses(dataset_open(path, 32, 8, 0, &d), ERR_INVALID, "documents does not rise");
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_once_and_in_order),
        cmocka_unit_test(the_split_is_fixed),
        cmocka_unit_test(a_long_document_goes_on),
        cmocka_unit_test(damage),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
