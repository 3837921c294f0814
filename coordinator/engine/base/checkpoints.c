#include "coordinator/engine/base/checkpoints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/base/places.h"
#include "core/clock.h"

// Pauses: nobody is judged by them (docs/architecture.md).
#define FIRST_PAUSE_NS (2 * GS_NS_PER_SEC)
#define LONGEST_PAUSE_NS (60 * GS_NS_PER_SEC)
#define FIND_AGAIN_NS (2 * GS_NS_PER_SEC)
#define MOST_FINDS 15
#define LOOKS_AT_ONCE 16  // of a start; of jobs that have ended
#define ENDED_LOOKS_AT_ONCE 4

static gs_effect *ask(gs_engine *engine, gs_effect_kind kind, gs_job *job, const gs_checkpoint *item) {
    const char *directory = gs_mind_text(engine, "%s", item->directory);
    const gs_checkpoint *copy = gs_mind_copy(engine, item, sizeof *item);
    gs_effect *effect = gs_mind_do(engine, kind);
    effect->job = job;
    effect->job_id = job->id;
    effect->text = directory;
    effect->checkpoint = copy;
    return effect;
}

static void count_failure(gs_engine *engine, gs_job *job, gs_save_failure cause) {
    gs_effect *effect = gs_mind_do(engine, GS_DO_COUNT);
    effect->job = job;
    effect->count = (gs_count){.kind = GS_COUNT_SAVE_FAILED, .failure = cause};
}

void gs_checkpoint_failed(gs_engine *engine, gs_job *job, int64_t step, gs_save_failure cause, const char *error,
                          bool settling) {
    count_failure(engine, job, cause);
    bool lost = settling && cause == GS_SAVE_RESIDUALS;
    gs_note_add(engine, job, NULL, GS_SEVERITY_WARNING, lost ? "ResidualsLost" : "CheckpointFailed",
                "step %lld could not be saved (%s): %s; %s", (long long)step, gs_save_failure_name(cause), error,
                settling ? "the job goes back to its newest checkpoint" : "training goes on");
}

// Somebody has read all of it.
static bool is_verified(const gs_checkpoint *item) {
    return item->state == GS_CHECKPOINT_GOOD || item->state == GS_CHECKPOINT_RECORDING;
}

// The steps that there are, as people say them.
static void list_steps(char *text, size_t text_bytes, const gs_checkpoints *checkpoints) {
    size_t used = 0;
    for (size_t i = 0; i < checkpoints->count; i++) {
        if (!is_verified(&checkpoints->items[i]) || used >= text_bytes) continue;
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%lld", used ? ", " : "",
                                 (long long)checkpoints->items[i].step);
    }
    if (!used) snprintf(text, text_bytes, "none");
}

gs_status gs_checkpoints_find_step(const gs_job *job, int64_t step) {
    char there[120] = "";
    for (size_t i = 0; i < job->checkpoints.count; i++) {
        const gs_checkpoint *item = &job->checkpoints.items[i];
        if (is_verified(item) && item->step == step) return gs_ok();
    }
    list_steps(there, sizeof there, &job->checkpoints);
    return gs_error(GS_INVALID_ARGUMENT, "step: job %s has no checkpoint of step %lld; there are: %s", job->id_text,
                    (long long)step, there);
}

static void free_report(void *report) {
    gs_checkpoint_report_release(report);
    free(report);
}

// NULL: as its manifest says.
static void read_files(gs_engine *engine, gs_job *job, gs_checkpoint *item, const gs_checkpoint_report *report) {
    item->read_asked_ns = engine->state.now_ns;
    gs_effect *effect = ask(engine, GS_DO_VERIFY, job, item);
    const gs_checkpoint *copy = effect->checkpoint;
    effect->verify.item = copy;
    effect->verify.report = report;
}

void gs_checkpoint_take(gs_engine *engine, gs_job *job, const char *directory, gs_checkpoint_report *report, bool is_told) {
    if (gs_checkpoints_find(&job->checkpoints, directory)) return;
    gs_checkpoint *item = gs_checkpoints_add(&job->checkpoints, directory);
    gs_checkpoint_report *kept = calloc(1, sizeof *kept);
    if (!kept) abort();
    *kept = *report;
    report->files = NULL;
    report->num_files = 0;
    gs_mind_bury(engine, kept, free_report);
    snprintf(item->digest, sizeof item->digest, "%s", kept->state_digest);
    snprintf(item->reason, sizeof item->reason, "%s", kept->reason);
    item->step = kept->step;
    item->bytes = kept->bytes;
    item->seconds = kept->seconds;
    item->world_size = kept->world_size;
    item->parts = (int64_t)kept->num_files;
    item->created_ms = engine->state.wall_ms;
    // A rank whose worker has a directory of its own tells of what may be nowhere else.
    item->is_trusted = is_told && !gs_place_find_apart(engine, job->run);
    read_files(engine, job, item, kept);
}

void gs_checkpoints_read_again(gs_engine *engine, gs_job *job) {
    for (size_t i = 0; i < job->checkpoints.count; i++) {
        gs_checkpoint *item = &job->checkpoints.items[i];
        if (item->state == GS_CHECKPOINT_VERIFYING && !item->read_asked_ns) read_files(engine, job, item, NULL);
    }
}

// Behind a deletion of its job it would be a row of nobody: it waits until there is none.
static void write_row(gs_engine *engine, gs_job *job, gs_checkpoint *item) {
    bool waits = gs_job_is_being_deleted(job);
    item->record_again_ns = waits ? engine->state.now_ns + FIRST_PAUSE_NS : 0;
    if (!waits) ask(engine, GS_DO_WRITE_CHECKPOINT, job, item);
}

static void delete_checkpoint(gs_engine *engine, gs_job *job, gs_checkpoint *item) {
    // The end of the one write would pass for that of the other.
    item->mark_waits = item->state == GS_CHECKPOINT_RECORDING && !item->record_again_ns;
    gs_checkpoint_enter(engine, job, item, GS_CHECKPOINT_DELETING);
    if (!item->mark_waits) write_row(engine, job, item);
}

// NULL: there are not more than are kept.
static gs_checkpoint *find_surplus(const gs_job *job) {
    gs_checkpoint *oldest = NULL;
    int64_t good = 0;
    for (size_t i = 0; i < job->checkpoints.count; i++) {
        gs_checkpoint *item = &job->checkpoints.items[i];
        if (item->state != GS_CHECKPOINT_GOOD) continue;
        good++;
        if (!oldest || item->step < oldest->step) oldest = item;
    }
    // 0: a card of before does not say how many, and all of them stay.
    int64_t keep = job->spec.checkpoint.keep_last;
    return keep > 0 && good > keep ? oldest : NULL;
}

static void go_on_from(gs_job *job, int64_t step) { job->go_on_step = job->checkpoints.most_step = step; }

void gs_checkpoints_go_back(gs_job *job, int64_t step) {
    go_on_from(job, step);
    gs_checkpoints_settle(job);
}

void gs_checkpoints_begin(gs_engine *engine, gs_job *job, int64_t step) {
    bool is_named = job->go_on_step && job->go_on_step == step;
    job->begun_generation = job->generation;
    go_on_from(job, 0);
    for (size_t i = 0; i < job->checkpoints.count && is_named; i++) {
        gs_checkpoint *item = &job->checkpoints.items[i];
        if (item->step <= step || item->state == GS_CHECKPOINT_DELETING) continue;
        item->is_gone = true;  // whatever becomes of its row and its files; one that is being read goes behind that
        delete_checkpoint(engine, job, item);
    }
}

void gs_checkpoints_leave(gs_job *job, int64_t step) {
    gs_checkpoints *checkpoints = &job->checkpoints;
    job->left_generation = job->generation;
    job->left_step = step;
    for (size_t i = checkpoints->count; i > 0; i--) {
        const gs_checkpoint *item = &checkpoints->items[i - 1];
        if (item->state == GS_CHECKPOINT_VERIFYING && item->step > step) gs_checkpoints_forget(checkpoints, item->directory);
    }
}

void gs_checkpoints_leave_none(gs_job *job) {
    job->checkpoints.wants_look |= job->begun_generation > 0;  // also where there is no next start
    if (job->left_generation < job->begun_generation) return;
    job->left_generation = 0;
    job->left_step = 0;
}

// The named one is not there any more, or was found damaged: nothing is lost, and another may be named. True: what else there is
// is looked for now.
static bool go_back_no_more(gs_engine *engine, gs_job *job) {
    int64_t step = job->go_on_step;
    if (!step || gs_checkpoints_pending(&job->checkpoints) || !gs_checkpoints_find_step(job, step).code) return false;
    go_on_from(job, 0);
    job->checkpoints.is_found = false;  // nothing newer is overlooked for it
    engine->state.schedule_needed = true;
    gs_job_touch(engine, job);
    gs_note_add(engine, job, NULL, GS_SEVERITY_ERROR, "NamedCheckpointLost",
                "the checkpoint of step %lld, which an operator named, is gone or damaged: the job goes on from the newest, of step "
                "%lld (-1: none)", (long long)step, (long long)gs_checkpoints_newest_step(&job->checkpoints));
    return true;
}

static void apply_retention(gs_engine *engine, gs_job *job) {
    // What an operator named may be the oldest.
    if (job->go_on_step || !find_surplus(job)) return;
    // What is further may be gone, and then this is the newest. A start looks first; behind an end nobody else does, and in a
    // run of which another life of the coordinator looked.
    bool are_there = job->run ? job->checkpoints.were_checked : job->checkpoints.is_checked;
    if (!are_there) {
        if (job->run || gs_job_state_terminal(job->state)) gs_checkpoints_are_checked(engine, job);
        return;
    }
    for (gs_checkpoint *surplus; (surplus = find_surplus(job));) delete_checkpoint(engine, job, surplus);
}

void gs_checkpoints_retain(gs_engine *engine, gs_job *job) {
    if (job->run || gs_job_state_terminal(job->state)) apply_retention(engine, job);
}

// The job and the checkpoint that it is about; NULL when either has gone.
static gs_checkpoint *find(gs_engine *engine, gs_job **job, const gs_completion *done) {
    *job = gs_job_table_get(&engine->state.jobs, done->job);
    return *job ? gs_checkpoints_find(&(*job)->checkpoints, done->directory) : NULL;
}

void gs_checkpoints_find_more(gs_engine *engine, gs_job *job) {
    gs_effect *effect = gs_mind_do(engine, GS_DO_FIND_DIRECTORIES);
    effect->job = job;
    effect->job_id = job->id;
    job->checkpoints.wants_look = false;
    job->checkpoints.listed_ns = engine->state.now_ns;
    if (!job->checkpoints.looking++) job->checkpoints.asked_ns = engine->state.now_ns;
}

static void look_at_next(gs_engine *engine, bool at_ended, int left) {
    for (size_t i = 0; i < engine->state.jobs.count && left > 0; i++) {
        gs_job *job = engine->state.jobs.items[i];
        if (!job->checkpoints.wants_look || gs_job_state_terminal(job->state) != at_ended) continue;
        gs_checkpoints_find_more(engine, job);
        left--;
    }
}

void gs_checkpoints_look_around(gs_engine *engine) {
    int busy = 0, live = 0, ended = 0;
    for (size_t i = 0; i < engine->state.jobs.count; i++) {
        const gs_job *job = engine->state.jobs.items[i];
        busy += job->checkpoints.looking > 0;
        if (job->checkpoints.wants_look) *(gs_job_state_terminal(job->state) ? &ended : &live) += 1;
    }
    if (live) look_at_next(engine, false, LOOKS_AT_ONCE - busy);
    else if (ended) look_at_next(engine, true, ENDED_LOOKS_AT_ONCE - busy);
}

void gs_checkpoints_find_again(gs_engine *engine, gs_job *job) {
    gs_checkpoints *checkpoints = &job->checkpoints;
    if (checkpoints->find_again_ns || checkpoints->num_finds == MOST_FINDS) return;
    checkpoints->num_finds++;
    checkpoints->find_again_ns = engine->state.now_ns + FIND_AGAIN_NS;
}

bool gs_checkpoints_find_soon(gs_engine *engine, gs_job *job) {
    if (job->checkpoints.find_again_ns) return false;
    job->checkpoints.find_again_ns = engine->state.now_ns + FIND_AGAIN_NS;
    return true;
}

static void begin_absence(gs_engine *engine, gs_job *job, const char *why) {
    gs_checkpoints *checkpoints = &job->checkpoints;
    snprintf(checkpoints->away_reason, sizeof checkpoints->away_reason, "%s", why);
    if (checkpoints->away_since_ns) return;
    checkpoints->away_since_ns = engine->state.now_ns;
    count_failure(engine, job, GS_SAVE_IO);
    gs_note_add(engine, job, NULL, GS_SEVERITY_WARNING, "CheckpointsUnavailable",
                "the disk of its checkpoints does not answer: %s; no start goes on from an older one for that", why);
}

// Nobody asks for them any more: the next look of another life finds them.
static void forget_unread(gs_checkpoints *checkpoints) {
    for (size_t i = checkpoints->count; i > 0; i--) {
        const gs_checkpoint *item = &checkpoints->items[i - 1];
        if (item->state == GS_CHECKPOINT_VERIFYING && !item->read_asked_ns) gs_checkpoints_forget(checkpoints, item->directory);
    }
}

void gs_checkpoints_miss_disk(gs_engine *engine, gs_job *job, gs_status status) {
    if (gs_job_state_terminal(job->state)) {  // nobody waits for it
        bool is_last = job->checkpoints.num_finds == MOST_FINDS && !job->checkpoints.find_again_ns;
        gs_checkpoints_find_again(engine, job);
        if (is_last) forget_unread(&job->checkpoints);
        return;
    }
    begin_absence(engine, job, status.message);
    bool is_long = engine->state.now_ns - job->checkpoints.away_since_ns >= MOST_FINDS * FIND_AGAIN_NS;
    job->checkpoints.find_again_ns = engine->state.now_ns + (is_long ? engine->state.timing.disk_away_ns : FIND_AGAIN_NS);
}

void gs_checkpoints_find_disk(gs_engine *engine, gs_job *job) {
    gs_checkpoints *checkpoints = &job->checkpoints;
    if (checkpoints->away_since_ns)
        gs_note_add(engine, job, NULL, GS_SEVERITY_INFO, "CheckpointsAvailable", "the disk of its checkpoints answers again after %lld s",
                    (long long)((engine->state.now_ns - checkpoints->away_since_ns) / GS_NS_PER_SEC));
    checkpoints->away_since_ns = 0;
    checkpoints->is_given_up = false;
    checkpoints->asked_ns = engine->state.now_ns;  // of what else is looked for it is one that answers
}

bool gs_checkpoints_wait_for_disk(gs_engine *engine, gs_job *job) {
    const gs_checkpoints *checkpoints = &job->checkpoints;
    if (!checkpoints->away_since_ns || checkpoints->is_given_up) return false;
    int64_t step = gs_checkpoints_newest_step(checkpoints);
    char from[60];
    if (step > 0) snprintf(from, sizeof from, "from step %lld, the newest that is known", (long long)step);
    else snprintf(from, sizeof from, "from the beginning");
    gs_job_explain(engine, job, "CheckpointsUnavailable",
                   "waits for the disk of its checkpoints (%s); `gradsync release` starts it %s", checkpoints->away_reason, from);
    return true;
}

bool gs_checkpoints_give_up_disk(gs_job *job) {
    gs_checkpoints *checkpoints = &job->checkpoints;
    if (job->run || gs_job_state_terminal(job->state)) return false;
    if (!checkpoints->away_since_ns || checkpoints->is_given_up) return false;
    checkpoints->is_given_up = true;
    return true;
}

// It neither answers nor fails.
static void watch_disk(gs_engine *engine, gs_job *job) {
    const gs_checkpoints *checkpoints = &job->checkpoints;
    bool is_asked = checkpoints->looking > 0 || checkpoints->is_checking;
    bool is_waited_for = job->run ? gs_run_all_exited(job->run) : !gs_job_state_terminal(job->state);
    if (!is_asked || !is_waited_for || checkpoints->away_since_ns) return;
    int64_t away_ns = engine->state.timing.disk_away_ns;
    if (engine->state.now_ns - checkpoints->asked_ns < away_ns) return;
    char why[60];
    snprintf(why, sizeof why, "no answer for %lld s", (long long)(away_ns / GS_NS_PER_SEC));
    begin_absence(engine, job, why);
}

// Whoever waits for it asks: what was asked before may have been answered otherwise.
static void ask_absent(gs_engine *engine, gs_job *job) {
    gs_checkpoints *checkpoints = &job->checkpoints;
    bool is_asked = checkpoints->looking > 0 || checkpoints->is_checking || checkpoints->find_again_ns;
    if (!checkpoints->away_since_ns || is_asked || job->run || gs_job_state_terminal(job->state)) return;
    checkpoints->find_again_ns = engine->state.now_ns + FIND_AGAIN_NS;
}

void gs_checkpoints_settle(gs_job *job) {
    if (!gs_checkpoints_pending(&job->checkpoints)) job->checkpoints.num_finds = 0;
}

// That files are not as they were reported, or not there. Everything else is the disk's trouble, and may pass.
static bool tells_of_damage(gs_status status) {
    return status.code == GS_DATA_LOSS || status.code == GS_NOT_FOUND || status.code == GS_INVALID_ARGUMENT;
}

void gs_on_verified(gs_engine *engine, const gs_completion *done) {
    gs_job *job;
    gs_checkpoint *item = find(engine, &job, done);
    if (!item || item->state != GS_CHECKPOINT_VERIFYING) return;
    if (!done->status.code) {
        gs_checkpoint_enter(engine, job, item, GS_CHECKPOINT_RECORDING);
        write_row(engine, job, item);
        gs_checkpoints_settle(job);
        return;
    }
    engine->state.schedule_needed = true;
    const gs_member *apart = done->status.code == GS_NOT_FOUND ? gs_place_find_apart(engine, job->run) : NULL;
    if (apart) {
        gs_note_add(engine, job, apart, GS_SEVERITY_WARNING, "CheckpointElsewhere",
                    "checkpoint of step %lld is not seen here: worker %s has a checkpoint directory of its own", (long long)item->step,
                    apart->worker);
        count_failure(engine, job, GS_SAVE_IO);
    } else if (tells_of_damage(done->status) || job->checkpoints.num_finds == MOST_FINDS) {
        gs_note_add(engine, job, NULL, GS_SEVERITY_ERROR, "CheckpointDamaged",
                    "checkpoint of step %lld does not verify: %s", (long long)item->step, done->status.message);
        count_failure(engine, job, GS_SAVE_DIGEST);
    } else {
        gs_note_add(engine, job, NULL, GS_SEVERITY_WARNING, "CheckpointFailed",
                    "checkpoint of step %lld cannot be read yet: %s", (long long)item->step, done->status.message);
        count_failure(engine, job, GS_SAVE_IO);
        gs_checkpoints_find_again(engine, job);
        // It stays the job's, whatever generation begins meanwhile.
        item->read_asked_ns = 0;
        item->is_trusted = false;
        return;
    }
    gs_checkpoints_forget(&job->checkpoints, done->directory);
    gs_checkpoints_settle(job);
}

static void record(gs_engine *engine, gs_job *job, gs_checkpoint *item) {
    gs_checkpoint_enter(engine, job, item, GS_CHECKPOINT_GOOD);
    item->record_pause_ns = 0;
    gs_note_add(engine, job, NULL, GS_SEVERITY_INFO, "CheckpointVerified", "step %lld, %lld bytes in %s",
                (long long)item->step, (long long)item->bytes, item->directory);
    ask(engine, GS_DO_SHOW_CHECKPOINT, job, item);
    apply_retention(engine, job);
}

static void write_row_later(const gs_engine *engine, gs_checkpoint *item) {
    item->record_pause_ns = item->record_pause_ns ? 2 * item->record_pause_ns : FIRST_PAUSE_NS;
    if (item->record_pause_ns > LONGEST_PAUSE_NS) item->record_pause_ns = LONGEST_PAUSE_NS;
    item->record_again_ns = engine->state.now_ns + item->record_pause_ns;
}

// Its files are good, and a start may come before the disk has room for a row. Said once.
static void record_later(gs_engine *engine, gs_job *job, gs_checkpoint *item, gs_status status) {
    if (!item->record_pause_ns) {
        gs_note_add(engine, job, NULL, GS_SEVERITY_WARNING, "CheckpointFailed",
                    "checkpoint of step %lld is not recorded yet: %s", (long long)item->step, status.message);
        count_failure(engine, job, GS_SAVE_IO);
    }
    write_row_later(engine, item);
}

void gs_on_checkpoint_stored(gs_engine *engine, const gs_completion *done) {
    gs_job *job;
    gs_checkpoint *item = find(engine, &job, done);
    if (!item) return;
    engine->state.schedule_needed = true;
    if (item->mark_waits) {
        item->mark_waits = false;
        write_row(engine, job, item);
        return;
    }
    if (item->state == GS_CHECKPOINT_DELETING) {
        // Where the mark could not be written, nothing is removed: one that has only been replaced is good as it was, until the
        // next is recorded; one that is gone is marked later, before another life takes it for good.
        if (!done->status.code) ask(engine, GS_DO_REMOVE_CHECKPOINT, job, item);
        else if (!item->is_gone) gs_checkpoint_enter(engine, job, item, GS_CHECKPOINT_GOOD);
        else item->record_again_ns = engine->state.now_ns + FIRST_PAUSE_NS;
        return;
    }
    if (item->state != GS_CHECKPOINT_RECORDING) return;
    if (!done->status.code) {
        record(engine, job, item);
        return;
    }
    record_later(engine, job, item, done->status);
}

// It is large, or many others are read before it: a start waits no longer than for a disk that does not answer.
static void trust_in_time(gs_engine *engine, const gs_job *job, gs_checkpoint *item) {
    bool is_being_read = item->state == GS_CHECKPOINT_VERIFYING && item->read_asked_ns;
    if (!is_being_read || item->is_trusted || job->checkpoints.away_since_ns) return;
    if (engine->state.now_ns - item->read_asked_ns < engine->state.timing.disk_away_ns) return;
    item->is_trusted = true;
    engine->state.schedule_needed = true;
}

void gs_checkpoints_tick(gs_engine *engine) {
    gs_checkpoints_look_around(engine);
    for (size_t i = 0; i < engine->state.jobs.count; i++) {
        gs_job *job = engine->state.jobs.items[i];
        if (job->checkpoints.find_again_ns && engine->state.now_ns >= job->checkpoints.find_again_ns) {
            job->checkpoints.find_again_ns = 0;
            gs_checkpoints_find_more(engine, job);
        }
        watch_disk(engine, job);
        ask_absent(engine, job);
        for (size_t k = 0; k < job->checkpoints.count; k++) {
            gs_checkpoint *item = &job->checkpoints.items[k];
            if (item->record_again_ns && engine->state.now_ns >= item->record_again_ns) write_row(engine, job, item);
            trust_in_time(engine, job, item);
        }
    }
}

void gs_on_files_removed(gs_engine *engine, const gs_completion *done) {
    gs_job *job;
    gs_checkpoint *item = find(engine, &job, done);
    if (!item) return;
    if (!done->status.code) {
        ask(engine, GS_DO_DELETE_CHECKPOINT, job, item);
        return;
    }
    // Some of them may be gone. The row says "deleting": written again it leads here again, as the next start would.
    item->is_gone = true;
    bool is_told = item->record_pause_ns > 0;
    write_row_later(engine, item);
    if (!is_told) gs_mind_log(engine, GS_SEVERITY_WARNING, "checkpoint not removed", "job=%s directory=%s reason=\"%s\"",
                job->id_text, item->directory, done->status.message);
}

void gs_on_checkpoint_row_deleted(gs_engine *engine, const gs_completion *done) {
    gs_job *job;
    gs_checkpoint *item = find(engine, &job, done);
    if (!item) return;
    if (!done->status.code) gs_checkpoints_forget(&job->checkpoints, done->directory);
    else write_row_later(engine, item);  // from its mark on, once more
}

void gs_checkpoints_resume(gs_engine *engine, gs_job *job) {
    for (size_t i = 0; i < job->checkpoints.count; i++) {
        gs_checkpoint *item = &job->checkpoints.items[i];
        if (item->state != GS_CHECKPOINT_DELETING) continue;
        item->is_gone = true;  // some of its files may be
        ask(engine, GS_DO_WRITE_CHECKPOINT, job, item);
    }
    if (job->go_on_step) gs_checkpoints_go_back(job, job->go_on_step);
}

void gs_checkpoints_check(gs_engine *engine, gs_job *job) {
    gs_checkpoints *checkpoints = &job->checkpoints;
    if (checkpoints->is_checking) return;
    checkpoints->is_checking = true;
    if (!checkpoints->looking) checkpoints->asked_ns = engine->state.now_ns;
    gs_effect *effect = gs_mind_do(engine, GS_DO_CHECK_CHECKPOINTS);
    effect->job = job;
    effect->job_id = job->id;
}

bool gs_checkpoints_are_checked(gs_engine *engine, gs_job *job) {
    const gs_checkpoints *checkpoints = &job->checkpoints;
    if (checkpoints->is_checking || go_back_no_more(engine, job)) return false;
    if (checkpoints->is_checked || !gs_checkpoints_newest(checkpoints)) return true;
    gs_checkpoints_check(engine, job);
    return false;
}

void gs_on_checkpoints_checked(gs_engine *engine, const gs_completion *done) {
    gs_job *job = gs_job_table_get(&engine->state.jobs, done->job);
    if (!job) return;
    job->checkpoints.is_checking = false;
    engine->state.schedule_needed = true;
    if (done->status.code) {
        if (!job->run) gs_checkpoints_miss_disk(engine, job, done->status);  // else no start waits; the next save asks again
        return;
    }
    job->checkpoints.is_checked = !job->run;  // the next start looks again
    job->checkpoints.were_checked = true;
    gs_checkpoints_find_disk(engine, job);
    for (size_t i = 0; i < done->num_names; i++) {
        gs_checkpoint *item = gs_checkpoints_find(&job->checkpoints, done->names[i]);
        if (!item || !gs_checkpoint_may_start(item)) continue;
        count_failure(engine, job, GS_SAVE_DIGEST);
        item->is_gone = true;
        delete_checkpoint(engine, job, item);
        gs_note_add(engine, job, NULL, GS_SEVERITY_ERROR, "RestoredOlderCheckpoint",
                    "checkpoint %s is gone, or was found damaged and is now bad-%s; the newest "
                    "that is left is of step %lld (-1: none)",
                    item->directory, item->directory,
                    (long long)gs_checkpoints_newest_step(&job->checkpoints));
    }
    go_back_no_more(engine, job);
    gs_checkpoints_retain(engine, job);
}
