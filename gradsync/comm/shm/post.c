#include "gradsync/comm/shm/post.h"

#include <string.h>

gs_shm_algorithm gs_shm_choose_early(const gs_shm_segment *segment,
                                     const gs_collective *collective) {
    size_t bytes = gs_collective_sent_bytes(collective);
    if (collective->kind == GS_BARRIER || bytes == 0) return GS_SHM_NONE;
    if (bytes <= segment->flat_bytes / gs_collective_num_parts(collective, segment->world_size))
        return GS_SHM_FLAT;
    return GS_SHM_UNDECIDED;
}

// Which of a rank's buffers others touch.
static bool is_read(const gs_collective *collective, int rank) {
    return collective->kind != GS_BROADCAST || rank == collective->root;
}

static bool is_written(const gs_collective *collective, int rank) {
    return collective->kind == GS_ALLREDUCE ||
           (collective->kind == GS_REDUCE && rank == collective->root);
}

gs_shm_algorithm gs_shm_choose_late(const gs_shm_segment *segment, const gs_shm_place *places,
                                    const gs_collective *collective) {
    for (int i = 0; i < segment->world_size; i++) {
        if ((is_read(collective, i) && !places[i].send_offset) ||
            (is_written(collective, i) && !places[i].recv_offset))
            return GS_SHM_PIPELINE;
    }
    return GS_SHM_DIRECT;
}

const gs_shm_post *gs_shm_post_of(const gs_shm_lane_blocks *blocks, int rank, uint64_t sequence) {
    return &blocks->of[rank]->posts[sequence % GS_SHM_MAX_POSTED];
}

// 1 + where `data` lies in the own arena; 0: not wholly in it.
static uint64_t offset_in_arena(const gs_shm_segment *segment, const void *data, size_t bytes) {
    uintptr_t first = (uintptr_t)segment->arenas[segment->rank], at = (uintptr_t)data;
    size_t arena_bytes = segment->arena_bytes[segment->rank];
    if (!first || at < first || at - first > arena_bytes || bytes > arena_bytes - (at - first))
        return 0;
    return 1 + (at - first);
}

// How far the input of a rank reaches from `send`; SIZE_MAX when that is no number.
static size_t send_extent(const gs_collective *collective, int rank, int world_size,
                          size_t part_stride_bytes) {
    size_t bytes = gs_collective_part_bytes(collective);
    if (collective->kind == GS_REDUCE_SCATTER) bytes *= (size_t)world_size;
    if (!collective->tree) return bytes;
    size_t last_part = 0;
    for (int i = 0; i < collective->tree->num_inputs; i++) {
        size_t part = (size_t)collective->tree->part[i];
        if (collective->tree->rank[i] == rank && part > last_part) last_part = part;
    }
    size_t extent;
    if (__builtin_mul_overflow(last_part, part_stride_bytes, &extent) ||
        __builtin_add_overflow(extent, bytes, &extent))
        return SIZE_MAX;
    return extent;
}

bool gs_shm_lies_in_arena(const gs_shm_segment *segment, const gs_collective *collective) {
    int rank = segment->rank;
    size_t sent = send_extent(collective, rank, segment->world_size, collective->part_stride_bytes);
    size_t bytes = gs_collective_part_bytes(collective);
    return (!is_read(collective, rank) || offset_in_arena(segment, collective->send, sent)) &&
           (!is_written(collective, rank) || offset_in_arena(segment, collective->recv, bytes));
}

void gs_shm_fill_post(const gs_shm_lane_blocks *blocks, uint64_t sequence,
                      const gs_collective *collective, gs_shm_algorithm algorithm) {
    const gs_shm_segment *segment = blocks->segment;
    gs_shm_post *post = &blocks->own->posts[sequence % GS_SHM_MAX_POSTED];
    post->claim = gs_collective_claim_of(collective, segment->generation);
    // Nobody looks at the second cache line unless data is read from the arena.
    if (algorithm != GS_SHM_UNDECIDED) return;
    size_t sent =
        send_extent(collective, segment->rank, segment->world_size, collective->part_stride_bytes);
    post->send_offset = offset_in_arena(segment, collective->send, sent);
    post->recv_offset =
        offset_in_arena(segment, collective->recv, gs_collective_part_bytes(collective));
    post->part_stride_bytes = collective->part_stride_bytes;
}

static bool claims_equal(const gs_shm_lane_blocks *blocks, uint64_t sequence, int a, int b) {
    return memcmp(&gs_shm_post_of(blocks, a, sequence)->claim,
                  &gs_shm_post_of(blocks, b, sequence)->claim, sizeof(gs_collective_claim)) == 0;
}

gs_comm_failure gs_shm_failure_of(const gs_shm_lane_blocks *blocks, uint64_t sequence,
                                  const gs_collective *collective, gs_comm_failure_kind kind) {
    return (gs_comm_failure){.kind = kind,
                             .reporter = blocks->segment->rank,
                             .lane = blocks->lane,
                             .sequence = sequence,
                             .step = collective->step,
                             .bucket = collective->bucket};
}

// A collective for which all have come, and what there is to say against it.
typedef struct examination {
    const gs_shm_lane_blocks *blocks;
    uint64_t sequence;
    const gs_collective *collective;
    gs_comm_failure *cause;
} examination;

static gs_status blame_damage(const examination *of, int rank, const char *what) {
    char name[48];
    gs_work_name(name, sizeof name, (gs_work){of->sequence, of->blocks->lane});
    *of->cause =
        gs_shm_failure_of(of->blocks, of->sequence, of->collective, GS_COMM_FAILURE_DAMAGED);
    gs_comm_failure_accuse(of->cause, rank);
    return gs_error(GS_DATA_LOSS, "%s: rank %d %s", name, rank, what);
}

static int find_meant(const gs_shm_lane_blocks *blocks, uint64_t sequence) {
    const gs_collective_claim *claims[GS_SHM_MAX_RANKS];
    for (int i = 0; i < blocks->segment->world_size; i++)
        claims[i] = &gs_shm_post_of(blocks, i, sequence)->claim;
    return gs_collective_claims_find_meant(claims, blocks->segment->world_size);
}

//   found  a rank that posted something else than this one
static gs_status blame_minority(const examination *of, int found) {
    const gs_shm_lane_blocks *blocks = of->blocks;
    uint64_t sequence = of->sequence;
    int meant = find_meant(blocks, sequence), culprit = -1;
    for (int i = 0; i < blocks->segment->world_size; i++) {
        if (gs_shm_is_damaged(blocks->segment, i))
            return blame_damage(of, i, "damaged its control block");
    }
    *of->cause = gs_shm_failure_of(blocks, sequence, of->collective, GS_COMM_FAILURE_MISMATCH);
    for (int i = blocks->segment->world_size - 1; i >= 0; i--) {
        if (claims_equal(blocks, sequence, meant, i)) continue;
        culprit = i;
        gs_comm_failure_accuse(of->cause, i);
    }
    if (culprit < 0) return blame_damage(of, found, "changed what it had posted");
    const gs_collective_claim *claim = &gs_shm_post_of(blocks, meant, sequence)->claim;
    of->cause->step = claim->step;  // of what was meant, whoever says so
    of->cause->bucket = claim->bucket;
    char name[48], theirs[104], ours[104];
    gs_work_name(name, sizeof name, (gs_work){sequence, blocks->lane});
    gs_collective_claim_describe(theirs, sizeof theirs,
                                 &gs_shm_post_of(blocks, culprit, sequence)->claim);
    gs_collective_claim_describe(ours, sizeof ours, claim);
    return gs_error(GS_FAILED_PRECONDITION, "%s: rank %d posted %s; rank %d %s", name, culprit,
                    theirs, meant, ours);
}

static bool lies_in_arena(const gs_shm_segment *segment, int rank, uint64_t offset, size_t bytes) {
    size_t arena_bytes = segment->arena_bytes[rank];
    return offset == 0 || (offset - 1 <= arena_bytes && bytes <= arena_bytes - (offset - 1));
}

// Whether what lies there can be taken for numbers: an arena begins on a page.
static bool is_aligned(const gs_shm_place *place, const gs_collective *collective, int rank) {
    const gs_reduce_tree *tree = collective->tree;
    size_t bytes = gs_dtype_bytes(collective->dtype);
    bool aligned = (!place->send_offset || (place->send_offset - 1) % bytes == 0) &&
                   (!place->recv_offset || (place->recv_offset - 1) % bytes == 0);
    for (int i = 0; tree && i < tree->num_inputs; i++)
        aligned &=
            tree->rank[i] != rank || (size_t)tree->part[i] * place->part_stride_bytes % bytes == 0;
    return aligned;
}

gs_status gs_shm_check_posts(const gs_shm_lane_blocks *blocks, uint64_t sequence,
                             const gs_collective *collective, gs_shm_algorithm algorithm,
                             gs_shm_place *places, gs_comm_failure *cause) {
    const gs_shm_segment *segment = blocks->segment;
    const examination of = {blocks, sequence, collective, cause};
    size_t bytes = gs_collective_part_bytes(collective);
    for (int i = 0; i < segment->world_size; i++) {
        if (i != segment->rank && !claims_equal(blocks, sequence, i, segment->rank))
            return blame_minority(&of, i);
        if (algorithm != GS_SHM_UNDECIDED) continue;
        const volatile gs_shm_post *post = gs_shm_post_of(blocks, i, sequence);
        places[i] = (gs_shm_place){post->send_offset, post->recv_offset, post->part_stride_bytes};
        size_t sent = send_extent(collective, i, segment->world_size, places[i].part_stride_bytes);
        if (!lies_in_arena(segment, i, places[i].send_offset, sent) ||
            !lies_in_arena(segment, i, places[i].recv_offset, bytes))
            return blame_damage(&of, i, "points outside its arena");
        if (!is_aligned(&places[i], collective, i))
            return blame_damage(&of, i, "points between the numbers of its arena");
    }
    return gs_ok();
}

bool gs_shm_post_is_plausible(const gs_shm_lane_blocks *blocks, int rank, uint64_t sequence) {
    const gs_shm_post *post = gs_shm_post_of(blocks, rank, sequence);
    uint64_t said = atomic_load_explicit(&post->sequence, memory_order_acquire);
    return said == 0 || (said % GS_SHM_MAX_POSTED == sequence % GS_SHM_MAX_POSTED &&
                         said <= sequence + GS_SHM_MAX_POSTED);
}
