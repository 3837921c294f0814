// Each way in which a collective on GPUs fails to end: what each rank knows of it, as values. The library does not
// say who is missing, so nobody is accused that cannot be known: a rank's own device can. And of one rank with a
// GPU, whose device is all that can fail.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gradsync/comm/device_arena.h"
#include "tests/gpu/stuck.h"
#include "tests/nccl/nccl_rank.h"
#include "tests/support/asserts.h"
#include "tests/support/failure_case.h"
#include "tests/support/ranks.h"

#define RUN_SECONDS 120.0
#define DEATH_SECONDS 60.0  // to know of it takes milliseconds
#define NUM_LANES 2  // all happens in the last
#define BIT(rank) (UINT64_C(1) << (rank))

#define IN_ALL_WORLDS(name, way) {name, way, 2, BIT(1), NULL}, {name, way, 3, BIT(0), NULL}

// Steps and buckets are not compared here: the library knows bytes.
static const failure_case cases[] = {
    IN_ALL_WORLDS("late", FAILS_LATE),
    IN_ALL_WORLDS("left", FAILS_LEFT),
    IN_ALL_WORLDS("told to abort", FAILS_TOLD),
#ifdef GRADSYNC_CUDA_SIM
    // The real library hangs, or mixes the data.
    IN_ALL_WORLDS("another kind", FAILS_OTHER_KIND),
    IN_ALL_WORLDS("another count", FAILS_OTHER_COUNT),
    IN_ALL_WORLDS("another dtype", FAILS_OTHER_DTYPE),
#endif
    IN_ALL_WORLDS("killed", FAILS_KILLED),
    IN_ALL_WORLDS("killed amid", FAILS_KILLED_AMID),
    IN_ALL_WORLDS("a device that fails", FAILS_DEVICE),
};
#define NUM_CASES ((int)(sizeof cases / sizeof cases[0]))

static gs_status connect_nccl(comm_rank *self, const gs_rank_env *env, uint32_t generation,
                              bool helped) {
    (void)helped;
    GS_TRY(gs_arena_create_on(&self->arena, FAILURE_ARENA_BYTES, self->device));
    gs_comm_options options = {.generation = generation, .num_lanes = NUM_LANES};
    return nccl_rank_connect(self, env, &options, gs_deadline_in_seconds(NCCL_RANK_SECONDS));
}

static gs_status break_device(comm_rank *self) {
    return fault_begin(self->device);
}

static const failure_backend nccl = {.name = "nccl",
                                     .num_lanes = NUM_LANES,
                                     .knows_all = false,
                                     .connect = connect_nccl,
                                     .break_device = break_device};

static bool needs_own_ranks(const failure_case *how) {
    return how->way == FAILS_DEVICE || failure_case_kills(how);
}

// The argument is the case's number, or "world": all of that world that leave the processes sound.
static gs_status run_cases(const gs_rank_env *env) {
    comm_rank self;
    gs_status status = nccl_rank_open_device(&self, env, 0);
    bool all = strcmp(env->arg, "world") == 0;
    int one = all ? -1 : (int)strtol(env->arg, NULL, 10);
    bool opened = !status.code;
    for (int i = 0; i < NUM_CASES && opened; i++) {
        bool fits = cases[i].world_size == env->world_size && !needs_own_ranks(&cases[i]);
        if (!(all ? fits : i == one)) continue;
        gs_status known = failure_case_run(&self, env, &nccl, &cases[i], i);
        if (known.code && env->rank == env->world_size - 1) fprintf(stderr, "%s\n", known.message);
        if (known.code) status = known;  // and what the others say
    }
    comm_rank_close(&self);
    return status;
}

static gs_status explain_alone(comm_rank *self, const char *arg, gs_comm_failure *seen) {
    float *data = gs_arena_data(self->arena);
    atomic_bool released = false;
    bool late = strcmp(arg, "late") == 0;
    gs_work work;
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = FAILURE_COUNT,
                         .dtype = GS_FP32,
                         .scale = 0.5,
                         .lane = 1,
                         .step = 7,
                         .bucket = 5};
    GS_TRY(late ? stuck_begin(gs_device_stream(self->device), &released) : fault_begin(self->device));
    gs_status status = gs_comm_post(self->comm, &work, &sum);
    if (!status.code) status = gs_comm_wait(self->comm, work, gs_deadline_in_ms(late ? 50 : 20000));
    gs_comm_explain(self->comm, seen);
    atomic_store(&released, true);
    if (!late) return status.code ? gs_ok() : gs_error(GS_INTERNAL, "it ended well");
    // What came after all is no failure.
    GS_TRY(gs_comm_wait(self->comm, work, gs_deadline_in_seconds(NCCL_RANK_SECONDS)));
    gs_comm_failure after;
    gs_comm_explain(self->comm, &after);
    return after.kind ? gs_error(GS_INTERNAL, "it came, and is late") : gs_ok();
}

// One rank: its device is all that can keep it from the end of a collective.
static gs_status fail_alone(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_failure seen = {0};
    GS_TRY(nccl_rank_open_device(&self, env, FAILURE_ARENA_BYTES));
    gs_comm_options options = {
        .backend = "self", .world_size = 1, .num_lanes = 2, .device = self.device};
    gs_status status = gs_comm_create(&self.comm, &options, gs_deadline_in_seconds(60));
    if (!status.code) status = explain_alone(&self, env->arg, &seen);
    bool late = strcmp(env->arg, "late") == 0;
    gs_comm_failure_kind kind = late ? GS_COMM_FAILURE_TIMEOUT : GS_COMM_FAILURE_DEVICE;
    bool right = seen.kind == kind && seen.reporter == 0 && seen.lane == 1 && seen.sequence == 1 &&
                 seen.step == 7 && seen.bucket == 5 && gs_comm_failure_names(&seen, 0) &&
                 gs_comm_failure_num_accused(&seen) == 1;
    comm_rank_close(&self);
    if (status.code || right) return status;
    return gs_error(GS_INTERNAL, "%s: it knows: %s, reporter %d, lane %d, collective %llu, bucket %d",
                    env->arg, gs_comm_failure_kind_name(seen.kind), seen.reporter, seen.lane,
                    (unsigned long long)seen.sequence, seen.bucket);
}

// As a host does that runs ahead: it posts what comes next, and waits for all of it later.
static gs_status post_behind_a_death(comm_rank *self) {
    gs_work work = {0};
    gs_collective gather = {.kind = GS_ALLGATHER,
                            .send = (float *)gs_arena_data(self->arena) + self->rank * 64,
                            .recv = gs_arena_data(self->arena),
                            .count = 64 * sizeof(float),
                            .dtype = GS_U8,
                            .bucket = -1};
    gs_status status = gs_ok();
    for (int i = 0; i < 8 && !status.code; i++) status = gs_comm_post(self->comm, &work, &gather);
    if (!status.code)
        status = gs_comm_wait(self->comm, work, gs_deadline_in_seconds(DEATH_SECONDS));
    if (!status.code) return gs_error(GS_INTERNAL, "it ended well");
    return status.code == GS_DEADLINE_EXCEEDED ? status : gs_ok();
}

static gs_status outlive(const gs_rank_env *env) {
    comm_rank self;
    pid_t mine = getpid(), all[2];
    gs_status status = nccl_rank_open(&self, env, FAILURE_ARENA_BYTES, NULL);
    if (!status.code)
        status = gs_rank_exchange(env->exchange, "pids", NULL, 0, &mine, sizeof mine, all,
                                  gs_deadline_in_seconds(NCCL_RANK_SECONDS));
    if (!status.code && env->rank == 1) kill(mine, SIGKILL);
    if (!status.code) failure_wait_for_death(all[1]);
    if (!status.code) status = post_behind_a_death(&self);
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {
    {"cases", run_cases}, {"alone", fail_alone}, {"outlive", outlive}, {0}};

static void run_ranks(const char *body, const char *arg, int world_size, const failure_case *how) {
    gs_ranks *ranks;
    gs_status statuses[4];
    // What a broken device held is given back by the end of its process alone.
    const char *environment[] = {"ASAN_OPTIONS=detect_leaks=0", NULL};
    assert_ok(gs_ranks_start(&ranks, body, world_size, arg, environment));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(RUN_SECONDS)));
    gs_ranks_destroy(ranks);
    for (int rank = 0; rank < world_size; rank++) {
        bool dies = how && failure_case_kills(how) && (how->victims >> rank & 1);
        if (statuses[rank].code && !dies) print_error("%s\n", statuses[rank].message);
        assert_int_equal(statuses[rank].code, dies ? GS_ABORTED : GS_OK);
    }
}

static void each_rank_knows_of_itself_and_accuses_nobody_else(void **state) {
    (void)state;
    run_ranks("cases", "world", 2, NULL);
    run_ranks("cases", "world", 3, NULL);
}

static void the_others_of_one_that_is_gone_accuse_nobody(void **state) {
    (void)state;
    for (int i = 0; i < NUM_CASES; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        if (needs_own_ranks(&cases[i])) run_ranks("cases", number, cases[i].world_size, &cases[i]);
    }
}

static void a_rank_alone_accuses_its_device(void **state) {
    (void)state;
    run_ranks("alone", "late", 1, NULL);
    run_ranks("alone", "fault", 1, NULL);
}

// An error that the library found is not forgotten over the next call.
static void a_death_is_known_whatever_is_posted_next(void **state) {
    (void)state;
    static const failure_case killed = {"killed", FAILS_KILLED, 2, BIT(1), NULL};
    run_ranks("outlive", "", 2, &killed);
}

int main(int argc, char **argv) {
    int exit_code;
    nccl_skip_without_gpu();
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rank_knows_of_itself_and_accuses_nobody_else),
        cmocka_unit_test(the_others_of_one_that_is_gone_accuse_nobody),
        cmocka_unit_test(a_rank_alone_accuses_its_device),
        cmocka_unit_test(a_death_is_known_whatever_is_posted_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
