/* The API's parts that need no server: routes, JSON from outside, documents. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/doc.h"
#include "api/router.h"

static const struct route table[] = {
    {.method = "GET", .pattern = "/"},           {.method = "GET", .pattern = "/a"},
    {.method = "POST", .pattern = "/a"},         {.method = "GET", .pattern = "/a/{id}"},
    {.method = "POST", .pattern = "/a/{id}/go"},
};
#define N (sizeof table / sizeof table[0])

static void test_router_finds(void **state)
{
    (void)state;
    const struct {
        const char *method, *path;
        int route; /* index, or -1 */
        int64_t id;
        const char *allow; /* of a known path with another method */
    } rows[] = {
        {"GET", "/", 0, 0, ""},
        {"GET", "/a", 1, 0, ""},
        {"HEAD", "/a", 1, 0, ""},
        {"POST", "/a", 2, 0, ""},
        {"GET", "/a/7", 3, 7, ""},
        {"GET", "/a/999999999999999999", 3, 999999999999999999, ""},
        {"POST", "/a/12/go", 4, 12, ""},
        {"DELETE", "/a", -1, 0, "GET, HEAD, POST"},
        {"GET", "/a/12/go", -1, 0, "POST"},
        {"GET", "/a/", -1, 0, ""},
        {"GET", "/a/0", -1, 0, ""},
        {"GET", "/a/07", -1, 0, ""},
        {"GET", "/a/-1", -1, 0, ""},
        {"GET", "/a/1x", -1, 0, ""},
        {"GET", "/a/9999999999999999999", -1, 0, ""},
        {"GET", "/a/7/", -1, 0, ""},
        {"GET", "/b", -1, 0, ""},
        {"GET", "", -1, 0, ""},
        {"get", "/a", -1, 0, "GET, HEAD, POST"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct router_match m;
        router_find(table, N, rows[i].method, rows[i].path, &m);
        assert_ptr_equal(m.route, rows[i].route < 0 ? NULL : &table[rows[i].route]);
        if (m.route)
            assert_int_equal(m.id, rows[i].id);
        else
            assert_string_equal(m.allow, rows[i].allow);
        assert_int_equal(m.path_known, m.route || *rows[i].allow);
    }
}

static void test_broken_json_is_placed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "is empty"},
        {" \n\t", "is empty"},
        {"[1]", "must be a JSON object"},
        {"{\"a\": 1,\n  \"b\": }", "line 2, column 8"},
        {"{\"\xc3\xa9\": x}", "line 1, column 7"},
        {"{\"a\": 1} x", "line 1, column 10"},
        {"{\"a\": \"\\u0000\"}", "line 1, column 8"},
        {"{\"a\":\n \"\xff\"}", "line 2, column 3"},
        {"{\"a\": 1, \"a\": 2}", "\"a\" twice"},
        {"{\"x\": [{\"b\": 1, \"c\": 2, \"b\": 3}]}", "\"b\" twice"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *text = strdup(rows[i].text);
        cJSON *json;
        struct err *e = doc_read_object(text, strlen(text), "The body", &json);
        assert_non_null(e);
        assert_null(json);
        assert_int_equal(err_kind(e), ERR_INVALID);
        if (!strstr(err_message(e), rows[i].says))
            fail_msg("\"%s\" does not say \"%s\"", err_message(e), rows[i].says);
        assert_ptr_equal(strstr(err_message(e), "The body"), err_message(e));
        err_free(e);
        free(text);
    }
}

static void test_an_object_with_too_many_keys(void **state)
{
    (void)state;
    char *text = malloc(100000), *p = text;
    *p++ = '{';
    for (int i = 0; i < 2000; i++)
        p += sprintf(p, "%s\"k%d\":0", i ? "," : "", i);
    strcpy(p, "}");
    cJSON *json;
    struct err *e = doc_read_object(text, strlen(text), "The body", &json);
    assert_non_null(e);
    assert_non_null(strstr(err_message(e), "more than 1024 keys"));
    err_free(e);
    free(text);
}

static void test_documents(void **state)
{
    (void)state;
    cJSON *json = cJSON_CreateObject();
    doc_text(json, "text", NULL);
    doc_integer(json, "large", 9007199254740993);
    doc_time(json, "time", 1767323045.678);
    doc_time(json, "never", 0);
    doc_number(json, "nan", 0.0 / 0.0);
    doc_number(json, "inf", -1e308 * 10);
    doc_raw(json, "raw", "{\"a\":[1]}");
    char *text = cJSON_PrintUnformatted(json);
    assert_string_equal(text, "{\"text\":null,\"large\":9007199254740993,"
                              "\"time\":\"2026-01-02T03:04:05.678Z\",\"never\":null,"
                              "\"nan\":\"nan\",\"inf\":\"-inf\",\"raw\":{\"a\":[1]}}");
    free(text);
    cJSON_Delete(json);
    doc_text(NULL, "into", "nothing"); /* memory was short before: no crash */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router_finds),
        cmocka_unit_test(test_broken_json_is_placed),
        cmocka_unit_test(test_an_object_with_too_many_keys),
        cmocka_unit_test(test_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
