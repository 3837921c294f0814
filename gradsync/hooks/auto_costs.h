// What each way of sending a bucket takes on this link and these processors: measured once for each communicator with
// the collectives and kernels that would run, kept right by the times of those that do.
//
// What goes beside a bucket that is compressed, in a sum of its own, is timed with it. A way takes start + bytes · (link + work); of the slowest rank, so all ranks have the same numbers. Live times move what
// the link takes, for all ways alike: what one of them shows holds for the others; and what kernels take, which finds another
// memory in a step than in a trial that lies in a cache. Ranks that share memory are offered plain
// sums alone: fewer bytes save nothing there.
#ifndef GRADSYNC_HOOKS_AUTO_COSTS_H
#define GRADSYNC_HOOKS_AUTO_COSTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/hook_offers.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"

#define GS_AUTO_ROW_COUNT ((size_t)512)  // elements that share a scale
#define GS_AUTO_MOST_RANKS 8             // in larger worlds codes of all ranks for all are more bytes than sums
#define GS_AUTO_RING 8                   // steps whose times say how the link is now

typedef struct gs_auto_cost {
    double start_seconds, byte_seconds;  // of the collective; bytes are those of the gradients
    double work_byte_seconds;            // of this rank's kernels before and behind it
} gs_auto_cost;

// What something takes now, by what it took when it was measured.
typedef struct gs_auto_drift {
    double agreed;          // of the slowest rank; what is forecast with
    double took, expected;  // of the step in hand
    double ratios[GS_AUTO_RING];  // of the last steps that had any of it
    int num_ratios;
} gs_auto_drift;

typedef struct gs_auto_costs {
    gs_auto_cost kinds[GS_NUM_OFFERS];
    bool is_offered[GS_NUM_OFFERS];
    gs_auto_drift link, work;
} gs_auto_costs;

// Whether ranks are offered anything but plain sums: they share no memory, and there are several.
bool gs_auto_costs_differ(const gs_comm *comm);
// Collective. Takes some tenths of a second on a link of 100 Mbit/s and more, and some MB meanwhile.
//   num_elements  of all buckets
//   beside_count  elements that go as they are, in a small sum of their own beside all that is not a plain sum; 0: there is none
GS_NODISCARD gs_status gs_auto_costs_measure(gs_auto_costs *costs, gs_comm *comm, size_t num_elements, size_t beside_count,
                                             gs_deadline deadline);

// Of a bucket of so many bytes, beside each other; 0: not offered.
void gs_auto_costs_forecast(const gs_auto_costs *costs, double seconds[GS_NUM_OFFERS], size_t bytes);

// A collective, or this rank's work beside it, took so long in this step. Behind the last one the step is closed.
void gs_auto_costs_note_link(gs_auto_costs *costs, int kind, size_t bytes, double seconds);
void gs_auto_costs_note_work(gs_auto_costs *costs, int kind, size_t bytes, double seconds);
void gs_auto_costs_close_step(gs_auto_costs *costs, bool counts);
// This rank's word, and what all ranks agreed on.
double gs_auto_drift_now(const gs_auto_drift *drift);
void gs_auto_drift_agree(gs_auto_drift *drift, double agreed);

#endif
