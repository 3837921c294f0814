#include "coordinator/engine/base/part_saves.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/engine/base/checkpoints.h"
#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/base/old_copy.h"

// Of one job, at a time. Ranks begin none while they write one.
#define MOST_SAVES 64

static void look_for(gs_engine *engine, gs_job *job, const char *directory, bool all_reported) {
    const char *text = gs_mind_text(engine, "%s", directory);
    gs_effect *effect = gs_mind_do(engine, GS_DO_LOOK_AT_PARTS);
    effect->job = job;
    effect->job_id = job->id;
    effect->text = text;
    effect->all_reported = all_reported;
    job->checkpoints.looking++;
}

// It will never be one: its files go, and it is forgotten.
static void discard_save(gs_engine *engine, gs_job *job, const char *directory) {
    const char *text = gs_mind_text(engine, "%s", directory);
    gs_effect *effect = gs_mind_do(engine, GS_DO_REMOVE_PARTS);
    effect->job = job;
    effect->job_id = job->id;
    effect->text = text;
    gs_part_saves_forget(&job->checkpoints, text);
}

static void fail_save(gs_engine *engine, gs_job *job, gs_part_save *save, const char *why) {
    if (save->failed) return;
    save->failed = true;
    gs_checkpoint_failed(engine, job, save->step, GS_SAVE_IO, why, false);
}

// At those whose parts were all there when something was in the way.
static void look_again(gs_engine *engine, gs_job *job, const char *but) {
    for (size_t i = 0; i < job->checkpoints.num_saves; i++) {
        const gs_part_save *save = &job->checkpoints.saves[i];
        if (gs_part_save_has_all(save) && !save->failed && strcmp(save->directory, but) != 0)
            look_for(engine, job, save->directory, true);
    }
}

static void take_part(gs_engine *engine, gs_job *job, const char *directory, const gs_save_report *report) {
    if (gs_checkpoints_find(&job->checkpoints, directory)) return;
    gs_part_save *save = gs_part_saves_find(&job->checkpoints, directory);
    if (!save)
        save = gs_part_saves_add(&job->checkpoints, directory, report->found.step, (size_t)report->num_parts);
    size_t part = (size_t)report->part;
    if (part >= save->num_parts) return;
    if (!save->reported[part]) save->num_reported++;
    save->reported[part] = 1;
    if (report->found.seconds > save->seconds) save->seconds = report->found.seconds;
    if (report->failed) {
        if (!save->failed)
            gs_checkpoint_failed(engine, job, report->found.step, report->cause, report->error, report->settling);
        save->failed = true;
    } else if (!save->failed) {
        look_for(engine, job, directory, gs_part_save_has_all(save));
    }
    if (save->failed && gs_part_save_has_all(save)) discard_save(engine, job, directory);
    look_again(engine, job, directory);
}

// One component of a path, nothing special: what a rank says may not lead elsewhere.
static bool is_plain(const char *name) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = strspn(name, letters);
    return length > 0 && length < 200 && !name[length] && name[0] != '.';
}

// The name of the directory: directly below the job's own.
static gs_status read_directory(const char **name, const gs_engine *engine, const gs_job *job,
                                const char *directory) {
    char own[1100];
    snprintf(own, sizeof own, "%s/%s", engine->state.checkpoints_dir, job->id_text);
    size_t length = strlen(own);
    *name = directory;
    if (!strncmp(directory, own, length) && directory[length] == '/') *name += length + 1;
    if (is_plain(*name)) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "directory: \"%s\" is not directly below %s", *name, own);
}

// What a rank makes up names for must not grow without end.
static gs_status check_room(const gs_checkpoints *checkpoints, const char *directory, bool is_part) {
    size_t count = is_part ? checkpoints->num_saves : gs_checkpoints_num_verifying(checkpoints);
    if (count < MOST_SAVES || gs_checkpoints_find(checkpoints, directory)) return gs_ok();
    if (is_part && gs_part_saves_find(checkpoints, directory)) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "directory: \"%s\" would be one more than the %zu saves of this job that are under way", directory, count);
}

// Its files are there, and no rank speaks of them again: they are looked for on the disk.
static void put_off(gs_engine *engine, gs_job *job, gs_status refusal) {
    if (gs_checkpoints_find_soon(engine, job))
        gs_note_add(engine, job, NULL, GS_SEVERITY_WARNING, "CheckpointPutOff", "%s; what is whole is found on the disk in a moment",
                    refusal.message);
}

void gs_on_checkpointed(gs_engine *engine, gs_member *member, gs_engine_event *event) {
    gs_save_report *report = &event->checkpointed;
    gs_job *job = member->job;
    const char *name = "";
    gs_status status = gs_ok();
    if (report->is_part || !report->failed) status = read_directory(&name, engine, job, report->directory);
    if (!status.code) status = report->refusal;
    gs_status room = gs_ok();
    if (!status.code && (report->is_part || !report->failed)) room = check_room(&job->checkpoints, name, report->is_part);
    if (room.code) {
        put_off(engine, job, room);
        status = room;
    }
    gs_reply_status(engine, event->from.call, status);
    if (status.code) return;
    if (report->is_part) take_part(engine, job, name, report);
    else if (report->failed)
        gs_checkpoint_failed(engine, job, report->found.step, report->cause, report->error, report->settling);
    else gs_checkpoint_take(engine, job, name, &report->found, true);
}

// What there is will never be a checkpoint: it is damaged, or all parts were written where this coordinator does
// not see them. Everything else passes: a part that is to come, a disk or memory that is full.
static bool is_hopeless(const gs_completion *done) {
    return done->status.code == GS_DATA_LOSS || (done->status.code == GS_NOT_FOUND && done->all_reported);
}

// It was asked for some time ago. Ranks that are being started go on from an earlier step, and once they have begun it is of an older
// generation; where they do not the next start finds it again. Behind a step that was named it is taken, to be removed.
static bool is_left_behind(const gs_job *job, const gs_completion *done) {
    const gs_checkpoint_report *found = &done->found;
    bool is_starting = job->run && !gs_run_has_begun(job->run) && !job->go_on_step;
    if (is_starting && found->step > job->begun_step) return true;
    const gs_job_savers savers = gs_job_savers_of(job);
    return !gs_job_savers_include(&savers, found->generation, found->step, done->directory);
}

void gs_on_parts_looked(gs_engine *engine, gs_completion *done) {
    gs_job *job = gs_job_table_get(&engine->state.jobs, done->job);
    if (!job) return;
    gs_part_save *save = gs_part_saves_find(&job->checkpoints, done->directory);
    job->checkpoints.looking--;
    engine->state.schedule_needed = true;
    gs_status status = done->status;
    if (!status.code || status.code == GS_NOT_FOUND || status.code == GS_DATA_LOSS) gs_checkpoints_find_disk(engine, job);
    if (!status.code && is_left_behind(job, done)) {
        gs_mind_log(engine, GS_SEVERITY_WARNING, "no checkpoint", "job=%s directory=%s reason=\"of generation %u, which was left behind\"",
                    job->id_text, done->directory, done->found.generation);
    } else if (!status.code) {
        done->found.seconds = save ? save->seconds : 0;
        gs_checkpoint_take(engine, job, done->directory, &done->found, save != NULL);
        gs_part_saves_forget(&job->checkpoints, done->directory);
    } else if (save && is_hopeless(done)) {
        if (status.code == GS_NOT_FOUND)
            status = gs_status_prefix(status, "all parts are written, but not seen here");
        fail_save(engine, job, save, status.message);
        // Remembered until nobody reports a part of it any more.
        if (gs_part_save_has_all(save)) discard_save(engine, job, done->directory);
    } else if (status.code != GS_NOT_FOUND) {
        gs_mind_log(engine, GS_SEVERITY_WARNING, "no checkpoint yet", "job=%s directory=%s reason=\"%s\"",
                    job->id_text, done->directory, status.message);
        // A save that ranks still speak of is looked at when they do.
        if (!save && status.code != GS_DATA_LOSS) gs_checkpoints_find_again(engine, job);
    }
    gs_checkpoints_settle(job);
}

void gs_part_saves_end_run(gs_engine *engine, gs_job *job) {
    look_again(engine, job, "");
    while (job->checkpoints.num_saves > 0) {
        gs_part_save *save = &job->checkpoints.saves[0];
        if (gs_part_save_has_all(save) && !save->failed) {
            // Its files stay: this look, or the next start, makes a checkpoint of them.
            char directory[GS_CHECKPOINT_NAME_LEN];
            snprintf(directory, sizeof directory, "%s", save->directory);
            gs_part_saves_forget(&job->checkpoints, directory);
            continue;
        }
        size_t missing = 0;
        while (missing + 1 < save->num_parts && save->reported[missing]) missing++;
        char why[120];
        snprintf(why, sizeof why, "part %zu of %zu never came: its rank has ended", missing, save->num_parts);
        fail_save(engine, job, save, why);
        discard_save(engine, job, save->directory);
    }
}

// Where a full disk took no rows, ranks of a later generation than the job's row knows may train, and their workers are about to say
// so: none is started beside them before they had the time for it that they have behind any start.
static void await_later_ranks(const gs_engine *engine, gs_job *job, uint32_t left_by) {
    int64_t until_ns = engine->state.begun_ns + engine->state.timing.grace_ns;
    if (left_by > job->generation && job->not_before_ns < until_ns) job->not_before_ns = until_ns;
}

void gs_on_directories_found(gs_engine *engine, const gs_completion *done) {
    gs_job *job = gs_job_table_get(&engine->state.jobs, done->job);
    if (!job) return;
    job->checkpoints.looking--;
    engine->state.schedule_needed = true;
    if (done->status.code) {
        gs_mind_log(engine, GS_SEVERITY_WARNING, "checkpoint directory", "job=%s reason=\"%s\"", job->id_text,
                    done->status.message);
        gs_checkpoints_miss_disk(engine, job, done->status);
    } else {
        gs_checkpoints_find_disk(engine, job);
        gs_checkpoints_read_again(engine, job);
        gs_old_copy_note_fence(engine, job, done->left_by);
        await_later_ranks(engine, job, done->left_by);
    }
    for (size_t i = 0; i < done->num_names; i++) {
        if (!gs_checkpoints_find(&job->checkpoints, done->names[i])) look_for(engine, job, done->names[i], false);
    }
    if (!done->status.code && !job->checkpoints.num_finds) gs_checkpoints_retain(engine, job);  // once: the next start tries again
    gs_checkpoints_settle(job);
}
