#include "worker/control/lead.h"

#include "core/boot_clock.h"
#include "core/clock.h"
#include "core/log.h"

#define TURN_NS (20 * GS_NS_PER_MS)
#define WAKING_SECONDS 5.0

void gs_lead_begin(gs_lead *lead, const gs_launch_page *page, double limit_seconds) {
    lead->page = page;
    atomic_store(&lead->answered_ns, gs_boot_ns());
    atomic_store(&lead->limit_seconds, limit_seconds);
}

// The clock is read last: whoever is suspended between these lines finds both old.
int64_t gs_lead_lost_since(const gs_lead *lead) {
    if (!lead->page) return 0;
    int64_t pulse_ns = atomic_load(&lead->page->pulse_ns), answered_ns = atomic_load(&lead->answered_ns);
    int64_t led_ns = pulse_ns > answered_ns ? pulse_ns : answered_ns;
    return gs_boot_ns() - led_ns >= GS_LIFE_UNSEEN_NS ? led_ns : 0;
}

gs_status gs_lead_await(const gs_lead *lead, gs_mailbox *mailbox) {
    int64_t lost_ns = gs_lead_lost_since(lead), begin_ns = gs_boot_ns(), awake_ns = gs_now_ns();
    if (!lost_ns) return gs_ok();
    gs_log_warn("this rank stands still: neither its agent nor a coordinator is there", "seconds=%.1f", gs_seconds_since_boot_ns(lost_ns));
    do {
        double limit = atomic_load(&lead->limit_seconds), seconds = gs_seconds_since_boot_ns(lost_ns);
        GS_TRY(gs_mailbox_check(mailbox));
        // Who has just woken gives the others of this host the time to do so.
        bool is_awake = gs_seconds_since(awake_ns) >= WAKING_SECONDS;
        if (limit > 0 && seconds >= limit + GS_STAND_MARGIN_SECONDS && is_awake)
            return gs_error(GS_UNAVAILABLE, "neither the agent nor a coordinator was there for %.0f s", seconds);
        gs_sleep_ns(TURN_NS);
        lost_ns = gs_lead_lost_since(lead);
    } while (lost_ns);
    gs_log_warn("this rank goes on", "stood_seconds=%.1f", gs_seconds_since_boot_ns(begin_ns));
    return gs_ok();
}
