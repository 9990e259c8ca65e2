/* JSON while memory is short: a document is whole or not there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/json.h"
#include "tests/support/faults.h"

#define TEXT "{\"name\":\"a\",\"list\":[1,2],\"inner\":{\"b\":true,\"c\":\"d\"}}"

static char *make(void)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "name", "a");
    cJSON *list = cJSON_AddArrayToObject(json, "list");
    for (int i = 1; i < 3; i++) {
        cJSON *number = cJSON_CreateNumber(i);
        if (!cJSON_AddItemToArray(list, number))
            cJSON_Delete(number);
    }
    cJSON *inner = cJSON_AddObjectToObject(json, "inner");
    cJSON_AddTrueToObject(inner, "b");
    cJSON_AddStringToObject(inner, "c", "d");
    char *text = json_print(json);
    cJSON_Delete(json);
    return text;
}

static void a_document_is_printed_whole_or_not_at_all(void **state)
{
    (void)state;
    int missing = 0;
    long count = 1;
    for (long n = 1; n <= count; n++) {
        faults_arm(FAULT_NO_MEMORY, n);
        char *text = make();
        count = faults_disarm();
        missing += !text;
        if (text)
            assert_string_equal(text, TEXT);
        free(text);
        text = make(); /* what is over does not count */
        assert_string_equal(text, TEXT);
        free(text);
    }
    assert_true(missing >= 16); /* values and keys */
}

static void what_could_not_be_held_is_not_called_wrong(void **state)
{
    (void)state;
    int failed = 0;
    for (long n = 1;; n++) {
        cJSON *json;
        faults_arm(FAULT_NO_MEMORY, n);
        struct err *e = json_parse(TEXT, strlen(TEXT), &json);
        bool struck = faults_disarm() >= n;
        if (e) {
            assert_int_equal(err_kind(e), ERR_NO_MEMORY);
            assert_null(json);
            failed++;
        } else {
            char *text = json_print(json);
            assert_string_equal(text, TEXT);
            free(text);
        }
        err_free(e);
        cJSON_Delete(json);
        if (!struck)
            break;
    }
    assert_true(failed >= 16);
    cJSON *json;
    struct err *e = json_parse("{\"a\":", 5, &json);
    assert_int_equal(err_kind(e), ERR_INVALID);
    err_free(e);
}

static void an_earlier_shortage_is_not_forgotten_by_reading(void **state)
{
    (void)state;
    cJSON *json = cJSON_CreateObject(), *other;
    faults_arm(FAULT_NO_MEMORY, 1);
    cJSON_AddStringToObject(json, "name", "a");
    faults_disarm();
    assert_null(json_parse(TEXT, strlen(TEXT), &other));
    cJSON_Delete(other);
    assert_null(json_print(json));
    cJSON_Delete(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_document_is_printed_whole_or_not_at_all),
        cmocka_unit_test(what_could_not_be_held_is_not_called_wrong),
        cmocka_unit_test(an_earlier_shortage_is_not_forgotten_by_reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
