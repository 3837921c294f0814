// What rank 0 tells of hook "auto": of each bucket of a plan how it travels, what each way would take and lose.
#ifndef RPC_PLAN_OFFERS_MESSAGE_H
#define RPC_PLAN_OFFERS_MESSAGE_H

#include <stddef.h>

#include "core/digest.h"
#include "core/hook_offers.h"
#include "core/status.h"
#include "rpc/json/json.h"

#define GS_OFFERS_MAX_BUCKETS 1024  // of a plan of more the first ones are told

typedef struct gs_plan_offers {
    char plan_hash[GS_DIGEST_TEXT_LEN];
    gs_hook_offers *buckets;  // owned
    size_t num_buckets;       // 0: nothing was told
} gs_plan_offers;

void gs_plan_offers_release(gs_plan_offers *offers);

gs_json *gs_offers_message_encode(const gs_plan_offers *offers);
// INVALID_ARGUMENT names the member.
GS_NODISCARD gs_status gs_offers_message_decode(gs_plan_offers *out, const gs_json *message);

#endif
