#include "core/hook_offers.h"

#include <stdbool.h>
#include <stdio.h>

#define WORTH_COMPRESSING 0.9
#define WORTH_A_CHANGE 0.95
#define MS 1e3

const char *const gs_offer_words[GS_NUM_OFFERS] = {"allreduce", "fp16", "bf16", "int8_channel"};

static bool is_offered(const gs_hook_offers *offers, int kind) {
    return kind == GS_OFFER_ALLREDUCE || offers->seconds[kind] > 0;
}

// Plain sums lose nothing. What is not a number is over any budget, and nothing else is within none.
static bool is_within(const gs_hook_offers *offers, int kind, double error_budget) {
    return kind == GS_OFFER_ALLREDUCE || (error_budget > 0 && offers->errors[kind] >= 0 && offers->errors[kind] <= error_budget);
}

static bool may_be(const gs_hook_offers *offers, int kind, double error_budget) {
    return is_offered(offers, kind) && is_within(offers, kind, error_budget) &&
           (kind == GS_OFFER_ALLREDUCE ||
            offers->seconds[kind] < WORTH_COMPRESSING * offers->seconds[GS_OFFER_ALLREDUCE]);
}

static int find_quickest(const gs_hook_offers *offers, double error_budget) {
    int best = GS_OFFER_ALLREDUCE;
    for (int kind = 1; kind < GS_NUM_OFFERS; kind++) {
        if (may_be(offers, kind, error_budget) && offers->seconds[kind] < offers->seconds[best]) best = kind;
    }
    return best;
}

int gs_hook_offers_choose(const gs_hook_offers *offers, double error_budget) {
    int best = find_quickest(offers, error_budget), used = offers->chosen;
    bool stays = used >= 0 && used < GS_NUM_OFFERS && may_be(offers, used, error_budget) &&
                 offers->seconds[best] > WORTH_A_CHANGE * offers->seconds[used];
    // Plain sums are left where a tenth is to be had, as they are taken where it is not.
    return stays && used != GS_OFFER_ALLREDUCE ? used : best;
}

// The quickest that loses too much; GS_OFFER_ALLREDUCE: none does.
static int find_too_lossy(const gs_hook_offers *offers, double error_budget) {
    int best = GS_OFFER_ALLREDUCE;
    double limit = WORTH_COMPRESSING * offers->seconds[GS_OFFER_ALLREDUCE];
    for (int kind = 1; kind < GS_NUM_OFFERS; kind++) {
        if (!is_offered(offers, kind) || is_within(offers, kind, error_budget) || offers->seconds[kind] >= limit)
            continue;
        best = kind;
        limit = offers->seconds[kind];
    }
    return best;
}

static bool offers_anything(const gs_hook_offers *offers) {
    for (int kind = 1; kind < GS_NUM_OFFERS; kind++) {
        if (is_offered(offers, kind)) return true;
    }
    return false;
}

void gs_hook_offers_explain(char *text, size_t text_bytes, const gs_hook_offers *offers, double error_budget) {
    int chosen = offers->chosen, lossy = find_too_lossy(offers, error_budget);
    double plain_ms = MS * offers->seconds[GS_OFFER_ALLREDUCE];
    if (chosen != GS_OFFER_ALLREDUCE) {
        snprintf(text, text_bytes, "%s takes %.3f ms where plain sums take %.3f, and loses %.2g of the gradients, within the budget of %.2g",
                 gs_offer_words[chosen], MS * offers->seconds[chosen], plain_ms, offers->errors[chosen], error_budget);
    } else if (offers->is_tried && offers->without_seconds > 0) {
        snprintf(text, text_bytes, "steps take %.3f ms with compression and %.3f with plain sums: it does not show", MS * offers->with_seconds,
                 MS * offers->without_seconds);
    } else if (offers->is_tried) {
        snprintf(text, text_bytes, "steps took %.3f ms with compression; plain sums are tried beside it", MS * offers->with_seconds);
    } else if (!offers_anything(offers)) {
        snprintf(text, text_bytes, "only plain sums are offered: ranks share memory or are alone, or gradients are fp64");
    } else if (offers->step < 0) {
        snprintf(text, text_bytes, "no gradients of this plan were looked at yet");
    } else if (lossy != GS_OFFER_ALLREDUCE) {
        snprintf(text, text_bytes, "%s would take %.3f ms for %.3f, but loses %.2g of the gradients, over the budget of %.2g",
                 gs_offer_words[lossy], MS * offers->seconds[lossy], plain_ms, offers->errors[lossy], error_budget);
    } else {
        snprintf(text, text_bytes, "plain sums take %.3f ms, and nothing else is quicker by a tenth", plain_ms);
    }
}
