// Where complaints put a job's ranks, as the engine decides it: beside other pools of slots, and within the window for newcomers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/digest.h"
#include "tests/unit/coordinator/engine_play.h"

#define WINDOW_SECONDS 30

static const char spec_text[] =
    "{\"name\":\"placed\",\"world\":{\"min\":%d,\"max\":%d,\"join_window_seconds\":%d,\"device\":\"cpu\"},"
    "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[4,3,2]}},\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2},"
    "\"optimizer\":{\"kind\":\"sgd\"},\"steps\":{\"target\":1000}}";

// No slot is free: it waits.
static gs_job *submit(gs_play *play, int least, int most) {
    char spec[600];
    snprintf(spec, sizeof spec, spec_text, least, most, WINDOW_SECONDS);
    gs_job *job = gs_play_submit(play, spec);
    assert_null(job->run);
    return job;
}

// Worker "a", whose first slots have a GPU each.
static void join_other(gs_play *play, int num_slots, int num_gpus) {
    gs_engine_event event = {.kind = GS_ON_AGENT_HELLO};
    event.from = (gs_origin){.call = ++play->last_call, .who.incarnation = GS_PLAY_AGENT + 1, .generation = -1};
    event.agent_hello = (gs_agent_hello){.worker = "a", .host = "a", .boot_id = "a", .network = "n", .build = "t", .data_root = "/",
                                         .pid = 1, .cores = 1, .num_slots = num_slots};
    if (num_gpus) {
        gs_agent_devices *devices = &event.agent_hello.devices;
        *devices = (gs_agent_devices){.items = calloc((size_t)num_gpus, sizeof *devices->items), .count = num_gpus, .per_slot = 1, .nccl = "2"};
        assert_non_null(devices->items);
        for (int i = 0; i < num_gpus; i++) snprintf(devices->items[i].uuid, sizeof devices->items[i].uuid, "GPU-%d", i);
    }
    gs_play_hear(play, &event);
}

// Somebody elsewhere, about a slot of "a".
static void complain(const gs_play *play, gs_job *job, int slot, uint32_t generation) {
    gs_complaint complaint = {.by = {.worker = 1}, .about = {.worker = gs_hash64("a", 1, 0), .slot = slot},
                              .generation = generation, .is_early = true, .at_ns = play->now_ns};
    gs_complaints_add(&job->complaints, &complaint);
}

static bool has_slot(const gs_run *run, int slot) {
    for (int i = 0; i < run->num_members; i++)
        if (run->members[i].slot == slot) return true;
    return false;
}

static void slots_without_a_gpu_come_first(void **state) {
    gs_play *play = *state;
    const gs_job *job = submit(play, 2, 2);
    join_other(play, 4, 2);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_non_null(job->run);
    assert_true(has_slot(job->run, 2) && has_slot(job->run, 3));
}

// The slot that was complained about stays free, though it has no GPU and another one has.
static void a_free_gpu_comes_before_a_slot_that_was_complained_about(void **state) {
    gs_play *play = *state;
    gs_job *job = submit(play, 2, 2);
    play->watched_reason = "SlotsAvoided";
    for (uint32_t generation = 1; generation <= 2; generation++) complain(play, job, 3, generation);
    join_other(play, 4, 2);
    gs_play_wait(play, GS_NS_PER_SEC);
    assert_non_null(job->run);
    assert_true(has_slot(job->run, 2) && has_slot(job->run, 0));
    assert_int_equal(play->num_watched, 1);
}

// One that has never trained waits for newcomers as it would without complaints; behind the window it takes whom nobody blames.
static void complaints_close_no_window(void **state) {
    for (uint32_t generations = 1; generations <= 2; generations++) {
        gs_play *play = *state;
        if (generations > 1) gs_play_set_up_training(state), play = *state;
        gs_job *job = submit(play, 1, 8);
        for (uint32_t generation = 1; generation <= generations; generation++) complain(play, job, 2, generation);
        join_other(play, 3, 0);
        gs_play_wait(play, (WINDOW_SECONDS - 5) * GS_NS_PER_SEC);
        assert_null(job->run);
        gs_play_wait(play, 10 * GS_NS_PER_SEC);
        assert_non_null(job->run);
        assert_int_equal(job->run->num_members, generations > 1 ? 2 : 3);
        assert_int_equal(has_slot(job->run, 2), generations == 1);
        if (generations == 1) gs_play_tear_down(state);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gs_play_set_up_training, gs_play_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(slots_without_a_gpu_come_first),
        TEST(a_free_gpu_comes_before_a_slot_that_was_complained_about),
        TEST(complaints_close_no_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
