/* Backends that are plugins: what is opened, and the sentences of what is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/load.h"

static char *const *plugins; /* right, other ABI, refuses, no plugin at all */

static void expect(const char *path, enum err_kind kind, const char *sentence)
{
    const struct kernels *k = NULL;
    struct err *e = kernels_load(path, &k);
    assert_non_null(e);
    assert_null(k);
    if (err_kind(e) != kind || !strstr(err_message(e), path) || !strstr(err_message(e), sentence))
        fail_msg("%s: %s", err_kind_name(err_kind(e)), err_message(e));
    err_free(e);
}

static void a_plugin_gives_its_table(void **state)
{
    (void)state;
    const struct kernels *k;
    assert_null(kernels_load(plugins[0], &k));
    assert_int_equal(k->abi, KERNELS_ABI);
    assert_string_equal(k->name, "plugin");
    const struct kernels *again;
    assert_null(kernels_load(plugins[0], &again));
    assert_ptr_equal(k, again);
}

static void what_is_not_one_is_named(void **state)
{
    (void)state;
    char sentence[80];
    snprintf(sentence, sizeof sentence, "kernels ABI %d wanted, %d found", KERNELS_ABI,
             KERNELS_ABI + 1);
    expect("/nowhere/libdllm-cuda.so", ERR_NOT_FOUND, "is not installed");
    expect(plugins[1], ERR_INVALID, sentence);
    expect(plugins[2], ERR_NOT_FOUND, "needs a device that is not there");
    expect(plugins[3], ERR_INVALID, "it has no kernels_plugin_abi");
    expect("/etc/passwd", ERR_NOT_FOUND, "cannot be loaded");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plugin_gives_its_table),
        cmocka_unit_test(what_is_not_one_is_named),
    };
    if (argc != 5)
        return 2;
    plugins = argv + 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
