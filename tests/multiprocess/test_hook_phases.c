// A hook of three phases, each of which needs what the one before it brought, with many buckets in
// flight and phases that end in drawn orders.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "gradsync/hooks/hook_calls.h"
#include "tests/multiprocess/hooked_rank.h"
#include "tests/support/asserts.h"
#include "tests/support/soon.h"

// Three phases: the largest power of two above all gradients; gradients in units of a 64th of it;
// and, once that sum is known, what it lacks. In the end the exact sum, unless a phase took what
// was not there yet.

typedef struct three {
    int world_size, rank;
    size_t num_buckets;
    float **scales, **payloads, **corrections;  // of each bucket
    int next[3];                                // bucket that phase is to run next
    int in_flight, most_in_flight;
    uint64_t calls;  // digest of their order
    int64_t killed_step;
    bool fails;  // there, instead
} three;
static three *this_three;

static gs_status measure_three(gs_hook_needs *needs, const gs_hook_setup *setup) {
    *needs = (gs_hook_needs){.num_phases = 3,
                             .most_posts = 2,
                             .bucket_bytes = 2 * gs_hook_most_bytes(setup, sizeof(float)) +
                                             setup->num_params * GS_HOOK_PLACE_BYTES};
    return gs_ok();
}

static gs_status create_three(void **state, const gs_hook_setup *setup) {
    three *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->world_size = setup->world_size;
    self->rank = setup->rank;
    self->killed_step = -1;
    *state = this_three = self;
    return gs_ok();
}

static void release_lists(three *self) {
    free(self->scales);
    free(self->payloads);
    free(self->corrections);
}

static gs_status place_three(void *state, const gs_hook_plan *plan) {
    three *self = state;
    size_t num_buckets = self->num_buckets = plan->num_buckets;
    release_lists(self);
    self->scales = calloc(num_buckets, sizeof *self->scales);
    self->payloads = calloc(num_buckets, sizeof *self->payloads);
    self->corrections = calloc(num_buckets, sizeof *self->corrections);
    for (size_t b = 0; b < num_buckets; b++) {
        void *memory[3];
        size_t bytes = plan->buckets[b].count * sizeof(float);
        GS_TRY(gs_hook_place(&memory[0], plan, sizeof(float)));
        GS_TRY(gs_hook_place(&memory[1], plan, bytes));
        GS_TRY(gs_hook_place(&memory[2], plan, bytes));
        self->scales[b] = memory[0];
        self->payloads[b] = memory[1];
        self->corrections[b] = memory[2];
    }
    return gs_ok();
}

static gs_status post_sum(gs_hook_work *work, const gs_hook_bucket *bucket, void *data,
                          size_t count, gs_reduce_op op) {
    return gs_hook_post(work, bucket,
                        &(gs_collective){.kind = GS_ALLREDUCE,
                                         .send = data,
                                         .recv = data,
                                         .count = count,
                                         .dtype = GS_FP32,
                                         .op = op});
}

static gs_status send_scale(three *self, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const float *grads = bucket->data;
    float *scale = self->scales[bucket->index], most = 0.125f;
    for (size_t i = 0; i < bucket->count; i++) most = fmaxf(most, fabsf(grads[i]));
    *scale = exp2f(ceilf(log2f(most)));
    GS_TRY(post_sum(work, bucket, (float *)bucket->data + bucket->count, bucket->reserved_count,
                    GS_OP_SUM));
    return post_sum(work, bucket, scale, 1, GS_OP_MAX);
}

static gs_status send_payload(three *self, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const float *grads = bucket->data;
    float *payload = self->payloads[bucket->index], unit = *self->scales[bucket->index] / 64;
    for (size_t i = 0; i < bucket->count; i++) payload[i] = rintf(grads[i] / unit);
    return post_sum(work, bucket, payload, bucket->count, GS_OP_SUM);
}

static gs_status send_correction(three *self, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const float *grads = bucket->data, *payload = self->payloads[bucket->index];
    float *correction = self->corrections[bucket->index];
    float unit = *self->scales[bucket->index] / 64;
    for (size_t i = 0; i < bucket->count; i++)
        correction[i] = (float)self->world_size * grads[i] - payload[i] * unit;
    return post_sum(work, bucket, correction, bucket->count, GS_OP_SUM);
}

static gs_status run_three(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    three *self = state;
    uint64_t call = (uint64_t)bucket->index * 8 + (uint64_t)work->phase;
    if (bucket->index != self->next[work->phase])
        return gs_error(GS_INTERNAL, "phase %d of bucket %d comes before that of %d", work->phase,
                        bucket->index, self->next[work->phase]);
    self->next[work->phase] = bucket->is_last ? 0 : bucket->index + 1;
    self->calls = gs_hash64(&call, sizeof call, self->calls);
    if (!work->phase && ++self->in_flight > self->most_in_flight)
        self->most_in_flight = self->in_flight;
    hooked_rank_dawdle((uint64_t)bucket->step * 100 + (uint64_t)self->rank, 1000 + call);
    if (bucket->step == self->killed_step && work->phase == 1 && bucket->index == 10) {
        if (self->fails) return gs_error(GS_INTERNAL, "no scale");
        raise(SIGKILL);
    }
    if (work->phase == 0) return send_scale(self, bucket, work);
    return work->phase == 1 ? send_payload(self, bucket, work)
                            : send_correction(self, bucket, work);
}

static gs_status finish_three(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                              gs_deadline deadline) {
    (void)result, (void)deadline;
    three *self = state;
    float *grads = bucket->data, unit = *self->scales[bucket->index] / 64;
    for (size_t i = 0; i < bucket->count; i++)
        grads[i] = self->payloads[bucket->index][i] * unit +
                   self->corrections[bucket->index][i] / (float)self->world_size;
    self->in_flight--;
    return gs_ok();
}

static void destroy_three(void *state) {
    release_lists(state);
    free(state);
}

static const gs_comm_hook three_hook = {.name = "three",
                                        .measure = measure_three,
                                        .create = create_three,
                                        .on_plan = place_three,
                                        .run = run_three,
                                        .finish = finish_three,
                                        .commit = gs_hook_decide_nothing,
                                        .rollback = gs_hook_decide_nothing,
                                        .tensor = gs_hook_no_tensor,
                                        .loaded = gs_hook_load_nothing,
                                        .destroy = destroy_three};

// The phases' times lie behind each other, and within the bucket's.
static gs_status check_times(const hooked_rank *self) {
    const gs_reduce_stats *stats = gs_reducer_stats(self->reducer);
    if (stats->max_phases != 3 || !stats->phases) return gs_error(GS_INTERNAL, "no phases");
    for (size_t b = 0; b < stats->num_buckets; b++) {
        const gs_phase_times *phases = stats->phases + 3 * b;
        const gs_bucket_times *bucket = &stats->buckets[b];
        bool fits = phases[0].started_ns == bucket->started_ns &&
                    phases[2].finished_ns == bucket->finished_ns &&
                    phases[0].posted_ns == bucket->posted_ns &&
                    bucket->wire_bytes >= 2 * bucket->bytes;
        for (int p = 0; p < 3; p++) {
            fits = fits && phases[p].posted_ns <= phases[p].started_ns &&
                   phases[p].started_ns <= phases[p].finished_ns &&
                   (!p || phases[p - 1].finished_ns <= phases[p].posted_ns);
        }
        if (!fits) return gs_error(GS_INTERNAL, "times of bucket %zu", b);
    }
    return gs_ok();
}

// Rank 0 has everything on its way before any other begins.
static gs_status run_three_step(hooked_rank *self, int64_t step) {
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(self->reducer, step));
    if (self->env->rank) GS_TRY(hooked_rank_meet(self, "full", step));
    GS_TRY(hooked_rank_run_pass(self, step, hooked_rank_value));
    if (!self->env->rank) {
        if (this_three->in_flight != HOOKED_PARAMS)
            return gs_error(GS_INTERNAL, "%d buckets in flight", this_three->in_flight);
        GS_TRY(hooked_rank_meet(self, "full", step));
    }
    GS_TRY(gs_reducer_finish(self->reducer, &result, soon()));
    GS_TRY(check_times(self));
    return hooked_rank_check_sums(self, step);
}

static gs_status body_three(const gs_rank_env *env) {
    hooked_rank self;
    gs_status status = hooked_rank_open(&self, env, &three_hook,
                                        strcmp(env->arg, "on") ? GS_HELPER_OFF : GS_HELPER_ON);
    for (int64_t step = 0; step < HOOKED_STEPS && !status.code; step++)
        status = run_three_step(&self, step);
    if (!status.code) {
        char note[32];
        snprintf(note, sizeof note, "%016llx", (unsigned long long)this_three->calls);
        gs_rank_note(env, note);
    }
    hooked_rank_close(&self);
    return status;
}

static void three_phases_bring_exact_sums_whatever_the_timing(void **state) {
    (void)state;
    int num_different = 0;
    for (int world_size = 2; world_size <= HOOKED_MAX_WORLD; world_size++) {
        for (int helper = 0; helper < 2; helper++) {
            gs_ranks *ranks;
            gs_status statuses[HOOKED_MAX_WORLD];
            assert_ok(gs_ranks_start(&ranks, "three", world_size, helper ? "on" : "off", NULL));
            assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(120)));
            for (int r = 0; r < world_size; r++) assert_ok(statuses[r]);
            for (int r = 1; r < world_size; r++)
                num_different += strcmp(gs_ranks_note(ranks, r), gs_ranks_note(ranks, 0)) != 0;
            gs_ranks_destroy(ranks);
        }
    }
    // Phases ended in other orders elsewhere: this could tell.
    assert_true(num_different > 0);
}

// Rank 1 ends, in one way or the other, in a phase of step 2.
static gs_status run_until_it_ends(hooked_rank *self, bool fails) {
    gs_status status = gs_ok();
    this_three->fails = fails;
    if (self->env->rank == 1) this_three->killed_step = 2;
    for (int64_t step = 0; step < HOOKED_STEPS && !status.code; step++) {
        gs_reduce_result result;
        status = gs_reducer_begin(self->reducer, step);
        if (!status.code) status = hooked_rank_run_pass(self, step, hooked_rank_value);
        if (!status.code) status = gs_reducer_finish(self->reducer, &result, soon());
    }
    return status;
}

static gs_status body_failing(const gs_rank_env *env) {
    hooked_rank self;
    GS_TRY(hooked_rank_open(&self, env, &three_hook, GS_HELPER_OFF));
    gs_status status = run_until_it_ends(&self, true);
    hooked_rank_close(&self);
    if (strstr(status.message, "rank 1, step 2: bucket 10: hook \"three\", phase 1: no scale"))
        return gs_ok();
    return gs_error(GS_INTERNAL, "%s", status.message);
}

static void phase_that_fails_is_named_on_every_rank(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("failing", 3, "", gs_deadline_in_seconds(60)));
}

static gs_status body_killed(const gs_rank_env *env) {
    hooked_rank self;
    gs_comm_failure failure;
    GS_TRY(hooked_rank_open(&self, env, &three_hook, GS_HELPER_OFF));
    gs_status status = run_until_it_ends(&self, false);
    gs_comm_explain(self.rank.comm, &failure);
    bool told = status.code && strstr(status.message, "rank 1") &&
                failure.kind == GS_COMM_FAILURE_PEER_LOST && gs_comm_failure_names(&failure, 1) &&
                gs_comm_failure_num_accused(&failure) == 1 && failure.step == 2;
    hooked_rank_close(&self);
    if (told) return gs_ok();
    return gs_error(GS_INTERNAL, "%s, step %lld: %s", gs_comm_failure_kind_name(failure.kind),
                    (long long)failure.step, status.message);
}

static void rank_that_dies_between_two_phases_is_named(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[3];
    assert_ok(gs_ranks_start(&ranks, "killed", 3, "", NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    assert_ok(statuses[0]);
    assert_non_null(strstr(statuses[1].message, "killed by signal 9"));
    assert_ok(statuses[2]);
    gs_ranks_destroy(ranks);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"three", body_three}, {"killed", body_killed}, {"failing", body_failing}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_phases_bring_exact_sums_whatever_the_timing),
        cmocka_unit_test(rank_that_dies_between_two_phases_is_named),
        cmocka_unit_test(phase_that_fails_is_named_on_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
