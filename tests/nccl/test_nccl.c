// Collectives on GPUs: every kind and dtype, on device and host memory, gives the sums of the
// serial program on every rank, alone and posted far ahead.
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
#include "tests/nccl/nccl_rank.h"
#include "tests/support/asserts.h"
#include "tests/support/sample.h"

#define RUN_SECONDS 40.0

static const gs_collective_kind kinds[] = {GS_ALLREDUCE, GS_REDUCE, GS_REDUCE_SCATTER, GS_ALLGATHER,
                                           GS_BROADCAST};
static const gs_dtype dtypes[] = {GS_FP32, GS_BF16, GS_FP64, GS_FP16, GS_I64, GS_I32, GS_U8};
static const gs_dtype wires[] = {GS_DTYPE_UNSET, GS_FP16, GS_BF16};
// The last ones go through several staging slots.
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
                if (!sample_takes(&drawn, (uint64_t)(4 * self->world_size + (int)where), seed))
                    continue;
                trial one =
                    make_trial(kinds[k], dtypes[d], counts[n], self->world_size, seed, seed % 2);
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
        status =
            gs_status_prefix(check_trial(&self, &trials[i], on_host ? ON_HOST : IN_ARENA, scratch),
                             "collective %d", i);
    }
    comm_rank_close(&self);
    free(host);
    return status;
}

static const gs_rank_body bodies[] = {
    {"sweep", sweep}, {"scale", scale_sums}, {"random", run_random}, {0}};

static void scaled_sums_come_with_their_times(void **state) {
    (void)state;
    assert_ok(nccl_ranks_run("scale", 1, ""));
    assert_ok(nccl_ranks_run("scale", 3, ""));
}

static void one_rank_without_nccl_is_exact(void **state) {
    (void)state;
    assert_ok(nccl_ranks_run("sweep", 1, "self"));
}

static void every_collective_is_exact_in_worlds_of_1_to_4(void **state) {
    (void)state;
    const sample drawn = sample_from_environment();
    sample_say(&drawn, "each sweep's collectives");
    for (int world_size = 1; world_size <= 4; world_size++)
        assert_ok(nccl_ranks_run("sweep", world_size, "nccl"));
}

static void random_collectives_posted_ahead_are_exact(void **state) {
    (void)state;
    assert_ok(nccl_ranks_run("random", 1, ""));
    assert_ok(nccl_ranks_run("random", 2, ""));
    assert_ok(nccl_ranks_run("random", 3, ""));
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    nccl_skip_without_gpu();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scaled_sums_come_with_their_times),
        cmocka_unit_test(one_rank_without_nccl_is_exact),
        cmocka_unit_test(every_collective_is_exact_in_worlds_of_1_to_4),
        cmocka_unit_test(random_collectives_posted_ahead_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
