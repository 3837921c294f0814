#include "gradsync/comm/shm/mover.h"

#include <string.h>

#include "core/failpoint.h"
#include "core/memory.h"
#include "core/stream_copy.h"

// Between blocks a rank looks whether the communicator was aborted.
#define BLOCK_BYTES ((size_t)65536)
// Whoever waits looks at the clock between calls.
#define ROUNDS_PER_CALL GS_SHM_CHUNK_SLOTS
// Elements that are rounded, or summed in 16 bits, at a time: all of a pass stays in L1.
#define WIRE_BLOCK ((size_t)1024)
// No two ranks write into one line pair, and kernels run in whole strides.
#define SLICE_BOUNDARY_BYTES ((size_t)256)

// From here on what is copied has left the caches before anybody reads it.
#define LEAST_PAST_CACHES ((size_t)32 << 20)

#define LINE_BYTES ((size_t)64)
#define STRIDE_BYTES ((size_t)256)
#define AHEAD_BYTES ((size_t)1024)

_Static_assert(GS_REDUCE_MAX_INPUTS <= GS_SHM_MAX_RANKS, "lists by rank hold a tree's inputs, too");

typedef struct byte_range {
    size_t first, end;
} byte_range;

// Where to read and where to store, for byte 0 of a part.
typedef struct pointers {
    const unsigned char *inputs[GS_SHM_MAX_RANKS];
    unsigned char *outputs[GS_SHM_MAX_RANKS];
    int num_inputs, num_outputs;
} pointers;

static size_t min_bytes(size_t a, size_t b) {
    return a < b ? a : b;
}

// Rank `rank`'s share of `bytes`.
static byte_range slice_of(size_t bytes, int rank, int world_size) {
    size_t each =
        gs_round_up((bytes + (size_t)world_size - 1) / (size_t)world_size, SLICE_BOUNDARY_BYTES);
    size_t first = min_bytes(each * (size_t)rank, bytes);
    return (byte_range){first, min_bytes(first + each, bytes)};
}

static void copy_bytes(void *to, const void *from, size_t bytes) {
    if (to != from) memcpy(to, from, bytes);
}

// Into a slot, whose lines the peers have read: each is asked for before it is written, for
// otherwise every store would wait until they have given it up.
static void copy_into_slot(unsigned char *slot, const unsigned char *from, size_t bytes) {
    size_t at = 0;
    for (; at + STRIDE_BYTES <= bytes; at += STRIDE_BYTES) {
        for (size_t line = 0; line < STRIDE_BYTES; line += LINE_BYTES)
            gs_shm_prefetch_for_write(slot + at + AHEAD_BYTES + line);
        memcpy(slot + at, from + at, STRIDE_BYTES);
    }
    memcpy(slot + at, from + at, bytes - at);
}

// From a part of the caller's memory into a slot: rounded to the wire dtype where there is one.
//   range  of bytes as they are sent
static void send_into_slot(const gs_shm_mover *mover, const gs_collective *collective,
                           unsigned char *slot, const unsigned char *send, byte_range range) {
    if (!collective->wire_dtype) {
        copy_into_slot(slot, send + range.first, range.end - range.first);
        return;
    }
    size_t sent_bytes = gs_dtype_bytes(collective->wire_dtype);
    size_t element_bytes = gs_dtype_bytes(collective->dtype);
    size_t count = (range.end - range.first) / sent_bytes;
    send += range.first / sent_bytes * element_bytes;
    for (size_t at = 0; at < count; at += WIRE_BLOCK) {
        size_t block = min_bytes(WIRE_BLOCK, count - at);
        for (size_t line = 0; line < block * sent_bytes; line += LINE_BYTES)
            gs_shm_prefetch_for_write(slot + at * sent_bytes + line);
        gs_collective_cast_to_wire(collective, gs_device_kernels(mover->device),
                                   gs_device_stream(mover->device), slot + at * sent_bytes,
                                   send + at * element_bytes, block);
    }
}

// Results from a slot into the caller's memory.
//   first  where they belong, in bytes as they are sent
static void receive_from_slot(const gs_shm_mover *mover, const gs_collective *collective,
                              const void *slot, size_t first, size_t bytes) {
    unsigned char *recv = collective->recv;
    if (!collective->wire_dtype) {
        copy_bytes(recv + first, slot, bytes);
        return;
    }
    size_t sent_bytes = gs_dtype_bytes(collective->wire_dtype);
    size_t element_bytes = gs_dtype_bytes(collective->dtype);
    gs_device_kernels(mover->device)
        ->cast(gs_device_stream(mover->device), recv + first / sent_bytes * element_bytes,
               collective->dtype, slot, collective->wire_dtype, 1, bytes / sent_bytes);
}

//   dtype  of inputs and outputs: the buffers', which are rounded on the way where there is a wire
//          dtype; or that of slots, where all has been rounded
static void reduce_range(gs_shm_mover *mover, const gs_collective *collective,
                         const pointers *where, byte_range range, gs_dtype dtype) {
    const void *inputs[GS_SHM_MAX_RANKS];
    void *outputs[GS_SHM_MAX_RANKS];
    for (int i = 0; i < where->num_inputs; i++) inputs[i] = where->inputs[i] + range.first;
    for (int i = 0; i < where->num_outputs; i++) outputs[i] = where->outputs[i] + range.first;
    gs_reduction reduction = {.outputs = outputs,
                              .inputs = inputs,
                              .num_outputs = where->num_outputs,
                              .num_inputs = where->num_inputs,
                              .merges = collective->tree ? collective->tree->merges : NULL,
                              .dtype = dtype,
                              .op = collective->op,
                              .scale = collective->scale != 0 ? collective->scale : 1,
                              .count = (range.end - range.first) / gs_dtype_bytes(dtype),
                              .wire_scale = gs_collective_wire_scale(collective),
                              .wire_scale_after = collective->wire_scale_after};
    if (dtype == collective->dtype) reduction.wire_dtype = collective->wire_dtype;
    gs_device_kernels(mover->device)->reduce(gs_device_stream(mover->device), &reduction);
}

// The inputs of a reduction over slots: in a slot, part p starts at p · slot_part_bytes.
static void list_slot_inputs(pointers *where, const gs_shm_mover *mover,
                             const gs_collective *collective, const unsigned char *const *slots,
                             size_t slot_part_bytes) {
    const gs_reduce_tree *tree = collective->tree;
    size_t own_part = collective->kind == GS_REDUCE_SCATTER ? (size_t)mover->segment->rank : 0;
    where->num_inputs = tree ? tree->num_inputs : mover->segment->world_size;
    for (int i = 0; i < where->num_inputs; i++) {
        int rank = tree ? tree->rank[i] : i;
        size_t part = tree ? (size_t)tree->part[i] : own_part;
        where->inputs[i] = slots[rank] + part * slot_part_bytes;
    }
}

// Puts `range` of every own part into a slot; of a reduce-scatter along a tree that of every row.
static void fill_slot(const gs_shm_mover *mover, const gs_collective *collective,
                      unsigned char *slot, size_t slot_part_bytes, byte_range range) {
    const unsigned char *send = collective->send;
    int rank = mover->segment->rank;
    size_t bytes = range.end - range.first, part_bytes = gs_collective_part_bytes(collective);
    if (collective->kind == GS_BROADCAST && rank != collective->root) return;
    if (collective->tree) {
        for (int i = 0; i < collective->tree->num_inputs; i++) {
            if (collective->tree->rank[i] != rank) continue;
            size_t part = (size_t)collective->tree->part[i];
            copy_into_slot(slot + part * slot_part_bytes,
                           send + part * collective->part_stride_bytes + range.first, bytes);
        }
    } else if (collective->kind == GS_REDUCE_SCATTER) {
        for (size_t part = 0; part < (size_t)mover->segment->world_size; part++)
            send_into_slot(mover, collective, slot + part * slot_part_bytes,
                           send + part * part_bytes, range);
    } else {
        send_into_slot(mover, collective, slot, send, range);
    }
}

// The sum of slots into the caller's memory. What was rounded is summed as 16 bits, block by block.
static void reduce_slots(gs_shm_mover *mover, const gs_collective *collective, pointers *where,
                         byte_range range) {
    size_t bytes = range.end - range.first;
    if (!collective->wire_dtype) {
        where->outputs[0] = (unsigned char *)collective->recv + range.first;
        reduce_range(mover, collective, where, (byte_range){0, bytes}, collective->dtype);
        return;
    }
    _Alignas(64) uint16_t sum[WIRE_BLOCK];
    pointers block = *where;
    block.outputs[0] = (unsigned char *)sum;
    for (size_t at = 0; at < bytes; at += sizeof sum) {
        size_t taken = min_bytes(sizeof sum, bytes - at);
        for (int i = 0; i < where->num_inputs; i++) block.inputs[i] = where->inputs[i] + at;
        reduce_range(mover, collective, &block, (byte_range){0, taken}, collective->wire_dtype);
        receive_from_slot(mover, collective, sum, range.first + at, taken);
    }
}

// Of a row in slots what belongs to this rank. False: nothing.
//   range  in: of the row; out: of the own part
static bool cut_own_part(const gs_shm_mover *mover, const gs_collective *collective,
                         pointers *where, byte_range *range) {
    size_t bytes = gs_collective_part_bytes(collective), first = range->first;
    byte_range own = {bytes * (size_t)mover->segment->rank,
                      bytes * (size_t)(mover->segment->rank + 1)};
    if (own.end <= range->first || range->end <= own.first) return false;
    if (first < own.first) first = own.first;
    for (int i = 0; i < where->num_inputs; i++) where->inputs[i] += first - range->first;
    *range = (byte_range){first - own.first, min_bytes(range->end, own.end) - own.first};
    return true;
}

// Takes `range` of the result out of everybody's slots; of a reduce-scatter along a tree, of a row.
static void empty_slots(gs_shm_mover *mover, const gs_collective *collective,
                        const unsigned char *const *slots, size_t slot_part_bytes,
                        byte_range range) {
    int rank = mover->segment->rank, world_size = mover->segment->world_size;
    unsigned char *recv = collective->recv;
    size_t bytes = range.end - range.first, part_bytes = gs_collective_part_bytes(collective);
    switch (collective->kind) {
    case GS_ALLGATHER:
        for (int i = 0; i < world_size; i++)
            memcpy(recv + (size_t)i * part_bytes + range.first, slots[i], bytes);
        return;
    case GS_BROADCAST:
        if (rank != collective->root || recv != collective->send)
            memcpy(recv + range.first, slots[collective->root], bytes);
        return;
    case GS_REDUCE:
        if (rank != collective->root) return;
        break;
    default:
        break;
    }
    pointers where = {.num_outputs = 1};
    list_slot_inputs(&where, mover, collective, slots, slot_part_bytes);
    if (gs_collective_scatters_tree(collective) && !cut_own_part(mover, collective, &where, &range))
        return;
    reduce_slots(mover, collective, &where, range);
}

// What is cut into slots: one part, or a whole row.
static size_t bytes_for_slots(const gs_shm_mover *mover, const gs_collective *collective) {
    size_t bytes = gs_collective_sent_bytes(collective);
    return gs_collective_scatters_tree(collective) ? bytes * (size_t)mover->segment->world_size
                                                   : bytes;
}

void gs_shm_copy_to_flat(gs_shm_mover *mover, const gs_collective *collective, int slot) {
    size_t bytes = bytes_for_slots(mover, collective);
    fill_slot(mover, collective, mover->blocks.own->flat[slot], bytes, (byte_range){0, bytes});
}

void gs_shm_run_flat(gs_shm_mover *mover, const gs_collective *collective, int slot) {
    size_t bytes = bytes_for_slots(mover, collective);
    const unsigned char *slots[GS_SHM_MAX_RANKS];
    for (int i = 0; i < mover->segment->world_size; i++)
        slots[i] = mover->blocks.of[i]->flat[slot];
    empty_slots(mover, collective, slots, bytes, (byte_range){0, bytes});
    unsigned char *next = mover->blocks.own->flat[(slot + 1) % GS_SHM_FLAT_SLOTS];
    for (size_t at = 0; at < bytes; at += LINE_BYTES) gs_shm_prefetch_for_write(next + at);
}

static gs_status pass_block(const gs_shm_mover *mover) {
    GS_FAILPOINT("comm.slice");
    return gs_shm_aborted(mover->segment) ? gs_shm_abort_reason(mover->segment) : gs_ok();
}

static gs_status reduce_in_blocks(gs_shm_mover *mover, const gs_collective *collective,
                                  const pointers *where, byte_range range) {
    for (size_t at = range.first; at < range.end; at += BLOCK_BYTES) {
        GS_TRY(pass_block(mover));
        reduce_range(mover, collective, where,
                     (byte_range){at, min_bytes(at + BLOCK_BYTES, range.end)}, collective->dtype);
    }
    return gs_ok();
}

//   all_bytes  that the collective stores at this rank
static gs_status copy_in_blocks(gs_shm_mover *mover, unsigned char *to, const unsigned char *from,
                                size_t bytes, size_t all_bytes) {
    for (size_t at = 0; to != from && at < bytes; at += BLOCK_BYTES) {
        GS_TRY(pass_block(mover));
        size_t block = min_bytes(BLOCK_BYTES, bytes - at);
        if (all_bytes >= LEAST_PAST_CACHES)
            gs_stream_copy(to + at, from + at, block);
        else
            memcpy(to + at, from + at, block);
    }
    return gs_ok();
}

static unsigned char *send_of(const gs_shm_mover *mover, int rank) {
    return mover->segment->arenas[rank] + (mover->places[rank].send_offset - 1);
}

static unsigned char *recv_of(const gs_shm_mover *mover, int rank) {
    return mover->segment->arenas[rank] + (mover->places[rank].recv_offset - 1);
}

// The inputs of a reduction over arenas, from byte `first` of each.
static void list_arena_inputs(pointers *where, const gs_shm_mover *mover,
                              const gs_collective *collective, size_t first) {
    const gs_reduce_tree *tree = collective->tree;
    where->num_inputs = tree ? tree->num_inputs : mover->segment->world_size;
    for (int i = 0; i < where->num_inputs; i++) {
        int rank = tree ? tree->rank[i] : i;
        size_t stride = mover->places[rank].part_stride_bytes;
        where->inputs[i] =
            send_of(mover, rank) + first + (tree ? (size_t)tree->part[i] * stride : 0);
    }
}

static gs_status reduce_slice(gs_shm_mover *mover, const gs_collective *collective) {
    int world_size = mover->segment->world_size;
    pointers where = {0};
    list_arena_inputs(&where, mover, collective, 0);
    for (int i = 0; i < world_size; i++) {
        if (collective->kind == GS_ALLREDUCE || i == collective->root)
            where.outputs[where.num_outputs++] = recv_of(mover, i);
    }
    byte_range slice = slice_of(gs_collective_part_bytes(collective), mover->segment->rank, world_size);
    return reduce_in_blocks(mover, collective, &where, slice);
}

static gs_status reduce_own_part(gs_shm_mover *mover, const gs_collective *collective) {
    size_t bytes = gs_collective_part_bytes(collective);
    pointers where = {.outputs = {collective->recv}, .num_outputs = 1};
    list_arena_inputs(&where, mover, collective, (size_t)mover->segment->rank * bytes);
    return reduce_in_blocks(mover, collective, &where, (byte_range){0, bytes});
}

gs_status gs_shm_run_direct(gs_shm_mover *mover, const gs_collective *collective) {
    size_t bytes = gs_collective_part_bytes(collective);
    unsigned char *recv = collective->recv;
    switch (collective->kind) {
    case GS_REDUCE_SCATTER:
        return reduce_own_part(mover, collective);
    case GS_ALLGATHER:
        for (int i = 0; i < mover->segment->world_size; i++)
            GS_TRY(copy_in_blocks(mover, recv + (size_t)i * bytes, send_of(mover, i), bytes,
                                  bytes * (size_t)mover->segment->world_size));
        return gs_ok();
    case GS_BROADCAST:
        return copy_in_blocks(mover, recv, send_of(mover, collective->root), bytes, bytes);
    default:
        return reduce_slice(mover, collective);
    }
}

// One collective as chunks: chunk k holds bytes [k · slot_part_bytes, …) of every part.
typedef struct chunking {
    size_t part_bytes, slot_part_bytes;
    uint64_t num_chunks;
    bool shares;  // each rank reduces a slice of a chunk for all; else each the whole chunk for
                  // itself
} chunking;

static chunking cut_into_chunks(const gs_shm_mover *mover, const gs_collective *collective) {
    int world_size = mover->segment->world_size;
    chunking cut = {.part_bytes = bytes_for_slots(mover, collective)};
    size_t num_parts = gs_collective_num_parts(collective, world_size);
    // Rows of many inputs would leave nothing for a part of each rank: a chunk is of the row.
    if (gs_collective_scatters_tree(collective)) num_parts /= (size_t)world_size;
    cut.slot_part_bytes =
        GS_SHM_CHUNK_BYTES / num_parts / SLICE_BOUNDARY_BYTES * SLICE_BOUNDARY_BYTES;
    cut.num_chunks = (cut.part_bytes + cut.slot_part_bytes - 1) / cut.slot_part_bytes;
    cut.shares =
        world_size > 2 && (collective->kind == GS_ALLREDUCE || collective->kind == GS_REDUCE);
    return cut;
}

static byte_range range_of_chunk(const gs_shm_mover *mover, const chunking *cut, uint64_t chunk) {
    size_t first = (size_t)(chunk - mover->first_chunk) * cut->slot_part_bytes;
    return (byte_range){first, min_bytes(first + cut->slot_part_bytes, cut->part_bytes)};
}

static bool is_plausible_chunk(const gs_shm_mover *mover, uint64_t counted) {
    return counted <= mover->chunks_read + GS_SHM_CHUNK_SLOTS;
}

bool gs_shm_chunks_are_plausible(const gs_shm_mover *mover, int rank) {
    const gs_shm_lane_block *block = mover->blocks.of[rank];
    return is_plausible_chunk(mover, atomic_load(&block->chunks_in.value)) &&
           is_plausible_chunk(mover, atomic_load(&block->chunks_out.value)) &&
           is_plausible_chunk(mover, atomic_load(&block->chunks_read.value));
}

// How far the slowest rank has come with a counter at `offset` in the lane's blocks. A counter
// that cannot be one holds everything up, until it is found out who wrote it.
static uint64_t least_counter(const gs_shm_mover *mover, size_t offset) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < mover->segment->world_size; i++) {
        const unsigned char *block = (const unsigned char *)mover->blocks.of[i];
        const gs_shm_counter *counter = (const gs_shm_counter *)(const void *)(block + offset);
        uint64_t value = atomic_load_explicit(&counter->value, memory_order_acquire);
        if (!is_plausible_chunk(mover, value)) return 0;
        if (value < least) least = value;
    }
    return least;
}

static void publish_counter(gs_shm_mover *mover, gs_shm_counter *counter, uint64_t value) {
    atomic_store_explicit(&counter->value, value, memory_order_release);
    gs_futex_event_notify(&mover->segment->common->event);
}

static bool copy_chunk_in(gs_shm_mover *mover, const gs_collective *collective,
                          const chunking *cut) {
    uint64_t chunk = mover->chunks_in;
    if (chunk == mover->first_chunk + cut->num_chunks) return false;
    if (chunk >= least_counter(mover, offsetof(gs_shm_lane_block, chunks_read)) + GS_SHM_CHUNK_SLOTS)
        return false;
    fill_slot(mover, collective, mover->blocks.own->chunk_in[chunk % GS_SHM_CHUNK_SLOTS],
              cut->slot_part_bytes, range_of_chunk(mover, cut, chunk));
    publish_counter(mover, &mover->blocks.own->chunks_in, ++mover->chunks_in);
    return true;
}

static void list_chunk_slots(const unsigned char **slots, const gs_shm_mover *mover,
                             uint64_t chunk) {
    for (int i = 0; i < mover->segment->world_size; i++)
        slots[i] = mover->blocks.of[i]->chunk_in[chunk % GS_SHM_CHUNK_SLOTS];
}

static gs_status reduce_chunk_slice(gs_shm_mover *mover, const gs_collective *collective,
                                    const chunking *cut, bool *moved) {
    uint64_t chunk = mover->chunks_out;
    if (!cut->shares || chunk == mover->first_chunk + cut->num_chunks) return gs_ok();
    if (chunk >= least_counter(mover, offsetof(gs_shm_lane_block, chunks_in))) return gs_ok();
    GS_TRY(pass_block(mover));
    byte_range range = range_of_chunk(mover, cut, chunk);
    byte_range slice =
        slice_of(range.end - range.first, mover->segment->rank, mover->segment->world_size);
    const unsigned char *slots[GS_SHM_MAX_RANKS];
    list_chunk_slots(slots, mover, chunk);
    pointers where = {.outputs = {mover->blocks.own->chunk_out[chunk % GS_SHM_CHUNK_SLOTS]},
                      .num_outputs = 1};
    list_slot_inputs(&where, mover, collective, slots, cut->slot_part_bytes);
    reduce_range(mover, collective, &where, slice, gs_collective_sent_dtype(collective));
    publish_counter(mover, &mover->blocks.own->chunks_out, ++mover->chunks_out);
    *moved = true;
    return gs_ok();
}

static void copy_slices_out(gs_shm_mover *mover, const gs_collective *collective, uint64_t chunk,
                            byte_range range) {
    int world_size = mover->segment->world_size;
    if (collective->kind == GS_REDUCE && mover->segment->rank != collective->root) return;
    for (int i = 0; i < world_size; i++) {
        byte_range slice = slice_of(range.end - range.first, i, world_size);
        const unsigned char *slot =
            mover->blocks.of[i]->chunk_out[chunk % GS_SHM_CHUNK_SLOTS];
        receive_from_slot(mover, collective, slot + slice.first, range.first + slice.first,
                          slice.end - slice.first);
    }
}

static gs_status take_chunk(gs_shm_mover *mover, const gs_collective *collective,
                            const chunking *cut, bool *moved) {
    uint64_t chunk = mover->chunks_read;
    if (chunk == mover->first_chunk + cut->num_chunks) return gs_ok();
    size_t counter =
        cut->shares ? offsetof(gs_shm_lane_block, chunks_out) : offsetof(gs_shm_lane_block, chunks_in);
    if (chunk >= least_counter(mover, counter)) return gs_ok();
    byte_range range = range_of_chunk(mover, cut, chunk);
    if (cut->shares) {
        copy_slices_out(mover, collective, chunk, range);
    } else {
        GS_TRY(pass_block(mover));
        const unsigned char *slots[GS_SHM_MAX_RANKS];
        list_chunk_slots(slots, mover, chunk);
        empty_slots(mover, collective, slots, cut->slot_part_bytes, range);
    }
    publish_counter(mover, &mover->blocks.own->chunks_read, ++mover->chunks_read);
    *moved = true;
    return gs_ok();
}

gs_status gs_shm_run_pipeline(gs_shm_mover *mover, const gs_collective *collective, bool *moved,
                              bool *complete) {
    chunking cut = cut_into_chunks(mover, collective);
    bool again;
    int rounds = 0;
    *moved = false;
    do {
        again = copy_chunk_in(mover, collective, &cut);
        GS_TRY(reduce_chunk_slice(mover, collective, &cut, &again));
        GS_TRY(take_chunk(mover, collective, &cut, &again));
        *moved |= again;
    } while (again && ++rounds < ROUNDS_PER_CALL);
    *complete = mover->chunks_read == mover->first_chunk + cut.num_chunks;
    if (*complete) {
        mover->first_chunk = mover->chunks_in = mover->chunks_out = mover->chunks_read;
    }
    return gs_ok();
}
