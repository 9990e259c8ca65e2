/* A safetensors file: refused, or all its tensors can be read. An input is taken as it is, and once
 * more with the length of its header put right, which mutations of the header break. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/safetensors.h"
#include "tests/fuzz/fuzz.h"

const char *const fuzz_words[] = {
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
    "\"dtype\":",
    "\"shape\":",
    "\"data_offsets\":",
    "\"__metadata__\":",
    "\"F32\"",
    "\"BF16\"",
    "\"F16\"",
    "\"I64\"",
    "\"BOOL\"",
    "\"F8_E4M3\"",
    "[0,0]",
    "[]",
    "{}",
    "[0]",
    "null",
    ",",
    "}}",
    NULL};

#define MOST_ELEMENTS 4096

static void read_all(const struct safetensors *s)
{
    float values[MOST_ELEMENTS];
    for (size_t i = 0; i < safetensors_count(s); i++) {
        const struct safetensor *t = safetensors_at(s, i);
        assert(safetensors_find(s, t->name) == t);
        int64_t n = t->elements < MOST_ELEMENTS ? t->elements : MOST_ELEMENTS;
        err_free(safetensors_read_f32(s, t, t->elements - n, n, values));
    }
    safetensors_metadata(s, "format");
}

static void open_file(const uint8_t *bytes, size_t n)
{
    static int fd = -1;
    struct safetensors *s;
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, bytes, n, 0) != (ssize_t)n)
        abort();
    char path[32] = "/proc/self/fd/";
    snprintf(path + strlen(path), sizeof path - strlen(path), "%d", fd);
    struct err *e = safetensors_open(path, &s);
    if (!e)
        read_all(s);
    err_free(e);
    safetensors_close(s);
}

void fuzz_one(const uint8_t *bytes, size_t n)
{
    open_file(bytes, n);
    size_t end = n;
    while (end > 8 && bytes[end - 1] != '}')
        end--;
    if (end <= 8)
        return;
    uint8_t *fixed = malloc(n);
    if (!fixed)
        abort();
    memcpy(fixed, bytes, n);
    uint64_t header = end - 8;
    memcpy(fixed, &header, sizeof header);
    open_file(fixed, n);
    free(fixed);
}
