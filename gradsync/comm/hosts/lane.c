#include "gradsync/comm/hosts/lane.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/digest.h"
#include "core/failpoint.h"
#include "core/memory.h"

// Of one chunk that the first of each host drives alone, as the others of its column receive it.
#define SMALL_BYTES ((size_t)65536)
// Chunks on their way at a time. One less than there are slots: when all of a host have given one,
// each has taken the one that lay in the slot of the next.
#define WINDOW (GS_HOSTS_SLOTS - 1)
#define SLICE_BOUNDARY_COUNT ((size_t)64)  // kernels run in whole strides

typedef struct range {
    size_t first, count;  // elements
} range;

static int given_lane(const gs_hosts_lane *lane) {
    return 2 * lane->number;
}

static int told_lane(const gs_hosts_lane *lane) {
    return 2 * lane->number + 1;
}

gs_status gs_hosts_lane_open(gs_hosts_lane *lane, gs_hosts_party *party, int number) {
    lane->party = party;
    lane->number = number;
    lane->given.sequence = lane->added.sequence = lane->told.sequence = lane->taken.sequence = 1;
    if (!party->column.backend) return gs_ok();
    lane->partial = gs_alloc_aligned(GS_HOSTS_LANE_BYTES, GS_LINE_BYTES);
    return lane->partial ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "communicator: out of memory");
}

void gs_hosts_lane_close(gs_hosts_lane *lane) {
    free(lane->partial);
    free(lane->hold);
    lane->partial = lane->hold = NULL;
}

bool gs_hosts_is_composed(const gs_collective *collective) {
    bool is_sum = gs_collective_reduces(collective) && !collective->tree;
    return (is_sum || collective->kind == GS_ALLGATHER) && collective->count > 0;
}

// Of a reduce-scatter and an all-gather the parts of all ranks, one behind the other.
static size_t row_count(const gs_hosts_party *party, const gs_collective *collective) {
    bool is_of_parts = collective->kind == GS_REDUCE_SCATTER || collective->kind == GS_ALLGATHER;
    return collective->count * (is_of_parts ? (size_t)party->topology.world_size : 1);
}

bool gs_hosts_is_small(const gs_hosts_party *party, const gs_collective *collective) {
    size_t bytes = row_count(party, collective) * gs_dtype_bytes(gs_collective_sent_dtype(collective));
    return bytes * (size_t)(party->topology.num_hosts - 1) <= SMALL_BYTES;
}

static bool gathers(const gs_hosts_work *work) {
    return work->collective.kind == GS_ALLGATHER;
}

static size_t sent_bytes(const gs_hosts_work *work) {
    return gs_dtype_bytes(gs_collective_sent_dtype(&work->collective));
}

static int num_slices(const gs_hosts_lane *lane, const gs_hosts_work *work) {
    return work->is_small ? 1 : lane->party->topology.num_columns;
}

// Of a gather: how many ranks of a host a column speaks for, at most.
static size_t pieces_of_column(const gs_hosts_lane *lane, const gs_hosts_work *work) {
    const gs_hosts_topology *topology = &lane->party->topology;
    int most = 0;
    for (int i = 0; i < topology->num_hosts; i++)
        if (topology->size_of[i] > most) most = topology->size_of[i];
    return (size_t)((most + num_slices(lane, work) - 1) / num_slices(lane, work));
}

// A slot holds, of a gather, the own piece, and behind it those of all ranks of a column.
static size_t most_chunk_count(const gs_hosts_lane *lane, const gs_hosts_work *work) {
    size_t pieces = 1;
    if (gathers(work))
        pieces += pieces_of_column(lane, work) * (size_t)lane->party->topology.num_hosts;
    size_t count = GS_HOSTS_CHUNK_BYTES / sent_bytes(work) / pieces;
    return count - count % SLICE_BOUNDARY_COUNT;
}

// A large reduce-scatter is cut at its parts too, for what comes of a chunk goes to one host then.
static bool cuts_parts(const gs_hosts_work *work) {
    return work->collective.kind == GS_REDUCE_SCATTER && !work->is_small;
}

// Of the elements that are cut: the row, or a part of it; of a gather each rank's own.
static size_t cut_count(const gs_hosts_lane *lane, const gs_hosts_work *work) {
    if (cuts_parts(work) || gathers(work)) return work->collective.count;
    return row_count(lane->party, &work->collective);
}

static uint32_t chunks_of_cut(const gs_hosts_lane *lane, const gs_hosts_work *work) {
    size_t most = most_chunk_count(lane, work);
    return (uint32_t)((cut_count(lane, work) + most - 1) / most);
}

// The rank whose part a chunk lies in, where parts are cut.
static int part_of(const gs_hosts_lane *lane, const gs_hosts_work *work, uint32_t chunk) {
    return (int)(chunk / chunks_of_cut(lane, work));
}

static range chunk_of(const gs_hosts_lane *lane, const gs_hosts_work *work, uint32_t chunk) {
    size_t most = most_chunk_count(lane, work), base = 0;
    if (cuts_parts(work)) {
        base = (size_t)part_of(lane, work, chunk) * work->collective.count;
        chunk %= chunks_of_cut(lane, work);
    }
    size_t first = chunk * most, left = cut_count(lane, work) - first;
    return (range){base + first, left < most ? left : most};
}

// Of a chunk of `count` elements, what column `slice` drives.
static range slice_of(const gs_hosts_lane *lane, const gs_hosts_work *work, size_t count,
                      int slice) {
    size_t slices = (size_t)num_slices(lane, work);
    size_t each = gs_round_up((count + slices - 1) / slices, SLICE_BOUNDARY_COUNT);
    size_t first = each * (size_t)slice < count ? each * (size_t)slice : count;
    return (range){first, count - first < each ? count - first : each};
}

// What this rank receives of the row; recv begins with its first element.
static range received(const gs_hosts_lane *lane, const gs_hosts_work *work) {
    const gs_collective *collective = &work->collective;
    int rank = lane->party->rank;
    if (collective->kind == GS_REDUCE && rank != collective->root) return (range){0, 0};
    if (collective->kind == GS_REDUCE_SCATTER)
        return (range){(size_t)rank * collective->count, collective->count};
    return (range){0, row_count(lane->party, collective)};
}

static gs_hosts_work *work_of(gs_hosts_lane *lane, uint64_t sequence) {
    return &lane->works[sequence % GS_HOSTS_MAX_POSTED];
}

static void stamp(_Atomic int64_t *at_ns, int64_t ns) {
    atomic_store_explicit(at_ns, ns, memory_order_relaxed);
}

void gs_hosts_lane_post(gs_hosts_lane *lane, uint64_t sequence, const gs_collective *collective,
                        const uint16_t *shares) {
    gs_hosts_work *work = work_of(lane, sequence);
    work->collective = *collective;
    work->shares = shares;
    work->is_composed = gs_hosts_is_composed(collective);
    work->is_small = work->is_composed && gs_hosts_is_small(lane->party, collective);
    gs_collective_claim claim = gs_collective_claim_of(collective, lane->party->generation);
    work->digest = gs_hash64(&claim, sizeof claim, 0);
    work->num_chunks = 0;
    if (work->is_composed) {
        work->num_chunks = chunks_of_cut(lane, work);
        if (cuts_parts(work)) work->num_chunks *= (uint32_t)lane->party->topology.world_size;
    }
    stamp(&work->posted_ns, gs_now_ns());
    stamp(&work->all_arrived_ns, 0);
    stamp(&work->finished_ns, 0);
    atomic_store_explicit(&lane->posted, sequence, memory_order_release);
}

// The next chunk at a point; NULL: none is posted.
static gs_hosts_work *find_chunk(gs_hosts_lane *lane, gs_hosts_cursor *at) {
    while (at->sequence <= gs_hosts_lane_posted(lane)) {
        gs_hosts_work *work = work_of(lane, at->sequence);
        if (at->chunk < work->num_chunks) return work;
        at->sequence++;
        at->chunk = 0;
    }
    return NULL;
}

static void pass_chunk(gs_hosts_cursor *at) {
    at->chunk++;
    at->count++;
}

// Chunk number `count` of the lane lies there, in the memory of a rank of this host.
static unsigned char *slot_of(const gs_hosts_lane *lane, int place, uint64_t count) {
    return lane->party->slots[place] + (size_t)lane->number * GS_HOSTS_LANE_BYTES +
           (size_t)(count % GS_HOSTS_SLOTS) * GS_HOSTS_CHUNK_BYTES;
}

static unsigned char *partial_of(const gs_hosts_lane *lane, uint64_t count) {
    return lane->partial + (size_t)(count % GS_HOSTS_SLOTS) * GS_HOSTS_CHUNK_BYTES;
}

static gs_status say(gs_hosts_lane *lane, const gs_hosts_work *work, int inner_lane) {
    // Of a barrier no more is compared than this: the count stands for all else.
    gs_collective word = {.kind = GS_BARRIER,
                          .count = work->digest,
                          .step = work->collective.step,
                          .bucket = work->collective.bucket};
    return gs_hosts_level_post(&lane->party->host, inner_lane, &word);
}

static const unsigned char *input_of(const gs_hosts_work *work, range chunk) {
    const unsigned char *send = work->collective.send;
    return send + chunk.first * gs_dtype_bytes(work->collective.dtype);
}

// A rank that is alone on its host adds nothing: its column reads where the input is.
static bool reads_in_place(const gs_hosts_lane *lane, const gs_hosts_work *work) {
    return lane->party->host_size == 1 && !work->collective.wire_dtype && !gathers(work);
}

static gs_status give_chunk(gs_hosts_lane *lane, gs_device *device, bool *moved,
                            gs_hosts_level **at) {
    gs_hosts_party *party = lane->party;
    gs_hosts_work *work = find_chunk(lane, &lane->given);
    uint64_t count = lane->given.count;
    if (!work || count - lane->taken.count >= WINDOW ||
        !gs_hosts_level_is_done(&party->host, given_lane(lane), count))
        return gs_ok();
    const gs_collective *collective = &work->collective;
    range chunk = chunk_of(lane, work, lane->given.chunk);
    GS_FAILPOINT("comm.publish");
    bool is_alone = party->host_size == 1 && !gathers(work);
    unsigned char *to =
        is_alone ? partial_of(lane, count) : slot_of(lane, party->place, count);
    if (collective->wire_dtype)
        gs_collective_cast_to_wire(collective, gs_device_kernels(device), gs_device_stream(device),
                                   to, input_of(work, chunk), chunk.count);
    else if (!reads_in_place(lane, work))
        memcpy(to, input_of(work, chunk), chunk.count * sent_bytes(work));
    pass_chunk(&lane->given);
    *moved = true;
    *at = &party->host;
    return say(lane, work, given_lane(lane));
}

// The inputs of this host, of the slice that this rank drives.
static void add_inputs(const gs_hosts_lane *lane, const gs_hosts_work *work, gs_device *device,
                       void *output, range slice) {
    const gs_hosts_party *party = lane->party;
    const void *inputs[GS_HOSTS_MOST_RANKS];
    for (int i = 0; i < party->host_size; i++)
        inputs[i] = slot_of(lane, i, lane->added.count) + slice.first * sent_bytes(work);
    gs_reduction reduction = {.outputs = &output,
                              .inputs = inputs,
                              .num_outputs = 1,
                              .num_inputs = party->host_size,
                              .dtype = gs_collective_sent_dtype(&work->collective),
                              .op = work->collective.op,
                              .scale = 1,
                              .count = slice.count};
    GS_FAILPOINT_VOID("comm.slice");
    gs_device_kernels(device)->reduce(gs_device_stream(device), &reduction);
}

// Columns compare what they carry, which is the same of different collectives, as of a sum and of
// one that is scattered. Nothing else looks at this number.
static int32_t digest_for_column(const gs_hosts_work *work) {
    return (int32_t)((work->digest ^ work->digest >> 32) & INT32_MAX);
}

// What goes over the column: the sum of a slice, to all hosts or to that which wants it.
static gs_status post_sum(gs_hosts_lane *lane, const gs_hosts_work *work, gs_device *device,
                          range chunk, range slice) {
    gs_hosts_party *party = lane->party;
    uint64_t count = lane->added.count;
    size_t offset = slice.first * sent_bytes(work);
    unsigned char *partial = partial_of(lane, count) + offset;
    if (party->host_size > 1) add_inputs(lane, work, device, partial, slice);
    gs_collective sum = work->collective;
    sum.kind = GS_ALLREDUCE;
    if (cuts_parts(work)) sum.root = part_of(lane, work, lane->added.chunk);
    if (cuts_parts(work) || work->collective.kind == GS_REDUCE) {
        sum.kind = GS_REDUCE;
        sum.root = party->topology.number_of[party->place][party->topology.host_of[sum.root]];
    }
    sum.tree = party->order;
    sum.num_active = digest_for_column(work);
    sum.part_stride_bytes = 0;
    sum.send = reads_in_place(lane, work) ? input_of(work, chunk) : partial;
    sum.recv = slot_of(lane, party->place, count) + offset;
    sum.count = slice.count;
    sum.dtype = gs_collective_sent_dtype(&work->collective);
    sum.wire_dtype = GS_DTYPE_UNSET;
    sum.wire_scale = 0;
    sum.wire_scale_after = false;
    GS_TRY(gs_hosts_level_share(&party->column, work->shares));
    return gs_hosts_level_post(&party->column, lane->number, &sum);
}

// The pieces of those of this host that the column speaks for, one behind the other; where another
// host has more, what is behind them means nothing.
static gs_status post_gather(gs_hosts_lane *lane, const gs_hosts_work *work, range chunk) {
    gs_hosts_party *party = lane->party;
    uint64_t count = lane->added.count;
    size_t bytes = chunk.count * sent_bytes(work), pieces = pieces_of_column(lane, work);
    unsigned char *partial = partial_of(lane, count);
    for (int i = party->place; i < party->host_size; i += num_slices(lane, work))
        memcpy(partial + (size_t)(i / num_slices(lane, work)) * bytes, slot_of(lane, i, count),
               bytes);
    gs_collective all = work->collective;
    all.send = partial;
    all.recv = slot_of(lane, party->place, count) + bytes;
    all.count = pieces * chunk.count;
    all.num_active = digest_for_column(work);
    GS_TRY(gs_hosts_level_share(&party->column, work->shares));
    return gs_hosts_level_post(&party->column, lane->number, &all);
}

static gs_status add_chunk(gs_hosts_lane *lane, gs_device *device, bool *moved,
                           gs_hosts_level **at) {
    gs_hosts_party *party = lane->party;
    uint64_t count = lane->added.count;
    if (count == lane->given.count ||
        !gs_hosts_level_is_done(&party->host, given_lane(lane), count + 1))
        return gs_ok();
    gs_hosts_work *work = find_chunk(lane, &lane->added);
    range chunk = chunk_of(lane, work, lane->added.chunk);
    if (!lane->added.chunk) stamp(&work->all_arrived_ns, gs_now_ns());
    bool drives = party->place < num_slices(lane, work);
    range slice = {0, 0};
    if (drives && !gathers(work)) slice = slice_of(lane, work, chunk.count, party->place);
    lane->column_sequences[count % GS_HOSTS_SLOTS] = 0;
    *moved = true;
    if (slice.count || (drives && gathers(work))) {
        *at = &party->column;
        GS_TRY(gathers(work) ? post_gather(lane, work, chunk)
                             : post_sum(lane, work, device, chunk, slice));
        lane->column_sequences[count % GS_HOSTS_SLOTS] = party->column.posted[lane->number];
    }
    pass_chunk(&lane->added);
    return gs_ok();
}

static gs_status tell_chunk(gs_hosts_lane *lane, bool *moved, gs_hosts_level **at) {
    gs_hosts_party *party = lane->party;
    uint64_t count = lane->told.count;
    if (count == lane->added.count) return gs_ok();
    uint64_t sequence = lane->column_sequences[count % GS_HOSTS_SLOTS];
    if (sequence && !gs_hosts_level_is_done(&party->column, lane->number, sequence)) return gs_ok();
    gs_hosts_work *work = find_chunk(lane, &lane->told);
    pass_chunk(&lane->told);
    *moved = true;
    *at = &party->host;
    return say(lane, work, told_lane(lane));
}

// The result may lie over the input when nothing can fail any more between its first byte and its
// last. A gather stores nothing over what is the rank's own.
static bool needs_hold(const gs_hosts_lane *lane, const gs_hosts_work *work) {
    const gs_collective *collective = &work->collective;
    size_t first = received(lane, work).first * gs_dtype_bytes(collective->dtype);
    return !gathers(work) && work->num_chunks > 1 &&
           collective->recv == (const unsigned char *)collective->send + first;
}

static gs_status find_hold(gs_hosts_lane *lane, size_t bytes) {
    if (lane->hold_bytes >= bytes) return gs_ok();
    free(lane->hold);
    lane->hold = gs_alloc_aligned(bytes, GS_LINE_BYTES);
    lane->hold_bytes = lane->hold ? bytes : 0;
    return lane->hold ? gs_ok()
                      : gs_error(GS_RESOURCE_EXHAUSTED, "result of a collective: out of memory");
}

static void copy_slice(const gs_hosts_work *work, gs_device *device, unsigned char *to,
                       const unsigned char *from, size_t count) {
    const gs_collective *collective = &work->collective;
    if (!collective->wire_dtype)
        memcpy(to, from, count * sent_bytes(work));
    else
        gs_device_kernels(device)->cast(gs_device_stream(device), to, collective->dtype, from,
                                        collective->wire_dtype, 1, count);
}

static range overlap_of(range a, range b) {
    size_t first = a.first > b.first ? a.first : b.first;
    size_t a_end = a.first + a.count, b_end = b.first + b.count;
    size_t end = a_end < b_end ? a_end : b_end;
    return (range){first, end > first ? end - first : 0};
}

// What this rank receives of a chunk, out of the slots of those that drive.
static void take_sum(const gs_hosts_lane *lane, const gs_hosts_work *work, gs_device *device,
                     unsigned char *result, range chunk) {
    size_t result_bytes = gs_dtype_bytes(work->collective.dtype);
    range wanted = received(lane, work);
    for (int i = 0; i < num_slices(lane, work); i++) {
        range slice = slice_of(lane, work, chunk.count, i);
        range in_row = overlap_of((range){chunk.first + slice.first, slice.count}, wanted);
        if (!in_row.count) continue;
        copy_slice(work, device, result + (in_row.first - wanted.first) * result_bytes,
                   slot_of(lane, i, lane->taken.count) +
                       (in_row.first - chunk.first) * sent_bytes(work),
                   in_row.count);
    }
}

static void take_pieces(const gs_hosts_lane *lane, const gs_hosts_work *work, range chunk) {
    const gs_hosts_topology *topology = &lane->party->topology;
    size_t element_bytes = sent_bytes(work), bytes = chunk.count * element_bytes;
    size_t part_bytes = work->collective.count * element_bytes;
    size_t pieces = pieces_of_column(lane, work);
    int columns = num_slices(lane, work);
    for (int i = 0; i < topology->world_size; i++) {
        unsigned char *to = (unsigned char *)work->collective.recv + (size_t)i * part_bytes +
                            chunk.first * element_bytes;
        int column = topology->place_of[i] % columns;
        size_t number = topology->number_of[column][topology->host_of[i]] * pieces +
                        (size_t)(topology->place_of[i] / columns);
        const unsigned char *from =
            slot_of(lane, column, lane->taken.count) + bytes * (1 + number);
        bool is_there = i == lane->party->rank && to == input_of(work, chunk);
        if (!is_there) memcpy(to, from, bytes);
    }
}

// Of one collective at a time: the first that is not finished.
static gs_status take_chunk(gs_hosts_lane *lane, gs_device *device, bool *moved,
                            gs_hosts_level **at) {
    uint64_t count = lane->taken.count;
    *at = NULL;
    if (count == lane->told.count ||
        !gs_hosts_level_is_done(&lane->party->host, told_lane(lane), count + 1))
        return gs_ok();
    gs_hosts_work *work = find_chunk(lane, &lane->taken);
    if (lane->taken.sequence != gs_hosts_lane_finished(lane) + 1) return gs_ok();
    size_t bytes = received(lane, work).count * gs_dtype_bytes(work->collective.dtype);
    bool holds = needs_hold(lane, work);
    if (holds && !lane->taken.chunk) GS_TRY(find_hold(lane, bytes));
    if (lane->taken.chunk + 1 == work->num_chunks) GS_FAILPOINT("comm.done");
    range chunk = chunk_of(lane, work, lane->taken.chunk);
    if (gathers(work))
        take_pieces(lane, work, chunk);
    else
        take_sum(lane, work, device, holds ? lane->hold : work->collective.recv, chunk);
    pass_chunk(&lane->taken);
    *moved = true;
    if (holds && lane->taken.chunk == work->num_chunks)
        memcpy(work->collective.recv, lane->hold, bytes);
    return gs_ok();
}

static gs_status delegate_works(gs_hosts_lane *lane, bool *moved, gs_hosts_level **at) {
    while (lane->delegated < gs_hosts_lane_posted(lane)) {
        gs_hosts_work *work = work_of(lane, lane->delegated + 1);
        lane->delegated++;
        *moved = true;
        if (work->is_composed) continue;
        gs_hosts_level *all = &lane->party->all;
        work->sequence_of_all = all->posted[lane->number] + 1;
        *at = all;
        GS_TRY(gs_hosts_level_share(all, work->shares));
        GS_TRY(gs_hosts_level_post(all, lane->number, &work->collective));
    }
    return gs_ok();
}

static bool is_complete(gs_hosts_lane *lane, uint64_t sequence) {
    const gs_hosts_work *work = work_of(lane, sequence);
    if (sequence > lane->delegated) return false;
    if (!work->is_composed)
        return gs_hosts_level_is_done(&lane->party->all, lane->number, work->sequence_of_all);
    return lane->taken.sequence > sequence ||
           (lane->taken.sequence == sequence && lane->taken.chunk == work->num_chunks);
}

static void finish_works(gs_hosts_lane *lane, bool *moved) {
    for (;;) {
        uint64_t next = gs_hosts_lane_finished(lane) + 1;
        if (next > gs_hosts_lane_posted(lane) || !is_complete(lane, next)) return;
        stamp(&work_of(lane, next)->finished_ns, gs_now_ns());
        (void)find_chunk(lane, &lane->taken);  // passes what is behind it
        atomic_store_explicit(&lane->finished, next, memory_order_release);
        *moved = true;
    }
}

gs_status gs_hosts_lane_move(gs_hosts_lane *lane, gs_device *device, bool *moved,
                             gs_hosts_level **at) {
    *at = NULL;
    if (!gs_hosts_lane_has_work(lane)) return gs_ok();
    GS_TRY(delegate_works(lane, moved, at));
    GS_TRY(give_chunk(lane, device, moved, at));
    GS_TRY(add_chunk(lane, device, moved, at));
    GS_TRY(tell_chunk(lane, moved, at));
    GS_TRY(take_chunk(lane, device, moved, at));
    finish_works(lane, moved);
    return gs_ok();
}

gs_work_times gs_hosts_lane_times(const gs_hosts_lane *lane, uint64_t sequence) {
    const gs_hosts_work *work = &lane->works[sequence % GS_HOSTS_MAX_POSTED];
    int64_t arrived_ns = atomic_load_explicit(&work->all_arrived_ns, memory_order_relaxed);
    return (gs_work_times){
        .posted_ns = atomic_load_explicit(&work->posted_ns, memory_order_relaxed),
        .all_arrived_ns = arrived_ns,
        .started_ns = arrived_ns,
        .finished_ns = atomic_load_explicit(&work->finished_ns, memory_order_relaxed)};
}

const gs_hosts_work *gs_hosts_lane_first(const gs_hosts_lane *lane) {
    uint64_t next = gs_hosts_lane_finished(lane) + 1;
    return next <= gs_hosts_lane_posted(lane) ? &lane->works[next % GS_HOSTS_MAX_POSTED] : NULL;
}

// The first chunk that is not taken is that of the first sum that is not finished.
gs_hosts_level *gs_hosts_lane_awaited(gs_hosts_lane *lane, int *inner_lane, uint64_t *sequence) {
    gs_hosts_party *party = lane->party;
    const gs_hosts_work *work = gs_hosts_lane_first(lane);
    uint64_t count = lane->taken.count;
    if (!work) return NULL;
    *inner_lane = lane->number;
    if (!work->is_composed) {
        *sequence = work->sequence_of_all;
        return lane->delegated > gs_hosts_lane_finished(lane) ? &party->all : NULL;
    }
    if (lane->told.count > count) {
        *inner_lane = told_lane(lane);
        *sequence = count + 1;
    } else if (lane->added.count > count) {
        *sequence = lane->column_sequences[count % GS_HOSTS_SLOTS];
        return *sequence ? &party->column : NULL;
    } else if (lane->given.count > count) {
        *inner_lane = given_lane(lane);
        *sequence = count + 1;
    } else {
        return NULL;
    }
    return party->host.backend ? &party->host : NULL;
}
