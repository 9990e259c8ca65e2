/* The cursor against the whole parser: it finds the same keys and values, and says where it could
 * not go on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/json_cursor.h"

/* Builds what the cursor sees, so that it can be compared. */
static cJSON *build(struct json_cursor *c)
{
    char text[256];
    size_t length;
    double number;
    cJSON *made;
    switch (json_cursor_kind(c)) {
    case '{':
        made = cJSON_CreateObject();
        assert_true(json_cursor_enter(c, '{'));
        while (json_cursor_next(c, '{')) {
            assert_true(json_cursor_key(c, text, sizeof text, &length));
            cJSON_AddItemToObject(made, text, build(c));
        }
        return made;
    case '[':
        made = cJSON_CreateArray();
        assert_true(json_cursor_enter(c, '['));
        while (json_cursor_next(c, '['))
            cJSON_AddItemToArray(made, build(c));
        return made;
    case '"':
        assert_true(json_cursor_string(c, text, sizeof text, &length));
        assert_int_equal(length, strlen(text));
        return cJSON_CreateString(text);
    case '-':
        assert_true(json_cursor_number(c, &number));
        return cJSON_CreateNumber(number);
    case 't':
        assert_true(json_cursor_skip(c));
        return cJSON_CreateTrue();
    case 'f':
        assert_true(json_cursor_skip(c));
        return cJSON_CreateFalse();
    default:
        assert_true(json_cursor_skip(c));
        return cJSON_CreateNull();
    }
}

static const char *const good[] = {
    "{}",
    " [ ] ",
    "{\"a\":1,\"b\":[true,false,null,{\"c\":[]}],\"d\":{\"e\":\"f\"}}",
    "{ \"a\" : -1.5e3 ,\n\t\"\" : [ 1 , 2 ] }\r\n",
    "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\",\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\",\"\xc3\xa9\"]",
    "\"}]{[,:\"",
    "[[[[1]],2],{\"x\":{\"y\":[{}]}}]",
};

static void sees_what_the_parser_sees(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct json_cursor c = json_cursor(good[i], strlen(good[i]));
        cJSON *expected = cJSON_Parse(good[i]), *got = build(&c);
        assert_non_null(expected);
        assert_null(c.what);
        if (!cJSON_Compare(expected, got, true))
            fail_msg("%s", good[i]);
        cJSON_Delete(expected);
        cJSON_Delete(got);
    }
}

static void skips_whole_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char text[512];
        double after;
        snprintf(text, sizeof text, "[%s,%s, 7]", good[i], good[i]);
        struct json_cursor c = json_cursor(text, strlen(text));
        assert_true(json_cursor_enter(&c, '['));
        assert_true(json_cursor_next(&c, '[') && json_cursor_skip(&c));
        assert_true(json_cursor_next(&c, '[') && json_cursor_skip(&c));
        assert_true(json_cursor_next(&c, '[') && json_cursor_number(&c, &after));
        assert_true(after == 7);
        assert_false(json_cursor_next(&c, '['));
        assert_null(c.what);
    }
}

static void long_strings_are_cut(void **state)
{
    (void)state;
    char text[4];
    size_t length;
    struct json_cursor c = json_cursor("\"abcdef\"", 8);
    assert_true(json_cursor_string(&c, text, sizeof text, &length));
    assert_string_equal(text, "abc");
    assert_int_equal(length, 6);
}

/* Every beginning of a text either ends in a fault or was whole; nothing is read beyond its end,
 * which the sanitizer sees. */
static void cut_off_anywhere(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        for (size_t n = 0; n < strlen(good[i]); n++) {
            char *text = malloc(n + 1);
            assert_non_null(text);
            memcpy(text, good[i], n);
            char *exact = realloc(text, n ? n : 1);
            struct json_cursor c = json_cursor(exact, n);
            bool skipped = json_cursor_skip(&c);
            assert_int_equal(skipped, c.what == NULL);
            assert_true(json_cursor_offset(&c) <= n);
            free(exact);
        }
}

static void faults(void **state)
{
    (void)state;
    static const struct {
        const char *text, *what;
        size_t offset;
    } cases[] = {
        {"", "a value", 0},
        {"]", "a value", 1},
        {",", "a value", 1},
        {"[1", "a value", 2},
        {"\"a", "the end of a string", 2},
        {"\"\\x\"", "an escape that JSON has", 3},
        {"\"\\u00g0\"", "four hexadecimal digits", 5},
        {"\"\\ud800x\"", "the second half of a surrogate pair", 7},
        {"\"\\ud800\\u0041\"", "the second half of a surrogate pair", 13},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json_cursor c = json_cursor(cases[i].text, strlen(cases[i].text));
        assert_false(json_cursor_skip(&c));
        assert_string_equal(c.what, cases[i].what);
        assert_int_equal(json_cursor_offset(&c), cases[i].offset);
        assert_false(json_cursor_skip(&c)); /* and stays there */
        assert_int_equal(json_cursor_kind(&c), 0);
    }
    double number;
    size_t length;
    struct json_cursor c = json_cursor("x", 1);
    assert_false(json_cursor_enter(&c, '{'));
    assert_string_equal(c.what, "an object");
    c = json_cursor("1.2.3", 5);
    assert_false(json_cursor_number(&c, &number));
    c = json_cursor("\"a\" 1", 5);
    assert_false(json_cursor_key(&c, NULL, 0, &length));
    assert_string_equal(c.what, "':'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sees_what_the_parser_sees),
        cmocka_unit_test(skips_whole_values),
        cmocka_unit_test(long_strings_are_cut),
        cmocka_unit_test(cut_off_anywhere),
        cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
