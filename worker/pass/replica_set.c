#include "worker/pass/replica_set.h"

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
    gs_replica_set *set;
    int index;
    gs_replica_view view;
    // Owned; replica 0 has none of these.
    gs_model model;
    void *memory;  // of the values
    void **values;
    gs_mixed_precision *mixed;
    gs_thread *thread;
    bool running;  // under the set's lock
} member;

struct gs_replica_set {
    int count;
    const gs_trainer_state *state;
    gs_device **devices;
    member *members;
    gs_tensor_lists values;   // list r: replica r's
    gs_tensor_lists buffers;  // the committed ones

    pthread_mutex_t lock;  // of what follows
    pthread_cond_t changed;
    void (*body)(void *ctx, int replica);
    void *ctx;
};

static void run_member(void *ctx, const atomic_bool *stopping) {
    member *self = ctx;
    gs_replica_set *set = self->set;
    pthread_mutex_lock(&set->lock);
    while (!atomic_load(stopping)) {
        if (!self->running) {
            gs_cond_wait(&set->changed, &set->lock, gs_deadline_in_ns(IDLE_WAIT_NS));
            continue;
        }
        pthread_mutex_unlock(&set->lock);
        set->body(set->ctx, self->index);
        pthread_mutex_lock(&set->lock);
        self->running = false;
        pthread_cond_broadcast(&set->changed);
    }
    pthread_mutex_unlock(&set->lock);
}

// Laid out as the trainer's parameters are: tensors on boundaries of their own.
static gs_status make_values(member *self) {
    const gs_trainer_state *state = self->set->state;
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
    const gs_trainer_state *state = self->set->state;
    if (!state->mixed) return gs_ok();
    const gs_mixed_precision_options options = {.dtype = gs_mixed_precision_dtype(state->mixed),
                                                .params = state->param_specs,
                                                .num_params = state->num_params,
                                                .masters = (float *const *)self->values,
                                                .adds_passes = true,
                                                .device = self->view.device};
    return gs_mixed_precision_create(&self->mixed, &options);
}

static gs_status make_member(gs_replica_set *set, int index, const gs_job_spec *spec,
                             int num_threads) {
    member *self = &set->members[index];
    const gs_trainer_state *state = set->state;
    *self = (member){.set = set, .index = index};
    if (index == 0) {
        set->devices[0] = state->device;
        self->view = gs_replica_view_of(state);
        return gs_ok();
    }
    GS_TRY(gs_device_open(&set->devices[index], gs_device_name(state->device),
                          &(gs_device_options){.num_threads = num_threads}));
    self->view.device = set->devices[index];
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

static gs_status list_tensors(gs_replica_set *set) {
    const gs_trainer_state *state = set->state;
    size_t count = (size_t)set->count;
    GS_TRY(gs_tensor_lists_init(&set->values, count, state->num_params, 0));
    GS_TRY(gs_tensor_lists_init(&set->buffers, count, state->num_buffers, 0));
    for (size_t r = 0; r < count; r++) {
        const gs_replica_view *view = &set->members[r].view;
        for (size_t i = 0; i < state->num_params; i++) {
            gs_device_tensor *value = &gs_tensor_lists_of(&set->values, r)[i];
            *value = gs_device_tensor_make(&state->param_specs[i], view->values[i], view->device);
            value->dtype = GS_FP32;  // what passes read, whatever the parameter's precision
        }
        void *const *committed = gs_buffers_committed(view->buffers);
        for (size_t i = 0; i < state->num_buffers; i++)
            gs_tensor_lists_of(&set->buffers, r)[i] =
                gs_device_tensor_make(&state->buffer_specs[i], committed[i], view->device);
    }
    return gs_ok();
}

gs_status gs_replica_set_create(gs_replica_set **out, const gs_job_spec *spec,
                                const gs_trainer_state *state, int num_threads) {
    gs_replica_set *set = calloc(1, sizeof *set);
    if (!set) return gs_error(GS_RESOURCE_EXHAUSTED, "replicas: out of memory");
    set->count = (int)spec->world.replicas_per_process;
    set->state = state;
    pthread_mutex_init(&set->lock, NULL);
    gs_cond_init(&set->changed);
    set->devices = calloc((size_t)set->count, sizeof *set->devices);
    set->members = calloc((size_t)set->count, sizeof *set->members);
    gs_status status = gs_ok();
    if (!set->devices || !set->members) status = gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (int r = 0; r < set->count && !status.code; r++)
        status = gs_status_prefix(make_member(set, r, spec, num_threads), "replica %d", r);
    if (!status.code) status = list_tensors(set);
    if (status.code) {
        gs_replica_set_destroy(set);
        return status;
    }
    *out = set;
    return gs_ok();
}

static void release_member(gs_replica_set *set, member *self) {
    gs_thread_stop(self->thread);
    if (self->index == 0) return;
    gs_buffers_destroy(self->view.buffers);
    gs_mixed_precision_destroy(self->mixed);
    gs_model_destroy(&self->model);
    if (self->view.device) gs_device_free(self->view.device, self->memory);
    free(self->values);
    gs_device_close(set->devices[self->index]);
}

void gs_replica_set_destroy(gs_replica_set *set) {
    if (!set) return;
    if (set->members) {
        for (int r = 0; r < set->count; r++) gs_thread_ask_to_stop(set->members[r].thread);
        pthread_mutex_lock(&set->lock);
        pthread_cond_broadcast(&set->changed);
        pthread_mutex_unlock(&set->lock);
        for (int r = 0; r < set->count; r++) release_member(set, &set->members[r]);
    }
    gs_tensor_lists_release(&set->values);
    gs_tensor_lists_release(&set->buffers);
    free(set->members);
    free(set->devices);
    pthread_cond_destroy(&set->changed);
    pthread_mutex_destroy(&set->lock);
    free(set);
}

int gs_replica_set_count(const gs_replica_set *set) {
    return set->count;
}

gs_device *const *gs_replica_set_devices(const gs_replica_set *set) {
    return set->devices;
}

gs_replica_view gs_replica_set_view(const gs_replica_set *set, int replica) {
    return set->members[replica].view;
}

void gs_replica_set_refresh(gs_replica_set *set, int replica) {
    if (replica == 0) return;
    gs_tensor_lists_refresh(&set->values, (size_t)replica);
    gs_tensor_lists_refresh(&set->buffers, (size_t)replica);
}

void gs_replica_set_start(gs_replica_set *set, void (*body)(void *ctx, int replica), void *ctx) {
    pthread_mutex_lock(&set->lock);
    set->body = body;
    set->ctx = ctx;
    for (int r = 1; r < set->count; r++) set->members[r].running = true;
    pthread_cond_broadcast(&set->changed);
    pthread_mutex_unlock(&set->lock);
}

gs_status gs_replica_set_wait(gs_replica_set *set, gs_deadline deadline) {
    gs_status status = gs_ok();
    pthread_mutex_lock(&set->lock);
    for (int r = 1; r < set->count && !status.code; r++) {
        while (set->members[r].running && !status.code) {
            if (!gs_cond_wait(&set->changed, &set->lock, deadline) && set->members[r].running)
                status = gs_error(GS_DEADLINE_EXCEEDED, "replica %d is still running", r);
        }
    }
    pthread_mutex_unlock(&set->lock);
    return status;
}
