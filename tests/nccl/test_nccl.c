// Collectives on GPUs: every kind and dtype, on device and host memory, gives the sums of the serial
// program on every rank; behind the compute stream's point, and beside it.
//
// The same tests run on the software machine with the stand-in of NCCL, and on real devices.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "gradsync/comm/device_arena.h"
#include "gradsync/comm/nccl/library.h"
#include "tests/nccl/nccl_rank.h"
#include "tests/support/sample.h"

#define RUN_SECONDS 40.0

static const gs_collective_kind kinds[] = {GS_ALLREDUCE, GS_REDUCE, GS_REDUCE_SCATTER, GS_ALLGATHER,
                                           GS_BROADCAST};
static const gs_dtype dtypes[] = {GS_FP32, GS_BF16, GS_FP64, GS_FP16, GS_I64, GS_I32, GS_U8};
// The last ones go through several staging slots.
static const gs_dtype wires[] = {GS_DTYPE_UNSET, GS_FP16, GS_BF16};
static const size_t counts[] = {0, 1, 7, 1024, 16385, 300007};

static bool is_reducing(gs_collective_kind kind) {
    return kind == GS_ALLREDUCE || kind == GS_REDUCE || kind == GS_REDUCE_SCATTER;
}

typedef enum place { IN_ARENA, ON_DEVICE, ON_HOST, NUM_PLACES } place;
static const char *const place_names[] = {"arena", "device", "host"};

typedef struct trial {
    gs_collective collective;
    uint64_t seed;
    size_t send_count, recv_count;
    bool in_place;
    unsigned char *send, *recv;  // where the collective works
} trial;

static trial make_trial(gs_collective_kind kind, gs_dtype dtype, size_t count, int world_size,
                        uint64_t seed, bool in_place) {
    size_t all = count * (size_t)world_size;
    return (trial){.collective = {.kind = kind,
                                  .dtype = dtype,
                                  .count = count,
                                  .root = (int)(seed % (uint64_t)world_size),
                                  .step = (int64_t)seed,
                                  .bucket = -1},
                   .seed = seed,
                   .in_place = in_place,
                   .send_count = kind == GS_REDUCE_SCATTER ? all : count,
                   .recv_count = kind == GS_ALLGATHER ? all : count};
}

static gs_status put(comm_rank *self, place where, void *to, const void *from, size_t bytes) {
    if (where != ON_HOST) return gs_device_upload(self->device, to, from, bytes);
    memcpy(to, from, bytes);
    return gs_ok();
}

static gs_status get(comm_rank *self, place where, void *to, const void *from, size_t bytes) {
    if (where != ON_HOST) return gs_device_download(self->device, to, from, bytes);
    memcpy(to, from, bytes);
    return gs_ok();
}

// `memory` has room for both buffers; `scratch`, the host's, for one.
static gs_status fill_trial(comm_rank *self, trial *one, place where, unsigned char *memory,
                            size_t half_bytes, unsigned char *scratch) {
    gs_collective *c = &one->collective;
    size_t element_bytes = gs_dtype_bytes(c->dtype);
    size_t own = c->count * element_bytes * (size_t)self->rank;
    one->send = memory;
    one->recv = one->in_place ? memory : memory + half_bytes;
    if (one->in_place && c->kind == GS_REDUCE_SCATTER) one->recv += own;
    if (one->in_place && c->kind == GS_ALLGATHER) one->send += own;
    c->send = one->send;
    c->recv = one->recv;
    fill_pattern(scratch, c->dtype, one->send_count, one->seed, self->rank, 0);
    return put(self, where, one->send, scratch, one->send_count * element_bytes);
}

static gs_status check_trial(comm_rank *self, const trial *one, place where,
                             unsigned char *scratch) {
    const gs_collective *c = &one->collective;
    size_t bytes = c->count * gs_dtype_bytes(c->dtype);
    if (c->kind == GS_REDUCE && self->rank != c->root) return gs_ok();
    GS_TRY(get(self, where, scratch, one->recv, one->recv_count * gs_dtype_bytes(c->dtype)));
    switch (c->kind) {
    case GS_REDUCE:
    case GS_ALLREDUCE:
        return check_pattern(scratch, c->dtype, c->count, one->seed, -1, self->world_size, 0);
    case GS_REDUCE_SCATTER:
        return check_pattern(scratch, c->dtype, c->count, one->seed, -1, self->world_size,
                             c->count * (size_t)self->rank);
    case GS_ALLGATHER:
        for (int i = 0; i < self->world_size; i++)
            GS_TRY(check_pattern(scratch + (size_t)i * bytes, c->dtype, c->count, one->seed, i,
                                 self->world_size, 0));
        return gs_ok();
    default:
        return check_pattern(scratch, c->dtype, c->count, one->seed, c->root, self->world_size, 0);
    }
}

static gs_status run_trial(comm_rank *self, trial *one, place where, unsigned char *memory,
                           size_t half_bytes, unsigned char *scratch) {
    gs_status status = fill_trial(self, one, where, memory, half_bytes, scratch);
    if (!status.code)
        status = gs_comm_run(self->comm, &one->collective, gs_deadline_in_seconds(RUN_SECONDS));
    if (!status.code) status = check_trial(self, one, where, scratch);
    return gs_status_prefix(status, "%s, kind %d, %s, count %zu%s", place_names[where],
                            one->collective.kind, gs_dtype_name(one->collective.dtype),
                            one->collective.count, one->in_place ? " in place" : "");
}

// Of a sweep's collectives each rank takes the same.
static gs_status sweep_memory(comm_rank *self, place where, unsigned char *memory,
                              size_t half_bytes, unsigned char *scratch) {
    uint64_t seed = 0;
    const sample drawn = sample_from_environment();
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
                if (dtypes[d] == GS_U8 && is_reducing(kinds[k])) continue;
                if (d > 0 && counts[n] != 7) continue;  // size matters, not the dtype
                if (d > 0 && where == ON_DEVICE) continue;
                ++seed;
                if (!sample_takes(&drawn, (uint64_t)(4 * self->world_size + (int)where), seed)) continue;
                trial one = make_trial(kinds[k], dtypes[d], counts[n], self->world_size, seed,
                                       seed % 2);
                GS_TRY(run_trial(self, &one, where, memory, half_bytes, scratch));
            }
        }
    }
    gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1};
    return gs_comm_run(self->comm, &barrier, gs_deadline_in_seconds(RUN_SECONDS));
}

static gs_status sweep_places(comm_rank *self, size_t half_bytes) {
    unsigned char *host = malloc(3 * half_bytes);
    void *device = NULL;
    gs_status status = host ? gs_device_alloc(self->device, &device, 2 * half_bytes)
                            : gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    unsigned char *memory[NUM_PLACES] = {gs_arena_data(self->arena), device, host};
    for (int where = 0; where < NUM_PLACES && !status.code; where++)
        status = sweep_memory(self, (place)where, memory[where], half_bytes, host + 2 * half_bytes);
    if (device) gs_device_free(self->device, device);
    free(host);
    return status;
}

static gs_status sweep(const gs_rank_env *env) {
    comm_rank self;
    size_t half_bytes = (300007 * 4 * (size_t)env->world_size + 4095) / 4096 * 4096;
    gs_comm_options options = {.backend = env->arg};
    gs_status status = nccl_rank_open(&self, env, 2 * half_bytes, &options);
    if (!status.code) status = sweep_places(&self, half_bytes);
    comm_rank_close(&self);
    return status;
}

// A scaled sum, its times, and what it was done by.
static gs_status scale_sums(const gs_rank_env *env) {
    enum { COUNT = 5000 };
    static float host[COUNT];
    comm_rank self;
    gs_status status = nccl_rank_open(&self, env, sizeof host, NULL);
    for (int where = 0; where < NUM_PLACES && !status.code; where += ON_HOST) {
        for (size_t i = 0; i < COUNT; i++) host[i] = (float)(self.rank + 1) * (float)(i % 64);
        float *data = where == ON_HOST ? host : gs_arena_data(self.arena);
        if (where != ON_HOST) status = gs_device_upload(self.device, data, host, sizeof host);
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = data,
                             .recv = data,
                             .count = COUNT,
                             .dtype = GS_FP32,
                             .scale = 0.25,
                             .bucket = 1};
        gs_work work = {0};
        gs_work_times times = {0};
        int64_t before_ns = gs_now_ns();
        if (!status.code) status = gs_comm_post(self.comm, &work, &sum);
        if (!status.code)
            status = gs_comm_wait(self.comm, work, gs_deadline_in_seconds(RUN_SECONDS));
        if (!status.code && where != ON_HOST)
            status = gs_device_download(self.device, host, data, sizeof host);
        int ranks = self.world_size * (self.world_size + 1) / 2;
        for (size_t i = 0; i < COUNT && !status.code; i++) {
            if (host[i] != (float)ranks * (float)(i % 64) * 0.25f)
                status = gs_error(GS_DATA_LOSS, "element %zu is %g", i, (double)host[i]);
        }
        if (!status.code &&
            (!gs_comm_times(self.comm, work, &times) || times.posted_ns < before_ns ||
             times.started_ns < times.posted_ns || times.finished_ns < times.started_ns ||
             times.finished_ns > gs_now_ns()))
            status = gs_error(GS_INTERNAL, "times are out of order");
    }
    comm_rank_close(&self);
    return status;
}

// Sums of numbers that round differently in every other order.
static float wild_value(int shard, size_t index) {
    gs_random_key key = {.seed = 7, .stream = (uint64_t)shard};
    float value = (float)gs_random_uniform(key, index) - 0.5f;
    return index % 3 ? value : value * 1e6f;
}

// ---- 16 bits on their way: the bits of cast, the same collective of 16 bits and cast

#define WIRE_COUNT ((size_t)5000)

// The arena: input and result of one collective, what it sends, and the same three of the other way.
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
    gs_collective sum = {.kind = c->kind,
                         .send = at->second_wire,
                         .recv = result_in_place(self, c->kind, at->second_wire,
                                                 gs_collective_sent_bytes(c)),
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
    sum.recv = way & 4 ? at->recv : result_in_place(self, kind, at->data, gs_collective_part_bytes(&sum));
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
    GS_TRY(expect_refused(self, sum, GS_INVALID_ARGUMENT, "needs memory for what it sends as bf16"));
    sum.wire = at->data + 64;
    GS_TRY(expect_refused(self, sum, GS_INVALID_ARGUMENT, "overlaps a buffer"));
    sum.wire = at->wire;
    sum.send = sum.recv = host;
    return expect_refused(self, sum, GS_UNIMPLEMENTED, "sent as bf16 wants memory of cuda");
}

static gs_status send_rounded(const gs_rank_env *env) {
    size_t bytes = WIRE_COUNT * sizeof(double);
    comm_rank self;
    gs_status status = nccl_rank_open(&self, env, 5 * bytes,
                                      &(gs_comm_options){.backend = env->arg});
    unsigned char *arena = status.code ? NULL : gs_arena_data(self.arena);
    wire_buffers at = {arena, arena + bytes, arena + 2 * bytes, arena + 3 * bytes,
                       arena + 4 * bytes};
    if (!status.code) status = check_wires(&self, &at);
    if (!status.code && strcmp(env->arg, "nccl") == 0) status = check_wire_refusals(&self, &at);
    comm_rank_close(&self);
    return status;
}

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

// Posted far ahead, host and device memory mixed, with progress at moments of each rank's own.
#define NUM_RANDOM 200

static gs_status post_random(comm_rank *self, trial *trials, unsigned char *scratch,
                             unsigned char *host) {
    gs_random_key common = {.seed = 42, .stream = 1}, own = {42, 2 + (uint64_t)self->rank};
    size_t used = 0;
    gs_work work = {0};
    for (uint64_t i = 0; i < NUM_RANDOM; i++) {
        uint64_t dice = gs_random_u64(common, i);
        size_t count = ((size_t)1 << (dice >> 8) % 13) + (size_t)(dice >> 16) % 7;
        gs_dtype dtype = dtypes[(dice >> 24) % 6];
        place where = dice >> 41 & 1 ? ON_HOST : IN_ARENA;
        trials[i] = make_trial(kinds[dice % 5], dtype, count, self->world_size, i, dice >> 40 & 1);
        size_t half_bytes = count * gs_dtype_bytes(dtype) * (size_t)self->world_size;
        half_bytes = (half_bytes + 63) / 64 * 64;
        unsigned char *memory = (where == ON_HOST ? host : gs_arena_data(self->arena));
        if (used + 3 * half_bytes > gs_arena_bytes(self->arena))
            return gs_error(GS_RESOURCE_EXHAUSTED, "arena is too small at %d", (int)i);
        GS_TRY(fill_trial(self, &trials[i], where, memory + used, half_bytes, scratch));
        used += 2 * half_bytes;
        gs_collective *c = &trials[i].collective;
        if (c->kind == GS_ALLREDUCE && where == IN_ARENA && !trials[i].in_place &&
            (dtype == GS_FP32 || dtype == GS_FP64)) {
            c->wire_dtype = wires[(dice >> 44) % 3];
            c->wire = (unsigned char *)gs_arena_data(self->arena) + used;
            used += half_bytes;
        }
        GS_TRY(gs_comm_post(self->comm, &work, &trials[i].collective));
        if (gs_random_u64(own, i) % 8 == 0) GS_TRY(gs_comm_progress(self->comm));
        if (gs_random_u64(own, 1000 + i) % 16 == 0)
            GS_TRY(gs_comm_wait(self->comm, (gs_work){.sequence = work.sequence / 2 + 1},
                                gs_deadline_in_seconds(RUN_SECONDS)));
    }
    return gs_comm_wait(self->comm, work, gs_deadline_in_seconds(RUN_SECONDS));
}

static gs_status run_random(const gs_rank_env *env) {
    static trial trials[NUM_RANDOM];
    enum { BYTES = 64 << 20 };
    comm_rank self;
    unsigned char *host = malloc(2 * (size_t)BYTES);
    gs_status status = host ? nccl_rank_open(&self, env, BYTES, NULL)
                            : gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    unsigned char *scratch = host + BYTES;
    if (!status.code) status = post_random(&self, trials, scratch, host);
    for (int i = 0; i < NUM_RANDOM && !status.code; i++) {
        bool on_host = trials[i].recv >= host && trials[i].recv < host + BYTES;
        status = gs_status_prefix(
            check_trial(&self, &trials[i], on_host ? ON_HOST : IN_ARENA, scratch), "collective %d",
            i);
    }
    comm_rank_close(&self);
    free(host);
    return status;
}

// The compute stream writes a bucket, then goes on with something else; the collective waits for the first.
// A collective of one rank that lies behind much work of the compute stream.
static gs_status let_go_of_much(const gs_rank_env *env) {
    enum { COUNT = 1 << 18, FILLS = 200 };
    comm_rank self;
    gs_work work;
    gs_event *end = NULL;
    bool done = false;
    gs_comm_options options = {.backend = "self"};
    gs_status status = nccl_rank_open(&self, env, COUNT * sizeof(float), &options);
    if (!status.code) status = gs_event_create(&end, self.device, false);
    if (!status.code) {
        float *data = gs_arena_data(self.arena);
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = data,
                             .recv = data,
                             .count = COUNT,
                             .dtype = GS_FP32,
                             .scale = 2,
                             .bucket = -1};
        for (int i = 0; i < FILLS; i++)
            gs_device_kernels(self.device)->fill(gs_device_stream(self.device), data, 1, COUNT);
        status = gs_comm_post(self.comm, &work, &sum);
        gs_event_record(end, gs_comm_stream(self.comm));
        gs_comm_let_go(self.comm, "enough");
    }
    if (!status.code) status = gs_event_query(end, &done);
    if (!status.code && !done) status = gs_error(GS_INTERNAL, "it still moves");
    gs_event_destroy(end);
    comm_rank_close(&self);
    return status;
}

static gs_status follow_compute(const gs_rank_env *env) {
    enum { COUNT = 4096, BUCKETS = 12 };
    static float host[COUNT];
    comm_rank self;
    gs_work works[BUCKETS];
    gs_event *point = NULL;
    gs_status status = nccl_rank_open(&self, env, BUCKETS * sizeof host * 2, NULL);
    if (!status.code) status = gs_event_create(&point, self.device, false);
    float *data = status.code ? NULL : gs_arena_data(self.arena);
    for (int b = 0; b < BUCKETS && !status.code; b++) {
        gs_stream *compute = gs_device_stream(self.device);
        const gs_kernels *kernels = gs_device_kernels(self.device);
        kernels->fill(compute, data + b * COUNT, (float)(self.rank + b), COUNT);
        // Every other bucket lies before a point of which only the host knows that it comes first.
        if (b % 2) gs_event_record(point, compute);
        kernels->fill(compute, data + (BUCKETS + b) * COUNT, 1, COUNT);
        gs_stream_set_point(compute, b % 2 ? point : NULL);
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = data + b * COUNT,
                             .recv = data + b * COUNT,
                             .count = COUNT,
                             .dtype = GS_FP32,
                             .scale = 2,
                             .bucket = b};
        status = gs_comm_post(self.comm, &works[b], &sum);
        gs_stream_set_point(compute, NULL);
    }
    int ranks = self.world_size * (self.world_size - 1) / 2;
    for (int b = 0; b < BUCKETS && !status.code; b++) {
        status = gs_comm_wait(self.comm, works[b], gs_deadline_in_seconds(RUN_SECONDS));
        if (!status.code)
            status = gs_device_download(self.device, host, data + b * COUNT, sizeof host);
        for (size_t i = 0; i < COUNT && !status.code; i++) {
            if (host[i] != (float)(2 * (ranks + b * self.world_size)))
                status = gs_error(GS_DATA_LOSS, "bucket %d: element %zu is %g", b, i,
                                  (double)host[i]);
        }
    }
    gs_event_destroy(point);
    comm_rank_close(&self);
    return status;
}

// What a hook enqueues on the communicator's stream comes before what it posts next.
static gs_status precede_post(const gs_rank_env *env) {
    enum { COUNT = 1000 };
    static float host[COUNT];
    comm_rank self;
    gs_status status = nccl_rank_open(&self, env, sizeof host, NULL);
    for (int round = 0; round < 20 && !status.code; round++) {
        float *data = gs_arena_data(self.arena);
        gs_stream *stream = gs_comm_stream(self.comm);
        gs_device_kernels(self.device)->fill(stream, data, (float)(self.rank + round), COUNT);
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = data,
                             .recv = data,
                             .count = COUNT,
                             .dtype = GS_FP32,
                             .bucket = 0,
                             .step = round};
        status = gs_comm_run(self.comm, &sum, gs_deadline_in_seconds(RUN_SECONDS));
        if (!status.code) status = gs_device_download(self.device, host, data, sizeof host);
        int sums = self.world_size * (self.world_size - 1) / 2 + round * self.world_size;
        if (!status.code && (host[0] != (float)sums || host[COUNT - 1] != (float)sums))
            status = gs_error(GS_DATA_LOSS, "round %d: %g", round, (double)host[0]);
    }
    comm_rank_close(&self);
    return status;
}

// One process through many generations: what it holds does not grow.
static gs_status live_long(const gs_rank_env *env) {
    int generations = (int)strtol(env->arg, NULL, 10), descriptors = 0, threads = 0;
    uint64_t free_bytes = 0;
    comm_rank self;
    gs_device_facts facts;
    gs_status status = nccl_rank_open_device(&self, env, 1 << 20);
    for (int g = 1; g <= generations && !status.code; g++) {
        gs_comm_options options = {.generation = (uint32_t)g};
        status = nccl_rank_connect(&self, env, &options, gs_deadline_in_seconds(NCCL_RANK_SECONDS));
        gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1};
        if (!status.code)
            status = gs_comm_run(self.comm, &barrier, gs_deadline_in_seconds(RUN_SECONDS));
        // Every third one ends by an abort.
        if (!status.code && g % 3 == 0) gs_comm_abort(self.comm, "next generation");
        if (!status.code && g % 3 == 0)
            status = gs_comm_wait_ended(self.comm, gs_deadline_in_seconds(RUN_SECONDS));
        gs_comm_destroy(self.comm);
        self.comm = NULL;
        if (!status.code) status = gs_cuda_device_facts(&facts, 0);
        if (g == generations / 4) {
            descriptors = nccl_count_descriptors();
            threads = nccl_count_threads();
            free_bytes = facts.free_bytes;
        }
    }
    if (!status.code && nccl_count_descriptors() > descriptors + 2)
        status = gs_error(GS_INTERNAL, "descriptors grew from %d to %d", descriptors,
                          nccl_count_descriptors());
    // A thread that has ended may be listed for a moment.
    if (!status.code && nccl_count_threads() > threads + 2)
        status =
            gs_error(GS_INTERNAL, "threads grew from %d to %d", threads, nccl_count_threads());
    if (!status.code && facts.free_bytes + (8 << 20) < free_bytes)
        status = gs_error(GS_INTERNAL, "device memory shrank by %llu bytes",
                          (unsigned long long)(free_bytes - facts.free_bytes));
    comm_rank_close(&self);
    return status;
}

static gs_status say_why(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.backend = "auto"};
    gs_status status = nccl_rank_open(&self, env, 1 << 20, &options);
    if (!status.code) {
        char text[256];
        snprintf(text, sizeof text, "%s: %s", gs_comm_backend_name(self.comm),
                 gs_comm_backend_reason(self.comm));
        gs_rank_note(env, text);
    }
    comm_rank_close(&self);
    return status;
}

static gs_status want_shm(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.backend = "shm"};
    gs_status status = nccl_rank_open(&self, env, 0, &options);
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {{"sweep", sweep},
                                      {"scale", scale_sums},
                                      {"wire", send_rounded},
                                      {"tree", sum_along_tree},
                                      {"random", run_random},
                                      {"follow", follow_compute},
                                      {"let go", let_go_of_much},
                                      {"precede", precede_post},
                                      {"generations", live_long},
                                      {"why", say_why},
                                      {"shm", want_shm},
                                      {0}};

static void expect_ok(const char *body, int world_size, const char *arg) {
    gs_status status = gs_ranks_run(body, world_size, arg, gs_deadline_in_seconds(250));
    if (status.code) print_error("%s, world %d: %s\n", body, world_size, status.message);
    assert_int_equal(status.code, GS_OK);
}

static void every_collective_is_exact_in_worlds_of_1_to_4(void **state) {
    (void)state;
    const sample drawn = sample_from_environment();
    sample_say(&drawn, "each sweep's collectives");
    for (int world_size = 1; world_size <= 4; world_size++) expect_ok("sweep", world_size, "nccl");
}

static void one_rank_without_nccl_is_exact(void **state) {
    (void)state;
    expect_ok("sweep", 1, "self");
}

static void scaled_sums_come_with_their_times(void **state) {
    (void)state;
    expect_ok("scale", 1, "");
    expect_ok("scale", 3, "");
}

static void a_wire_dtype_has_the_bits_of_two_casts(void **state) {
    (void)state;
    expect_ok("wire", 1, "self");
    for (int world_size = 1; world_size <= 3; world_size++) expect_ok("wire", world_size, "nccl");
}

static void sums_along_a_tree_have_its_bits_for_any_number_of_ranks(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 4; world_size++) expect_ok("tree", world_size, "");
}

static void random_collectives_posted_ahead_are_exact(void **state) {
    (void)state;
    expect_ok("random", 1, "");
    expect_ok("random", 2, "");
    expect_ok("random", 3, "");
}

static void a_collective_waits_for_its_input_on_the_compute_stream(void **state) {
    (void)state;
    expect_ok("follow", 1, "");
    expect_ok("follow", 2, "");
}

static void who_lets_go_has_buffers_that_nothing_writes(void **state) {
    (void)state;
    expect_ok("let go", 1, "");
}

static void work_on_the_communicators_stream_precedes_the_next_post(void **state) {
    (void)state;
    expect_ok("precede", 2, "");
}

static void generations_leave_nothing_behind(void **state) {
    (void)state;
    expect_ok("generations", 2, getenv("GRADSYNC_NCCL_GENERATIONS")
                                    ? getenv("GRADSYNC_NCCL_GENERATIONS")
                                    : "40");
}

static void gpus_choose_nccl_and_say_why(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[2];
    assert_int_equal(gs_ranks_start(&ranks, "why", 2, "", NULL).code, GS_OK);
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(120)).code, GS_OK);
    if (statuses[0].code) print_error("%s\n", statuses[0].message);
    assert_int_equal(statuses[0].code, GS_OK);
    assert_non_null(strstr(gs_ranks_note(ranks, 0), "nccl: all 2 ranks have a GPU; NCCL 2."));
    gs_ranks_destroy(ranks);
}

static void shared_memory_of_the_host_is_refused_to_gpus(void **state) {
    (void)state;
    gs_status status = gs_ranks_run("shm", 2, "", gs_deadline_in_seconds(60));
    if (status.code != GS_UNAVAILABLE) print_error("%s\n", status.message);
    assert_int_equal(status.code, GS_UNAVAILABLE);
    assert_non_null(strstr(status.message, "keeps its gradients on cuda:0"));
}

static void an_arena_on_a_gpu_is_zero_and_no_file(void **state) {
    (void)state;
    enum { BYTES = 300000 };
    static unsigned char host[BYTES];
    gs_device *device;
    gs_arena *arena;
    assert_int_equal(gs_device_open(&device, "cuda:0", &(gs_device_options){0}).code, GS_OK);
    assert_int_equal(gs_arena_create_on(&arena, BYTES, device).code, GS_OK);
    assert_true(gs_arena_bytes(arena) >= BYTES);
    assert_int_equal(gs_arena_fd(arena), -1);
    unsigned char *data = gs_arena_data(arena);
    assert_true(gs_arena_contains(arena, data + 1000, gs_arena_bytes(arena) - 1000));
    assert_false(gs_arena_contains(arena, data + 1000, gs_arena_bytes(arena) - 999));
    assert_true(gs_device_is_device_memory(device, data + 1000));
    memset(host, 1, sizeof host);
    assert_int_equal(gs_device_download(device, host, data, sizeof host).code, GS_OK);
    for (size_t i = 0; i < BYTES; i++) assert_int_equal(host[i], 0);
    gs_arena_destroy(arena);
    gs_device_close(device);
}

static void an_arena_lies_on_its_own_gpu(void **state) {
    (void)state;
    enum { BYTES = 64 << 20 };
    gs_device *first, *second;
    gs_arena *arena;
    gs_device_facts before, after;
    char why[256];
    if (gs_cuda_device_count(why, sizeof why) < 2) skip();
    assert_int_equal(gs_device_open(&second, "cuda:1", &(gs_device_options){0}).code, GS_OK);
    assert_int_equal(gs_device_open(&first, "cuda:0", &(gs_device_options){0}).code, GS_OK);
    assert_int_equal(gs_cuda_device_facts(&before, 1).code, GS_OK);
    // What was used last is the thread's: the first.
    gs_deadline deadline = gs_deadline_in_seconds(RUN_SECONDS);
    assert_int_equal(gs_stream_wait(gs_device_stream(first), deadline).code, GS_OK);
    assert_int_equal(gs_arena_create_on(&arena, BYTES, second).code, GS_OK);
    assert_int_equal(gs_cuda_device_facts(&after, 1).code, GS_OK);
    assert_true(after.free_bytes + BYTES <= before.free_bytes);
    gs_arena_destroy(arena);
    gs_device_close(second);
    gs_device_close(first);
}

static void an_arena_larger_than_the_gpu_is_refused(void **state) {
    (void)state;
    gs_device *device;
    gs_arena *arena = NULL;
    assert_int_equal(gs_device_open(&device, "cuda:0", &(gs_device_options){0}).code, GS_OK);
    gs_status status = gs_arena_create_on(&arena, (size_t)1 << 50, device);
    assert_int_equal(status.code, GS_RESOURCE_EXHAUSTED);
    assert_null(arena);
    gs_device_close(device);
}

static void the_library_tells_its_version(void **state) {
    (void)state;
    char text[128];
    if (!gs_nccl_version(text, sizeof text)) print_message("%s\n", text);
    else assert_int_equal(strncmp(text, "2.", 2), 0);
}

int main(int argc, char **argv) {
    int exit_code;
#ifdef GRADSYNC_CUDA_SIM
    setenv("CUDA_SIM_DEVICES", "2", 0);
#endif
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    nccl_skip_without_gpu();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_library_tells_its_version),
        cmocka_unit_test(an_arena_on_a_gpu_is_zero_and_no_file),
        cmocka_unit_test(an_arena_lies_on_its_own_gpu),
        cmocka_unit_test(an_arena_larger_than_the_gpu_is_refused),
        cmocka_unit_test(gpus_choose_nccl_and_say_why),
        cmocka_unit_test(shared_memory_of_the_host_is_refused_to_gpus),
        cmocka_unit_test(scaled_sums_come_with_their_times),
        cmocka_unit_test(a_collective_waits_for_its_input_on_the_compute_stream),
        cmocka_unit_test(who_lets_go_has_buffers_that_nothing_writes),
        cmocka_unit_test(work_on_the_communicators_stream_precedes_the_next_post),
        cmocka_unit_test(one_rank_without_nccl_is_exact),
        cmocka_unit_test(every_collective_is_exact_in_worlds_of_1_to_4),
        cmocka_unit_test(a_wire_dtype_has_the_bits_of_two_casts),
        cmocka_unit_test(sums_along_a_tree_have_its_bits_for_any_number_of_ranks),
        cmocka_unit_test(random_collectives_posted_ahead_are_exact),
        cmocka_unit_test(generations_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
