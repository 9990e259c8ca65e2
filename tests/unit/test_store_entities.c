/* Checkpoints, datasets, tasks, nodes, tokens, kept answers. */
#include <math.h>

#include "store/checkpoints.h"
#include "store/datasets.h"
#include "store/idempotency.h"
#include "store/jobs.h"
#include "store/nodes.h"
#include "store/tasks.h"
#include "store/tokens.h"
#include "store_fixture.h"

static int64_t insert_job(struct store_tx *tx)
{
    struct store_job job = {
        .name = "j", .spec_json = "{}", .device = "cpu", .world = 1, .steps = 10};
    struct store_attempt attempt;
    int64_t id = 0;
    OK(store_job_insert(tx, &job, 1, &id));
    OK(store_attempt_begin(tx, id, 0, 2, &attempt));
    return id;
}

static struct store_checkpoint checkpoint_of(int64_t job, int64_t step)
{
    return (struct store_checkpoint){
        .job_id = job,
        .attempt = 1,
        .step = step,
        .directory = "/jobs/1/checkpoints/step",
        .data_position = 8 * step,
        .run_state_json = "{\"key\":1}",
        .spec_json = "{\"seed\":1}",
        .manifest_json = "{\"shards\":2}",
        .created_s = 100 + (double)step,
    };
}

static const struct store_shard shards[] = {
    {0, "rank-0.safetensors", 1000, "00112233445566778899aabbccddeeff"},
    {1, "rank-1.safetensors", 500, "ffeeddccbbaa99887766554433221100"},
};

static void test_checkpoints(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t job = insert_job(tx), one = 0, two = 0, none = 0;
    struct store_checkpoint c = checkpoint_of(job, 10), read;
    FAILS(store_checkpoint_newest(tx, job, &read), ERR_NOT_FOUND, "no checkpoint yet");
    OK(store_checkpoint_insert(tx, &c, shards, 2, &one));
    OK(store_checkpoint_get(tx, one, &read));
    assert_int_equal(read.job_id, job);
    assert_int_equal(read.attempt, 1);
    assert_int_equal(read.step, 10);
    assert_false(read.deleting);
    assert_string_equal(read.directory, c.directory);
    assert_int_equal(read.size_bytes, 1500);
    assert_int_equal(read.data_position, 80);
    assert_string_equal(read.run_state_json, c.run_state_json);
    assert_string_equal(read.spec_json, c.spec_json);
    assert_string_equal(read.manifest_json, c.manifest_json);
    assert_true(read.created_s == 110);
    struct store_shards list;
    OK(store_checkpoint_shards(tx, one, &list));
    assert_int_equal(list.count, 2);
    assert_string_equal(list.items[1].file, "rank-1.safetensors");
    assert_string_equal(list.items[1].xxh3, shards[1].xxh3);
    assert_int_equal(list.items[1].size_bytes, 500);

    FAILS(store_checkpoint_insert(tx, &c, shards, 2, &none), ERR_CONFLICT, "step 10 already");
    c = checkpoint_of(job, 20);
    c.attempt = 7;
    FAILS(store_checkpoint_insert(tx, &c, shards, 2, &none), ERR_INTERNAL, "FOREIGN KEY");
    c.attempt = 1;
    OK(store_checkpoint_insert(tx, &c, shards, 2, &two));

    struct store_checkpoints all;
    struct store_page page = {.limit = 1};
    OK(store_checkpoints_list(tx, job, &page, &all));
    assert_int_equal(all.count, 1);
    assert_true(all.more);
    assert_int_equal(all.items[0].id, two);
    page.cursor = two;
    OK(store_checkpoints_list(tx, 0, &page, &all));
    assert_false(all.more);
    assert_int_equal(all.items[0].id, one);
    OK(store_checkpoint_newest(tx, job, &read));
    assert_int_equal(read.id, two);

    FAILS(store_checkpoint_mark_deleting(tx, two), ERR_CONFLICT, "the newest of job 1");
    struct store_task task = {
        .type = STORE_TASK_EXPORT, .parameters_json = "{}", .checkpoint_id = one};
    int64_t task_id = 0;
    OK(store_task_insert(tx, &task, 5, &task_id));
    FAILS(store_checkpoint_mark_deleting(tx, one), ERR_CONFLICT, "used by task 1");
    OK(store_task_cancel(tx, task_id, NULL, 6));
    FAILS(store_checkpoint_delete(tx, one), ERR_CONFLICT, "not marked");
    OK(store_checkpoint_mark_deleting(tx, one));
    OK(store_checkpoints_deleting(tx, &all));
    assert_int_equal(all.count, 1);
    assert_int_equal(all.items[0].id, one);
    OK(store_checkpoint_delete(tx, one));
    FAILS(store_checkpoint_delete(tx, one), ERR_NOT_FOUND, "no checkpoint 1");
    OK(store_checkpoint_shards(tx, one, &list));
    assert_int_equal(list.count, 0);
    OK(store_job_transition(tx, job, 0, STORE_JOB_CANCELLED, NULL, 7));
    OK(store_checkpoint_mark_deleting(tx, two));
}

static void test_datasets(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    struct store_dataset d =
                             {
                                 .hash = "abc",
                                 .path = "/datasets/abc",
                                 .spec_json = "{\"path\":\"x\"}",
                                 .documents = 3,
                                 .tokens = 300,
                                 .bytes = 1200,
                                 .unigram_entropy = 2.75,
                                 .stats_json = "{\"longest\":200}",
                             },
                         read;
    int64_t id = 0, again = 0, other = 0;
    OK(store_dataset_put(tx, &d, 5, &id));
    OK(store_dataset_get(tx, id, &read));
    assert_string_equal(read.hash, "abc");
    assert_null(read.name);
    assert_string_equal(read.path, "/datasets/abc");
    assert_string_equal(read.spec_json, d.spec_json);
    assert_string_equal(read.stats_json, d.stats_json);
    assert_int_equal(read.documents, 3);
    assert_int_equal(read.tokens, 300);
    assert_int_equal(read.bytes, 1200);
    assert_true(read.unigram_entropy == 2.75 && read.created_s == 5);
    d.name = "named";
    d.path = "/elsewhere/abc";
    OK(store_dataset_put(tx, &d, 9, &again));
    assert_int_equal(again, id);
    OK(store_dataset_find(tx, "abc", &read));
    assert_string_equal(read.path, "/elsewhere/abc");
    assert_string_equal(read.name, "named");
    assert_true(read.created_s == 5);
    FAILS(store_dataset_find(tx, "abd", &read), ERR_NOT_FOUND, "hash abd");
    d.hash = "def";
    d.unigram_entropy = NAN;
    OK(store_dataset_put(tx, &d, 10, &other));
    OK(store_dataset_get(tx, other, &read));
    assert_true(isnan(read.unigram_entropy));

    int64_t job = insert_job(tx);
    OK(store_job_set_dataset(tx, job, id, 6));
    FAILS(store_dataset_mark_deleting(tx, id), ERR_CONFLICT, "used by job 1");
    OK(store_job_transition(tx, job, 0, STORE_JOB_FAILED, "because", 7));
    FAILS(store_dataset_delete(tx, id), ERR_CONFLICT, "not marked");
    OK(store_dataset_mark_deleting(tx, id));
    struct store_datasets list;
    struct store_page page = {.limit = 10};
    OK(store_datasets_list(tx, &page, &list));
    assert_int_equal(list.count, 2);
    assert_true(list.items[1].deleting);
    OK(store_dataset_delete(tx, id));
    FAILS(store_dataset_delete(tx, id), ERR_NOT_FOUND, "no dataset 1");
    struct store_job read_job;
    OK(store_job_get(tx, job, &read_job));
    assert_int_equal(read_job.dataset_id, 0);
}

static void test_tasks(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t job = insert_job(tx), id = 0, node = 0, last = 0;
    struct store_node n = {.name = "n", .version = "1", .resources_json = "{}"};
    OK(store_node_register(tx, &n, 1, &node));
    struct store_task task =
                          {
                              .type = STORE_TASK_PREPARE,
                              .parameters_json = "{\"data\":{}}",
                              .job_id = job,
                              .created_by = "someone",
                          },
                      read;
    OK(store_task_insert(tx, &task, 5, &id));
    enum store_verdict verdict;
    OK(store_task_take_record(tx, id, 1, &verdict, &last));
    assert_int_equal(verdict, STORE_RECORD_STALE);
    uint8_t secret[STORE_SECRET_HASH_BYTES] = {1, 2, 3};
    OK(store_task_start(tx, id, node, -1, secret, "/tasks/1", 6));
    FAILS(store_task_start(tx, id, node, -1, secret, "/tasks/1", 6), ERR_CONFLICT, "is running");
    OK(store_task_launched(tx, id, 12, 34));
    OK(store_task_take_record(tx, id, 1, &verdict, &last));
    assert_int_equal(verdict, STORE_RECORD_NEW);
    OK(store_task_progress(tx, id, 3, 10, "documents"));
    OK(store_task_take_record(tx, id, 1, &verdict, &last));
    assert_int_equal(verdict, STORE_RECORD_OLD);
    OK(store_task_take_record(tx, id, 3, &verdict, &last));
    assert_int_equal(verdict, STORE_RECORD_GAP);
    assert_int_equal(last, 1);
    OK(store_task_get(tx, id, &read));
    assert_int_equal(read.type, STORE_TASK_PREPARE);
    assert_int_equal(read.state, STORE_TASK_RUNNING);
    assert_string_equal(read.parameters_json, "{\"data\":{}}");
    assert_int_equal(read.job_id, job);
    assert_int_equal(read.done, 3);
    assert_int_equal(read.total, 10);
    assert_string_equal(read.unit, "documents");
    assert_int_equal(read.node_id, node);
    assert_int_equal(read.gpu, -1);
    assert_int_equal(read.pid, 12);
    assert_int_equal(read.start_time, 34);
    assert_int_equal(read.last_seq, 1);
    assert_memory_equal(read.secret_hash, secret, sizeof secret);
    assert_string_equal(read.directory, "/tasks/1");
    assert_true(read.created_s == 5 && read.started_s == 6 && read.finished_s == 0);

    /* Its process is lost; the second one counts its records anew. */
    OK(store_task_transition(tx, id, 0, STORE_TASK_QUEUED, NULL, "its process was killed", 7));
    OK(store_task_start(tx, id, node, 2, secret, "/tasks/1", 8));
    OK(store_task_take_record(tx, id, 1, &verdict, &last));
    assert_int_equal(verdict, STORE_RECORD_NEW);
    OK(store_task_set_dataset(tx, id, 9));
    OK(store_task_transition(tx, id, STORE_TASK_MASK(STORE_TASK_RUNNING), STORE_TASK_SUCCEEDED,
                             "{\"tokens\":5}", NULL, 9));
    OK(store_task_get(tx, id, &read));
    assert_string_equal(read.result_json, "{\"tokens\":5}");
    assert_int_equal(read.dataset_id, 9);
    assert_int_equal(read.gpu, 2);
    assert_true(read.finished_s == 9);
    FAILS(store_task_transition(tx, id, 0, STORE_TASK_FAILED, NULL, NULL, 10), ERR_CONFLICT,
          "is succeeded and cannot become failed");
    FAILS(store_task_cancel(tx, id, NULL, 10), ERR_CONFLICT, "is succeeded");

    int64_t queued = 0, running = 0;
    task = (struct store_task){.type = STORE_TASK_SAMPLE, .parameters_json = "{}"};
    OK(store_task_insert(tx, &task, 20, &queued));
    OK(store_task_insert(tx, &task, 21, &running));
    OK(store_task_start(tx, running, node, -1, secret, NULL, 22));
    OK(store_task_cancel(tx, queued, "not wanted", 23));
    OK(store_task_cancel(tx, running, "not wanted", 23));
    OK(store_task_get(tx, queued, &read));
    assert_int_equal(read.state, STORE_TASK_CANCELLED);
    OK(store_task_get(tx, running, &read));
    assert_int_equal(read.state, STORE_TASK_RUNNING);
    assert_true(read.cancel_requested);

    struct store_tasks list;
    struct store_page page = {.limit = 10};
    struct store_task_filter filter = {.types = 1u << STORE_TASK_SAMPLE, .states = STORE_TASK_OVER};
    OK(store_tasks_list(tx, &filter, &page, &list));
    assert_int_equal(list.count, 1);
    assert_int_equal(list.items[0].id, queued);
    filter = (struct store_task_filter){.job_id = job};
    OK(store_tasks_list(tx, &filter, &page, &list));
    assert_int_equal(list.count, 1);
    assert_int_equal(list.items[0].id, id);
    OK(store_tasks_list(tx, NULL, &page, &list));
    assert_int_equal(list.count, 3);
    FAILS(store_task_get(tx, 99, &read), ERR_NOT_FOUND, "no task 99");
}

static void test_nodes(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t b = 0, a = 0, again = 0;
    struct store_node node =
                          {
                              .name = "b",
                              .address = "https://b:8443",
                              .version = "1",
                              .cpu_slots = 4,
                              .gpu_slots = 8,
                              .resources_json = "{\"gpus\":[]}",
                          },
                      read;
    OK(store_node_register(tx, &node, 1, &b));
    OK(store_node_set_draining(tx, b, true));
    node.version = "2";
    node.cpu_slots = 5;
    OK(store_node_register(tx, &node, 2, &again));
    assert_int_equal(again, b);
    OK(store_node_seen(tx, b, NULL, 3));
    OK(store_node_get(tx, b, &read));
    assert_string_equal(read.address, "https://b:8443");
    assert_string_equal(read.version, "2");
    assert_string_equal(read.resources_json, "{\"gpus\":[]}");
    assert_int_equal(read.cpu_slots, 5);
    assert_int_equal(read.gpu_slots, 8);
    assert_true(read.draining && read.registered_s == 1 && read.seen_s == 3);
    node = (struct store_node){.name = "a", .version = "1", .resources_json = "{}"};
    OK(store_node_register(tx, &node, 4, &a));
    OK(store_node_seen(tx, a, "{\"memory\":1}", 5));
    struct store_nodes list;
    OK(store_nodes_list(tx, &list));
    assert_int_equal(list.count, 2);
    assert_string_equal(list.items[0].name, "a");
    assert_null(list.items[0].address);
    assert_string_equal(list.items[0].resources_json, "{\"memory\":1}");
    FAILS(store_node_seen(tx, 9, NULL, 1), ERR_NOT_FOUND, "no node 9");
}

static void test_tokens(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    struct store_token token = {.name = "ci", .role = STORE_ROLE_SUBMIT, .expires_s = 100}, read;
    memset(token.hash, 7, sizeof token.hash);
    int64_t id = 0, second = 0;
    OK(store_token_insert(tx, &token, 5, &id));
    FAILS(store_token_insert(tx, &token, 5, &second), ERR_CONFLICT, "named \"ci\" already");
    OK(store_token_find(tx, token.hash, 99, &read));
    assert_int_equal(read.id, id);
    assert_string_equal(read.name, "ci");
    assert_int_equal(read.role, STORE_ROLE_SUBMIT);
    assert_memory_equal(read.hash, token.hash, sizeof token.hash);
    assert_true(read.created_s == 5 && read.expires_s == 100 && read.revoked_s == 0);
    FAILS(store_token_find(tx, token.hash, 100, &read), ERR_NOT_FOUND, "no valid token");
    uint8_t wrong[STORE_TOKEN_HASH_BYTES] = {7};
    FAILS(store_token_find(tx, wrong, 1, &read), ERR_NOT_FOUND, "no valid token");
    OK(store_token_revoke(tx, id, 50));
    OK(store_token_revoke(tx, id, 60));
    FAILS(store_token_find(tx, token.hash, 51, &read), ERR_NOT_FOUND, "no valid token");
    OK(store_token_get(tx, id, &read));
    assert_true(read.revoked_s == 50);
    token.hash[0] = 8;
    token.expires_s = 0;
    OK(store_token_insert(tx, &token, 70, &second));
    OK(store_token_find(tx, token.hash, 1e12, &read));
    assert_int_equal(read.id, second);
    struct store_tokens list;
    OK(store_tokens_list(tx, &list));
    assert_int_equal(list.count, 2);
    FAILS(store_token_revoke(tx, 9, 1), ERR_NOT_FOUND, "no token 9");
    enum store_role role;
    assert_true(store_role_parse("agent", &role) && role == STORE_ROLE_AGENT);
    assert_false(store_role_parse("root", &role));
}

static void test_kept_answers(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    struct store_idempotency answer =
                                 {
                                     .key = "k1",
                                     .principal = "ci",
                                     .endpoint = "POST /v1/jobs",
                                     .request_hash = {1, 2},
                                     .status = 201,
                                     .body = "{\"id\":1}",
                                     .location = "/v1/jobs/1",
                                     .created_s = 10,
                                     .expires_s = 100,
                                 },
                             got;
    bool found = true;
    OK(store_idempotency_get(tx, &answer, 20, &found, &got));
    assert_false(found);
    OK(store_idempotency_put(tx, &answer));
    OK(store_idempotency_get(tx, &answer, 20, &found, &got));
    assert_true(found);
    assert_int_equal(got.status, 201);
    assert_string_equal(got.body, "{\"id\":1}");
    assert_string_equal(got.location, "/v1/jobs/1");
    assert_true(got.created_s == 10 && got.expires_s == 100);

    struct store_idempotency other = answer;
    other.request_hash[0] = 9;
    FAILS(store_idempotency_get(tx, &other, 20, &found, &got), ERR_INVALID, "another request");
    other = answer;
    other.principal = "somebody else";
    OK(store_idempotency_get(tx, &other, 20, &found, &got));
    assert_false(found);
    OK(store_idempotency_get(tx, &answer, 100, &found, &got));
    assert_false(found);
    OK(store_idempotency_put(tx, &answer)); /* one that has expired is overwritten */
    OK(store_idempotency_expire(tx, 100));
    OK(store_idempotency_get(tx, &answer, 20, &found, &got));
    assert_false(found);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_connection, fixture_remove)
    const struct CMUnitTest tests[] = {
        TEST(test_checkpoints), TEST(test_datasets), TEST(test_tasks),
        TEST(test_nodes),       TEST(test_tokens),   TEST(test_kept_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
