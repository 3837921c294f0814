// Sums of many small tensors between ranks: mixed dtypes, chunks, order, scale.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "gradsync/comm/coalesce.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/soon.h"

#define NUM_TENSORS 60
#define MOST_BYTES 4000

static bool callocs_fail;

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
    return callocs_fail ? NULL : __real_calloc(count, bytes);
}

static uint64_t draw(uint64_t seed, uint64_t what, uint64_t index) {
    return gs_random_u64((gs_random_key){.seed = seed, .stream = gs_random_stream(what, index, 0)},
                         0);
}

// A list whose dtypes alternate, some tensors empty, some neighbours in memory.
static void make_list(gs_tensor_view *tensors, char *memory, uint64_t seed) {
    static const gs_dtype dtypes[] = {GS_FP32, GS_I64, GS_FP64, GS_BF16, GS_FP16, GS_I32};
    for (size_t i = 0; i < NUM_TENSORS; i++) {
        gs_dtype dtype = dtypes[draw(seed, 1, i) % 6];
        size_t count = draw(seed, 2, i) % (MOST_BYTES / gs_dtype_bytes(dtype));
        if (draw(seed, 3, i) % 8 == 0) count = 0;
        tensors[i] = (gs_tensor_view){memory, count, dtype};
        memory += draw(seed, 4, i) % 2 ? (count * gs_dtype_bytes(dtype) + 7) / 8 * 8 : MOST_BYTES;
    }
}

// arg: "seed limit_bytes"
static gs_status body_sums(const gs_rank_env *env) {
    unsigned long long seed, limit_bytes;
    if (sscanf(env->arg, "%llu %llu", &seed, &limit_bytes) != 2) abort();
    comm_rank self;
    GS_TRY(comm_rank_open(&self, env, 1 << 20, NULL));
    gs_tensor_view tensors[NUM_TENSORS];
    make_list(tensors, gs_arena_data(self.arena), seed);
    for (size_t i = 0; i < NUM_TENSORS; i++)
        fill_pattern(tensors[i].data, tensors[i].dtype, tensors[i].count, seed + i, env->rank, 0);
    gs_status status = gs_coalesced_allreduce(self.comm, tensors, NUM_TENSORS, GS_OP_SUM, 0,
                                              (size_t)limit_bytes, soon());
    for (size_t i = 0; i < NUM_TENSORS && !status.code; i++)
        status = gs_status_prefix(check_pattern(tensors[i].data, tensors[i].dtype, tensors[i].count,
                                                seed + i, -1, env->world_size, 0),
                                  "tensor %zu", i);
    comm_rank_close(&self);
    return status;
}

static gs_status body_scaled(const gs_rank_env *env) {
    comm_rank self;
    GS_TRY(comm_rank_open(&self, env, 1 << 16, NULL));
    float a[3] = {1, 2, (float)env->rank}, b[1] = {8};
    gs_tensor_view tensors[] = {{a, 3, GS_FP32}, {b, 1, GS_FP32}};
    gs_status status =
        gs_coalesced_allreduce(self.comm, tensors, 2, GS_OP_SUM, 1.0 / env->world_size, 0, soon());
    if (!status.code && (a[0] != 1 || a[1] != 2 || a[2] != 0.5f || b[0] != 8))
        status = gs_error(GS_INTERNAL, "mean of %g, %g, %g, %g", (double)a[0], (double)a[1],
                          (double)a[2], (double)b[0]);
    int64_t most[2] = {env->rank, -env->rank};
    gs_tensor_view integers = {most, 2, GS_I64};
    if (!status.code)
        status = gs_coalesced_allreduce(self.comm, &integers, 1, GS_OP_MAX, 0, 0, soon());
    if (!status.code && (most[0] != 1 || most[1] != 0))
        status = gs_error(GS_INTERNAL, "largest are %d, %d", (int)most[0], (int)most[1]);
    if (!status.code) status = gs_coalesced_allreduce(self.comm, NULL, 0, GS_OP_SUM, 0, 0, soon());
    comm_rank_close(&self);
    return status;
}

// Rank 1 has another list: both ranks end, and say where.
static gs_status body_differs(const gs_rank_env *env) {
    comm_rank self;
    GS_TRY(comm_rank_open(&self, env, 1 << 16, NULL));
    float values[8] = {0};
    gs_tensor_view tensor = {values, env->rank == 1 ? 7u : 8u, GS_FP32};
    gs_status status =
        gs_coalesced_allreduce(self.comm, &tensor, 1, GS_OP_SUM, 0, 0, gs_deadline_in_seconds(5));
    comm_rank_close(&self);
    return status;
}

// Rank 1 has no memory for the list of chunks. Nobody leaves before all know.
static gs_status body_no_memory(const gs_rank_env *env) {
    comm_rank self;
    float values[8] = {0};
    char note = 0, all[2];
    gs_tensor_view tensor = {values, 8, GS_FP32};
    GS_TRY(comm_rank_open(&self, env, 1 << 16, NULL));
    callocs_fail = env->rank == 1;
    gs_status status = gs_coalesced_broadcast(self.comm, &tensor, 1, 0, 0, gs_deadline_in_seconds(60));
    callocs_fail = false;
    // The root of a broadcast need not wait for anybody.
    if (!status.code)
        status = gs_coalesced_allreduce(self.comm, &tensor, 1, GS_OP_SUM, 0, 0,
                                        gs_deadline_in_seconds(60));
    gs_status met = gs_rank_exchange(env->exchange, "known", NULL, 0, &note, 1, all, soon());
    comm_rank_close(&self);
    return met.code ? met : status;
}

static void lists_of_mixed_dtypes_are_summed_in_place(void **state) {
    (void)state;
    const size_t limits_bytes[] = {1, 5000, 100000, 0};
    for (int world_size = 1; world_size <= 3; world_size++) {
        for (unsigned i = 0; i < 4; i++) {
            char arg[64];
            snprintf(arg, sizeof arg, "%u %zu", 10 * (unsigned)world_size + i, limits_bytes[i]);
            gs_status status = gs_ranks_run("sums", world_size, arg, soon());
            if (status.code) fail_msg("seed and limit %s: %s", arg, status.message);
        }
    }
}

static void scale_and_operation_are_applied(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("scaled", 2, "", soon()));
}

static void lists_that_differ_end_on_every_rank(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[2];
    assert_ok(gs_ranks_start(&ranks, "differs", 2, "", NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, soon()));
    gs_ranks_destroy(ranks);
    for (int r = 0; r < 2; r++) {
        assert_int_not_equal(statuses[r].code, GS_OK);
        assert_non_null(strstr(statuses[r].message, "all-reduce"));
    }
}

static void a_rank_without_memory_ends_the_others(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[2];
    assert_ok(gs_ranks_start(&ranks, "no memory", 2, "", NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, soon()));
    gs_ranks_destroy(ranks);
    assert_int_equal(statuses[0].code, GS_ABORTED);
    assert_non_null(strstr(statuses[0].message, "broadcast: out of memory"));
    assert_int_equal(statuses[1].code, GS_RESOURCE_EXHAUSTED);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"sums", body_sums}, {"scaled", body_scaled}, {"differs", body_differs}, {"no memory", body_no_memory},
        {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_mixed_dtypes_are_summed_in_place),
        cmocka_unit_test(scale_and_operation_are_applied),
        cmocka_unit_test(lists_that_differ_end_on_every_rank),
        cmocka_unit_test(a_rank_without_memory_ends_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
