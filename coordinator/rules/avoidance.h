// Which seats a job's next ranks are kept from, because ranks there and others could not work together again and again: a pure
// decision, so that it can be tested alone.
//
// Complaints are edges of a graph, between who could not go on and whom it waited for. Who is wrong no single one tells: the rank
// that hears nobody complains as much as those that do not hear it. Where complaints of two generations meet in one seat, and one of
// the two had hardly begun (a job that gets on between its faults needs no help), seats are taken out until no such edge is left, the one with most others around it first; of equals the one whose worker has most others
// around it, then the one that is accused more often, then the one that joined last. Two ranks that complain about two others of one other worker are a complaint of the workers; three
// seats of a worker are the worker. (The smallest set of vertices that touches all edges is what is looked for; taking the busiest
// first finds it wherever one seat or one worker is the trouble.)
#ifndef COORDINATOR_RULES_AVOIDANCE_H
#define COORDINATOR_RULES_AVOIDANCE_H

#include <stdbool.h>
#include <stdint.h>

#define GS_COMPLAINTS_KEPT 64
#define GS_WHOLE_WORKER (-1)
#define GS_EARLY_STEPS 10

typedef struct gs_seat {
    uint64_t worker;  // a hash of its name
    int slot;         // or GS_WHOLE_WORKER
    int64_t joined_ns;
} gs_seat;

typedef struct gs_complaint {
    gs_seat by, about;  // the same: it complains about itself
    uint32_t generation;
    bool is_early;  // that generation had taken fewer than GS_EARLY_STEPS steps
    int64_t at_ns;
} gs_complaint;

// Of one job, the newest.
typedef struct gs_complaints {
    gs_complaint *items;  // owned, room for GS_COMPLAINTS_KEPT; NULL: there are none
    int count;
} gs_complaints;

void gs_complaints_add(gs_complaints *complaints, const gs_complaint *complaint);
void gs_complaints_release(gs_complaints *complaints);

typedef struct gs_avoidance {
    gs_seat seats[GS_COMPLAINTS_KEPT];
    int count;
} gs_avoidance;

// By the complaints of the ten minutes before `now_ns`.
void gs_avoidance_find(gs_avoidance *out, const gs_complaints *complaints, int64_t now_ns);
bool gs_avoidance_has(const gs_avoidance *avoidance, uint64_t worker, int slot);

#endif
