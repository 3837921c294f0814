// The communicator of one rank: every collective is done when it is posted. The template to copy.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "gradsync/comm_backend.h"

#define KEPT_TIMES 1024

typedef struct self_comm {
    gs_device *device;
    _Atomic uint64_t finished;
    gs_work_times times[KEPT_TIMES];  // of the owner's thread
    pthread_mutex_t abort_lock;
    atomic_bool aborted;
    char abort_reason[252];
} self_comm;

static gs_status create_self(void **out, const gs_comm_options *options, char *reason,
                             size_t reason_bytes, gs_deadline deadline) {
    (void)deadline;
    if (options->world_size != 1) {
        snprintf(reason, reason_bytes, "there are %d ranks", options->world_size);
        return gs_error(GS_UNAVAILABLE, "backend self serves one rank, not %d",
                        options->world_size);
    }
    self_comm *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
    self->device = options->device;
    pthread_mutex_init(&self->abort_lock, NULL);
    snprintf(reason, reason_bytes, "there is one rank");
    *out = self;
    return gs_ok();
}

static void destroy_self(void *backend) {
    self_comm *self = backend;
    if (!self) return;
    pthread_mutex_destroy(&self->abort_lock);
    free(self);
}

static void abort_self(void *backend, const char *reason) {
    self_comm *self = backend;
    pthread_mutex_lock(&self->abort_lock);
    if (!atomic_load(&self->aborted))
        snprintf(self->abort_reason, sizeof self->abort_reason, "%s", reason);
    atomic_store(&self->aborted, true);
    pthread_mutex_unlock(&self->abort_lock);
}

static gs_status check_abort(self_comm *self) {
    if (!atomic_load_explicit(&self->aborted, memory_order_acquire)) return gs_ok();
    pthread_mutex_lock(&self->abort_lock);
    gs_status status = gs_error(GS_ABORTED, "%s", self->abort_reason);
    pthread_mutex_unlock(&self->abort_lock);
    return status;
}

static void reduce_parts(self_comm *self, const gs_collective *collective) {
    const gs_reduce_tree *tree = collective->tree;
    const void *inputs[GS_REDUCE_MAX_INPUTS] = {collective->send};
    int num_inputs = tree ? tree->num_inputs : 1;
    for (int i = 0; tree && i < num_inputs; i++)
        inputs[i] = (const unsigned char *)collective->send +
                    (size_t)tree->part[i] * collective->part_stride_bytes;
    void *output = collective->recv;
    gs_reduction reduction = {.outputs = &output,
                              .inputs = inputs,
                              .num_outputs = 1,
                              .num_inputs = num_inputs,
                              .merges = tree ? tree->merges : NULL,
                              .dtype = collective->dtype,
                              .op = collective->op,
                              .scale = collective->scale != 0 ? collective->scale : 1,
                              .count = collective->count};
    gs_device_kernels(self->device)->reduce(gs_device_stream(self->device), &reduction);
}

static void move_bytes(self_comm *self, const gs_collective *collective) {
    bool reduces = collective->kind == GS_ALLREDUCE || collective->kind == GS_REDUCE ||
                   collective->kind == GS_REDUCE_SCATTER;
    bool scales = collective->scale != 0 && collective->scale != 1;
    if (collective->kind == GS_BARRIER || collective->count == 0) return;
    if (reduces && (scales || collective->tree)) {
        reduce_parts(self, collective);
    } else if (collective->recv != collective->send) {
        gs_device_kernels(self->device)
            ->copy(gs_device_stream(self->device), collective->recv, collective->send,
                   collective->count * gs_dtype_bytes(collective->dtype));
    }
}

static gs_status post_self(void *backend, uint64_t sequence, const gs_collective *collective) {
    self_comm *self = backend;
    GS_TRY(check_abort(self));
    if (!collective) return gs_ok();
    GS_FAILPOINT("comm.publish");
    int64_t now_ns = gs_now_ns();
    move_bytes(self, collective);
    GS_FAILPOINT("comm.done");
    self->times[sequence % KEPT_TIMES] = (gs_work_times){now_ns, now_ns, now_ns, gs_now_ns()};
    atomic_store_explicit(&self->finished, sequence, memory_order_release);
    return gs_ok();
}

static uint64_t finished_of_self(const void *backend) {
    const self_comm *self = backend;
    return atomic_load_explicit(&self->finished, memory_order_acquire);
}

static gs_status wait_self(void *backend, uint64_t sequence, gs_deadline deadline) {
    (void)deadline;
    if (finished_of_self(backend) >= sequence) return gs_ok();
    GS_TRY(check_abort(backend));
    return gs_error(GS_FAILED_PRECONDITION, "collective %llu was not posted",
                    (unsigned long long)sequence);
}

static bool times_of_self(const void *backend, uint64_t sequence, gs_work_times *times) {
    const self_comm *self = backend;
    *times = self->times[sequence % KEPT_TIMES];
    return true;
}

static const char *algorithm_of_self(const void *backend, const gs_collective *collective) {
    (void)backend;
    (void)collective;
    return "none";
}

const gs_comm_backend gs_comm_self = {.name = "self",
                                      .create = create_self,
                                      .post = post_self,
                                      .wait = wait_self,
                                      .abort = abort_self,
                                      .destroy = destroy_self,
                                      .finished = finished_of_self,
                                      .times = times_of_self,
                                      .algorithm = algorithm_of_self};
