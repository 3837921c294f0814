// Sums along a fixed tree (exact mode), which the library does not know: it only moves the parts.
//
// Rank r owns slice r of a piece. Everybody sends it that slice of each part; it adds them along
// the tree with the device's own kernel, and the slices are gathered. What is left behind the
// slices, a few elements, everybody gets and adds. So the bits are those of the tree, whatever the
// number of ranks. Of a reduce-scatter slice r is out of part r of the inputs and stays there; of a
// reduce the one slice, all of the piece, is the root's: other buckets have other roots, so no rank
// has all the work.
#include "core/memory.h"
#include "gradsync/comm/nccl/state.h"

#define SLICE_ELEMENTS 16  // slices begin on boundaries of 16 bytes for every dtype

// Of one piece; inputs lie in the workspace one behind the other, slice and rest.
typedef struct tree_cut {
    size_t element_bytes, slice, rest;  // elements
    size_t input_bytes;                 // of the workspace, for one input
} tree_cut;

static tree_cut cut_piece(const gs_nccl_lane *lane, const gs_collective *collective, size_t count) {
    size_t world_size = (size_t)lane->comm->world_size;
    tree_cut cut = {.element_bytes = gs_dtype_bytes(collective->dtype), .slice = count};
    if (collective->kind == GS_ALLREDUCE) {
        cut.slice = count / world_size / SLICE_ELEMENTS * SLICE_ELEMENTS;
        cut.rest = count - cut.slice * world_size;
    }
    cut.input_bytes = gs_round_up((cut.slice + cut.rest) * cut.element_bytes, 64);
    return cut;
}

gs_status gs_nccl_cut_tree(gs_nccl_lane *lane, gs_nccl_work *work) {
    const gs_collective *collective = &work->collective;
    if (lane->comm->world_size == 1) return gs_ok();  // nothing goes through the workspace
    size_t world_size = (size_t)lane->comm->world_size, element_bytes = gs_dtype_bytes(collective->dtype);
    size_t input_bytes = GS_NCCL_TREE_BYTES / (size_t)collective->tree->num_inputs / 64 * 64;
    size_t most_rest = (SLICE_ELEMENTS + 1) * world_size;
    if (input_bytes / element_bytes < most_rest + SLICE_ELEMENTS)
        return gs_error(GS_UNIMPLEMENTED, "a tree of %d inputs among %d ranks",
                        collective->tree->num_inputs, lane->comm->world_size);
    size_t slice = (input_bytes / element_bytes - most_rest) / SLICE_ELEMENTS * SLICE_ELEMENTS;
    work->piece_count = collective->kind == GS_ALLREDUCE ? slice * world_size : slice;
    work->num_pieces = (collective->count + work->piece_count - 1) / work->piece_count;
    return gs_ok();
}

static bool has_slice(const gs_collective *collective, int rank) {
    return collective->kind != GS_REDUCE || rank == collective->root;
}

// The element of an input where the slice of `rank` begins; of nobody: the rest.
static size_t slice_at(const gs_nccl_launch *launch, const gs_collective *collective,
                       const tree_cut *cut, int rank) {
    switch (collective->kind) {
    case GS_REDUCE_SCATTER:
        return (size_t)rank * collective->count + launch->first;
    case GS_REDUCE:
        return launch->first;
    default:
        return launch->first + (size_t)rank * cut->slice;
    }
}

// Input i of the own slice or of the rest, where this rank has it.
static const void *input_at(const gs_nccl_lane *lane, const gs_nccl_launch *launch,
                            const gs_collective *collective, const tree_cut *cut, int i, bool rest) {
    const gs_reduce_tree *tree = collective->tree;
    if (tree->rank[i] == lane->comm->rank) {
        size_t element =
            slice_at(launch, collective, cut, rest ? lane->comm->world_size : lane->comm->rank);
        return (const unsigned char *)collective->send +
               (size_t)tree->part[i] * collective->part_stride_bytes + element * cut->element_bytes;
    }
    return (unsigned char *)lane->tree_memory + (size_t)i * cut->input_bytes +
           (rest ? cut->slice * cut->element_bytes : 0);
}

static gs_status send_input(const gs_nccl_target *target, const gs_nccl_lane *lane,
                            const gs_nccl_launch *launch, const gs_collective *collective,
                            const tree_cut *cut, int i) {
    int world_size = lane->comm->world_size;
    const unsigned char *input = (const unsigned char *)collective->send +
                                 (size_t)collective->tree->part[i] * collective->part_stride_bytes;
    size_t rest = slice_at(launch, collective, cut, world_size) * cut->element_bytes;
    for (int peer = 0; peer < world_size; peer++) {
        if (peer == lane->comm->rank || !has_slice(collective, peer)) continue;
        size_t slice = slice_at(launch, collective, cut, peer) * cut->element_bytes;
        if (cut->slice)
            GS_TRY(gs_nccl_send(target, input + slice, cut->slice, collective->dtype, peer));
        if (cut->rest)
            GS_TRY(gs_nccl_send(target, input + rest, cut->rest, collective->dtype, peer));
    }
    return gs_ok();
}

static gs_status receive_input(const gs_nccl_target *target, const gs_nccl_lane *lane,
                               const gs_nccl_launch *launch, const gs_collective *collective,
                               const tree_cut *cut, int i) {
    int owner = collective->tree->rank[i];
    if (!has_slice(collective, lane->comm->rank)) return gs_ok();
    void *slice = (void *)(uintptr_t)input_at(lane, launch, collective, cut, i, false);
    void *rest = (void *)(uintptr_t)input_at(lane, launch, collective, cut, i, true);
    if (cut->slice) GS_TRY(gs_nccl_recv(target, slice, cut->slice, collective->dtype, owner));
    if (cut->rest) GS_TRY(gs_nccl_recv(target, rest, cut->rest, collective->dtype, owner));
    return gs_ok();
}

static gs_status scatter_inputs(gs_nccl_lane *lane, const gs_nccl_launch *launch,
                                const gs_collective *collective, const tree_cut *cut) {
    const gs_reduce_tree *tree = collective->tree;
    gs_nccl_target target = gs_nccl_target_of(lane);
    gs_status status = gs_ok();
    GS_TRY(gs_nccl_group_begin(&target));
    for (int i = 0; i < tree->num_inputs && !status.code; i++) {
        status = tree->rank[i] == lane->comm->rank
                     ? send_input(&target, lane, launch, collective, cut, i)
                     : receive_input(&target, lane, launch, collective, cut, i);
    }
    gs_status ended = gs_nccl_group_end(&target);
    return status.code ? status : ended;
}

static void add_inputs(gs_nccl_lane *lane, const gs_nccl_launch *launch,
                       const gs_collective *collective, const tree_cut *cut, bool rest) {
    const gs_reduce_tree *tree = collective->tree;
    const void *inputs[GS_REDUCE_MAX_INPUTS];
    size_t count = rest ? cut->rest : cut->slice;
    if (!count || !has_slice(collective, lane->comm->rank)) return;
    for (int i = 0; i < tree->num_inputs; i++)
        inputs[i] = input_at(lane, launch, collective, cut, i, rest);
    size_t place = launch->first;
    if (collective->kind == GS_ALLREDUCE)
        place = slice_at(launch, collective, cut, rest ? lane->comm->world_size : lane->comm->rank);
    void *output = (unsigned char *)collective->recv + place * cut->element_bytes;
    gs_reduction reduction = {.outputs = &output,
                              .inputs = inputs,
                              .num_outputs = 1,
                              .num_inputs = tree->num_inputs,
                              .merges = tree->merges,
                              .dtype = collective->dtype,
                              .op = collective->op,
                              .scale = collective->scale != 0 ? collective->scale : 1,
                              .count = count};
    gs_device_kernels(lane->comm->device)->reduce(lane->stream, &reduction);
}

gs_status gs_nccl_launch_tree(gs_nccl_lane *lane, gs_nccl_launch *launch, bool *more) {
    const gs_collective *collective = &gs_nccl_work_of(lane, launch->sequence)->collective;
    tree_cut cut = cut_piece(lane, collective, launch->count);
    *more = launch->phase < 2;
    switch (launch->phase++) {
    case 0:
        if (lane->comm->world_size == 1) return gs_ok();
        return scatter_inputs(lane, launch, collective, &cut);
    case 1: {
        add_inputs(lane, launch, collective, &cut, false);
        add_inputs(lane, launch, collective, &cut, true);
        if (!cut.slice || lane->comm->world_size == 1 || collective->kind != GS_ALLREDUCE)
            return gs_ok();
        gs_nccl_target target = gs_nccl_target_of(lane);
        unsigned char *recv =
            (unsigned char *)collective->recv + launch->first * cut.element_bytes;
        return gs_nccl_allgather(&target, recv,
                                 recv + (size_t)lane->comm->rank * cut.slice * cut.element_bytes,
                                 cut.slice, collective->dtype);
    }
    default:
        return gs_ok();
    }
}
