/* model_config_parse: the families, their windows, and refusals by name. Rotations: test_rope.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "daemon/plan/model.h"

static const char qwen3[] =
    "{'model_type':'qwen3','hidden_size':64,'intermediate_size':112,'num_hidden_layers':3,"
    "'num_attention_heads':4,'num_key_value_heads':2,'head_dim':32,'vocab_size':320,"
    "'hidden_act':'silu','rope_theta':1e6,'rms_norm_eps':1e-5,'initializer_range':0.06,"
    "'architectures':['Qwen3ForCausalLM'],'torch_dtype':'bfloat16','unheard_of':{'a':[1]}}";
static const char llama[] =
    "{'model_type':'llama','hidden_size':64,'intermediate_size':112,'num_hidden_layers':2,"
    "'num_attention_heads':4,'vocab_size':320,'pretraining_tp':1,'mlp_bias':false,"
    "'attention_dropout':0.0,'rope_scaling':null}";
static const char qwen2[] =
    "{'model_type':'qwen2','hidden_size':64,'intermediate_size':112,'num_hidden_layers':3,"
    "'num_attention_heads':4,'num_key_value_heads':2,'vocab_size':320,'tie_word_embeddings':true,"
    "'rope_parameters':{'rope_type':'default','rope_theta':5e5}}";

static const char mistral[] =
    "{'model_type':'mistral','hidden_size':64,'intermediate_size':112,'num_hidden_layers':3,"
    "'num_attention_heads':4,'num_key_value_heads':2,'vocab_size':320,"
    "'max_position_embeddings':32768}";

/* Single quotes stand for double ones. */
static cJSON *parse(const char *text)
{
    char buffer[4096];
    assert_true(strlen(text) < sizeof buffer);
    strcpy(buffer, text);
    for (char *p = buffer; *p; p++)
        if (*p == '\'')
            *p = '"';
    cJSON *json = cJSON_Parse(buffer);
    if (!json)
        fail_msg("the test's own JSON is broken: %s", buffer);
    return json;
}

/* `base` with the members of `change` put over it. */
static cJSON *changed(const char *base, const char *change)
{
    cJSON *json = parse(base), *over = parse(change);
    while (over->child) {
        cJSON *item = cJSON_DetachItemViaPointer(over, over->child);
        cJSON_DeleteItemFromObjectCaseSensitive(json, item->string);
        cJSON_AddItemToObject(json, item->string, item);
    }
    cJSON_Delete(over);
    return json;
}

static void read_good(const char *base, const char *change, struct model_config *out)
{
    cJSON *json = changed(base, change);
    struct problems problems = {0};
    model_config_parse(json, "/model/config", out, &problems);
    for (size_t i = 0; i < problems.count; i++)
        print_error("%s %s\n", problems.items[i].path, problems.items[i].message);
    assert_int_equal(problems_count(&problems), 0);
    problems_free(&problems);
    cJSON_Delete(json);
}

static void families(void **state)
{
    (void)state;
    struct model_config m;
    read_good(qwen3, "{}", &m);
    assert_int_equal(m.family, MODEL_QWEN3);
    assert_int_equal(m.hidden, 64);
    assert_int_equal(m.intermediate, 112);
    assert_int_equal(m.layers, 3);
    assert_int_equal(m.heads, 4);
    assert_int_equal(m.kv_heads, 2);
    assert_int_equal(m.head_dim, 32);
    assert_int_equal(m.vocab, 320);
    assert_float_equal(m.rms_norm_eps, 1e-5, 1e-10);
    assert_float_equal(m.initializer_range, 0.06, 1e-7);
    assert_true(m.rope.theta == 1e6);
    assert_true(m.head_norm && !m.qkv_bias && !m.o_bias && !m.tie_embeddings);
    /* embeddings and head, final norm, three layers */
    assert_int_equal(model_parameters(&m),
                     2 * 320 * 64 + 64 +
                         3 * (2 * 64 + (128 + 2 * 64) * 64 + 128 * 64 + 3 * 64 * 112 + 2 * 32));

    read_good(llama, "{}", &m);
    assert_int_equal(m.family, MODEL_LLAMA);
    assert_int_equal(m.kv_heads, 4);
    assert_int_equal(m.head_dim, 16);
    assert_true(m.rope.theta == 10000.0);
    assert_float_equal(m.rms_norm_eps, 1e-6, 1e-12);
    assert_float_equal(m.initializer_range, 0.02, 1e-8);
    assert_true(!m.head_norm && !m.qkv_bias && !m.o_bias && !m.tie_embeddings);
    read_good(llama, "{'attention_bias':true}", &m);
    assert_true(m.qkv_bias && m.o_bias);

    read_good(qwen2, "{}", &m);
    assert_int_equal(m.head_dim, 16);
    assert_true(m.rope.theta == 5e5);
    assert_true(!m.head_norm && m.qkv_bias && !m.o_bias && m.tie_embeddings);
    assert_int_equal(model_parameters(&m),
                     320 * 64 + 64 +
                         3 * (2 * 64 + (64 + 2 * 32) * 64 + 64 * 64 + 3 * 64 * 112 + 64 + 2 * 32));
    /* always q, k and v, never o, whatever is said */
    read_good(qwen2, "{'attention_bias':false,'head_dim':32}", &m);
    assert_true(m.qkv_bias && !m.o_bias);
    assert_int_equal(m.head_dim, 32);

    read_good(mistral, "{}", &m);
    assert_int_equal(m.family, MODEL_MISTRAL);
    assert_int_equal(m.kv_heads, 2);
    assert_int_equal(m.head_dim, 16);
    assert_int_equal(m.max_positions, 32768);
    assert_true(!m.head_norm && !m.qkv_bias && !m.o_bias && !m.tie_embeddings);
    read_good(mistral, "{'head_dim':32,'hidden_act':'swish'}", &m);
    assert_int_equal(m.head_dim, 32);
}

static void nulls_and_defaults(void **state)
{
    (void)state;
    struct model_config m;
    read_good(qwen3,
              "{'num_key_value_heads':null,'sliding_window':null,'layer_types':null,"
              "'rope_parameters':null}",
              &m);
    assert_int_equal(m.kv_heads, 4);
    read_good(llama, "{'head_dim':null,'rope_scaling':{'type':'default'},'sliding_window':9}", &m);
    assert_int_equal(m.head_dim, 16);
    assert_int_equal(m.window[0], 0);
    read_good(llama, "{'rope_theta':7,'rope_parameters':{'rope_type':'default','rope_theta':7}}",
              &m);
    assert_true(m.rope.theta == 7);
}

static void windows(void **state)
{
    (void)state;
    struct model_config m;
    read_good(qwen3, "{'sliding_window':20,'max_window_layers':1}", &m);
    for (int i = 0; i < 3; i++)
        assert_int_equal(m.window[i], 0);
    read_good(qwen3, "{'use_sliding_window':true,'sliding_window':20,'max_window_layers':1}", &m);
    assert_int_equal(m.window[0], 0);
    assert_int_equal(m.window[1], 20);
    assert_int_equal(m.window[2], 20);
    assert_int_equal(m.window[3], 0);
    read_good(qwen3, "{'use_sliding_window':true,'sliding_window':20}", &m);
    assert_int_equal(m.window[2], 0); /* 28 full layers come first */
    read_good(qwen3, "{'use_sliding_window':true,'max_window_layers':2}", &m);
    assert_int_equal(m.window[1], 0);
    assert_int_equal(m.window[2], 4096);
    read_good(qwen3, "{'use_sliding_window':true,'sliding_window':null,'max_window_layers':2}", &m);
    assert_int_equal(m.window[2], 0);

    read_good(mistral, "{}", &m);
    assert_int_equal(m.window[0], 4096);
    assert_int_equal(m.window[2], 4096);
    read_good(mistral, "{'sliding_window':null}", &m);
    assert_int_equal(m.window[0], 0);
    read_good(mistral, "{'sliding_window':20}", &m);
    assert_int_equal(m.window[0], 20);
    assert_int_equal(m.window[2], 20);
    assert_int_equal(m.window[3], 0);
    read_good(mistral,
              "{'sliding_window':20,'layer_types':"
              "['sliding_attention','sliding_attention','sliding_attention']}",
              &m);
    assert_int_equal(m.window[2], 20);
    read_good(mistral,
              "{'sliding_window':null,'layer_types':"
              "['full_attention','full_attention','full_attention']}",
              &m);
    assert_int_equal(m.window[2], 0);
    read_good(qwen2,
              "{'use_sliding_window':true,'sliding_window':20,'max_window_layers':0,"
              "'layer_types':['sliding_attention','full_attention','sliding_attention']}",
              &m);
    assert_int_equal(m.window[0], 20);
    assert_int_equal(m.window[1], 0);
    assert_int_equal(m.window[2], 20);
}

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *base, *change, *path, *says;
    } cases[] = {
        {qwen3, "{'model_type':'qwen3_moe'}", "/model_type", "qwen3_moe"},
        {qwen3, "{'model_type':'mixtral'}", "/model_type",
         "\"llama\", \"mistral\", \"qwen2\" or \"qwen3\""},
        {qwen3, "{'model_type':null}", "/model_type", "missing"},
        {qwen3, "{'model_type':3}", "/model_type", "a number"},
        {qwen3, "{'hidden_size':null}", "/hidden_size", "missing"},
        {qwen3, "{'hidden_size':'64'}", "/hidden_size", "a string"},
        {qwen3, "{'hidden_size':64.5}", "/hidden_size", "64.5"},
        {qwen3, "{'hidden_size':-64}", "/hidden_size", "-64"},
        {qwen3, "{'hidden_size':1e300}", "/hidden_size", "1e+300"},
        {qwen3, "{'hidden_size':1e999}", "/hidden_size", "inf"},
        {qwen3, "{'intermediate_size':0}", "/intermediate_size", "0"},
        {qwen3, "{'num_hidden_layers':513}", "/num_hidden_layers", "512"},
        {qwen3, "{'num_attention_heads':null}", "/num_attention_heads", "missing"},
        {qwen3, "{'num_key_value_heads':3}", "/num_key_value_heads", "divide"},
        {qwen3, "{'num_key_value_heads':8}", "/num_key_value_heads", "from 1 to 4"},
        {qwen3, "{'head_dim':31}", "/head_dim", "even"},
        {llama, "{'num_attention_heads':5}", "/head_dim", "divide hidden_size"},
        {llama, "{'hidden_size':32768}", "/head_dim", "= 8192, but it must be at most 4096"},
        {qwen3, "{'vocab_size':true}", "/vocab_size", "true"},
        {qwen3, "{'rms_norm_eps':0}", "/rms_norm_eps", "above 0"},
        {qwen3, "{'rope_theta':-1}", "/rope_theta", "above 0"},
        {qwen3, "{'max_position_embeddings':0}", "/max_position_embeddings", "from 1"},
        {qwen3, "{'partial_rotary_factor':0.5}", "/partial_rotary_factor", "only 1"},
        {qwen3, "{'hidden_act':'gelu'}", "/hidden_act", "is \"gelu\" but must be \"silu\""},
        {qwen3, "{'hidden_act':['silu']}", "/hidden_act", "an array"},
        {qwen3, "{'attention_dropout':0.1}", "/attention_dropout", "only 0"},
        {llama, "{'mlp_bias':true}", "/mlp_bias", "only false"},
        {mistral, "{'attention_bias':true}", "/attention_bias", "only false"},
        {qwen3, "{'attn_logit_softcapping':50.0}", "/attn_logit_softcapping", "not supported"},
        {qwen3, "{'final_logit_softcapping':30.0}", "/final_logit_softcapping", "not supported"},
        {qwen3, "{'quantization_config':{'bits':4}}", "/quantization_config", "not supported"},
        {qwen3, "{'attention_bias':'no'}", "/attention_bias", "true or false"},
        {qwen3, "{'tie_word_embeddings':1}", "/tie_word_embeddings", "true or false"},
        {qwen3, "{'use_sliding_window':true,'sliding_window':0}", "/sliding_window", "0"},
        {qwen3, "{'layer_types':['full_attention']}", "/layer_types", "has 1 entries"},
        {qwen3, "{'layer_types':'full_attention'}", "/layer_types", "array"},
        {qwen3, "{'layer_types':['full_attention','linear_attention','full_attention']}",
         "/layer_types/1", "linear_attention"},
        {qwen3, "{'layer_types':['full_attention','sliding_attention','full_attention']}",
         "/layer_types/1", "use_sliding_window"},
        {llama, "{'layer_types':['full_attention','sliding_attention']}", "/layer_types/1",
         "llama"},
        {mistral, "{'sliding_window':0}", "/sliding_window", "0"},
        {mistral, "{'sliding_window':'no'}", "/sliding_window", "a string"},
        {mistral, "{'num_key_value_heads':3}", "/num_key_value_heads", "divide"},
        {mistral, "{'layer_types':['sliding_attention','full_attention','sliding_attention']}",
         "/layer_types/1", "every layer"},
        {mistral,
         "{'sliding_window':null,"
         "'layer_types':['full_attention','full_attention','sliding_attention']}",
         "/layer_types/2", "needs a sliding_window"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON *json = changed(cases[i].base, cases[i].change);
        struct problems problems = {0};
        struct model_config m;
        model_config_parse(json, "", &m, &problems);
        bool found = false;
        for (size_t k = 0; k < problems.count; k++)
            found = found || (strcmp(problems.items[k].path, cases[i].path) == 0 &&
                              strstr(problems.items[k].message, cases[i].says));
        if (!found || problems_count(&problems) != 1) {
            for (size_t k = 0; k < problems.count; k++)
                print_error("%s %s\n", problems.items[k].path, problems.items[k].message);
            fail_msg("%s: expected only %s \"%s\"", cases[i].change, cases[i].path, cases[i].says);
        }
        problems_free(&problems);
        cJSON_Delete(json);
    }
}

static void several_at_once(void **state)
{
    (void)state;
    struct problems problems = {0};
    struct model_config m;
    cJSON *json = parse("{'model_type':'qwen3','hidden_act':'relu','rope_scaling':[]}");
    model_config_parse(json, "", &m, &problems);
    /* Five sizes are missing: how many key-value heads there may be depends on one of them. */
    assert_int_equal(problems_count(&problems), 7);
    problems_free(&problems);
    cJSON_Delete(json);

    json = parse("[1]");
    model_config_parse(json, "/model/config", &m, &problems);
    assert_int_equal(problems_count(&problems), 1);
    assert_string_equal(problems.items[0].path, "/model/config");
    problems_free(&problems);
    cJSON_Delete(json);

    json = parse("{'model_type':'llama','hidden_size':64,'hidden_size':32,'vocab_size':320,"
                 "'intermediate_size':112,'num_hidden_layers':2,'num_attention_heads':4}");
    model_config_parse(json, "", &m, &problems);
    assert_int_equal(problems_count(&problems), 1);
    assert_string_equal(problems.items[0].path, "/hidden_size");
    problems_free(&problems);
    cJSON_Delete(json);
}

static void problems_are_bounded(void **state)
{
    (void)state;
    struct problems problems = {0};
    for (int i = 0; i < PROBLEMS_MAX + 10; i++)
        problems_add(&problems, "/x", "number %d", i);
    assert_int_equal(problems.count, PROBLEMS_MAX);
    assert_int_equal(problems_count(&problems), PROBLEMS_MAX + 10);
    problems_free(&problems);
    assert_int_equal(problems_count(&problems), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families),        cmocka_unit_test(nulls_and_defaults),
        cmocka_unit_test(windows),         cmocka_unit_test(refused),
        cmocka_unit_test(several_at_once), cmocka_unit_test(problems_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
