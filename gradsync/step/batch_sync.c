#include "gradsync/step/batch_sync.h"

#include <stdlib.h>

#include "core/memory.h"

struct gs_batch_sync {
    gs_comm *comm;  // borrowed
    gs_model_sync callbacks;
    size_t max_channels;
    double timeout_seconds;
    int64_t step;
    double *gathered;  // owned; (ranks, 1 + 2 · max_channels)
};

// Every rank's `count` values one after the other in sync->gathered; where this rank's go.
static double *own_values(const gs_batch_sync *sync, size_t count) {
    return sync->gathered + (size_t)gs_comm_rank(sync->comm) * count;
}

static gs_status gather(gs_batch_sync *sync, size_t count) {
    gs_collective collective = {.kind = GS_ALLGATHER,
                                .send = own_values(sync, count),
                                .recv = sync->gathered,
                                .count = count,
                                .dtype = GS_FP64,
                                .step = sync->step,
                                .bucket = -1};
    return gs_status_prefix(
        gs_comm_run(sync->comm, &collective, gs_deadline_in_seconds(sync->timeout_seconds)),
        "batch statistics, step %lld", (long long)sync->step);
}

// Whoever alone cannot go on must tell the ranks that wait for it.
static gs_status tell_others(gs_comm *comm, gs_status status) {
    if (status.code) gs_comm_abort(comm, status.message);
    return status;
}

static gs_status check_count(const gs_batch_sync *sync, size_t count, size_t most) {
    if (count >= 1 && count <= most) return gs_ok();
    return tell_others(sync->comm,
                       gs_error(GS_INVALID_ARGUMENT,
                                "batch statistics, rank %d, step %lld: %zu values, made for %zu",
                                gs_comm_rank(sync->comm), (long long)sync->step, count, most));
}

static void fold_part(double rows, const double *mean, const double *m2, double *all_rows,
                      double *all_mean, double *all_m2, size_t channels) {
    if (!(rows > 0.0)) return;
    double before = *all_rows, total = before + rows;
    for (size_t c = 0; c < channels; c++) {
        double distance = mean[c] - all_mean[c];
        all_mean[c] += distance * (rows / total);
        all_m2[c] += m2[c] + distance * distance * (before * rows / total);
    }
    *all_rows = total;
}

static gs_status combine(void *ctx, double *rows, double *mean, double *m2, size_t channels) {
    gs_batch_sync *sync = ctx;
    size_t count = 1 + 2 * channels;
    GS_TRY(check_count(sync, channels, sync->max_channels));
    double *mine = own_values(sync, count);
    mine[0] = *rows;
    for (size_t c = 0; c < channels; c++) {
        mine[1 + c] = mean[c];
        mine[1 + channels + c] = m2[c];
    }
    GS_TRY(gather(sync, count));
    *rows = 0.0;
    for (size_t c = 0; c < channels; c++) mean[c] = m2[c] = 0.0;
    for (int rank = 0; rank < gs_comm_world_size(sync->comm); rank++) {
        const double *part = sync->gathered + (size_t)rank * count;
        fold_part(part[0], part + 1, part + 1 + channels, rows, mean, m2, channels);
    }
    return gs_ok();
}

static gs_status sum(void *ctx, double *values, size_t count) {
    gs_batch_sync *sync = ctx;
    GS_TRY(check_count(sync, count, 2 * sync->max_channels));
    double *mine = own_values(sync, count);
    for (size_t i = 0; i < count; i++) mine[i] = values[i];
    GS_TRY(gather(sync, count));
    for (size_t i = 0; i < count; i++) values[i] = 0.0;
    for (int rank = 0; rank < gs_comm_world_size(sync->comm); rank++) {
        const double *part = sync->gathered + (size_t)rank * count;
        for (size_t i = 0; i < count; i++) values[i] += part[i];
    }
    return gs_ok();
}

gs_status gs_batch_sync_create(gs_batch_sync **out, gs_comm *comm, size_t max_channels,
                               double timeout_seconds) {
    *out = NULL;
    size_t values, bytes;
    gs_batch_sync *sync = calloc(1, sizeof *sync);
    if (sync && max_channels <= SIZE_MAX / 4 &&
        gs_bytes_of(&values, 1 + 2 * max_channels, (size_t)gs_comm_world_size(comm)) &&
        gs_bytes_of(&bytes, values, sizeof(double)))
        sync->gathered = calloc(1, bytes);
    if (!sync || !sync->gathered) {
        gs_batch_sync_destroy(sync);
        return tell_others(comm, gs_error(GS_RESOURCE_EXHAUSTED,
                                          "batch statistics, rank %d: out of memory",
                                          gs_comm_rank(comm)));
    }
    sync->comm = comm;
    sync->max_channels = max_channels;
    sync->timeout_seconds = timeout_seconds;
    sync->callbacks = (gs_model_sync){.combine = combine, .sum = sum, .ctx = sync};
    *out = sync;
    return gs_ok();
}

void gs_batch_sync_destroy(gs_batch_sync *sync) {
    if (!sync) return;
    free(sync->gathered);
    free(sync);
}

const gs_model_sync *gs_batch_sync_at(gs_batch_sync *sync, int64_t step) {
    sync->step = step;
    return &sync->callbacks;
}
