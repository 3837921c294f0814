#include "rpc/server/refusals.h"

#include <string.h>

#include "core/clock.h"

#define MINUTE_NS (60 * GS_NS_PER_SEC)

static void tell(const gs_refusals *refusals, const gs_refusal *facts, uint64_t count) {
    const gs_audit_line line = {.kind = GS_AUDIT_REFUSED, .request_id = "", .method = "CALL", .route = facts->what, .path = "",
                                .token = facts->who, .name = facts->name, .role = facts->role, .from = facts->from,
                                .result = facts->result, .count = count};
    gs_audit_post(refusals->audit, &line);
}

static struct gs_refusals_item *find(gs_refusals *refusals, const char *who) {
    for (size_t i = 0; i < refusals->count; i++)
        if (strcmp(refusals->items[i].facts.who, who) == 0) return &refusals->items[i];
    return NULL;
}

void gs_refusals_note(gs_refusals *refusals, const gs_refusal *facts, int64_t now_ns) {
    if (!refusals->audit) return;
    gs_refusals_tell(refusals, now_ns);
    struct gs_refusals_item *item = find(refusals, facts->who);
    if (item) {
        item->facts = *facts;
        item->num_untold++;
    } else if (refusals->count < GS_REFUSALS_MOST) {
        refusals->items[refusals->count++] = (struct gs_refusals_item){.facts = *facts, .since_ns = now_ns};
        tell(refusals, facts, 1);
    } else if (!refusals->num_others++) {
        refusals->others_since_ns = now_ns;
    }
}

static bool is_over(int64_t since_ns, int64_t now_ns) { return now_ns == INT64_MAX || now_ns - since_ns >= MINUTE_NS; }

void gs_refusals_tell(gs_refusals *refusals, int64_t now_ns) {
    static const gs_refusal others = {.who = "others", .role = "", .what = "connect or call", .result = "refused"};
    for (size_t i = 0; i < refusals->count;) {
        struct gs_refusals_item *item = &refusals->items[i];
        if (!is_over(item->since_ns, now_ns)) {
            i++;
        } else if (item->num_untold && now_ns != INT64_MAX) {
            tell(refusals, &item->facts, item->num_untold);
            item->num_untold = 0;
            item->since_ns = now_ns;
            i++;
        } else {
            if (item->num_untold) tell(refusals, &item->facts, item->num_untold);
            *item = refusals->items[--refusals->count];
        }
    }
    if (!refusals->num_others || !is_over(refusals->others_since_ns, now_ns)) return;
    tell(refusals, &others, refusals->num_others);
    refusals->num_others = 0;
}
