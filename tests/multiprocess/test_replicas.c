// Several replicas in each process: against the serial sum, against as many processes, and wrong
// programs.
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "core/thread.h"
#include "gradsync/replicas/replicas.h"
#include "tests/support/asserts.h"
#include "tests/support/grad_case.h"
#include "tests/support/near.h"
#include "tests/support/soon.h"

#define MAX_WORLD 8
#define MAX_REPLICAS GS_REDUCE_MAX_INPUTS
#define NUM_STEPS 4
#define SAMPLES 100
#define FAULT_SECONDS 8.0  // what never comes takes as long

// One process with k replicas of a grad_case.
typedef struct replica_rank {
    const grad_case *model;
    int rank, world_size, num_replicas;
    gs_device *devices[MAX_REPLICAS];
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    gs_replicas *replicas;
    int64_t step;
    const char *wrong;  // what the culprit does wrong; "" for all others
} replica_rank;

static void close_rank(replica_rank *self) {
    gs_replicas_destroy(self->replicas);
    gs_reducer_destroy(self->reducer);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    for (int r = 0; r < self->num_replicas; r++) gs_device_close(self->devices[r]);
}

static gs_status connect_rank(replica_rank *self, const gs_rank_env *env,
                              const gs_replicas_options *options, gs_deadline deadline) {
    gs_reducer_options reducer;
    size_t bytes;
    GS_TRY(gs_replicas_reducer_options(&reducer, options));
    GS_TRY(gs_reducer_arena_bytes(&bytes, &reducer));
    GS_TRY(gs_arena_create(&self->arena, bytes));
    GS_TRY(gs_comm_create(&self->comm,
                          &(gs_comm_options){.backend = "shm",
                                             .rank = self->rank,
                                             .world_size = self->world_size,
                                             .generation = 1,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = env->exchange,
                                             .arena = self->arena,
                                             .device = self->devices[0],
                                             .helper = self->model->helper},
                          deadline));
    reducer.arena = self->arena;
    reducer.device = self->devices[0];
    GS_TRY(gs_reducer_create(&self->reducer, &reducer, self->comm, deadline));
    return gs_replicas_create(&self->replicas, options, self->reducer, self->comm, deadline);
}

static gs_status open_rank(replica_rank *self, const grad_case *model, const gs_rank_env *env,
                           int num_replicas, gs_replica_divisor divisor, gs_deadline deadline) {
    *self = (replica_rank){.model = model,
                           .rank = env->rank,
                           .world_size = env->world_size,
                           .num_replicas = num_replicas,
                           .wrong = ""};
    gs_reducer_options whole = {.params = model->params,
                                .num_params = model->num_params,
                                .plan = &model->plan,
                                .shards = {.num_shards = model->num_shards,
                                           .world_size = self->world_size,
                                           .rank = self->rank,
                                           .exact = model->exact},
                                .passes_per_shard = model->passes_per_shard,
                                .op = model->op,
                                .unused_is_error = model->unused_is_error};
    for (int r = 0; r < num_replicas; r++)
        GS_TRY(gs_device_open(&self->devices[r], "cpu",
                              &(gs_device_options){.num_threads = 1 + r % 2}));
    gs_status status = connect_rank(self, env,
                                    &(gs_replicas_options){.reducer = &whole,
                                                           .num_replicas = num_replicas,
                                                           .devices = self->devices,
                                                           .divisor = divisor},
                                    deadline);
    if (status.code) close_rank(self);
    return status;
}

static bool does(const replica_rank *self, int replica, const char *wrong) {
    return replica == self->num_replicas - 1 && self->step == 1 && strcmp(self->wrong, wrong) == 0;
}

static gs_status run_pass(replica_rank *self, int replica) {
    const grad_case *model = self->model;
    gs_replicas *replicas = self->replicas;
    gs_reducer_pass pass;
    GS_TRY(gs_replicas_begin_pass(replicas, replica, &pass,
                                  does(self, replica, "samples") ? SAMPLES - 1 : SAMPLES));
    size_t order[GRAD_CASE_MAX_PARAMS];
    grad_case_order(model, order, self->step, (uint64_t)(self->rank * MAX_REPLICAS + replica));
    for (size_t i = 0; i < model->num_params; i++) {
        size_t param = order[i];
        if (!grad_case_uses(model, param, self->step, pass.shard, pass.pass)) {
            // A parameter that this pass should have written anew holds anything.
            if (!pass.accumulate && gs_param_spec_count(&model->params[param]))
                ((float *)pass.grads[param])[0] = NAN;
            if (param % 2) GS_TRY(gs_replicas_mark_unused(replicas, replica, param));
            continue;
        }
        grad_case_write(model, pass.grads[param], param, self->step, pass.shard, pass.pass,
                        pass.accumulate);
        GS_TRY(gs_replicas_mark_ready(replicas, replica, param));
        if (param == 2 && does(self, replica, "mark-twice"))
            gs_replicas_ready_callback(gs_replicas_callback_ctx(replicas, replica), param);
        if (param == 2 && does(self, replica, "mark-unused-after"))
            gs_replicas_unused_callback(gs_replicas_callback_ctx(replicas, replica), param);
    }
    if (does(self, replica, "no-end")) return gs_ok();
    if (does(self, replica, "out-of-memory")) {
        gs_replicas_fail(replicas, replica, gs_error(GS_RESOURCE_EXHAUSTED, "no memory left"));
        return gs_ok();
    }
    return gs_replicas_end_pass(replicas, replica);
}

static int count_passes(const replica_rank *self, int replica) {
    gs_logical_shards process = {
        .num_shards = self->model->num_shards, .world_size = self->world_size, .rank = self->rank};
    gs_logical_shards shards = gs_replicas_shards(&process, self->num_replicas, replica);
    return gs_logical_shards_count(&shards) * self->model->passes_per_shard;
}

static gs_status run_passes(replica_rank *self, int replica) {
    if (does(self, replica, "never")) return gs_ok();
    int num_passes = count_passes(self, replica);
    for (int i = 0; i < num_passes; i++) GS_TRY(run_pass(self, replica));
    if (!does(self, replica, "pass-too-many")) return gs_ok();
    return run_pass(self, replica);
}

typedef struct replica_job {
    replica_rank *self;
    int replica;
    gs_thread *thread;
    gs_status status;
} replica_job;

static void run_thread(void *ctx, const atomic_bool *stopping) {
    (void)stopping;
    replica_job *job = ctx;
    job->status = run_passes(job->self, job->replica);
}

static gs_status run_replicas(replica_rank *self, gs_deadline deadline) {
    replica_job jobs[MAX_REPLICAS];
    for (int r = self->num_replicas - 1; r >= 0; r--) {
        jobs[r] = (replica_job){.self = self, .replica = r};
        if (r > 0) GS_TRY(gs_thread_start(&jobs[r].thread, "replica", run_thread, &jobs[r]));
    }
    run_thread(&jobs[0], NULL);
    gs_status status = gs_replicas_end(self->replicas, deadline);
    for (int r = 1; r < self->num_replicas; r++) gs_thread_stop(jobs[r].thread);
    for (int r = 0; r < self->num_replicas && !status.code; r++) status = jobs[r].status;
    return status;
}

static gs_status run_step(replica_rank *self, int64_t step, gs_reduce_result *result,
                          double seconds) {
    self->step = step;
    int64_t samples = 0;
    for (int r = 0; r < self->num_replicas; r++) samples += SAMPLES * count_passes(self, r);
    GS_TRY(gs_replicas_begin(self->replicas, step, samples));
    // Sooner than other ranks give this one up: they only know the rank that did not come.
    GS_TRY(run_replicas(self, gs_deadline_in_seconds(seconds / 3)));
    return gs_reducer_finish(self->reducer, result, gs_deadline_in_seconds(seconds));
}

// Sums in another order than the referee's: a few units in the last place of the largest summand.
static gs_status check_step(const replica_rank *self, const gs_reduce_result *result,
                            double factor) {
    const grad_case *model = self->model;
    size_t num_unused = 0;
    for (size_t p = 0; p < model->num_params; p++) {
        size_t count = gs_param_spec_count(&model->params[p]);
        float *expected = malloc(count * sizeof *expected);
        bool used = grad_case_reference(model, expected, p, self->step, self->world_size);
        const float *got = gs_reducer_grads(self->reducer)[p];
        size_t wrong = count;
        for (size_t i = 0; i < count; i++) {
            if (!(fabs(got[i] - factor * expected[i]) <=
                  3e-6 * fmax(1, fabs(factor * expected[i]))))
                wrong = i;
        }
        gs_status status = gs_ok();
        if (wrong < count)
            status = gs_error(GS_INTERNAL, "parameter %zu: element %zu is %.9g, expected %.9g", p,
                              wrong, (double)got[wrong], factor * (double)expected[wrong]);
        free(expected);
        GS_TRY(status);
        num_unused += !used;
        if (result->used[p] != used)
            return gs_error(GS_INTERNAL, "parameter %zu: used is %d", p, result->used[p]);
    }
    if (result->num_unused != num_unused)
        return gs_error(GS_INTERNAL, "%zu unused, expected %zu", result->num_unused, num_unused);
    int64_t samples = (int64_t)SAMPLES * model->num_shards * model->passes_per_shard;
    if (result->samples != samples)
        return gs_error(GS_INTERNAL, "samples: %lld", (long long)result->samples);
    return gs_ok();
}

static uint64_t digest_grads(const grad_case *model, void *const *grads) {
    uint64_t digest = 0;
    for (size_t p = 0; p < model->num_params; p++)
        digest = gs_hash64(grads[p], gs_param_spec_bytes(&model->params[p]), digest);
    return digest;
}

// "first_seed num_seeds shards replicas exact divisor"; replicas 0: plain ranks with a reducer
// alone.
typedef struct case_args {
    uint64_t first_seed;
    int num_seeds, num_shards, num_replicas, exact, divisor;
} case_args;

static case_args parse_args(const char *text) {
    case_args args = {0};
    if (sscanf(text, "%" SCNu64 " %d %d %d %d %d", &args.first_seed, &args.num_seeds,
               &args.num_shards, &args.num_replicas, &args.exact, &args.divisor) != 6)
        abort();
    return args;
}

static void note_digest(const gs_rank_env *env, uint64_t digest) {
    char text[32];
    snprintf(text, sizeof text, "%016" PRIx64, digest);
    gs_rank_note(env, text);
}

// After half of the steps another plan: the memory is laid out anew.
static gs_status change_plan(replica_rank *self) {
    const grad_case *model = self->model;
    gs_bucket_plan plan;
    GS_TRY(gs_bucket_plan_parity(&plan, model->params, model->num_params, 100, 5000, NULL));
    gs_status status = gs_reducer_set_plan(self->reducer, &plan, soon());
    gs_bucket_plan_release(&plan);
    return status;
}

static gs_status run_model(const gs_rank_env *env, const grad_case *model, const case_args *args,
                           uint64_t *digest) {
    replica_rank self;
    GS_TRY(open_rank(&self, model, env, args->num_replicas, (gs_replica_divisor)args->divisor,
                     soon()));
    bool by_processes = args->divisor == GS_DIVIDE_BY_PROCESSES && model->op == GS_MEAN;
    gs_status status = gs_ok();
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
        gs_reduce_result result;
        if (step == NUM_STEPS / 2) status = change_plan(&self);
        if (!status.code) status = run_step(&self, step, &result, 30);
        if (!status.code)
            status = check_step(&self, &result, by_processes ? args->num_replicas : 1);
        if (!status.code)
            *digest = *digest * 31 + digest_grads(model, gs_reducer_grads(self.reducer));
    }
    close_rank(&self);
    return gs_status_prefix(status, "seed %" PRIu64, model->seed);
}

static void init_model(grad_case *model, uint64_t seed, const case_args *args) {
    grad_case_init(model, seed, args->num_shards);
    model->exact = args->exact;
    model->op = seed % 4 == 0 ? GS_SUM : GS_MEAN;
}

static gs_status body_replicas(const gs_rank_env *env) {
    case_args args = parse_args(env->arg);
    uint64_t digest = 0;
    for (int i = 0; i < args.num_seeds; i++) {
        grad_case model;
        init_model(&model, args.first_seed + (uint64_t)i, &args);
        gs_status status = run_model(env, &model, &args, &digest);
        grad_case_release(&model);
        GS_TRY(status);
    }
    note_digest(env, digest);
    return gs_ok();
}

// The same models on ranks without replicas.
static gs_status body_ranks(const gs_rank_env *env) {
    case_args args = parse_args(env->arg);
    uint64_t digest = 0;
    for (int i = 0; i < args.num_seeds; i++) {
        grad_case model;
        init_model(&model, args.first_seed + (uint64_t)i, &args);
        grad_rank rank;
        GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
        for (int64_t step = 0; step < NUM_STEPS; step++) {
            gs_reduce_result result;
            GS_TRY(grad_rank_run_step(&rank, step, &result, soon()));
            digest = digest * 31 + digest_grads(&model, gs_reducer_grads(rank.reducer));
        }
        grad_rank_close(&rank);
        grad_case_release(&model);
    }
    note_digest(env, digest);
    return gs_ok();
}

// Runs a body in a world; what all ranks noted alike comes back.
static void run_world(char note[32], const char *body, int world_size, const case_args *args) {
    char text[96];
    snprintf(text, sizeof text, "%" PRIu64 " %d %d %d %d %d", args->first_seed, args->num_seeds,
             args->num_shards, args->num_replicas, args->exact, args->divisor);
    gs_ranks *ranks;
    gs_status statuses[MAX_WORLD];
    assert_ok(gs_ranks_start(&ranks, body, world_size, text, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(120)));
    for (int r = 0; r < world_size; r++) {
        if (statuses[r].code) fail_msg("%s: %d ranks: %s", text, world_size, statuses[r].message);
        assert_string_equal(gs_ranks_note(ranks, r), gs_ranks_note(ranks, 0));
    }
    snprintf(note, 32, "%s", gs_ranks_note(ranks, 0));
    gs_ranks_destroy(ranks);
}

static void replicas_reduce_like_the_serial_sum_with_equal_bits(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 3; world_size++) {
        for (int k = 1; k <= 4; k++) {
            char note[32];
            run_world(note, "replicas", world_size,
                      &(case_args){.first_seed = (uint64_t)(100 * world_size + 10 * k),
                                   .num_seeds = 4,
                                   .num_shards = world_size * k + k % 3,
                                   .num_replicas = k});
        }
    }
}

static void divisor_over_processes_is_the_sum_over_local_replicas(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 2; world_size++) {
        char note[32];
        run_world(note, "replicas", world_size,
                  &(case_args){.first_seed = 501,
                               .num_seeds = 3,
                               .num_shards = world_size * 3,
                               .num_replicas = 3,
                               .divisor = GS_DIVIDE_BY_PROCESSES});
    }
}

static void one_process_of_k_replicas_has_the_bits_of_k_processes(void **state) {
    (void)state;
    for (int k = 1; k <= 4; k++) {
        char one[32], many[32];
        case_args args = {.first_seed = (uint64_t)(600 + 10 * k),
                          .num_seeds = 4,
                          .num_shards = k + k % 2,
                          .num_replicas = k};
        run_world(one, "replicas", 1, &args);
        run_world(many, "ranks", k, &args);
        assert_string_equal(one, many);
    }
}

static void timing_does_not_change_a_bit(void **state) {
    (void)state;
    case_args args = {.first_seed = 700, .num_seeds = 3, .num_shards = 8, .num_replicas = 4};
    char first[32], again[32];
    run_world(first, "replicas", 2, &args);
    for (int i = 0; i < 4; i++) {
        run_world(again, "replicas", 2, &args);
        assert_string_equal(first, again);
    }
}

static void exact_mode_has_the_same_bits_for_ranks_and_replicas(void **state) {
    (void)state;
    case_args args = {.first_seed = 800, .num_seeds = 3, .num_shards = 7, .exact = true};
    const struct {
        int world_size, num_replicas;
    } cases[] = {{1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 3}, {3, 2}};
    char expected[32], got[32];
    run_world(expected, "ranks", 3, &args);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        args.num_replicas = cases[i].num_replicas;
        run_world(got, "replicas", cases[i].world_size, &args);
        assert_string_equal(got, expected);
    }
}

// Scalars and parameters without elements; most replicas leave parameters alone that others use.
static gs_status body_tiny(const gs_rank_env *env) {
    case_args args = parse_args(env->arg);
    grad_case model = {.seed = args.first_seed, .num_params = 5, .num_shards = args.num_shards};
    model.passes_per_shard = 2;
    model.exact = args.exact;
    model.unused_percent = 70;
    for (size_t p = 0; p < model.num_params; p++)
        model.params[p] = gs_param_spec_make(GS_FP32, 5, 0, "p%zu", p);
    model.params[1].shape[0] = model.params[3].shape[0] = 0;
    model.params[4].num_dims = 0;
    GS_TRY(gs_bucket_plan_parity(&model.plan, model.params, model.num_params, 0, 8, NULL));
    uint64_t digest = 0;
    gs_status status = run_model(env, &model, &args, &digest);
    grad_case_release(&model);
    note_digest(env, digest);
    return status;
}

static void as_many_replicas_as_can_be_reduce_models_of_next_to_nothing(void **state) {
    (void)state;
    const int cases[][2] = {{1, 1}, {1, GS_REDUCE_MAX_INPUTS}, {2, 33}};  // ranks, replicas
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int exact = 0; exact < 2; exact++) {
            char note[32];
            run_world(note, "tiny", cases[i][0],
                      &(case_args){.first_seed = 900 + i,
                                   .num_shards = cases[i][0] * cases[i][1] + 1,
                                   .num_replicas = cases[i][1],
                                   .exact = exact});
        }
    }
}

// Replica 1 does not mark its second parameter before replica 0 has seen the first one reduced over
// all ranks: a bucket that waited for the end of the pass would never come.
typedef struct overlap {
    gs_replicas *replicas;
    atomic_int num_marked;
    atomic_bool seen;
    gs_status status;
} overlap;

static gs_status wait_and_mark(overlap *both) {
    gs_reducer_pass pass;
    GS_TRY(gs_replicas_begin_pass(both->replicas, 1, &pass, 1));
    for (size_t i = 0; i < 500; i++) ((float *)pass.grads[1])[i] = 2;
    GS_TRY(gs_replicas_mark_ready(both->replicas, 1, 1));
    atomic_store(&both->num_marked, 1);
    gs_deadline deadline = soon();
    while (!atomic_load(&both->seen)) {
        if (gs_deadline_passed(deadline)) return gs_error(GS_DEADLINE_EXCEEDED, "nothing was seen");
        gs_sleep_ns(GS_NS_PER_MS / 10);
    }
    for (size_t i = 0; i < 500; i++) ((float *)pass.grads[0])[i] = 2;
    GS_TRY(gs_replicas_mark_ready(both->replicas, 1, 0));
    return gs_replicas_end_pass(both->replicas, 1);
}

static void run_overlap_thread(void *ctx, const atomic_bool *stopping) {
    (void)stopping;
    overlap *both = ctx;
    both->status = wait_and_mark(both);
}

static gs_status mark_and_look(replica_rank *self, overlap *both) {
    gs_reducer_pass pass;
    gs_deadline deadline = soon();
    GS_TRY(gs_replicas_begin_pass(self->replicas, 0, &pass, 1));
    for (size_t i = 0; i < 500; i++) ((float *)pass.grads[1])[i] = ((float *)pass.grads[0])[i] = 1;
    while (!atomic_load(&both->num_marked) && !gs_deadline_passed(deadline))
        gs_sleep_ns(GS_NS_PER_MS / 10);
    GS_TRY(gs_replicas_mark_ready(self->replicas, 0, 1));
    // (1 + 2) of each rank, a mean over both ranks' replicas.
    while (((float *)pass.grads[1])[499] != 1.5f || ((float *)pass.grads[1])[0] != 1.5f) {
        if (gs_deadline_passed(deadline))
            return gs_error(GS_DEADLINE_EXCEEDED, "bucket 0 was not reduced early");
        GS_TRY(gs_comm_progress(self->comm));
        gs_sleep_ns(GS_NS_PER_MS / 10);
    }
    atomic_store(&both->seen, true);
    GS_TRY(gs_replicas_mark_ready(self->replicas, 0, 0));
    return gs_replicas_end_pass(self->replicas, 0);
}

static gs_status body_overlap(const gs_rank_env *env) {
    grad_case model = {.num_params = 2, .num_shards = 2 * env->world_size, .passes_per_shard = 1};
    model.helper = GS_HELPER_OFF;
    for (size_t i = 0; i < 2; i++) model.params[i] = gs_param_spec_make(GS_FP32, 500, 0, "p%zu", i);
    GS_TRY(gs_bucket_plan_parity(&model.plan, model.params, 2, 4, 4, NULL));
    replica_rank self;
    GS_TRY(open_rank(&self, &model, env, 2, GS_DIVIDE_BY_REPLICAS, soon()));
    GS_TRY(gs_replicas_begin(self.replicas, 0, 2));
    overlap both = {.replicas = self.replicas};
    gs_thread *thread;
    GS_TRY(gs_thread_start(&thread, "replica", run_overlap_thread, &both));
    gs_status status = mark_and_look(&self, &both);
    if (status.code) atomic_store(&both.seen, true);
    gs_status ended = gs_replicas_end(self.replicas, soon());
    gs_thread_stop(thread);
    gs_reduce_result result;
    if (!status.code) status = ended;
    if (!status.code) status = both.status;
    if (!status.code) status = gs_reducer_finish(self.reducer, &result, soon());
    size_t num_ready;
    const size_t *order = gs_replicas_ready_order(self.replicas, &num_ready);
    if (!status.code && (num_ready != 2 || order[0] != 1 || order[1] != 0))
        status = gs_error(GS_INTERNAL, "ready order %zu, %zu", order[0], order[1]);
    close_rank(&self);
    grad_case_release(&model);
    return status;
}

static void buckets_travel_while_replicas_still_compute(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("overlap", 2, "", gs_deadline_in_seconds(60)));
}

// Constant gradients of 1; rank 1 has no data in step 1. arg: "divisor".
static gs_status run_round(replica_rank *self, const gs_join_round *round, double expected) {
    gs_reducer_pass pass;
    gs_reduce_result result;
    GS_TRY(gs_replicas_begin_uneven(self->replicas, self->step, round, 2));
    for (int r = 0; r < 2 && round->active; r++) {
        GS_TRY(gs_replicas_begin_pass(self->replicas, r, &pass, 1));
        for (size_t i = 0; i < 50; i++) ((float *)pass.grads[0])[i] = 1;
        GS_TRY(gs_replicas_mark_ready(self->replicas, r, 0));
        GS_TRY(gs_replicas_end_pass(self->replicas, r));
    }
    if (round->active) GS_TRY(gs_replicas_end(self->replicas, soon()));
    GS_TRY(gs_reducer_finish(self->reducer, &result, soon()));
    double got = (double)((float *)gs_reducer_grads(self->reducer)[0])[49];
    if (is_near(got, expected, (gs_near){.absolute = 1e-6}) &&
        result.active_ranks == round->num_active)
        return gs_ok();
    return gs_error(GS_INTERNAL, "step %d: %g of %d ranks, expected %g", (int)self->step, got,
                    result.active_ranks, expected);
}

static gs_status body_uneven(const gs_rank_env *env) {
    bool by_active = strcmp(env->arg, "active") == 0;
    grad_case model = {.num_params = 1, .num_shards = 4, .passes_per_shard = 1};
    model.params[0] = gs_param_spec_make(GS_FP32, 50, 0, "p");
    GS_TRY(gs_bucket_plan_parity(&model.plan, model.params, 1, 4, 4, NULL));
    replica_rank self;
    GS_TRY(open_rank(&self, &model, env, 2, GS_DIVIDE_BY_REPLICAS, soon()));
    gs_status status = gs_ok();
    for (self.step = 0; self.step < 3 && !status.code; self.step++) {
        bool alone = self.step == 1;
        gs_join_round round = {.num_active = alone ? 1 : 2,
                               .source = alone ? 0 : 1,
                               .active = !alone || env->rank == 0,
                               .divisor = by_active ? GS_DIVIDE_BY_ACTIVE : GS_DIVIDE_BY_INITIAL};
        status = run_round(&self, &round, alone && !by_active ? 0.5 : 1);
    }
    close_rank(&self);
    grad_case_release(&model);
    return status;
}

static void rank_without_data_shadows_the_replicas_of_the_others(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("uneven", 2, "initial", gs_deadline_in_seconds(60)));
    assert_ok(gs_ranks_run("uneven", 2, "active", gs_deadline_in_seconds(60)));
}

// Wrong programs: rank 1's last replica is the culprit, in step 1.
#define FAULT_WORLD 2

static gs_status body_wrong(const gs_rank_env *env) {
    int num_replicas = 2;
    grad_case model = {.seed = 5, .num_params = 4, .num_shards = 4, .passes_per_shard = 1};
    for (size_t i = 0; i < model.num_params; i++)
        model.params[i] = gs_param_spec_make(GS_FP32, 10 + (int64_t)i, 100, "fc%zu.weight", i);
    if (strcmp(env->arg, "forgotten") == 0) {
        model.unused_is_error = true;
        model.unused_percent = 100;
    }
    bool is_culprit = env->rank == 1;
    if (strcmp(env->arg, "other-number") == 0) {
        model.num_shards = 8;
        if (is_culprit) num_replicas = 3;
    }
    bool divides = strcmp(env->arg, "other-divisor") == 0 && is_culprit;
    GS_TRY(gs_bucket_plan_parity(&model.plan, model.params, model.num_params, 4000, 8000, NULL));
    replica_rank self;
    gs_status status = open_rank(&self, &model, env, num_replicas,
                                 divides ? GS_DIVIDE_BY_PROCESSES : GS_DIVIDE_BY_REPLICAS,
                                 gs_deadline_in_seconds(FAULT_SECONDS));
    if (!status.code) {
        if (is_culprit) self.wrong = env->arg;
        for (int64_t step = 0; step < 3 && !status.code; step++) {
            gs_reduce_result result;
            status = run_step(&self, step, &result, FAULT_SECONDS);
        }
        close_rank(&self);
    }
    grad_case_release(&model);
    return status;
}

static void expect_words(const char *wrong, const char *words) {
    gs_ranks *ranks;
    gs_status statuses[FAULT_WORLD];
    assert_ok(gs_ranks_start(&ranks, "wrong", FAULT_WORLD, wrong, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    gs_ranks_destroy(ranks);
    for (int r = 0; r < FAULT_WORLD; r++) {
        if (!statuses[r].code || !strstr(statuses[r].message, words))
            fail_msg("%s: rank %d: \"%s\", expected \"%s\"", wrong, r, statuses[r].message, words);
    }
}

static void replica_that_marks_twice_is_named_on_every_rank(void **state) {
    (void)state;
    expect_words("mark-twice",
                 "rank 1, step 1, replica 1: parameter 2 \"fc2.weight\" marked ready twice");
    expect_words("mark-unused-after",
                 "rank 1, step 1, replica 1: parameter 2 \"fc2.weight\" marked ready twice");
}

static void replica_that_does_not_end_its_pass_is_named_on_every_rank(void **state) {
    (void)state;
    expect_words("no-end", "rank 1, step 1: replica 1 marked everything and did not end pass 1");
}

static void replica_that_never_comes_is_named_on_every_rank(void **state) {
    (void)state;
    expect_words("never", "rank 1, step 1: replica 1 began 0 of 1 passes");
}

static void replica_with_a_pass_too_many_is_named_on_every_rank(void **state) {
    (void)state;
    expect_words("pass-too-many",
                 "rank 1, step 1, replica 1: all passes of the step have been run");
}

static void replica_that_fails_ends_the_step_on_every_rank(void **state) {
    (void)state;
    expect_words("out-of-memory", "rank 1, replica 1: no memory left");
}

static void samples_that_were_not_announced_are_named(void **state) {
    (void)state;
    expect_words("samples", "rank 1, step 1: passes of all replicas had 199 samples");
}

static void parameter_that_no_replica_uses_can_be_an_error(void **state) {
    (void)state;
    expect_words("forgotten", "step 0: parameter 0 \"fc0.weight\" was used by no rank");
}

static void ranks_must_have_as_many_replicas_and_one_divisor(void **state) {
    (void)state;
    expect_words("other-number", "rank 1 against rank 0: replicas 3 against 2");
    expect_words("other-divisor", "rank 1 against rank 0: divisor 1 against 0");
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"replicas", body_replicas},
                                          {"ranks", body_ranks},
                                          {"tiny", body_tiny},
                                          {"overlap", body_overlap},
                                          {"uneven", body_uneven},
                                          {"wrong", body_wrong},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_reduce_like_the_serial_sum_with_equal_bits),
        cmocka_unit_test(divisor_over_processes_is_the_sum_over_local_replicas),
        cmocka_unit_test(one_process_of_k_replicas_has_the_bits_of_k_processes),
        cmocka_unit_test(timing_does_not_change_a_bit),
        cmocka_unit_test(exact_mode_has_the_same_bits_for_ranks_and_replicas),
        cmocka_unit_test(as_many_replicas_as_can_be_reduce_models_of_next_to_nothing),
        cmocka_unit_test(buckets_travel_while_replicas_still_compute),
        cmocka_unit_test(rank_without_data_shadows_the_replicas_of_the_others),
        cmocka_unit_test(replica_that_marks_twice_is_named_on_every_rank),
        cmocka_unit_test(replica_that_does_not_end_its_pass_is_named_on_every_rank),
        cmocka_unit_test(replica_that_never_comes_is_named_on_every_rank),
        cmocka_unit_test(replica_with_a_pass_too_many_is_named_on_every_rank),
        cmocka_unit_test(replica_that_fails_ends_the_step_on_every_rank),
        cmocka_unit_test(samples_that_were_not_announced_are_named),
        cmocka_unit_test(parameter_that_no_replica_uses_can_be_an_error),
        cmocka_unit_test(ranks_must_have_as_many_replicas_and_one_divisor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
