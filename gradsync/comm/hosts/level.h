// One of the engines inside: a backend that some of the ranks share, driven by its table.
//
// Its ranks are numbers of its own; what it says of them is told in those of the whole. All calls
// but end belong to who moves.
#ifndef GRADSYNC_COMM_HOSTS_LEVEL_H
#define GRADSYNC_COMM_HOSTS_LEVEL_H

#include <stdbool.h>
#include <stdint.h>

#include "gradsync/comm/comm_backend.h"
#include "gradsync/comm/hosts/topology.h"

#define GS_HOSTS_LEVEL_LANES (2 * GS_COMM_MAX_LANES)

typedef struct gs_hosts_level {
    const gs_comm_backend *backend;  // NULL: this rank has none; all that is asked of it is done
    void *state;
    int world_size, rank;
    int ranks[GS_HOSTS_MOST_RANKS];  // in the whole
    uint64_t posted[GS_HOSTS_LEVEL_LANES];
    const uint16_t *shares;  // as said last, by rank of the whole; NULL: equal ones
} gs_hosts_level;

// Of `members`, ascending ranks of the whole, this one among them. They meet at stages of their
// own, by the exchange of `options`; how that went the others have to be told.
//   kind  of level, a letter: with the first member it tells this one's stages from all others'
GS_NODISCARD gs_status gs_hosts_level_open(gs_hosts_level *level, const gs_comm_backend *backend,
                                           char kind, const int *members, int num_members,
                                           const gs_comm_options *options, int num_lanes,
                                           gs_arena *arena, gs_deadline deadline);
// Of all ranks, at the stages of the whole.
GS_NODISCARD gs_status gs_hosts_level_open_whole(gs_hosts_level *level,
                                                 const gs_comm_backend *backend,
                                                 const gs_comm_options *options, gs_stages *stages,
                                                 gs_deadline deadline);
void gs_hosts_level_close(gs_hosts_level *level);

GS_NODISCARD gs_status gs_hosts_level_post(gs_hosts_level *level, int lane,
                                           const gs_collective *collective);
// Of a level of the net, for what is posted from here on; `shares` stay until another is said.
GS_NODISCARD gs_status gs_hosts_level_share(gs_hosts_level *level, const uint16_t *shares);
static inline bool gs_hosts_level_is_done(const gs_hosts_level *level, int lane,
                                          uint64_t sequence) {
    return !level->backend || level->backend->finished(level->state, lane) >= sequence;
}
GS_NODISCARD gs_status gs_hosts_level_progress(gs_hosts_level *level);
// Why it failed, or who did not come, in ranks of the whole.
void gs_hosts_level_explain(gs_hosts_level *level, gs_comm_failure *out);
void gs_hosts_level_abort(gs_hosts_level *level, const char *reason);  // any thread
// Aborted: until nothing of what was posted moves. DEADLINE_EXCEEDED: something does.
GS_NODISCARD gs_status gs_hosts_level_await_stillness(gs_hosts_level *level,
                                                      gs_deadline deadline);

#endif
