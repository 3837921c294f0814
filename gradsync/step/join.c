#include "gradsync/step/join.h"

#include <stdlib.h>

#include "core/digest.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "gradsync/tensor/device_digest.h"

#define MAX_RANKS 4096
#define WARN_AFTER_STEPS 1000

struct gs_join {
    gs_join_options options;
    gs_joinable *joinables;  // owned
    gs_comm *comm;           // borrowed
    gs_join_round round;     // of the last step that was opened
    int64_t step;
    int last_source;  // of the last step that somebody had data for
    int64_t shadowed_steps;
    bool is_open;
};

static gs_status gather_flags(int32_t *flags, gs_comm *comm, bool active, int64_t step,
                              gs_deadline deadline) {
    int rank = gs_comm_rank(comm), world_size = gs_comm_world_size(comm);
    if (world_size > MAX_RANKS)  // on all ranks alike
        return gs_error(GS_INVALID_ARGUMENT, "%d ranks, at most %d", world_size, MAX_RANKS);
    flags[rank] = active;
    gs_collective collective = {.kind = GS_ALLGATHER,
                                .send = &flags[rank],
                                .recv = flags,
                                .count = 1,
                                .dtype = GS_I32,
                                .step = step,
                                .bucket = -1};
    return gs_comm_run(comm, &collective, deadline);
}

// `idle` (may be NULL): the first rank without data, -1 when all have some.
static gs_status announce(gs_join_round *round, int *idle, gs_comm *comm, bool active,
                          gs_join_divisor divisor, int64_t step, gs_deadline deadline) {
    int32_t flags[MAX_RANKS];
    *round = (gs_join_round){.source = -1, .active = active, .divisor = divisor};
    GS_TRY(gs_status_prefix(gather_flags(flags, comm, active, step, deadline), "join, step %lld",
                            (long long)step));
    if (idle) *idle = -1;
    for (int i = 0; i < gs_comm_world_size(comm); i++) {
        if (flags[i]) {
            round->num_active++;
            round->source = i;
        } else if (idle && *idle < 0) {
            *idle = i;
        }
    }
    return gs_ok();
}

gs_status gs_join_announce(gs_join_round *round, gs_comm *comm, bool active,
                           gs_join_divisor divisor, int64_t step, gs_deadline deadline) {
    return announce(round, NULL, comm, active, divisor, step, deadline);
}

// Whoever alone cannot go on must tell the ranks that wait for it.
static gs_status tell_others(gs_comm *comm, gs_status status) {
    if (status.code) gs_comm_abort(comm, status.message);
    return status;
}

static gs_status create_join(gs_join **out, const gs_join_options *options, gs_comm *comm) {
    for (int i = 0; i < options->num_joinables; i++)
        if (!options->joinables[i].shadow)
            return gs_error(GS_INVALID_ARGUMENT, "join: joinable %d has no shadow function", i);
    gs_join *join = calloc(1, sizeof *join);
    gs_joinable *joinables = calloc((size_t)options->num_joinables + 1, sizeof *joinables);
    if (!join || !joinables) {
        free(join);
        free(joinables);
        return gs_error(GS_RESOURCE_EXHAUSTED, "join: out of memory");
    }
    for (int i = 0; i < options->num_joinables; i++) joinables[i] = options->joinables[i];
    *join = (gs_join){.options = *options, .joinables = joinables, .comm = comm};
    if (!join->options.warn_after_steps) join->options.warn_after_steps = WARN_AFTER_STEPS;
    *out = join;
    return gs_ok();
}

gs_status gs_join_create_sized(gs_join **out, const gs_join_options *options, size_t options_bytes,
                               gs_comm *comm) {
    gs_join_options known;
    *out = NULL;
    gs_status status =
        gs_options_take(&known, sizeof known, options, options_bytes, "gs_join_options");
    if (!status.code) status = create_join(out, &known, comm);
    return tell_others(comm, gs_status_prefix(status, "rank %d", gs_comm_rank(comm)));
}

void gs_join_destroy(gs_join *join) {
    if (!join) return;
    free(join->joinables);
    free(join);
}

static void count_shadowed(gs_join *join) {
    if (++join->shadowed_steps != join->options.warn_after_steps) return;
    gs_log_warn("no data left for long: inputs are very uneven", "rank=%d step=%lld shadowed=%lld",
                gs_comm_rank(join->comm), (long long)join->step, (long long)join->shadowed_steps);
}

gs_status gs_join_open(gs_join *join, gs_join_round *round, bool active, int64_t step,
                       gs_deadline deadline) {
    int idle;
    join->is_open = false;
    GS_TRY(announce(round, &idle, join->comm, active, join->options.divisor, step, deadline));
    if (join->options.stops && idle >= 0)
        return gs_error(GS_OUT_OF_RANGE, "join, step %lld: rank %d has no data left",
                        (long long)step, idle);
    join->round = *round;
    join->step = step;
    join->is_open = true;
    if (round->num_active == 0) return gs_ok();
    join->last_source = round->source;
    if (!active) count_shadowed(join);
    return gs_ok();
}

gs_status gs_join_shadow(gs_join *join, gs_deadline deadline) {
    int rank = gs_comm_rank(join->comm);
    if (!join->is_open || join->round.active || join->round.num_active == 0)
        return tell_others(
            join->comm, gs_error(GS_FAILED_PRECONDITION, "join: rank %d has nothing to shadow%s",
                                 rank, join->is_open && join->round.active ? ": it has data" : ""));
    for (int i = 0; i < join->options.num_joinables; i++) {
        const gs_joinable *joinable = &join->joinables[i];
        gs_status status =
            gs_status_prefix(joinable->shadow(joinable->ctx, &join->round, join->step, deadline),
                             "join, step %lld: rank %d shadows %s", (long long)join->step, rank,
                             joinable->name ? joinable->name : "a joinable");
        GS_TRY(tell_others(join->comm, status));
    }
    return gs_ok();
}

int64_t gs_join_shadowed_steps(const gs_join *join) {
    return join->shadowed_steps;
}

static size_t bytes_of(const gs_tensor_view *view) {
    return view->count * gs_dtype_bytes(view->dtype);
}

static gs_status compare_params(const gs_join *join, const gs_join_state *state,
                                gs_deadline deadline) {
    uint64_t digests[MAX_RANKS];
    int rank = gs_comm_rank(join->comm);
    gs_digest_stream *stream = gs_digest_stream_create();
    gs_status status =
        stream ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "rank %d: out of memory", rank);
    GS_TRY(tell_others(join->comm, status));
    for (size_t i = 0; i < state->num_params; i++) {
        const gs_tensor_view *view = &state->params[i];
        if (!status.code)
            status = gs_device_digest_add(stream, gs_comm_device(join->comm), view->data,
                                          bytes_of(view));
    }
    digests[rank] = gs_digest_fold(gs_digest_stream_value(stream));
    gs_digest_stream_destroy(stream);
    GS_TRY(tell_others(join->comm, status));
    GS_TRY(gs_comm_run(join->comm,
                       &(gs_collective){.kind = GS_ALLGATHER,
                                        .send = &digests[rank],
                                        .recv = digests,
                                        .count = 1,
                                        .dtype = GS_I64,
                                        .step = join->step,
                                        .bucket = -1},
                       deadline));
    for (int i = 0; i < gs_comm_world_size(join->comm); i++)
        if (digests[i] != digests[join->last_source])
            return gs_error(GS_FAILED_PRECONDITION,
                            "parameters of rank %d are not those of rank %d", i, join->last_source);
    return gs_ok();
}

// Where the buffers are received: beside those that the rank has, which change when all of them are
// here.
typedef struct staged_buffers {
    gs_tensor_view *views;  // owned
    void *memory;           // owned, of the device
} staged_buffers;

static void free_staged(staged_buffers *staged, gs_device *device) {
    if (staged->memory) gs_device_free(device, staged->memory);
    free(staged->views);
}

static gs_status stage_buffers(staged_buffers *staged, const gs_join_state *state,
                               gs_device *device) {
    size_t bytes = 0;
    *staged = (staged_buffers){.views = calloc(state->num_buffers + 1, sizeof *staged->views)};
    if (!staged->views) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < state->num_buffers; i++)
        bytes += gs_round_up(bytes_of(&state->buffers[i]), GS_LINE_BYTES);
    if (bytes) GS_TRY(gs_device_alloc(device, &staged->memory, bytes));
    char *at = staged->memory;
    for (size_t i = 0; i < state->num_buffers; i++) {
        staged->views[i] = state->buffers[i];
        staged->views[i].data = at;
        at += gs_round_up(bytes_of(&state->buffers[i]), GS_LINE_BYTES);
    }
    return gs_ok();
}

static gs_status copy_buffers(const gs_tensor_view *to, const gs_tensor_view *from, size_t count,
                              gs_device *device, gs_deadline deadline) {
    gs_stream *stream = gs_device_stream(device);
    for (size_t i = 0; i < count; i++)
        gs_device_kernels(device)->copy(stream, to[i].data, from[i].data, bytes_of(&from[i]));
    return gs_stream_wait(stream, deadline);
}

static gs_status share_buffers(const gs_join *join, const gs_join_state *state,
                               gs_deadline deadline) {
    gs_device *device = gs_comm_device(join->comm);
    size_t count = state->num_buffers;
    staged_buffers staged;
    if (count == 0) return gs_ok();
    gs_status status = stage_buffers(&staged, state, device);
    if (!status.code && gs_comm_rank(join->comm) == join->last_source)
        status = copy_buffers(staged.views, state->buffers, count, device, deadline);
    status = tell_others(join->comm, status);
    if (!status.code)
        status =
            gs_coalesced_broadcast(join->comm, staged.views, count, join->last_source, 0, deadline);
    if (!status.code) status = copy_buffers(state->buffers, staged.views, count, device, deadline);
    free_staged(&staged, device);
    return status;
}

gs_status gs_join_finish(gs_join *join, const gs_join_state *state, gs_deadline deadline) {
    join->is_open = false;
    gs_status status = compare_params(join, state, deadline);
    if (!status.code) status = share_buffers(join, state, deadline);
    return gs_status_prefix(status, "join, end after step %lld", (long long)join->step);
}
