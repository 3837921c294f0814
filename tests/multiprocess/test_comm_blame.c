// What a rank tells the coordinator of a collective that did not end: values, whatever the texts say. Each way to
// fail on each backend is in tests/fault/test_comm_failures.c.
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

#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"
#include "worker/control/control.h"

#define FAR_SECONDS 60.0
#define LATE_MS 1000
#define MOST_RANKS 48

typedef struct blame_case {
    const char *name;  // the ranks' argument
    int world_size;
    bool helper, dies;
    uint64_t missing;  // a bit for each
} blame_case;

#define BIT(rank) (UINT64_C(1) << (rank))
static const blame_case cases[] = {
    {"many", 47, false, false, (BIT(47) - 1) & ~(BIT(0) | BIT(40))},
    {"dead with a helper", 3, true, true, BIT(2)},
};

static const blame_case *find_case(const char *name) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!strcmp(cases[i].name, name)) return &cases[i];
    }
    abort();
}

// What a rank would tell the coordinator. Whoever passes an error on puts its own rank before it.
static gs_status check_fault(const blame_case *how, comm_rank *self, gs_status status) {
    if (!status.code) return gs_error(GS_INTERNAL, "the collective ended well");
    gs_fault fault = gs_fault_of(
        gs_status_prefix(status, "rank %d, step 7: rows of \"wte\"", self->rank), self->comm, NULL);
    gs_fault_kind kind = how->dies ? GS_FAULT_PEER_LOST : GS_FAULT_TIMEOUT;
    if (fault.kind != kind)
        return gs_error(GS_INTERNAL, "%s instead of %s: %s", gs_fault_kind_name(fault.kind),
                        gs_fault_kind_name(kind), status.message);
    if (fault.comm.bucket != 5 || fault.comm.step != 7 || fault.comm.sequence != 1)
        return gs_error(GS_INTERNAL, "bucket %d, step %lld, sequence %llu", fault.comm.bucket,
                        (long long)fault.comm.step, (unsigned long long)fault.comm.sequence);
    // A list that is too long for a text ends with a number of ranks, not within one.
    bool is_long = __builtin_popcountll(how->missing) > 16;
    if (is_long && status.code == GS_DEADLINE_EXCEEDED &&
        !strstr(status.message, ", 15, 16 and 29 more did not arrive"))
        return gs_error(GS_INTERNAL, "a list that is cut: %s", status.message);
    for (int rank = 0; rank < GS_COMM_MAX_RANKS; rank++) {
        bool wanted = rank < how->world_size && (how->missing >> rank & 1);
        if (gs_comm_failure_names(&fault.comm, rank) != wanted)
            return gs_error(GS_INTERNAL, "rank %d is %saccused: %s", rank, wanted ? "not " : "",
                            status.message);
    }
    return gs_ok();
}

static gs_status meet(const gs_rank_env *env, const char *tag) {
    char mine = 0, all[MOST_RANKS];
    return gs_rank_exchange(env->exchange, tag, NULL, 0, &mine, 1, all, gs_deadline_in_seconds(FAR_SECONDS));
}

// Of two that are there both are seen.
static gs_status meet_in_time(const gs_rank_env *env, const blame_case *how) {
    char mine = 0, all[MOST_RANKS];
    int present[MOST_RANKS], num_present = 0;
    for (int i = 0; i < how->world_size; i++)
        if (!(how->missing >> i & 1)) present[num_present++] = i;
    return gs_rank_exchange(env->exchange, "in time", present, num_present, &mine, 1, all,
                            gs_deadline_in_seconds(FAR_SECONDS));
}

// The missing wait until the others have given up, and hear of it from their communicator.
static gs_status come_or_not(const gs_rank_env *env, const blame_case *how, comm_rank *self) {
    bool missing = how->missing >> env->rank & 1;
    float data[8] = {0};
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = 8,
                         .dtype = GS_FP32,
                         .step = 7,
                         .bucket = 5};
    GS_TRY(meet(env, "begin"));
    if (missing && how->dies) kill(getpid(), SIGKILL);
    if (missing) GS_TRY(meet(env, "end"));
    gs_work work;
    gs_status status = gs_comm_post(self->comm, &work, &sum);
    if (!missing) GS_TRY(meet_in_time(env, how));
    if (!status.code) status = gs_comm_wait(self->comm, work, how->dies ? gs_deadline_in_seconds(FAR_SECONDS) : gs_deadline_in_ms(LATE_MS));
    gs_comm_let_go(self->comm, status.message);
    GS_TRY(check_fault(how, self, status));
    return missing || how->dies ? gs_ok() : meet(env, "end");
}

static gs_status blame(const gs_rank_env *env) {
    const blame_case *how = find_case(env->arg);
    comm_rank self;
    gs_comm_options options = {.helper = how->helper ? GS_HELPER_ON : GS_HELPER_OFF};
    gs_status status = comm_rank_open(&self, env, 4096, &options);
    if (!status.code) status = come_or_not(env, how, &self);
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {{"blame", blame}, {0}};

static void those_that_did_not_come_are_accused_by_value(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const blame_case *how = &cases[i];
        gs_ranks *ranks;
        gs_status statuses[MOST_RANKS];
        assert_ok(gs_ranks_start(&ranks, "blame", how->world_size, how->name, NULL));
        assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(FAR_SECONDS)));
        gs_ranks_destroy(ranks);
        for (int rank = 0; rank < how->world_size; rank++) {
            if (how->dies && (how->missing >> rank & 1)) continue;
            if (statuses[rank].code)
                print_error("%s, rank %d: %s\n", how->name, rank, statuses[rank].message);
            assert_int_equal(statuses[rank].code, GS_OK);
        }
    }
}

static void a_text_accuses_nobody(void **state) {
    (void)state;
    comm_rank self = {.world_size = 1};
    assert_ok(gs_device_open(&self.device, "cpu", NULL));
    gs_comm_options options = {.backend = "self", .world_size = 1, .device = self.device};
    assert_ok(gs_comm_create(&self.comm, &options, gs_deadline_in_seconds(60)));
    gs_comm_abort(self.comm, "rank 3 did not arrive");
    gs_fault fault = gs_fault_of(gs_error(GS_ABORTED, "rank 3 did not arrive"), self.comm, NULL);
    assert_int_equal(fault.kind, GS_FAULT_ABORTED);
    for (int rank = 0; rank < GS_COMM_MAX_RANKS; rank++)
        assert_false(gs_comm_failure_names(&fault.comm, rank));
    // A replica or a device that does not end is this rank's own.
    fault = gs_fault_of(gs_error(GS_DEADLINE_EXCEEDED, "rank 3, replica 1 began 0 of 2 passes"),
                        self.comm, NULL);
    assert_int_equal(fault.kind, GS_FAULT_TIMEOUT);
    for (int rank = 0; rank < GS_COMM_MAX_RANKS; rank++)
        assert_int_equal(gs_comm_failure_names(&fault.comm, rank), rank == 0);
    // An error of its own is not the others', even while they wait.
    fault = gs_fault_of(gs_error(GS_DATA_LOSS, "rank 3: no such file"), self.comm, NULL);
    assert_int_equal(fault.kind, GS_FAULT_DATA);
    assert_false(gs_comm_failure_names(&fault.comm, 3));
    gs_comm_destroy(self.comm);
    gs_device_close(self.device);
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_that_did_not_come_are_accused_by_value),
        cmocka_unit_test(a_text_accuses_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
