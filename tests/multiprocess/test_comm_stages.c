// Who fails while a communicator is made takes all others along: at once, with one reason that names it.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "gradsync/comm/backends.h"
#include "gradsync/comm/comm_backend.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"

#define WORLD 3
#define NUM_STAGES 6  // of a communicator of shared memory
// Each rank has this long to be made; a test is over long before.
#define FAR_SECONDS 60.0
#define NEAR_SECONDS 20.0

static bool does(const gs_rank_env *env, const char *deed) {
    size_t len = strlen(deed);
    return strncmp(env->arg, deed, len) == 0 && atoi(env->arg + len) == env->rank;
}

// One is enough to find out on which host this is, and not to share memory.
static void leave_one_descriptor(struct rlimit *before) {
    int next = dup(0);
    close(next);
    getrlimit(RLIMIT_NOFILE, before);
    struct rlimit limit = {.rlim_cur = (rlim_t)next + 1, .rlim_max = before->rlim_max};
    setrlimit(RLIMIT_NOFILE, &limit);
}

static gs_status make_comm(const gs_rank_env *env) {
    static const gs_comm_backend half = {.name = "shm"};
    gs_device *device = NULL;
    gs_comm *comm = NULL;
    GS_TRY(gs_device_open(&device, "cpu", &(gs_device_options){.num_threads = 1}));
    gs_comm_options options = {.backend = "shm",
                               .rank = env->rank,
                               .world_size = env->world_size,
                               .generation = 1,
                               .exchange = gs_rank_exchange,
                               .exchange_ctx = env->exchange,
                               .device = device};
    if (does(env, "lanes of ")) options.num_lanes = 99;
    if (does(env, "rank of ")) options.rank = 7;
    if (does(env, "device of ")) options.device = NULL;
    if (does(env, "backend of ")) options.own_backend = &half;
    if (does(env, "name of ")) options.backend = "smh";
    if (does(env, "number of ")) options.rank = (env->rank + 1) % env->world_size;
    if (does(env, "two of ")) options.num_lanes = 2;
    struct rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    if (does(env, "descriptors of ")) leave_one_descriptor(&before);
    gs_status status = gs_comm_create(&comm, &options, gs_deadline_in_seconds(FAR_SECONDS));
    setrlimit(RLIMIT_NOFILE, &before);
    gs_comm_destroy(comm);
    gs_device_close(device);
    return status;
}

// The ranks 1 and 3 of 4 make a group; the others have nothing to do with it.
static gs_status make_group(const gs_rank_env *env) {
    static const int ranks[] = {1, 3};
    if (env->rank % 2 == 0) return gs_ok();
    comm_rank self;
    gs_comm_options options = {.ranks = ranks, .group = "odd", .backend = "shm"};
    gs_rank_env within = *env;
    within.rank = env->rank / 2;
    within.world_size = 2;
    if (does(env, "lanes of ")) options.num_lanes = 99;
    gs_status status = comm_rank_open(&self, &within, 0, &options);
    if (!status.code &&
        (gs_comm_world_rank(self.comm, 0) != 1 || gs_comm_world_rank(self.comm, 1) != 3 ||
         gs_comm_world_rank(self.comm, 2) != -1 || gs_comm_rank(self.comm) != within.rank))
        status = gs_error(GS_INTERNAL, "ranks of the group have other numbers");
    comm_rank_close(&self);
    return status;
}

// As a backend that finds out that its last rank does not reach its first; `ctx` not NULL: it fails for something else.
static gs_status reach_nobody(void **out, const gs_comm_options *options, gs_stages *stages, char *reason, size_t reason_bytes,
                              gs_deadline deadline) {
    (void)out, (void)reason, (void)reason_bytes, (void)deadline;
    if (options->rank < options->world_size - 1) return gs_stages_meet(stages, "nowhere", gs_ok(), NULL, NULL, 0);
    if (!options->own_backend_ctx) gs_stages_blame(stages, 0);
    return gs_error(GS_UNAVAILABLE, "it is not there");
}

// The ranks 1 and 3 of 4.
static gs_status miss_a_rank(const gs_rank_env *env) {
    static const int ranks[] = {1, 3};
    if (env->rank % 2 == 0) return gs_ok();
    gs_comm_backend nowhere = gs_comm_self;
    nowhere.create = reach_nobody;
    gs_comm_failure why = {.kind = GS_COMM_FAILURE_DAMAGED};
    gs_comm_options options = {.ranks = ranks, .group = "odd", .own_backend = &nowhere, .unreached = &why};
    if (!strcmp(env->arg, "other")) options.own_backend_ctx = &options;
    gs_rank_env within = *env;
    within.rank = env->rank / 2;
    within.world_size = 2;
    comm_rank self;
    gs_status status = comm_rank_open(&self, &within, 0, &options);
    comm_rank_close(&self);
    if (status.code != GS_UNAVAILABLE) return gs_error(GS_INTERNAL, "it ends with %s", status.message);
    if (options.own_backend_ctx)
        return why.kind == GS_COMM_FAILURE_NONE ? gs_ok() : gs_error(GS_INTERNAL, "somebody is accused for nothing");
    bool is_told = why.kind == GS_COMM_FAILURE_PEER_LOST && why.reporter == 3 && gs_comm_failure_names(&why, 1) &&
                   gs_comm_failure_num_accused(&why) == 1;
    return is_told ? gs_ok() : gs_error(GS_INTERNAL, "kind %d by %d", (int)why.kind, why.reporter);
}

static const gs_rank_body bodies[] = {{"miss", miss_a_rank}, {"comm", make_comm}, {"group", make_group}, {0}};

static void run_ranks(gs_status *statuses, const char *body, int world_size, const char *arg,
                      const char *const *environment) {
    gs_ranks *ranks;
    assert_int_equal(gs_ranks_start(&ranks, body, world_size, arg, environment).code, GS_OK);
    gs_status status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(NEAR_SECONDS));
    assert_string_equal(status.message, "");
    gs_ranks_destroy(ranks);
}

static void expect_one_end(const gs_status *statuses, const char *deed, gs_code code,
                           const char *text) {
    for (int rank = 0; rank < WORLD; rank++) {
        if (statuses[rank].code != code || !strstr(statuses[rank].message, text) ||
            strcmp(statuses[rank].message, statuses[0].message) != 0)
            print_error("%s, rank %d: %d %s\n", deed, rank, (int)statuses[rank].code,
                        statuses[rank].message);
        assert_int_equal(statuses[rank].code, code);
        assert_non_null(strstr(statuses[rank].message, text));
        assert_string_equal(statuses[rank].message, statuses[0].message);
    }
}

static void a_failure_at_any_stage_of_any_rank_is_everybodys(void **state) {
    (void)state;
#ifdef GRADSYNC_FAILPOINTS
    for (int rank = 0; rank < WORLD; rank++) {
        for (int number = 1; number <= NUM_STAGES; number++) {
            gs_status statuses[WORLD];
            char armed[80], named[32];
            snprintf(armed, sizeof armed, "GRADSYNC_FAILPOINTS=comm.stage#%d=error@%d", rank, number);
            snprintf(named, sizeof named, "rank %d: ", rank);
            run_ranks(statuses, "comm", WORLD, NULL, (const char *[]){armed, NULL});
            expect_one_end(statuses, armed, GS_INTERNAL, "comm.stage");
            assert_int_equal(strncmp(statuses[0].message, named, strlen(named)), 0);
        }
    }
#else
    skip();
#endif
}

static void there_are_as_many_stages_as_are_tried(void **state) {
    (void)state;
#ifdef GRADSYNC_FAILPOINTS
    gs_status statuses[WORLD];
    char armed[80];
    snprintf(armed, sizeof armed, "GRADSYNC_FAILPOINTS=comm.stage=error@%d", NUM_STAGES + 1);
    run_ranks(statuses, "comm", WORLD, NULL, (const char *[]){armed, NULL});
    for (int rank = 0; rank < WORLD; rank++) assert_string_equal(statuses[rank].message, "");
#else
    skip();
#endif
}

static void a_bad_option_of_one_rank_is_everybodys_error(void **state) {
    (void)state;
    static const struct {
        const char *deed;
        gs_code code;
        const char *text;
    } cases[] = {
        {"lanes of 1", GS_INVALID_ARGUMENT, "rank 1: a communicator has 1 to 8 lanes, not 99"},
        {"rank of 0", GS_INVALID_ARGUMENT, "rank 0: rank 7 is not below the world size 3"},
        {"device of 2", GS_INVALID_ARGUMENT, "rank 2: a communicator needs a device"},
        {"backend of 1", GS_INVALID_ARGUMENT, "rank 1: backend shm lacks create"},
        {"name of 2", GS_FAILED_PRECONDITION, "rank 2 wants backend smh, rank 0 shm"},
        {"number of 1", GS_FAILED_PRECONDITION, "rank 1 takes itself for rank 2"},
        {"two of 2", GS_FAILED_PRECONDITION, "rank 2 has 2 lanes, rank 0 has 1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gs_status statuses[WORLD];
        run_ranks(statuses, "comm", WORLD, cases[i].deed, NULL);
        expect_one_end(statuses, cases[i].deed, cases[i].code, cases[i].text);
    }
}

static void who_has_no_descriptors_left_says_so_to_all(void **state) {
    (void)state;
    for (int rank = 0; rank < WORLD; rank++) {
        gs_status statuses[WORLD];
        char deed[32], text[80];
        snprintf(deed, sizeof deed, "descriptors of %d", rank);
        snprintf(text, sizeof text, "rank %d: cannot ", rank);
        run_ranks(statuses, "comm", WORLD, deed, NULL);
        expect_one_end(statuses, deed, GS_UNAVAILABLE, text);
        assert_non_null(strstr(statuses[0].message, "Too many open files"));
    }
}

static void a_group_names_ranks_of_the_world_too(void **state) {
    (void)state;
    gs_status statuses[4];
    run_ranks(statuses, "group", 4, "nothing", NULL);
    for (int rank = 0; rank < 4; rank++) assert_string_equal(statuses[rank].message, "");
    run_ranks(statuses, "group", 4, "lanes of 3", NULL);
    assert_int_equal(statuses[0].code, GS_OK);
    assert_int_equal(statuses[2].code, GS_OK);
    const char *text = "rank 1 (world rank 3): a communicator has 1 to 8 lanes, not 99";
    assert_string_equal(statuses[1].message, text);
    assert_string_equal(statuses[3].message, text);
}

static void who_does_not_reach_whom_is_told_to_all(void **state) {
    (void)state;
    gs_status statuses[4];
    run_ranks(statuses, "miss", 4, "rank 1", NULL);
    for (int rank = 0; rank < 4; rank++) assert_string_equal(statuses[rank].message, "");
    run_ranks(statuses, "miss", 4, "other", NULL);
    for (int rank = 0; rank < 4; rank++) assert_string_equal(statuses[rank].message, "");
}

static void an_error_before_the_first_stage_accuses_nobody(void **state) {
    (void)state;
    gs_comm *comm;
    gs_comm_failure why = {.kind = GS_COMM_FAILURE_DAMAGED};
    gs_comm_options options = {.world_size = 0, .unreached = &why};
    assert_int_not_equal(gs_comm_create(&comm, &options, gs_deadline_in_seconds(NEAR_SECONDS)).code, GS_OK);
    assert_int_equal(why.kind, GS_COMM_FAILURE_NONE);
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_at_any_stage_of_any_rank_is_everybodys),
        cmocka_unit_test(there_are_as_many_stages_as_are_tried),
        cmocka_unit_test(a_bad_option_of_one_rank_is_everybodys_error),
        cmocka_unit_test(who_has_no_descriptors_left_says_so_to_all),
        cmocka_unit_test(a_group_names_ranks_of_the_world_too),
        cmocka_unit_test(who_does_not_reach_whom_is_told_to_all),
        cmocka_unit_test(an_error_before_the_first_stage_accuses_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
