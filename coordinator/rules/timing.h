// Every deadline of the coordinator, in one table whose order is checked at start.
#ifndef COORDINATOR_RULES_TIMING_H
#define COORDINATOR_RULES_TIMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct gs_timing {
    int64_t tick_ns;               // deadlines are looked at that often
    int64_t heartbeat_ns;          // what members are told to keep
    int64_t report_ns;             // the same of what they tell of their steps
    int64_t suspect_ns;            // the loop itself stood still that long: forget all ages
    int64_t dead_ns;               // silence without progress of the job
    int64_t hang_least_ns;         // no progress although heartbeats come
    int64_t hang_first_ns;         // the same, during the first steps of a generation
    int64_t hello_ns;              // from start_rank to Hello: loading, self-test
    int64_t prepare_ns;            // from prepare to all Ready
    int64_t connect_ns;            // from start to all CommUp
    int64_t settle_ns;             // from abort to all Settle
    int64_t leave_ns;              // from settled to exit, without a checkpoint to write
    int64_t save_ns;               // the same with one
    int64_t drain_ns;              // from drain to exit, unless the request says otherwise
    int64_t grace_ns;              // after a restart of the coordinator, for members
    int64_t agent_grace_ns;        // the same when the agent lists the trainer as running
    int64_t agent_dead_ns;         // silence of an agent
    int64_t absent_ns;             // silence of all ranks of a job and their agents, where nothing was closed: they are looked for
    int64_t longest_pace_ns;       // that another life of the coordinator may have told anybody
    // Of ranks that nobody hears: they train on that long, save and stop. Until then nobody takes their place.
    int64_t orphan_ns;
    int64_t tell_place_ns;         // from an agent's hello to its word where it sees checkpoints; nothing is started there before
    int64_t disk_away_ns;          // silence of the disk of a job's checkpoints, while somebody waits for it
    int64_t flush_ns;              // states written behind at most that late
    int64_t series_keep_ns;        // metrics of a job after its end
    size_t ranks_a_tick;           // runs take turns, so that a tick looks at about so many of their ranks; 0: at all
} gs_timing;

extern const gs_timing gs_timing_default;

// How often one of them is to be heard: less often when they are many, so that all together cost no more.
typedef struct gs_cadence {
    int64_t heartbeat_ns;  // of an agent or a member
    int64_t report_ns;     // of a member's steps
} gs_cadence;

// In so many ticks each run has its turn. With that many ranks they are heard so seldom that no deadline is missed by it.
size_t gs_timing_turns(const gs_timing *timing, size_t num_members);

gs_cadence gs_timing_cadence(const gs_timing *timing, size_t num_agents, size_t num_members);
// How seldom connections are told to be heard where they are so many: together no more than this. 0: as always.
#define GS_PINGS_PER_SEC 2500
int64_t gs_timing_pace(size_t num_connections);
// How much later than it was made progress is written down: as seldom as ranks tell of it, where they are many.
int64_t gs_cadence_progress_ns(gs_cadence cadence);
// Too far apart to be left so.
bool gs_cadence_differs(gs_cadence told, gs_cadence wanted);

// INVALID_ARGUMENT names the two values that are in the wrong order.
GS_NODISCARD gs_status gs_timing_check(const gs_timing *timing);

#endif
