#include "tests/nccl/nccl_rank.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gradsync/comm/device_arena.h"
#include "tests/support/test_device.h"

#define RANKS_SECONDS 250.0

void nccl_skip_without_gpu(void) {
    char why[256];
    if (gs_cuda_device_count(why, sizeof why) > 0) return;
    gs_test_miss_device(why);
    printf("skipped: no GPU: %s\n", why);
    exit(77);
}

gs_status nccl_rank_open_device(comm_rank *self, const gs_rank_env *env, size_t arena_bytes) {
    *self = (comm_rank){.rank = env->rank, .world_size = env->world_size};
    GS_TRY(gs_device_open(&self->device, "cuda:0", &(gs_device_options){0}));
    if (!arena_bytes) return gs_ok();
    return gs_arena_create_on(&self->arena, arena_bytes, self->device);
}

// As a supervised process does it.
static void end_process(void *ctx, const char *reason) {
    (void)ctx;
    (void)reason;
    _exit(GS_COMM_EXIT_ABORT_HUNG);
}

gs_status nccl_rank_connect(comm_rank *self, const gs_rank_env *env,
                            const gs_comm_options *options, gs_deadline deadline) {
    gs_comm_options all = options ? *options : (gs_comm_options){0};
    if (!all.generation) all.generation = 1;
    if (!all.backend) all.backend = "nccl";
    all.rank = env->rank;
    all.world_size = env->world_size;
    all.arena = self->arena;
    all.device = self->device;
    if (!strstr(env->arg, "stays")) all.abort_hung = end_process;
    if (!all.exchange) {
        all.exchange = gs_rank_exchange;
        all.exchange_ctx = env->exchange;
    }
    return gs_comm_create(&self->comm, &all, deadline);
}

gs_status nccl_rank_open(comm_rank *self, const gs_rank_env *env, size_t arena_bytes,
                         const gs_comm_options *options) {
    GS_TRY(nccl_rank_open_device(self, env, arena_bytes));
    return nccl_rank_connect(self, env, options, gs_deadline_in_seconds(NCCL_RANK_SECONDS));
}

gs_status nccl_ranks_run(const char *body, int world_size, const char *arg) {
    gs_status status = gs_ranks_run(body, world_size, arg, gs_deadline_in_seconds(RANKS_SECONDS));
    return gs_status_prefix(status, "%s, world %d", body, world_size);
}

static int count_entries(const char *path) {
    int count = 0;
    DIR *folder = opendir(path);
    if (!folder) return -1;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

int nccl_count_descriptors(void) {
    return count_entries("/proc/self/fd");
}

int nccl_count_threads(void) {
    return count_entries("/proc/self/task");
}
