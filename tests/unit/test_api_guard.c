/* Who may ask, how often, and what has changed: the API's parts that decide that without a server.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <sodium.h>

#include "api/auth.h"
#include "api/guard.h"
#include "api/page.h"
#include "api/rate.h"
#include "api/request.h"
#include "api/routes.h"

static void test_hosts(void **state)
{
    (void)state;
    const char *const hosts[] = {"node7.example.org"};
    const char *const known[] = {NULL,        "localhost",         "LocalHost:8470",
                                 "127.0.0.1", "192.0.2.1:80",      "[::1]",
                                 "[::1]:80",  "Node7.example.org", "node7.example.org:8470"};
    const char *const unknown[] = {"",
                                   ":80",
                                   "example.org",
                                   "localhost.example.org",
                                   "127.0.0.1.example.org",
                                   "node7.example.org.example.com",
                                   "node7",
                                   "[::1",
                                   "[::1]x",
                                   "[localhost.example.org]",
                                   "0x7f.1.example"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!guard_host_known(known[i], hosts, 1))
            fail_msg("%s is refused", known[i]);
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        if (guard_host_known(unknown[i], hosts, 1))
            fail_msg("%s is taken", unknown[i]);
    char longest[600];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_false(guard_host_known(longest, hosts, 1));
}

static void test_encodings(void **state)
{
    (void)state;
    const char *const taken[] = {
        "gzip",          "br, gzip", "GZIP;q=0.5",   "identity,gzip;q=1", "*",
        "br;q=0, *;q=1", " gzip ",   "gzip;q=0.001", "*;q=0, gzip;q=1"};
    const char *const refused[] = {"",     "identity", "gzipped",       "x-gzip, br",   "gzip;q=0",
                                   "br,,", "*;q=0",    "gzip;q=0.000",  "gzip; q=0, *", ";",
                                   ",;q=", "gzip;Q=0", "*, gzip;q=0.0 "};
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (!page_takes_gzip(taken[i]))
            fail_msg("\"%s\" takes gzip", taken[i]);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (page_takes_gzip(refused[i]))
            fail_msg("\"%s\" takes no gzip", refused[i]);
    assert_false(page_takes_gzip(NULL));
}

static void test_origins(void **state)
{
    (void)state;
    assert_true(guard_same_origin(NULL, "http", "x"));
    assert_true(guard_same_origin("http://localhost:8470", "http", "localhost:8470"));
    assert_true(guard_same_origin("HTTP://LOCALHOST", "http", "localhost"));
    assert_false(guard_same_origin("http://localhost", "https", "localhost"));
    assert_false(guard_same_origin("https://localhost", "http", "localhost"));
    assert_false(guard_same_origin("http://localhost:1", "http", "localhost:2"));
    assert_false(guard_same_origin("http://localhost", "http", NULL));
    assert_false(guard_same_origin("null", "http", "null"));
    assert_false(guard_same_origin("", "http", "localhost"));
}

static void test_loopback(void **state)
{
    (void)state;
    assert_true(guard_loopback("127.0.0.1"));
    assert_true(guard_loopback("127.1.2.3"));
    assert_true(guard_loopback("::1"));
    assert_false(guard_loopback("0.0.0.0"));
    assert_false(guard_loopback("::"));
    assert_false(guard_loopback("128.0.0.1"));
    assert_false(guard_loopback("localhost"));
}

/* ---- Rates ---- */

static struct sockaddr_storage address(const char *text)
{
    struct sockaddr_storage out = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&out;
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1)
        out.ss_family = AF_INET;
    else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1)
        out.ss_family = AF_INET6;
    return out;
}

static int taken(struct rate *rate, const char *from, double now_s, int tries)
{
    struct sockaddr_storage a = address(from);
    double wait_s;
    int n = 0;
    for (int i = 0; i < tries; i++)
        n += rate_take(rate, (struct sockaddr *)&a, now_s, &wait_s);
    return n;
}

static void test_rate(void **state)
{
    (void)state;
    static struct rate rate;
    rate = (struct rate){.per_s = 2};
    assert_int_equal(taken(&rate, "192.0.2.1", 100, 50), 20); /* 2 a second, ten seconds' worth */
    assert_int_equal(taken(&rate, "192.0.2.2", 100, 50), 20); /* another address is another */
    assert_int_equal(taken(&rate, "192.0.2.1", 103, 50), 6);
    assert_int_equal(taken(&rate, "192.0.2.1", 1000, 50), 20); /* never more than that */
    struct sockaddr_storage a = address("192.0.2.1");
    double wait_s = -1;
    assert_false(rate_take(&rate, (struct sockaddr *)&a, 1000, &wait_s));
    assert_true(wait_s > 0.49 && wait_s < 0.51);
    rate_charge(&rate, (struct sockaddr *)&a, 1005, 9);
    assert_int_equal(taken(&rate, "192.0.2.1", 1005, 50), 1);
    rate_charge(&rate, (struct sockaddr *)&a, 1010, 1e9);
    assert_int_equal(taken(&rate, "192.0.2.1", 1011, 50), 2);
    assert_int_equal(taken(&rate, "2001:db8:1:2::1", 100, 15), 15); /* a /64 is one */
    assert_int_equal(taken(&rate, "2001:db8:1:2:ffff::9", 100, 15), 5);
    assert_int_equal(taken(&rate, "2001:db8:1:3::1", 100, 15), 15);
    rate = (struct rate){.per_s = 0};
    assert_int_equal(taken(&rate, "192.0.2.1", 100, 1000), 1000);
}

/* More addresses than there are buckets: each is served, none is counted for another. */
static void test_rate_of_many(void **state)
{
    (void)state;
    static struct rate rate;
    rate = (struct rate){.per_s = 1};
    for (int i = 0; i < 4 * RATE_BUCKETS; i++) {
        char text[32];
        snprintf(text, sizeof text, "10.%d.%d.1", i / 256, i % 256);
        assert_int_equal(taken(&rate, text, 100 + i, 1), 1);
    }
}

/* ---- ETags ---- */

static void test_etags(void **state)
{
    (void)state;
    char a[REQUEST_ETAG_BYTES], b[REQUEST_ETAG_BYTES];
    request_etag("x", 1, a);
    request_etag("y", 1, b);
    assert_string_not_equal(a, b);
    request_etag("x", 1, b);
    assert_string_equal(a, b);
    assert_int_equal(a[0], '"');
    assert_int_equal(strlen(a), 34);
    assert_true(request_etag_listed("\"1\"", "\"1\"", false));
    assert_true(request_etag_listed("\"0\", \"1\"", "\"1\"", false));
    assert_true(request_etag_listed("\"a,b\" ,\"1\" ", "\"1\"", false));
    assert_true(request_etag_listed("*", "\"1\"", false));
    assert_true(request_etag_listed("W/\"1\"", "\"1\"", true));
    assert_false(request_etag_listed("W/\"1\"", "\"1\"", false));
    assert_false(request_etag_listed("\"11\"", "\"1\"", false));
    assert_false(request_etag_listed("\"x\"1\"", "\"1\"", false));
    assert_false(request_etag_listed("1", "\"1\"", true));
    assert_false(request_etag_listed("", "\"1\"", true));
    assert_false(request_etag_listed("\"", "\"1\"", true));
    assert_false(request_etag_listed(",,,", "\"1\"", true));
}

/* ---- Roles ---- */

static void test_roles(void **state)
{
    (void)state;
    static const bool allowed[4][4] = {
        /* needs: open, read, submit, admin */
        [STORE_ROLE_READ] = {true, true, false, false},
        [STORE_ROLE_SUBMIT] = {true, true, true, false},
        [STORE_ROLE_ADMIN] = {true, true, true, true},
        [STORE_ROLE_AGENT] = {true, false, false, false},
    };
    for (int has = 0; has < 4; has++)
        for (int needs = 0; needs < 4; needs++)
            assert_int_equal(auth_allows(has, needs), allowed[has][needs]);
}

/* What changes something is nobody's who may only read; what is open tells nothing about jobs. */
static void test_routes_ask_for_roles(void **state)
{
    (void)state;
    static const char *const open[] = {"/", "/healthz", "/readyz", "/openapi.json"};
    for (size_t i = 0; i < routes_count; i++) {
        const struct route *r = &routes[i];
        if (strcmp(r->method, "GET") != 0 && r->role < ROUTE_SUBMIT)
            fail_msg("%s %s asks for too little", r->method, r->pattern);
        bool may_be_open = false;
        for (size_t k = 0; k < sizeof open / sizeof open[0]; k++)
            may_be_open = may_be_open || strcmp(open[k], r->pattern) == 0;
        if (r->role == ROUTE_OPEN && !may_be_open)
            fail_msg("%s %s is open", r->method, r->pattern);
        assert_non_null(r->handler);
        assert_non_null(r->summary);
        for (size_t k = 0; k < i; k++)
            assert_false(strcmp(routes[k].method, r->method) == 0 &&
                         strcmp(routes[k].pattern, r->pattern) == 0);
    }
}

static void test_tokens(void **state)
{
    (void)state;
    char a[AUTH_TOKEN_BYTES], b[AUTH_TOKEN_BYTES];
    uint8_t of_a[STORE_TOKEN_HASH_BYTES], of_b[STORE_TOKEN_HASH_BYTES], again[sizeof of_a];
    assert_true(sodium_init() >= 0);
    auth_new_token(a, of_a);
    auth_new_token(b, of_b);
    assert_int_equal(strlen(a), AUTH_TOKEN_BYTES - 1);
    assert_string_not_equal(a, b);
    assert_memory_not_equal(of_a, of_b, sizeof of_a);
    auth_hash(a, strlen(a), again);
    assert_memory_equal(of_a, again, sizeof again);
    a[10]++;
    auth_hash(a, strlen(a), again);
    assert_memory_not_equal(of_a, again, sizeof again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_encodings),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_loopback),
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_rate_of_many),
        cmocka_unit_test(test_etags),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_routes_ask_for_roles),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
