/* The same tensor twice, for the tests of a device backend: on the host in fp32, as the CPU backend
 * reads it, and on the device in any floating dtype with strides of its own. Both hold the same
 * values: those that the device's dtype can tell.
 *
 * What an operation is to overwrite begins as NaN in both, and the elements between the rows of the
 * device's tensor hold a GAP that no operation may touch. A check compares norms, and each element;
 * a NaN never passes. report prints a line of the table and remembers what failed.
 */
#ifndef TEST_CUDA_BOTH_H
#define TEST_CUDA_BOTH_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct both {
    struct tensor cpu, gpu;
    void *block; /* of the device's tensor; it may begin behind it */
    int64_t offset, span;
};

extern const struct kernels *cpu, *gpu;
extern struct kernel_queue *cpu_queue, *gpu_queue;

/* Ends the program with the sentence, if there is one. */
void must(struct err *e);

uint64_t random_bits(void);
float uniform(float low, float high);
int64_t pick(int64_t low, int64_t high); /* both included */
bool chance(double p);
/* A length that is often odd, sometimes a multiple of 8, and rarely 0. */
int64_t some_length(int64_t most);

/* A dimension of -1 is none. low < high: uniform values; low == high: that value; NAN: poisoned. */
struct both both_make(enum dtype dtype, int64_t n, int64_t m, int64_t k, float low, float high);
struct both both_i32(int64_t n, int64_t low, int64_t high);
/* After the host's side of an i32 was changed. */
void both_upload_i32(const struct both *b);
void both_free(struct both *b);
/* What has no tensor: data NULL in both. */
struct both both_none(void);

/* The device's values in row order, fp32, in memory that the caller frees. */
float *both_download(const struct both *b, const char *what);
/* Compares the device's tensor with the host's into the worst errors of the line. */
struct line {
    const char *what;
    enum dtype dtype;
    int64_t cases;
    double norm,
        element; /* worst so far: of |gpu - cpu| / |cpu|, and of each element, to 1 + rms */
    double norm_limit, element_limit;
};
struct line line_begin(const char *what, enum dtype dtype);
void line_check(struct line *l, const struct both *b);
void line_report(const struct line *l);
void expect(bool right, const char *what);
int failures(void);

#endif
