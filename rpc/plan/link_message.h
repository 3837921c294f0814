// What rank 0 tells of the link between the hosts of its job, beside the order of gradients: what collectives take, when
// gradients are ready on the slowest rank, and how each pair of ranks is connected. Records of jobs hold the same.
#ifndef RPC_PLAN_LINK_MESSAGE_H
#define RPC_PLAN_LINK_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "core/link_plan.h"
#include "core/status.h"
#include "rpc/json/json.h"

// Of more pairs the slowest are told.
#define GS_LINK_MAX_PAIRS 32
// Ranks that can add unequal parts.
#define GS_LINK_MAX_SHARES 64

typedef struct gs_link_pair {
    int from, to;              // ranks
    double latency_seconds;    // there and back
    double bytes_per_second;   // 0: not known
    int64_t retransmitted;     // segments, both ways
} gs_link_pair;

// Which rank adds how much of a bucket, and why.
typedef struct gs_link_deal {
    int num_ranks;  // 0: all as much
    uint16_t shares[GS_LINK_MAX_SHARES];
    double seconds_before, seconds;  // that one sum took when these were chosen
    int from, to;                    // ranks that are the reason
    double slow_bytes_per_second, usual_bytes_per_second;
} gs_link_deal;

typedef struct gs_link_report {
    gs_link_model model;    // num_samples 0: nothing was told
    double *ready_seconds;  // owned; by parameter; below 0: it got no gradient
    size_t num_params;
    gs_link_pair pairs[GS_LINK_MAX_PAIRS];
    size_t num_pairs;
    gs_link_deal deal;
} gs_link_report;

void gs_link_report_release(gs_link_report *report);
void gs_link_report_copy(gs_link_report *out, const gs_link_report *report);  // releases what `out` had
bool gs_link_report_equal(const gs_link_report *a, const gs_link_report *b);

// The longest latency and the lowest rate of all pairs; of none zeros.
gs_link_pair gs_link_worst_pair(const gs_link_report *report);

gs_json *gs_link_message_encode(const gs_link_report *report);
// INVALID_ARGUMENT names the member.
GS_NODISCARD gs_status gs_link_message_decode(gs_link_report *out, const gs_json *message);

#endif
