// Every collective, dtype and size, in and outside the arena, gives exact results on every rank.
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "core/random.h"
#include "core/thread.h"
#include "tests/support/comm_rank.h"
#include "tests/support/comm_trial.h"
#include "tests/support/ranks.h"

#define MAX_WORLD 8
#define RUN_SECONDS 50.0

static const gs_collective_kind kinds[] = {GS_ALLREDUCE, GS_REDUCE, GS_REDUCE_SCATTER, GS_ALLGATHER,
                                           GS_BROADCAST};
static const gs_dtype dtypes[] = {GS_FP32, GS_BF16, GS_FP64, GS_FP16, GS_I64, GS_I32, GS_U8};
static const gs_dtype wires[] = {GS_DTYPE_UNSET, GS_FP16, GS_BF16};
static const size_t counts[] = {0, 1, 7, 1024, 4096, 16384, 100003, 400009};

// A thread sanitizer makes each access many times slower, and what it looks for does not depend on
// how many there are: there, only few chunks and blocks.
#ifdef __SANITIZE_THREAD__
#define MOST_COUNT 100003
#else
#define MOST_COUNT 400009
#endif

static bool is_reducing(gs_collective_kind kind) {
    return kind == GS_ALLREDUCE || kind == GS_REDUCE || kind == GS_REDUCE_SCATTER;
}

static gs_status run_trial(comm_rank *self, comm_trial *one, unsigned char *memory, size_t half_bytes,
                           bool in_place) {
    comm_trial_place(one, memory, in_place ? NULL : memory + half_bytes, self->rank);
    gs_status status =
        gs_comm_run(self->comm, &one->collective, gs_deadline_in_seconds(RUN_SECONDS));
    if (!status.code) status = comm_trial_check(one, self->rank, self->world_size);
    return gs_status_prefix(status, "kind %d, %s, count %zu, %s%s", one->collective.kind,
                            gs_dtype_name(one->collective.dtype), one->collective.count,
                            gs_comm_algorithm(self->comm, &one->collective),
                            in_place ? " in place" : "");
}

static gs_status sweep_memory(comm_rank *self, unsigned char *memory, size_t half_bytes) {
    uint64_t seed = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
                if (dtypes[d] == GS_U8 && is_reducing(kinds[k])) continue;
                if (counts[n] > 16384 && d > 1) continue;  // size matters, not the dtype
                if (counts[n] > MOST_COUNT) continue;
                int root = (int)(seed % (uint64_t)self->world_size);
                for (int in_place = 0; in_place < 2; in_place++) {
                    comm_trial one =
                        comm_trial_make(kinds[k], dtypes[d], counts[n], self->world_size, root, ++seed);
                    GS_TRY(run_trial(self, &one, memory, half_bytes, in_place));
                }
            }
        }
    }
    gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1};
    return gs_comm_run(self->comm, &barrier, gs_deadline_in_seconds(RUN_SECONDS));
}

static gs_status sweep_both(comm_rank *self, size_t half_bytes) {
    GS_TRY(gs_status_prefix(sweep_memory(self, gs_arena_data(self->arena), half_bytes), "arena"));
    unsigned char *memory = malloc(2 * half_bytes);
    if (!memory) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = sweep_memory(self, memory, half_bytes);
    free(memory);
    return status;
}

// "": shared memory, moved in the owner's calls; "helper": by a thread; "net": between hosts.
static gs_comm_options options_of(const gs_rank_env *env) {
    return (gs_comm_options){
        .backend = strcmp(env->arg, "net") == 0 ? "net" : NULL,
        .helper = strcmp(env->arg, "helper") == 0 ? GS_HELPER_ON : GS_HELPER_OFF};
}

static gs_status sweep(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = options_of(env);
    size_t half_bytes = (MOST_COUNT * 4 * (size_t)env->world_size + 4095) / 4096 * 4096;
    gs_status status = comm_rank_open(&self, env, 2 * half_bytes, &options);
    if (!status.code) status = sweep_both(&self, half_bytes);
    comm_rank_close(&self);
    return status;
}

// The same random program on all ranks, posted ahead of each other. What the ranks decide alone:
// whether buffers lie in the arena, and when they wait.
#define NUM_RANDOM 300

static gs_status post_random(comm_rank *self, comm_trial *trials, unsigned char **memory) {
    gs_random_key common = {.seed = 42, .stream = 1}, own = {42, 2 + (uint64_t)self->rank};
    size_t arena_used = 0;
    gs_work work = {0};
    for (uint64_t i = 0; i < NUM_RANDOM; i++) {
        uint64_t dice = gs_random_u64(common, i);
        size_t count = (size_t)1 << (dice >> 8) % 15;
        count += (size_t)(dice >> 16) % 7;
        gs_dtype dtype = dtypes[(dice >> 24) % 6];
        int root = (int)((dice >> 32) % (uint64_t)self->world_size);
        trials[i] = comm_trial_make(kinds[dice % 5], dtype, count, self->world_size, root, i);
        size_t bytes = count * gs_dtype_bytes(dtype) * (size_t)self->world_size;
        bytes = (bytes + 63) / 64 * 64;
        unsigned char *buffers = memory[i] = NULL;
        // A few ranks leave the arena now and then, so that the others have to go along.
        if (gs_random_u64(own, i) % 8 == 0)
            buffers = memory[i] = malloc(2 * bytes);
        else
            buffers = (unsigned char *)gs_arena_data(self->arena) + arena_used;
        arena_used += 2 * bytes;
        if (!buffers || arena_used > gs_arena_bytes(self->arena))
            return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory at %d", (int)i);
        if (gs_collective_reduces(&trials[i].collective) && (dtype == GS_FP32 || dtype == GS_FP64))
            trials[i].collective.wire_dtype = wires[(dice >> 44) % 3];
        comm_trial_place(&trials[i], buffers, dice >> 40 & 1 ? buffers + bytes : NULL, self->rank);
        GS_TRY(gs_comm_post(self->comm, &work, &trials[i].collective));
        if (gs_random_u64(own, 1000 + i) % 16 == 0)
            GS_TRY(gs_comm_wait(self->comm, (gs_work){.sequence = work.sequence / 2 + 1},
                                gs_deadline_in_seconds(RUN_SECONDS)));
    }
    return gs_comm_wait(self->comm, work, gs_deadline_in_seconds(RUN_SECONDS));
}

static gs_status run_random(const gs_rank_env *env) {
    static comm_trial trials[NUM_RANDOM];
    static unsigned char *memory[NUM_RANDOM];
    comm_rank self;
    gs_comm_options options = options_of(env);
    gs_status status = comm_rank_open(&self, env, (size_t)160 << 20, &options);
    if (!status.code) status = post_random(&self, trials, memory);
    for (int i = 0; i < NUM_RANDOM && !status.code; i++)
        status = gs_status_prefix(comm_trial_check(&trials[i], self.rank, self.world_size),
                                  "collective %d", i);
    gs_work_times times;
    if (!status.code &&
        (!gs_comm_times(self.comm, (gs_work){.sequence = NUM_RANDOM}, &times) ||
         times.posted_ns > times.all_arrived_ns || times.all_arrived_ns > times.started_ns ||
         times.started_ns > times.finished_ns || !times.posted_ns))
        status = gs_error(GS_INTERNAL, "times are out of order");
    comm_rank_close(&self);
    for (int i = 0; i < NUM_RANDOM; i++) free(memory[i]);
    return status;
}

// Sums of numbers that round differently in every other order.
static float wild_value(int rank, size_t index) {
    gs_random_key key = {.seed = 7, .stream = (uint64_t)rank};
    float value = (float)gs_random_uniform(key, index) - 0.5f;
    return index % 3 ? value : value * 1e6f;
}

static gs_status check_rank_order(comm_rank *self, float *data, size_t count) {
    for (size_t i = 0; i < count; i++) data[i] = wild_value(self->rank, i);
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = count,
                         .dtype = GS_FP32,
                         .scale = 0.25,
                         .bucket = -1};
    GS_TRY(gs_comm_run(self->comm, &sum, gs_deadline_in_seconds(RUN_SECONDS)));
    for (size_t i = 0; i < count; i++) {
        float expected = wild_value(0, i);
        for (int r = 1; r < self->world_size; r++) expected += wild_value(r, i);
        expected *= 0.25f;
        if (memcmp(&data[i], &expected, sizeof expected) != 0)
            return gs_error(GS_DATA_LOSS, "%s: element %zu of %zu is %a instead of %a",
                            gs_comm_algorithm(self->comm, &sum), i, count, (double)data[i],
                            (double)expected);
    }
    return gs_ok();
}

static gs_status sum_in_rank_order(const gs_rank_env *env) {
    static float outside[200000];
    comm_rank self;
    gs_comm_options options = options_of(env);
    gs_status status = comm_rank_open(&self, env, sizeof outside, &options);
    float *inside = status.code ? NULL : gs_arena_data(self.arena);
    if (!status.code) status = check_rank_order(&self, inside, 200);
    if (!status.code) status = check_rank_order(&self, inside, 200000);
    if (!status.code) status = check_rank_order(&self, outside, 200000);
    comm_rank_close(&self);
    return status;
}

// 16 bits on their way: every contribution is rounded, and the sum, at these two places alone.
#define WIRE_SCALE 0.3f

static float round_to(gs_dtype dtype, float value) {
    return dtype == GS_FP16 ? gs_fp16_to_fp32(gs_fp32_to_fp16(value))
                            : gs_bf16_to_fp32(gs_fp32_to_bf16(value));
}

static void put_number(void *data, size_t i, gs_dtype dtype, float value) {
    if (dtype == GS_FP64)
        ((double *)data)[i] = (double)value * (1 + 0x1p-40);
    else
        ((float *)data)[i] = value;
}

//   after  rounded before it is scaled, too
static float get_sent(gs_dtype dtype, gs_dtype wire, bool after, float value) {
    double wide = (double)value * (1 + 0x1p-40);
    float narrow = dtype == GS_FP64 ? (float)wide : value;
    if (after) return round_to(wire, round_to(wire, narrow) * WIRE_SCALE);
    return round_to(wire, dtype == GS_FP64 ? (float)(wide * (double)WIRE_SCALE) : value * WIRE_SCALE);
}

static gs_status check_wire(comm_rank *self, gs_collective_kind kind, void *send, void *recv,
                            size_t count, gs_dtype dtype, gs_dtype wire, bool after) {
    for (size_t i = 0; i < count; i++) put_number(send, i, dtype, wild_value(self->rank, i));
    gs_collective sum = {.kind = kind,
                         .send = send,
                         .recv = recv,
                         .count = count,
                         .dtype = dtype,
                         .scale = 0.5,
                         .bucket = -1,
                         .wire_dtype = wire,
                         .wire_scale = WIRE_SCALE,
                         .wire_scale_after = after};
    // Of a reduce-scatter the whole parts that there are; this rank has its own.
    if (kind == GS_REDUCE_SCATTER) sum.count = count / (size_t)self->world_size;
    size_t first = kind == GS_REDUCE_SCATTER ? (size_t)self->rank * sum.count : 0;
    GS_TRY(gs_comm_run(self->comm, &sum, gs_deadline_in_seconds(RUN_SECONDS)));
    if (kind == GS_REDUCE && self->rank != 0) return gs_ok();
    for (size_t k = 0; k < sum.count; k++) {
        size_t i = first + k;
        float expected = get_sent(dtype, wire, after, wild_value(0, i));
        for (int r = 1; r < self->world_size; r++)
            expected += get_sent(dtype, wire, after, wild_value(r, i));
        double rounded = (double)round_to(wire, expected * 0.5f);
        double got = dtype == GS_FP64 ? ((double *)recv)[k] : (double)((float *)recv)[k];
        if (memcmp(&got, &rounded, sizeof got) != 0 && !(isnan(got) && isnan(rounded)))
            return gs_error(GS_DATA_LOSS,
                            "%s of %s by %s, %s: element %zu of %zu is %a instead of %a",
                            gs_collective_kind_name(kind),
                            gs_dtype_name(dtype), gs_dtype_name(wire),
                            gs_comm_algorithm(self->comm, &sum), i, count, got, rounded);
    }
    return gs_ok();
}

static gs_status check_wires(comm_rank *self, char *memory, size_t half_bytes) {
    // Slots of one collective hold up to 8192 elements of 16 bits, wherever the buffers lie; chunks
    // 32768.
    static const size_t sizes[] = {0, 1, 33, 8192, 8193, 32769, 70001};
    size_t first = memory == gs_arena_data(self->arena) ? 0 : 4;
    for (int way = 0; way < 8; way++) {
        gs_dtype dtype = way & 1 ? GS_FP64 : GS_FP32, wire = way & 2 ? GS_FP16 : GS_BF16;
        for (size_t i = first; i < sizeof sizes / sizeof *sizes; i++) {
            bool after = (i + (size_t)way / 4) % 2;
            gs_collective_kind other = i % 2 ? GS_REDUCE : GS_REDUCE_SCATTER;
            GS_TRY(check_wire(self, GS_ALLREDUCE, memory, way & 4 ? memory : memory + half_bytes,
                              sizes[i], dtype, wire, after));
            if (way & 4)
                GS_TRY(check_wire(self, other, memory, memory + half_bytes, sizes[i], dtype, wire,
                                  after));
        }
    }
    return gs_ok();
}

static gs_status round_on_the_wire(const gs_rank_env *env) {
    static double outside[2 * 70016];
    comm_rank self;
    gs_comm_options options = options_of(env);
    gs_status status = comm_rank_open(&self, env, sizeof outside, &options);
    if (!status.code) status = check_wires(&self, gs_arena_data(self.arena), sizeof outside / 2);
    if (!status.code) status = check_wires(&self, (char *)outside, sizeof outside / 2);
    comm_rank_close(&self);
    return status;
}

// Eight logical shards, dealt to 1 … 8 ranks; every rank holds its shards' gradients as parts.
#define NUM_SHARDS 8
#define SHARD_COUNT 30001
static const uint8_t shard_merges[NUM_SHARDS] = {0, 1, 0, 2, 0, 1, 0, 3};

// What each shard has, and the sum of all; made once, for drawing numbers is what takes long.
typedef struct tree_values {
    float of_shard[NUM_SHARDS][SHARD_COUNT];
    float sum[SHARD_COUNT];
} tree_values;

static void fill_tree_values(tree_values *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float v[NUM_SHARDS];
        for (int s = 0; s < NUM_SHARDS; s++) v[s] = values->of_shard[s][i] = wild_value(s, i);
        values->sum[i] = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
}

//   recv  `parts`: in place
static gs_status check_tree(comm_rank *self, const tree_values *values, gs_collective_kind kind,
                            float *parts, float *recv, size_t count) {
    int rank_of[NUM_SHARDS], part_of[NUM_SHARDS], used[MAX_WORLD] = {0};
    for (int s = 0; s < NUM_SHARDS; s++) {
        rank_of[s] = s * self->world_size / NUM_SHARDS;
        part_of[s] = used[rank_of[s]]++;
        if (rank_of[s] == self->rank)
            memcpy(parts + (size_t)part_of[s] * count, values->of_shard[s], count * sizeof *parts);
    }
    gs_reduce_tree tree = {NUM_SHARDS, rank_of, part_of, shard_merges};
    gs_collective sum = {.kind = kind,
                         .send = parts,
                         .recv = recv,
                         .count = count,
                         .dtype = GS_FP32,
                         .tree = &tree,
                         .part_stride_bytes = count * sizeof *parts,
                         .root = self->world_size / 2,
                         .bucket = 2};
    size_t first = 0;
    if (kind == GS_REDUCE_SCATTER) {
        sum.count = count / (size_t)self->world_size;
        first = sum.count * (size_t)self->rank;
        if (recv == parts) sum.recv = recv += first;
    } else if (kind == GS_REDUCE && self->rank != sum.root) {
        sum.recv = NULL;
    }
    GS_TRY(gs_comm_run(self->comm, &sum, gs_deadline_in_seconds(RUN_SECONDS)));
    for (size_t i = 0; i < (sum.recv ? sum.count : 0); i++) {
        const float *expected = &values->sum[first + i];
        if (memcmp(&recv[i], expected, sizeof *expected) != 0)
            return gs_error(GS_DATA_LOSS, "%s, %s: element %zu of %zu is %a instead of %a",
                            gs_collective_kind_name(kind), gs_comm_algorithm(self->comm, &sum), i,
                            sum.count, (double)recv[i], (double)*expected);
    }
    return gs_ok();
}

static gs_status sum_along_tree(const gs_rank_env *env) {
    static tree_values values;
    static float outside[(NUM_SHARDS + 1) * SHARD_COUNT];
    comm_rank self;
    gs_comm_options options = options_of(env);
    gs_status status = comm_rank_open(&self, env, sizeof outside, &options);
    float *inside = status.code ? NULL : gs_arena_data(self.arena);
    size_t count = env->world_size <= 4 ? SHARD_COUNT : SHARD_COUNT / 3;
    fill_tree_values(&values, count);
    for (gs_collective_kind kind = GS_ALLREDUCE; kind <= GS_REDUCE_SCATTER && !status.code; kind++) {
        float *in_result = inside + NUM_SHARDS * count, *out_result = outside + NUM_SHARDS * count;
        status = check_tree(&self, &values, kind, inside, in_result, count);
        if (!status.code) status = check_tree(&self, &values, kind, inside, inside, count);
        if (!status.code) status = check_tree(&self, &values, kind, inside, in_result, 33);
        if (!status.code) status = check_tree(&self, &values, kind, outside, out_result, count);
        if (!status.code) status = check_tree(&self, &values, kind, outside, outside, count);
    }
    comm_rank_close(&self);
    return status;
}

static int count_threads_named(const char *name) {
    char path[300], text[32];
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "re");
        if (!file) continue;
        if (fgets(text, sizeof text, file)) count += strcmp(text, name) == 0;
        fclose(file);
    }
    if (tasks) closedir(tasks);
    return count;
}

// Left to itself the communicator of a rank with the host to itself, whose device has as many
// threads as the argument says; "all": as there are cores.
static gs_status choose_helper(const gs_rank_env *env) {
    comm_rank self = {.rank = env->rank, .world_size = env->world_size};
    bool all = strcmp(env->arg, "all") == 0;
    int num_threads = all ? gs_usable_cores() : 1, expected = !all && gs_usable_cores() > 1;
    gs_comm_options options = {.generation = 1,
                               .rank = env->rank,
                               .world_size = env->world_size,
                               .exchange = gs_rank_exchange,
                               .exchange_ctx = env->exchange,
                               .ranks_on_host = 1};
    gs_status status =
        gs_device_open(&self.device, "cpu", &(gs_device_options){.num_threads = num_threads});
    options.device = self.device;
    if (!status.code) status = gs_comm_create(&self.comm, &options, gs_deadline_in_seconds(60));
    int helpers = count_threads_named("comm\n");
    if (!status.code && helpers != expected)
        status = gs_error(GS_INTERNAL, "%d threads move beside %d that compute on %d cores",
                          helpers, num_threads, gs_usable_cores());
    if (!status.code && gs_comm_moves_alone(self.comm) != expected)
        status = gs_error(GS_INTERNAL, "it is to move %s", expected ? "alone" : "in calls alone");
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {{"sweep", sweep},         {"choose helper", choose_helper},
                                      {"random", run_random},   {"rank order", sum_in_rank_order},
                                      {"wire", round_on_the_wire},
                                      {"tree", sum_along_tree}, {0}};

static void expect_ok(const char *body, int world_size, const char *arg) {
    gs_status status = gs_ranks_run(body, world_size, arg, gs_deadline_in_seconds(200));
    if (status.code) print_error("%s, world %d: %s\n", body, world_size, status.message);
    assert_int_equal(status.code, GS_OK);
}

static void every_collective_is_exact_in_worlds_of_1_to_5(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 5; world_size++) expect_ok("sweep", world_size, "");
}

static void every_collective_is_exact_with_a_helper_thread(void **state) {
    (void)state;
    expect_ok("sweep", 2, "helper");
}

static void random_collectives_posted_ahead_are_exact(void **state) {
    (void)state;
    expect_ok("random", 1, "");
    expect_ok("random", 2, "");
    expect_ok("random", 3, "");
    expect_ok("random", 8, "");
    expect_ok("random", 3, "helper");
}

static void sums_run_in_rank_order_to_the_bit(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 5; world_size++) expect_ok("rank order", world_size, "");
}

static void a_wire_dtype_rounds_at_two_places_to_the_bit(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 3; world_size++) expect_ok("wire", world_size, "");
}

static void tree_sums_have_the_same_bits_for_every_world_size(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 8; world_size++) expect_ok("tree", world_size, "");
}

static void collectives_between_hosts_are_exact(void **state) {
    (void)state;
    expect_ok("sweep", 2, "net");
    expect_ok("sweep", 5, "net");
    expect_ok("random", 3, "net");
}

static void sums_between_hosts_have_the_bits_of_one_host(void **state) {
    (void)state;
    expect_ok("rank order", 3, "net");
    expect_ok("wire", 3, "net");
    expect_ok("tree", 2, "net");
    expect_ok("tree", 5, "net");
}

static void another_thread_moves_only_where_a_core_is_left_for_it(void **state) {
    (void)state;
    expect_ok("choose helper", 2, "one");
    expect_ok("choose helper", 2, "all");
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_is_exact_in_worlds_of_1_to_5),
        cmocka_unit_test(another_thread_moves_only_where_a_core_is_left_for_it),
        cmocka_unit_test(every_collective_is_exact_with_a_helper_thread),
        cmocka_unit_test(random_collectives_posted_ahead_are_exact),
        cmocka_unit_test(sums_run_in_rank_order_to_the_bit),
        cmocka_unit_test(a_wire_dtype_rounds_at_two_places_to_the_bit),
        cmocka_unit_test(tree_sums_have_the_same_bits_for_every_world_size),
        cmocka_unit_test(collectives_between_hosts_are_exact),
        cmocka_unit_test(sums_between_hosts_have_the_bits_of_one_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
