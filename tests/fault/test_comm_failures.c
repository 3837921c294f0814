// Each way in which a collective fails to end, with several worlds: what every rank knows of it afterwards, as
// values. The table of backends between hosts of one machine; NCCL's is tests/nccl/test_nccl_failures.c.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/failure_case.h"
#include "tests/support/ranks.h"

#define RUN_SECONDS 120.0
#define NUM_LANES 2  // all happens in the last
#define BIT(rank) (UINT64_C(1) << (rank))

#define IN_ALL_WORLDS(name, way)                                                                    \
    {name, way, 2, BIT(1), NULL}, {name, way, 3, BIT(1), NULL},                                     \
        {name, way, 5, BIT(1) | BIT(4), NULL}

static const failure_case cases[] = {
    {"late", FAILS_LATE, 2, BIT(1), NULL},
    {"late", FAILS_LATE, 3, BIT(0), NULL},
    {"late", FAILS_LATE, 5, BIT(1) | BIT(4), NULL},
    IN_ALL_WORLDS("left", FAILS_LEFT),
    {"all others left", FAILS_LEFT, 3, BIT(0) | BIT(2), NULL},
    IN_ALL_WORLDS("another kind", FAILS_OTHER_KIND),
    IN_ALL_WORLDS("another count", FAILS_OTHER_COUNT),
    {"another dtype", FAILS_OTHER_DTYPE, 3, BIT(0), NULL},
    {"another step", FAILS_OTHER_STEP, 3, BIT(0), NULL},
    {"another step", FAILS_OTHER_STEP, 5, BIT(3), NULL},
    IN_ALL_WORLDS("another bucket", FAILS_OTHER_BUCKET),
    IN_ALL_WORLDS("a damaged header", FAILS_BAD_HEADER),
    {"a damaged offset", FAILS_BAD_OFFSET, 2, BIT(0), NULL},
    {"a damaged offset", FAILS_BAD_OFFSET, 5, BIT(3), NULL},
    {"told to abort", FAILS_TOLD, 2, BIT(0), NULL},
    {"told to abort", FAILS_TOLD, 3, BIT(2), NULL},
    {"told to abort", FAILS_TOLD, 5, BIT(4), NULL},
    IN_ALL_WORLDS("killed", FAILS_KILLED),
    {"rank 0 is killed", FAILS_KILLED, 3, BIT(0), NULL},
#ifdef GRADSYNC_FAILPOINTS
    {"killed before it adds", FAILS_KILLED_AMID, 2, BIT(1), "comm.slice#1=kill"},
    {"killed before it adds", FAILS_KILLED_AMID, 5, BIT(3), "comm.slice#3=kill"},
    {"killed amid", FAILS_KILLED_AMID, 2, BIT(1), "comm.slice#1=kill@2"},
    {"killed amid", FAILS_KILLED_AMID, 3, BIT(0), "comm.slice#0=kill@2"},
    {"a mover that fails", FAILS_DEVICE, 2, BIT(1), "comm.publish#1=error@2"},
    {"a mover that fails", FAILS_DEVICE, 5, BIT(2), "comm.publish#2=error@2"},
#endif
};
#define NUM_CASES ((int)(sizeof cases / sizeof cases[0]))

static gs_status connect(comm_rank *self, const gs_rank_env *env, const char *backend,
                         uint32_t generation, bool helped) {
    GS_TRY(gs_arena_create(&self->arena, FAILURE_ARENA_BYTES));
    gs_comm_options options = {.backend = backend,
                               .rank = env->rank,
                               .world_size = env->world_size,
                               .generation = generation,
                               .exchange = gs_rank_exchange,
                               .exchange_ctx = env->exchange,
                               .arena = self->arena,
                               .device = self->device,
                               .num_lanes = NUM_LANES,
                               .helper = helped ? GS_HELPER_ON : GS_HELPER_OFF};
    return gs_comm_create(&self->comm, &options, gs_deadline_in_seconds(60));
}

static gs_status connect_shm(comm_rank *self, const gs_rank_env *env, uint32_t generation,
                             bool helped) {
    return connect(self, env, "shm", generation, helped);
}

static gs_status connect_net(comm_rank *self, const gs_rank_env *env, uint32_t generation,
                             bool helped) {
    return connect(self, env, "net", generation, helped);
}

static const failure_backend backends[] = {
    {.name = "shm", .num_lanes = NUM_LANES, .knows_all = true, .connect = connect_shm},
    {.name = "net", .num_lanes = NUM_LANES, .knows_all = true, .connect = connect_net},
};

// Between hosts there is no block to damage, and a slice of this length is added in one piece.
static bool is_of(const failure_case *how, const failure_backend *backend) {
    bool damages = how->way == FAILS_BAD_HEADER || how->way == FAILS_BAD_OFFSET;
    bool is_second_piece = how->way == FAILS_KILLED_AMID && strstr(how->failpoints, "@2");
    return strcmp(backend->name, "shm") == 0 || (!damages && !is_second_piece);
}

static bool needs_own_ranks(const failure_case *how) {
    return how->failpoints || failure_case_kills(how);
}

// The argument is the backend, and the case's number, or "world": all of that world that leave the processes sound.
static gs_status run_cases(const gs_rank_env *env) {
    comm_rank self = {.rank = env->rank, .world_size = env->world_size};
    gs_status status = gs_device_open(&self.device, "cpu", &(gs_device_options){.num_threads = 1});
    const failure_backend *backend = &backends[strncmp(env->arg, "net", 3) == 0];
    const char *which = env->arg + strlen(backend->name) + 1;
    bool all = strcmp(which, "world") == 0;
    int one = all ? -1 : (int)strtol(which, NULL, 10);
    bool opened = !status.code;
    for (int i = 0; i < NUM_CASES && opened; i++) {
        bool fits = cases[i].world_size == env->world_size && !needs_own_ranks(&cases[i]) &&
                    is_of(&cases[i], backend);
        if (!(all ? fits : i == one)) continue;
        gs_status known = failure_case_run(&self, env, backend, &cases[i], i);
        if (known.code && env->rank == env->world_size - 1) fprintf(stderr, "%s\n", known.message);
        if (known.code) status = known;  // and what the others say
    }
    comm_rank_close(&self);
    return gs_status_prefix(status, "%s", backend->name);
}

static const gs_rank_body bodies[] = {{"cases", run_cases}, {0}};

// How many ranks did not know what they should.
static int run_ranks(const char *arg, int world_size, const failure_case *how) {
    gs_ranks *ranks;
    gs_status statuses[16];
    char failpoints[80];
    snprintf(failpoints, sizeof failpoints, "GRADSYNC_FAILPOINTS=%s",
             how && how->failpoints ? how->failpoints : "");
    const char *environment[] = {failpoints, NULL};
    assert_ok(gs_ranks_start(&ranks, "cases", world_size, arg, environment));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(RUN_SECONDS)));
    gs_ranks_destroy(ranks);
    int num_wrong = 0;
    for (int rank = 0; rank < world_size; rank++) {
        bool dies = how && failure_case_kills(how) && (how->victims >> rank & 1);
        bool right = statuses[rank].code == (dies ? GS_ABORTED : GS_OK);
        if (!right) print_error("%s\n", statuses[rank].message);
        num_wrong += !right;
    }
    return num_wrong;
}

static void expect_that_everybody_knows_why(const failure_backend *backend) {
    static const int worlds[] = {2, 3, 5};
    char arg[24];
    int num_wrong = 0;
    snprintf(arg, sizeof arg, "%s world", backend->name);
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++)
        num_wrong += run_ranks(arg, worlds[i], NULL);
    assert_int_equal(num_wrong, 0);
}

static void expect_that_survivors_know_who_died(const failure_backend *backend) {
    int num_wrong = 0;
    for (int i = 0; i < NUM_CASES; i++) {
        char arg[24];
        snprintf(arg, sizeof arg, "%s %d", backend->name, i);
        if (needs_own_ranks(&cases[i]) && is_of(&cases[i], backend))
            num_wrong += run_ranks(arg, cases[i].world_size, &cases[i]);
    }
    assert_int_equal(num_wrong, 0);
}

static void everybody_knows_why_a_collective_did_not_end(void **state) {
    (void)state;
    expect_that_everybody_knows_why(&backends[0]);
}

static void the_survivors_know_who_died(void **state) {
    (void)state;
    expect_that_survivors_know_who_died(&backends[0]);
}

static void everybody_knows_why_between_hosts(void **state) {
    (void)state;
    expect_that_everybody_knows_why(&backends[1]);
}

static void the_survivors_on_other_hosts_know_who_died(void **state) {
    (void)state;
    expect_that_survivors_know_who_died(&backends[1]);
}

// One rank: what it is told, and nothing before.
static void a_rank_alone_knows_who_told_it(void **state) {
    (void)state;
    comm_rank self = {.world_size = 1};
    gs_comm_failure seen;
    gs_work work = {.sequence = 1};
    assert_ok(gs_device_open(&self.device, "cpu", NULL));
    gs_comm_options options = {.backend = "self", .world_size = 1, .device = self.device};
    assert_ok(gs_comm_create(&self.comm, &options, gs_deadline_in_seconds(60)));
    gs_comm_explain(self.comm, &seen);
    assert_int_equal(seen.kind, GS_COMM_FAILURE_NONE);
    assert_int_equal(seen.reporter, -1);
    // A mistake in a call is nobody's failure.
    assert_int_equal(gs_comm_wait(self.comm, work, gs_deadline_in_ms(0)).code, GS_FAILED_PRECONDITION);
    gs_comm_explain(self.comm, &seen);
    assert_int_equal(seen.kind, GS_COMM_FAILURE_NONE);
    gs_comm_abort(self.comm, "rank 3 did it");
    gs_comm_explain(self.comm, &seen);
    assert_int_equal(seen.kind, GS_COMM_FAILURE_ABORTED);
    assert_int_equal(seen.reporter, 0);
    assert_int_equal(gs_comm_failure_num_accused(&seen), 0);
    comm_rank_close(&self);
}

// An error is the communicator's where it can be what that told, and else its caller's.
static void an_error_is_matched_with_a_failure_by_its_code(void **state) {
    (void)state;
    static const gs_code codes[][3] = {
        [GS_COMM_FAILURE_NONE] = {GS_OK},
        [GS_COMM_FAILURE_TIMEOUT] = {GS_DEADLINE_EXCEEDED, GS_ABORTED},
        [GS_COMM_FAILURE_PEER_LOST] = {GS_UNAVAILABLE, GS_ABORTED},
        [GS_COMM_FAILURE_MISMATCH] = {GS_FAILED_PRECONDITION, GS_ABORTED},
        [GS_COMM_FAILURE_DAMAGED] = {GS_DATA_LOSS, GS_ABORTED},
        [GS_COMM_FAILURE_ABORTED] = {GS_ABORTED},
    };
    for (int kind = 0; kind <= GS_COMM_FAILURE_ABORTED; kind++) {
        gs_comm_failure failure = {.kind = (gs_comm_failure_kind)kind};
        for (int code = 0; code < GS_NUM_CODES; code++) {
            bool wanted = code && (kind == GS_COMM_FAILURE_DEVICE || code == (int)codes[kind][0] ||
                                   code == (int)codes[kind][1]);
            assert_int_equal(gs_comm_failure_may_be(&failure, (gs_code)code), wanted);
        }
    }
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_knows_why_a_collective_did_not_end),
        cmocka_unit_test(the_survivors_know_who_died),
        cmocka_unit_test(everybody_knows_why_between_hosts),
        cmocka_unit_test(the_survivors_on_other_hosts_know_who_died),
        cmocka_unit_test(a_rank_alone_knows_who_told_it),
        cmocka_unit_test(an_error_is_matched_with_a_failure_by_its_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
