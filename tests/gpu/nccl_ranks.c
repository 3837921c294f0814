// Several ranks on one GPU through NCCL, as on several machines: sums, and what is left of the
// others when one is killed in the middle of a collective.
//
//   nccl_ranks sums WORLD_SIZE    all-reduces of both widths, small and large, and what they must be
//   nccl_ranks kill WORLD_SIZE    the last rank dies by signal 9 while collectives are under way; the others are out of theirs
//                                 within OUT_SECONDS, by an error of their own
//   nccl_ranks first WORLD_SIZE   seconds from opening the device to the first sum; no test
//
// Each rank is a process that says it is a host of its own (NCCL_HOSTID): the library then lets
// several use one GPU, over sockets. That is for tests alone. Exit code 77 where there is no GPU or
// no NCCL, 1 where they are demanded (tests/support/test_device.h).
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradsync/comm/comm.h"
#include "gradsync/comm/device_arena.h"
#include "gradsync/tensor/arena.h"
#include "tests/support/device_memory.h"
#include "tests/support/ranks.h"
#include "tests/support/shared_gpu.h"
#include "tests/support/test_device.h"

#define SKIPPED 77
#define OPEN_SECONDS 60.0
#define RUN_SECONDS 150.0
#define COLLECTIVE_SECONDS 20.0
// From the signal until a survivor's collective has failed and its communicator is aborted. The software machine runs
// a device's threads one after the other, and says nothing of time.
#ifdef GRADSYNC_CUDA_SIM
#define OUT_SECONDS 15.0
#else
#define OUT_SECONDS 1.0
#endif
#define MOST_ELEMENTS ((size_t)1 << 20)
#define PERIOD 13

typedef struct rank_state {
    const gs_rank_env *env;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    float *host;
} rank_state;

static void close_rank(rank_state *self) {
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_device_close(self->device);
    free(self->host);
}

static gs_status open_rank(rank_state *self, const gs_rank_env *env) {
    *self = (rank_state){.env = env};
    gs_share_gpu(env->rank);
    self->host = malloc(MOST_ELEMENTS * sizeof *self->host);
    if (!self->host) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    GS_TRY(gs_device_open(&self->device, "cuda:0", NULL));
    GS_TRY(gs_arena_create_on(&self->arena, MOST_ELEMENTS * sizeof(float), self->device));
    const gs_comm_options options = {.backend = "nccl",
                                     .rank = env->rank,
                                     .world_size = env->world_size,
                                     .generation = 1,
                                     .exchange = gs_rank_exchange,
                                     .exchange_ctx = env->exchange,
                                     .arena = self->arena,
                                     .device = self->device};
    return gs_comm_create(&self->comm, &options, gs_deadline_in_seconds(OPEN_SECONDS));
}

// Whole numbers, exact in every type and order.
static float number_of(int rank, size_t i) {
    return (float)((i * 5 + (size_t)rank * 3) % PERIOD);
}

static gs_status allreduce(rank_state *self, size_t count, gs_dtype dtype) {
    const size_t bytes = count * gs_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        const float value = number_of(self->env->rank, i);
        if (dtype == GS_BF16)
            ((uint16_t *)self->host)[i] = gs_fp32_to_bf16(value);
        else
            self->host[i] = value;
    }
    void *const data = gs_arena_data(self->arena);
    GS_TRY(gs_device_upload(self->device, data, self->host, bytes));
    const gs_collective collective = {
        .kind = GS_ALLREDUCE, .send = data, .recv = data, .count = count, .dtype = dtype};
    GS_TRY(gs_comm_run(self->comm, &collective, gs_deadline_in_seconds(COLLECTIVE_SECONDS)));
    return gs_device_download(self->device, self->host, data, bytes);
}

static gs_status check_sum(const rank_state *self, size_t count, gs_dtype dtype) {
    for (size_t i = 0; i < count; i++) {
        float want = 0, got = self->host[i];
        for (int rank = 0; rank < self->env->world_size; rank++) want += number_of(rank, i);
        if (dtype == GS_BF16) got = gs_bf16_to_fp32(((const uint16_t *)self->host)[i]);
        if (got == want) continue;
        return gs_error(GS_DATA_LOSS, "%s element %zu of %zu is %g instead of %g",
                        gs_dtype_name(dtype), i, count, (double)got, (double)want);
    }
    return gs_ok();
}

static gs_status run_sums(rank_state *self) {
    static const size_t counts[] = {1, 1023, 65536, MOST_ELEMENTS};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        GS_TRY(allreduce(self, counts[i], GS_FP32));
        GS_TRY(check_sum(self, counts[i], GS_FP32));
        GS_TRY(allreduce(self, counts[i], GS_BF16));
        GS_TRY(check_sum(self, counts[i], GS_BF16));
    }
    return gs_ok();
}

static gs_status sums(const gs_rank_env *env) {
    rank_state self;
    gs_status status = open_rank(&self, env);
    if (!status.code) status = run_sums(&self);
    close_rank(&self);
    return status;
}

#define OUT "out at "

// Collectives until one fails: a rank that is alone with its peers' silence must come back in time. It notes when it
// did, by the clock that all processes of a machine share.
static gs_status until_it_fails(const gs_rank_env *env) {
    rank_state self;
    char text[48];
    gs_status status = open_rank(&self, env);
    const bool opened = !status.code;
    for (int i = 0; !status.code; i++) {
        status = allreduce(&self, MOST_ELEMENTS, GS_FP32);
        if (i == 2) gs_rank_note(env, "under way");
    }
    snprintf(text, sizeof text, OUT "%lld", (long long)gs_now_ns());
    if (opened) gs_rank_note(env, text);
    close_rank(&self);
    return status;
}

// Notes the seconds that opening the device and the communicator took, and the first collective
// behind it.
static gs_status first(const gs_rank_env *env) {
    rank_state self;
    const int64_t started_ns = gs_now_ns();
    gs_status status = open_rank(&self, env);
    const int64_t opened_ns = gs_now_ns();
    if (!status.code) status = allreduce(&self, MOST_ELEMENTS, GS_FP32);
    const int64_t done_ns = gs_now_ns();
    char text[96];
    snprintf(text, sizeof text,
             "device and communicator %.2f s, first all-reduce of 4 MiB %.2f s more",
             (double)(opened_ns - started_ns) / 1e9, (double)(done_ns - opened_ns) / 1e9);
    if (!status.code) gs_rank_note(env, text);
    close_rank(&self);
    return status;
}

static const gs_rank_body bodies[] = {
    {"first", first}, {"sums", sums}, {"until-it-fails", until_it_fails}, {NULL, NULL}};

static int report(const char *what, int world_size, gs_status status) {
    if (status.code)
        printf("FAIL %s, %d ranks: %s\n", what, world_size, status.message);
    else
        printf("ok   %s, %d ranks\n", what, world_size);
    return status.code != GS_OK;
}

// Seconds from the signal until the rank's collective had failed; below 0 where it never said so.
static double seconds_to_leave(const gs_ranks *ranks, int rank, int64_t killed_ns) {
    const char *note = gs_ranks_note(ranks, rank);
    if (strncmp(note, OUT, strlen(OUT)) != 0) return -1;
    return (double)(strtoll(note + strlen(OUT), NULL, 10) - killed_ns) / 1e9;
}

// Who waits for its own deadline has not noticed that a peer is gone.
static gs_status check_survivor(const gs_ranks *ranks, int rank, gs_status ended, int64_t killed_ns) {
    const double seconds = seconds_to_leave(ranks, rank, killed_ns);
    printf("     rank %d: out %.3f s behind the signal: %s\n", rank, seconds, ended.message);
    if (ended.code != GS_ABORTED && ended.code != GS_UNAVAILABLE)
        return gs_error(GS_INTERNAL, "rank %d: %s", rank, ended.code ? ended.message : "no error");
    if (seconds < 0) return gs_error(GS_INTERNAL, "rank %d does not say when it was out: %s", rank, ended.message);
    if (seconds > OUT_SECONDS)
        return gs_error(GS_INTERNAL, "rank %d was out %.3f s behind the signal, not within %.1f s", rank, seconds, OUT_SECONDS);
    return gs_ok();
}

// The killed rank is seen as killed; the others end by themselves, in time, with an error that is none of
// ours.
static gs_status check_survivors(const gs_ranks *ranks, const gs_status *statuses, int world_size, int64_t killed_ns) {
    gs_status status = gs_ok();
    if (!strstr(statuses[world_size - 1].message, "signal 9"))
        return gs_error(GS_INTERNAL, "the killed rank: %s", statuses[world_size - 1].message);
    for (int rank = 0; rank + 1 < world_size; rank++) {
        const gs_status found = check_survivor(ranks, rank, statuses[rank], killed_ns);
        if (!status.code) status = found;
    }
    return status;
}

static gs_status time_first(int world_size) {
    gs_ranks *ranks = NULL;
    gs_status statuses[16] = {{0}};
    GS_TRY(gs_ranks_start(&ranks, "first", world_size, "", NULL));
    gs_status status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(RUN_SECONDS));
    for (int rank = 0; rank < world_size; rank++) {
        if (!status.code) status = statuses[rank];
        printf("     rank %d: %s\n", rank, gs_ranks_note(ranks, rank));
    }
    gs_ranks_destroy(ranks);
    return status;
}

static gs_status kill_one(int world_size) {
    gs_ranks *ranks = NULL;
    gs_status statuses[16] = {{0}};
    const gs_deadline deadline = gs_deadline_in_seconds(RUN_SECONDS);
    GS_TRY(gs_ranks_start(&ranks, "until-it-fails", world_size, "", NULL));
    gs_status status = gs_ok();
    for (int rank = 0; rank < world_size && !status.code; rank++)
        status = gs_ranks_wait_note(ranks, rank, "under way", deadline);
    const int64_t killed_ns = gs_now_ns();
    if (!status.code) gs_ranks_signal(ranks, world_size - 1, SIGKILL);
    const gs_status ended = gs_ranks_wait(ranks, statuses, deadline);
    if (!status.code) status = ended;
    if (!status.code) status = check_survivors(ranks, statuses, world_size, killed_ns);
    gs_ranks_destroy(ranks);
    return status;
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const int world_size = argc == 3 ? atoi(argv[2]) : 0;
    if (world_size < 2 || world_size > 16) {
        fprintf(stderr, "usage: nccl_ranks sums|kill|first WORLD_SIZE\n");
        return 2;
    }
    char why[256];
    if (gs_cuda_device_count(why, sizeof why) == 0 || !gs_nccl_version(why, sizeof why)) {
        gs_test_miss_device(why);
        printf("skipped: %s\n", why);
        return SKIPPED;
    }
    printf("NCCL %s\n", why);
    if (strcmp(argv[1], "kill") == 0)
        return report("kill -9 in a collective", world_size, kill_one(world_size));
    if (strcmp(argv[1], "first") == 0)
        return report("first collective", world_size, time_first(world_size));
    return report("sums", world_size,
                  gs_ranks_run("sums", world_size, "", gs_deadline_in_seconds(RUN_SECONDS)));
}
