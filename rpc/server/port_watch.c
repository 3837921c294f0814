#include "rpc/server/port_watch.h"

#include <zmq.h>

#include "core/log.h"

#define MINUTE_NS (60 * GS_NS_PER_SEC)

void gs_port_watch_note(gs_port_watch *watch, int event) {
    if (event == ZMQ_EVENT_ACCEPTED) watch->num_accepted++;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL || event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) watch->num_failed++;
}

bool gs_port_watch_look(gs_port_watch *watch, size_t num_open, size_t num_heard, int64_t now_ns) {
    size_t num_silent = num_open > num_heard ? num_open - num_heard : 0;
    if (num_silent <= GS_MANY_SILENT) watch->crowded_ns = 0;
    else if (!watch->crowded_ns) watch->crowded_ns = now_ns;
    if (!watch->minute_ns || now_ns - watch->minute_ns >= MINUTE_NS) {
        watch->minute_ns = now_ns;
        watch->minute_failed = watch->num_failed;
    }
    bool is_crowd = watch->crowded_ns && now_ns - watch->crowded_ns >= GS_MANY_SILENT_NS;
    uint64_t num_failed = watch->num_failed - watch->minute_failed;
    if (!is_crowd && num_failed <= GS_MANY_FAILED) return false;
    if (watch->warned_ns && now_ns - watch->warned_ns < MINUTE_NS) return false;
    watch->warned_ns = now_ns;
    gs_log_warn("strangers at the control port: a packet filter limits how often an address may come", "silent=%zu heard=%zu handshakes_failed=%llu",
                num_silent, num_heard, (unsigned long long)num_failed);
    return true;
}
