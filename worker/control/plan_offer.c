#include "worker/control/plan_offer.h"

#include "rpc/plan/plan_message.h"

gs_status gs_plan_offer_decode(gs_plan_offer *out, const gs_json *item, const gs_param_spec *params,
                               size_t num_params) {
    int64_t generation, revision;
    const gs_json *plan = gs_json_get(item, "plan");
    *out = (gs_plan_offer){0};
    GS_TRY(gs_json_read_int(&generation, item, "generation", 1, UINT32_MAX));
    GS_TRY(gs_json_read_int(&revision, plan, "revision", 1, INT32_MAX));
    GS_TRY(gs_plan_message_decode(&out->plan, plan, params, num_params));
    out->generation = (uint32_t)generation;
    out->revision = (int)revision;
    out->digest = gs_digest_fold(gs_bucket_plan_digest(&out->plan));
    return gs_ok();
}

void gs_plan_offer_release(gs_plan_offer *offer) {
    if (!offer) return;
    gs_bucket_plan_release(&offer->plan);
    *offer = (gs_plan_offer){0};
}
