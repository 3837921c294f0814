// A program of one's own, on public headers alone, goes on when a rank is lost: three processes
// train; rank 0 is killed in the middle of a step, or frozen; the others wait until it has ended,
// or leave their memory to it, and a fresh process takes its place with nothing in hand. What they
// come to has the bits of a run that nothing happened to.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gradsync/extras.h"
#include "gradsync/gradsync.h"
#include "tests/support/asserts.h"
#include "tests/support/file_exchange.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"
#include "tests/support/temp_dir.h"

enum { WORLD = 3, NUM_PARAMS = 3, STEPS = 12, FAULT_STEP = 5, LARGEST = 40000, SAMPLES = 4 };
static const int counts[NUM_PARAMS] = {LARGEST, 300, 7};

// What a run is told: "DIR PLACE HELPER".
typedef struct plan_of_run {
    char dir[200];
    char place[20];  // where rank 0 is lost
    int helper;
} plan_of_run;

typedef struct position {
    int64_t step, samples;
} position;

typedef struct program {
    const gs_rank_env *env;
    plan_of_run run;
    file_exchange exchange;
    int rank;
    uint32_t generation;
    bool is_frozen_run, lags;
    gs_param_spec specs[NUM_PARAMS];
    gs_bucket_plan plan;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_reducer *reducer;
    gs_optimizer *optimizer;
    float *params[NUM_PARAMS];
    position at;
} program;

static bool is_place(const program *self, const char *place) {
    return strcmp(self->run.place, place) == 0;
}

// Rank 0 of the first generation dies here, if here is where.
static void maybe_die(const program *self, const char *place) {
    if (self->generation == 1 && self->rank == 0 && self->at.step == FAULT_STEP &&
        is_place(self, place))
        raise(SIGKILL);
}

// With buckets in flight; where there are failpoints, one stops it deeper inside.
static void maybe_freeze(const program *self) {
#ifdef GRADSYNC_FAILPOINTS
    (void)self;
#else
    if (self->is_frozen_run && self->generation == 1 && self->rank == 0 &&
        self->at.step == FAULT_STEP)
        raise(SIGSTOP);
#endif
}

// Rank 1 has applied the step: what rank 0 dies behind is not lost.
static void tell_applied(const program *self) {
    if (self->rank != 1 || self->at.step != FAULT_STEP + 1 || !is_place(self, "committed")) return;
    char path[240];
    snprintf(path, sizeof path, "%s/applied", self->run.dir);
    FILE *file = fopen(path, "we");
    if (file) fclose(file);
}

static void await_applied(const program *self) {
    char path[240];
    gs_deadline deadline = soon();
    if (self->generation > 1 || self->rank != 0 || self->at.step != FAULT_STEP ||
        !is_place(self, "committed"))
        return;
    snprintf(path, sizeof path, "%s/applied", self->run.dir);
    while (access(path, F_OK) && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
}

// A different draw for every process: only what came from rank 0 of the first generation may count.
static void draw_params(program *self) {
    uint32_t seed = (uint32_t)self->rank * 77 + self->generation * 1009;
    for (int p = 0; p < NUM_PARAMS; p++) {
        for (int i = 0; i < counts[p]; i++) {
            seed = seed * 1664525 + 1013904223;
            self->params[p][i] = (float)(seed >> 8) / (float)(1 << 24);
        }
    }
}

static gs_reducer_options reducer_options(const program *self) {
    return (gs_reducer_options){
        .params = self->specs,
        .num_params = NUM_PARAMS,
        .plan = &self->plan,
        .shards = {.num_shards = WORLD, .world_size = WORLD, .rank = self->rank},
        .arena = self->arena,
        .device = self->device};
}

static gs_status make_arena(program *self) {
    size_t bytes;
    gs_reducer_options options = reducer_options(self);
    GS_TRY(gs_reducer_arena_bytes(&bytes, &options));
    return gs_arena_create(&self->arena, bytes);
}

static gs_status connect_ranks(gs_comm **comm, program *self) {
    self->exchange =
        (file_exchange){.dir = self->run.dir, .generation = self->generation, .rank = self->rank};
    const gs_comm_options options = {.backend = "shm",
                                     .rank = self->rank,
                                     .world_size = WORLD,
                                     .generation = self->generation,
                                     .exchange = file_exchange_run,
                                     .exchange_ctx = &self->exchange,
                                     .arena = self->arena,
                                     .device = self->device,
                                     .helper = self->run.helper ? GS_HELPER_ON : GS_HELPER_OFF};
    return gs_comm_create(comm, &options, soon());
}

static gs_status share_state(program *self) {
    gs_tensor_view views[3 * NUM_PARAMS + 1];
    size_t num_views = 0;
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        size_t count = (size_t)counts[p];
        views[num_views++] = (gs_tensor_view){self->params[p], count, GS_FP32};
        for (int kind = 0; kind < gs_optimizer_state_count(self->optimizer); kind++)
            views[num_views++] =
                (gs_tensor_view){gs_optimizer_state(self->optimizer, kind, p), count, GS_FP32};
    }
    views[num_views++] =
        (gs_tensor_view){gs_optimizer_num_updates(self->optimizer), NUM_PARAMS, GS_I64};
    gs_state_sync_result result;
    GS_TRY(gs_state_sync(&result,
                         &(gs_state_sync_options){.tensors = views,
                                                  .num_tensors = num_views,
                                                  .position = &self->at,
                                                  .position_bytes = sizeof self->at,
                                                  .has_state = self->at.step > 0,
                                                  .step = self->at.step},
                         self->comm, soon()));
    char text[80];
    snprintf(text, sizeof text, "source %d receivers %d step %lld", result.source,
             result.num_receivers, (long long)result.step);
    if (self->generation > 1) gs_rank_note(self->env, text);
    return gs_ok();
}

static gs_status open_program(program *self) {
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        self->specs[p] = gs_param_spec_make(GS_FP32, counts[p], 0, "p%zu", p);
        self->params[p] = calloc((size_t)counts[p], sizeof(float));
    }
    draw_params(self);
    GS_TRY(gs_bucket_plan_one_host(&self->plan, self->specs, NUM_PARAMS, NULL));
    GS_TRY(gs_device_open(&self->device, "cpu", &(gs_device_options){.num_threads = 1}));
    const gs_optimizer_options adamw = {
        .kind = "adamw", .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    GS_TRY(
        gs_optimizer_create(&self->optimizer, &adamw, self->specs, NULL, NUM_PARAMS, self->device));
    GS_TRY(make_arena(self));
    GS_TRY(connect_ranks(&self->comm, self));
    gs_reducer_options options = reducer_options(self);
    GS_TRY(gs_reducer_create(&self->reducer, &options, self->comm, soon()));
    return share_state(self);
}

static void close_program(program *self) {
    gs_reducer_destroy(self->reducer);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_optimizer_destroy(self->optimizer);
    gs_device_close(self->device);
    gs_bucket_plan_release(&self->plan);
    for (int p = 0; p < NUM_PARAMS; p++) free(self->params[p]);
}

// The gradient of half the squared distance from values that depend on shard and step.
static void run_backward(const program *self, float *grad, int p, int shard) {
    for (int i = 0; i < counts[p]; i++) {
        int target = (i * 13 + shard * 5 + (int)self->at.step * 3 + p) % 17;
        grad[i] = self->params[p][i] - (float)target;
    }
}

// A frozen rank is given up sooner.
static gs_deadline step_deadline(const program *self) {
    return self->is_frozen_run && self->generation == 1 ? gs_deadline_in_seconds(6) : soon();
}

static gs_status reduce(program *self, gs_reduce_result *result) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(self->reducer, self->at.step));
    GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, SAMPLES));
    maybe_die(self, "begin");
    for (int p = NUM_PARAMS; p-- > 0;) {
        run_backward(self, pass.grads[p], p, pass.shard);
        GS_TRY(gs_reducer_mark_ready(self->reducer, (size_t)p));
        if (p == 1) maybe_die(self, "marks");
        if (p == 1) maybe_freeze(self);
    }
    GS_TRY(gs_reducer_end_pass(self->reducer));
    maybe_die(self, "flight");
    return gs_reducer_finish(self->reducer, result, step_deadline(self));
}

// Before it applies the step: rank 0 never comes.
static gs_status hear_of_the_fault(const program *self) {
    GS_TRY(gs_comm_run(self->comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}, soon()));
    return gs_error(GS_INTERNAL, "rank 0 did not die");
}

static gs_status take_step(program *self) {
    gs_reduce_result result;
    gs_commit_result committed;
    GS_TRY(reduce(self, &result));
    maybe_die(self, "reduced");
    const gs_commit_vote vote = {
        .step = self->at.step, .generation = self->generation, .samples = SAMPLES};
    GS_TRY(gs_commit_run(&committed, self->comm, &vote, step_deadline(self)));
    await_applied(self);
    maybe_die(self, "committed");
    if (self->lags && self->at.step == FAULT_STEP && self->generation == 1)
        return hear_of_the_fault(self);
    GS_TRY(gs_optimizer_step(self->optimizer, (void *const *)self->params,
                             gs_reducer_grads(self->reducer), result.used, 0.05f, 1));
    self->at.step++;
    self->at.samples += result.samples;
    tell_applied(self);
    return gs_ok();
}

// The rank that has not ended is named, as text and as values, and no communicator gets the arena
// meanwhile.
static gs_status meet_frozen_rank(program *self) {
    gs_comm_failure failure;
    gs_comm *none;
    gs_status status = gs_comm_wait_ended(self->comm, gs_deadline_in_seconds(5));
    gs_comm_explain(self->comm, &failure);
    if (status.code != GS_DEADLINE_EXCEEDED || !strstr(status.message, "rank 0 did not leave"))
        return gs_error(GS_INTERNAL, "rank %d: \"%.150s\"", self->rank, status.message);
    if (failure.kind != GS_COMM_FAILURE_TIMEOUT || gs_comm_failure_num_accused(&failure) != 1 ||
        !gs_comm_failure_names(&failure, 0))
        return gs_error(GS_INTERNAL, "rank %d: accuses others", self->rank);
    const gs_comm_options alone = {.world_size = 1,
                                   .generation = self->generation,
                                   .arena = self->arena,
                                   .device = self->device};
    status = gs_comm_create(&none, &alone, soon());
    if (status.code != GS_FAILED_PRECONDITION || !strstr(status.message, "gs_comm_wait_ended"))
        return gs_error(GS_INTERNAL, "rank %d: not refused: \"%.150s\"", self->rank,
                        status.message);
    gs_rank_note(self->env, "the frozen rank is named");
    return gs_ok();
}

// The next generation over the memory of this one.
static gs_status go_on(program *self) {
    gs_comm *next;
    self->generation++;
    if (self->rank != 0 && is_place(self, "frozen")) GS_TRY(meet_frozen_rank(self));
    GS_TRY(gs_comm_wait_ended(self->comm, gs_deadline_in_seconds(60)));
    GS_TRY(connect_ranks(&next, self));
    gs_status status = gs_reducer_reset(self->reducer, next, soon());
    gs_comm_destroy(self->comm);
    self->comm = next;
    return status.code ? status : share_state(self);
}

// The next generation over other memory: what the frozen rank may write into is nobody's.
static gs_status go_on_elsewhere(program *self) {
    self->generation++;
    GS_TRY(meet_frozen_rank(self));
    gs_reducer_destroy(self->reducer);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    self->reducer = NULL, self->comm = NULL, self->arena = NULL;
    GS_TRY(make_arena(self));
    GS_TRY(connect_ranks(&self->comm, self));
    gs_reducer_options options = reducer_options(self);
    GS_TRY(gs_reducer_create(&self->reducer, &options, self->comm, soon()));
    return share_state(self);
}

static gs_status train(program *self) {
    while (self->at.step < STEPS) {
        gs_status status = take_step(self);
        if (!status.code) continue;
        if (self->generation > 1 || is_place(self, "nowhere")) return status;
        gs_comm_abort(self->comm, status.message);
        if (is_place(self, "abandoned"))
            GS_TRY(self->rank == 0 ? status : go_on_elsewhere(self));
        else
            GS_TRY(go_on(self));
    }
    return gs_ok();
}

static void note_end(program *self) {
    gs_digest_stream *stream = gs_digest_stream_create();
    char text[60] = "final ";
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        size_t bytes = (size_t)counts[p] * sizeof(float);
        gs_digest_stream_add(stream, self->params[p], bytes);
        for (int kind = 0; kind < gs_optimizer_state_count(self->optimizer); kind++)
            gs_digest_stream_add(stream, gs_optimizer_state(self->optimizer, kind, p), bytes);
    }
    gs_digest_stream_add(stream, gs_optimizer_num_updates(self->optimizer),
                         NUM_PARAMS * sizeof(int64_t));
    gs_digest_stream_add(stream, &self->at, sizeof self->at);
    gs_digest_format(text + strlen(text), gs_digest_stream_value(stream));
    gs_digest_stream_destroy(stream);
    gs_rank_note(self->env, text);
}

static gs_status run_program(const gs_rank_env *env, uint32_t generation) {
    program self = {.env = env, .rank = env->rank, .generation = generation};
    if (sscanf(env->arg, "%199s %19s %d", self.run.dir, self.run.place, &self.run.helper) != 3)
        return gs_error(GS_INVALID_ARGUMENT, "argument %s", env->arg);
    self.is_frozen_run = is_place(&self, "frozen") || is_place(&self, "abandoned");
    self.lags = is_place(&self, "committed") && self.rank == 2;
    gs_status status = open_program(&self);
    if (!status.code) status = train(&self);
    if (!status.code) note_end(&self);
    close_program(&self);
    return status;
}

static gs_status body_member(const gs_rank_env *env) {
    return run_program(env, 1);
}

// Alone in its own world of processes, so that it is rank 0: that is the place it takes.
static gs_status body_newcomer(const gs_rank_env *env) {
    return run_program(env, 2);
}

static char undisturbed[60];

static gs_ranks *start(const char *body, int world_size, const char *dir, const char *place,
                       int helper, const char *failpoint) {
    char arg[260], armed[80];
    gs_ranks *ranks = NULL;
    snprintf(arg, sizeof arg, "%s %s %d", dir, place, helper);
    snprintf(armed, sizeof armed, "GRADSYNC_FAILPOINTS=%s", failpoint ? failpoint : "");
    const char *environment[] = {armed, NULL};
    assert_ok(gs_ranks_start(&ranks, body, world_size, arg, environment));
    return ranks;
}

static int train_undisturbed(void **state) {
    (void)state;
    gs_status statuses[WORLD];
    char *dir = gs_temp_dir_make();
    gs_ranks *ranks = start("member", WORLD, dir, "nowhere", 0, NULL);
    gs_status status = gs_ranks_wait(ranks, statuses, soon());
    for (int i = 0; i < WORLD && !status.code; i++) status = statuses[i];
    if (status.code) fprintf(stderr, "undisturbed run: %s\n", status.message);
    snprintf(undisturbed, sizeof undisturbed, "%s", gs_ranks_note(ranks, 0));
    gs_ranks_destroy(ranks);
    gs_temp_dir_remove(dir);
    return status.code || strncmp(undisturbed, "final ", 6) != 0;
}

// `newcomer` NULL: the rank that was away is back.
static void check_end(gs_ranks *ranks, gs_ranks *newcomer, gs_status statuses[WORLD]) {
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    gs_status joined = gs_ok();
    if (newcomer) assert_ok(gs_ranks_wait(newcomer, &joined, gs_deadline_in_seconds(60)));
    assert_ok(joined);
    if (newcomer) assert_string_equal(gs_ranks_note(newcomer, 0), undisturbed);
    for (int i = newcomer ? 1 : 0; i < WORLD; i++) {
        assert_ok(statuses[i]);
        assert_string_equal(gs_ranks_note(ranks, i), undisturbed);
    }
}

// Whether the newcomer's state came as one of these, the list ended by NULL.
static bool came_as_one_of(gs_ranks *newcomer, const char *const *syncs) {
    for (; *syncs; syncs++) {
        if (!gs_ranks_wait_note(newcomer, 0, *syncs, gs_deadline_in_ns(0)).code) return true;
    }
    return false;
}

static void kill_at(const char *place, int helper, const char *const *syncs) {
    char *dir = gs_temp_dir_make();
    gs_status statuses[WORLD];
    gs_ranks *ranks = start("member", WORLD, dir, place, helper, NULL);
    gs_ranks *newcomer = start("newcomer", 1, dir, place, helper, NULL);
    assert_ok(gs_ranks_wait_note(newcomer, 0, "source ", gs_deadline_in_seconds(60)));
    assert_true(came_as_one_of(newcomer, syncs));
    check_end(ranks, newcomer, statuses);
    assert_int_equal(statuses[0].code, GS_ABORTED);
    assert_non_null(strstr(statuses[0].message, "killed by signal 9"));
    gs_ranks_destroy(newcomer);
    gs_ranks_destroy(ranks);
    gs_temp_dir_remove(dir);
}

static void a_newcomer_takes_the_place_of_a_killed_rank_0(void **state) {
    (void)state;
    // Steps are from 0: with FAULT_STEP in flight that many have been applied. A survivor that was slow may hear
    // of the other's abort before it has seen that the step before was committed; it is one more receiver then.
    static const char *const syncs[] = {"source 1 receivers 1 step 5", "source 1 receivers 2 step 5",
                                        "source 2 receivers 2 step 5", NULL};
    kill_at("begin", 0, syncs);
    kill_at("marks", 1, syncs);
    kill_at("flight", 0, syncs);
    kill_at("reduced", 1, syncs);
}

// Rank 1 has applied the step that rank 0 died behind, rank 2 has not.
static void survivors_that_differ_by_a_step_are_brought_level(void **state) {
    (void)state;
    static const char *const syncs[] = {"source 1 receivers 2 step 6", NULL};
    kill_at("committed", 0, syncs);
    kill_at("committed", 1, syncs);
}

// In the middle of a collective, where there are failpoints: inside a block that it stores into its
// peers' arenas.
static gs_ranks *start_frozen(const char *dir, const char *place) {
    gs_ranks *ranks = start("member", WORLD, dir, place, 0, "comm.slice#0=stop@14");
    for (int i = 1; i < WORLD; i++)
        assert_ok(
            gs_ranks_wait_note(ranks, i, "the frozen rank is named", gs_deadline_in_seconds(60)));
    return ranks;
}

static void nobody_goes_on_before_a_frozen_rank_has_left(void **state) {
    (void)state;
    char *dir = gs_temp_dir_make();
    gs_status statuses[WORLD];
    gs_ranks *ranks = start_frozen(dir, "frozen");
    gs_ranks_signal(ranks, 0, SIGCONT);
    check_end(ranks, NULL, statuses);
    gs_ranks_destroy(ranks);
    gs_temp_dir_remove(dir);
}

static void a_frozen_rank_wakes_up_to_memory_that_nobody_reads(void **state) {
    (void)state;
    char *dir = gs_temp_dir_make();
    gs_status statuses[WORLD];
    gs_ranks *ranks = start_frozen(dir, "abandoned");
    gs_ranks *newcomer = start("newcomer", 1, dir, "abandoned", 0, NULL);
    assert_ok(gs_ranks_wait_note(ranks, 1, "source 1 receivers 1", gs_deadline_in_seconds(60)));
    gs_ranks_signal(ranks, 0, SIGCONT);
    check_end(ranks, newcomer, statuses);
    assert_int_equal(statuses[0].code, GS_ABORTED);
    gs_ranks_destroy(newcomer);
    gs_ranks_destroy(ranks);
    gs_temp_dir_remove(dir);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"member", body_member}, {"newcomer", body_newcomer}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_newcomer_takes_the_place_of_a_killed_rank_0),
        cmocka_unit_test(survivors_that_differ_by_a_step_are_brought_level),
        cmocka_unit_test(nobody_goes_on_before_a_frozen_rank_has_left),
        cmocka_unit_test(a_frozen_rank_wakes_up_to_memory_that_nobody_reads),
    };
    return cmocka_run_group_tests(tests, train_undisturbed, NULL);
}
