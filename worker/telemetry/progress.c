#include "worker/telemetry/progress.h"

#include "core/clock.h"

const char *gs_trainer_phase_name(gs_trainer_phase phase) {
    static const char *const names[GS_NUM_PHASES] = {
        "idle",   "data",      "forward",  "backward",  "reduce",
        "commit", "optimizer", "evaluate", "checkpoint"};
    return phase >= 0 && phase < GS_NUM_PHASES ? names[phase] : "idle";
}

void gs_progress_release(gs_progress *progress) {
    gs_timeline_destroy(progress->timeline);
    progress->timeline = NULL;
}

void gs_progress_enter(gs_progress *progress, gs_trainer_phase phase) {
    atomic_store_explicit(&progress->phase, phase, memory_order_relaxed);
}

double gs_progress_note(const gs_progress *progress, gs_span_kind kind, int64_t begin_ns) {
    gs_timeline_add(progress->timeline, kind, begin_ns);
    return gs_seconds_since(begin_ns);
}
