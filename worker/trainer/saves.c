#include "worker/trainer/saves.h"

#include "core/clock.h"
#include "core/log.h"
#include "worker/telemetry/timeline.h"

// A save at the end is waited for this long.
#define FINAL_SAVE_SECONDS 600.0

static void report_save(void *ctx, const gs_checkpoint_result *result) {
    const gs_saves *saves = ctx;
    gs_control *control = saves->control;
    if (result->status.code) {
        char text[300];
        gs_log_warn("checkpoint failed", "job=%s step=%lld cause=%s error=%s", saves->job,
                    (long long)result->step, result->cause,
                    gs_log_quote(text, sizeof text, result->status.message));
    } else {
        gs_log_info("checkpoint written", "job=%s step=%lld name=%s bytes=%llu seconds=%.3f",
                    saves->job, (long long)result->step, result->name,
                    (unsigned long long)result->bytes, result->seconds);
    }
    control->ops->checkpointed(control->ctx, result);
}

static gs_status open_writer(gs_saves *saves) {
    gs_progress_enter(&saves->control->progress, GS_PHASE_CHECKPOINT);
    if (saves->writer) return gs_ok();
    gs_checkpoint_writer_options options = {.directory = saves->directory,
                                            .job = saves->job,
                                            .spec = saves->spec,
                                            .state = saves->state,
                                            .done = report_save,
                                            .ctx = saves};
    return gs_checkpoint_writer_create(&saves->writer, &options);
}

static gs_status start_periodic(gs_saves *saves, int world_size) {
    GS_TRY(open_writer(saves));
    return gs_checkpoint_writer_start_save(saves->writer, "periodic", world_size, (gs_deadline){0});
}

bool gs_saves_await(gs_saves *saves, gs_deadline deadline) {
    return !saves->writer ||
           gs_checkpoint_writer_wait(saves->writer, deadline).code != GS_DEADLINE_EXCEEDED;
}

void gs_saves_release(gs_saves *saves) {
    gs_checkpoint_writer_destroy(saves->writer);
    saves->writer = NULL;
}

// Told by the ranks' own count of steps. The save at the end of a run is its last.
static bool is_due(const gs_saves *saves) {
    int64_t step = saves->state->position.step, every = saves->spec->checkpoint.every_steps;
    return every != 0 && step % every == 0 && step < saves->spec->steps.target;
}

double gs_saves_when_due(gs_saves *saves, int world_size) {
    if (!is_due(saves)) return 0;
    int64_t begin_ns = gs_now_ns();
    gs_status status = start_periodic(saves, world_size);
    if (status.code) {
        saves->num_skipped++;
        gs_log_warn("checkpoint skipped", "job=%s step=%lld skipped=%llu reason=\"%s\"", saves->job,
                    (long long)saves->state->position.step, (unsigned long long)saves->num_skipped,
                    status.message);
    }
    gs_timeline_add(saves->control->progress.timeline, GS_SPAN_CHECKPOINT, begin_ns);
    return gs_seconds_since(begin_ns);
}

gs_status gs_saves_now(gs_saves *saves, const char *reason, int world_size) {
    gs_deadline deadline = gs_deadline_in_seconds(FINAL_SAVE_SECONDS);
    GS_TRY(open_writer(saves));
    GS_TRY(gs_checkpoint_writer_start_last_save(saves->writer, reason, world_size, deadline));
    return gs_checkpoint_writer_wait(saves->writer, deadline);
}
