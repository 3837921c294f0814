// A collective is a value: what moves, from where to where, and what ranks compare before it does.
#ifndef GRADSYNC_COMM_COLLECTIVE_H
#define GRADSYNC_COMM_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/dtype.h"
#include "kernels/kernels.h"

GS_BEGIN_DECLS

typedef enum gs_collective_kind {
    GS_COLLECTIVE_UNSET = 0,
    GS_ALLREDUCE,       // recv (count) = op over ranks of send (count)
    GS_REDUCE,          // the same at `root` only; elsewhere recv may be NULL
    GS_REDUCE_SCATTER,  // send (world · count) → recv (count): the rank's own part; in place: recv
                        // is that part of send
    GS_ALLGATHER,  // send (count) → recv (world · count); in place: send is that part of recv
    GS_BROADCAST,  // recv (count) = root's send; at the root send may be recv
    GS_BARRIER
} gs_collective_kind;

// The inputs of a sum along a fixed tree (exact mode): in order of logical shards, each the partial
// sum that one rank holds as part number `part`. The same on all ranks.
typedef struct gs_reduce_tree {
    int num_inputs;  // ≤ GS_REDUCE_MAX_INPUTS
    const int *rank, *part;
    const uint8_t *merges;  // postfix, as in gs_reduction
} gs_reduce_tree;

typedef struct gs_collective {
    gs_collective_kind kind;
    const void *send;  // in place: send == recv; no other overlap
    void *recv;
    size_t count;  // elements
    gs_dtype dtype;
    gs_reduce_op op;
    int root;
    double scale;  // of the result; 0 means 1
    // Of the three that reduce: this rank has inputs of its own, as the tree says, each what `send`
    // is without one; number p starts at send + p · part_stride_bytes. The bits of a reduce and of
    // a reduce-scatter are those of the all-reduce. recv is outside the inputs, or in place in
    // number 0. NULL: one input, ranks added in order. Borrowed, with its arrays, until done.
    const gs_reduce_tree *tree;
    size_t part_stride_bytes;
    // For the check before the first byte and for messages; equal on all ranks.
    int64_t step;
    int32_t bucket;      // -1: none
    int32_t num_active;  // ranks that are to have data in this step (join.h); 0: not said
    int lane;            // its order is that of its lane's collectives; no order between lanes
    // Only sums of fp32 and fp64 without a tree: GS_FP16 or GS_BF16 are as if 16 bits
    // had been sent. Every contribution · wire_scale is rounded to it before it is added, in fp32,
    // and the scaled sum once more; what is stored has the buffer's dtype.
    gs_dtype wire_dtype;
    float wire_scale;  // 0 means 1
    bool wire_scale_after;  // rounded, multiplied by wire_scale, rounded again: what others divide in 16 bits
    // As many elements as `send` has, of the wire dtype, borrowed until done, for backends that do send
    // them (gs_wire_memory); others do not look at it.
    void *wire;
} gs_collective;

typedef struct gs_work {
    uint64_t sequence;  // of the collective in its lane, from 1
    int lane;
} gs_work;

// "collective 17" or "collective 17 of lane 2", where nothing else is known of it.
void gs_work_name(char *text, size_t text_bytes, gs_work work);

// When a posted collective moved; on the clock of gs_now_ns, 0 when not reached.
typedef struct gs_work_times {
    int64_t posted_ns, all_arrived_ns, started_ns, finished_ns;
} gs_work_times;

static inline bool gs_collective_scatters_tree(const gs_collective *collective) {
    return collective->kind == GS_REDUCE_SCATTER && collective->tree;
}

static inline bool gs_collective_reduces(const gs_collective *collective) {
    return collective->kind == GS_ALLREDUCE || collective->kind == GS_REDUCE ||
           collective->kind == GS_REDUCE_SCATTER;
}

// Bytes of one part of the input: all of it, except for reduce-scatter and trees. Of a
// reduce-scatter along a tree each input of a rank is a row of such parts, one for each rank.
static inline size_t gs_collective_part_bytes(const gs_collective *collective) {
    return collective->count * gs_dtype_bytes(collective->dtype);
}

// What travels: the wire dtype where there is one.
static inline gs_dtype gs_collective_sent_dtype(const gs_collective *collective) {
    return collective->wire_dtype ? collective->wire_dtype : collective->dtype;
}

static inline size_t gs_collective_sent_bytes(const gs_collective *collective) {
    return collective->count * gs_dtype_bytes(gs_collective_sent_dtype(collective));
}

static inline float gs_collective_wire_scale(const gs_collective *collective) {
    return collective->wire_scale != 0 ? collective->wire_scale : 1;
}

// The elements that go on the wire, rounded as the wire's dtype and scale say; `out` is not `in`.
void gs_collective_cast_to_wire(const gs_collective *collective, const gs_kernels *kernels,
                                gs_stream *stream, void *out, const void *in, size_t count);

// How many parts the input of a rank has at most: equal on all ranks, though some may have fewer.
size_t gs_collective_num_parts(const gs_collective *collective, int world_size);

const char *gs_collective_kind_name(gs_collective_kind kind);  // "all-reduce"
// "bucket 3, step 5" or "collective 17, step 5"; of another lane than 0 "bucket 3 in lane 2, step 5" or
// "collective 17 of lane 2, step 5".
void gs_collective_name(char *text, size_t text_bytes, uint64_t sequence,
                        const gs_collective *collective);

GS_END_DECLS

// Of backends:
// What a transport knows of the connection to a peer. 0 is not known.
typedef struct gs_comm_link {
    uint64_t sent_bytes, received_bytes;  // of messages, headers included
    uint64_t retransmits;                 // segments of TCP that were sent again
    int64_t waited_ns;      // that collectives stood here for want of what is the peer's alone
    int64_t round_trip_ns;  // smoothed, of what the kernels answer each other
    int64_t least_round_trip_ns;
    double bytes_per_sec;  // that reached the peer while there was enough to send: the most of the
                           // last seconds
    double usual_bytes_per_sec;  // likewise, the median of the last looks at which it had been used
} gs_comm_link;

// What a rank says about one of its collectives before others may touch a byte of it: no padding, for
// claims are compared as bytes.
typedef struct gs_collective_claim {
    int64_t step;
    uint64_t count, tree_digest;
    double scale;
    int32_t bucket;
    uint32_t generation;
    uint8_t kind, dtype, op, root;
    int32_t num_active;
    float wire_scale;
    uint8_t wire_dtype, wire_scale_after;
    uint16_t shares;  // of those that say how it is cut; 0: none do
} gs_collective_claim;

gs_collective_claim gs_collective_claim_of(const gs_collective *collective, uint32_t generation);
// "all-reduce sum 1024 x fp32 root 0 of bucket 3, step 5, generation 1"
void gs_collective_claim_describe(char *text, size_t text_bytes, const gs_collective_claim *claim);
// Which of several was meant, by its place: what most ranks said; between equals, what the lowest did.
int gs_collective_claims_find_meant(const gs_collective_claim *const *claims, int num_claims);

#endif
