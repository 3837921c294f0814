// What a rank learns of the link between the hosts of its job: what a collective takes, from some at the start and from every
// bucket since; and when its gradients are ready, of which the ranks tell each other the latest now and then.
//
// Only where collectives travel between hosts (or through something that costs as much); otherwise it is nothing and does
// nothing. Compute thread. Which step the ranks share at is counted alike on all of them.
#ifndef WORKER_TELEMETRY_LINK_WATCH_H
#define WORKER_TELEMETRY_LINK_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/bucket/reduce_stats.h"
#include "gradsync/comm/comm.h"
#include "rpc/plan/link_message.h"
#include "worker/telemetry/link_balance.h"

// Steps of which the times of gradients are remembered.
#define GS_LINK_RING 5
// So many collectives in a row that took far too long are no accident: the link has changed.
#define GS_LINK_MOST_HELD_UP 8

typedef struct gs_link_sample {
    double count, bytes, seconds;
} gs_link_sample;

// Costs of collectives: time = count · start + byte · bytes, each weighed by what it should have taken; old ones fade.
typedef struct gs_link_fit {
    double weight, x, xx, y, xy;  // sums
    gs_link_sample anchor;        // a small one, which says the start where trains are all alike; count 0: none
    double spread;                // mean square of what was off, as a share of what was expected
    gs_link_cost cost;
    int64_t num_samples;
    gs_link_sample held_up[GS_LINK_MOST_HELD_UP];  // the last ones, where none came between that was not
    int num_held_up;
} gs_link_fit;

// Whatever it took counts.
void gs_link_fit_calibrate(gs_link_fit *fit, double bytes, double seconds);
// What was held up counts in the range alone, until there are GS_LINK_MOST_HELD_UP in a row: they begin a fit anew.
void gs_link_fit_add(gs_link_fit *fit, double bytes, double seconds);
// The same of `count` that were on their way one behind the other, or at a time: of those nobody can say how much of the time was whose.
void gs_link_fit_add_train(gs_link_fit *fit, double count, double bytes, double seconds);
// Nothing where too little is known.
gs_link_model gs_link_fit_model(const gs_link_fit *fit);

typedef struct gs_link_watch {
    gs_comm *comm;  // borrowed; NULL: there is nothing to watch
    size_t num_params;
    double *ready;   // GS_LINK_RING × num_params; a row for each step, below 0: no gradient
    double *shared;  // what ranks tell each other
    int num_rows;    // steps that were timed
    int64_t num_steps, shared_step, last_end_ns;
    double step_seconds;       // moving average
    double bytes, wire_bytes;  // of all buckets since the last sharing
    gs_link_fit fit;
    gs_link_balance balance;
    size_t trial_bytes;  // that a trial of other shares sums: by what all heard in the calibration, alike on all
} gs_link_watch;

// Collective where the communicator crosses hosts: times some collectives, and shares out what each rank adds where that
// makes them quicker. That takes some tenths of a second at most on a
// link of 100 Mbit/s and more, 1–2 s at 10 Mbit/s, up to 6 s near 1 Mbit/s.
//   timeout_seconds  of each of its collectives; for all of them together it has bounds of its own (link_balance.h), which use up the
//                    deadline of nothing else. The same below
GS_NODISCARD gs_status gs_link_watch_begin(gs_link_watch *out, gs_comm *comm, size_t num_params, double timeout_seconds);
void gs_link_watch_end(gs_link_watch *watch);  // {0} is fine

// A step that was reduced.
void gs_link_watch_note(gs_link_watch *watch, const gs_reduce_stats *stats);
// Before a step: is it one at which the ranks share?
bool gs_link_watch_is_due(const gs_link_watch *watch);
// Collective: shares may be others behind it, and what is known of costs new; the report of all ranks, on each of them; the caller's to release.
GS_NODISCARD gs_status gs_link_watch_share(gs_link_watch *watch, gs_link_report *out, double timeout_seconds);

#endif
