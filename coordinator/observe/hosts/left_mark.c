#include "coordinator/observe/hosts/left_mark.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/log.h"

#define AGAIN_NS (60 * GS_NS_PER_SEC)
#define AWAY_AGAIN_NS (2 * GS_NS_PER_SEC)
#define SEEN_NS (15 * GS_NS_PER_SEC)  // workers look every few seconds, and a look may be under way

struct gs_left_mark {
    gs_write base;
    gs_writer *writer;
    gs_marked_root *root;
    const gs_agent_table *agents;
    bool is_left, is_asked, is_away;
    int64_t again_ns, seen_ns;  // when it is left the next time; from when on it is to be seen
};

static gs_status leave(gs_write *base, gs_job_store *store) {
    (void)store;
    return gs_marked_root_leave(((const gs_left_mark *)base)->root);
}

// A disk that is away is spoken of once.
static void tell(const gs_left_mark *mark, bool is_away, gs_status status) {
    if (!status.code) gs_log_info("mark left among the checkpoints", "was_away=%d", mark->is_away);
    else if (is_away && !mark->is_away) gs_log_error("checkpoints are away", "reason=\"%s\"", status.message);
    else if (!is_away) gs_log_warn("no mark left among the checkpoints: workers cannot tell whether they see them", "reason=\"%s\"", status.message);
}

static void was_left(gs_write *base, gs_status status) {
    gs_left_mark *mark = (gs_left_mark *)base;
    int64_t now_ns = gs_now_ns();
    gs_status away = gs_marked_root_check(mark->root);
    tell(mark, away.code != GS_OK, away.code ? away : status);
    mark->is_asked = false;
    mark->is_left = !status.code;
    mark->is_away = away.code != GS_OK;
    mark->again_ns = now_ns + (mark->is_away ? AWAY_AGAIN_NS : AGAIN_NS);
    mark->seen_ns = mark->agents->count ? now_ns + SEEN_NS : 0;  // before anybody could look
}

gs_left_mark *gs_left_mark_create(gs_writer *writer, gs_marked_root *root, const gs_agent_table *agents) {
    gs_left_mark *mark = calloc(1, sizeof *mark);
    if (!mark) return NULL;
    mark->writer = writer;
    mark->root = root;
    mark->agents = agents;
    gs_left_mark_tick(mark, 0);
    return mark;
}

void gs_left_mark_destroy(gs_left_mark *mark) { free(mark); }

void gs_left_mark_tick(gs_left_mark *mark, int64_t now_ns) {
    if (!mark || mark->is_asked) return;
    gs_status away = mark->is_left ? gs_marked_root_check(mark->root) : gs_ok();
    if (away.code) {  // it went while this life was there
        tell(mark, true, away);
        mark->is_left = false;
        mark->is_away = true;
        mark->again_ns = now_ns + AWAY_AGAIN_NS;
    }
    if (mark->is_left || now_ns < mark->again_ns) return;
    mark->is_asked = true;
    mark->base = (gs_write){.run = leave, .done = was_left, .lane = GS_LANE_LOOKS, .is_unnumbered = true};
    gs_writer_submit(mark->writer, &mark->base);
}

bool gs_left_mark_is_to_be_seen(const gs_left_mark *mark, int64_t now_ns) {
    return !mark || (mark->is_left && now_ns >= mark->seen_ns);
}
