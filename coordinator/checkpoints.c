#include "coordinator/checkpoints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/events.h"
#include "coordinator/files.h"
#include "coordinator/job_control.h"
#include "coordinator/run.h"
#include "coordinator/trace.h"
#include "coordinator/watch.h"
#include "core/clock.h"
#include "core/log.h"

#define NAME_LEN GS_PART_SAVE_NAME_LEN

typedef enum gs_checkpoint_state { VERIFYING = 0, GOOD, DELETING } gs_checkpoint_state;

typedef struct gs_checkpoint {
    char directory[NAME_LEN], reason[48];
    char digest[GS_DIGEST_TEXT_LEN];  // of the state; in rows of earlier versions, of the manifest
    int64_t step, bytes, created_ms, world_size, parts;
    double seconds;
    gs_checkpoint_state state;
} gs_checkpoint;

struct gs_checkpoints {
    gs_checkpoint *items;  // owned; in order of arrival
    size_t count, reserved;
    int verifying;
    gs_part_saves part_saves;
    gs_checkpoint_facts facts;
};

gs_checkpoints *gs_checkpoints_create(void) { return calloc(1, sizeof(gs_checkpoints)); }

void gs_checkpoints_destroy(gs_checkpoints *checkpoints) {
    if (!checkpoints) return;
    gs_part_saves_release(&checkpoints->part_saves);
    free(checkpoints->items);
    free(checkpoints);
}

const gs_checkpoint_facts *gs_checkpoints_facts(const gs_job *job) {
    return &job->checkpoints->facts;
}

void gs_checkpoints_job_directory(char *path, size_t path_bytes, const gs_coordinator *coordinator,
                                  const gs_job *job) {
    snprintf(path, path_bytes, "%s/%s", coordinator->checkpoints_dir, job->id_text);
}

static gs_checkpoint *add_checkpoint(gs_checkpoints *checkpoints) {
    if (checkpoints->count == checkpoints->reserved) {
        size_t reserved = checkpoints->reserved ? checkpoints->reserved * 2 : 8;
        gs_checkpoint *items = realloc(checkpoints->items, reserved * sizeof *items);
        if (!items) return NULL;
        checkpoints->items = items;
        checkpoints->reserved = reserved;
    }
    gs_checkpoint *item = &checkpoints->items[checkpoints->count++];
    *item = (gs_checkpoint){0};
    return item;
}

static gs_checkpoint *find_checkpoint(gs_checkpoints *checkpoints, const char *directory) {
    for (size_t i = 0; i < checkpoints->count; i++) {
        if (!strcmp(checkpoints->items[i].directory, directory)) return &checkpoints->items[i];
    }
    return NULL;
}

static void forget_checkpoint(gs_checkpoints *checkpoints, const char *directory) {
    gs_checkpoint *item = find_checkpoint(checkpoints, directory);
    if (!item) return;
    size_t index = (size_t)(item - checkpoints->items);
    memmove(item, item + 1, (checkpoints->count - index - 1) * sizeof *item);
    checkpoints->count--;
}

static const gs_checkpoint *find_newest(const gs_job *job) {
    const gs_checkpoint *newest = NULL;
    for (size_t i = 0; i < job->checkpoints->count; i++) {
        const gs_checkpoint *item = &job->checkpoints->items[i];
        if (item->state == GOOD && (!newest || item->step >= newest->step)) newest = item;
    }
    return newest;
}

int64_t gs_checkpoints_newest_step(const gs_job *job) {
    const gs_checkpoint *newest = find_newest(job);
    return newest ? newest->step : -1;
}

bool gs_checkpoints_pending(const gs_job *job) {
    return job->checkpoints->verifying > 0 || job->checkpoints->part_saves.looking > 0;
}

gs_part_saves *gs_checkpoints_part_saves(const gs_job *job) {
    return &job->checkpoints->part_saves;
}

bool gs_checkpoints_knows(const gs_job *job, const char *directory) {
    return find_checkpoint(job->checkpoints, directory) != NULL;
}

gs_json *gs_checkpoints_names(const gs_job *job) {
    gs_json *names = gs_json_new_object();
    for (size_t i = 0; i < job->checkpoints->count; i++)
        gs_json_set_int(names, job->checkpoints->items[i].directory, job->checkpoints->items[i].step);
    return names;
}

gs_json *gs_checkpoints_newest(const gs_coordinator *coordinator, const gs_job *job) {
    const gs_checkpoint *newest = find_newest(job);
    if (!newest) return NULL;
    char directory[1100], path[1400];
    gs_checkpoints_job_directory(directory, sizeof directory, coordinator, job);
    snprintf(path, sizeof path, "%s/%s", directory, newest->directory);
    gs_json *resume = gs_json_new_object();
    gs_json_set_int(resume, "step", newest->step);
    gs_json_set_string(resume, "directory", path);
    return resume;
}

static gs_json *checkpoint_to_json(const gs_checkpoint *item) {
    gs_json *json = gs_json_new_object();
    gs_json_set_int(json, "step", item->step);
    gs_json_set_string(json, "directory", item->directory);
    gs_json_set_int(json, "bytes", item->bytes);
    gs_json_set_time(json, "created_at", item->created_ms);
    gs_json_set_bool(json, "verified", item->state != VERIFYING);
    gs_json_set_int(json, "world_size", item->world_size);
    gs_json_set_int(json, "parts", item->parts);
    gs_json_set_string(json, "digest", item->digest);
    gs_json_set_string(json, "reason", item->reason);
    gs_json_set_double(json, "seconds", item->seconds);
    return json;
}

// One checkpoint on its way through the writer.
typedef struct gs_checkpoint_write {
    gs_write base;
    gs_coordinator *coordinator;
    uint64_t job;
    char directory[NAME_LEN], path[1400];
    gs_json *files;  // owned; what to verify
    char digest[GS_DIGEST_TEXT_LEN];  // of the manifest
    char *body;  // owned; the row
} gs_checkpoint_write;

static void free_write(gs_checkpoint_write *write) {
    gs_json_release(write->files);
    free(write->body);
    free(write);
}

static gs_checkpoint_write *make_write(gs_coordinator *coordinator, const gs_job *job,
                                       const char *directory) {
    gs_checkpoint_write *write = calloc(1, sizeof *write);
    if (!write) return NULL;
    char job_directory[1100];
    gs_checkpoints_job_directory(job_directory, sizeof job_directory, coordinator, job);
    write->coordinator = coordinator;
    write->job = job->id;
    snprintf(write->directory, sizeof write->directory, "%s", directory);
    snprintf(write->path, sizeof write->path, "%s/%s", job_directory, directory);
    return write;
}

static void set_row(gs_checkpoint_write *write, const gs_checkpoint *item) {
    gs_json *row = checkpoint_to_json(item);
    gs_json_set_int(row, "created_ms", item->created_ms);
    gs_json_set_bool(row, "deleting", item->state == DELETING);
    free(write->body);
    write->body = NULL;
    gs_status status = gs_json_encode(&write->body, NULL, row, false);
    if (status.code) write->body = NULL;
    gs_json_release(row);
}

static gs_status put_row(gs_write *base, gs_job_store *store) {
    gs_checkpoint_write *write = (gs_checkpoint_write *)base;
    if (!write->body) return gs_error(GS_RESOURCE_EXHAUSTED, "checkpoint: out of memory");
    return gs_job_store_put_checkpoint(store, write->job, write->directory, write->body);
}

static gs_status remove_files(gs_write *base, gs_job_store *store) {
    (void)store;
    return gs_file_remove_checkpoint(((gs_checkpoint_write *)base)->path);
}

static gs_status remove_row(gs_write *base, gs_job_store *store) {
    gs_checkpoint_write *write = (gs_checkpoint_write *)base;
    return gs_job_store_delete_checkpoint(store, write->job, write->directory);
}

static void submit(gs_checkpoint_write *write, gs_status (*run)(gs_write *, gs_job_store *),
                   void (*done)(gs_write *, gs_status), bool touches_store) {
    write->base = (gs_write){.run = run, .done = done, .touches_store = touches_store};
    gs_writer_submit(write->coordinator->writer, &write->base);
}

static void row_removed(gs_write *base, gs_status status) {
    gs_checkpoint_write *write = (gs_checkpoint_write *)base;
    gs_job *job = gs_jobs_by_id(write->coordinator, write->job);
    if (job && !status.code) forget_checkpoint(job->checkpoints, write->directory);
    free_write(write);
}

static void files_removed(gs_write *base, gs_status status) {
    gs_checkpoint_write *write = (gs_checkpoint_write *)base;
    if (!status.code) {
        submit(write, remove_row, row_removed, true);
        return;
    }
    gs_log_warn("checkpoint not removed", "path=%s reason=\"%s\"", write->path, status.message);
    free_write(write);  // the row says "deleting": the next start tries again
}

static void marked_deleting(gs_write *base, gs_status status) {
    gs_checkpoint_write *write = (gs_checkpoint_write *)base;
    if (!status.code) submit(write, remove_files, files_removed, false);
    else free_write(write);
}

static void delete_checkpoint(gs_coordinator *coordinator, gs_job *job, gs_checkpoint *item) {
    gs_checkpoint_write *write = make_write(coordinator, job, item->directory);
    if (!write) return;
    item->state = DELETING;
    set_row(write, item);
    submit(write, put_row, marked_deleting, true);
}

static void apply_retention(gs_coordinator *coordinator, gs_job *job) {
    int64_t keep = job->spec.checkpoint.keep_last;
    if (keep < 1) keep = 1;
    for (;;) {
        gs_checkpoint *oldest = NULL;
        int64_t good = 0;
        for (size_t i = 0; i < job->checkpoints->count; i++) {
            gs_checkpoint *item = &job->checkpoints->items[i];
            if (item->state != GOOD) continue;
            good++;
            if (!oldest || item->step < oldest->step) oldest = item;
        }
        if (good <= keep) return;
        delete_checkpoint(coordinator, job, oldest);
    }
}

void gs_checkpoints_drop_missing(gs_coordinator *coordinator, gs_job *job) {
    char directory[1100], path[1400];
    gs_checkpoints_job_directory(directory, sizeof directory, coordinator, job);
    for (size_t i = 0; i < job->checkpoints->count; i++) {
        gs_checkpoint *item = &job->checkpoints->items[i];
        if (item->state != GOOD) continue;
        snprintf(path, sizeof path, "%s/%s/MANIFEST.json", directory, item->directory);
        if (access(path, F_OK) == 0) continue;
        gs_trace_missing(coordinator->trace, path);
        job->checkpoints->facts.failures_digest++;
        delete_checkpoint(coordinator, job, item);
        gs_event_add(coordinator, job, NULL, GS_SEVERITY_ERROR, "RestoredOlderCheckpoint",
                     "checkpoint %s is gone, or was found damaged and is now bad-%s; the newest "
                     "that is left is of step %lld (-1: none)",
                     item->directory, item->directory, (long long)gs_checkpoints_newest_step(job));
    }
}

static gs_status verify_files(gs_write *base, gs_job_store *store) {
    (void)store;
    gs_checkpoint_write *write = (gs_checkpoint_write *)base;
    char path[1700];
    snprintf(path, sizeof path, "%s/MANIFEST.json", write->path);
    GS_TRY(gs_file_verify(path, -1, write->digest));
    for (size_t i = 0; i < gs_json_count(write->files); i++) {
        const gs_json *file = gs_json_at(write->files, i);
        const char *name = gs_json_string_or(file, "name", "");
        if (!gs_file_name_plain(name)) {
            return gs_error(GS_INVALID_ARGUMENT, "checkpoint: \"%s\" is no file name", name);
        }
        snprintf(path, sizeof path, "%s/%s", write->path, name);
        GS_TRY(gs_file_verify(path, gs_json_int_or(file, "bytes", -1),
                              gs_json_string_or(file, "digest", "")));
    }
    return gs_ok();
}

static void row_written(gs_write *base, gs_status status) {
    gs_checkpoint_write *write = (gs_checkpoint_write *)base;
    gs_coordinator *coordinator = write->coordinator;
    gs_job *job = gs_jobs_by_id(coordinator, write->job);
    gs_checkpoint *item = job ? find_checkpoint(job->checkpoints, write->directory) : NULL;
    if (job) job->checkpoints->verifying--;
    if (item && status.code) {
        gs_event_add(coordinator, job, NULL, GS_SEVERITY_WARNING, "CheckpointFailed",
                     "checkpoint of step %lld is not recorded: %s", (long long)item->step,
                     status.message);
        job->checkpoints->facts.failures_io++;
        forget_checkpoint(job->checkpoints, write->directory);
    } else if (item) {
        item->state = GOOD;
        gs_checkpoint_facts *facts = &job->checkpoints->facts;
        facts->last_success_ms = item->created_ms;
        facts->last_success_step = item->step;
        facts->last_bytes = item->bytes;
        facts->last_verified_ms = gs_wall_ms();
        gs_histogram_observe(&facts->save_seconds, gs_checkpoint_bounds, 12, item->seconds);
        gs_event_add(coordinator, job, NULL, GS_SEVERITY_INFO, "CheckpointVerified",
                     "step %lld, %lld bytes in %s", (long long)item->step, (long long)item->bytes,
                     item->directory);
        gs_json *data = checkpoint_to_json(item);
        gs_json_set_string(data, "job", job->id_text);
        gs_watch_publish(coordinator, job, GS_TOPIC_CHECKPOINT, data);
        apply_retention(coordinator, job);
    }
    free_write(write);
}

static void files_verified(gs_write *base, gs_status status) {
    gs_checkpoint_write *write = (gs_checkpoint_write *)base;
    gs_coordinator *coordinator = write->coordinator;
    gs_job *job = gs_jobs_by_id(coordinator, write->job);
    gs_checkpoint *item = job ? find_checkpoint(job->checkpoints, write->directory) : NULL;
    if (item && !status.code) {
        item->state = GOOD;
        set_row(write, item);
        item->state = VERIFYING;  // until the row is durable
        submit(write, put_row, row_written, true);
        return;
    }
    if (job) job->checkpoints->verifying--;
    if (item) {
        gs_event_add(coordinator, job, NULL, GS_SEVERITY_ERROR, "CheckpointDamaged",
                     "checkpoint of step %lld does not verify: %s", (long long)item->step,
                     status.message);
        job->checkpoints->facts.failures_digest++;
        forget_checkpoint(job->checkpoints, write->directory);
    }
    free_write(write);
}

void gs_checkpoints_note_failed(gs_coordinator *coordinator, gs_job *job,
                                const gs_json *request) {
    const char *cause = gs_json_string_or(request, "cause", "io");
    gs_checkpoint_facts *facts = &job->checkpoints->facts;
    uint64_t *failures = !strcmp(cause, "space")      ? &facts->failures_space
                         : !strcmp(cause, "deadline") ? &facts->failures_deadline
                         : !strcmp(cause, "residuals") ? &facts->failures_residuals
                                                       : &facts->failures_io;
    ++*failures;
    // Of survivors, who save before they end: the next run begins with an older checkpoint.
    bool ends = !strcmp(gs_json_string_or(request, "reason", ""), "settled");
    bool lost = ends && !strcmp(cause, "residuals");
    gs_event_add(coordinator, job, NULL, GS_SEVERITY_WARNING,
                 lost ? "ResidualsLost" : "CheckpointFailed",
                 "step %lld could not be saved (%s): %s; %s",
                 (long long)gs_json_int_or(request, "step", 0), cause,
                 gs_json_string_or(request, "error", ""),
                 ends ? "the job goes back to its newest checkpoint" : "training goes on");
}

// The name of the directory: directly below the job's own.
static gs_status read_directory(char name[NAME_LEN], const gs_coordinator *coordinator,
                                const gs_job *job, const gs_json *request) {
    const char *directory = gs_json_string_or(request, "directory", "");
    char own[1100];
    gs_checkpoints_job_directory(own, sizeof own, coordinator, job);
    size_t own_len = strlen(own);
    if (!strncmp(directory, own, own_len) && directory[own_len] == '/') directory += own_len + 1;
    if (!gs_file_name_plain(directory)) {
        return gs_error(GS_INVALID_ARGUMENT, "directory: \"%s\" is not directly below %s", directory, own);
    }
    snprintf(name, NAME_LEN, "%s", directory);
    return gs_ok();
}

void gs_checkpoints_take(gs_coordinator *coordinator, gs_job *job, const char *directory,
                         const gs_json *report) {
    if (find_checkpoint(job->checkpoints, directory)) return;
    gs_checkpoint *item = add_checkpoint(job->checkpoints);
    gs_checkpoint_write *write = item ? make_write(coordinator, job, directory) : NULL;
    if (!write) return;
    const gs_json *files = gs_json_get(report, "files");
    snprintf(item->directory, sizeof item->directory, "%s", directory);
    snprintf(item->digest, sizeof item->digest, "%s", gs_json_string_or(report, "state_digest", ""));
    snprintf(item->reason, sizeof item->reason, "%s", gs_json_string_or(report, "reason", ""));
    item->step = gs_json_int_or(report, "step", 0);
    item->bytes = gs_json_int_or(report, "bytes", 0);
    item->seconds = gs_json_double_or(report, "seconds", 0);
    item->world_size = gs_json_int_or(report, "world_size", 0);
    item->parts = (int64_t)gs_json_count(files);
    item->created_ms = gs_wall_ms();
    job->checkpoints->verifying++;
    snprintf(write->digest, sizeof write->digest, "%s",
             gs_json_string_or(report, "manifest_digest", ""));
    write->files = gs_json_copy(files);
    submit(write, verify_files, files_verified, false);
}

void gs_checkpointed(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request) {
    gs_coordinator *coordinator = ctx;
    gs_member *member = gs_u64_map_get(&coordinator->members, peer->incarnation);
    gs_job *job = member ? member->job : NULL;
    gs_status status = member && !member->exited && job->id == peer->job
                           ? gs_ok()
                           : gs_error(GS_ABORTED, "this trainer belongs to no generation");
    char name[NAME_LEN] = "";
    bool failed_save = gs_json_get(request, "error") != NULL;
    bool is_part = gs_json_get(request, "num_parts") != NULL;
    if (!status.code && (is_part || !failed_save))
        status = read_directory(name, coordinator, job, request);
    if (!status.code && is_part) status = gs_part_report_check(request);
    gs_rpc_reply(call, status, status.code ? NULL : gs_json_new_object());
    if (status.code) return;
    member->heard_ns = gs_now_ns();
    if (is_part) gs_part_saves_report(coordinator, job, name, request);
    else if (failed_save) gs_checkpoints_note_failed(coordinator, job, request);
    else gs_checkpoints_take(coordinator, job, name, request);
}

void gs_list_checkpoints(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                         const gs_json *request) {
    (void)peer;
    gs_job *job = NULL;
    gs_json *body = NULL;
    gs_status status = gs_jobs_find(ctx, &job, &body, request);
    if (!status.code) {
        gs_json *items = gs_json_new_array();
        char directory[1100], path[1400];
        gs_checkpoints_job_directory(directory, sizeof directory, ctx, job);
        for (size_t i = job->checkpoints->count; i-- > 0;) {  // newest first
            const gs_checkpoint *checkpoint = &job->checkpoints->items[i];
            if (checkpoint->state == DELETING) continue;
            gs_json *item = checkpoint_to_json(checkpoint);
            snprintf(path, sizeof path, "%s/%s", directory, checkpoint->directory);
            gs_json_set_string(item, "path", path);
            gs_json_push(items, item);
        }
        body = gs_json_new_object();
        gs_json_set(body, "items", items);
    }
    gs_rpc_reply(call, status, body);
}

static void load_row(void *ctx, const gs_store_row *row) {
    gs_job *job = gs_jobs_by_id(ctx, row->job);
    gs_json *body = NULL;
    gs_status status = gs_json_parse(&body, row->body, strlen(row->body));
    gs_checkpoint *item = job && !status.code ? add_checkpoint(job->checkpoints) : NULL;
    if (item) {
        snprintf(item->directory, sizeof item->directory, "%s", row->key);
        snprintf(item->digest, sizeof item->digest, "%s", gs_json_string_or(body, "digest", ""));
        snprintf(item->reason, sizeof item->reason, "%s", gs_json_string_or(body, "reason", ""));
        item->step = gs_json_int_or(body, "step", 0);
        item->bytes = gs_json_int_or(body, "bytes", 0);
        item->seconds = gs_json_double_or(body, "seconds", 0);
        item->world_size = gs_json_int_or(body, "world_size", 0);
        item->parts = gs_json_int_or(body, "parts", 1);
        item->created_ms = gs_json_int_or(body, "created_ms", 0);
        item->state = gs_json_bool_or(body, "deleting", false) ? DELETING : GOOD;
    }
    gs_json_release(body);
}

gs_status gs_checkpoints_load(gs_coordinator *coordinator, gs_job_store *store) {
    return gs_job_store_load_checkpoints(store, load_row, coordinator);
}

static gs_status remove_directory(gs_write *base, gs_job_store *store) {
    (void)store;
    return gs_file_remove_tree(((gs_checkpoint_write *)base)->path);
}

static void directory_done(gs_write *base, gs_status status) {
    gs_checkpoint_write *write = (gs_checkpoint_write *)base;
    if (status.code) {
        gs_log_warn("checkpoint directory", "path=%s reason=\"%s\"", write->path, status.message);
    }
    free_write(write);
}

void gs_checkpoints_sweep(gs_coordinator *coordinator, gs_job *job) {
    for (size_t i = 0; i < job->checkpoints->count; i++) {
        if (job->checkpoints->items[i].state == DELETING) {
            delete_checkpoint(coordinator, job, &job->checkpoints->items[i]);
        }
    }
    gs_part_saves_adopt(coordinator, job);
}

void gs_checkpoints_purge(gs_coordinator *coordinator, gs_job *job) {
    gs_checkpoint_write *write = make_write(coordinator, job, ".");
    if (!write) return;
    gs_checkpoints_job_directory(write->path, sizeof write->path, coordinator, job);
    submit(write, remove_directory, directory_done, false);
}
