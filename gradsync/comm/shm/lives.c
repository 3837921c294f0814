#include "gradsync/comm/shm/lives.h"

#include "core/strbuf.h"
#include "gradsync/comm/waiter.h"

static int find_lingering(gs_shm_segment *segment, int from) {
    for (int i = from; i < segment->world_size; i++) {
        if (i != segment->rank && gs_shm_life_goes_on(segment, i)) return i;
    }
    return segment->world_size;
}

static gs_status explain(gs_shm_segment *segment, gs_comm_failure *lingering, int64_t waited_ns) {
    gs_strbuf names = {0};
    int num_lingering = 0;
    for (int i = find_lingering(segment, 0); i < segment->world_size;
         i = find_lingering(segment, i + 1)) {
        gs_strbuf_printf(&names, "%s%d", num_lingering++ ? ", " : "", i);
        gs_comm_failure_accuse(lingering, i);
    }
    gs_status status = gs_ok();
    if (num_lingering)
        status = gs_error(GS_DEADLINE_EXCEEDED, "rank%s %.100s did not leave within %.1f s",
                          num_lingering == 1 ? "" : "s", gs_strbuf_text(&names),
                          (double)waited_ns / (double)GS_NS_PER_SEC);
    gs_strbuf_release(&names);
    return status;
}

// Who has ended is not asked again: ranks are waited for one after the other.
gs_status gs_shm_wait_lives_ended(gs_shm_segment *segment, gs_comm_failure *lingering,
                                  gs_interrupt *interrupt, gs_deadline deadline) {
    gs_waiter waiter = {.event = &segment->common->event};
    int64_t began_ns = gs_now_ns();
    int rank = find_lingering(segment, 0);
    bool interrupted = false;
    while (rank < segment->world_size && !gs_deadline_passed(deadline) && !interrupted) {
        if (gs_waiter_pause(&waiter, deadline)) interrupted = gs_interrupt_check(interrupt, gs_now_ns());
        rank = find_lingering(segment, rank);
    }
    gs_waiter_reset(&waiter);
    if (rank < segment->world_size && interrupted)
        return gs_error(GS_CANCELLED, "the wait for rank %d to leave was interrupted", rank);
    return rank < segment->world_size ? explain(segment, lingering, gs_now_ns() - began_ns)
                                      : gs_ok();
}
