// Gradients that live in a few windows: buckets take turns in them, and what stays of a reduced one
// is this rank's part. Beside it the same steps with all buckets on every rank: the same bits, for
// every world. And what must not be a deadlock is an error that names who is missing.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/segment.h"
#include "gradsync/comm/device_arena.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/sharded/shard_reduce.h"
#include "gradsync/sharded/shards.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/ranks.h"

#define NUM_PARAMS 12
#define MAX_ELEMENTS 6000
#define MAX_WORLD 8
#define NUM_STEPS 4
#define SMALL_BYTES 1200  // of a bucket
#define DEADLINE gs_deadline_in_seconds(60)

// Odd sizes, none, and one that is larger than all others. In plan order: the last one first.
static const int64_t counts[NUM_PARAMS] = {1500, 40, 1, 300, 0, 77, 600, 16, 5, 999, 250, 64};
#define FIRST 0        // its bucket is the last
#define UNUSED 3       // by anybody, in odd steps
#define USED_BY_ONE 7  // the last rank
#define POISONED 9     // its last element is infinite, in the last step

typedef struct way {
    const char *name;
    int num_windows;
    gs_reducer_op op;
    gs_dtype wire_dtype;
    bool static_graph, uneven;
    bool tied;       // the first parameter is opened first and final last
    bool copies;     // gradients are marked from memory elsewhere, and nobody opens them
    bool says_late;  // that a parameter is unused follows from the end of the pass: the first one
    bool poisons;
    int passes;      // of a step, each reduced; 0: 1
    bool on_device;  // also where it takes long
} way;

static const way ways[] = {
    {"mean", 3, .poisons = true, .on_device = true},
    {"one window", 1, .op = GS_SUM, .uneven = true},
    {"samples", 2, .op = GS_SAMPLE_MEAN, .uneven = true},
    {"static graph", 2, .static_graph = true, .uneven = true, .on_device = true},
    {"tied", 2, .op = GS_SAMPLE_MEAN, .tied = true, .static_graph = true},
    {"copies", 2, .copies = true, .says_late = true, .on_device = true},
    {"fp16", 4, .wire_dtype = GS_FP16, .says_late = true},
    {"more than buckets", 64, .op = GS_MEAN},
    {"passes", 2, .op = GS_SUM, .passes = 3},
    {"passes of ranks without data", 1, .op = GS_SUM, .uneven = true, .passes = 3},
    {"passes of a tied one", 1, .op = GS_SUM, .tied = true, .passes = 2, .copies = true,
     .on_device = true},
};
#define NUM_WAYS (sizeof ways / sizeof *ways)

typedef struct rank_state {
    int rank, world_size;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan, other_plan;
    bool opens_early[NUM_PARAMS];
    float *grad;  // the device's: a gradient that lies elsewhere
} rank_state;

typedef struct stepper {
    rank_state *self;
    const way *how;
    gs_shards *shards;  // NULL: all is on every rank
    gs_hook_choice choice;
    gs_reducer *reducer;
} stepper;

// What a step leaves.
typedef struct left {
    gs_reduce_result result;
    uint8_t used[NUM_PARAMS];
    float grads[MAX_ELEMENTS];
} left;

static gs_reducer_options options_for(stepper *self) {
    const rank_state *rank = self->self;
    const way *how = self->how;
    self->choice = (gs_hook_choice){.hook = gs_shard_reduce_hook(), .user = self->shards};
    gs_reducer_options options = {.params = rank->params,
                                  .num_params = NUM_PARAMS,
                                  .plan = &rank->plan,
                                  .shards = {.num_shards = rank->world_size,
                                             .world_size = rank->world_size,
                                             .rank = rank->rank},
                                  .passes_per_shard = self->shards ? how->passes : 1,
                                  .op = how->op,
                                  .static_graph = how->static_graph,
                                  .wire_dtype = how->wire_dtype,
                                  .arena = rank->arena,
                                  .device = rank->device};
    if (!self->shards) return options;
    options.hooks = &self->choice;
    options.num_hooks = 1;
    options.tally = GS_TALLY_APART;
    options.windows = (gs_window_options){.num_windows = how->num_windows,
                                          .wait_seconds = 20,
                                          .opens_early = how->tied ? rank->opens_early : NULL};
    return options;
}

static gs_status create_shards(gs_shards **out, const rank_state *rank) {
    return gs_shards_create(out, &(gs_shards_options){.plan = &rank->plan,
                                                      .params = rank->params,
                                                      .num_params = NUM_PARAMS,
                                                      .world_size = rank->world_size});
}

static gs_status open_stepper(stepper *self, rank_state *rank, const way *how, bool in_windows) {
    *self = (stepper){.self = rank, .how = how};
    if (in_windows) GS_TRY(create_shards(&self->shards, rank));
    const gs_reducer_options options = options_for(self);
    return gs_reducer_create(&self->reducer, &options, rank->comm, DEADLINE);
}

static void close_stepper(stepper *self) {
    gs_reducer_destroy(self->reducer);
    gs_shards_destroy(self->shards);
}

static bool is_used(const stepper *self, size_t param, int64_t step) {
    size_t unused = self->how->says_late ? FIRST : UNUSED;
    bool changes = !self->how->static_graph;
    if (param == unused) return changes && step % 2 == 0;
    return param != USED_BY_ONE || self->self->rank == self->self->world_size - 1;
}

static void write_grad(stepper *self, const gs_reducer_pass *pass, size_t param, int64_t step) {
    static float grad[MAX_ELEMENTS];
    float factor = self->how->copies ? 1 : pass->grad_factor;
    for (int64_t i = 0; i < counts[param]; i++) {
        int noise = (int)((i * 7 + (int64_t)param + step) % 23) - 11;
        grad[i] = (float)noise / 8 * (1 + (float)self->self->rank / 3) * factor;
    }
    if (self->how->poisons && step == NUM_STEPS - 1 && param == POISONED)
        grad[counts[param] - 1] = INFINITY;
    device_memory_write(self->self->device,
                        self->how->copies ? self->self->grad : pass->grads[param], grad,
                        (size_t)counts[param] * sizeof *grad);
}

static gs_status mark(stepper *self, const gs_reducer_pass *pass, size_t param, int64_t step) {
    if (!is_used(self, param, step)) return gs_ok();
    if (self->how->copies) {
        write_grad(self, pass, param, step);
        return gs_reducer_mark_from(self->reducer, param, self->self->grad, GS_FP32);
    }
    GS_TRY(gs_reducer_open_grad(self->reducer, param));
    write_grad(self, pass, param, step);
    return gs_reducer_mark_ready(self->reducer, param);
}

static gs_status run_pass(stepper *self, int64_t step) {
    gs_reducer_pass pass;
    bool tied = self->how->tied;
    GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, 2 + self->self->rank));
    // Early, as layers that are left out: long before their buckets have a window.
    for (size_t i = 0; i < NUM_PARAMS; i++)
        if (!is_used(self, i, step) && !(self->how->says_late && i == FIRST))
            GS_TRY(gs_reducer_mark_unused(self->reducer, i));
    if (tied) GS_TRY(gs_reducer_open_grad(self->reducer, FIRST));
    if (tied && self->how->static_graph) {
        write_grad(self, &pass, FIRST, step);
        GS_TRY(gs_reducer_mark_ready(self->reducer, FIRST));  // not for the last time
    }
    for (size_t i = NUM_PARAMS; i-- > 0;) GS_TRY(mark(self, &pass, i, step));
    return gs_reducer_end_pass(self->reducer);
}

static void take(left *to, const stepper *self) {
    float *next = to->grads;
    for (size_t i = 0; i < NUM_PARAMS; next += counts[i], i++) {
        if (!self->shards)
            device_memory_read(self->self->device, next, gs_reducer_grads(self->reducer)[i],
                               (size_t)counts[i] * sizeof *next);
    }
    if (!self->shards) return;
    size_t num_segments;
    const gs_segment *segments = gs_shards_of_rank(self->shards, self->self->rank, &num_segments);
    for (size_t s = 0; s < num_segments; s++) {
        const gs_segment *own = &segments[s];
        next = to->grads;
        for (size_t i = 0; i < own->tensor; i++) next += counts[i];
        device_memory_read(self->self->device, next + own->first,
                           (const char *)gs_reducer_grads(self->reducer)[own->tensor] +
                               own->first * sizeof *next,
                           own->count * sizeof *next);
    }
}

// A step's passes have numbers of their own, by which gradients and what is used differ.
static gs_status finish_step(left *to, stepper *self) {
    GS_TRY(gs_reducer_finish(self->reducer, &to->result, DEADLINE));
    memcpy(to->used, to->result.used, NUM_PARAMS);
    take(to, self);
    return gs_reducer_commit(self->reducer);
}

// In odd steps rank 0 has no data, but for the first one, from which a static graph learns.
static gs_join_round round_of(const stepper *self, int64_t step) {
    const rank_state *rank = self->self;
    bool uneven = self->how->uneven && step % 2 && rank->world_size > 1;
    return (gs_join_round){.num_active = rank->world_size - uneven,
                           .source = rank->world_size - 1,
                           .active = !uneven || rank->rank != 0};
}

static gs_status run_step(left *to, stepper *self, int64_t step) {
    int passes = self->how->passes ? self->how->passes : 1;
    gs_join_round round = round_of(self, step);
    GS_TRY(gs_reducer_begin_uneven(self->reducer, step, &round));
    for (int p = 0; p < passes && round.active; p++) GS_TRY(run_pass(self, step * passes + p));
    return finish_step(to, self);
}

// What a step of several passes is to leave: each pass a step of its own, and their sum.
static gs_status run_passes_apart(left *to, stepper *self, int64_t step) {
    left *one = calloc(1, sizeof *one);
    double squares = 0;
    gs_join_round round = round_of(self, step);
    gs_status status = gs_ok();
    for (int p = 0; p < self->how->passes && !status.code; p++) {
        int64_t number = step * self->how->passes + p;
        status = gs_reducer_begin_uneven(self->reducer, number, &round);
        if (!status.code && round.active) status = run_pass(self, number);
        if (!status.code) status = finish_step(one, self);
        to->result.samples += one->result.samples;
        for (size_t i = 0; i < NUM_PARAMS; i++) to->used[i] |= one->used[i];
        for (size_t i = 0; i < MAX_ELEMENTS; i++) to->grads[i] += one->grads[i];
    }
    for (size_t i = 0; i < NUM_PARAMS; i++) to->result.num_unused += !to->used[i];
    for (size_t i = 0; i < MAX_ELEMENTS; i++)
        squares += (double)to->grads[i] * (double)to->grads[i];
    to->result.grad_norm = sqrt(squares);
    free(one);
    return status;
}

// A GPU's library adds up as it likes.
static bool is_same(float whole, float cut, const way *how) {
    if (test_device_is_host() || !isfinite(whole)) return memcmp(&whole, &cut, sizeof cut) == 0;
    return fabsf(whole - cut) <= (how->wire_dtype ? 2e-3f : 1e-5f) * fmaxf(1, fabsf(whole));
}

static gs_status compare(const left *whole, const left *cut, const stepper *self) {
    const gs_reduce_result *a = &whole->result, *b = &cut->result;
    size_t num_segments;
    const gs_segment *segments = gs_shards_of_rank(self->shards, self->self->rank, &num_segments);
    for (size_t s = 0; s < num_segments; s++) {
        size_t at = segments[s].first;
        for (size_t i = 0; i < segments[s].tensor; i++) at += (size_t)counts[i];
        for (size_t i = at; i < at + segments[s].count; i++)
            if (!is_same(whole->grads[i], cut->grads[i], self->how))
                return gs_error(GS_INTERNAL, "parameter %zu, element %zu: %a, not %a",
                                segments[s].tensor, segments[s].first + i - at,
                                (double)cut->grads[i], (double)whole->grads[i]);
    }
    if (memcmp(whole->used, cut->used, NUM_PARAMS) != 0 || a->num_unused != b->num_unused)
        return gs_error(GS_INTERNAL, "%zu unused, not %zu", b->num_unused, a->num_unused);
    if (a->samples != b->samples || a->nonfinite != b->nonfinite)
        return gs_error(GS_INTERNAL, "%lld samples, not %lld; nonfinite %d", (long long)b->samples,
                        (long long)a->samples, b->nonfinite);
    if (!a->nonfinite && !(fabs(a->grad_norm - b->grad_norm) <=
                           (test_device_is_host() ? 1e-6 : 1e-3) * a->grad_norm))
        return gs_error(GS_INTERNAL, "norm %a, not %a", b->grad_norm, a->grad_norm);
    return gs_ok();
}

static gs_status run_steps(left *to, stepper *self, const left *whole) {
    for (int64_t step = 0; step < NUM_STEPS; step++) {
        bool apart = !self->shards && self->how->passes;
        gs_status status =
            apart ? run_passes_apart(&to[step], self, step) : run_step(&to[step], self, step);
        GS_TRY(gs_status_prefix(status, "step %lld", (long long)step));
        if (whole)
            GS_TRY(gs_status_prefix(compare(&whole[step], &to[step], self), "step %lld",
                                    (long long)step));
    }
    return gs_ok();
}

// The same steps, whole and in windows, by reducers of one communicator.
static gs_status compare_way(rank_state *rank, const way *how) {
    left *whole = calloc(NUM_STEPS, sizeof *whole), *cut = calloc(NUM_STEPS, sizeof *cut);
    stepper self;
    way flat = *how;
    flat.copies = false;
    gs_status status = open_stepper(&self, rank, &flat, false);
    if (!status.code) status = gs_status_prefix(run_steps(whole, &self, NULL), "whole");
    close_stepper(&self);
    if (!status.code) status = open_stepper(&self, rank, how, true);
    if (!status.code) status = run_steps(cut, &self, whole);
    close_stepper(&self);
    free(whole);
    free(cut);
    return status;
}

static gs_status connect(rank_state *self, const gs_rank_env *env, uint32_t generation) {
    int world_size = env->world_size;
    return gs_comm_create(&self->comm,
                          &(gs_comm_options){.backend = world_size > 1 ? "auto" : "self",
                                             .rank = env->rank,
                                             .world_size = world_size,
                                             .generation = generation,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = env->exchange,
                                             .arena = self->arena,
                                             .device = self->device},
                          DEADLINE);
}

// What a world of `world_size` ranks needs: in windows more where there are fewer ranks.
static gs_status measure_arena(size_t *bytes, const rank_state *rank, const way *how,
                               int world_size) {
    rank_state small = *rank;
    stepper probe = {.self = &small, .how = how};
    small.rank = 0;
    small.world_size = world_size;
    if (how->num_windows) GS_TRY(create_shards(&probe.shards, &small));
    const gs_reducer_options options = options_for(&probe);
    gs_status status = gs_reducer_arena_bytes(bytes, &options);
    gs_shards_destroy(probe.shards);
    return status;
}

static gs_status open_rank(rank_state *self, const gs_rank_env *env) {
    *self = (rank_state){.rank = env->rank, .world_size = env->world_size};
    self->opens_early[FIRST] = true;
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        self->params[p] = gs_param_spec_make(GS_FP32, 1, 0, "p%zu", p);
        self->params[p].shape[0] = counts[p];
    }
    GS_TRY(gs_bucket_plan_parity(&self->plan, self->params, NUM_PARAMS, 600, SMALL_BYTES, NULL));
    GS_TRY(gs_bucket_plan_parity(&self->other_plan, self->params, NUM_PARAMS, 3000, 3000, NULL));
    GS_TRY(test_device_try(&self->device, 1));
    self->grad = device_memory_alloc(self->device, MAX_ELEMENTS * sizeof *self->grad);
    size_t bytes, whole_bytes;
    GS_TRY(measure_arena(&bytes, self, &ways[0], 2));
    GS_TRY(measure_arena(&whole_bytes, self, &(way){.name = "whole"}, 2));
    GS_TRY(gs_arena_create_on(&self->arena, 4 * (bytes > whole_bytes ? bytes : whole_bytes),
                              self->device));
    return connect(self, env, 1);
}

static void close_rank(rank_state *self) {
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    device_memory_free(self->device, self->grad);
    test_device_close(self->device);
    gs_bucket_plan_release(&self->plan);
    gs_bucket_plan_release(&self->other_plan);
}

static gs_status body_compare(const gs_rank_env *env) {
    rank_state *self = calloc(1, sizeof *self);
    gs_status status = open_rank(self, env);
    for (size_t i = 0; i < NUM_WAYS && !status.code; i++) {
        if (!test_device_is_host() && !ways[i].on_device) continue;
        status = gs_status_prefix(compare_way(self, &ways[i]), "%s", ways[i].name);
    }
    close_rank(self);
    free(self);
    return status;
}

static void windows_leave_the_bits_of_whole_buckets(void **state) {
    (void)state;
    static const int worlds[] = {2, 1, 3, 4, 5, 8};
    if (!test_device_is_there()) skip();
    for (size_t i = 0; i < (test_device_is_host() ? sizeof worlds / sizeof *worlds : 1); i++)
        assert_ok(gs_ranks_run("compare", worlds[i], "", gs_deadline_in_seconds(120)));
}

// ---- other plans, other communicators

static gs_status use_plan(stepper *self, const gs_bucket_plan *plan) {
    GS_TRY(gs_shards_redo(self->shards, self->self->world_size, plan, NULL));
    return gs_reducer_set_plan(self->reducer, plan, DEADLINE);
}

// The last rank has enough while the others wait for windows.
static gs_status leave_step(stepper *self, const gs_rank_env *env) {
    gs_reducer_pass pass;
    gs_reduce_result result;
    int here = 1, all[3];
    GS_TRY(gs_rank_exchange(env->exchange, "steps are done", NULL, 0, &here, sizeof here, all,
                            DEADLINE));
    GS_TRY(gs_reducer_begin(self->reducer, 7));
    GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, 1));
    if (env->rank == 2) {
        gs_comm_abort(self->self->comm, "rank 2 has had enough");
        return gs_ok();
    }
    gs_status status = gs_ok();
    for (size_t i = NUM_PARAMS; i-- > 0 && !status.code;) status = mark(self, &pass, i, 0);
    if (status.code != GS_ABORTED || !strstr(status.message, "had enough"))
        return gs_error(GS_INTERNAL, "waiting for a window said: %d \"%s\"", status.code,
                        status.message);
    gs_status sticks = gs_reducer_finish(self->reducer, &result, DEADLINE);
    if (strcmp(sticks.message, status.message) != 0)
        return gs_error(GS_INTERNAL, "finish said: %s", sticks.message);
    return gs_ok();
}

static gs_status reset(rank_state *rank, stepper *self, const gs_rank_env *env) {
    gs_comm *old = rank->comm;
    GS_TRY(gs_comm_wait_ended(old, DEADLINE));
    GS_TRY(connect(rank, env, 2));
    gs_status status = gs_reducer_reset(self->reducer, rank->comm, DEADLINE);
    gs_comm_destroy(old);
    return status;
}

static gs_status body_change(const gs_rank_env *env) {
    static const way how = {"mean", 2, .op = GS_SUM};
    rank_state *rank = calloc(1, sizeof *rank);
    left *whole = calloc(NUM_STEPS, sizeof *whole), *cut = calloc(NUM_STEPS, sizeof *cut);
    stepper self = {0}, flat = {0};
    gs_status status = open_rank(rank, env);
    if (!status.code) status = open_stepper(&self, rank, &how, true);
    if (!status.code) status = run_steps(cut, &self, NULL);
    if (!status.code) status = leave_step(&self, env);
    if (!status.code) status = reset(rank, &self, env);
    if (!status.code) status = run_steps(cut, &self, NULL);
    // Whole, and by another plan and back.
    if (!status.code) status = open_stepper(&flat, rank, &how, false);
    if (!status.code) status = run_steps(whole, &flat, NULL);
    close_stepper(&flat);
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++)
        status = gs_status_prefix(compare(&whole[step], &cut[step], &self), "behind reset");
    if (!status.code) status = use_plan(&self, &rank->other_plan);
    if (!status.code) status = gs_status_prefix(run_steps(cut, &self, whole), "other plan");
    if (!status.code) status = use_plan(&self, &rank->plan);
    if (!status.code) status = gs_status_prefix(run_steps(cut, &self, whole), "old plan");
    close_stepper(&self);
    close_rank(rank);
    free(rank);
    free(whole);
    free(cut);
    return status;
}

static void windows_go_on_behind_a_reset_and_by_another_plan(void **state) {
    (void)state;
    if (!test_device_is_host()) skip();  // the library names nobody
    assert_ok(gs_ranks_run("change", 3, "", gs_deadline_in_seconds(120)));
}

// ---- what cannot be

// Rank 1 writes its last bucket before all others.
static gs_status write_in_wrong_order(stepper *self) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(self->reducer, 0));
    GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, 1));
    if (self->self->rank == 1) GS_TRY(mark(self, &pass, FIRST, 0));
    for (size_t i = NUM_PARAMS; i-- > 0;) GS_TRY(mark(self, &pass, i, 0));
    return gs_reducer_end_pass(self->reducer);
}

static gs_status body_wrong(const gs_rank_env *env) {
    static const way how = {"mean", 2, .op = GS_MEAN};
    rank_state *rank = calloc(1, sizeof *rank);
    stepper self = {0};
    gs_reduce_result result;
    gs_status status = open_rank(rank, env);
    self = (stepper){.self = rank, .how = &how};
    if (!status.code) status = create_shards(&self.shards, rank);
    gs_reducer_options options = options_for(&self);
    if (strcmp(env->arg, "late") == 0) options.windows.wait_seconds = 0.2;
    if (!status.code) status = gs_reducer_create(&self.reducer, &options, rank->comm, DEADLINE);
    if (!status.code && strcmp(env->arg, "order") == 0) {
        status = write_in_wrong_order(&self);
    } else if (!status.code) {
        if (env->rank == 1 && strcmp(env->arg, "dies") == 0) raise(SIGKILL);
        gs_rank_note(env, "steps");
        if (env->rank == 1) pause();
        status = gs_reducer_begin(self.reducer, 0);
        if (!status.code) status = run_pass(&self, 0);
    }
    // What a pass that went wrong said is what the step says.
    gs_status sticks = self.reducer ? gs_reducer_finish(self.reducer, &result, DEADLINE) : status;
    if (status.code && strcmp(sticks.message, status.message) != 0)
        status = gs_error(GS_INTERNAL, "finish: %s", sticks.message);
    gs_rank_note(env, "left");
    close_stepper(&self);
    close_rank(rank);
    free(rank);
    return status;
}

static void expect(const char *arg, gs_code code, const char *words, const char *more) {
    gs_ranks *ranks;
    gs_status statuses[3];
    assert_ok(gs_ranks_start(&ranks, "wrong", 3, arg, NULL));
    for (int r = 0; r < 3; r += 2)
        assert_ok(gs_ranks_wait_note(ranks, r, "left", gs_deadline_in_seconds(60)));
    if (strcmp(arg, "order") != 0) gs_ranks_signal(ranks, 1, SIGKILL);
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    for (int r = 0; r < 3; r += 2) {
        if (!statuses[r].code || (code && statuses[r].code != code) ||
            !strstr(statuses[r].message, words) || !strstr(statuses[r].message, more))
            fail_msg("%s: rank %d: %d \"%s\"", arg, r, statuses[r].code, statuses[r].message);
    }
    gs_ranks_destroy(ranks);
}

static void gradients_out_of_order_are_named_on_every_rank(void **state) {
    (void)state;
    if (!test_device_is_host()) skip();  // the library closes its connections first
    expect("order", GS_ABORTED, "rank 1, step 0: parameter 0 \"p0\" is written, but its window is",
           "\" of bucket 0 is not final");
}

static void a_window_waits_for_a_late_rank_until_its_deadline(void **state) {
    (void)state;
    if (!test_device_is_host()) skip();  // the library names nobody
    expect("late", 0, "bucket 0", "rank 1");
}

static void a_window_does_not_wait_for_a_rank_that_died(void **state) {
    (void)state;
    if (!test_device_is_host()) skip();  // the library names nobody
    expect("dies", GS_ABORTED, "rank 1 died", "");
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"compare", body_compare}, {"change", body_change}, {"wrong", body_wrong}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_leave_the_bits_of_whole_buckets),
        cmocka_unit_test(windows_go_on_behind_a_reset_and_by_another_plan),
        cmocka_unit_test(gradients_out_of_order_are_named_on_every_rank),
        cmocka_unit_test(a_window_waits_for_a_late_rank_until_its_deadline),
        cmocka_unit_test(a_window_does_not_wait_for_a_rank_that_died),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
