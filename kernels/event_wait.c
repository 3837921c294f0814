#include "kernels/event_wait.h"

#include "kernels/backend.h"

#define FIRST_SLEEP_NS 5000
#define LONGEST_SLEEP_NS 100000

gs_status gs_event_wait(gs_event *event, const char *what, gs_deadline deadline) {
    int64_t sleep_ns = FIRST_SLEEP_NS;
    for (;;) {
        bool done, is_late = gs_deadline_passed(deadline);
        GS_TRY(gs_status_prefix(gs_event_query(event, &done), "%s", what));
        if (done) return gs_ok();
        if (is_late) return gs_error(GS_DEADLINE_EXCEEDED, "%s: the device did not finish in time", what);
        gs_sleep_ns(sleep_ns);
        if (sleep_ns < LONGEST_SLEEP_NS) sleep_ns *= 2;
    }
}

gs_status gs_stream_wait_until(gs_stream *stream, gs_event *point, const char *what, gs_deadline deadline) {
    GS_TRY(gs_event_wait(point, what, deadline));
    if (stream->backend->take_reports) stream->backend->take_reports(stream);
    return gs_stream_take_error(stream);
}
