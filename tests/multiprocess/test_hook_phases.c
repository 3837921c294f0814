// Hooks of the test's own between ranks, through public headers alone. Three phases, each of which needs what the
// one before it brought, with many buckets in flight and phases that end in drawn orders; a hook that carries
// residuals from step to step; one that reduces elsewhere.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "core/random.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"

#define NUM_PARAMS 64
#define MAX_WORLD 4
#define NUM_STEPS 4
#define STEPS_OF_STATE 12

static size_t count_of(size_t param) {
    return 1 + param * 37 % 300;
}

static uint64_t draw(uint64_t what, uint64_t a, uint64_t b, uint64_t index) {
    return gs_random_u64((gs_random_key){.seed = 77, .stream = gs_random_stream(what, a, b)},
                         index);
}

// Multiples of an eighth: sums of all ranks are exact in fp32.
static float value_of(int64_t step, int rank, size_t param, size_t index) {
    uint64_t number = draw(1, (uint64_t)step * 16 + (uint64_t)rank, param, index);
    return (float)((int)(number % 2001) - 1000) / 8;
}

// Ranks fall behind here and there.
static void dawdle(uint64_t a, uint64_t b) {
    uint64_t number = draw(2, a, b, 0);
    if (number % 6 == 0) gs_sleep_ns((int64_t)(number >> 8) % 300000);
}

// A rank with a reducer of NUM_PARAMS parameters.
typedef struct hooked {
    const gs_rank_env *env;
    comm_rank rank;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plans[2];  // a bucket for each; few buckets
    gs_hook_choice choice;
    gs_reducer_options options;
    gs_reducer *reducer;
} hooked;

static gs_status open_comm(gs_comm **comm, const hooked *self, uint32_t generation,
                           bool takes_arena) {
    gs_comm_options options = {.rank = self->env->rank,
                               .world_size = self->env->world_size,
                               .generation = generation,
                               .exchange = gs_rank_exchange,
                               .exchange_ctx = self->env->exchange,
                               .arena = takes_arena ? self->rank.arena : NULL,
                               .device = self->rank.device};
    GS_TRY(gs_reducer_lanes(&options.num_lanes, &self->options));
    return gs_comm_create(comm, &options, soon());
}

static gs_status open_hooked(hooked *self, const gs_rank_env *env, const gs_comm_hook *hook,
                             gs_helper_thread helper) {
    *self = (hooked){.env = env, .choice = {.hook = hook, .user = self}};
    for (size_t p = 0; p < NUM_PARAMS; p++)
        self->params[p] = gs_param_spec_make(GS_FP32, (int64_t)count_of(p), 0, "layer.%zu", p);
    GS_TRY(gs_bucket_plan_parity(&self->plans[0], self->params, NUM_PARAMS, 1, 1, NULL));
    GS_TRY(gs_bucket_plan_parity(&self->plans[1], self->params, NUM_PARAMS, 4000, 9000, NULL));
    self->options = (gs_reducer_options){
        .params = self->params,
        .num_params = NUM_PARAMS,
        .plan = &self->plans[0],
        .shards = {.num_shards = env->world_size, .world_size = env->world_size, .rank = env->rank},
        .op = GS_SUM,
        .hooks = &self->choice,
        .num_hooks = 1};
    size_t bytes;
    int num_lanes;
    GS_TRY(gs_reducer_arena_bytes(&bytes, &self->options));
    GS_TRY(gs_reducer_lanes(&num_lanes, &self->options));
    GS_TRY(comm_rank_open(&self->rank, env, bytes,
                          &(gs_comm_options){.helper = helper, .num_lanes = num_lanes}));
    self->options.arena = self->rank.arena;
    self->options.device = self->rank.device;
    return gs_reducer_create(&self->reducer, &self->options, self->rank.comm, soon());
}

static void close_hooked(hooked *self) {
    gs_reducer_destroy(self->reducer);
    comm_rank_close(&self->rank);
    gs_bucket_plan_release(&self->plans[0]);
    gs_bucket_plan_release(&self->plans[1]);
}

// Gradients in an order of this rank's own.
static gs_status run_pass(hooked *self, int64_t step,
                          float (*value)(int64_t step, int rank, size_t param, size_t index)) {
    gs_reducer_pass pass;
    gs_random_key key = {.seed = 78,
                         .stream = gs_random_stream(3, (uint64_t)step, (uint64_t)self->env->rank)};
    GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, 1));
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        size_t param = gs_random_permute(key, NUM_PARAMS, i);
        float *grad = pass.grads[param];
        for (size_t k = 0; k < count_of(param); k++)
            grad[k] = value(step, self->env->rank, param, k);
        dawdle((uint64_t)step * 100 + (uint64_t)self->env->rank, param);
        GS_TRY(gs_reducer_mark_ready(self->reducer, param));
    }
    return gs_reducer_end_pass(self->reducer);
}

// Everybody is here: nobody is a step behind.
static gs_status meet(const hooked *self, const char *what, int64_t step) {
    char tag[32], here = 1, all[MAX_WORLD];
    snprintf(tag, sizeof tag, "%.16s %d", what, (int)step);
    return gs_rank_exchange(self->env->exchange, tag, NULL, 0, &here, 1, all, soon());
}

// Three phases: the largest power of two above all gradients; gradients in units of a 64th of it; and, once
// that sum is known, what it lacks. In the end the exact sum, unless a phase took what was not there yet.

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
    dawdle((uint64_t)bucket->step * 100 + (uint64_t)self->rank, 1000 + call);
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

static gs_status check_sums(const hooked *self, int64_t step) {
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        const float *grad = gs_reducer_grads(self->reducer)[p];
        for (size_t k = 0; k < count_of(p); k++) {
            float sum = 0;
            for (int r = 0; r < self->env->world_size; r++) sum += value_of(step, r, p, k);
            if (grad[k] != sum)
                return gs_error(GS_INTERNAL, "step %d: element %zu of parameter %zu is %g, not %g",
                                (int)step, k, p, (double)grad[k], (double)sum);
        }
    }
    return gs_ok();
}

// The phases' times lie behind each other, and within the bucket's.
static gs_status check_times(const hooked *self) {
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
static gs_status run_three_step(hooked *self, int64_t step) {
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(self->reducer, step));
    if (self->env->rank) GS_TRY(meet(self, "full", step));
    GS_TRY(run_pass(self, step, value_of));
    if (!self->env->rank) {
        if (this_three->in_flight != NUM_PARAMS)
            return gs_error(GS_INTERNAL, "%d buckets in flight", this_three->in_flight);
        GS_TRY(meet(self, "full", step));
    }
    GS_TRY(gs_reducer_finish(self->reducer, &result, soon()));
    GS_TRY(check_times(self));
    return check_sums(self, step);
}

static gs_status body_three(const gs_rank_env *env) {
    hooked self;
    gs_status status = open_hooked(&self, env, &three_hook,
                                   strcmp(env->arg, "on") ? GS_HELPER_OFF : GS_HELPER_ON);
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++)
        status = run_three_step(&self, step);
    if (!status.code) {
        char note[32];
        snprintf(note, sizeof note, "%016llx", (unsigned long long)this_three->calls);
        gs_rank_note(env, note);
    }
    close_hooked(&self);
    return status;
}

static void three_phases_bring_exact_sums_whatever_the_timing(void **state) {
    (void)state;
    int num_different = 0;
    for (int world_size = 2; world_size <= MAX_WORLD; world_size++) {
        for (int helper = 0; helper < 2; helper++) {
            gs_ranks *ranks;
            gs_status statuses[MAX_WORLD];
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
static gs_status run_until_it_ends(hooked *self, bool fails) {
    gs_status status = gs_ok();
    this_three->fails = fails;
    if (self->env->rank == 1) this_three->killed_step = 2;
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
        gs_reduce_result result;
        status = gs_reducer_begin(self->reducer, step);
        if (!status.code) status = run_pass(self, step, value_of);
        if (!status.code) status = gs_reducer_finish(self->reducer, &result, soon());
    }
    return status;
}

static gs_status body_failing(const gs_rank_env *env) {
    hooked self;
    GS_TRY(open_hooked(&self, env, &three_hook, GS_HELPER_OFF));
    gs_status status = run_until_it_ends(&self, true);
    close_hooked(&self);
    if (strstr(status.message, "rank 1, step 2: bucket 10: hook \"three\", phase 1: no scale"))
        return gs_ok();
    return gs_error(GS_INTERNAL, "%s", status.message);
}

static void phase_that_fails_is_named_on_every_rank(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("failing", 3, "", gs_deadline_in_seconds(60)));
}

static gs_status body_killed(const gs_rank_env *env) {
    hooked self;
    gs_comm_failure failure;
    GS_TRY(open_hooked(&self, env, &three_hook, GS_HELPER_OFF));
    gs_status status = run_until_it_ends(&self, false);
    gs_comm_explain(self.rank.comm, &failure);
    bool told = status.code && strstr(status.message, "rank 1") &&
                failure.kind == GS_COMM_FAILURE_PEER_LOST && gs_comm_failure_names(&failure, 1) &&
                gs_comm_failure_num_accused(&failure) == 1 && failure.step == 2;
    close_hooked(&self);
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

// A hook that sends even numbers alone, and carries what is left to the next step that counts: two copies of the
// residuals, of which one holds.
typedef struct carrier {
    size_t first[NUM_PARAMS], total;  // elements
    float *residuals[2];
    int holding, rank;
    int64_t failing_step;
    bool dies;  // there, instead
} carrier;
static carrier *this_carrier;

static gs_status measure_carrier(gs_hook_needs *needs, const gs_hook_setup *setup) {
    size_t total = 0;
    for (size_t i = 0; i < setup->num_params; i++) total += setup->params[i].room;
    *needs = (gs_hook_needs){.state_bytes = 2 * total * sizeof(float)};
    return gs_ok();
}

static gs_status create_carrier(void **state, const gs_hook_setup *setup) {
    carrier *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < setup->num_params; i++) {
        self->first[i] = self->total;
        self->total += setup->params[i].room;
    }
    self->residuals[0] = setup->state;
    self->residuals[1] = self->residuals[0] + self->total;
    self->rank = setup->rank;
    self->failing_step = -1;
    *state = this_carrier = self;
    return gs_ok();
}

static gs_status place_carrier(void *state, const gs_hook_plan *plan) {
    (void)state, (void)plan;
    return gs_ok();
}

static gs_status run_carrier(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    carrier *self = state;
    if (bucket->step == self->failing_step && bucket->index == 3) {
        self->failing_step = -1;
        if (self->dies) raise(SIGKILL);
        return gs_error(GS_INTERNAL, "lost its residuals");
    }
    for (size_t i = 0; i < bucket->num_params; i++) {
        const gs_hook_param *param = &bucket->params[i];
        float *grad = (float *)bucket->data + param->first;
        const float *before = self->residuals[self->holding] + self->first[param->index];
        float *after = self->residuals[!self->holding] + self->first[param->index];
        for (size_t k = 0; k < param->count; k++) {
            float all = grad[k] + before[k];
            grad[k] = 2 * floorf(all / 2);
            after[k] = all - grad[k];
        }
    }
    return gs_hook_allreduce.run(NULL, bucket, work);
}

static void commit_carrier(void *state) {
    carrier *self = state;
    self->holding = !self->holding;
}

static bool tensor_of_carrier(void *state, size_t index, gs_hook_tensor *tensor) {
    carrier *self = state;
    if (index >= NUM_PARAMS) return false;
    *tensor = (gs_hook_tensor){.name = "residual",
                               .param = (int64_t)index,
                               .dtype = GS_FP32,
                               .count = count_of(index),
                               .data = self->residuals[self->holding] + self->first[index],
                               .is_own = true,
                               .beside = self->residuals[!self->holding] + self->first[index]};
    return true;
}

static const gs_comm_hook *carrier_hook(void) {
    static gs_comm_hook hook;
    hook = gs_hook_allreduce;
    hook.name = "carrier";
    hook.measure = measure_carrier;
    hook.create = create_carrier;
    hook.on_plan = place_carrier;
    hook.run = run_carrier;
    hook.commit = commit_carrier;
    hook.tensor = tensor_of_carrier;
    hook.destroy = free;
    return &hook;
}

static float whole_value(int64_t step, int rank, size_t param, size_t index) {
    return floorf(value_of(step, rank, param, index));
}

// Step 3 of rank 1 overflows once.
static bool overflows;
static float value_that_overflows(int64_t step, int rank, size_t param, size_t index) {
    return overflows && rank == 1 && param == 5 && index == 0 ? INFINITY
                                                              : whole_value(step, rank, param, index);
}

// What all ranks carry, serially.
typedef struct referee {
    float *residuals[MAX_WORLD][NUM_PARAMS];
} referee;

static void init_referee(referee *all) {
    for (int r = 0; r < MAX_WORLD; r++) {
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            all->residuals[r][p] = calloc(count_of(p), sizeof(float));
            if (!all->residuals[r][p]) abort();
        }
    }
}

static void release_referee(referee *all) {
    for (int r = 0; r < MAX_WORLD; r++)
        for (size_t p = 0; p < NUM_PARAMS; p++) free(all->residuals[r][p]);
}

// The step's sums, and the residuals after it where it counts.
static gs_status judge(referee *all, const hooked *self, int64_t step, bool counts) {
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        const float *grad = gs_reducer_grads(self->reducer)[p];
        for (size_t k = 0; k < count_of(p); k++) {
            float sum = 0;
            for (int r = 0; r < self->env->world_size; r++) {
                float whole = whole_value(step, r, p, k) + all->residuals[r][p][k];
                float sent = 2 * floorf(whole / 2);
                sum += sent;
                if (counts) all->residuals[r][p][k] = whole - sent;
            }
            if (grad[k] != sum)
                return gs_error(GS_INTERNAL, "step %d: element %zu of parameter %zu is %g, not %g",
                                (int)step, k, p, (double)grad[k], (double)sum);
        }
    }
    return gs_ok();
}

static gs_status run_carried_step(hooked *self, int64_t step, gs_reduce_result *result) {
    GS_TRY(gs_reducer_begin(self->reducer, step));
    GS_TRY(run_pass(self, step, value_that_overflows));
    return gs_reducer_finish(self->reducer, result, soon());
}

// A step that overflows is skipped, and taken again with finite gradients.
static gs_status skip_step(hooked *self, int64_t step) {
    gs_reduce_result result;
    overflows = true;
    gs_status status = run_carried_step(self, step, &result);
    overflows = false;
    GS_TRY(status);
    if (!result.nonfinite) return gs_error(GS_INTERNAL, "the overflow is lost");
    return gs_reducer_rollback(self->reducer);
}

// Rank 0 fails within the step; all go on with another communicator. Nobody is left in the step before, which would
// fail as well.
static gs_status fail_and_reset(hooked *self, int64_t step, uint32_t generation) {
    gs_reduce_result result;
    gs_comm *next;
    GS_TRY(meet(self, "before", step));
    if (!self->env->rank) this_carrier->failing_step = step;
    gs_status status = run_carried_step(self, step, &result);
    if (!status.code || !strstr(status.message, "lost its residuals"))
        return gs_error(GS_INTERNAL, "the step ended with: %s", status.message);
    GS_TRY(gs_comm_wait_ended(self->rank.comm, soon()));
    GS_TRY(open_comm(&next, self, generation, true));
    GS_TRY(gs_reducer_reset(self->reducer, next, soon()));
    gs_comm_destroy(self->rank.comm);
    self->rank.comm = next;
    return gs_ok();
}

// Out of this reducer, whose state is then wiped, and into it again.
static gs_status save_and_load(hooked *self) {
    float *saved[NUM_PARAMS];
    gs_hook_state_tensor tensor;
    size_t num = 0;
    for (; gs_reducer_hook_state(&tensor, self->reducer, num); num++) {
        char name[64];
        snprintf(name, sizeof name, "carrier/residual/layer.%zu", num);
        if (num >= NUM_PARAMS || strcmp(tensor.name, name) || !tensor.tensor.is_own ||
            tensor.tensor.param != (int64_t)num || tensor.tensor.count != count_of(num))
            return gs_error(GS_INTERNAL, "tensor %zu is \"%.150s\"", num, tensor.name);
        saved[num] = malloc(tensor.tensor.count * sizeof(float));
        if (!saved[num]) abort();
        memcpy(saved[num], tensor.tensor.data, tensor.tensor.count * sizeof(float));
    }
    if (num != NUM_PARAMS) return gs_error(GS_INTERNAL, "%zu tensors", num);
    gs_reducer_destroy(self->reducer);
    self->options.plan = &self->plans[0];
    GS_TRY(gs_reducer_create(&self->reducer, &self->options, self->rank.comm, soon()));
    for (size_t i = 0; gs_reducer_hook_state(&tensor, self->reducer, i); i++) {
        const float *data = tensor.tensor.data;
        for (size_t k = 0; k < count_of(i); k++)
            if (data[k] != 0) return gs_error(GS_INTERNAL, "a new reducer's state is not zero");
        memcpy(tensor.tensor.data, saved[i], count_of(i) * sizeof(float));
        free(saved[i]);
    }
    return gs_reducer_hook_state_loaded(self->reducer);
}

static gs_status take_carried_step(hooked *self, referee *all, int64_t step) {
    gs_reduce_result result;
    if (step == 3) GS_TRY(skip_step(self, step));
    if (step == 6) GS_TRY(gs_reducer_set_plan(self->reducer, &self->plans[1], soon()));
    if (step == 8) GS_TRY(fail_and_reset(self, step, 2));
    if (step == 10) GS_TRY(save_and_load(self));
    GS_TRY(run_carried_step(self, step, &result));
    if (step == 5) {  // it is reduced, but not applied, and redone
        GS_TRY(judge(all, self, step, false));
        GS_TRY(gs_reducer_rollback(self->reducer));
        GS_TRY(run_carried_step(self, step, &result));
    }
    if (step != 7) GS_TRY(gs_reducer_commit(self->reducer));  // step 7: by the next begin, which fails later
    return judge(all, self, step, true);
}

static gs_status body_carried(const gs_rank_env *env) {
    hooked self;
    referee all;
    init_referee(&all);
    gs_status status = open_hooked(&self, env, carrier_hook(), GS_HELPER_OFF);
    for (int64_t step = 0; step < STEPS_OF_STATE && !status.code; step++)
        status = gs_status_prefix(take_carried_step(&self, &all, step), "step %d", (int)step);
    close_hooked(&self);
    release_referee(&all);
    return status;
}

static void residuals_follow_steps_plans_resets_and_checkpoints(void **state) {
    (void)state;
    for (int world_size = 2; world_size <= 3; world_size++)
        assert_ok(gs_ranks_run("carried", world_size, "", gs_deadline_in_seconds(60)));
}

// A rank is killed, and the others find in its arena what it had yet to add.

static bool peer_has(const hooked *self, const referee *all, int rank, int64_t step) {
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        const float *found = gs_reducer_peer_hook_data(self->reducer, p, rank, step);
        if (!found || memcmp(found, all->residuals[rank][p], count_of(p) * sizeof *found) != 0)
            return false;
    }
    return true;
}

static bool peer_has_none(const hooked *self, int rank, int64_t step) {
    return !gs_reducer_peer_hook_data(self->reducer, 0, rank, step);
}

enum { ORPHANED_STEP = 5, VICTIM = 1 };

static gs_status meet_as_survivors(const hooked *self) {
    static const int survivors[] = {0, 2};
    char here = 1, all[2];
    return gs_rank_exchange(self->env->exchange, "survivors", survivors, 2, &here, 1, all, soon());
}

// Rank 1 ends in step 5, at the place that the argument names; the others hear of it. Neither of them is left behind
// by the other, whose abort would end the step before.
static gs_status take_last_step(hooked *self, const char *place) {
    gs_reduce_result result;
    bool is_victim = self->env->rank == VICTIM;
    this_carrier->dies = true;
    if (is_victim && !strcmp(place, "phase")) this_carrier->failing_step = ORPHANED_STEP;
    GS_TRY(meet(self, "before", ORPHANED_STEP));
    GS_TRY(gs_reducer_begin(self->reducer, ORPHANED_STEP));
    if (is_victim && !strcmp(place, "begun")) raise(SIGKILL);
    GS_TRY(run_pass(self, ORPHANED_STEP, whole_value));
    GS_TRY(gs_reducer_finish(self->reducer, &result, soon()));
    if (is_victim && !strcmp(place, "reduced")) raise(SIGKILL);
    GS_TRY(gs_reducer_commit(self->reducer));
    if (is_victim) raise(SIGKILL);
    GS_TRY(meet_as_survivors(self));
    return gs_comm_run(self->rank.comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}, soon());
}

static gs_status find_what_is_left(hooked *self, referee *all, const char *place) {
    bool was_reduced = !strcmp(place, "reduced") || !strcmp(place, "committed");
    GS_TRY(gs_comm_wait_ended(self->rank.comm, soon()));
    if (!peer_has(self, all, VICTIM, ORPHANED_STEP))
        return gs_error(GS_INTERNAL, "what it had before the step is not there");
    if (was_reduced) GS_TRY(judge(all, self, ORPHANED_STEP, true));
    if (was_reduced != peer_has(self, all, VICTIM, ORPHANED_STEP + 1) ||
        was_reduced == peer_has_none(self, VICTIM, ORPHANED_STEP + 1))
        return gs_error(GS_INTERNAL, "what it had after the step");
    // It lives, or has left, and is no further than this rank.
    int other = 2 - self->env->rank;
    if (!peer_has(self, all, other, ORPHANED_STEP + was_reduced))
        return gs_error(GS_INTERNAL, "what rank %d has", other);
    bool is_bounded = peer_has_none(self, VICTIM, ORPHANED_STEP - 1) &&
                      peer_has_none(self, VICTIM, ORPHANED_STEP + 2) &&
                      peer_has_none(self, 3, ORPHANED_STEP) &&
                      peer_has_none(self, -1, ORPHANED_STEP) &&
                      !gs_reducer_peer_hook_data(self->reducer, NUM_PARAMS, VICTIM, ORPHANED_STEP);
    return is_bounded ? gs_ok() : gs_error(GS_INTERNAL, "finds what is not there");
}

static gs_status body_orphaned(const gs_rank_env *env) {
    hooked self;
    referee all;
    gs_reduce_result result;
    init_referee(&all);
    gs_status status = open_hooked(&self, env, carrier_hook(), GS_HELPER_OFF);
    for (int64_t step = 0; step < ORPHANED_STEP && !status.code; step++) {
        status = run_carried_step(&self, step, &result);
        if (!status.code) status = gs_reducer_commit(self.reducer);
        if (!status.code) status = judge(&all, &self, step, true);
    }
    if (!status.code) {
        gs_status end = take_last_step(&self, env->arg);
        status = end.code ? find_what_is_left(&self, &all, env->arg)
                          : gs_error(GS_INTERNAL, "rank %d did not die", VICTIM);
    }
    close_hooked(&self);
    release_referee(&all);
    return status;
}

static void residuals_of_a_dead_rank_are_found_wherever_it_died(void **state) {
    (void)state;
    static const char *const places[] = {"begun", "phase", "reduced", "committed"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        gs_ranks *ranks;
        gs_status statuses[3];
        assert_ok(gs_ranks_start(&ranks, "orphaned", 3, places[i], NULL));
        assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
        assert_ok(statuses[0]);
        assert_non_null(strstr(statuses[VICTIM].message, "killed by signal 9"));
        assert_ok(statuses[2]);
        gs_ranks_destroy(ranks);
    }
}

// A hook that reduces with what is not the library's: here another communicator, all of it in finish.
typedef struct elsewhere {
    gs_comm *comm;
    int next_finish, num_started;
    bool may_finish;
} elsewhere;
static elsewhere abroad;

static gs_status start_elsewhere(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    (void)state, (void)bucket;
    abroad.num_started++;
    work->is_elsewhere = true;
    return gs_ok();
}

static gs_status finish_elsewhere(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                                  gs_deadline deadline) {
    (void)state, (void)result;
    if (!abroad.may_finish || bucket->index != abroad.next_finish)
        return gs_error(GS_INTERNAL, "bucket %d is not the one to be waited for", bucket->index);
    abroad.next_finish = bucket->is_last ? 0 : bucket->index + 1;
    return gs_comm_run(abroad.comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = bucket->data,
                                        .recv = bucket->data,
                                        .count = bucket->count + bucket->reserved_count,
                                        .dtype = bucket->dtype,
                                        .bucket = -1},
                       deadline);
}

static gs_status body_elsewhere(const gs_rank_env *env) {
    hooked self;
    gs_comm_hook hook = gs_hook_allreduce;
    hook.name = "elsewhere";
    hook.run = start_elsewhere;
    hook.finish = finish_elsewhere;
    GS_TRY(open_hooked(&self, env, &hook, GS_HELPER_OFF));
    gs_status status = open_comm(&abroad.comm, &self, 9, false);
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
        gs_reduce_result result;
        abroad.may_finish = false;
        abroad.num_started = 0;
        status = gs_reducer_begin(self.reducer, step);
        if (!status.code) status = run_pass(&self, step, value_of);
        if (!status.code && abroad.num_started != NUM_PARAMS)
            status = gs_error(GS_INTERNAL, "%d buckets started", abroad.num_started);
        abroad.may_finish = true;
        if (!status.code) status = gs_reducer_finish(self.reducer, &result, soon());
        if (!status.code) status = check_sums(&self, step);
    }
    close_hooked(&self);
    gs_comm_destroy(abroad.comm);
    return status;
}

static void hook_of_another_library_is_waited_for_at_the_end(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("elsewhere", 3, "", gs_deadline_in_seconds(60)));
}

// A hook that reduces each bucket to one rank: the others hold nothing of it.
static const gs_segment *segments_of(const gs_hook_bucket *bucket) {
    static gs_segment segments[NUM_PARAMS];
    for (size_t i = 0; i < bucket->num_params; i++)
        segments[bucket->params[i].index] =
            (gs_segment){.tensor = bucket->params[i].index, .count = bucket->params[i].count};
    return &segments[bucket->params[0].index];
}

static int owner_of(const gs_hook_bucket *bucket) {
    return bucket->index % gs_comm_world_size(bucket->comm);
}

static gs_status run_owner(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    (void)state;
    return gs_hook_post(work, bucket,
                        &(gs_collective){.kind = GS_REDUCE,
                                         .send = bucket->data,
                                         .recv = bucket->data,
                                         .count = bucket->count,
                                         .dtype = bucket->dtype,
                                         .root = owner_of(bucket)});
}

static gs_status finish_owner(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                              gs_deadline deadline) {
    (void)state, (void)deadline;
    bool owns = owner_of(bucket) == gs_comm_rank(bucket->comm);
    *result = (gs_hook_result){
        .is_partial = true, .segments = segments_of(bucket), .num_segments = owns ? 1 : 0};
    return gs_ok();
}

// Each bucket has one parameter, in the order of registration turned around.
static gs_status check_owned(const hooked *self, const gs_reduce_result *result, int64_t step) {
    double squares = 0;
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        const float *grad = gs_reducer_grads(self->reducer)[p];
        int owner = (int)(NUM_PARAMS - 1 - p) % self->env->world_size;
        for (size_t k = 0; k < count_of(p); k++) {
            float sum = 0;
            for (int r = 0; r < self->env->world_size; r++) sum += value_of(step, r, p, k);
            squares += (double)sum * (double)sum;
            if (owner == self->env->rank && grad[k] != sum)
                return gs_error(GS_INTERNAL, "element %zu of parameter %zu is %g, not %g", k, p,
                                (double)grad[k], (double)sum);
        }
    }
    if (fabs(result->grad_norm - sqrt(squares)) <= 1e-6 * sqrt(squares) && !result->num_unused)
        return gs_ok();
    return gs_error(GS_INTERNAL, "a norm of %.9g, not %.9g", result->grad_norm, sqrt(squares));
}

static gs_status run_owned_steps(hooked *self, gs_tally_carrier tally) {
    gs_status status = gs_ok();
    self->options.tally = tally;
    gs_reducer_destroy(self->reducer);
    self->reducer = NULL;
    GS_TRY(gs_reducer_create(&self->reducer, &self->options, self->rank.comm, soon()));
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
        gs_reduce_result result;
        status = gs_reducer_begin(self->reducer, step);
        if (!status.code) status = run_pass(self, step, value_of);
        if (!status.code) status = gs_reducer_finish(self->reducer, &result, soon());
        if (!status.code) status = check_owned(self, &result, step);
    }
    return status;
}

static gs_status body_owners(const gs_rank_env *env) {
    hooked self;
    gs_comm_hook hook = gs_hook_allreduce;
    hook.name = "owners";
    hook.run = run_owner;
    hook.finish = finish_owner;
    GS_TRY(open_hooked(&self, env, &hook, GS_HELPER_OFF));
    gs_status status = run_owned_steps(&self, GS_TALLY_APART);
    if (!status.code) {  // where every rank has to read the counts in each bucket
        gs_status refused = run_owned_steps(&self, GS_TALLY_IN_BUCKETS);
        if (!strstr(refused.message, "hook \"owners\""))
            status = gs_error(GS_INTERNAL, "partial results in buckets: %s", refused.message);
    }
    close_hooked(&self);
    return status;
}

static void buckets_that_one_rank_receives_need_the_tally_apart(void **state) {
    (void)state;
    for (int world_size = 2; world_size <= 3; world_size++)
        assert_ok(gs_ranks_run("owners", world_size, "", gs_deadline_in_seconds(60)));
}

// Rank 1 gives bucket 5 to another hook than rank 0.
static gs_status body_choices(const gs_rank_env *env) {
    hooked self;
    GS_TRY(open_hooked(&self, env, &gs_hook_allreduce, GS_HELPER_OFF));
    gs_reducer_destroy(self.reducer);
    const gs_hook_choice choices[] = {{.hook = &gs_hook_allreduce}, {.hook = &gs_hook_allreduce}};
    self.options.hooks = choices;
    self.options.num_hooks = 2;
    self.plans[0].buckets[5].hook = env->rank == 1;
    gs_status status = gs_reducer_create(&self.reducer, &self.options, self.rank.comm, soon());
    close_hooked(&self);
    if (strstr(status.message, "rank 1 against rank 0: bucket plan: bucket 5 has hook 1 against 0"))
        return gs_ok();
    return gs_error(GS_INTERNAL, "%s", status.message);
}

static void buckets_hooks_are_compared(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("choices", 3, "", gs_deadline_in_seconds(60)));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"three", body_three},
                                          {"killed", body_killed},
                                          {"failing", body_failing},
                                          {"carried", body_carried},
                                          {"orphaned", body_orphaned},
                                          {"elsewhere", body_elsewhere},
                                          {"owners", body_owners},
                                          {"choices", body_choices},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_phases_bring_exact_sums_whatever_the_timing),
        cmocka_unit_test(rank_that_dies_between_two_phases_is_named),
        cmocka_unit_test(phase_that_fails_is_named_on_every_rank),
        cmocka_unit_test(residuals_follow_steps_plans_resets_and_checkpoints),
        cmocka_unit_test(residuals_of_a_dead_rank_are_found_wherever_it_died),
        cmocka_unit_test(hook_of_another_library_is_waited_for_at_the_end),
        cmocka_unit_test(buckets_that_one_rank_receives_need_the_tally_apart),
        cmocka_unit_test(buckets_hooks_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
