// Which slots a job gets by what it computes on, through the real coordinator process, with fake workers
// that offer GPUs or none.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"

// `more`: members of the specification behind model and steps.
static void submit(gs_stage *it, const char *name, const char *world, const char *more) {
    char text[500];
    snprintf(text, sizeof text,
             "{\"name\":\"%s\",\"model\":{\"kind\":\"mlp\"},\"world\":{%s,\"join_window_seconds\":0},"
             "\"steps\":{\"target\":1000000}%s}",
             name, world, more);
    gs_stage_submit(it, text);
}

static void start(gs_stage *it, int index, int slots, int gpus) {
    gs_stage_start_worker(
        it, index, &(gs_fake_worker_options){.slots = slots, .gpus = gpus, .step_ms = 5});
}

static void wait_for_reason(gs_stage *it, const char *reason, const char *words) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    for (;;) {
        gs_json *job = gs_stage_get(it, GS_GET_JOB, it->job);
        const char *message = gs_json_string_or(job, "message", "");
        bool seen = !strcmp(gs_json_string_or(job, "reason", ""), reason) && strstr(message, words);
        if (!seen && gs_deadline_passed(deadline))
            fail_msg("wanted %s: …%s…, there is %s: %s", reason, words,
                     gs_json_string_or(job, "reason", ""), message);
        gs_json_release(job);
        if (seen) return;
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
}

// Ranks of the running job on `device`.
static int count_ranks_on(gs_stage *it, const char *device) {
    gs_json_release(gs_stage_wait_for_state(it, it->job, "running"));
    gs_json *workers = gs_stage_get(it, GS_GET_JOB_WORKERS, it->job);
    const gs_json *items = gs_json_get(workers, "items");
    int count = 0;
    for (size_t i = 0; i < gs_json_count(items); i++) {
        const gs_json *item = gs_json_at(items, i);
        if (strcmp(gs_json_string_or(item, "device", ""), device) != 0) continue;
        bool has_uuid = strncmp(gs_json_string_or(item, "device_uuid", ""), "GPU-", 4) == 0;
        assert_int_equal(has_uuid, !strcmp(device, "cuda"));
        count++;
    }
    gs_json_release(workers);
    return count;
}

static void a_job_on_gpus_says_why_there_are_none(void **state) {
    gs_stage *it = *state;
    submit(it, "gpus", "\"max\":2,\"device\":\"cuda\"", "");
    wait_for_reason(it, "WaitingForWorkers", "needs GPUs and no worker is connected");
    start(it, 0, 4, 0);
    wait_for_reason(it, "NoDevice", "worker w1 on testhost: no driver in this test");
}

static void a_job_on_gpus_fails_with_that_when_it_need_not_wait(void **state) {
    gs_stage *it = *state;
    start(it, 0, 4, 0);
    submit(it, "gpus", "\"max\":2,\"device\":\"cuda\",\"wait_seconds\":0.2", "");
    gs_json *job = gs_stage_wait_for_state(it, it->job, "failed");
    assert_string_equal(gs_json_string_or(job, "reason", ""), "NoDevice");
    assert_non_null(strstr(gs_json_string_or(job, "message", ""), "no driver in this test"));
    gs_json_release(job);
}

static void ranks_on_gpus_take_slots_with_gpus_alone(void **state) {
    gs_stage *it = *state;
    start(it, 0, 4, 1);
    submit(it, "gpus", "\"max\":2,\"device\":\"cuda\"", "");
    wait_for_reason(it, "WaitingForWorkers", "1 of 2 required slots with a GPU");
    start(it, 1, 2, 2);
    assert_int_equal(count_ranks_on(it, "cuda"), 2);
}

static void auto_takes_gpus_where_there_are_enough(void **state) {
    gs_stage *it = *state;
    start(it, 0, 4, 2);
    submit(it, "two", "\"max\":2", "");
    assert_int_equal(count_ranks_on(it, "cuda"), 2);
}

static void auto_takes_cpus_where_gpus_are_too_few(void **state) {
    gs_stage *it = *state;
    start(it, 0, 4, 2);
    submit(it, "three", "\"max\":3", "");
    assert_int_equal(count_ranks_on(it, "cpu"), 3);
}

static void a_job_on_cpus_leaves_gpus_to_others(void **state) {
    gs_stage *it = *state;
    start(it, 0, 4, 2);
    submit(it, "cpus", "\"max\":2,\"device\":\"cpu\"", "");
    assert_int_equal(count_ranks_on(it, "cpu"), 2);
    submit(it, "gpus", "\"max\":2,\"device\":\"cuda\"", "");
    assert_int_equal(count_ranks_on(it, "cuda"), 2);
}

static void nccl_needs_gpus_and_shm_does_not(void **state) {
    gs_stage *it = *state;
    start(it, 0, 4, 2);
    submit(it, "shm", "\"max\":2", ",\"reducer\":{\"backend\":\"shm\"}");
    assert_int_equal(count_ranks_on(it, "cpu"), 2);
    submit(it, "nccl", "\"max\":2", ",\"reducer\":{\"backend\":\"nccl\"}");
    assert_int_equal(count_ranks_on(it, "cuda"), 2);
}

static void exact_under_auto_stays_on_cpus(void **state) {
    gs_stage *it = *state;
    start(it, 0, 4, 2);
    submit(it, "exact", "\"max\":2", ",\"exact\":true");
    assert_int_equal(count_ranks_on(it, "cpu"), 2);
}

static void auto_takes_cpus_where_nccl_is_missing(void **state) {
    gs_stage *it = *state;
    gs_stage_start_worker(it, 0, &(gs_fake_worker_options){
                                     .slots = 4, .gpus = 2, .step_ms = 5, .has_no_nccl = true});
    submit(it, "two", "\"max\":2", "");
    assert_int_equal(count_ranks_on(it, "cpu"), 2);
    submit(it, "one", "\"max\":1", "");
    assert_int_equal(count_ranks_on(it, "cuda"), 1);
}

static int count_gpu_slots(gs_stage *it, const char *worker) {
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(it, &reply, GS_LIST_WORKERS, "{}"));
    const gs_json *items = gs_json_get(reply, "items");
    int count = -1;
    for (size_t i = 0; i < gs_json_count(items); i++) {
        const gs_json *item = gs_json_at(items, i);
        if (strcmp(gs_json_string_or(item, "id", ""), worker) == 0)
            count = (int)gs_json_int_or(item, "slots_with_gpu", -1);
    }
    gs_json_release(reply);
    return count;
}

static void wait_for_gpu_slots(gs_stage *it, const char *worker, int wanted) {
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (count_gpu_slots(it, worker) != wanted) {
        if (gs_deadline_passed(deadline))
            fail_msg("%s: %d slots with a GPU, wanted %d", worker, count_gpu_slots(it, worker), wanted);
        gs_sleep_ns(5 * GS_NS_PER_MS);
    }
}

// The second worker keeps only the third GPU, in its own third slot; it gets the others when the first has gone.
static void gpus_of_a_worker_that_has_gone_are_taken_over(void **state) {
    gs_stage *it = *state;
    gs_fake_worker_options shared = {.slots = 3, .gpus = 3, .gpus_of = "w1", .step_ms = 5};
    start(it, 0, 2, 2);
    wait_for_gpu_slots(it, "w1", 2);
    gs_stage_start_worker(it, 1, &shared);
    wait_for_gpu_slots(it, "w2", 1);
    submit(it, "three", "\"max\":3,\"device\":\"cuda\"", "");
    gs_json_release(gs_stage_wait_for_state(it, it->job, "running"));
    gs_json *workers = gs_stage_get(it, GS_GET_JOB_WORKERS, it->job);
    const gs_json *third = gs_json_at(gs_json_get(workers, "items"), 2);
    assert_string_equal(gs_json_string_or(third, "worker", ""), "w2");
    assert_int_equal(gs_json_int_or(third, "slot", -1), 2);
    assert_string_equal(gs_json_string_or(third, "device_uuid", ""), "GPU-w1-2");
    gs_json_release(workers);
    gs_fake_worker_stop(it->workers[0]);
    it->workers[0] = NULL;
    wait_for_gpu_slots(it, "w2", 3);
    assert_int_equal(count_ranks_on(it, "cuda"), 3);
}

// Which worker says hello first after a restart of the coordinator is chance; the GPUs stay with the trainers.
static void gpus_stay_with_the_trainers_on_them(void **state) {
    gs_stage *it = *state;
    start(it, 0, 2, 2);
    submit(it, "two", "\"max\":2,\"device\":\"cuda\"", "");
    assert_int_equal(count_ranks_on(it, "cuda"), 2);
    gs_coordinator_process_kill(&it->process);
    gs_fake_worker_options shared = {.slots = 2, .gpus = 2, .gpus_of = "w1", .step_ms = 5};
    gs_stage_start_worker(it, 1, &shared);
    assert_ok(gs_coordinator_process_start(&it->process));
    wait_for_gpu_slots(it, "w2", 0);
    wait_for_gpu_slots(it, "w1", 2);
    assert_int_equal(count_ranks_on(it, "cuda"), 2);
}

static void workers_show_their_devices(void **state) {
    gs_stage *it = *state;
    start(it, 0, 3, 2);
    submit(it, "cpus", "\"max\":1,\"device\":\"cpu\"", "");
    gs_json_release(gs_stage_wait_for_state(it, it->job, "running"));
    gs_json *reply = NULL;
    assert_ok(gs_stage_ask(it, &reply, GS_LIST_WORKERS, "{}"));
    const gs_json *worker = gs_json_at(gs_json_get(reply, "items"), 0);
    const gs_json *devices = gs_json_get(worker, "devices");
    assert_int_equal(gs_json_count(devices), 2);
    assert_string_equal(gs_json_string_or(gs_json_at(devices, 1), "uuid", ""), "GPU-w1-1");
    assert_int_equal(gs_json_int_or(worker, "slots_with_gpu", -1), 2);
    gs_json_release(reply);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gs_stage_set_up, gs_stage_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_job_on_gpus_says_why_there_are_none),
        TEST(a_job_on_gpus_fails_with_that_when_it_need_not_wait),
        TEST(ranks_on_gpus_take_slots_with_gpus_alone),
        TEST(auto_takes_gpus_where_there_are_enough),
        TEST(auto_takes_cpus_where_gpus_are_too_few),
        TEST(a_job_on_cpus_leaves_gpus_to_others),
        TEST(nccl_needs_gpus_and_shm_does_not),
        TEST(exact_under_auto_stays_on_cpus),
        TEST(auto_takes_cpus_where_nccl_is_missing),
        TEST(gpus_of_a_worker_that_has_gone_are_taken_over),
        TEST(gpus_stay_with_the_trainers_on_them),
        TEST(workers_show_their_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
