#include "coordinator/observe/hosts/left_mark.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/log.h"
#include "rpc/checkpoint/place_mark.h"

#define AGAIN_NS (60 * GS_NS_PER_SEC)
#define SEEN_NS (15 * GS_NS_PER_SEC)  // workers look every few seconds, and a look may be under way

struct gs_left_mark {
    gs_write base;
    gs_writer *writer;
    char directory[1024], cluster[48];
    uint64_t life;
    bool is_left, is_asked;
    int64_t again_ns, seen_ns;  // when it is left the next time; from when on it is to be seen
};

static gs_status leave(gs_write *base, gs_job_store *store) {
    (void)store;
    const gs_left_mark *mark = (const gs_left_mark *)base;
    return gs_place_mark_leave(mark->directory, mark->cluster, mark->life);
}

static void was_left(gs_write *base, gs_status status) {
    gs_left_mark *mark = (gs_left_mark *)base;
    int64_t now_ns = gs_now_ns();
    mark->is_asked = false;
    mark->is_left = !status.code;
    mark->again_ns = now_ns + AGAIN_NS;
    mark->seen_ns = now_ns + SEEN_NS;
    if (status.code) gs_log_warn("no mark left among the checkpoints: workers cannot tell whether they see them", "reason=\"%s\"", status.message);
    else gs_log_info("mark left among the checkpoints", "directory=%s", mark->directory);
}

gs_left_mark *gs_left_mark_create(gs_writer *writer, const char *directory, const char *cluster, uint64_t life) {
    gs_left_mark *mark = calloc(1, sizeof *mark);
    if (!mark) return NULL;
    mark->writer = writer;
    mark->life = life;
    snprintf(mark->directory, sizeof mark->directory, "%s", directory);
    snprintf(mark->cluster, sizeof mark->cluster, "%s", cluster);
    was_left(&mark->base, leave(&mark->base, NULL));
    if (mark->is_left) mark->seen_ns = 0;  // before anybody could look
    return mark;
}

void gs_left_mark_destroy(gs_left_mark *mark) { free(mark); }

void gs_left_mark_tick(gs_left_mark *mark, int64_t now_ns) {
    if (!mark || mark->is_left || mark->is_asked || now_ns < mark->again_ns) return;
    mark->is_asked = true;
    mark->base = (gs_write){.run = leave, .done = was_left, .lane = GS_LANE_LOOKS};
    gs_writer_submit(mark->writer, &mark->base);
}

bool gs_left_mark_is_to_be_seen(const gs_left_mark *mark, int64_t now_ns) {
    return !mark || (mark->is_left && now_ns >= mark->seen_ns);
}
