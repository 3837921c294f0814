#include "gradsync/comm/net/course.h"

#include "core/memory.h"

// A segment is large enough that its header and its turn cost nothing, and small enough that adding
// begins early.
#define SEGMENT_BYTES ((size_t)262144)
#define LEAST_SEGMENT_BYTES ((size_t)32768)
// Of a segment's inputs of all ranks, so that the room for them does not grow with their number.
#define ALL_INPUTS_BYTES ((size_t)2 << 20)
#define SLICE_BOUNDARY_COUNT ((size_t)64)  // kernels run in whole strides

static bool is_of_parts(const gs_collective *collective) {
    return collective->kind == GS_REDUCE_SCATTER || collective->kind == GS_ALLGATHER;
}

size_t gs_net_course_row_count(const gs_net_course *course) {
    const gs_collective *collective = course->collective;
    return is_of_parts(collective) ? collective->count * (size_t)course->world_size
                                   : collective->count;
}

static size_t most_inputs_of_a_rank(const gs_collective *collective) {
    size_t most = 1;
    for (int i = 0; collective->tree && i < collective->tree->num_inputs; i++) {
        size_t count = 0;
        for (int k = 0; k < collective->tree->num_inputs; k++)
            count += collective->tree->rank[k] == collective->tree->rank[i];
        if (count > most) most = count;
    }
    return most;
}

// Of what one rank sends another: alike on all ranks.
static bool is_small(const gs_net_course *course) {
    const gs_collective *collective = course->collective;
    size_t bytes = collective->count * course->element_bytes * most_inputs_of_a_rank(collective);
    return bytes * (size_t)(course->world_size - 1) <= GS_NET_SMALL_BYTES;
}

gs_net_course gs_net_course_of(const gs_collective *collective, int rank, int world_size) {
    gs_net_course course = {.collective = collective,
                            .rank = rank,
                            .world_size = world_size,
                            .reduces = gs_collective_reduces(collective),
                            .element_bytes = gs_dtype_bytes(gs_collective_sent_dtype(collective)),
                            .num_inputs = 1};
    if (collective->kind == GS_BARRIER) {
        course.is_small = true;
        course.num_inputs = 0;
        return course;
    }
    if (course.reduces)
        course.num_inputs = collective->tree ? collective->tree->num_inputs : world_size;
    course.is_small = is_small(&course);
    size_t bytes = ALL_INPUTS_BYTES / (size_t)course.num_inputs;
    if (bytes > SEGMENT_BYTES) bytes = SEGMENT_BYTES;
    if (bytes < LEAST_SEGMENT_BYTES) bytes = LEAST_SEGMENT_BYTES;
    course.segment_count = bytes / course.element_bytes;
    return course;
}

// Where the slice of `owner` begins.
static size_t share_boundary(const gs_net_course *course, int owner) {
    const uint32_t *before = course->shares->before;
    size_t count = course->collective->count, whole = before[course->world_size];
    // count · before / whole, of counts that may be large.
    size_t first = count / whole * before[owner] + count % whole * before[owner] / whole;
    first = gs_round_up(first, SLICE_BOUNDARY_COUNT);
    return first < count && owner < course->world_size ? first : count;
}

gs_net_range gs_net_course_slice(const gs_net_course *course, int owner) {
    const gs_collective *collective = course->collective;
    if (collective->kind == GS_BARRIER) return (gs_net_range){0, 0};
    if (is_of_parts(collective))
        return (gs_net_range){collective->count * (size_t)owner, collective->count};
    size_t world_size = (size_t)course->world_size, count = collective->count;
    if (course->shares) {
        size_t begin = share_boundary(course, owner), end = share_boundary(course, owner + 1);
        return (gs_net_range){begin, end - begin};
    }
    size_t each = gs_round_up((count + world_size - 1) / world_size, SLICE_BOUNDARY_COUNT);
    size_t first = each * (size_t)owner < count ? each * (size_t)owner : count;
    return (gs_net_range){first, count - first < each ? count - first : each};
}

uint32_t gs_net_course_num_segments(const gs_net_course *course, int owner) {
    if (!course->segment_count) return 0;
    size_t count = gs_net_course_slice(course, owner).count;
    return (uint32_t)((count + course->segment_count - 1) / course->segment_count);
}

gs_net_range gs_net_course_segment(const gs_net_course *course, int owner, uint32_t segment) {
    gs_net_range slice = gs_net_course_slice(course, owner);
    size_t at = (size_t)segment * course->segment_count;
    size_t left = slice.count - at;
    return (gs_net_range){slice.first + at,
                          left < course->segment_count ? left : course->segment_count};
}

int gs_net_course_rank_of_input(const gs_net_course *course, int input, int owner) {
    const gs_collective *collective = course->collective;
    if (collective->tree) return collective->tree->rank[input];
    if (course->reduces) return input;
    return collective->kind == GS_BROADCAST ? collective->root : owner;
}

int gs_net_course_num_inputs_of(const gs_net_course *course, int rank, int owner) {
    int count = 0;
    for (int i = 0; i < course->num_inputs; i++)
        count += gs_net_course_rank_of_input(course, i, owner) == rank;
    return count;
}

bool gs_net_course_wants(const gs_net_course *course, int rank, int owner) {
    switch (course->collective->kind) {
    case GS_REDUCE:
        return rank == course->collective->root;
    case GS_REDUCE_SCATTER:
        return rank == owner;
    case GS_BROADCAST:
        return rank != course->collective->root;
    default:
        return true;
    }
}

// What `rank` receives of the row.
static gs_net_range received_by(const gs_net_course *course, int rank) {
    const gs_collective *collective = course->collective;
    if (collective->kind == GS_REDUCE_SCATTER) return gs_net_course_slice(course, rank);
    if (collective->kind == GS_REDUCE && rank != collective->root) return (gs_net_range){0, 0};
    return (gs_net_range){0, gs_net_course_row_count(course)};
}

gs_net_range gs_net_course_received(const gs_net_course *course) {
    return received_by(course, course->rank);
}

gs_net_range gs_net_course_said(const gs_net_course *course, int from, int to) {
    const gs_collective *collective = course->collective;
    if (collective->kind == GS_BARRIER) return (gs_net_range){0, 0};
    if (collective->kind == GS_ALLGATHER) return gs_net_course_slice(course, from);
    if (collective->kind == GS_BROADCAST && from != collective->root) return (gs_net_range){0, 0};
    return received_by(course, to);
}

const unsigned char *gs_net_course_own_input(const gs_net_course *course, int input,
                                             size_t element) {
    const gs_collective *collective = course->collective;
    const unsigned char *send = collective->send;
    if (collective->tree)
        send += (size_t)collective->tree->part[input] * collective->part_stride_bytes;
    if (collective->kind == GS_ALLGATHER) element -= collective->count * (size_t)course->rank;
    return send + element * gs_dtype_bytes(collective->dtype);
}
