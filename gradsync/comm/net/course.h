// The course of a collective: which elements travel from which rank to which, in what pieces.
// Numbers alone.
//
// The elements of a collective are a *row*: of a reduce-scatter and an all-gather the parts of all
// ranks, one behind the other; of all others the one part. A row is cut into a *slice* for each
// rank, its owner: ranks send the owner their *inputs*, it adds them, in the order of ranks or
// along the tree, whoever comes first, and sends the *result* to those that want it. A slice is cut
// into *segments*, and all of it moves segment by segment. What is small is not cut: everybody gets
// all inputs that it needs and adds them for itself.
//
// So each rank sends and receives as many bytes as in a ring, in two hops instead of 2(N - 1); a
// sum has the same bits as in shared memory, and they depend neither on the bucket that an element
// travels in nor on who owns its slice; and 16 bits on the wire are rounded once on the way to the
// owner and once on the way back.
//
// Owners have equal slices, unless *shares* say other ones: between two ranks that own little, little
// travels. A reduce-scatter and an all-gather have the parts that they have.
#ifndef GRADSYNC_COMM_NET_COURSE_H
#define GRADSYNC_COMM_NET_COURSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradsync/comm/collective.h"
#include "gradsync/comm/net/debts.h"

// Segments of a slice for which an owner has room at a time.
#define GS_NET_WINDOW 4
// Everybody's inputs of one that is not cut, as one rank receives them.
#define GS_NET_SMALL_BYTES ((size_t)65536)

// How much of what is cut each rank owns, as a part of the whole.
typedef struct gs_net_shares {
    struct gs_net_shares *next;                // of its communicator, which owns them
    uint32_t before[GS_NET_MOST_RANKS + 1];    // of all ranks below; the last one is the whole
    uint16_t digest;                           // never 0
} gs_net_shares;

typedef struct gs_net_course {
    const gs_collective *collective;  // borrows
    const gs_net_shares *shares;      // borrows; NULL: equal ones
    int rank, world_size;
    bool is_small;
    bool reduces;
    size_t element_bytes;  // as sent
    size_t segment_count;
    int num_inputs;  // of each slice, of all ranks: what the owner adds
} gs_net_course;

typedef struct gs_net_range {
    size_t first, count;  // elements of the row
} gs_net_range;

gs_net_course gs_net_course_of(const gs_collective *collective, int rank, int world_size);

size_t gs_net_course_row_count(const gs_net_course *course);
gs_net_range gs_net_course_slice(const gs_net_course *course, int owner);
uint32_t gs_net_course_num_segments(const gs_net_course *course, int owner);
gs_net_range gs_net_course_segment(const gs_net_course *course, int owner, uint32_t segment);
// How many inputs of a slice are of `rank`.
int gs_net_course_num_inputs_of(const gs_net_course *course, int rank, int owner);
// The rank that input `input` of a slice is of.
int gs_net_course_rank_of_input(const gs_net_course *course, int input, int owner);
// Whether the result of a slice is wanted by `rank`.
bool gs_net_course_wants(const gs_net_course *course, int rank, int owner);
// Where nothing is cut: of each of its inputs, what `from` says to `to`.
gs_net_range gs_net_course_said(const gs_net_course *course, int from, int to);

// Where this rank has its own input of an element, in its buffers; the dtype there is the
// collective's.
const unsigned char *gs_net_course_own_input(const gs_net_course *course, int input,
                                             size_t element);
// What this rank receives of the row; recv begins with its first element.
gs_net_range gs_net_course_received(const gs_net_course *course);

#endif
