// Two levels: hosts with several ranks each, of any shape, add exactly, in an order that follows
// from the hosts alone, whoever adds how much. A rank's host is a letter of the argument: "aabb",
// "abab", "aaab".
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/comm_trial.h"
#include "tests/support/ranks.h"
#include "tests/support/sample.h"
#include "tests/support/soon.h"

#define NUM_PROGRAM 60
#define MOST_COUNT ((size_t)600000)  // three chunks of fp32, the last one short
#define NUM_SHAPES 6
#define MOST_WORLD 8

// The shape, and behind it how the rank moves.
static gs_status open_rank(comm_rank *self, const gs_rank_env *env, size_t arena_bytes,
                           const char *backend) {
    char host[2] = {env->arg[env->rank], '\0'};
    bool helped = env->arg[strlen(env->arg) - 1] != '-';
    gs_comm_options options = {.backend = backend,
                               .helper = helped ? GS_HELPER_AUTO : GS_HELPER_OFF,
                               .num_lanes = 2};
    setenv("GRADSYNC_HOST", host, 1);
    return comm_rank_open(self, env, arena_bytes, &options);
}

// With a "+" ranks add other parts from here on: some of them none, and equal ones now and then.
static gs_status share_anew(comm_rank *self, const char *arg, uint64_t number) {
    gs_random_key common = {.seed = 92, .stream = 1};
    uint64_t dice = gs_random_u64(common, number);
    uint16_t shares[MOST_WORLD] = {0};
    if (!strchr(arg, '+')) return gs_ok();
    for (int i = 0; i < self->world_size; i++) {
        uint16_t share = (uint16_t)(dice >> 6 * i & 63);
        bool adds = share >= 20 || number % (uint64_t)self->world_size == (uint64_t)i;
        shares[i] = number % 5 == 4 ? 3 : adds ? (uint16_t)(share + 1) : 0;
    }
    return gs_comm_share(self->comm, shares);
}

// The same program of integers on all ranks, several in flight, in both lanes. When a rank waits it
// decides alone.
static gs_status run_program(comm_rank *self, const char *arg, comm_trial *trials,
                             unsigned char **memory) {
    static const gs_collective_kind kinds[] = {GS_ALLREDUCE, GS_ALLREDUCE,  GS_ALLREDUCE, GS_REDUCE,
                                               GS_REDUCE_SCATTER, GS_ALLGATHER, GS_BROADCAST};
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP32, GS_BF16, GS_FP64, GS_FP16, GS_I64, GS_I32};
    gs_random_key common = {.seed = 91, .stream = 1}, own = {91, 2 + (uint64_t)self->rank};
    gs_work works[NUM_PROGRAM];
    for (uint64_t i = 0; i < NUM_PROGRAM; i++) {
        uint64_t dice = gs_random_u64(common, i);
        size_t count = (size_t)1 << (dice >> 8) % 15;
        count += (size_t)(dice >> 16) % 7;
        gs_dtype dtype = dtypes[(dice >> 24) % 7];
        if (i % 20 == 7) count = MOST_COUNT - i, dtype = GS_FP32, dice -= dice % 7;
        trials[i] = comm_trial_make(kinds[dice % 7], dtype, count, self->world_size,
                                    (int)((dice >> 32) % (uint64_t)self->world_size), i);
        trials[i].collective.lane = (int)(dice >> 60 & 1);
        if (gs_collective_reduces(&trials[i].collective) && dtype == GS_FP32 && dice >> 50 & 1)
            trials[i].collective.wire_dtype = dice >> 51 & 1 ? GS_FP16 : GS_BF16;
        size_t bytes = (count * gs_dtype_bytes(dtype) * (size_t)self->world_size + 63) / 64 * 64;
        unsigned char *buffers = memory[i] = malloc(2 * bytes);
        if (!buffers) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
        comm_trial_place(&trials[i], buffers, dice >> 40 & 1 ? buffers + bytes : NULL, self->rank);
        if (i % 3 == 2) GS_TRY(share_anew(self, arg, i));  // while others are in flight
        GS_TRY(gs_comm_post(self->comm, &works[i], &trials[i].collective));
        if (gs_random_u64(own, i) % 8 == 0)
            GS_TRY(gs_comm_wait(self->comm, works[gs_random_u64(own, 500 + i) % (i + 1)], soon()));
    }
    for (size_t i = 0; i < NUM_PROGRAM; i++) GS_TRY(gs_comm_wait(self->comm, works[i], soon()));
    gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1};
    return gs_comm_run(self->comm, &barrier, soon());
}

static gs_status add_integers(const gs_rank_env *env) {
    static comm_trial trials[NUM_PROGRAM];
    static unsigned char *memory[NUM_PROGRAM];
    comm_rank self;
    gs_status status = open_rank(&self, env, 4096, strchr(env->arg, '~') ? "net" : "hosts");
    if (!status.code) status = run_program(&self, env->arg, trials, memory);
    for (int i = 0; i < NUM_PROGRAM && !status.code; i++)
        status = gs_status_prefix(comm_trial_check(&trials[i], self.rank, self.world_size),
                                  "collective %d, %s of %zu %s", i,
                                  gs_collective_kind_name(trials[i].collective.kind),
                                  trials[i].collective.count,
                                  gs_dtype_name(trials[i].collective.dtype));
    comm_rank_close(&self);
    for (int i = 0; i < NUM_PROGRAM; i++) free(memory[i]);
    return status;
}

// Numbers that round differently in every other order.
static float wild_value(int rank, size_t index) {
    gs_random_key key = {.seed = 7, .stream = (uint64_t)rank};
    float value = (float)gs_random_uniform(key, index) - 0.5f;
    return index % 3 ? value : value * 1e6f;
}

// Those of a host in the order of ranks, then the hosts in the order of their lowest ranks.
static float sum_by_hosts(const char *shape, int world_size, size_t index) {
    float sum = 0;
    bool is_first = true;
    for (int host = 0; host < world_size; host++) {
        if (memchr(shape, shape[host], (size_t)host)) continue;  // not the lowest of its host
        float part = wild_value(host, index);
        for (int r = host + 1; r < world_size; r++)
            if (shape[r] == shape[host]) part += wild_value(r, index);
        sum = is_first ? part : sum + part;
        is_first = false;
    }
    return sum;
}

static gs_status add_piece(comm_rank *self, float *data, size_t first, size_t count) {
    for (size_t i = 0; i < count; i++) data[first + i] = wild_value(self->rank, first + i);
    return gs_comm_run(self->comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = data + first,
                                        .recv = data + first,
                                        .count = count,
                                        .dtype = GS_FP32,
                                        .scale = 0.25,
                                        .bucket = -1},
                       soon());
}

// What one rank gets alone has the bits of what all get: sharded training keeps those of the whole.
static gs_status add_for_one(comm_rank *self, gs_collective_kind kind, float *data,
                             const float *expected, size_t row) {
    bool scatters = kind == GS_REDUCE_SCATTER;
    size_t count = scatters ? row / (size_t)self->world_size : row;
    size_t first = scatters ? count * (size_t)self->rank : 0;
    for (size_t i = 0; i < row; i++) data[i] = wild_value(self->rank, i);
    gs_collective one = {.kind = kind,
                         .send = data,
                         .recv = data + first,
                         .count = count,
                         .dtype = GS_FP32,
                         .root = 1,
                         .scale = 0.25,
                         .bucket = -1};
    GS_TRY(gs_comm_run(self->comm, &one, soon()));
    bool wants = scatters || self->rank == 1;
    for (size_t i = first; i < first + count && wants; i++)
        if (memcmp(&data[i], &expected[i], sizeof *data) != 0)
            return gs_error(GS_DATA_LOSS, "%s: element %zu is %a instead of %a",
                            gs_collective_kind_name(kind), i, (double)data[i], (double)expected[i]);
    return gs_ok();
}

// However a row of elements is cut into collectives.
static gs_status add_wild(const gs_rank_env *env) {
    comm_rank self;
    size_t count = 70000;
    gs_status status = open_rank(&self, env, 4096, "hosts");
    float *data = malloc(count * sizeof *data), *expected = malloc(count * sizeof *expected);
    for (size_t i = 0; i < count; i++)
        expected[i] = 0.25f * sum_by_hosts(env->arg, env->world_size, i);
    static const size_t pieces[] = {70000, 12345, 100, 33000};
    for (size_t k = 0; k < 4 && !status.code; k++) {
        for (size_t at = 0; at < count && !status.code; at += pieces[k]) {
            size_t piece = count - at < pieces[k] ? count - at : pieces[k];
            status = share_anew(&self, env->arg, k + at);
            if (!status.code) status = add_piece(&self, data, at, piece);
        }
        for (size_t i = 0; i < count && !status.code; i++) {
            if (memcmp(&data[i], &expected[i], sizeof *data) != 0)
                status = gs_error(GS_DATA_LOSS, "in pieces of %zu: element %zu is %a instead of %a",
                                  pieces[k], i, (double)data[i], (double)expected[i]);
        }
    }
    if (!status.code) status = add_for_one(&self, GS_REDUCE, data, expected, count);
    if (!status.code) status = add_for_one(&self, GS_REDUCE_SCATTER, data, expected, count);
    if (!status.code) status = add_for_one(&self, GS_REDUCE_SCATTER, data, expected, 600);
    comm_rank_close(&self);
    free(data);
    free(expected);
    return status;
}

// Along a tree the bits are those of every other backend.
#define NUM_SHARDS 8
#define SHARD_COUNT 20001
static const uint8_t merges[NUM_SHARDS] = {0, 1, 0, 2, 0, 1, 0, 3};

static gs_status add_along_tree(const gs_rank_env *env) {
    static float parts[NUM_SHARDS * SHARD_COUNT], sum[SHARD_COUNT];
    int rank_of[NUM_SHARDS], part_of[NUM_SHARDS], used[MOST_WORLD] = {0};
    comm_rank self;
    gs_status status = open_rank(&self, env, 4096, strchr(env->arg, '~') ? "net" : "hosts");
    for (int s = 0; s < NUM_SHARDS; s++) {
        rank_of[s] = s * env->world_size / NUM_SHARDS;
        part_of[s] = used[rank_of[s]]++;
        for (size_t i = 0; i < SHARD_COUNT && rank_of[s] == env->rank; i++)
            parts[(size_t)part_of[s] * SHARD_COUNT + i] = wild_value(s, i);
    }
    gs_reduce_tree tree = {NUM_SHARDS, rank_of, part_of, merges};
    gs_collective one = {.kind = GS_ALLREDUCE,
                         .send = parts,
                         .recv = sum,
                         .count = SHARD_COUNT,
                         .dtype = GS_FP32,
                         .tree = &tree,
                         .part_stride_bytes = SHARD_COUNT * sizeof *parts,
                         .bucket = 2};
    if (!status.code) status = share_anew(&self, env->arg, 2);
    if (!status.code) status = gs_comm_run(self.comm, &one, soon());
    for (size_t i = 0; i < SHARD_COUNT && !status.code; i++) {
        float v[NUM_SHARDS];
        for (int s = 0; s < NUM_SHARDS; s++) v[s] = wild_value(s, i);
        float expected = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
        if (memcmp(&sum[i], &expected, sizeof expected) != 0)
            status = gs_error(GS_DATA_LOSS, "element %zu is %a instead of %a", i, (double)sum[i],
                              (double)expected);
    }
    comm_rank_close(&self);
    return status;
}

// Rank 1 means other parts than the others do.
static gs_status differ(const gs_rank_env *env) {
    static float data[70000];
    comm_rank self;
    const uint16_t shares[] = {env->rank == 1 ? 2 : 1, 2, 3, 4};
    gs_status status = open_rank(&self, env, 4096, strchr(env->arg, '~') ? "net" : "hosts");
    if (!status.code) status = gs_comm_share(self.comm, shares);
    if (!status.code) status = add_piece(&self, data, 0, 70000);
    comm_rank_close(&self);
    return status;
}

static gs_status refuse(const gs_rank_env *env) {
    comm_rank self;
    gs_status status = open_rank(&self, env, 4096, "hosts");
    comm_rank_close(&self);
    return status;
}

// Of a part: as many ranks as are to be in it, and their sum.
static gs_status check_part(gs_comm *part, int wanted, float expected) {
    float mine = (float)(1 << gs_comm_world_rank(part, gs_comm_rank(part))), sum = 0;
    if (gs_comm_world_size(part) != wanted)
        return gs_error(GS_INTERNAL, "a part of %d ranks, not of %d", gs_comm_world_size(part), wanted);
    const gs_collective one = {.kind = GS_ALLREDUCE, .send = &mine, .recv = &sum, .count = 1, .dtype = GS_FP32, .bucket = -1};
    GS_TRY(gs_comm_run(part, &one, soon()));
    return sum == expected ? gs_ok() : gs_error(GS_DATA_LOSS, "a sum of %g, not %g, over %s", (double)sum, (double)expected, gs_comm_backend_name(part));
}

// Who shares memory, and no other rank of the machine; then parts that cross hosts.
static gs_status split_parts(const gs_rank_env *env) {
    comm_rank self;
    gs_comm *host = NULL, *across = NULL;
    int on_host = 0, same_color = 0;
    float host_sum = 0, across_sum = 0;
    for (int r = 0; r < env->world_size; r++) {
        bool is_near = env->arg[r] == env->arg[env->rank], is_alike = r % 2 == env->rank % 2;
        on_host += is_near, same_color += is_alike;
        host_sum += is_near ? (float)(1 << r) : 0, across_sum += is_alike ? (float)(1 << r) : 0;
    }
    gs_status status = open_rank(&self, env, 4096, env->arg[strlen(env->arg) - 1] == '~' ? "net" : "hosts");
    if (!status.code)
        status = gs_comm_split(&host, self.comm, &(gs_comm_split_options){.by_host = true, .name = "host"}, soon());
    if (!status.code) status = gs_status_prefix(check_part(host, on_host, host_sum), "by host");
    if (!status.code)
        status = gs_comm_split(&across, self.comm, &(gs_comm_split_options){.color = env->rank % 2}, soon());
    if (!status.code) status = gs_status_prefix(check_part(across, same_color, across_sum), "by colour");
    gs_comm_destroy(host);
    gs_comm_destroy(across);
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {{"integers", add_integers}, {"wild", add_wild}, {"parts", split_parts},
                                      {"tree", add_along_tree},   {"refuse", refuse}, {"differ", differ},
                                      {0}};

static void expect_ok(const char *body, const char *shape) {
    print_message("%s: %s\n", body, shape);
    int world_size = (int)strcspn(shape, "+-~");
    assert_ok(gs_ranks_run(body, world_size, shape, gs_deadline_in_seconds(120)));
}

static void integers_add_up_on_hosts_of_any_shape(void **state) {
    (void)state;
    gs_random_key drawn = {.seed = sample_seed("shapes"), .stream = 1};
    expect_ok("integers", "aabb");
    expect_ok("integers", "abbcac-");
    expect_ok("integers", "aaab");
    for (uint64_t i = 0; i < NUM_SHAPES; i++) {
        uint64_t dice = gs_random_u64(drawn, i);
        int world_size = 3 + (int)(i % (MOST_WORLD - 2)), hosts = 2 + (int)(dice >> 56) % (world_size - 2);
        char shape[MOST_WORLD + 2] = "ab";
        for (int r = 0; r < world_size; r++) shape[r] = (char)('a' + (int)(dice >> 6 * r & 63) % hosts);
        // Two hosts at least, of which one has two ranks.
        shape[world_size - 1] = shape[0];
        shape[1] = shape[0] == 'a' ? 'b' : 'a';
        if (dice >> 55 & 1) shape[world_size] = '-';
        expect_ok("integers", shape);
    }
}

static void integers_add_up_whoever_adds_how_much(void **state) {
    (void)state;
    expect_ok("integers", "abcd+~");
    expect_ok("integers", "abcdefgh+~");
    expect_ok("integers", "aabbcc+");
    expect_ok("integers", "abbcac+-");
    expect_ok("integers", "abcdab+");
}

static void who_adds_how_much_changes_no_bit(void **state) {
    (void)state;
    expect_ok("wild", "aabbcc+");
    expect_ok("wild", "abccba+");
    expect_ok("wild", "abcab+-");
    expect_ok("tree", "abcd+~");
    expect_ok("tree", "aabbcc+");
}

static void ranks_that_mean_other_parts_are_refused(void **state) {
    (void)state;
    gs_status status = gs_ranks_run("differ", 4, "abcd~", gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "rank 1 posted"));
    assert_non_null(strstr(status.message, "in shares"));
    status = gs_ranks_run("differ", 4, "abac", gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
}

static void sums_are_in_the_order_of_hosts_however_they_are_cut(void **state) {
    (void)state;
    expect_ok("wild", "aabb");
    expect_ok("wild", "abccba");
    expect_ok("wild", "abcab");
    expect_ok("wild", "aaab-");
}

static void sums_along_a_tree_have_the_bits_of_one_host(void **state) {
    (void)state;
    expect_ok("tree", "aabb");
    expect_ok("tree", "abcab");
}

static void parts_are_of_those_who_share_memory(void **state) {
    (void)state;
    expect_ok("parts", "aabb");
    expect_ok("parts", "abba");
    expect_ok("parts", "abcab");
    expect_ok("parts", "aab~");
}

static void hosts_that_need_no_two_levels_are_refused(void **state) {
    (void)state;
    gs_status status = gs_ranks_run("refuse", 2, "aa", gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_UNAVAILABLE);
    assert_non_null(strstr(status.message, "all 2 ranks are of one host"));
    status = gs_ranks_run("refuse", 3, "abc", gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_UNAVAILABLE);
    assert_non_null(strstr(status.message, "no two ranks are of one host"));
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_add_up_on_hosts_of_any_shape),
        cmocka_unit_test(integers_add_up_whoever_adds_how_much),
        cmocka_unit_test(who_adds_how_much_changes_no_bit),
        cmocka_unit_test(ranks_that_mean_other_parts_are_refused),
        cmocka_unit_test(sums_are_in_the_order_of_hosts_however_they_are_cut),
        cmocka_unit_test(sums_along_a_tree_have_the_bits_of_one_host),
        cmocka_unit_test(parts_are_of_those_who_share_memory),
        cmocka_unit_test(hosts_that_need_no_two_levels_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
