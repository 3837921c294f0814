#include "worker/trainer/saves.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

#include "core/clock.h"
#include "core/log.h"
#include "rpc/checkpoint/checkpoint_commit.h"
#include "worker/telemetry/timeline.h"

// A save at the end is waited for this long.
#define FINAL_SAVE_SECONDS 600.0
#define FIRST_INTERVAL_SECONDS 5.0
#define MOST_DOUBLINGS 30
#define LEAST_SHARE 20  // of the time between two saves is one of them

// Of the writer's thread or, for what a save held up, of the one that trains.
static void note_seconds(gs_saves *saves, double seconds) {
    double longest = atomic_load(&saves->longest_seconds);
    while (seconds > longest && !atomic_compare_exchange_weak(&saves->longest_seconds, &longest, seconds)) continue;
}

static void report_save(void *ctx, const gs_checkpoint_result *result) {
    gs_saves *saves = ctx;
    gs_control *control = saves->control;
    const gs_checkpoint_request *request = &result->request;
    note_seconds(saves, result->seconds);
    if (result->status.code) {
        char text[300];
        gs_log_warn("checkpoint failed", "job=%s step=%lld part=%d/%d cause=%s error=%s",
                    saves->job, (long long)result->step, request->part, request->num_parts,
                    result->cause, gs_log_quote(text, sizeof text, result->status.message));
    } else {
        gs_log_info("checkpoint written",
                    "job=%s step=%lld name=%s part=%d/%d bytes=%llu seconds=%.3f", saves->job,
                    (long long)result->step, result->name, request->part, request->num_parts,
                    (unsigned long long)result->bytes, result->seconds);
        if (request->num_parts > 1)
            snprintf(saves->parted, sizeof saves->parted, "%s", result->name);
    }
    control->ops->checkpointed(control->ctx, result);
    // Whoever trains now does so without these ranks, which were out of reach.
    if (result->is_fenced)
        gs_mailbox_abort(&control->mailbox, GS_EVERY_GENERATION, result->status.message);
}

static gs_checkpoint_options options_of(const gs_saves *saves, const gs_checkpoint_request *request) {
    return (gs_checkpoint_options){.directory = saves->directory,
                                   .job = saves->job,
                                   .cluster = saves->cluster,
                                   .spec = saves->spec,
                                   .request = *request};
}

// Who saves what one rank saves for all.
static bool is_saver(const gs_saves *saves, int rank) {
    return rank == (saves->team ? saves->team->saver : 0);
}

void gs_saves_take_over(const gs_saves *saves, const gs_place *place) {
    const gs_checkpoint_request request = {.generation = place->generation};
    const gs_checkpoint_options options = options_of(saves, &request);
    if (!is_saver(saves, place->rank) || !saves->directory || !*saves->directory) return;
    gs_status status = gs_checkpoint_take_over(&options);
    if (status.code)  // a save will meet the same, and tell of it
        gs_log_warn("checkpoint directory not taken over", "job=%s reason=\"%s\"", saves->job, status.message);
}

static bool are_by_all(const gs_saves *saves) {
    return saves->spec->checkpoint.parts == GS_CHECKPOINT_PARTS_RANKS ||
           !gs_trainer_state_is_whole(saves->state);
}

// What this rank saves when all save; false: nothing.
static bool find_share(gs_checkpoint_request *request, const gs_saves *saves, const char *reason,
                       const gs_place *place) {
    bool by_all = are_by_all(saves);
    *request = (gs_checkpoint_request){.reason = reason,
                                       .world_size = place->world_size,
                                       .part = by_all ? place->rank : 0,
                                       .num_parts = by_all ? place->world_size : 1,
                                       .generation = place->generation};
    return by_all || is_saver(saves, place->rank);
}

static gs_status open_writer(gs_saves *saves) {
    gs_progress_enter(&saves->control->progress, GS_PHASE_CHECKPOINT);
    if (saves->writer) return gs_ok();
    gs_checkpoint_writer_options options = {.directory = saves->directory,
                                            .job = saves->job,
                                            .cluster = saves->cluster,
                                            .spec = saves->spec,
                                            .state = saves->state,
                                            .done = report_save,
                                            .ctx = saves};
    return gs_checkpoint_writer_create(&saves->writer, &options);
}

void gs_saves_part(gs_saves *saves) {
    gs_save_team_part(saves->bringing);
    saves->bringing = NULL;
}

// `deadline`: until then all of it is to be at the saver's; NULL: what it has room for.
static void go_on(gs_saves *saves, const gs_deadline *deadline) {
    if (!saves->bringing) return;
    gs_progress_enter(&saves->control->progress, GS_PHASE_CHECKPOINT);
    gs_status status = deadline ? gs_save_team_finish(saves->bringing, *deadline) : gs_save_team_go_on(saves->bringing);
    if (!status.code && !gs_save_team_is_done(saves->bringing)) return;
    if (!status.code) status = gs_save_team_refusal(saves->bringing);
    // What was refused from the beginning is told of already; else the saver tells of it.
    if (status.code && status.code != GS_UNAVAILABLE)
        gs_log_warn("parts not brought", "job=%s reason=\"%s\"", saves->job, status.message);
    gs_saves_part(saves);
}

// Without a writer the others of the team must hear of it.
static gs_status start_save(gs_saves *saves, const gs_checkpoint_request *request, bool is_last, gs_deadline deadline) {
    gs_status status = open_writer(saves);
    if (status.code && saves->team && saves->team->num_apart && request->num_parts > 1) {
        gs_status other = gs_save_team_begin(&saves->bringing, saves->team, NULL, NULL, deadline);
        if (other.code) gs_log_warn("parts not brought", "job=%s reason=\"%s\"", saves->job, other.message);
    }
    if (!status.code)
        status = is_last ? gs_checkpoint_writer_start_last_save(saves->writer, request, saves->team, &saves->bringing, deadline)
                         : gs_checkpoint_writer_start_save(saves->writer, request, saves->team, &saves->bringing, deadline);
    go_on(saves, is_last ? &deadline : NULL);
    return status;
}

// A save that did not begin. Of parts, the others write theirs in vain and should not be waited for.
static void tell_failed(gs_saves *saves, const gs_checkpoint_request *request, gs_status why,
                        const char *cause) {
    const gs_checkpoint_options options = options_of(saves, request);
    gs_checkpoint_result result = gs_checkpoint_announce(&saves->state->position, &options);
    result.status = why;
    // What another rank has of its own is not reached from here, or has ended with it.
    result.cause = why.code == GS_UNAVAILABLE ? "residuals" : cause;
    saves->control->ops->checkpointed(saves->control->ctx, &result);
}

bool gs_saves_await(gs_saves *saves, gs_deadline deadline) {
    gs_saves_part(saves);
    return !saves->writer ||
           gs_checkpoint_writer_wait(saves->writer, deadline).code != GS_DEADLINE_EXCEEDED;
}

void gs_saves_release(gs_saves *saves) {
    gs_saves_part(saves);
    gs_checkpoint_writer_destroy(saves->writer);
    saves->writer = NULL;
}

// Told by the ranks' own count of steps. The save at the end of a run is its last.
bool gs_saves_are_due(const gs_saves *saves) {
    int64_t step = saves->state->position.step, every = saves->spec->checkpoint.every_steps;
    return every != 0 && step % every == 0 && step < saves->spec->steps.target;
}

bool gs_saves_are_late(const gs_saves *saves, int rank) {
    double every_seconds = saves->spec->checkpoint.every_seconds;
    if (saves->spec->checkpoint.every_steps != 0 || every_seconds <= 0 || !saves->counted_ns || !is_saver(saves, rank)) return false;
    double seconds = gs_saves_interval(every_seconds, saves->num_by_time, saves->longest_seconds);
    // How long the one in flight takes is not known yet; one that outlasts the cadence itself is told of.
    if (seconds < every_seconds && saves->writer && gs_checkpoint_writer_is_busy(saves->writer)) return false;
    return gs_seconds_since(saves->counted_ns) >= seconds;
}

double gs_saves_interval(double every_seconds, int num_before, double longest_seconds) {
    double seconds = ldexp(FIRST_INTERVAL_SECONDS, num_before < MOST_DOUBLINGS ? num_before : MOST_DOUBLINGS);
    if (seconds < LEAST_SHARE * longest_seconds) seconds = LEAST_SHARE * longest_seconds;
    return seconds < every_seconds ? seconds : every_seconds;
}

void gs_saves_note_due(gs_saves *saves) {
    saves->num_by_time++;
    saves->counted_ns = gs_now_ns();
    saves->is_due_by_time = true;
}

bool gs_saves_come_next(const gs_saves *saves) {
    if (gs_saves_are_due(saves)) return true;
    return saves->is_due_by_time && !gs_trainer_state_is_apart(saves->state) &&
           saves->state->position.step < saves->spec->steps.target;
}

bool gs_saves_write_parts(const gs_saves *saves) {
    if (saves->bringing) return true;
    return saves->writer && are_by_all(saves) && gs_checkpoint_writer_is_busy(saves->writer);
}

static void log_skipped(const gs_saves *saves, gs_status why) {
    gs_log_warn("checkpoint skipped", "job=%s step=%lld skipped=%llu reason=\"%s\"", saves->job,
                (long long)saves->state->position.step, (unsigned long long)saves->num_skipped,
                why.message);
}

// By all ranks: no part of it is written, so one of them tells of the whole.
static void skip_together(gs_saves *saves, int saving_ranks, const gs_place *place) {
    const gs_checkpoint_request request = {
        .reason = "periodic", .world_size = place->world_size, .num_parts = 1};
    gs_status why = gs_error(GS_FAILED_PRECONDITION, "%d of %d ranks still write the last checkpoint",
                             saving_ranks, place->world_size);
    saves->num_skipped++;
    if (!is_saver(saves, place->rank)) return;
    log_skipped(saves, why);
    tell_failed(saves, &request, why, "deadline");
}

static void save_by_cadence(gs_saves *saves, const gs_checkpoint_request *request, int64_t begin_ns) {
    gs_status status = start_save(saves, request, false, (gs_deadline){0});
    if (status.code) {
        saves->num_skipped++;
        log_skipped(saves, status);
        // Of a save that outlasts a hundred steps one word is enough.
        bool is_told = request->num_parts > 1 || status.code == GS_UNAVAILABLE || !saves->told_late;
        if (is_told) tell_failed(saves, request, status, "deadline");
    }
    saves->told_late = status.code != GS_OK;
    note_seconds(saves, gs_seconds_since(begin_ns));
    saves->counted_ns = gs_now_ns();
}

double gs_saves_when_due(gs_saves *saves, int saving_ranks, const gs_place *place) {
    gs_checkpoint_request request;
    int64_t begin_ns = gs_now_ns();
    bool has_part = saves->bringing, is_due = gs_saves_come_next(saves);
    if (!saves->counted_ns) saves->counted_ns = begin_ns;
    go_on(saves, NULL);
    if (is_due) saves->is_due_by_time = false;
    bool saves_now = is_due && find_share(&request, saves, "periodic", place);
    if (!saves_now && !has_part) return 0;
    if (saves_now && saving_ranks > 0) skip_together(saves, saving_ranks, place);
    else if (saves_now) save_by_cadence(saves, &request, begin_ns);
    if (has_part || saving_ranks == 0) gs_timeline_add(saves->control->progress.timeline, GS_SPAN_CHECKPOINT, begin_ns);
    return gs_seconds_since(begin_ns);
}

static gs_status save_now(gs_saves *saves, const gs_checkpoint_request *request) {
    gs_deadline deadline = gs_deadline_in_seconds(FINAL_SAVE_SECONDS);
    go_on(saves, &deadline);
    gs_status status = start_save(saves, request, true, deadline);
    if (status.code) {
        tell_failed(saves, request, status, "io");
        return status;
    }
    return gs_checkpoint_writer_wait(saves->writer, deadline);
}

gs_status gs_saves_at_end(gs_saves *saves, const char *reason, const gs_place *place) {
    gs_checkpoint_request request;
    return find_share(&request, saves, reason, place) ? save_now(saves, &request) : gs_ok();
}

gs_status gs_saves_alone(gs_saves *saves, const char *reason, const gs_place *place) {
    const gs_checkpoint_request request = {
        .reason = reason,
        .world_size = place->world_size,
        .num_parts = 1,
        .generation = place->generation};
    gs_saves_part(saves);
    saves->team = NULL;  // its communicator has come to its end
    return save_now(saves, &request);
}

void gs_saves_commit(gs_saves *saves) {
    char path[PATH_MAX];
    gs_json *manifest = NULL;
    uint64_t bytes;
    if (!saves->parted[0]) return;
    snprintf(path, sizeof path, "%s/%s", saves->directory, saves->parted);
    gs_status status = gs_checkpoint_commit(&manifest, &bytes, path);
    gs_json_release(manifest);
    if (!status.code)
        gs_log_info("checkpoint committed", "job=%s name=%s", saves->job, saves->parted);
    else
        gs_log_warn("checkpoint not committed", "job=%s name=%s reason=\"%s\"", saves->job,
                    saves->parted, status.message);
}
