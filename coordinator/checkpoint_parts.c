#include "coordinator/checkpoint_parts.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/checkpoints.h"
#include "coordinator/files.h"
#include "coordinator/job_control.h"
#include "coordinator/trace.h"
#include "core/log.h"
#include "rpc/checkpoint/checkpoint_commit.h"
#include "rpc/checkpoint/fence.h"

#define MOST_PARTS 4096
#define SWEEP_AGE_SECONDS 3600
#define PATH_LEN 1400

// A look at the files of one save, on its way through the writer.
typedef struct look {
    gs_write base;
    gs_coordinator *coordinator;
    uint64_t job;
    char job_text[GS_JOB_ID_LEN];
    char directory[GS_PART_SAVE_NAME_LEN], path[PATH_LEN];
    uint32_t generation;  // the newest that has been formed: what older ones left, and nobody told of, is not the job's
    bool all_reported;  // then what is missing is not late
    gs_json *manifest;  // owned; of a checkpoint that is whole
    uint64_t bytes;
    gs_json *names;  // owned; adopting: of directories that have a manifest and are not known
    gs_json *known;  // owned; adopting: has a member for each that is
} look;

static look *make_look(gs_coordinator *coordinator, const gs_job *job, const char *directory) {
    look *it = calloc(1, sizeof *it);
    if (!it) return NULL;
    char job_directory[1100];
    gs_checkpoints_job_directory(job_directory, sizeof job_directory, coordinator, job);
    it->coordinator = coordinator;
    it->job = job->id;
    it->generation = job->generation;
    snprintf(it->job_text, sizeof it->job_text, "%s", job->id_text);
    snprintf(it->directory, sizeof it->directory, "%s", directory);
    snprintf(it->path, sizeof it->path, "%s/%s", job_directory, directory);
    return it;
}

static void free_look(look *it) {
    gs_json_release(it->manifest);
    gs_json_release(it->names);
    gs_json_release(it->known);
    free(it);
}

static void submit(look *it, gs_status (*run)(gs_write *, gs_job_store *),
                   void (*done)(gs_write *, gs_status)) {
    it->base = (gs_write){.run = run, .done = done};
    gs_writer_submit(it->coordinator->writer, &it->base);
}

static gs_part_save *find_save(gs_part_saves *saves, const char *directory) {
    for (size_t i = 0; i < saves->count; i++)
        if (!strcmp(saves->items[i].directory, directory)) return &saves->items[i];
    return NULL;
}

static gs_part_save *add_save(gs_part_saves *saves, const char *directory, const gs_json *report) {
    if (saves->count == saves->reserved) {
        size_t reserved = saves->reserved ? saves->reserved * 2 : 4;
        gs_part_save *items = realloc(saves->items, reserved * sizeof *items);
        if (!items) return NULL;
        saves->items = items;
        saves->reserved = reserved;
    }
    size_t num_parts = (size_t)gs_json_int_or(report, "num_parts", 0);
    uint8_t *reported = calloc(num_parts, sizeof *reported);
    if (!reported) return NULL;
    gs_part_save *save = &saves->items[saves->count++];
    *save = (gs_part_save){.step = gs_json_int_or(report, "step", 0),
                           .num_parts = num_parts,
                           .reported = reported};
    snprintf(save->directory, sizeof save->directory, "%s", directory);
    return save;
}

static void forget_save(gs_part_saves *saves, const char *directory) {
    gs_part_save *save = find_save(saves, directory);
    if (!save) return;
    free(save->reported);
    size_t index = (size_t)(save - saves->items);
    memmove(save, save + 1, (saves->count - index - 1) * sizeof *save);
    saves->count--;
}

void gs_part_saves_release(gs_part_saves *saves) {
    for (size_t i = 0; i < saves->count; i++) free(saves->items[i].reported);
    free(saves->items);
    *saves = (gs_part_saves){0};
}

static gs_status remove_parts(gs_write *base, gs_job_store *store) {
    (void)store;
    const look *it = (const look *)base;
    char manifest[PATH_LEN + 20];
    snprintf(manifest, sizeof manifest, "%s/MANIFEST.json", it->path);
    // A rank may have made a checkpoint of it by itself: the next start adopts it.
    return access(manifest, F_OK) == 0 ? gs_ok() : gs_file_remove_tree(it->path);
}

static void parts_removed(gs_write *base, gs_status status) {
    look *it = (look *)base;
    if (status.code)
        gs_log_warn("parts not removed", "path=%s reason=\"%s\"", it->path, status.message);
    free_look(it);
}

// It will never be one: its files go, and it is forgotten.
static void discard_save(gs_coordinator *coordinator, gs_job *job, const char *directory) {
    look *it = make_look(coordinator, job, directory);
    if (it) submit(it, remove_parts, parts_removed);
    forget_save(gs_checkpoints_part_saves(job), directory);
}

static void fail_save(gs_coordinator *coordinator, gs_job *job, gs_part_save *save,
                      const char *why) {
    if (save->failed) return;
    save->failed = true;
    gs_json *report = gs_json_new_object();
    gs_json_set_int(report, "step", save->step);
    gs_json_set_string(report, "cause", "io");
    gs_json_set_string(report, "error", why);
    gs_checkpoints_note_failed(coordinator, job, report);
    gs_json_release(report);
}

// One that was copied here from another job would be this one's newest, and others go for it.
static gs_status commit(gs_json **manifest, uint64_t *bytes, const look *it, const char *path) {
    gs_status status = gs_checkpoint_commit(manifest, bytes, path);
    gs_trace_found(it->coordinator->trace, path, status, *manifest, *bytes);
    if (status.code) return status;
    const char *job = gs_json_string_or(*manifest, "job", "");
    const gs_fence writer = gs_fence_of(*manifest);
    bool is_ours = strcmp(job, it->job_text) == 0, is_old = writer.generation && writer.generation < it->generation;
    if (is_ours && !is_old) return gs_ok();
    status = gs_error(GS_DATA_LOSS, "is of job \"%.60s\"", job);
    if (is_ours)
        status = gs_error(GS_DATA_LOSS, "is of generation %u, and generation %u has been formed since",
                          writer.generation, it->generation);
    gs_json_release(*manifest);
    *manifest = NULL;
    return status;
}

static gs_status look_at_files(gs_write *base, gs_job_store *store) {
    (void)store;
    look *it = (look *)base;
    return commit(&it->manifest, &it->bytes, it, it->path);
}

// In the words of a rank that has written all of it.
static void take_checkpoint(gs_coordinator *coordinator, gs_job *job, const look *it,
                            double seconds) {
    const gs_json *manifest = it->manifest, *position = gs_json_get(manifest, "position");
    gs_json *report = gs_json_new_object();
    gs_json_set_int(report, "step", gs_json_int_or(position, "step", 0));
    gs_json_set_int(report, "bytes", (int64_t)it->bytes);
    gs_json_set_double(report, "seconds", seconds);
    gs_json_set_int(report, "world_size", gs_json_int_or(manifest, "world_size", 0));
    gs_json_set_string(report, "state_digest", gs_json_string_or(manifest, "state_digest", ""));
    gs_json_set_string(report, "reason", gs_json_string_or(manifest, "reason", ""));
    gs_json_set(report, "files", gs_json_copy(gs_json_get(manifest, "parts")));
    gs_checkpoints_take(coordinator, job, it->directory, report);
    gs_json_release(report);
}

// What there is will never be a checkpoint: it is damaged, or all parts were written where this coordinator does
// not see them. Everything else passes: a part that is to come, a disk or memory that is full.
static bool is_hopeless(const look *it, gs_status status) {
    return status.code == GS_DATA_LOSS || (status.code == GS_NOT_FOUND && it->all_reported);
}

static bool has_all(const gs_part_save *save) {
    return save->num_reported == save->num_parts;
}

static void looked(gs_write *base, gs_status status) {
    look *it = (look *)base;
    gs_coordinator *coordinator = it->coordinator;
    gs_job *job = gs_jobs_by_id(coordinator, it->job);
    if (job) {
        gs_part_saves *saves = gs_checkpoints_part_saves(job);
        gs_part_save *save = find_save(saves, it->directory);
        saves->looking--;
        if (!status.code) {
            take_checkpoint(coordinator, job, it, save ? save->seconds : 0);
            forget_save(saves, it->directory);
        } else if (save && is_hopeless(it, status)) {
            if (status.code == GS_NOT_FOUND)
                status = gs_status_prefix(status, "all parts are written, but not seen here");
            fail_save(coordinator, job, save, status.message);
            // Remembered until nobody reports a part of it any more.
            if (has_all(save)) discard_save(coordinator, job, it->directory);
        } else if (status.code != GS_NOT_FOUND) {
            gs_log_warn("no checkpoint yet", "path=%s reason=\"%s\"", it->path, status.message);
        }
    }
    free_look(it);
}

static void look_for(gs_coordinator *coordinator, gs_job *job, const char *directory,
                     bool all_reported) {
    look *it = make_look(coordinator, job, directory);
    if (!it) return;
    it->all_reported = all_reported;
    gs_checkpoints_part_saves(job)->looking++;
    submit(it, look_at_files, looked);
}

gs_status gs_part_report_check(const gs_json *report) {
    int64_t num_parts, part;
    GS_TRY(gs_json_read_int(&num_parts, report, "num_parts", 2, MOST_PARTS));
    return gs_json_read_int(&part, report, "part", 0, num_parts - 1);
}

// At those whose parts were all there when something was in the way.
static void look_again(gs_coordinator *coordinator, gs_job *job, const char *but) {
    const gs_part_saves *saves = gs_checkpoints_part_saves(job);
    for (size_t i = 0; i < saves->count; i++) {
        const gs_part_save *save = &saves->items[i];
        if (has_all(save) && !save->failed && strcmp(save->directory, but) != 0)
            look_for(coordinator, job, save->directory, true);
    }
}

void gs_part_saves_report(gs_coordinator *coordinator, gs_job *job, const char *directory,
                          const gs_json *report) {
    if (gs_checkpoints_knows(job, directory)) return;
    gs_part_saves *saves = gs_checkpoints_part_saves(job);
    gs_part_save *save = find_save(saves, directory);
    if (!save) save = add_save(saves, directory, report);
    size_t part = (size_t)gs_json_int_or(report, "part", 0);
    if (!save || part >= save->num_parts) return;
    if (!save->reported[part]) save->num_reported++;
    save->reported[part] = 1;
    double seconds = gs_json_double_or(report, "seconds", 0);
    if (seconds > save->seconds) save->seconds = seconds;
    if (gs_json_get(report, "error")) {
        if (!save->failed) gs_checkpoints_note_failed(coordinator, job, report);
        save->failed = true;
    } else if (!save->failed) {
        look_for(coordinator, job, directory, has_all(save));
    }
    if (save->failed && has_all(save)) discard_save(coordinator, job, directory);
    look_again(coordinator, job, directory);
}

void gs_part_saves_end_run(gs_coordinator *coordinator, gs_job *job) {
    gs_part_saves *saves = gs_checkpoints_part_saves(job);
    look_again(coordinator, job, "");
    while (saves->count > 0) {
        gs_part_save *save = &saves->items[0];
        if (has_all(save) && !save->failed) {
            // Its files stay: this look, or the next start, makes a checkpoint of them.
            forget_save(saves, save->directory);
            continue;
        }
        char directory[GS_PART_SAVE_NAME_LEN], why[120];
        size_t missing = 0;
        while (missing + 1 < save->num_parts && save->reported[missing]) missing++;
        snprintf(directory, sizeof directory, "%s", save->directory);
        snprintf(why, sizeof why, "part %zu of %zu never came: its rank has ended", missing,
                 save->num_parts);
        fail_save(coordinator, job, save, why);
        discard_save(coordinator, job, directory);
    }
}

// Of one directory: a manifest is made of its parts when all are there.
static void adopt_directory(look *it, const char *name) {
    char path[PATH_LEN + 300];
    gs_json *manifest = NULL;
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/%s", it->path, name);
    gs_status status = commit(&manifest, &bytes, it, path);
    gs_json_release(manifest);
    if (!status.code) gs_json_push(it->names, gs_json_new_string(name));
    else if (status.code != GS_NOT_FOUND)
        gs_log_warn("no checkpoint", "path=%s reason=\"%s\"", path, status.message);
}

static gs_status find_directories(gs_write *base, gs_job_store *store) {
    (void)store;
    look *it = (look *)base;
    DIR *list = opendir(it->path);
    if (!list) return gs_ok();
    const struct dirent *entry;
    while ((entry = readdir(list)))
        if (!strncmp(entry->d_name, "step-", 5) && gs_file_name_plain(entry->d_name) &&
            strlen(entry->d_name) < GS_PART_SAVE_NAME_LEN && !gs_json_get(it->known, entry->d_name))
            adopt_directory(it, entry->d_name);
    closedir(list);
    return gs_file_sweep(it->path, SWEEP_AGE_SECONDS);
}

static void directories_found(gs_write *base, gs_status status) {
    look *it = (look *)base;
    gs_job *job = gs_jobs_by_id(it->coordinator, it->job);
    if (job) gs_checkpoints_part_saves(job)->looking--;
    if (status.code)
        gs_log_warn("checkpoint directory", "path=%s reason=\"%s\"", it->path, status.message);
    for (size_t i = 0; job && i < gs_json_count(it->names); i++) {
        const char *name = gs_json_string(gs_json_at(it->names, i));
        if (!gs_checkpoints_knows(job, name)) look_for(it->coordinator, job, name, false);
    }
    free_look(it);
}

void gs_part_saves_adopt(gs_coordinator *coordinator, gs_job *job) {
    look *it = make_look(coordinator, job, ".");
    if (!it) return;
    it->names = gs_json_new_array();
    it->known = gs_checkpoints_names(job);
    gs_checkpoints_part_saves(job)->looking++;
    submit(it, find_directories, directories_found);
}
