#include "worker/state/state_transfer.h"

#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "gradsync/comm/coalesce.h"

#define PIECE_BYTES ((size_t)4 << 20)

typedef struct view_list {
    gs_tensor_view *views;
    size_t num_views;
} view_list;

static void add_view(view_list *list, void *data, size_t count, gs_dtype dtype) {
    list->views[list->num_views++] = (gs_tensor_view){data, count, dtype};
}

static void add_optimizer(view_list *list, const gs_trainer_state *state) {
    for (int kind = 0; kind < gs_optimizer_state_count(state->optimizer); kind++) {
        for (size_t i = 0; i < state->num_params; i++)
            add_view(list, gs_optimizer_state(state->optimizer, kind, i),
                     gs_param_spec_count(&state->param_specs[i]), GS_FP32);
    }
}

static void add_buffers(view_list *list, const gs_trainer_state *state) {
    for (size_t i = 0; i < state->num_buffers; i++)
        add_view(list, gs_buffers_committed(state->buffers)[i],
                 gs_param_spec_count(&state->buffer_specs[i]), state->buffer_specs[i].dtype);
}

// What hooks carry, in the list behind the model's.
static void add_hooks(view_list *list, const gs_trainer_state *state) {
    for (size_t i = state->num_model_tensors; i < state->num_tensors; i++)
        add_view(list, state->runs[i].data,
                 state->runs[i].bytes / gs_dtype_bytes(state->tensors[i].dtype),
                 state->tensors[i].dtype);
}

static size_t most_views(const gs_trainer_state *state) {
    size_t num_kinds = (size_t)gs_optimizer_state_count(state->optimizer);
    size_t num_hooks = state->num_tensors - state->num_model_tensors;
    return 1 + num_kinds * state->num_params + 1 + state->num_buffers + num_hooks;
}

static gs_digest digest_common(void *ctx) {
    return gs_trainer_state_common_digest(ctx);
}

// A tensor of a sharded state as it travels, piece by piece, from the rank that has the whole of it: in the checkpoint that it
// was filled from. All ranks see all pieces, and whoever receives takes of each what it is to hold.
typedef struct travel {
    const gs_trainer_state *state;
    gs_comm *comm;
    gs_deadline deadline;
    gs_digest_stream *stream;
    uint8_t *piece;
    int source;
    size_t index, bytes;  // of the tensor
    size_t first, end;    // of it, what is in `piece`
} travel;

static gs_status let_go(gs_comm *comm, gs_status status) {
    gs_comm_let_go(comm, status.message);
    return status;
}

static gs_status broadcast(const travel *at, void *data, size_t bytes) {
    const gs_tensor_view view = {data, bytes, GS_U8};
    return gs_coalesced_broadcast(at->comm, &view, 1, at->source, 0, at->deadline);
}

static gs_status bring_next(travel *at) {
    const gs_state_source *from = &at->state->source;
    size_t rest = at->bytes - at->end, bytes = rest < PIECE_BYTES ? rest : PIECE_BYTES;
    if (gs_comm_rank(at->comm) == at->source) {
        gs_status status = from->read(from->ctx, at->index, at->piece, at->end, bytes);
        if (status.code) return let_go(at->comm, status);
    }
    GS_TRY(broadcast(at, at->piece, bytes));
    gs_digest_stream_add(at->stream, at->piece, bytes);
    at->first = at->end;
    at->end += bytes;
    return gs_ok();
}

// Forward only: what was before is gone.
static gs_status read_travelling(void *ctx, void *to, size_t first_byte, size_t num_bytes) {
    travel *at = ctx;
    uint8_t *next = to;
    while (num_bytes) {
        if (first_byte < at->first || (first_byte >= at->end && at->end == at->bytes))
            return gs_error(GS_INTERNAL, "tensor \"%.100s\": byte %zu is not on its way", at->state->tensors[at->index].name, first_byte);
        if (first_byte >= at->end) {
            GS_TRY(bring_next(at));
            continue;
        }
        size_t here = at->end - first_byte < num_bytes ? at->end - first_byte : num_bytes;
        memcpy(next, at->piece + (first_byte - at->first), here);
        next += here;
        first_byte += here;
        num_bytes -= here;
    }
    return gs_ok();
}

static gs_status bring_tensor(travel *at, gs_trainer_state *state, size_t index, bool receives) {
    at->index = index;
    at->bytes = state->tensors[index].bytes;
    at->first = at->end = 0;
    if (receives && gs_trainer_state_held(state, index).count) {
        gs_status status = gs_trainer_state_take(state, index, &(gs_whole_tensor){read_travelling, at});
        if (status.code) return let_go(at->comm, status);
    }
    while (at->end < at->bytes) GS_TRY(bring_next(at));
    return gs_ok();
}

// What state_sync has not brought, because ranks hold different elements of it: masters of 16 bits, and what the optimizer has.
static gs_status bring_shards(travel *at, gs_trainer_state *state, bool receives) {
    size_t end = state->num_model_tensors - state->num_buffers - 1;  // all have the same number of updates
    for (size_t i = state->halves ? 0 : state->num_params; i < end; i++) GS_TRY(bring_tensor(at, state, i, receives));
    const gs_digest found = gs_digest_stream_value(at->stream);
    gs_digest sent = found;
    GS_TRY(broadcast(at, &sent, sizeof sent));
    if (sent.high == found.high && sent.low == found.low) return gs_ok();
    return let_go(at->comm, gs_error(GS_INTERNAL, "rank %d received something else than rank %d sent of its checkpoint",
                                     gs_comm_rank(at->comm), at->source));
}

// Nobody can give what it does not hold, but the checkpoint that the source was filled from has all of it.
static gs_status transfer_shards(const gs_state_sync_result *result, gs_trainer_state *state, gs_comm *comm, gs_deadline deadline) {
    if (!result->has_state || !result->num_receivers) return gs_ok();
    if (gs_comm_rank(comm) == result->source && !state->source.read)
        return let_go(comm, gs_error(GS_FAILED_PRECONDITION, "state of step %lld: it is sharded, and %d ranks have another one",
                                     (long long)result->step, result->num_receivers));
    travel at = {.state = state, .comm = comm, .deadline = deadline, .source = result->source, .piece = malloc(PIECE_BYTES),
                 .stream = gs_digest_stream_create()};
    gs_status status = at.piece && at.stream ? bring_shards(&at, state, result->received)
                                             : let_go(comm, gs_error(GS_RESOURCE_EXHAUSTED, "state: out of memory"));
    free(at.piece);
    gs_digest_stream_destroy(at.stream);
    return gs_status_prefix(status, "shards of step %lld", (long long)result->step);
}

gs_status gs_state_transfer_run(gs_state_sync_result *result, gs_trainer_state *state,
                                bool has_state, gs_digest digest, gs_comm *comm,
                                gs_deadline deadline) {
    *result = (gs_state_sync_result){0};
    view_list list = {.views = calloc(most_views(state), sizeof *list.views)};
    if (!list.views) {
        // Whoever alone cannot go on must tell the ranks that wait for it.
        gs_comm_let_go(comm, "state: out of memory");
        return gs_error(GS_RESOURCE_EXHAUSTED, "state: out of memory");
    }
    // Parameters lie in one block, what is between them is zero everywhere.
    add_view(&list, state->memory, state->memory_bytes / sizeof(float), GS_FP32);
    if (!state->is_sharded) add_optimizer(&list, state);
    add_view(&list, gs_optimizer_num_updates(state->optimizer), state->num_params, GS_I64);
    add_hooks(&list, state);
    size_t num_common = list.num_views;
    add_buffers(&list, state);
    if (!state->buffers_are_local) num_common = list.num_views;
    gs_state_sync_options options = {.tensors = list.views,
                                     .num_tensors = num_common,
                                     .own = list.views + num_common,
                                     .num_own = list.num_views - num_common,
                                     .position = &state->position,
                                     .position_bytes = sizeof state->position,
                                     .has_state = has_state,
                                     .step = state->position.step,
                                     .digest = digest_common,
                                     .digest_ctx = state,
                                     .known = state->buffers_are_local ? (gs_digest){0} : digest};
    gs_status status = gs_state_sync(result, &options, comm, deadline);
    free(list.views);
    if (!status.code && state->is_sharded) status = transfer_shards(result, state, comm, deadline);
    if (result->received) {
        state->params_apart = state->optimizer_apart = false;
        gs_trainer_state_refresh(state);
    }
    // No file is to blame.
    if (status.code == GS_DATA_LOSS) status.code = GS_INTERNAL;
    return status;
}
