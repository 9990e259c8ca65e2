/* The job spec: defaults, the resolved form, and every way to be wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/spec.h"

#define CONFIG                                                                                     \
    "{'model_type':'qwen3','hidden_size':64,'intermediate_size':128,'num_hidden_layers':2,"        \
    "'num_attention_heads':4,'num_key_value_heads':2,'head_dim':16,'vocab_size':320}"

static const char least[] = "{'model':{'config':" CONFIG ",'init':'random'},"
                            "'data':{'path':'/data/train.jsonl','sequence_length':256},'steps':50}";

/* Single quotes stand for double ones. */
static cJSON *parse(const char *text)
{
    char *buffer = strdup(text);
    assert_non_null(buffer);
    for (char *p = buffer; *p; p++)
        if (*p == '\'')
            *p = '"';
    cJSON *json = cJSON_Parse(buffer);
    if (!json)
        fail_msg("the test's own JSON is broken: %s", buffer);
    free(buffer);
    return json;
}

/* JSON merge patch (RFC 7396), except that null is a value and the string "-" removes. */
static void merge(cJSON *target, const cJSON *patch)
{
    for (const cJSON *item = patch->child; item; item = item->next) {
        cJSON *old = cJSON_GetObjectItemCaseSensitive(target, item->string);
        if (cJSON_IsObject(old) && cJSON_IsObject(item)) {
            merge(old, item);
            continue;
        }
        cJSON_DeleteItemFromObjectCaseSensitive(target, item->string);
        if (!cJSON_IsString(item) || strcmp(item->valuestring, "-") != 0)
            cJSON_AddItemToObject(target, item->string, cJSON_Duplicate(item, true));
    }
}

static cJSON *changed(const char *change)
{
    cJSON *json = parse(least), *patch = parse(change);
    merge(json, patch);
    cJSON_Delete(patch);
    return json;
}

static void show(const struct problems *problems)
{
    for (size_t i = 0; i < problems->count; i++)
        print_error("  %s %s\n", problems->items[i].path, problems->items[i].message);
}

static void read_good(const cJSON *json, struct job_spec *out)
{
    struct problems problems = {0};
    spec_parse(json, out, &problems);
    show(&problems);
    assert_int_equal(problems_count(&problems), 0);
    problems_free(&problems);
}

static char *resolve(const cJSON *json)
{
    struct job_spec spec;
    read_good(json, &spec);
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(json, "model");
    cJSON *resolved = spec_to_json(&spec, cJSON_GetObjectItemCaseSensitive(model, "config"));
    assert_non_null(resolved);
    char *text = cJSON_PrintUnformatted(resolved);
    assert_non_null(text);
    cJSON_Delete(resolved);
    spec_free(&spec);
    return text;
}

static void defaults(void **state)
{
    (void)state;
    cJSON *json = parse(least);
    struct job_spec s;
    read_good(json, &s);
    assert_string_equal(s.name, "job");
    assert_int_equal(s.device, SPEC_DEVICE_AUTO);
    assert_int_equal(s.precision, SPEC_PRECISION_AUTO);
    assert_int_equal(spec_dtype_bytes(&s), 4);
    s.device = SPEC_DEVICE_CUDA;
    assert_int_equal(spec_dtype_bytes(&s), 2);
    assert_null(s.model.path);
    assert_true(s.model.random_init);
    assert_int_equal(s.model.config.vocab, 320);
    assert_int_equal(s.objective.type, OBJECTIVE_BLOCK_DIFFUSION);
    assert_int_equal(s.objective.block_size, 32);
    assert_int_equal(s.objective.mask_token_id, 257);
    assert_int_equal(s.objective.views, 1);
    assert_int_equal(s.objective.loss_weighting, LOSS_INVERSE_T);
    assert_true(s.objective.t_min == 0.001f && s.objective.t_max == 1.0f);
    assert_true(s.objective.antithetic);
    assert_string_equal(s.data.path, "/data/train.jsonl");
    assert_string_equal(s.data.format, "text");
    assert_string_equal(s.data.field, "text");
    assert_string_equal(s.data.tokenizer, "bytes");
    assert_int_equal(s.data.sequence_length, 256);
    assert_true(s.data.validation_fraction == 0.01);
    assert_false(s.parallel.automatic);
    assert_int_equal(s.parallel.mode, MODE_CSBP);
    assert_int_equal(spec_world_size(&s), 1);
    assert_int_equal(s.batch.sequences, 8);
    assert_int_equal(s.batch.micro_sequences, 1);
    assert_true(s.optimizer.lr == 1e-5f && s.optimizer.beta1 == 0.9f);
    assert_true(s.optimizer.beta2 == 0.95f && s.optimizer.eps == 1e-8f);
    assert_true(s.optimizer.weight_decay == 0.1f && s.optimizer.max_grad_norm == 1.0f);
    assert_int_equal(s.schedule.type, SCHEDULE_COSINE);
    assert_int_equal(s.schedule.warmup_steps, 5);
    assert_true(s.schedule.min_lr == 0);
    assert_int_equal(s.recompute, RECOMPUTE_LAYER);
    assert_int_equal(s.steps, 50);
    assert_int_equal(s.seed, 1);
    assert_int_equal(s.checkpoint.every, 100);
    assert_int_equal(s.checkpoint.keep, 3);
    assert_int_equal(s.evaluate.every, 100);
    assert_int_equal(s.evaluate.max_sequences, 64);
    assert_int_equal(s.restart.max, 3);
    spec_free(&s);
    cJSON_Delete(json);
}

static void everything_said(void **state)
{
    (void)state;
    cJSON *json = changed(
        "{'name':'x','device':'cuda','precision':'fp32','model':{'path':'/m','init':'weights'},"
        "'objective':{'type':'block_diffusion','block_size':16,'mask_token_id':319,'views':3,"
        "'loss_weighting':'unit','t_min':0.1,'t_max':0.9,'antithetic':false},"
        "'data':{'format':'text','field':'a.b','tokenizer':'bytes','validation':{'fraction':0}},"
        "'parallel':{'mode':'cp','degree':2,'data':3},"
        "'batch':{'sequences':12,'micro_sequences':2},"
        "'optimizer':{'type':'adamw','lr':1e-3,'betas':[0.8,0.9],'eps':1e-6,'weight_decay':0,"
        "'max_grad_norm':0},'schedule':{'type':'linear','warmup_steps':7,'min_lr':1e-4},"
        "'recompute':'none','seed':9007199254740992,'checkpoint':{'every':0,'keep':1},"
        "'evaluate':{'every':0,'max_sequences':1},'restart':{'max':0}}");
    struct job_spec s;
    read_good(json, &s);
    assert_string_equal(s.model.path, "/m");
    assert_false(s.model.random_init);
    assert_int_equal(s.device, SPEC_DEVICE_CUDA);
    assert_int_equal(s.precision, SPEC_PRECISION_FP32);
    assert_int_equal(spec_dtype_bytes(&s), 4);
    assert_int_equal(s.objective.mask_token_id, 319);
    assert_int_equal(s.objective.views, 3);
    assert_int_equal(s.objective.loss_weighting, LOSS_UNIT);
    assert_false(s.objective.antithetic);
    assert_string_equal(s.data.field, "a.b");
    assert_int_equal(s.parallel.mode, MODE_CP);
    assert_int_equal(spec_world_size(&s), 6);
    assert_int_equal(s.batch.micro_sequences, 2);
    assert_true(s.optimizer.beta1 == 0.8f && s.optimizer.beta2 == 0.9f);
    assert_int_equal(s.schedule.type, SCHEDULE_LINEAR);
    assert_int_equal(s.recompute, RECOMPUTE_NONE);
    assert_true(s.seed == (uint64_t)1 << 53);
    spec_free(&s);
    cJSON_Delete(json);
}

static void other_objectives(void **state)
{
    (void)state;
    struct job_spec s;
    cJSON *json = changed("{'objective':{'type':'autoregressive'},'data':{'sequence_length':255}}");
    read_good(json, &s);
    assert_int_equal(s.objective.block_size, 1);
    assert_int_equal(s.objective.mask_token_id, -1);
    assert_int_equal(s.objective.views, 0);
    spec_free(&s);
    cJSON_Delete(json);

    json = changed("{'objective':{'type':'fast_dllm_v2'}}");
    read_good(json, &s);
    assert_int_equal(s.objective.views, 2);
    assert_int_equal(s.objective.loss_weighting, LOSS_UNIT);
    assert_int_equal(s.objective.mask_token_id, 257);
    spec_free(&s);
    cJSON_Delete(json);

    json = changed("{'parallel':'auto','data':{'sequence_length':32}}");
    read_good(json, &s);
    assert_true(s.parallel.automatic);
    spec_free(&s);
    cJSON_Delete(json);

    json = changed("{'parallel':{'data':3},'batch':{'micro_sequences':2}}");
    read_good(json, &s);
    assert_int_equal(s.batch.sequences, 12); /* the first multiple of 3 x 2 from 8 on */
    spec_free(&s);
    cJSON_Delete(json);
}

/* More tokens than the weights have: the model is as large as the job says. */
static void a_grown_vocabulary(void **state)
{
    (void)state;
    struct job_spec s;
    cJSON *json = parse(least);
    read_good(json, &s);
    assert_int_equal(s.model.vocab_size, 320);
    assert_int_equal(s.model.config.added_vocab, 0);
    int64_t before = model_parameters(&s.model.config);
    spec_free(&s);
    cJSON_Delete(json);

    json = changed("{'model':{'vocab_size':384},'objective':{'mask_token_id':320}}");
    read_good(json, &s);
    assert_int_equal(s.model.vocab_size, 384);
    assert_int_equal(s.model.config.vocab, 384);
    assert_int_equal(s.model.config.added_vocab, 64);
    assert_int_equal(model_parameters(&s.model.config), before + 2 * 64 * 64);
    char *text = resolve(json);
    assert_non_null(strstr(text, "\"vocab_size\":384,\"config\":{"));
    assert_non_null(strstr(text, "\"vocab_size\":320}"));
    free(text);
    spec_free(&s);
    cJSON_Delete(json);
}

static void resolving_twice_changes_nothing(void **state)
{
    (void)state;
    static const char *const changes[] = {
        "{}",
        "{'objective':{'type':'autoregressive'}}",
        "{'objective':{'type':'fast_dllm_v2','t_min':0.3}}",
        "{'parallel':'auto'}",
        "{'model':{'vocab_size':321},'objective':{'mask_token_id':320}}",
        "{'parallel':{'mode':'none','data':4}}",
        "{'optimizer':{'lr':3.3333333333e-4,'betas':[0.123456789,0.999]}}",
        "{'optimizer':{'eps':1e-45},'schedule':{'warmup_steps':0}}",
        "{'model':{'path':'/models/a b'},'steps':1,'seed':0,'name':'\xc3\xa9 \\\\ \\u2028'}",
        "{'data':{'validation':{'fraction':0.123456789012345}},'steps':1000000000000}",
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        cJSON *json = changed(changes[i]);
        char *once = resolve(json);
        cJSON *again = cJSON_Parse(once);
        assert_non_null(again);
        char *twice = resolve(again);
        assert_string_equal(once, twice);
        free(once);
        free(twice);
        cJSON_Delete(again);
        cJSON_Delete(json);
    }
    cJSON *json = parse(least);
    char *text = resolve(json);
    assert_non_null(strstr(text, "\"lr\":1e-05,"));
    assert_non_null(strstr(text, "\"betas\":[0.9,0.95]"));
    assert_non_null(strstr(text, "\"warmup_steps\":5,"));
    assert_non_null(strstr(text, "\"validation\":{\"fraction\":0.01}"));
    free(text);
    cJSON_Delete(json);
}

static void wrong(void **state)
{
    (void)state;
    static const struct {
        const char *change, *path, *says;
    } cases[] = {
        /* missing */
        {"{'model':'-'}", "/model", "missing"},
        {"{'model':{'config':'-','init':'-'}}", "/model", "needs path"},
        {"{'model':{'config':'-','path':'/m','init':'-'}}", "/model/config", "missing"},
        {"{'model':{'init':'-'}}", "/model/init", "\"random\""},
        {"{'data':'-'}", "/data", "missing"},
        {"{'data':{'path':'-'}}", "/data/path", "missing"},
        {"{'data':{'sequence_length':'-'}}", "/data/sequence_length", "missing"},
        {"{'steps':'-'}", "/steps", "missing"},
        /* of the wrong type */
        {"{'name':7}", "/name", "a number"},
        {"{'device':null}", "/device", "null"},
        {"{'model':[]}", "/model", "an array but must be an object"},
        {"{'model':{'path':7}}", "/model/path", "a number"},
        {"{'model':{'config':'qwen3'}}", "/model/config", "a string"},
        {"{'objective':'block_diffusion'}", "/objective", "must be an object"},
        {"{'objective':{'block_size':'32'}}", "/objective/block_size", "a string"},
        {"{'objective':{'antithetic':1}}", "/objective/antithetic", "true or false"},
        {"{'data':{'path':[]}}", "/data/path", "an array"},
        {"{'data':{'sequence_length':256.5}}", "/data/sequence_length", "256.5"},
        {"{'data':{'validation':0.1}}", "/data/validation", "must be an object"},
        {"{'parallel':'fast'}", "/parallel", "or \"auto\""},
        {"{'parallel':{'degree':true}}", "/parallel/degree", "true"},
        {"{'batch':8}", "/batch", "must be an object"},
        {"{'optimizer':{'lr':'1e-5'}}", "/optimizer/lr", "a string"},
        {"{'optimizer':{'betas':0.9}}", "/optimizer/betas", "two numbers"},
        {"{'optimizer':{'betas':[0.9]}}", "/optimizer/betas", "two numbers"},
        {"{'optimizer':{'betas':[0.9,'x']}}", "/optimizer/betas/1", "a string"},
        {"{'steps':{}}", "/steps", "an object"},
        {"{'seed':null}", "/seed", "null"},
        /* out of range */
        {"{'name':''}", "/name", "0 bytes"},
        {"{'name':'a\\nb'}", "/name", "control character 0x0a"},
        {"{'precision':'fp16'}", "/precision",
         "\"fp16\" but must be \"auto\", \"fp32\" or \"bf16\""},
        {"{'device':'tpu'}", "/device", "\"tpu\" but must be \"auto\", \"cpu\" or \"cuda\""},
        {"{'model':{'vocab_size':319}}", "/model/vocab_size", "at least config's vocab_size 320"},
        {"{'model':{'vocab_size':'320'}}", "/model/vocab_size", "a string"},
        {"{'objective':{'mask_token_id':320}}", "/objective/mask_token_id",
         "/model/vocab_size can make it larger"},
        {"{'model':{'init':'zeros'}}", "/model/init", "\"weights\" or \"random\""},
        {"{'model':{'config':{'vocab_size':0}}}", "/model/config/vocab_size", "0"},
        {"{'model':{'config':{'hidden_act':'relu'}}}", "/model/config/hidden_act", "silu"},
        {"{'objective':{'type':'bert'}}", "/objective/type", "\"autoregressive\""},
        {"{'objective':{'block_size':0}}", "/objective/block_size", "from 1"},
        {"{'objective':{'views':17}}", "/objective/views", "from 1 to 16"},
        {"{'objective':{'views':0}}", "/objective/views", "from 1 to 16"},
        {"{'objective':{'mask_token_id':-1}}", "/objective/mask_token_id", "-1"},
        {"{'objective':{'loss_weighting':'t'}}", "/objective/loss_weighting", "\"unit\""},
        {"{'objective':{'t_min':0}}", "/objective/t_min", "above 0"},
        {"{'objective':{'t_min':1e-60}}", "/objective/t_min", "single precision"},
        {"{'objective':{'t_max':1.5}}", "/objective/t_max", "at most 1"},
        {"{'data':{'sequence_length':0}}", "/data/sequence_length", "from 1"},
        {"{'data':{'sequence_length':4294967296}}", "/data/sequence_length", "from 1"},
        {"{'data':{'format':'parquet'}}", "/data/format", "\"text\""},
        {"{'data':{'tokenizer':'bpe'}}", "/data/tokenizer", "\"bytes\""},
        {"{'data':{'validation':{'fraction':0.75}}}", "/data/validation/fraction", "at most 0.5"},
        {"{'data':{'validation':{'fraction':-0.1}}}", "/data/validation/fraction", "at least 0"},
        {"{'parallel':{'mode':'tp'}}", "/parallel/mode", "\"csbp\""},
        {"{'parallel':{'degree':0}}", "/parallel/degree", "from 1"},
        {"{'parallel':{'degree':1025}}", "/parallel/degree", "to 1024"},
        {"{'parallel':{'data':-2}}", "/parallel/data", "-2"},
        {"{'batch':{'sequences':0}}", "/batch/sequences", "from 1"},
        {"{'optimizer':{'type':'sgd'}}", "/optimizer/type", "\"adamw\""},
        {"{'optimizer':{'lr':0}}", "/optimizer/lr", "above 0"},
        {"{'optimizer':{'lr':1e999}}", "/optimizer/lr", "inf"},
        {"{'optimizer':{'lr':1e300}}", "/optimizer/lr", "single precision"},
        {"{'optimizer':{'betas':[0.9,1.0]}}", "/optimizer/betas/1", "below 1"},
        {"{'optimizer':{'betas':[0.9999999999,0.9]}}", "/optimizer/betas/0", "single precision"},
        {"{'optimizer':{'eps':-1}}", "/optimizer/eps", "above 0"},
        {"{'optimizer':{'weight_decay':-0.1}}", "/optimizer/weight_decay", "at least 0"},
        {"{'schedule':{'type':'step'}}", "/schedule/type", "\"cosine\""},
        {"{'recompute':'all'}", "/recompute", "\"layer\" or \"none\""},
        {"{'steps':0}", "/steps", "from 1"},
        {"{'seed':-1}", "/seed", "from 0 to 2^53"},
        {"{'seed':1e17}", "/seed", "from 0 to 2^53"},
        {"{'checkpoint':{'keep':0}}", "/checkpoint/keep", "from 1"},
        {"{'evaluate':{'every':-1}}", "/evaluate/every", "from 0"},
        {"{'restart':{'max':1.5}}", "/restart/max", "1.5"},
        /* unknown */
        {"{'step':50}", "/step", "known here: name, device, precision, model, "},
        {"{'objective':{'blocksize':32}}", "/objective/blocksize", "block_size"},
        {"{'data':{'validation':{'share':1}}}", "/data/validation/share", "known here: fraction"},
        {"{'a/b~c':1}", "/a~1b~0c", "not a known field"},
        {"{'betas':{'0':1}}", "/betas", "not a known field"},
        /* impossible together */
        {"{'data':{'sequence_length':250}}", "/data/sequence_length", "multiple of"},
        {"{'parallel':{'degree':129}}", "/data/sequence_length", "2 x parallel.degree"},
        {"{'parallel':{'mode':'none','degree':2}}", "/parallel/degree", "must be 1"},
        {"{'parallel':{'data':3},'batch':{'sequences':8}}", "/batch/sequences", "multiple of"},
        {"{'batch':{'sequences':8,'micro_sequences':3}}", "/batch/micro_sequences", "must divide"},
        {"{'data':{'sequence_length':1073741824},'batch':{'sequences':2,'micro_sequences':2}}",
         "/batch/micro_sequences", "below 2^31"},
        {"{'objective':{'t_min':0.5,'t_max':0.5}}", "/objective/t_min", "below t_max"},
        {"{'objective':{'type':'autoregressive','views':1}}", "/objective/views", "left out"},
        {"{'objective':{'type':'autoregressive','mask_token_id':257}}", "/objective/mask_token_id",
         "left out"},
        {"{'objective':{'type':'autoregressive','loss_weighting':'unit'}}",
         "/objective/loss_weighting", "left out"},
        {"{'objective':{'type':'fast_dllm_v2','loss_weighting':'unit'}}",
         "/objective/loss_weighting", "left out"},
        {"{'objective':{'type':'fast_dllm_v2','views':1}}", "/objective/views", "always has 2"},
        {"{'objective':{'mask_token_id':320}}", "/objective/mask_token_id", "vocab_size 320"},
        {"{'objective':{'mask_token_id':65}}", "/objective/mask_token_id", "stands for text"},
        {"{'model':{'config':{'vocab_size':256}}}", "/model/config/vocab_size", "at least 259"},
        {"{'schedule':{'min_lr':1}}", "/schedule/min_lr", "optimizer.lr"},
        {"{'schedule':{'warmup_steps':51}}", "/schedule/warmup_steps", "steps 50"},
        {"{'model':{'init':'weights'}}", "/model/init", "\"random\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON *json = changed(cases[i].change);
        struct problems problems = {0};
        struct job_spec s;
        spec_parse(json, &s, &problems);
        if (problems_count(&problems) != 1 || strcmp(problems.items[0].path, cases[i].path) != 0 ||
            !strstr(problems.items[0].message, cases[i].says)) {
            show(&problems);
            fail_msg("%s: expected one problem, %s ... %s", cases[i].change, cases[i].path,
                     cases[i].says);
        }
        spec_free(&s);
        problems_free(&problems);
        cJSON_Delete(json);
    }
}

static void count_problems(const char *text, size_t expected)
{
    cJSON *json = parse(text);
    struct problems problems = {0};
    struct job_spec s;
    spec_parse(json, &s, &problems);
    if (problems_count(&problems) != expected) {
        show(&problems);
        fail_msg("%s: %zu problems", text, problems_count(&problems));
    }
    spec_free(&s);
    problems_free(&problems);
    cJSON_Delete(json);
}

static void all_at_once(void **state)
{
    (void)state;
    count_problems("{}", 3); /* model, data, steps */
    count_problems("[]", 1);
    count_problems("null", 1);
    count_problems("{'model':{},'data':{},'steps':'a','seed':-1,'x':1,'batch':[],"
                   "'objective':{'type':'gpt','views':99}}",
                   9);
    /* twice, at the top and below */
    count_problems("{'steps':1,'steps':2,'model':{'path':'/a','path':'/b','config':" CONFIG "},"
                   "'data':{'path':'/d','sequence_length':32},'data':{}}",
                   3);

    struct problems problems = {0};
    struct job_spec s;
    spec_parse(NULL, &s, &problems);
    assert_int_equal(problems_count(&problems), 1);
    spec_free(&s);
    problems_free(&problems);
}

/* Any value in any place: never a crash, and never accepted where the type cannot be right. */
static void any_value_anywhere(void **state)
{
    (void)state;
    static const char *const values[] = {"null", "true", "-1",    "1e999",    "[]",
                                         "{}",   "'x'",  "[[1]]", "{'a':{}}", "0.5"};
    cJSON *json = parse(least);
    char *full_text = resolve(json);
    cJSON_Delete(json);
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        cJSON *full = cJSON_Parse(full_text);
        assert_non_null(full);
        int sections = cJSON_GetArraySize(full);
        cJSON_Delete(full);
        for (int i = 0; i < sections; i++) {
            for (int k = -1; k < 16; k++) {
                full = cJSON_Parse(full_text);
                cJSON *target = cJSON_GetArrayItem(full, i);
                cJSON *inner = k < 0 ? NULL : cJSON_GetArrayItem(target, k);
                if (inner)
                    cJSON_ReplaceItemInObjectCaseSensitive(target, inner->string, parse(values[v]));
                else
                    cJSON_ReplaceItemInObjectCaseSensitive(full, target->string, parse(values[v]));
                struct problems problems = {0};
                struct job_spec s;
                spec_parse(full, &s, &problems);
                if (v == 3 || v == 7 || v == 8)
                    assert_true(problems_count(&problems) > 0);
                spec_free(&s);
                problems_free(&problems);
                cJSON_Delete(full);
            }
        }
    }
    free(full_text);
}

static void schema(void **state)
{
    (void)state;
    cJSON *root = spec_schema();
    assert_non_null(root);
    const cJSON *properties = cJSON_GetObjectItem(root, "properties");
    const cJSON *steps = cJSON_GetObjectItem(properties, "steps");
    assert_string_equal(cJSON_GetObjectItem(steps, "type")->valuestring, "integer");
    assert_true(cJSON_GetObjectItem(steps, "minimum")->valuedouble == 1);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "required")), 3);
    const cJSON *parallel = cJSON_GetObjectItem(properties, "parallel");
    const cJSON *choices = cJSON_GetObjectItem(parallel, "oneOf");
    assert_int_equal(cJSON_GetArraySize(choices), 2);
    const cJSON *degree = cJSON_GetObjectItem(
        cJSON_GetObjectItem(cJSON_GetArrayItem(choices, 1), "properties"), "degree");
    assert_true(cJSON_GetObjectItem(degree, "default")->valuedouble == 1);

    /* Every field of a resolved spec is described, and nothing at its level is missing. */
    cJSON *json = parse(least);
    char *text = resolve(json);
    cJSON *resolved = cJSON_Parse(text);
    for (const cJSON *item = resolved->child; item; item = item->next)
        assert_non_null(cJSON_GetObjectItemCaseSensitive(properties, item->string));
    assert_int_equal(cJSON_GetArraySize(properties), cJSON_GetArraySize(resolved));
    cJSON_Delete(resolved);
    free(text);
    cJSON_Delete(json);
    cJSON_Delete(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(everything_said),
        cmocka_unit_test(other_objectives),
        cmocka_unit_test(a_grown_vocabulary),
        cmocka_unit_test(resolving_twice_changes_nothing),
        cmocka_unit_test(wrong),
        cmocka_unit_test(all_at_once),
        cmocka_unit_test(any_value_anywhere),
        cmocka_unit_test(schema),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
