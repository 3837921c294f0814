#include "worker/pass/model_replicas.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/memory.h"
#include "core/thread.h"
#include "gradsync/tensor/device_tensor.h"
#include "worker/models/registry.h"

#define IDLE_WAIT_NS (10 * GS_NS_PER_SEC)
#define TENSOR_BOUNDARY_BYTES 64

typedef struct member {
    gs_model_replicas *replicas;
    int index;
    gs_replica_view view;
    // Owned; replica 0 has none of these.
    gs_model model;
    void *memory;  // of the values
    void **values;
    gs_mixed_precision *mixed;
    gs_thread *thread;
    bool running;  // under the lock of all
} member;

struct gs_model_replicas {
    int count;
    const gs_trainer_state *state;
    gs_device **devices;
    member *members;
    gs_tensor_lists *values;   // list r: replica r's
    gs_tensor_lists *buffers;  // the committed ones

    pthread_mutex_t lock;  // of what follows
    pthread_cond_t changed;
    void (*body)(void *ctx, int replica);
    void *ctx;
};

static void run_member(void *ctx, const atomic_bool *stopping) {
    member *self = ctx;
    gs_model_replicas *replicas = self->replicas;
    pthread_mutex_lock(&replicas->lock);
    while (!atomic_load(stopping)) {
        if (!self->running) {
            gs_cond_wait(&replicas->changed, &replicas->lock, gs_deadline_in_ns(IDLE_WAIT_NS));
            continue;
        }
        pthread_mutex_unlock(&replicas->lock);
        replicas->body(replicas->ctx, self->index);
        pthread_mutex_lock(&replicas->lock);
        self->running = false;
        pthread_cond_broadcast(&replicas->changed);
    }
    pthread_mutex_unlock(&replicas->lock);
}

// Laid out as the trainer's parameters are: tensors on boundaries of their own.
static gs_status make_values(member *self) {
    const gs_trainer_state *state = self->replicas->state;
    size_t total = 0;
    for (size_t i = 0; i < state->num_params; i++)
        total += gs_round_up(gs_param_spec_count(&state->param_specs[i]) * sizeof(float),
                             TENSOR_BOUNDARY_BYTES);
    GS_TRY(gs_device_alloc(self->view.device, &self->memory, total));
    self->values = calloc(state->num_params, sizeof *self->values);
    if (!self->values) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    char *at = self->memory;
    for (size_t i = 0; i < state->num_params; i++) {
        self->values[i] = at;
        at += gs_round_up(gs_param_spec_count(&state->param_specs[i]) * sizeof(float),
                          TENSOR_BOUNDARY_BYTES);
    }
    return gs_ok();
}

static gs_status make_mixed(member *self) {
    const gs_trainer_state *state = self->replicas->state;
    if (!state->mixed) return gs_ok();
    const gs_mixed_precision_options options = {.dtype = gs_mixed_precision_dtype(state->mixed),
                                                .params = state->param_specs,
                                                .num_params = state->num_params,
                                                .masters = (float *const *)self->values,
                                                .adds_passes = true,
                                                .device = self->view.device};
    return gs_mixed_precision_create(&self->mixed, &options);
}

static gs_status make_member(gs_model_replicas *replicas, int index, const gs_job_spec *spec,
                             int num_threads) {
    member *self = &replicas->members[index];
    const gs_trainer_state *state = replicas->state;
    *self = (member){.replicas = replicas, .index = index};
    if (index == 0) {
        replicas->devices[0] = state->device;
        self->view = gs_replica_view_of(state);
        return gs_ok();
    }
    GS_TRY(gs_device_open(&replicas->devices[index], gs_device_name(state->device),
                          &(gs_device_options){.num_threads = num_threads}));
    self->view.device = replicas->devices[index];
    GS_TRY(gs_model_create(&self->model, spec, spec->data.micro_batch, self->view.device));
    GS_TRY(make_values(self));
    GS_TRY(make_mixed(self));
    // Replica 0's statistics are the rank's; what the others make of theirs ends with the step.
    GS_TRY(gs_buffers_create(&self->view.buffers, state->buffer_specs, state->num_buffers,
                             GS_BUFFERS_LOCAL, spec->exact, self->view.device));
    self->view.model = &self->model;
    self->view.values = self->values;
    self->view.mixed = self->mixed;
    char name[16];
    snprintf(name, sizeof name, "replica-%d", index);
    return gs_thread_start(&self->thread, name, run_member, self);
}

static gs_status list_tensors(gs_model_replicas *replicas) {
    const gs_trainer_state *state = replicas->state;
    size_t count = (size_t)replicas->count;
    GS_TRY(gs_tensor_lists_create(&replicas->values, count, state->num_params, 0));
    GS_TRY(gs_tensor_lists_create(&replicas->buffers, count, state->num_buffers, 0));
    for (size_t r = 0; r < count; r++) {
        const gs_replica_view *view = &replicas->members[r].view;
        for (size_t i = 0; i < state->num_params; i++) {
            gs_device_tensor *value = &gs_tensor_lists_of(replicas->values, r)[i];
            *value = gs_device_tensor_make(&state->param_specs[i], view->values[i], view->device);
            value->dtype = GS_FP32;  // what passes read, whatever the parameter's precision
        }
        void *const *committed = gs_buffers_committed(view->buffers);
        for (size_t i = 0; i < state->num_buffers; i++)
            gs_tensor_lists_of(replicas->buffers, r)[i] =
                gs_device_tensor_make(&state->buffer_specs[i], committed[i], view->device);
    }
    return gs_ok();
}

gs_status gs_model_replicas_create(gs_model_replicas **out, const gs_job_spec *spec,
                                   const gs_trainer_state *state, int num_threads) {
    gs_model_replicas *replicas = calloc(1, sizeof *replicas);
    if (!replicas) return gs_error(GS_RESOURCE_EXHAUSTED, "replicas: out of memory");
    replicas->count = (int)spec->world.replicas_per_process;
    replicas->state = state;
    pthread_mutex_init(&replicas->lock, NULL);
    gs_cond_init(&replicas->changed);
    replicas->devices = calloc((size_t)replicas->count, sizeof *replicas->devices);
    replicas->members = calloc((size_t)replicas->count, sizeof *replicas->members);
    gs_status status = gs_ok();
    if (!replicas->devices || !replicas->members)
        status = gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (int r = 0; r < replicas->count && !status.code; r++)
        status = gs_status_prefix(make_member(replicas, r, spec, num_threads), "replica %d", r);
    if (!status.code) status = list_tensors(replicas);
    if (status.code) {
        gs_model_replicas_destroy(replicas);
        return status;
    }
    *out = replicas;
    return gs_ok();
}

static void release_member(gs_model_replicas *replicas, member *self) {
    gs_thread_stop(self->thread);
    if (self->index == 0) return;
    gs_buffers_destroy(self->view.buffers);
    gs_mixed_precision_destroy(self->mixed);
    gs_model_destroy(&self->model);
    if (self->view.device) gs_device_free(self->view.device, self->memory);
    free(self->values);
    gs_device_close(replicas->devices[self->index]);
}

void gs_model_replicas_destroy(gs_model_replicas *replicas) {
    if (!replicas) return;
    if (replicas->members) {
        for (int r = 0; r < replicas->count; r++)
            gs_thread_ask_to_stop(replicas->members[r].thread);
        pthread_mutex_lock(&replicas->lock);
        pthread_cond_broadcast(&replicas->changed);
        pthread_mutex_unlock(&replicas->lock);
        for (int r = 0; r < replicas->count; r++) release_member(replicas, &replicas->members[r]);
    }
    gs_tensor_lists_destroy(replicas->values);
    gs_tensor_lists_destroy(replicas->buffers);
    free(replicas->members);
    free(replicas->devices);
    pthread_cond_destroy(&replicas->changed);
    pthread_mutex_destroy(&replicas->lock);
    free(replicas);
}

int gs_model_replicas_count(const gs_model_replicas *replicas) {
    return replicas->count;
}

gs_device *const *gs_model_replicas_devices(const gs_model_replicas *replicas) {
    return replicas->devices;
}

gs_replica_view gs_model_replicas_view(const gs_model_replicas *replicas, int replica) {
    return replicas->members[replica].view;
}

void gs_model_replicas_refresh(gs_model_replicas *replicas, int replica) {
    if (replica == 0) return;
    gs_tensor_lists_refresh(replicas->values, (size_t)replica);
    gs_tensor_lists_refresh(replicas->buffers, (size_t)replica);
}

void gs_model_replicas_start(gs_model_replicas *replicas, void (*body)(void *ctx, int replica),
                             void *ctx) {
    pthread_mutex_lock(&replicas->lock);
    replicas->body = body;
    replicas->ctx = ctx;
    for (int r = 1; r < replicas->count; r++) replicas->members[r].running = true;
    pthread_cond_broadcast(&replicas->changed);
    pthread_mutex_unlock(&replicas->lock);
}

gs_status gs_model_replicas_wait(gs_model_replicas *replicas, gs_deadline deadline) {
    gs_status status = gs_ok();
    pthread_mutex_lock(&replicas->lock);
    for (int r = 1; r < replicas->count && !status.code; r++) {
        while (replicas->members[r].running && !status.code) {
            if (!gs_cond_wait(&replicas->changed, &replicas->lock, deadline) &&
                replicas->members[r].running)
                status = gs_error(GS_DEADLINE_EXCEEDED, "replica %d is still running", r);
        }
    }
    pthread_mutex_unlock(&replicas->lock);
    return status;
}
