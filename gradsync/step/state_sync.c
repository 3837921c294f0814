#include "gradsync/step/state_sync.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/memory.h"
#include "core/options.h"
#include "core/strbuf.h"
#include "gradsync/tensor/device_digest.h"

// A piece travels in one collective: two of them are in flight, and a rank that has the state
// already needs room for one.
#define PIECE_BYTES ((size_t)4 << 20)

// What a rank says of itself.
typedef struct holding {
    int64_t has_state, step;
    uint64_t digest[2], layout;
} holding;
#define HOLDING_WORDS (sizeof(holding) / sizeof(int64_t))
_Static_assert(sizeof(holding) % sizeof(int64_t) == 0, "it travels as integers");

typedef struct state_sync {
    const gs_state_sync_options *options;
    gs_comm *comm;
    gs_deadline deadline;
    gs_state_sync_result *result;
    int rank, world_size;
    holding *all;  // by rank; owned
} state_sync;

static size_t bytes_of(const gs_tensor_view *view) {
    return view->count * gs_dtype_bytes(view->dtype);
}

static uint64_t hash_views(const gs_tensor_view *views, size_t num_views, uint64_t seed) {
    for (size_t i = 0; i < num_views; i++) {
        uint64_t facts[] = {views[i].count, (uint64_t)views[i].dtype};
        seed = gs_hash64(facts, sizeof facts, seed);
    }
    return seed;
}

// Of counts and types: what has to be the same before bytes can be.
static uint64_t hash_layout(const gs_state_sync_options *options) {
    uint64_t sizes[] = {options->num_tensors, options->num_own, options->position_bytes};
    uint64_t hash = gs_hash64(sizes, sizeof sizes, 0);
    hash = hash_views(options->tensors, options->num_tensors, hash);
    return hash_views(options->own, options->num_own, hash);
}

static gs_status add_tensors(gs_digest_stream *stream, const state_sync *sync) {
    gs_device *device = gs_comm_device(sync->comm);
    for (size_t i = 0; i < sync->options->num_tensors; i++) {
        const gs_tensor_view *view = &sync->options->tensors[i];
        if (!bytes_of(view)) continue;
        if (gs_device_is_device_memory(device, view->data))
            GS_TRY(gs_device_digest_add(stream, device, view->data, bytes_of(view)));
        else
            gs_digest_stream_add(stream, view->data, bytes_of(view));
    }
    return gs_ok();
}

static gs_status digest_bytes(gs_digest *digest, const state_sync *sync) {
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return gs_error(GS_RESOURCE_EXHAUSTED, "state: out of memory");
    gs_status status = add_tensors(stream, sync);
    gs_digest_stream_add(stream, sync->options->position, sync->options->position_bytes);
    *digest = gs_digest_stream_value(stream);
    gs_digest_stream_destroy(stream);
    return status;
}

static gs_status make_digest(gs_digest *digest, const state_sync *sync) {
    const gs_state_sync_options *options = sync->options;
    if (!options->digest) return digest_bytes(digest, sync);
    *digest = options->digest(options->digest_ctx);
    if (digest->high || digest->low) return gs_ok();
    return gs_error(GS_INTERNAL, "state: it could not be read");
}

// A rank that cannot say what it has tells the others that wait for its word.
static gs_status gather(state_sync *sync, const holding *mine) {
    return gs_comm_run(sync->comm,
                       &(gs_collective){.kind = GS_ALLGATHER,
                                        .send = mine,
                                        .recv = sync->all,
                                        .count = HOLDING_WORDS,
                                        .dtype = GS_I64,
                                        .step = -1,
                                        .bucket = -1},
                       sync->deadline);
}

static gs_status introduce(state_sync *sync) {
    const gs_state_sync_options *options = sync->options;
    gs_digest digest = options->known;
    gs_status status = gs_ok();
    if (!digest.high && !digest.low) status = make_digest(&digest, sync);
    if (status.code) {
        gs_comm_let_go(sync->comm, status.message);
        return status;
    }
    const holding mine = {.has_state = options->has_state,
                          .step = options->has_state ? options->step : 0,
                          .digest = {digest.high, digest.low},
                          .layout = hash_layout(options)};
    return gather(sync, &mine);
}

static bool is_ahead(const holding *one, const holding *other) {
    if (one->has_state != other->has_state) return one->has_state;
    return one->step > other->step;
}

static bool is_level(const holding *one, const holding *other) {
    return one->has_state == other->has_state && one->step == other->step;
}

static bool is_same(const holding *one, const holding *other) {
    return is_level(one, other) && one->digest[0] == other->digest[0] &&
           one->digest[1] == other->digest[1];
}

static bool receives(const state_sync *sync, int rank) {
    return !is_same(&sync->all[rank], &sync->all[sync->result->source]);
}

// "rank 2", "ranks 1, 2"; the first ones where there are many.
static void list_ranks(const state_sync *sync, char *text, size_t text_bytes,
                       bool (*is_listed)(const state_sync *sync, int rank)) {
    gs_strbuf list = {0};
    int num_listed = 0;
    for (int rank = 0; rank < sync->world_size; rank++) {
        if (!is_listed(sync, rank)) continue;
        if (list.len < 80) gs_strbuf_printf(&list, "%s%d", num_listed ? ", " : "", rank);
        num_listed++;
    }
    snprintf(text, text_bytes, "rank%s %s", num_listed == 1 ? "" : "s", gs_strbuf_text(&list));
    gs_strbuf_release(&list);
}

static bool differs(const state_sync *sync, int rank) {
    const holding *source = &sync->all[sync->result->source];
    return is_level(&sync->all[rank], source) && !is_same(&sync->all[rank], source);
}

static gs_status check_layouts(const state_sync *sync) {
    for (int rank = 1; rank < sync->world_size; rank++) {
        if (sync->all[rank].layout != sync->all[0].layout)
            return gs_error(GS_FAILED_PRECONDITION,
                            "state: rank %d against rank 0: another list of tensors", rank);
    }
    return gs_ok();
}

// Initial values may differ: nobody has worked for them.
static gs_status choose_source(state_sync *sync) {
    gs_state_sync_result *result = sync->result;
    char ranks[120];
    for (int rank = 1; rank < sync->world_size; rank++) {
        if (is_ahead(&sync->all[rank], &sync->all[result->source])) result->source = rank;
    }
    const holding *source = &sync->all[result->source];
    result->has_state = source->has_state != 0;
    result->step = source->step;
    for (int rank = 0; rank < sync->world_size; rank++) {
        result->num_receivers += receives(sync, rank);
        if (!result->has_state || !differs(sync, rank)) continue;
        list_ranks(sync, ranks, sizeof ranks, differs);
        return gs_error(GS_FAILED_PRECONDITION,
                        "state of step %lld: another one on %s than on rank %d",
                        (long long)result->step, ranks, result->source);
    }
    return gs_ok();
}

// The list on its way, as pieces of one kind of memory: a collective's buffers are of one kind on
// all ranks.
typedef struct piece_list {
    gs_tensor_view *pieces;  // owned
    size_t num_pieces, bytes;
    void *room;  // owned; of who has the state already: what that is is not touched
    bool on_device;
} piece_list;

static bool is_on_device(const state_sync *sync, const gs_tensor_view *view) {
    gs_device *device = gs_comm_device(sync->comm);
    return bytes_of(view) && !gs_device_is_host(device) &&
           gs_device_is_device_memory(device, view->data);
}

static size_t count_pieces(const gs_tensor_view *view) {
    return (bytes_of(view) + PIECE_BYTES - 1) / PIECE_BYTES;
}

static void cut_view(piece_list *list, const gs_tensor_view *view) {
    for (size_t at = 0; at < bytes_of(view); at += PIECE_BYTES) {
        size_t left = bytes_of(view) - at;
        list->pieces[list->num_pieces++] =
            (gs_tensor_view){.data = list->room ? list->room : (char *)view->data + at,
                             .count = left < PIECE_BYTES ? left : PIECE_BYTES,
                             .dtype = GS_U8};
    }
    list->bytes += bytes_of(view);
}

// All that a state is, one view after the other: tensors, own ones, position.
static gs_tensor_view view_at(const gs_state_sync_options *options, size_t index) {
    if (index < options->num_tensors) return options->tensors[index];
    index -= options->num_tensors;
    if (index < options->num_own) return options->own[index];
    return (gs_tensor_view){options->position, options->position_bytes, GS_U8};
}

static size_t count_views(const gs_state_sync_options *options) {
    return options->num_tensors + options->num_own + 1;
}

static gs_status make_room(piece_list *list, const state_sync *sync) {
    if (sync->rank == sync->result->source || receives(sync, sync->rank)) return gs_ok();
    if (list->on_device)
        return gs_device_alloc(gs_comm_device(sync->comm), &list->room, PIECE_BYTES);
    list->room = gs_alloc_aligned(PIECE_BYTES, 64);
    return list->room ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "state: out of memory");
}

static gs_status make_pieces(piece_list *list, const state_sync *sync) {
    const gs_state_sync_options *options = sync->options;
    size_t num_pieces = 0;
    for (size_t i = 0; i < count_views(options); i++) {
        gs_tensor_view view = view_at(options, i);
        if (is_on_device(sync, &view) == list->on_device) num_pieces += count_pieces(&view);
    }
    if (!num_pieces) return gs_ok();
    GS_TRY(make_room(list, sync));
    list->pieces = calloc(num_pieces, sizeof *list->pieces);
    if (!list->pieces) return gs_error(GS_RESOURCE_EXHAUSTED, "state: out of memory");
    for (size_t i = 0; i < count_views(options); i++) {
        gs_tensor_view view = view_at(options, i);
        if (is_on_device(sync, &view) == list->on_device) cut_view(list, &view);
    }
    return gs_ok();
}

static void release_pieces(piece_list *list, const state_sync *sync) {
    if (list->room && list->on_device)
        gs_device_free(gs_comm_device(sync->comm), list->room);
    else
        free(list->room);
    free(list->pieces);
}

static gs_status send_pieces(state_sync *sync, bool on_device) {
    piece_list list = {.on_device = on_device};
    gs_status status = make_pieces(&list, sync);
    if (status.code) gs_comm_let_go(sync->comm, status.message);
    if (!status.code && list.num_pieces)
        status = gs_coalesced_broadcast(sync->comm, list.pieces, list.num_pieces,
                                        sync->result->source, 0, sync->deadline);
    sync->result->bytes += list.bytes;
    release_pieces(&list, sync);
    return gs_status_prefix(status, "state from rank %d", sync->result->source);
}

static gs_status send_state(state_sync *sync) {
    sync->result->received = receives(sync, sync->rank);
    GS_TRY(send_pieces(sync, false));
    return gs_device_is_host(gs_comm_device(sync->comm)) ? gs_ok() : send_pieces(sync, true);
}

// What a rank holds now is what it was sent.
static gs_status verify(state_sync *sync) {
    holding mine = sync->all[sync->result->source];
    char ranks[120];
    if (sync->result->received) {
        gs_digest digest;
        gs_status status = make_digest(&digest, sync);
        if (status.code) {
            gs_comm_let_go(sync->comm, status.message);
            return status;
        }
        mine.digest[0] = digest.high;
        mine.digest[1] = digest.low;
    }
    GS_TRY(gather(sync, &mine));
    for (int rank = 0; rank < sync->world_size; rank++) {
        if (!differs(sync, rank)) continue;
        list_ranks(sync, ranks, sizeof ranks, differs);
        return gs_error(GS_DATA_LOSS, "state from rank %d: %s did not receive what was sent",
                        sync->result->source, ranks);
    }
    return gs_ok();
}

static gs_status run(state_sync *sync) {
    GS_TRY(introduce(sync));
    GS_TRY(check_layouts(sync));
    GS_TRY(choose_source(sync));
    if (!sync->result->num_receivers) return gs_ok();
    GS_TRY(send_state(sync));
    return verify(sync);
}

gs_status gs_state_sync_sized(gs_state_sync_result *result, const gs_state_sync_options *theirs,
                              size_t options_bytes, gs_comm *comm, gs_deadline deadline) {
    gs_state_sync_options known;
    const gs_state_sync_options *options = &known;
    gs_status status =
        gs_options_take(&known, sizeof known, theirs, options_bytes, "gs_state_sync_options");
    if (status.code) {
        status = gs_status_prefix(status, "rank %d", gs_comm_rank(comm));
        // Whoever alone cannot go on must tell the ranks that wait for it.
        gs_comm_let_go(comm, status.message);
        return status;
    }
    state_sync sync = {.options = options,
                       .comm = comm,
                       .deadline = deadline,
                       .result = result,
                       .rank = gs_comm_rank(comm),
                       .world_size = gs_comm_world_size(comm)};
    *result = (gs_state_sync_result){.has_state = options->has_state,
                                     .step = options->has_state ? options->step : 0};
    if (sync.world_size == 1) return gs_ok();
    *result = (gs_state_sync_result){0};
    sync.all = calloc((size_t)sync.world_size, sizeof *sync.all);
    if (!sync.all) {
        status = gs_error(GS_RESOURCE_EXHAUSTED, "rank %d: state: out of memory", sync.rank);
        gs_comm_let_go(comm, status.message);
        return status;
    }
    status = run(&sync);
    free(sync.all);
    return status;
}
