// Groups of ranks, several communicators at once, and a backend that is made of them.
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

#include "tests/embedded/composite.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"

#define MOST_RANKS 8
#define MOST_COUNT 12000
#define AREA_BYTES (MOST_RANKS * MOST_COUNT * sizeof(double))
#define FAR_SECONDS 60.0
#define NEAR_SECONDS 30.0

// "SPLIT HELPER INSIDE REST": where the second group begins, gs_helper_thread, whether groups are of groups.
typedef struct setting {
    composite_options own, inside;
    int is_nested, rest;
} setting;

static setting read_setting(const gs_rank_env *env) {
    setting set = {.inside = {.split = 1}};
    int helper = 0;
    sscanf(env->arg, "%d %d %d %d", &set.own.split, &helper, &set.is_nested, &set.rest);
    set.own.helper = set.inside.helper = (gs_helper_thread)helper;
    return set;
}

static gs_status open_composite(gs_comm **comm, const gs_rank_env *env, setting *set, gs_arena *arena,
                                gs_device *device, const char *group) {
    if (set->is_nested) set->own.inside = &set->inside;
    gs_comm_options options = {.rank = env->rank,
                               .world_size = env->world_size,
                               .generation = 1,
                               .exchange = gs_rank_exchange,
                               .exchange_ctx = env->exchange,
                               .arena = arena,
                               .device = device,
                               .num_lanes = 2,
                               .group = group,
                               .own_backend = &composite_backend,
                               .own_backend_ctx = &set->own};
    if (set->own.inside) options.num_lanes = 1;
    return gs_comm_create(comm, &options, gs_deadline_in_seconds(FAR_SECONDS));
}

typedef struct area {
    unsigned char *send, *recv;
} area;

static void fill(area at, const gs_collective *one, int rank, int world_size) {
    size_t count = one->count * (one->kind == GS_REDUCE_SCATTER ? (size_t)world_size : 1);
    memset(at.recv, 0xcd, AREA_BYTES);
    fill_pattern(at.send, one->dtype, count, one->count, rank, 0);
}

static size_t result_bytes(const gs_collective *one, int rank, int world_size) {
    size_t bytes = gs_collective_part_bytes(one);
    if (one->kind == GS_BARRIER || (one->kind == GS_REDUCE && one->root != rank)) return 0;
    return one->kind == GS_ALLGATHER ? bytes * (size_t)world_size : bytes;
}

// The same collective on both, from the same input: equal bytes.
static gs_status compare(const comm_rank *flat, gs_comm *composite, const area *areas, gs_collective one) {
    gs_comm *comms[2] = {flat->comm, composite};
    gs_work works[2];
    for (int i = 0; i < 2; i++) {
        fill(areas[i], &one, flat->rank, flat->world_size);
        one.send = areas[i].send;
        one.recv = areas[i].recv;
        if (i == 1 && one.count % 2) one.lane = gs_comm_num_lanes(composite) - 1;
        GS_TRY(gs_comm_post(comms[i], &works[i], &one));
    }
    for (int i = 2; i-- > 0;) GS_TRY(gs_comm_wait(comms[i], works[i], soon()));
    size_t bytes = result_bytes(&one, flat->rank, flat->world_size);
    if (memcmp(areas[0].recv, areas[1].recv, bytes) == 0) return gs_ok();
    return gs_error(GS_DATA_LOSS, "%s of %zu %s differs", gs_collective_kind_name(one.kind), one.count,
                    gs_dtype_name(one.dtype));
}

static gs_status compare_all(const comm_rank *flat, gs_comm *composite, const area *areas) {
    static const size_t counts[] = {0, 1, 1001, MOST_COUNT};
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP64, GS_I64, GS_BF16};
    for (gs_collective_kind kind = GS_ALLREDUCE; kind <= GS_BARRIER; kind++) {
        for (size_t i = 0; i < 16; i++) {
            gs_dtype dtype = dtypes[i / 4];
            gs_collective one = {.kind = kind,
                                 .count = counts[i % 4],
                                 .dtype = dtype,
                                 .root = (int)i % flat->world_size,
                                 .scale = dtype == GS_FP32 && i % 2 ? 0.5 : 0,
                                 .step = (int64_t)i,
                                 .bucket = (int)i % 3 - 1};
            GS_TRY(compare(flat, composite, areas, one));
        }
    }
    return gs_ok();
}

// Several in flight in two lanes, and ranks that begin them in different orders.
static gs_status run_many(const comm_rank *flat, gs_comm *composite, unsigned char *data) {
    enum { MANY = 24, COUNT = 700 };
    gs_work works[MANY];
    float *values = (float *)(void *)data;
    int num_lanes = gs_comm_num_lanes(composite);
    for (int i = 0; i < MANY; i++) fill_pattern(values + i * COUNT, GS_FP32, COUNT, (uint64_t)i, flat->rank, 0);
    for (int turn = 0; turn < num_lanes; turn++) {
        int lane = (turn + flat->rank) % num_lanes;
        for (int i = lane; i < MANY; i += num_lanes) {
            gs_collective sum = {.kind = GS_ALLREDUCE,
                                 .send = values + i * COUNT,
                                 .recv = values + i * COUNT,
                                 .count = COUNT,
                                 .dtype = GS_FP32,
                                 .lane = lane,
                                 .bucket = i};
            GS_TRY(gs_comm_post(composite, &works[i], &sum));
        }
    }
    for (int i = MANY; i-- > 0;) {
        GS_TRY(gs_comm_wait(composite, works[i], soon()));
        GS_TRY(check_pattern(values + i * COUNT, GS_FP32, COUNT, (uint64_t)i, -1, flat->world_size, 0));
    }
    return gs_ok();
}

// Both communicators, and those inside, share one arena; then memory that is in none.
static gs_status sum_like_flat(const gs_rank_env *env) {
    setting set = read_setting(env);
    comm_rank flat = {0};
    gs_comm *composite = NULL;
    unsigned char *outside = malloc(4 * AREA_BYTES);
    gs_comm_options options = {.helper = set.own.helper};
    gs_status status = outside ? comm_rank_open(&flat, env, 4 * AREA_BYTES, &options) : gs_error(GS_INTERNAL, "memory");
    if (!status.code) status = open_composite(&composite, env, &set, flat.arena, flat.device, "composite");
    for (int turn = 0; turn < 2 && !status.code; turn++) {
        unsigned char *at = turn ? outside : gs_arena_data(flat.arena);
        area areas[2] = {{at, at + AREA_BYTES}, {at + 2 * AREA_BYTES, at + 3 * AREA_BYTES}};
        status = compare_all(&flat, composite, areas);
        if (!status.code) status = run_many(&flat, composite, at);
    }
    gs_comm_destroy(composite);
    comm_rank_close(&flat);
    free(outside);
    return status;
}

static gs_status take_steps(small_reducer *small, int64_t first, float grads[][SMALL_PARAMS]) {
    for (int step = 0; step < 4; step++) {
        double values[SMALL_PARAMS];
        gs_reduce_result result;
        for (int p = 0; p < SMALL_PARAMS; p++) values[p] = 3 * p + 8 * step + small->rank;
        GS_TRY(small_reducer_run_step(small, first + step, values, &result));
        for (size_t p = 0; p < SMALL_PARAMS; p++) grads[step][p] = (float)small_reducer_grad(small, p, 1);
    }
    return gs_ok();
}

static gs_status train_like_flat(const gs_rank_env *env) {
    setting set = read_setting(env);
    small_reducer small;
    gs_comm *composite = NULL;
    float flat[4][SMALL_PARAMS], grouped[4][SMALL_PARAMS];
    small_reducer_prepare(&small);
    gs_reducer_options options = {0};
    GS_TRY(small_reducer_open(&small, &options, env));
    gs_status status = take_steps(&small, 0, flat);
    if (!status.code) status = open_composite(&composite, env, &set, small.arena, small.device, "composite");
    if (!status.code) status = gs_reducer_reset(small.reducer, composite, soon());
    if (!status.code) status = take_steps(&small, 4, grouped);
    if (!status.code && memcmp(flat, grouped, sizeof flat) != 0)
        status = gs_error(GS_DATA_LOSS, "gradients differ: %g, not %g", (double)grouped[1][1], (double)flat[1][1]);
    if (!status.code && flat[1][1] != 3 + 8 + (float)(env->world_size - 1) / 2)
        status = gs_error(GS_DATA_LOSS, "a mean is %g", (double)flat[1][1]);
    gs_comm *own = small.comm;
    small.comm = composite;  // outlives the reducer
    small_reducer_close(&small);
    gs_comm_destroy(own);
    return status;
}

static gs_status wait_for_the_end(const gs_rank_env *env, gs_comm *comm) {
    float value = 1;
    gs_collective sum = {
        .kind = GS_ALLREDUCE, .send = &value, .recv = &value, .count = 1, .dtype = GS_FP32, .bucket = 3, .step = 5};
    GS_TRY(gs_comm_run(comm, &sum, soon()));
    gs_rank_note(env, "ready");
    if (env->rank == read_setting(env).rest) pause();
    return gs_comm_run(comm, &sum, gs_deadline_in_seconds(FAR_SECONDS));
}

// Rank `rest` is killed by the parent while the others wait for it.
static gs_status lose_a_rank(const gs_rank_env *env) {
    setting set = read_setting(env);
    gs_comm *comm = NULL;
    gs_device *device = NULL;
    gs_comm_failure why;
    GS_TRY(gs_device_open(&device, "cpu", &(gs_device_options){.num_threads = 1}));
    gs_status status = open_composite(&comm, env, &set, NULL, device, NULL);
    if (!status.code) status = wait_for_the_end(env, comm);
    bool is_neighbour = (env->rank < set.own.split) == (set.rest < set.own.split);
    if (comm && is_neighbour) {
        gs_comm_explain(comm, &why);
        if (why.kind != GS_COMM_FAILURE_PEER_LOST || !gs_comm_failure_names(&why, set.rest))
            status = gs_status_prefix(status, "accuses another (%s)", gs_comm_failure_kind_name(why.kind));
    }
    gs_comm_destroy(comm);
    gs_device_close(device);
    return status;
}

static gs_status abort_by_one(const gs_rank_env *env) {
    setting set = read_setting(env);
    gs_comm *comm = NULL;
    gs_device *device = NULL;
    GS_TRY(gs_device_open(&device, "cpu", &(gs_device_options){.num_threads = 1}));
    gs_status status = open_composite(&comm, env, &set, NULL, device, NULL);
    gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1};
    if (!status.code) status = gs_comm_run(comm, &barrier, soon());
    if (!status.code && env->rank == set.rest) gs_comm_abort(comm, "told so");
    if (!status.code) status = gs_comm_run(comm, &barrier, gs_deadline_in_seconds(FAR_SECONDS));
    gs_comm_destroy(comm);
    gs_device_close(device);
    return status;
}

// Two groups that share an arena in each process, odd and even ranks, beside the world.
static gs_status run_apart(const gs_rank_env *env) {
    comm_rank world;
    gs_comm *group = NULL;
    int ranks[MOST_RANKS], num_ranks = 0;
    for (int i = env->rank % 2; i < env->world_size; i += 2) ranks[num_ranks++] = i;
    GS_TRY(comm_rank_open(&world, env, 65536, NULL));
    gs_comm_options options = {.rank = env->rank / 2,
                               .world_size = num_ranks,
                               .generation = 1,
                               .exchange = gs_rank_exchange,
                               .exchange_ctx = env->exchange,
                               .arena = world.arena,
                               .device = world.device,
                               .ranks = ranks,
                               .group = env->rank % 2 ? "odd" : "even"};
    gs_status status = gs_comm_create(&group, &options, soon());
    int32_t *values = gs_arena_data(world.arena);
    for (int round = 0; round < 3 && !status.code; round++) {
        // In both at once, at different places of one arena.
        gs_collective within = {.kind = GS_ALLREDUCE, .count = 5000, .dtype = GS_I32, .bucket = -1};
        gs_collective among = within;
        within.send = within.recv = values;
        among.send = among.recv = values + 5000;
        for (int i = 0; i < 10000; i++) values[i] = env->rank + i;
        gs_work first, second;
        status = gs_comm_post(group, &first, &within);
        if (!status.code) status = gs_comm_post(world.comm, &second, &among);
        gs_comm *both[2] = {group, world.comm};
        while (!status.code && !(gs_comm_done(group, first) && gs_comm_done(world.comm, second)))
            status = gs_comm_wait_moved(both, 2, soon());
        int sum = 0, all = env->world_size * (env->world_size - 1) / 2;
        for (int i = 0; i < num_ranks; i++) sum += ranks[i];
        for (int i = 0; i < 5000 && !status.code; i++) {
            if (values[i] != sum + num_ranks * i || values[5000 + i] != all + env->world_size * (5000 + i))
                status = gs_error(GS_DATA_LOSS, "round %d: element %d is %d and %d", round, i, values[i],
                                  values[5000 + i]);
        }
    }
    // The even ones' end is not the world's.
    gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1};
    if (!status.code) status = gs_comm_run(world.comm, &barrier, soon());
    if (!status.code && env->rank == 0) gs_comm_abort(group, "enough");
    if (!status.code) status = gs_comm_run(world.comm, &barrier, soon());
    if (!status.code) {
        gs_status end = gs_comm_run(group, &barrier, soon());
        if (end.code != (env->rank % 2 ? GS_OK : GS_ABORTED)) status = gs_status_prefix(end, "group");
    }
    if (!status.code) status = gs_comm_run(world.comm, &barrier, soon());
    gs_comm_destroy(group);
    comm_rank_close(&world);
    return status;
}

static gs_status open_wrongly(const gs_rank_env *env) {
    setting set = read_setting(env);
    gs_comm *comm = NULL;
    gs_device *device = NULL;
    GS_TRY(gs_device_open(&device, "cpu", &(gs_device_options){.num_threads = 1}));
    if (env->rank == set.rest) set.own.split = 0;
    gs_status status = open_composite(&comm, env, &set, NULL, device, NULL);
    gs_comm_destroy(comm);
    gs_device_close(device);
    return status;
}

static const gs_rank_body bodies[] = {{"sums", sum_like_flat}, {"reducer", train_like_flat},
                                      {"lose", lose_a_rank},   {"abort", abort_by_one},
                                      {"apart", run_apart},    {"wrong", open_wrongly},
                                      {0}};

static void run_well(const char *body, int world_size, const char *arg) {
    gs_status status = gs_ranks_run(body, world_size, arg, gs_deadline_in_seconds(FAR_SECONDS));
    if (status.code) print_error("%s of %d, \"%s\"\n", body, world_size, arg);
    assert_string_equal(status.message, "");
}

static void two_groups_joined_sum_like_the_flat_world(void **state) {
    (void)state;
    run_well("sums", 4, "2 1 0");
    run_well("sums", 5, "3 1 0");  // GS_HELPER_OFF
    run_well("sums", 2, "1 1 0");
}

static void groups_with_threads_of_their_own_do_so_too(void **state) {
    (void)state;
    run_well("sums", 4, "2 2 0");
}

static void groups_of_groups_do_so_too(void **state) {
    (void)state;
    run_well("sums", 4, "2 0 1");
}

static void a_reducer_takes_the_same_steps_over_groups(void **state) {
    (void)state;
    run_well("reducer", 4, "2 1 0");
    run_well("reducer", 5, "2 2 0");
}

static void communicators_of_one_process_live_beside_each_other(void **state) {
    (void)state;
    run_well("apart", 4, "");
}

static void a_killed_rank_of_either_group_ends_all_and_is_named(void **state) {
    (void)state;
    for (int killed = 0; killed < 4; killed++) {
        gs_ranks *ranks;
        gs_status statuses[4];
        char arg[32], named[32];
        snprintf(arg, sizeof arg, "2 %d 0 %d", killed % 2 ? 1 : 2, killed);
        assert_int_equal(gs_ranks_start(&ranks, "lose", 4, arg, NULL).code, GS_OK);
        for (int i = 0; i < 4; i++)
            assert_int_equal(gs_ranks_wait_note(ranks, i, "ready", gs_deadline_in_seconds(NEAR_SECONDS)).code, GS_OK);
        gs_ranks_signal(ranks, killed, SIGKILL);
        assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(NEAR_SECONDS)).code, GS_OK);
        gs_ranks_destroy(ranks);
        // The left group's numbers are the world's.
        snprintf(named, sizeof named, killed < 2 ? "rank %d " : "world rank %d:", killed);
        for (int i = 0; i < 4; i++) {
            if (i == killed) continue;
            if (statuses[i].code != GS_ABORTED || !strstr(statuses[i].message, named))
                print_error("rank %d of which %d was killed: %s\n", i, killed, statuses[i].message);
            assert_int_equal(statuses[i].code, GS_ABORTED);
            assert_non_null(strstr(statuses[i].message, named));
            assert_null(strstr(statuses[i].message, "accuses another"));
        }
    }
}

static void an_abort_of_one_rank_ends_all_with_its_reason(void **state) {
    (void)state;
    for (int rank = 0; rank < 4; rank++) {
        gs_ranks *ranks;
        gs_status statuses[4];
        char arg[32];
        snprintf(arg, sizeof arg, "2 %d 0 %d", rank % 2 ? 1 : 2, rank);
        assert_int_equal(gs_ranks_start(&ranks, "abort", 4, arg, NULL).code, GS_OK);
        assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(NEAR_SECONDS)).code, GS_OK);
        gs_ranks_destroy(ranks);
        for (int i = 0; i < 4; i++) {
            if (!strstr(statuses[i].message, "told so")) print_error("rank %d: %s\n", i, statuses[i].message);
            assert_int_equal(statuses[i].code, GS_ABORTED);
            assert_non_null(strstr(statuses[i].message, "told so"));
        }
    }
}

static void a_backend_that_fails_on_one_rank_fails_on_all(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[4];
    assert_int_equal(gs_ranks_start(&ranks, "wrong", 4, "2 1 0 3", NULL).code, GS_OK);
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(NEAR_SECONDS)).code, GS_OK);
    gs_ranks_destroy(ranks);
    for (int i = 0; i < 4; i++) assert_string_equal(statuses[i].message, "rank 3: split 0 of 4");
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_groups_joined_sum_like_the_flat_world),
        cmocka_unit_test(groups_with_threads_of_their_own_do_so_too),
        cmocka_unit_test(groups_of_groups_do_so_too),
        cmocka_unit_test(a_reducer_takes_the_same_steps_over_groups),
        cmocka_unit_test(communicators_of_one_process_live_beside_each_other),
        cmocka_unit_test(a_killed_rank_of_either_group_ends_all_and_is_named),
        cmocka_unit_test(an_abort_of_one_rank_ends_all_with_its_reason),
        cmocka_unit_test(a_backend_that_fails_on_one_rank_fails_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
