// Sums on GPUs whose bits are promised, of numbers that round differently in every other order: 16
// bits on their way are two casts around the same collective of 16 bits, and a sum along a tree is
// the tree's for any number of ranks.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "tests/nccl/nccl_rank.h"
#include "tests/support/asserts.h"

#define RUN_SECONDS 40.0

static float wild_value(int shard, size_t index) {
    gs_random_key key = {.seed = 7, .stream = (uint64_t)shard};
    float value = (float)gs_random_uniform(key, index) - 0.5f;
    return index % 3 ? value : value * 1e6f;
}

// ---- 16 bits on their way

#define WIRE_COUNT ((size_t)5000)

// The arena: input and result of one collective, what it sends, and the same three of the other
// way.
typedef struct wire_buffers {
    unsigned char *data, *recv, *wire, *second, *second_wire;
} wire_buffers;

// Elements of the input, of which a reduce-scatter leaves each rank a part.
static size_t input_count(const comm_rank *self, const gs_collective *c) {
    size_t parts = c->kind == GS_REDUCE_SCATTER ? (size_t)gs_comm_world_size(self->comm) : 1;
    return parts * c->count;
}

// Where a result lies that comes in place of its input.
static void *result_in_place(const comm_rank *self, gs_collective_kind kind, unsigned char *input,
                             size_t bytes) {
    return kind == GS_REDUCE_SCATTER ? input + (size_t)self->rank * bytes : input;
}

static gs_status sum_as_promised(comm_rank *self, const wire_buffers *at, const gs_collective *c) {
    const gs_kernels *kernels = gs_device_kernels(self->device);
    gs_stream *stream = gs_device_stream(self->device);
    const size_t count = input_count(self, c);
    kernels->cast(stream, at->second_wire, c->wire_dtype, at->data, c->dtype,
                  c->wire_scale_after ? 1 : c->wire_scale, count);
    if (c->wire_scale_after)
        kernels->cast(stream, at->second_wire, c->wire_dtype, at->second_wire, c->wire_dtype,
                      c->wire_scale, count);
    gs_collective sum = {
        .kind = c->kind,
        .send = at->second_wire,
        .recv = result_in_place(self, c->kind, at->second_wire, gs_collective_sent_bytes(c)),
        .count = c->count,
        .dtype = c->wire_dtype,
        .root = c->root,
        .scale = c->scale,
        .bucket = -1};
    GS_TRY(gs_comm_run(self->comm, &sum, gs_deadline_in_seconds(RUN_SECONDS)));
    kernels->cast(stream, at->second, c->dtype, sum.recv, c->wire_dtype, 1, c->count);
    return gs_ok();
}

static gs_status check_wire(comm_rank *self, const wire_buffers *at, gs_collective c, double *got,
                            double *wanted) {
    const size_t element = gs_dtype_bytes(c.dtype), bytes = c.count * element;
    for (size_t i = 0; i < input_count(self, &c); i++) {
        float value = wild_value(self->rank, i);
        if (c.dtype == GS_FP64)
            got[i] = (double)value;
        else
            ((float *)got)[i] = value;
    }
    GS_TRY(gs_device_upload(self->device, at->data, got, input_count(self, &c) * element));
    GS_TRY(sum_as_promised(self, at, &c));
    GS_TRY(gs_comm_run(self->comm, &c, gs_deadline_in_seconds(RUN_SECONDS)));
    if (!c.recv) return gs_ok();
    GS_TRY(gs_device_download(self->device, got, c.recv, bytes));
    GS_TRY(gs_device_download(self->device, wanted, at->second, bytes));
    if (memcmp(got, wanted, bytes) == 0) return gs_ok();
    return gs_error(GS_DATA_LOSS, "%s of %zu x %s by %s is not what two casts make of it",
                    gs_collective_kind_name(c.kind), c.count, gs_dtype_name(c.dtype),
                    gs_dtype_name(c.wire_dtype));
}

static gs_status check_wires_of(comm_rank *self, const wire_buffers *at, gs_collective_kind kind,
                                int way) {
    static double got[WIRE_COUNT], wanted[WIRE_COUNT];
    static const size_t sizes[] = {0, 1, 33, WIRE_COUNT};
    const size_t world_size = (size_t)gs_comm_world_size(self->comm);
    gs_collective sum = {.kind = kind,
                         .send = at->data,
                         .count = sizes[way >> 3],
                         .dtype = way & 1 ? GS_FP64 : GS_FP32,
                         .scale = way & 1 ? 0.5 : 1,
                         .root = way % (int)world_size,
                         .bucket = -1,
                         .wire_dtype = way & 2 ? GS_FP16 : GS_BF16,
                         .wire_scale = 0.01f,
                         .wire_scale_after = (way >> 3 ^ way >> 1) & 1,
                         .wire = at->wire};
    if (kind == GS_REDUCE_SCATTER && sum.count == WIRE_COUNT) sum.count /= world_size;
    sum.recv =
        way & 4 ? at->recv : result_in_place(self, kind, at->data, gs_collective_part_bytes(&sum));
    // Of a reduce the result is the root's alone.
    if (kind == GS_REDUCE && sum.root != self->rank) sum.recv = NULL;
    return check_wire(self, at, sum, got, wanted);
}

static gs_status check_wires(comm_rank *self, const wire_buffers *at) {
    for (int way = 0; way < 32; way++) GS_TRY(check_wires_of(self, at, GS_ALLREDUCE, way));
    // Each of the choices above, with each other one.
    for (int way = 0; way < 32; way += 3) {
        GS_TRY(check_wires_of(self, at, GS_REDUCE, way));
        GS_TRY(check_wires_of(self, at, GS_REDUCE_SCATTER, way));
    }
    return gs_ok();
}

static gs_status expect_refused(comm_rank *self, gs_collective sum, gs_code code, const char *why) {
    gs_work work;
    gs_status status = gs_comm_post(self->comm, &work, &sum);
    if (status.code == code && strstr(status.message, why)) return gs_ok();
    return gs_error(GS_INTERNAL, "\"%s\" instead of \"%s\"", status.message, why);
}

// Memory for what is sent, and all of it the GPU's.
static gs_status check_wire_refusals(comm_rank *self, const wire_buffers *at) {
    static float host[32];
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = at->data,
                         .recv = at->data,
                         .count = 32,
                         .dtype = GS_FP32,
                         .bucket = -1,
                         .wire_dtype = GS_BF16};
    GS_TRY(
        expect_refused(self, sum, GS_INVALID_ARGUMENT, "needs memory for what it sends as bf16"));
    sum.wire = at->data + 64;
    GS_TRY(expect_refused(self, sum, GS_INVALID_ARGUMENT, "overlaps a buffer"));
    sum.wire = at->wire;
    sum.send = sum.recv = host;
    return expect_refused(self, sum, GS_UNIMPLEMENTED, "sent as bf16 wants memory of cuda");
}

static gs_status send_rounded(const gs_rank_env *env) {
    size_t bytes = WIRE_COUNT * sizeof(double);
    comm_rank self;
    gs_status status =
        nccl_rank_open(&self, env, 5 * bytes, &(gs_comm_options){.backend = env->arg});
    unsigned char *arena = status.code ? NULL : gs_arena_data(self.arena);
    wire_buffers at = {arena, arena + bytes, arena + 2 * bytes, arena + 3 * bytes,
                       arena + 4 * bytes};
    if (!status.code) status = check_wires(&self, &at);
    if (!status.code && strcmp(env->arg, "nccl") == 0) status = check_wire_refusals(&self, &at);
    comm_rank_close(&self);
    return status;
}

// ---- along a tree

#define NUM_SHARDS 8
static const uint8_t shard_merges[NUM_SHARDS] = {0, 1, 0, 2, 0, 1, 0, 3};

static gs_status check_tree(comm_rank *self, gs_collective_kind kind, size_t count,
                            bool over_part_0, float *host) {
    int rank_of[NUM_SHARDS], part_of[NUM_SHARDS], used[8] = {0};
    for (int s = 0; s < NUM_SHARDS; s++) {
        rank_of[s] = s * self->world_size / NUM_SHARDS;
        part_of[s] = used[rank_of[s]]++;
        for (size_t i = 0; rank_of[s] == self->rank && i < count; i++)
            host[(size_t)part_of[s] * count + i] = wild_value(s, i);
    }
    float *parts = gs_arena_data(self->arena);
    float *recv = over_part_0 ? parts : parts + NUM_SHARDS * count;
    GS_TRY(gs_device_upload(self->device, parts, host,
                            (size_t)used[self->rank] * count * sizeof *parts));
    gs_reduce_tree tree = {NUM_SHARDS, rank_of, part_of, shard_merges};
    gs_collective sum = {.kind = kind,
                         .send = parts,
                         .recv = recv,
                         .count = count,
                         .dtype = GS_FP32,
                         .scale = 0.125,
                         .tree = &tree,
                         .part_stride_bytes = count * sizeof *parts,
                         .root = self->world_size / 2,
                         .bucket = 2};
    size_t first = 0;
    if (kind == GS_REDUCE_SCATTER) {
        sum.count = count / (size_t)self->world_size;
        first = sum.count * (size_t)self->rank;
        if (over_part_0) sum.recv = recv += first;
    } else if (kind == GS_REDUCE && self->rank != sum.root) {
        sum.recv = NULL;
    }
    GS_TRY(gs_comm_run(self->comm, &sum, gs_deadline_in_seconds(RUN_SECONDS)));
    if (!sum.recv) return gs_ok();
    GS_TRY(gs_device_download(self->device, host, recv, sum.count * sizeof *host));
    for (size_t i = 0; i < sum.count; i++) {
        float v[NUM_SHARDS];
        for (int s = 0; s < NUM_SHARDS; s++) v[s] = wild_value(s, first + i);
        float expected = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
        expected *= 0.125f;
        if (memcmp(&host[i], &expected, sizeof expected) != 0)
            return gs_error(GS_DATA_LOSS, "%s of %zu: element %zu is %a instead of %a",
                            gs_collective_kind_name(kind), sum.count, i, (double)host[i],
                            (double)expected);
    }
    return gs_ok();
}

static gs_status sum_along_tree(const gs_rank_env *env) {
    // The largest takes two pieces of the workspace on one rank's slice.
    static const size_t tree_counts[] = {1, 5, 100, 30001, 600000};
    comm_rank self;
    size_t most = (NUM_SHARDS + 1) * (size_t)600000;
    float *host = malloc(most * sizeof *host);
    gs_status status = host ? nccl_rank_open(&self, env, most * sizeof *host, NULL)
                            : gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (gs_collective_kind kind = GS_ALLREDUCE; kind <= GS_REDUCE_SCATTER; kind++) {
        for (size_t i = 0; i < sizeof tree_counts / sizeof *tree_counts && !status.code; i++)
            status = check_tree(&self, kind, tree_counts[i], i % 2, host);
    }
    // Two pieces of each of two ranks' parts.
    if (!status.code && self.world_size == 2)
        status = check_tree(&self, GS_REDUCE_SCATTER, 1200000, true, host);
    if (!status.code) status = check_tree(&self, GS_ALLREDUCE, 30001, false, host);
    comm_rank_close(&self);
    free(host);
    return status;
}

static const gs_rank_body bodies[] = {{"wire", send_rounded}, {"tree", sum_along_tree}, {0}};

static void a_wire_dtype_has_the_bits_of_two_casts(void **state) {
    (void)state;
    assert_ok(nccl_ranks_run("wire", 1, "self"));
    for (int world_size = 1; world_size <= 3; world_size++)
        assert_ok(nccl_ranks_run("wire", world_size, "nccl"));
}

static void sums_along_a_tree_have_its_bits_for_any_number_of_ranks(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 4; world_size++)
        assert_ok(nccl_ranks_run("tree", world_size, ""));
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    nccl_skip_without_gpu();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wire_dtype_has_the_bits_of_two_casts),
        cmocka_unit_test(sums_along_a_tree_have_its_bits_for_any_number_of_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
