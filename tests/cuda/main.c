/* Tests the CUDA plugin on a machine with a GPU: cuda_test PLUGIN [ops] [large] [speed], all of
 * them if none is named. Prints a table and ends with 1 if a line of it is wrong. */
#include <stdio.h>
#include <string.h>

#include "kernels/load.h"
#include "tests/cuda/both.h"
#include "tests/cuda/cuda_test.h"

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {{"ops", test_ops}, {"large", test_large}, {"speed", print_speeds}};

static bool wanted(const char *name, int argc, char **argv)
{
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], name))
            return true;
    return argc == 2;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s PLUGIN [ops] [large] [speed]\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    cpu = kernels_cpu();
    must(kernels_load(argv[1], &gpu));
    must(cpu->queue_create(&cpu_queue));
    must(gpu->queue_create(&gpu_queue));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (wanted(parts[i].name, argc, argv))
            parts[i].run();
    gpu->queue_destroy(gpu_queue);
    cpu->queue_destroy(cpu_queue);
    printf("%d wrong\n", failures());
    return failures() != 0;
}
