/* model.safetensors.index.json in a directory that has two shards: refused, or every tensor that it
 * names is found. */
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/weights.h"
#include "tests/fuzz/fuzz.h"

const char *const fuzz_words[] = {"\"weight_map\":",
                                  "\"metadata\":",
                                  "\"total_size\":",
                                  "\"a\"",
                                  "\"b\"",
                                  "\"c\"",
                                  "\"1.safetensors\"",
                                  "\"2.safetensors\"",
                                  "\"3.safetensors\"",
                                  "\"../1.safetensors\"",
                                  "\"a\":\"1.safetensors\"",
                                  "\"b\":\"1.safetensors\"",
                                  "\"c\":\"2.safetensors\"",
                                  "{",
                                  "}",
                                  "[",
                                  "]",
                                  ",",
                                  ":",
                                  "null",
                                  "/",
                                  ".",
                                  "..",
                                  "\\u0000",
                                  "\\u0031",
                                  NULL};

static char directory[] = "/tmp/fuzz-index-XXXXXX";
static char index_path[64];

static void put_shard(const char *file, const char *const *names, size_t n)
{
    static const float zeros[4];
    struct safetensor tensors[2];
    char path[64];
    for (size_t i = 0; i < n; i++)
        tensors[i] = (struct safetensor){
            .name = names[i], .dtype = SAFETENSORS_F32, .dims = 1, .shape = {4}, .data = zeros};
    snprintf(path, sizeof path, "%s/%s", directory, file);
    if (safetensors_write(path, tensors, n, NULL, 0))
        abort();
}

static void remove_directory(void)
{
    char path[64];
    for (int i = 1; i <= 2; i++) {
        snprintf(path, sizeof path, "%s/%d.safetensors", directory, i);
        unlink(path);
    }
    unlink(index_path);
    rmdir(directory);
}

static void make_directory(void)
{
    static const char *const first[] = {"a", "b"}, *const second[] = {"c"};
    if (!mkdtemp(directory))
        abort();
    snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json", directory);
    put_shard("1.safetensors", first, 2);
    put_shard("2.safetensors", second, 1);
    atexit(remove_directory);
}

void fuzz_one(const uint8_t *bytes, size_t n)
{
    if (!index_path[0])
        make_directory();
    int fd = open(index_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n)
        abort();
    close(fd);
    struct weights *w;
    const char *const roots[] = {directory};
    struct err *e = weights_open(directory, &(struct file_roots){roots, 1}, &w);
    if (!e) {
        size_t count;
        const struct weights_tensor *all = weights_tensors(w, &count);
        assert(count > 0 && weights_find(w, all[0].tensor->name) == all);
    }
    err_free(e);
    weights_close(w);
}
