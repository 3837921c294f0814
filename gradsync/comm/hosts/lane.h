// The collectives of a lane in their order, each one on its way through two levels.
//
// Sums without a tree and gathers are *composed*. They travel in *chunks*, several at a time, and
// each goes through four points on each rank:
//   given  the own input lies in a slot that the ranks of this host see, and the rank says so;
//   added  all of the host have given: a rank that drives a column adds its slice of the host's
//          inputs, in the order of ranks, and posts it to its column, which adds those of the hosts
//          in their order and brings the sum back into the rank's slot; of a gather it packs what
//          ranks of its host gave;
//   told   the column is through: the rank says so;
//   taken  all of the host have told: every rank copies the chunk out of the slots of those that
//          drive.
// What is small has one slice, which the first of each host drives: the fewest messages.
//
// So the sum of an element is (inputs of the first host) + (of the second) + …, wherever it lies
// and however it is cut, and whoever wants it: reduces and reduce-scatters have the bits of the
// all-reduce. It is stored over the input when all of it is there, so a collective that
// fails leaves the own inputs as they were. All else is delegated to the net of all ranks.
//
// All of it belongs to who moves, but what is said to be the owner's or anybody's.
#ifndef GRADSYNC_COMM_HOSTS_LANE_H
#define GRADSYNC_COMM_HOSTS_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gradsync/comm/hosts/level.h"
#include "gradsync/comm/hosts/topology.h"

#define GS_HOSTS_MAX_POSTED 1024
#define GS_HOSTS_SLOTS 4
#define GS_HOSTS_CHUNK_BYTES ((size_t)1 << 20)
#define GS_HOSTS_LANE_BYTES (GS_HOSTS_SLOTS * GS_HOSTS_CHUNK_BYTES)

// What the lanes of a communicator share.
typedef struct gs_hosts_party {
    int rank;
    uint32_t generation;
    gs_hosts_topology topology;
    int place, host_size;                        // among the ranks of this host
    gs_hosts_level host, column, all;            // host, column: of those that have one
    unsigned char *slots[GS_HOSTS_MOST_RANKS];   // of each rank of this host, for all lanes
    // The order of hosts in the own column; NULL: it is that of its ranks.
    const gs_reduce_tree *order;
} gs_hosts_party;

typedef struct gs_hosts_work {
    // The owner's until posted.
    gs_collective collective;
    bool is_composed, is_small;
    const uint16_t *shares;    // by rank, borrowed; NULL: equal ones
    uint32_t num_chunks;
    uint64_t digest;           // of its claim: what ranks compare
    uint64_t sequence_of_all;  // delegated: in the net of all ranks
    _Atomic int64_t posted_ns, all_arrived_ns, finished_ns;
} gs_hosts_work;

typedef struct gs_hosts_cursor {
    uint64_t sequence;  // of the collective that is next, or begun
    uint32_t chunk;     // of it
    uint64_t count;     // chunks of the lane that are past this point
} gs_hosts_cursor;

typedef struct gs_hosts_lane {
    int number;
    _Atomic uint64_t posted;    // by the owner
    _Atomic uint64_t finished;  // by who moves
    gs_hosts_party *party;
    uint64_t delegated;  // collectives looked at: those up to here that are not composed are posted
    gs_hosts_cursor given, added, told, taken;
    uint64_t column_sequences[GS_HOSTS_SLOTS];  // of the chunk in a slot; 0: none
    unsigned char *partial;  // owned: what a host's inputs add up to, of each slot
    unsigned char *hold;     // owned: the result, until it may lie over the input
    size_t hold_bytes;
    gs_hosts_work works[GS_HOSTS_MAX_POSTED];
} gs_hosts_lane;

GS_NODISCARD gs_status gs_hosts_lane_open(gs_hosts_lane *lane, gs_hosts_party *party, int number);
void gs_hosts_lane_close(gs_hosts_lane *lane);

// The owner.
//   shares  by rank; stay until the lane is closed
void gs_hosts_lane_post(gs_hosts_lane *lane, uint64_t sequence, const gs_collective *collective,
                        const uint16_t *shares);

// All that can be done now. *moved: something was.
//   at  the level that an error is of; NULL: this rank's own
GS_NODISCARD gs_status gs_hosts_lane_move(gs_hosts_lane *lane, gs_device *device, bool *moved,
                                          gs_hosts_level **at);

// Anybody's.
bool gs_hosts_is_composed(const gs_collective *collective);
bool gs_hosts_is_small(const gs_hosts_party *party, const gs_collective *collective);
static inline uint64_t gs_hosts_lane_finished(const gs_hosts_lane *lane) {
    return atomic_load_explicit(&lane->finished, memory_order_acquire);
}
static inline uint64_t gs_hosts_lane_posted(const gs_hosts_lane *lane) {
    return atomic_load_explicit(&lane->posted, memory_order_acquire);
}
static inline bool gs_hosts_lane_has_work(const gs_hosts_lane *lane) {
    return gs_hosts_lane_posted(lane) != gs_hosts_lane_finished(lane);
}
gs_work_times gs_hosts_lane_times(const gs_hosts_lane *lane, uint64_t sequence);

// The first that is not finished; NULL: none.
const gs_hosts_work *gs_hosts_lane_first(const gs_hosts_lane *lane);
// Which level the first waits for, and where in it: not done there. NULL: none, it can move.
gs_hosts_level *gs_hosts_lane_awaited(gs_hosts_lane *lane, int *inner_lane, uint64_t *sequence);

#endif
