/* Which token is the mask: by the tokenizer's files, and as the API puts it into a job's spec. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/inputs.h"
#include "daemon/base/file.h"
#include "daemon/plan/mask_token.h"

#define TEXT_BYTES 4096

/* Single quotes stand for double ones. */
static const char *quoted(char out[static TEXT_BYTES], const char *text)
{
    assert_true(strlen(text) < TEXT_BYTES);
    for (size_t i = 0; i <= strlen(text); i++)
        out[i] = text[i] == '\'' ? '"' : text[i];
    return out;
}

static struct mask_token_file file(char buffer[static TEXT_BYTES], const char *text)
{
    if (!text)
        return (struct mask_token_file){0};
    quoted(buffer, text);
    return (struct mask_token_file){buffer, strlen(buffer)};
}

static struct err *choose(const char *tokenizer, const char *config, const char *map, int64_t vocab,
                          struct mask_token *out)
{
    static char texts[3][TEXT_BYTES];
    const struct mask_token_files files = {file(texts[0], tokenizer), file(texts[1], config),
                                           file(texts[2], map)};
    return mask_token_choose(&files, vocab, out);
}

/* Four tokens of text, and added ones from 4 on. */
#define TOKENIZER(added)                                                                           \
    "{'version':'1.0','truncation':null,'added_tokens':[" added "],'normalizer':{'type':'NFC'},"   \
    "'model':{'type':'BPE','dropout':null,'vocab':{'a':0,'b':1,'c':2,'ab':3},"                     \
    "'merges':[['a','b'],'b c'],'byte_fallback':false}}"
#define TOKEN(id, content)                                                                         \
    "{'id':" #id ",'content':'" content "','single_word':false,'lstrip':false,'rstrip':false,"     \
    "'normalized':false,'special':true}"

static void choices(void **state)
{
    (void)state;
    static const struct {
        const char *tokenizer, *config, *map;
        int64_t vocab;
        enum mask_token_kind kind;
        int32_t id;
        int64_t rows;
    } cases[] = {
        /* its own: by the configuration, by the map, by its name */
        {TOKENIZER(TOKEN(4, "<m>") "," TOKEN(5, "[MASK]")), "{'mask_token':'<m>'}", NULL, 64,
         MASK_TOKEN_OWN, 4, 64},
        {TOKENIZER(TOKEN(4, "<m>")), "{'mask_token':{'content':'<m>','lstrip':true}}", NULL, 64,
         MASK_TOKEN_OWN, 4, 64},
        {TOKENIZER(TOKEN(4, "<m>")), "{'mask_token':null}", "{'mask_token':{'content':'<m>'}}", 64,
         MASK_TOKEN_OWN, 4, 64},
        {TOKENIZER(TOKEN(4, "<e>") "," TOKEN(5, "|<MASK>|")), "{}", NULL, 64, MASK_TOKEN_OWN, 5,
         64},
        {TOKENIZER(TOKEN(5, "<mask>") "," TOKEN(4, "<|mask|>")), NULL, NULL, 64, MASK_TOKEN_OWN, 4,
         64},
        {"{'model':{'vocab':{'<\\u007cmask|>':0,'b':1}}}", NULL, NULL, 64, MASK_TOKEN_OWN, 0, 64},
        /* beyond the rows that there are */
        {TOKENIZER(TOKEN(64, "<m>")), "{'mask_token':'<m>'}", NULL, 64, MASK_TOKEN_OWN, 64, 128},
        /* the end of text is no mask */
        {TOKENIZER(TOKEN(4, "<e>")), "{'mask_token':'<e>','eos_token':'<e>'}", NULL, 64,
         MASK_TOKEN_UNUSED, 5, 64},
        {TOKENIZER(TOKEN(4, "<mask>")), "{'pad_token':'<mask>'}", NULL, 64, MASK_TOKEN_UNUSED, 5,
         64},
        /* a row that no token has */
        {TOKENIZER(TOKEN(4, "<e>") "," TOKEN(5, "<|reserved_special_token_0|>")), NULL, NULL, 8,
         MASK_TOKEN_UNUSED, 6, 8},
        {"{'added_tokens':null,'model':{'vocab':{'b':1,'a':0}}}", NULL, NULL, 3, MASK_TOKEN_UNUSED,
         2, 3},
        /* a reserved token that has no role */
        {TOKENIZER(TOKEN(4, "<|reserved_special_token_0|>") "," TOKEN(
             5, "<|reserved_special_token_1|>") "," TOKEN(6, "<|reserved_special_token_2|>")),
         "{'pad_token':'<|reserved_special_token_0|>'}", NULL, 7, MASK_TOKEN_RESERVED, 5, 7},
        {TOKENIZER(TOKEN(5, "[control_9]") "," TOKEN(4, "[control_8]")), NULL, NULL, 6,
         MASK_TOKEN_RESERVED, 4, 6},
        {TOKENIZER(TOKEN(4, "<SPECIAL_20>")), NULL, NULL, 5, MASK_TOKEN_RESERVED, 4, 5},
        /* a row more */
        {TOKENIZER(TOKEN(4, "<|reserved_special_token_|>") "," TOKEN(5, "[control_8x]")), NULL,
         NULL, 6, MASK_TOKEN_ADDED, 6, 64},
        {TOKENIZER(TOKEN(4, "<e>")), NULL, NULL, 5, MASK_TOKEN_ADDED, 5, 64},
        {TOKENIZER(TOKEN(63, "<e>")), NULL, NULL, 64, MASK_TOKEN_ADDED, 64, 128},
        /* a tokenizer of more tokens than the model */
        {TOKENIZER(TOKEN(4, "<e>")), NULL, NULL, 4, MASK_TOKEN_ADDED, 5, 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mask_token got = {0};
        struct err *e =
            choose(cases[i].tokenizer, cases[i].config, cases[i].map, cases[i].vocab, &got);
        if (e)
            fail_msg("case %zu: %s", i, err_message(e));
        if (got.kind != cases[i].kind || got.id != cases[i].id || got.vocab != cases[i].rows)
            fail_msg("case %zu: kind %d, id %d of %d, not kind %d, id %d of %d", i, got.kind,
                     (int)got.id, (int)got.vocab, cases[i].kind, (int)cases[i].id,
                     (int)cases[i].rows);
    }
}

static void what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *tokenizer, *config, *says;
    } cases[] = {
        {"", NULL, "tokenizer.json: an object should stand at byte 0"},
        {"[]", NULL, "tokenizer.json: an object should stand at byte 0"},
        {"{'model':{'vocab':[['a',0.5]]}}", NULL, "an object should stand at byte 18"},
        {"{'model':{'vocab':{'a':'0'}}}", NULL, "a number should stand at byte 23"},
        {"{'model':{'vocab':{'a':-1}}}", NULL, "an id below 2^24 should stand"},
        {"{'model':{'vocab':{'a':0.5}}}", NULL, "an id below 2^24 should stand"},
        {"{'model':{'vocab':{'a':16777216}}}", NULL, "an id below 2^24 should stand"},
        {"{'model':{'vocab':{'a':0}", NULL, "'}' should stand at byte 25"},
        {"{'model':{'vocab':{}},'added_tokens':[{'content':'x'}]}", NULL, "an id below 2^24"},
        {"{'model':{'vocab':{}}}", NULL, "no tokens at model/vocab"},
        {"{}", NULL, "no tokens at model/vocab"},
        {TOKENIZER(TOKEN(4, "<e>")), "{'mask_token':'<m>'}", "does not have the mask token <m>"},
        {TOKENIZER(TOKEN(4, "<e>")), "{'mask_token':", "tokenizer_config.json: line 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mask_token got;
        struct err *e = choose(cases[i].tokenizer, cases[i].config, NULL, 64, &got);
        if (!e || err_kind(e) != ERR_INVALID || !strstr(err_message(e), cases[i].says))
            fail_msg("case %zu: \"%s\", not \"%s\"", i, e ? err_message(e) : "nothing",
                     cases[i].says);
        err_free(e);
    }
}

/* ---- In a spec ---- */

static char directory[] = "/tmp/test-mask-token-XXXXXX";

static int make_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

static const char *at(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static int remove_directory(void **state)
{
    (void)state;
    unlink(at("tokenizer.json"));
    unlink(at("tokenizer_config.json"));
    return rmdir(directory);
}

static void put(const char *name, const char *text)
{
    char buffer[TEXT_BYTES];
    quoted(buffer, text);
    struct err *e = file_replace(at(name), buffer, strlen(buffer));
    if (e)
        fail_msg("%s", err_message(e));
}

/* The spec as it comes out; `says` is NULL, or what is wrong. */
static void expect_spec(const char *before, const char *after, const char *says)
{
    char buffer[TEXT_BYTES];
    const char *const roots[] = {directory};
    const struct api_control control = {.roots = roots, .root_count = 1};
    struct problems problems = {0};
    cJSON *spec = cJSON_Parse(quoted(buffer, before));
    cJSON *expected = cJSON_Parse(quoted(buffer, after));
    assert_true(spec && expected);
    inputs_mask_token(&control, spec, directory, &problems);
    if (!cJSON_Compare(spec, expected, true))
        fail_msg("%s became %s", before, cJSON_PrintUnformatted(spec));
    assert_int_equal(problems_count(&problems), says ? 1 : 0);
    if (says) {
        assert_string_equal(problems.items[0].path, "/objective/mask_token_id");
        if (!strstr(problems.items[0].message, says))
            fail_msg("%s, not %s", problems.items[0].message, says);
    }
    problems_free(&problems);
    cJSON_Delete(spec);
    cJSON_Delete(expected);
}

static void into_the_spec(void **state)
{
    (void)state;
    static const char unsaid[] = "{'model':{'config':{'vocab_size':5}},'data':{'tokenizer':'own'}}";
    expect_spec(unsaid, unsaid, "has no tokenizer.json");
    put("tokenizer.json", "{'model':{'vocab':{'a':0,'b':4}}}");
    expect_spec(unsaid,
                "{'model':{'config':{'vocab_size':5},'vocab_size':64},'data':{'tokenizer':'own'},"
                "'objective':{'mask_token_id':5}}",
                NULL);
    expect_spec("{'model':{'config':{'vocab_size':5},'vocab_size':6},'data':{'tokenizer':'own'},"
                "'objective':{'type':'fast_dllm_v2'}}",
                "{'model':{'config':{'vocab_size':5},'vocab_size':6},'data':{'tokenizer':'own'},"
                "'objective':{'type':'fast_dllm_v2','mask_token_id':5}}",
                NULL);
    put("tokenizer_config.json", "{'mask_token':'b'}");
    expect_spec(unsaid,
                "{'model':{'config':{'vocab_size':5}},'data':{'tokenizer':'own'},"
                "'objective':{'mask_token_id':4}}",
                NULL);
    put("tokenizer.json", "{'model':");
    expect_spec(unsaid, unsaid, directory);
    /* what needs none, and what spec_parse will refuse */
    static const char *const left[] = {
        "{'model':{'config':{'vocab_size':5}},'data':{'tokenizer':'bytes'}}",
        "{'model':{'config':{'vocab_size':5}},'data':{}}",
        "{'model':{'config':{'vocab_size':5}},'data':{'tokenizer':'own'},"
        "'objective':{'type':'autoregressive'}}",
        "{'model':{'config':{'vocab_size':5}},'data':{'tokenizer':'own'},"
        "'objective':{'mask_token_id':3}}",
        "{'model':{'config':{'vocab_size':'5'}},'data':{'tokenizer':'own'}}",
        "{'model':{'config':{'vocab_size':5}},'data':{'tokenizer':'own'},'objective':7}",
        "{'model':{},'data':{'tokenizer':'own'}}",
    };
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        expect_spec(left[i], left[i], NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices),
        cmocka_unit_test(what_is_wrong),
        cmocka_unit_test(into_the_spec),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
