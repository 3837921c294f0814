#include "gradsync/step/averager.h"

#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"

struct gs_averager {
    gs_average_level levels[GS_AVERAGER_MAX_LEVELS];
    gs_comm *parts[GS_AVERAGER_MAX_LEVELS];  // owned; NULL: all ranks, or this one alone
    size_t num_levels;
    int64_t start_step;
    const gs_tensor_view *tensors;
    size_t num_tensors;
    gs_comm *comm;
    gs_device *device;
    size_t bytes;         // of all tensors, each on a line
    char *own, *mean;     // what this rank brought to the last average, and what came of it
    uint8_t *used;        // in it, by tensor
    int64_t begun, done;  // steps of the last one; -1: none
};

static gs_status check_levels(const gs_averager_options *options) {
    int world_size = gs_comm_world_size(options->comm);
    if (options->num_levels < 1 || options->num_levels > GS_AVERAGER_MAX_LEVELS)
        return gs_error(GS_INVALID_ARGUMENT, "averager: %zu levels are not 1 to %d",
                        options->num_levels, GS_AVERAGER_MAX_LEVELS);
    for (size_t i = 0; i < options->num_levels; i++) {
        const gs_average_level *level = &options->levels[i];
        bool is_last = i + 1 == options->num_levels;
        if (level->period < 1)
            return gs_error(GS_INVALID_ARGUMENT, "averager: level %zu has period %lld", i,
                            (long long)level->period);
        if (is_last && level->num_ranks && level->num_ranks < world_size)
            return gs_error(GS_INVALID_ARGUMENT,
                            "averager: the last level is of %d ranks, not of all %d",
                            level->num_ranks, world_size);
        if (!is_last && level->num_ranks < 1)
            return gs_error(GS_INVALID_ARGUMENT, "averager: level %zu is of %d ranks", i,
                            level->num_ranks);
        if (i == 0) continue;
        if (level->period <= level[-1].period ||
            (level->num_ranks && level->num_ranks <= level[-1].num_ranks))
            return gs_error(GS_INVALID_ARGUMENT,
                            "averager: periods and ranks ascend, but level %zu is of period %lld "
                            "and %d ranks behind %lld and %d",
                            i, (long long)level->period, level->num_ranks,
                            (long long)level[-1].period, level[-1].num_ranks);
    }
    if (options->start_step < 0)
        return gs_error(GS_INVALID_ARGUMENT, "averager: start step %lld",
                        (long long)options->start_step);
    return gs_ok();
}

static gs_status check_tensors(const gs_averager_options *options) {
    for (size_t i = 0; i < options->num_tensors; i++) {
        gs_dtype dtype = options->tensors[i].dtype;
        if (dtype != GS_FP32 && dtype != GS_FP64 && dtype != GS_FP16 && dtype != GS_BF16)
            return gs_error(GS_INVALID_ARGUMENT, "averager: tensor %zu of %s has no average", i,
                            gs_dtype_name(dtype));
    }
    return gs_ok();
}

static gs_status alloc_beside(gs_averager *self) {
    size_t bytes;
    for (size_t i = 0; i < self->num_tensors; i++) {
        if (!gs_bytes_of(&bytes, self->tensors[i].count, gs_dtype_bytes(self->tensors[i].dtype)) ||
            !gs_add_padded(&self->bytes, bytes))
            return gs_error(GS_RESOURCE_EXHAUSTED, "averager: tensors do not fit into memory");
    }
    void *memory = NULL;
    self->used = calloc(self->num_tensors + 1, 1);
    if (!self->used) return gs_error(GS_RESOURCE_EXHAUSTED, "averager: out of memory");
    GS_TRY(gs_status_prefix(gs_device_alloc(self->device, &memory, 2 * self->bytes + GS_LINE_BYTES),
                            "averager"));
    self->own = memory;
    self->mean = self->own + self->bytes;
    // Padding between tensors is added up with the rest.
    gs_device_kernels(self->device)
        ->fill(gs_device_stream(self->device), memory, 0, 2 * self->bytes / sizeof(float));
    return gs_ok();
}

static void release_parts(gs_averager *self) {
    for (size_t i = 0; i < self->num_levels; i++) {
        gs_comm_destroy(self->parts[i]);
        self->parts[i] = NULL;
    }
}

static gs_status make_parts(gs_averager *self, gs_deadline deadline) {
    int world_size = gs_comm_world_size(self->comm);
    release_parts(self);
    for (size_t i = 0; i + 1 < self->num_levels; i++) {
        int num_ranks = self->levels[i].num_ranks;
        if (num_ranks == 1 || num_ranks >= world_size) continue;
        GS_TRY(gs_comm_split(&self->parts[i], self->comm,
                             &(gs_comm_split_options){.color = gs_comm_rank(self->comm) / num_ranks,
                                                      .name = "averager"},
                             deadline));
    }
    return gs_ok();
}

static gs_status make(gs_averager *self, const gs_averager_options *options) {
    GS_TRY(check_levels(options));
    GS_TRY(check_tensors(options));
    memcpy(self->levels, options->levels, options->num_levels * sizeof *options->levels);
    self->num_levels = options->num_levels;
    if (self->levels[0].period == 1)
        gs_log_warn("parameters are averaged after every step", "ranks=%d",
                    self->levels[0].num_ranks);
    return alloc_beside(self);
}

// What this rank alone gets wrong.
static gs_status name_rank(const gs_comm *comm, gs_status status) {
    return gs_status_prefix(status, "rank %d", gs_comm_rank(comm));
}

// The others are on their way to a split, or to the first average.
static gs_status tell_others(gs_comm *comm, gs_status status) {
    if (status.code) gs_comm_abort(comm, status.message);
    return status;
}

static gs_status take_options(gs_averager_options *known, const gs_averager_options *options,
                              size_t options_bytes) {
    gs_status status =
        gs_options_take(known, sizeof *known, options, options_bytes, "gs_averager_options");
    if (!known->comm)
        return status.code ? status : gs_error(GS_INVALID_ARGUMENT, "averager: no communicator");
    return tell_others(known->comm, name_rank(known->comm, status));
}

gs_status gs_averager_create_sized(gs_averager **out, const gs_averager_options *options,
                                   size_t options_bytes, gs_deadline deadline) {
    gs_averager_options known;
    GS_TRY(take_options(&known, options, options_bytes));
    gs_averager *self = calloc(1, sizeof *self);
    if (!self)
        return tell_others(known.comm, name_rank(known.comm, gs_error(GS_RESOURCE_EXHAUSTED,
                                                                      "averager: out of memory")));
    self->start_step = known.start_step;
    self->tensors = known.tensors;
    self->num_tensors = known.num_tensors;
    self->comm = known.comm;
    self->device = gs_comm_device(known.comm);
    self->begun = self->done = -1;
    gs_status status = name_rank(self->comm, make(self, &known));
    if (!status.code) status = make_parts(self, deadline);
    if (status.code) {
        status = tell_others(self->comm, status);
        gs_averager_destroy(self);
        return status;
    }
    *out = self;
    return gs_ok();
}

void gs_averager_destroy(gs_averager *averager) {
    if (!averager) return;
    release_parts(averager);
    if (averager->own) gs_device_free(averager->device, averager->own);
    free(averager->used);
    free(averager);
}

int gs_averager_due(const gs_averager *averager, int64_t step) {
    if (step < averager->start_step) return -1;
    if (averager->num_levels == 1)
        return (step - averager->start_step) % averager->levels[0].period == 0 ? 0 : -1;
    for (size_t i = averager->num_levels; i-- > 0;) {
        if (step % averager->levels[i].period == 0) return (int)i;
    }
    return -1;
}

static size_t bytes_of(const gs_tensor_view *tensor) {
    return tensor->count * gs_dtype_bytes(tensor->dtype);
}

// Between a flat copy and the tensors that were used.
static void copy_used(const gs_averager *self, char *flat, bool into_flat) {
    const gs_kernels *kernels = gs_device_kernels(self->device);
    gs_stream *stream = gs_device_stream(self->device);
    for (size_t i = 0; i < self->num_tensors; i++) {
        const gs_tensor_view *tensor = &self->tensors[i];
        if (!self->used[i]) continue;
        if (into_flat)
            kernels->copy(stream, flat, tensor->data, bytes_of(tensor));
        else
            kernels->copy(stream, tensor->data, flat, bytes_of(tensor));
        flat += gs_round_up(bytes_of(tensor), GS_LINE_BYTES);
    }
}

static gs_status average_run(const gs_averager *self, gs_comm *comm, int64_t step,
                             size_t first_byte, size_t bytes, gs_dtype dtype,
                             gs_deadline deadline) {
    return gs_comm_run(comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = self->own + first_byte,
                                        .recv = self->mean + first_byte,
                                        .count = bytes / gs_dtype_bytes(dtype),
                                        .dtype = dtype,
                                        .op = GS_OP_SUM,
                                        .scale = 1.0 / gs_comm_world_size(comm),
                                        .step = step,
                                        .bucket = -1},
                       deadline);
}

// One collective for neighbours of one type.
static gs_status average_flat(const gs_averager *self, gs_comm *comm, int64_t step,
                              gs_deadline deadline) {
    size_t first = 0, end = 0;
    gs_dtype dtype = GS_DTYPE_UNSET;
    for (size_t i = 0; i < self->num_tensors; i++) {
        const gs_tensor_view *tensor = &self->tensors[i];
        if (!self->used[i]) continue;
        if (end > first && tensor->dtype != dtype) {
            GS_TRY(average_run(self, comm, step, first, end - first, dtype, deadline));
            first = end;
        }
        dtype = tensor->dtype;
        end += gs_round_up(bytes_of(tensor), GS_LINE_BYTES);
    }
    return end > first ? average_run(self, comm, step, first, end - first, dtype, deadline)
                       : gs_ok();
}

// All ranks have their sums: from here on each writes.
static gs_status confirm(const gs_averager *self, int64_t step, gs_deadline deadline) {
    GS_FAILPOINT("averager.summed");
    GS_TRY(gs_comm_run(self->comm, &(gs_collective){.kind = GS_BARRIER, .step = step, .bucket = -1},
                       deadline));
    GS_FAILPOINT("averager.confirmed");
    return gs_ok();
}

// `comm` NULL: this rank is alone at this level, and waits for the others only.
static gs_status average(gs_averager *self, gs_comm *comm, int64_t step, const uint8_t *used,
                         gs_deadline deadline) {
    for (size_t i = 0; i < self->num_tensors; i++) self->used[i] = !used || used[i];
    self->begun = step;
    self->done = -1;
    copy_used(self, self->own, true);
    if (comm) GS_TRY(average_flat(self, comm, step, deadline));
    GS_TRY(confirm(self, step, deadline));
    GS_FAILPOINT("averager.adopt");
    if (comm) copy_used(self, self->mean, false);
    self->done = step;
    gs_stream *stream = gs_device_stream(self->device);
    return gs_device_is_host(self->device) ? gs_stream_wait(stream, deadline)
                                           : gs_stream_take_error(stream);
}

static gs_status average_or_abort(gs_averager *self, gs_comm *comm, int64_t step,
                                  const uint8_t *used, gs_deadline deadline) {
    gs_status status = average(self, comm, step, used, deadline);
    if (status.code) gs_comm_abort(self->comm, status.message);
    return gs_status_prefix(status, "average of step %lld", (long long)step);
}

gs_status gs_averager_run(gs_averager *averager, int64_t step, const uint8_t *used, int *num_ranks,
                          gs_deadline deadline) {
    int level = gs_averager_due(averager, step);
    int world_size = gs_comm_world_size(averager->comm);
    *num_ranks = 0;
    if (level < 0) return gs_ok();
    gs_comm *comm = averager->parts[level];
    bool is_last = (size_t)level + 1 == averager->num_levels;
    if (!comm && (is_last || averager->levels[level].num_ranks >= world_size))
        comm = averager->comm;
    GS_TRY(average_or_abort(averager, comm, step, used, deadline));
    *num_ranks = comm ? gs_comm_world_size(comm) : 1;
    return gs_ok();
}

gs_status gs_averager_run_all(gs_averager *averager, int64_t step, const uint8_t *used,
                              gs_deadline deadline) {
    return average_or_abort(averager, averager->comm, step, used, deadline);
}

// Of this rank's last average.
typedef struct last_average {
    int64_t begun, done;
} last_average;

// What some have begun and not all of those have done.
static gs_status find_unfinished(gs_averager *self, int64_t *step, gs_deadline deadline) {
    size_t world_size = (size_t)gs_comm_world_size(self->comm);
    last_average mine = {self->begun, self->done}, *all = calloc(world_size, sizeof *all);
    *step = -1;
    if (!all) return gs_error(GS_RESOURCE_EXHAUSTED, "averager: out of memory");
    gs_status status = gs_comm_run(self->comm,
                                   &(gs_collective){.kind = GS_ALLGATHER,
                                                    .send = &mine,
                                                    .recv = all,
                                                    .count = sizeof mine,
                                                    .dtype = GS_U8,
                                                    .step = -1,
                                                    .bucket = -1},
                                   deadline);
    int64_t newest = -1;
    for (size_t i = 0; i < world_size && !status.code; i++)
        if (all[i].begun > newest) newest = all[i].begun;
    for (size_t i = 0; i < world_size && !status.code; i++)
        if (newest >= 0 && all[i].begun == newest && all[i].done < newest) *step = newest;
    free(all);
    return status;
}

static gs_status move_to_comm(gs_averager *averager, gs_comm *comm, int64_t *step,
                              gs_deadline deadline) {
    averager->comm = comm;
    GS_TRY(make_parts(averager, deadline));
    GS_TRY(find_unfinished(averager, step, deadline));
    if (*step >= 0 && averager->done == *step) {
        copy_used(averager, averager->own, false);
        GS_TRY(gs_stream_wait(gs_device_stream(averager->device), deadline));
    }
    averager->begun = averager->done = -1;
    return gs_ok();
}

gs_status gs_averager_reset(gs_averager *averager, gs_comm *comm, int64_t *step,
                            gs_deadline deadline) {
    return tell_others(comm, move_to_comm(averager, comm, step, deadline));
}
