/* Preparation: text files into artifacts, and every kind of file that is not text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/file.h"
#include "daemon/base/log.h"
#include "daemon/worker/data/prepare.h"

#define END 256

static char root[] = "/tmp/test-data-XXXXXX";
static char datasets[64];

static void ok(struct err *e)
{
    if (e)
        fail_msg("%s", err_message(e));
}

static int remove_all(const char *directory)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    return system(command);
}

static int make_root(void **state)
{
    (void)state;
    log_set_level(LOG_LEVEL_ERROR);
    if (!mkdtemp(root))
        return -1;
    snprintf(datasets, sizeof datasets, "%s/datasets", root);
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    return remove_all(root);
}

static int empty_root(void **state)
{
    (void)state;
    return remove_all(root) || mkdir(root, 0755);
}

/* Writes root/name; returns its path (valid until the call after next). */
static const char *put(const char *name, const void *bytes, size_t n)
{
    static char paths[2][128];
    static int turn;
    char *path = paths[turn ^= 1];
    snprintf(path, 128, "%s/%s", root, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    return path;
}

static const char *put_text(const char *name, const char *text)
{
    return put(name, text, strlen(text));
}

static struct prepare_options options_for(const char *path)
{
    return (struct prepare_options){.path = path,
                                    .format = "text",
                                    .field = "text",
                                    .tokenizer = "bytes",
                                    .datasets_directory = datasets};
}

static void prepare(const char *path, struct artifact *a, struct prepare_result *result)
{
    struct prepare_options options = options_for(path);
    ok(prepare_run(&options, result));
    ok(artifact_open(result->artifact, true, a));
}

static int entries(const char *directory)
{
    int n = 0;
    DIR *dir = opendir(directory);
    if (!dir)
        return 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return n;
}

/* The documents are these texts (n_bytes NULL: C strings), each with its end. */
static void expect_documents(const char *path, const char *const *texts, const size_t *n_bytes,
                             size_t n)
{
    struct prepare_result result;
    struct artifact a;
    prepare(path, &a, &result);
    assert_int_equal(a.n_documents, n);
    assert_int_equal(result.documents, n);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        size_t length = n_bytes ? n_bytes[i] : strlen(texts[i]);
        assert_int_equal(a.documents[i + 1] - a.documents[i], length + 1);
        for (size_t k = 0; k < length; k++)
            assert_int_equal(a.tokens[a.documents[i] + k], (unsigned char)texts[i][k]);
        assert_int_equal(a.tokens[a.documents[i + 1] - 1], END);
        bytes += length;
    }
    for (uint64_t i = 0; i < a.n_tokens; i++)
        assert_true(artifact_supervised(&a, i));
    assert_int_equal(result.bytes, bytes);
    assert_int_equal(result.tokens, bytes + n);
    assert_int_equal(a.n_supervised, bytes + n);
    artifact_close(&a);
    free(result.artifact);
}

static void expect_refused(const char *path, enum err_kind kind, const char *says)
{
    struct prepare_options options = options_for(path);
    struct prepare_result result;
    struct err *e = prepare_run(&options, &result);
    if (!e)
        fail_msg("%s was accepted", path);
    if (err_kind(e) != kind || !strstr(err_message(e), says) || !strstr(err_message(e), path))
        fail_msg("the message is: %s", err_message(e));
    assert_null(result.artifact);
    err_free(e);
    assert_int_equal(entries(datasets), 0); /* nothing stays behind */
}

/* ---- What is accepted ---- */

static void jsonl(void **state)
{
    (void)state;
    static const char *const texts[] = {"one", "two \xe2\x82\xac", "three"};
    expect_documents(put_text("a.jsonl", "{\"text\": \"one\", \"id\": 1}\n"
                                         "{\"id\":[{\"text\":0}],\"text\":\"two \\u20ac\"}\n"
                                         "{\"text\":\"three\"}\n"),
                     texts, NULL, 3);
    /* CRLF, blank lines, no newline at the end */
    expect_documents(put_text("b.ndjson", "{\"text\": \"one\"}\r\n\r\n  \n"
                                          "{\"text\":\"two \xe2\x82\xac\"}\r\n\n"
                                          "{\"text\":\"three\"}"),
                     texts, NULL, 3);
    /* a byte order mark */
    expect_documents(put_text("c.jsonl", "\xef\xbb\xbf{\"text\": \"one\"}\n"), texts, NULL, 1);
}

static void escapes(void **state)
{
    (void)state;
    static const char *const texts[] = {"a\0b\0", "\xf0\x9f\x98\x80", "\\u0000", "\"\n\t/", "\\\0"};
    static const size_t bytes[] = {4, 4, 6, 4, 2};
    expect_documents(put_text("a.jsonl", "{\"text\":\"a\\u0000b\\u0000\"}\n"
                                         "{\"text\":\"\\ud83d\\ude00\"}\n"
                                         "{\"text\":\"\\\\u0000\"}\n"
                                         "{\"text\":\"\\\"\\n\\t\\/\"}\n"
                                         "{\"text\":\"\\\\\\u0000\"}\n"),
                     texts, bytes, 5);
}

static void fields(void **state)
{
    (void)state;
    struct prepare_options options = options_for(
        put_text("a.jsonl", "{\"a\":{\"b.c\":{\"d\":\"nested\"}},\"text\":\"t\"}\n"
                            "{\"a.b.c.d\":\"flat\",\"a\":{\"b\":{\"c\":{\"d\":\"x\"}}}}\n"
                            "{\"a\":{\"b\":{\"c\":{\"d\":\"deep\"}}}}\n"));
    options.field = "a.b.c.d";
    struct prepare_result result;
    struct artifact a;
    ok(prepare_run(&options, &result));
    ok(artifact_open(result.artifact, true, &a));
    assert_int_equal(a.n_documents, 3);
    assert_int_equal(a.documents[1], 7);
    assert_int_equal(a.documents[2], 12);
    assert_int_equal(a.documents[3], 17);
    assert_int_equal(a.tokens[a.documents[1]], 'f');
    artifact_close(&a);
    free(result.artifact);
}

static void text_files(void **state)
{
    (void)state;
    static const char *const one[] = {"line\n\r\nlast \xc3\xa9"};
    expect_documents(put_text("a.txt", one[0]), one, NULL, 1);
    char with_mark[64];
    snprintf(with_mark, sizeof with_mark, "\xef\xbb\xbf%s", one[0]);
    expect_documents(put_text("b.txt", with_mark), one, NULL, 1);

    char directory[128];
    snprintf(directory, sizeof directory, "%s/d", root);
    assert_int_equal(mkdir(directory, 0755), 0);
    put_text("d/z.txt", "last");
    put_text("d/a.jsonl", "{\"text\":\"first\"}\n{\"text\":\"second\"}");
    put_text("d/README", "not this");
    put_text("d/.hidden.txt", "nor this");
    put_text("d/m.txt", "");
    static const char *const all[] = {"first", "second", "last"};
    expect_documents(directory, all, NULL, 3);
    struct prepare_result result;
    struct artifact a;
    prepare(directory, &a, &result);
    assert_int_equal(result.skipped_empty, 1);
    artifact_close(&a);
    free(result.artifact);
}

/* Larger than every buffer, with sequences of several bytes across the reads' ends. */
static void large(void **state)
{
    (void)state;
    size_t n = 3000001, at = 0;
    char *text = malloc(n), *line = malloc(n + 64);
    assert_non_null(text);
    assert_non_null(line);
    while (at + 3 <= n) {
        memcpy(text + at, "\xe2\x82\xac", 3);
        at += 3;
    }
    memset(text + at, 'x', n - at);
    const char *const texts[] = {text, "after"};
    size_t bytes[] = {n, 5};
    expect_documents(put("a.txt", text, n), texts, bytes, 1);

    size_t used = (size_t)sprintf(line, "{\"text\":\"");
    memcpy(line + used, text, n);
    used += n;
    used += (size_t)sprintf(line + used, "\"}\n{\"text\":\"after\"}");
    expect_documents(put("a.jsonl", line, used), texts, bytes, 2);
    free(text);
    free(line);
}

static void statistics(void **state)
{
    (void)state;
    struct prepare_result result;
    struct artifact a;
    prepare(put_text("a.jsonl", "{\"text\":\"aab\"}\n{\"text\":\"\"}\n{\"text\":\"\"}\n"), &a,
            &result);
    assert_int_equal(result.documents, 1);
    assert_int_equal(result.skipped_empty, 2);
    assert_int_equal(a.skipped_empty, 2);
    assert_int_equal(a.unigrams['a'], 2);
    assert_int_equal(a.unigrams[END], 1);
    assert_int_equal(a.vocab, 259);
    /* a: 1/2, b and the end: 1/4 */
    assert_float_equal(result.unigram_entropy, 1.5 * log(2), 1e-12);
    artifact_close(&a);
    free(result.artifact);
}

/* ---- Names ---- */

static void the_name_is_what_made_it(void **state)
{
    (void)state;
    struct prepare_result first, again, other;
    struct prepare_options options = options_for(put_text("a.jsonl", "{\"text\":\"one\"}\n"));
    ok(prepare_run(&options, &first));
    assert_false(first.reused);
    ok(prepare_run(&options, &again));
    assert_true(again.reused);
    assert_string_equal(first.artifact, again.artifact);
    assert_int_equal(again.tokens, 4);
    assert_true(again.unigram_entropy == first.unigram_entropy);
    assert_int_equal(strlen(first.hash), 32);
    free(again.artifact);

    /* under another name: the same */
    options = options_for(put_text("copy.jsonl", "{\"text\":\"one\"}\n"));
    ok(prepare_run(&options, &again));
    assert_true(again.reused);
    free(again.artifact);
    /* another field, other contents, another kind: another */
    static const char *const others[][3] = {
        {"b.jsonl", "{\"text\":\"one\",\"t\":\"one\"}\n", "t"},
        {"c.jsonl", "{\"text\":\"one\"}", "text"},
        {"d.txt", "{\"text\":\"one\"}\n", "text"},
    };
    for (int i = 0; i < 3; i++) {
        options = options_for(put_text(others[i][0], others[i][1]));
        options.field = others[i][2];
        ok(prepare_run(&options, &other));
        assert_false(other.reused);
        assert_string_not_equal(other.hash, first.hash);
        free(other.artifact);
    }
    assert_int_equal(entries(datasets), 4);
    free(first.artifact);
}

static void damaged_is_made_again(void **state)
{
    (void)state;
    static const char *const files[] = {"tokens", "supervised", "documents", "unigrams",
                                        "manifest.json"};
    struct prepare_options options = options_for(put_text("a.txt", "some text"));
    struct prepare_result result;
    struct artifact a;
    for (size_t i = 0; i < 5; i++) {
        for (int how = 0; how < 3; how++) {
            ok(prepare_run(&options, &result));
            char path[256];
            snprintf(path, sizeof path, "%s/%s", result.artifact, files[i]);
            int fd = open(path, O_RDWR);
            assert_true(fd >= 0);
            if (how == 0)
                assert_int_equal(ftruncate(fd, 1), 0);
            else if (how == 1)
                assert_int_equal(pwrite(fd, "\xfe", 1, 0), 1);
            else
                assert_int_equal(unlink(path), 0);
            close(fd);
            struct err *e = artifact_open(result.artifact, true, &a);
            assert_non_null(e);
            assert_int_equal(err_kind(e), ERR_INVALID);
            assert_non_null(strstr(err_message(e), files[i]));
            err_free(e);
            free(result.artifact);
            ok(prepare_run(&options, &result));
            assert_false(result.reused);
            ok(artifact_open(result.artifact, true, &a));
            artifact_close(&a);
            free(result.artifact);
        }
    }
    assert_int_equal(entries(datasets), 1);
    struct err *e = artifact_open("/nonexistent/artifact", false, &a);
    assert_non_null(e);
    assert_int_equal(err_kind(e), ERR_NOT_FOUND);
    err_free(e);
}

static void leftovers_are_removed(void **state)
{
    (void)state;
    char dead[128], alive[128];
    assert_int_equal(mkdir(datasets, 0755), 0);
    snprintf(dead, sizeof dead, "%s/.preparing-dead00", datasets);
    snprintf(alive, sizeof alive, "%s/.preparing-alive0", datasets);
    assert_int_equal(mkdir(dead, 0700), 0);
    assert_int_equal(mkdir(alive, 0700), 0);
    put_text("datasets/.preparing-dead00/tokens", "half");
    int lock = open(alive, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
    struct prepare_options options = options_for(put_text("a.txt", "text"));
    struct prepare_result result;
    ok(prepare_run(&options, &result));
    free(result.artifact);
    assert_int_equal(access(dead, F_OK), -1);
    assert_int_equal(access(alive, F_OK), 0);
    close(lock);
}

/* Several processes at once: one artifact, whole, and nothing else. */
static void side_by_side(void **state)
{
    (void)state;
    enum { PROCESSES = 4 };
    struct prepare_options options = options_for(put_text("a.txt", "some text"));
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            struct prepare_result result;
            struct err *e = prepare_run(&options, &result);
            _exit(e ? 1 : 0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(entries(datasets), 1);
}

struct watch {
    int64_t last, total;
    int calls, stop_at;
};

static bool watch(void *user, int64_t done, int64_t total)
{
    struct watch *w = user;
    assert_true(done >= w->last && done <= total);
    w->last = done;
    w->total = total;
    return ++w->calls != w->stop_at;
}

static void progress_and_stop(void **state)
{
    (void)state;
    size_t n = 5 << 20;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, 'a', n);
    struct watch w = {0};
    struct prepare_options options = options_for(put("a.txt", text, n));
    options.progress = watch;
    options.user = &w;
    struct prepare_result result;
    for (int stop_at = 1; stop_at < 9; stop_at += 3) {
        w = (struct watch){.stop_at = stop_at};
        struct err *e = prepare_run(&options, &result);
        assert_non_null(e);
        assert_int_equal(err_kind(e), ERR_ABORTED);
        err_free(e);
        assert_int_equal(w.calls, stop_at);
        assert_int_equal(entries(datasets), 0);
    }
    for (int again = 0; again < 2; again++) {
        w = (struct watch){0};
        ok(prepare_run(&options, &result));
        assert_int_equal(w.total, 2 * n);
        assert_int_equal(w.last, w.total);
        free(result.artifact);
    }
    free(text);
}

/* ---- What is refused ---- */

static void wrong_records(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{\"text\":\"a\"}\n{\"txt\":\"b\"}\n",
         "line 2, byte 1: no field \"text\"; the record has: txt"},
        {"{}", "line 1, byte 1: no field"},
        {"{\"text\":7}", "the field \"text\" must be a string"},
        {"{\"text\":null}", "must be a string"},
        {"{\"text\":[\"a\"]}", "must be a string"},
        {"[\"text\"]", "must be an object with the field \"text\""},
        {"\"text\"", "must be an object"},
        {"7", "must be an object"},
        {"{\"text\":\"a\"}\n\n\n{\"text\":\"a\"", "line 4, byte "},
        {"{\"text\":\"a\"} {\"text\":\"b\"}", "line 1, byte 14: more text"},
        {"{\"text\":\"a\"},", "byte 13: more text"},
        {"{'text':'a'}", "line 1, byte 3: not JSON around"},
        {"plain words", "line 1, byte 1: not JSON"},
        {"{\"text\":\"a\nb\"}", "line 1, byte "},
        {"{\"text\":\"\xff\"}", "line 1, byte 10: byte 0xff is not UTF-8"},
        {"{\"text\":\"\xed\xa0\x80\"}", "byte 10: byte 0xed is not UTF-8"},
        {"{\"text\":\"\xc0\x80\"}", "byte 10: byte 0xc0 is not UTF-8"},
        {"{\"text\":\"\xf4\x90\x80\x80\"}", "byte 10: byte 0xf4"},
        {"{\"text\":\"\xe2\x82\"}", "byte 10: byte 0xe2"},
        {"{\"text\":\"\\ud83d\"}", "line 1, byte "},
        {"{\"text\":\"\\ude00\\ud83d\"}", "line 1, byte "},
        {"{\"text\":\"\\u00\"}", "line 1, byte "},
        {"{\"text\":\"\\x41\"}", "line 1, byte "},
        {"{\"text\":\"\\u0000\" x}", "line 1, byte 18: not JSON"},
        {"", "holds no text"},
        {"\n \n\r\n", "holds no text"},
        {"{\"text\":\"\"}\n", "holds no text (1 empty records)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(put_text("a.jsonl", cases[i].text), ERR_INVALID, cases[i].says);

    expect_refused(put("a.jsonl", "{\"text\":\"a\0b\"}", 15), ERR_INVALID, "byte 11: a NUL byte");
    expect_refused(put("a.jsonl", "\xff\xfe{\0\"\0", 6), ERR_INVALID, "line 1, byte 4: a NUL");
    char deep[30000];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"text\":", 8);
    expect_refused(put("a.jsonl", deep, sizeof deep), ERR_INVALID, "line 1, byte ");
}

static void wrong_text(void **state)
{
    (void)state;
    expect_refused(put("a.txt", "ab\nc\xff", 5), ERR_INVALID, "line 2, byte 2: this is not UTF-8");
    expect_refused(put("a.txt", "ab\n\0", 4), ERR_INVALID, "line 2, byte 1: a NUL byte");
    expect_refused(put("a.txt", "\xe2\x82", 2), ERR_INVALID, "line 1, byte 1: this is not");
    expect_refused(put("a.txt", "", 0), ERR_INVALID, "holds no text");
    expect_refused(put("a.txt", "\xef\xbb\xbf", 3), ERR_INVALID, "holds no text");
    /* deep in a large file */
    size_t n = 2500000;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, 'a', n);
    for (size_t i = 99; i < n; i += 100)
        text[i] = '\n';
    text[2400010] = '\x80';
    expect_refused(put("a.txt", text, n), ERR_INVALID, "line 24001, byte 11: this is not UTF-8");
    /* random bytes */
    for (size_t i = 0; i < n; i++)
        text[i] = (char)(i * 2654435761u >> 13);
    expect_refused(put("a.txt", text, n), ERR_INVALID, "a.txt: line ");
    expect_refused(put("a.jsonl", text, n), ERR_INVALID, "a.jsonl: line ");
    free(text);
}

static void long_line(void **state)
{
    (void)state;
    const char *path = put_text("a.jsonl", "{\"text\":\"short\"}\n");
    assert_int_equal(truncate(path, (off_t)PREPARE_MAX_LINE_BYTES + (1 << 22)), 0);
    expect_refused(path, ERR_INVALID, "line 2 is longer than the 268435456 bytes");
}

static void wrong_paths(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/missing.jsonl", root);
    expect_refused(path, ERR_NOT_FOUND, "does not exist");
    expect_refused(put_text("a.parquet", "x"), ERR_INVALID, ".jsonl, .ndjson");
    expect_refused(put_text(".txt", "x"), ERR_INVALID, "name that ends in");
    snprintf(path, sizeof path, "%s/d", root);
    assert_int_equal(mkdir(path, 0755), 0);
    expect_refused(path, ERR_INVALID, "holds no file");
    /* A link that leads out of the directory that was allowed. */
    put_text("secret.txt", "secret");
    char link[160];
    snprintf(link, sizeof link, "%s/x.txt", path);
    assert_int_equal(symlink("../secret.txt", link), 0);
    expect_refused(path, ERR_INVALID, "leads out");
    assert_int_equal(unlink(link), 0);
    put_text("d/real.txt", "inside");
    assert_int_equal(symlink("real.txt", link), 0);
    static const char *const twice[] = {"inside", "inside"};
    expect_documents(path, twice, NULL, 2);
    assert_int_equal(remove_all(datasets), 0);
    snprintf(path, sizeof path, "%s/fifo.txt", root);
    assert_int_equal(mkfifo(path, 0644), 0);
    expect_refused(path, ERR_INVALID, "neither a file");

    struct prepare_result result;
    struct prepare_options options = options_for(put_text("a.txt", "x"));
    options.datasets_directory = "/nonexistent/here";
    struct err *e = prepare_run(&options, &result);
    assert_non_null(e);
    assert_int_equal(err_kind(e), ERR_IO);
    err_free(e);
    options = options_for(put_text("a.txt", "x"));
    options.tokenizer = "bpe";
    e = prepare_run(&options, &result);
    assert_non_null(e);
    err_free(e);
    options = options_for(put_text("a.txt", "x"));
    options.format = "chat";
    e = prepare_run(&options, &result);
    assert_non_null(e);
    err_free(e);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup(f, empty_root)
    const struct CMUnitTest tests[] = {
        TEST(jsonl),
        TEST(escapes),
        TEST(fields),
        TEST(text_files),
        TEST(large),
        TEST(statistics),
        TEST(the_name_is_what_made_it),
        TEST(damaged_is_made_again),
        TEST(leftovers_are_removed),
        TEST(side_by_side),
        TEST(progress_and_stop),
        TEST(wrong_records),
        TEST(wrong_text),
        TEST(long_line),
        TEST(wrong_paths),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
