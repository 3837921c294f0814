// What each way of sending a bucket would take and would lose, as measured, and which one is taken: the word of hook
// "auto". A pure function of numbers that all ranks have agreed on, so all of them come to the same.
//
// The quickest of those whose error is within the budget is taken. Compression has to gain a tenth over plain sums, and
// another way a twentieth over the one in use: what differs by less differs from measurement to measurement.
#ifndef CORE_HOOK_OFFERS_H
#define CORE_HOOK_OFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"

GS_BEGIN_DECLS

// Wire format (rpc/plan/offers_message.h): append, never reorder.
typedef enum gs_offer_kind {
    GS_OFFER_ALLREDUCE = 0,
    GS_OFFER_FP16,
    GS_OFFER_BF16,
    GS_OFFER_INT8,
    GS_NUM_OFFERS
} gs_offer_kind;

// The library's hooks that send the same.
extern const char *const gs_offer_words[GS_NUM_OFFERS];

// Of one bucket.
typedef struct gs_hook_offers {
    int chosen;                     // gs_offer_kind
    int64_t step;                   // whose gradients were looked at; -1: none as yet
    double seconds[GS_NUM_OFFERS];  // of the slowest rank, work before and behind included; 0: not offered
    double errors[GS_NUM_OFFERS];   // |sent − meant| / |meant| of the rank that loses most; below 0: not measured
    // Of a step, with buckets compressed and with plain sums, where both were tried; 0: they were not.
    double with_seconds, without_seconds;
    bool is_tried;  // plain sums, to see what steps take without compression, or because it did not show there
} gs_hook_offers;

// The one to take from now on, where `chosen` is in use. error_budget: as `errors`.
int gs_hook_offers_choose(const gs_hook_offers *offers, double error_budget);
// Why it is `chosen`, in a sentence.
void gs_hook_offers_explain(char *text, size_t text_bytes, const gs_hook_offers *offers, double error_budget);

GS_END_DECLS

#endif
