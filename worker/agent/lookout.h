// Looks into the checkpoint directories of what runs here, for the time in which no coordinator is heard: what other ranks may
// go by is left there as a sign of life, and what the coordinator may have decided meanwhile is found there, as a fence.
//
// A thread of its own, which may hang with a disk: then what it has seen grows old. The agent asks it, and acts.
#ifndef WORKER_AGENT_LOOKOUT_H
#define WORKER_AGENT_LOOKOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef struct gs_lookout gs_lookout;

// The ranks of a generation.
typedef struct gs_lookout_place {
    const char *job, *directory, *cluster;
    uint32_t generation;
} gs_lookout_place;

typedef struct gs_lookout_sight {
    bool is_known;    // it has been looked at
    bool is_shared;   // these ranks have raised its fence: a coordinator that sees the directory can tell them something there
    bool is_over;     // others have taken their place
    int64_t seen_ns;  // begin of the last look that found neither that nor an error; 0: none
} gs_lookout_sight;

GS_NODISCARD gs_status gs_lookout_start(gs_lookout **out);
void gs_lookout_stop(gs_lookout *lookout);  // NULL is fine

// What is known of a place, which is looked at from now on, until it is forgotten. `alone`: it is looked at each second, and
// left a sign.
gs_lookout_sight gs_lookout_ask(gs_lookout *lookout, const gs_lookout_place *place, bool alone);
// Places that nobody has asked for since the last call are forgotten. Not by time: an agent that stood still would forget whom it
// holds, and why.
void gs_lookout_forget_unasked(gs_lookout *lookout);

// Whether trainers that hear no coordinator since then stand still. Who does goes on by nothing but a fresh sight: what is not
// known lets nobody go.
bool gs_lookout_holds(const gs_lookout_sight *sight, bool is_held, int64_t alone_since_ns, int64_t now_ns);
// Whether trainers that are not held are led. An agent that woke up then (0: it did not) knows nothing of before: a
// coordinator's welcome tells, which comes behind the orders to kill, or a look at the fence; where there is none of theirs,
// ranks that nobody hears train on.
bool gs_lookout_leads(const gs_lookout_sight *sight, int64_t woke_ns, int64_t now_ns);

#endif
