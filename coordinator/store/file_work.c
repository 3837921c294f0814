#include "coordinator/store/file_work.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/model/memory.h"
#include "coordinator/store/files/files.h"
#include "core/clock.h"
#include "core/directory.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "rpc/checkpoint/checkpoint_commit.h"
#include "rpc/checkpoint/fence.h"
#include "rpc/checkpoint/life_sign.h"
#include "rpc/checkpoint/place_mark.h"

#define PATH_LEN 1400

typedef struct file_work {
    gs_work work;
    gs_trace *trace;  // borrowed; may be NULL
    gs_sweeper *sweeper;  // borrowed; of sweeps
    gs_marked_root *marked;  // borrowed; may be NULL
    gs_purges *purges;    // borrowed; of purges
    char job_text[GS_JOB_ID_LEN], cluster[GS_CLUSTER_ID_LEN];
    gs_job_savers savers;  // what others left, and nobody told of, is not the job's
    char path[PATH_LEN];          // of the directory; of the job's where it is about all of them
    gs_checkpoint_report report;  // owned; what to verify
    bool is_by_manifest;          // it has the step and the digest of that alone, and the files as the manifest says
    char (*known)[GS_CHECKPOINT_NAME_LEN];  // owned
    size_t num_known;
    bool has_checkpoints;  // the job does
} file_work;

static void release(gs_work *work) {
    file_work *it = (file_work *)work;
    gs_checkpoint_report_release(&it->report);
    free(it->known);
}

// `directory` NULL: the job's own.
static file_work *make_of(gs_work_kind kind, const gs_file_root *root, uint64_t job, const char *directory,
                          gs_status (*run)(gs_write *, gs_job_store *)) {
    file_work *it = gs_work_create(sizeof *it, kind, job, directory ? directory : "", run);
    it->work.release = release;
    it->trace = root->trace;
    it->marked = root->marked;
    gs_job_id_format(it->job_text, job);
    snprintf(it->path, sizeof it->path, "%s/%s%s%s", root->checkpoints_dir, it->job_text, directory ? "/" : "",
             directory ? directory : "");
    return it;
}

static file_work *make(gs_work_kind kind, const gs_file_root *root, const gs_job *job, const char *directory,
                       gs_status (*run)(gs_write *, gs_job_store *)) {
    file_work *it = make_of(kind, root, job->id, directory, run);
    it->savers = gs_job_savers_of(job);
    it->has_checkpoints = gs_checkpoints_newest(&job->checkpoints) != NULL;
    return it;
}

// Where something is not there, nor is the mark, the disk has gone.
static gs_status is_missing(const file_work *it, gs_status status) {
    if (status.code == GS_NOT_FOUND) GS_TRY(gs_marked_root_confirm(it->marked));
    return status;
}

static gs_status read_whole(const file_work *it) {
    char path[PATH_LEN + 300];
    snprintf(path, sizeof path, "%s/MANIFEST.json", it->path);
    GS_TRY(gs_file_verify(path, 2, -1, it->report.manifest_digest));
    for (size_t i = 0; i < it->report.num_files; i++) {
        const gs_checkpoint_file *file = &it->report.files[i];
        if (!gs_file_name_plain(file->name))
            return gs_error(GS_INVALID_ARGUMENT, "checkpoint: \"%s\" is no file name", file->name);
        snprintf(path, sizeof path, "%s/%s", it->path, file->name);
        GS_TRY(gs_file_verify(path, 2, file->bytes, file->digest));
    }
    return gs_ok();
}

// One that was copied here from another job would be this one's newest, and others go for it.
static gs_status commit(gs_json **manifest, uint64_t *bytes, const file_work *it, const char *path) {
    gs_status status = gs_checkpoint_commit(manifest, bytes, path);
    gs_trace_found(it->trace, path, status, *manifest, *bytes);
    if (status.code) return status;
    const char *job = gs_json_string_or(*manifest, "job", "");
    const gs_fence writer = gs_fence_of(*manifest);
    int64_t step = gs_json_int_or(gs_json_get(*manifest, "position"), "step", 0);
    bool is_ours = strcmp(job, it->job_text) == 0;
    const char *directory = strrchr(path, '/') + 1;
    if (is_ours && gs_job_savers_include(&it->savers, writer.generation, step, directory)) return gs_ok();
    status = gs_error(GS_DATA_LOSS, "is of job \"%.60s\"", job);
    if (is_ours)
        status = gs_error(GS_DATA_LOSS, "is of generation %u, and generation %u has begun since",
                          writer.generation, it->savers.generation);
    gs_json_release(*manifest);
    *manifest = NULL;
    return status;
}

static void read_text(char *text, size_t text_bytes, const gs_json *object, const char *key) {
    snprintf(text, text_bytes, "%s", gs_json_string_or(object, key, ""));
}

// In the words of a rank that has written all of it.
static void read_manifest(gs_checkpoint_report *report, const gs_json *manifest, uint64_t bytes) {
    const gs_json *parts = gs_json_get(manifest, "parts");
    report->step = gs_json_int_or(gs_json_get(manifest, "position"), "step", 0);
    report->bytes = (int64_t)bytes;
    report->world_size = gs_json_int_or(manifest, "world_size", 0);
    report->generation = gs_fence_of(manifest).generation;
    read_text(report->state_digest, sizeof report->state_digest, manifest, "state_digest");
    read_text(report->reason, sizeof report->reason, manifest, "reason");
    report->num_files = gs_json_count(parts);
    report->files = gs_model_alloc(report->num_files, sizeof *report->files);
    for (size_t i = 0; i < report->num_files; i++) {
        const gs_json *part = gs_json_at(parts, i);
        read_text(report->files[i].name, sizeof report->files[i].name, part, "name");
        read_text(report->files[i].digest, sizeof report->files[i].digest, part, "digest");
        report->files[i].bytes = gs_json_int_or(part, "bytes", -1);
    }
}

// What the job knows of it, and its manifest says the same.
static gs_status read_own_manifest(file_work *it) {
    const gs_checkpoint_report known = it->report;
    gs_json *manifest = NULL;
    uint64_t bytes = 0;
    GS_TRY(gs_checkpoint_commit(&manifest, &bytes, it->path));
    bool is_ours = strcmp(gs_json_string_or(manifest, "job", ""), it->job_text) == 0;
    it->report = (gs_checkpoint_report){0};
    read_manifest(&it->report, manifest, bytes);
    gs_json_release(manifest);
    if (is_ours && it->report.step == known.step && !strcmp(it->report.state_digest, known.state_digest)) return gs_ok();
    return gs_error(GS_DATA_LOSS, "%s/MANIFEST.json is not what was told of step %lld", it->path, (long long)known.step);
}

static gs_status verify(gs_write *base, gs_job_store *store) {
    (void)store;
    file_work *it = (file_work *)base;
    GS_FAILPOINT("store.verify");
    GS_TRY(gs_marked_root_check(it->marked));
    if (it->is_by_manifest) GS_TRY(is_missing(it, read_own_manifest(it)));
    return is_missing(it, read_whole(it));
}

gs_work *gs_file_work_verify(const gs_file_root *root, const gs_job *job, const gs_checkpoint *item, const gs_checkpoint_report *report) {
    file_work *it = make(GS_WORK_VERIFY, root, job, item->directory, verify);
    it->is_by_manifest = report == NULL;
    if (!report) {
        it->report.step = item->step;
        snprintf(it->report.state_digest, sizeof it->report.state_digest, "%s", item->digest);
        return &it->work;
    }
    it->report = *report;
    it->report.files = gs_model_alloc(report->num_files, sizeof *report->files);
    for (size_t i = 0; i < report->num_files; i++) it->report.files[i] = report->files[i];
    return &it->work;
}

static gs_status look_at_parts(gs_write *base, gs_job_store *store) {
    (void)store;
    file_work *it = (file_work *)base;
    gs_json *manifest = NULL;
    uint64_t bytes = 0;
    GS_TRY(gs_marked_root_check(it->marked));
    GS_TRY(is_missing(it, commit(&manifest, &bytes, it, it->path)));
    read_manifest(&it->work.found, manifest, bytes);
    gs_json_release(manifest);
    return gs_ok();
}

gs_work *gs_file_work_look_at_parts(const gs_file_root *root, const gs_job *job, const char *directory,
                                    bool all_reported) {
    file_work *it = make(GS_WORK_LOOK_AT_PARTS, root, job, directory, look_at_parts);
    it->work.all_reported = all_reported;
    return &it->work;
}

static bool is_known(const file_work *it, const char *name) {
    for (size_t i = 0; i < it->num_known; i++) {
        if (strcmp(it->known[i], name) == 0) return true;
    }
    return false;
}

// A manifest is made of its parts when all are there.
static void adopt_directory(file_work *it, const char *name) {
    char path[PATH_LEN + 300];
    gs_json *manifest = NULL;
    uint64_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s", it->path, name);
    gs_status status = commit(&manifest, &bytes, it, path);
    gs_json_release(manifest);
    // What could not be read now is looked at once more.
    if (status.code != GS_NOT_FOUND && status.code != GS_DATA_LOSS) gs_work_add_name(&it->work, name);
    if (status.code && status.code != GS_NOT_FOUND)
        gs_log_warn("no checkpoint", "path=%s reason=\"%s\"", path, status.message);
}

// A file system that is not mounted looks like that. Whoever has removed them leaves an empty directory, or makes one.
static gs_status is_not_there(const file_work *it) {
    return gs_error(GS_UNAVAILABLE, "%s: is not there, and had checkpoints", it->path);
}

static gs_status find_directories(gs_write *base, gs_job_store *store) {
    (void)store;
    file_work *it = (file_work *)base;
    GS_TRY(gs_marked_root_check(it->marked));
    DIR *list = opendir(it->path);
    if (!list && errno == ENOENT) return it->has_checkpoints ? is_not_there(it) : gs_marked_root_confirm(it->marked);
    if (!list) return gs_error_from_errno(errno, "%s", it->path);
    const struct dirent *entry;
    while ((errno = 0, entry = readdir(list))) {
        if (!strncmp(entry->d_name, "step-", 5) && gs_file_name_plain(entry->d_name) &&
            strlen(entry->d_name) < GS_CHECKPOINT_NAME_LEN && !is_known(it, entry->d_name))
            adopt_directory(it, entry->d_name);
    }
    // Half a list is none: what it has not named would be taken for gone.
    gs_status status = errno ? gs_error_from_errno(errno, "%s", it->path) : gs_ok();
    closedir(list);
    // One that cannot be read keeps ranks out, and they say so.
    if (!status.code && gs_fence_last(&it->work.left_by, it->path, it->cluster).code) it->work.left_by = 0;
    return status;
}

static void note_known(file_work *it, const gs_job *job, bool only_startable) {
    it->known = gs_model_alloc(job->checkpoints.count, sizeof *it->known);
    for (size_t i = 0; i < job->checkpoints.count; i++) {
        const gs_checkpoint *item = &job->checkpoints.items[i];
        if (only_startable && !gs_checkpoint_may_start(item)) continue;
        memcpy(it->known[it->num_known++], item->directory, GS_CHECKPOINT_NAME_LEN);
    }
}

gs_work *gs_file_work_find_directories(const gs_file_root *root, const gs_job *job, const char *cluster) {
    file_work *it = make(GS_WORK_FIND_DIRECTORIES, root, job, NULL, find_directories);
    snprintf(it->cluster, sizeof it->cluster, "%s", cluster);
    note_known(it, job, false);
    return &it->work;
}

static gs_status check(gs_write *base, gs_job_store *store) {
    (void)store;
    file_work *it = (file_work *)base;
    GS_TRY(gs_marked_root_check(it->marked));
    for (size_t i = 0; i < it->num_known; i++) {
        char path[PATH_LEN + 300];
        snprintf(path, sizeof path, "%s/%s/MANIFEST.json", it->path, it->known[i]);
        if (access(path, F_OK) == 0) continue;
        if (errno != ENOENT && errno != ENOTDIR) return gs_error_from_errno(errno, "%s", path);
        if (gs_file_is_gone(it->path)) return is_not_there(it);
        GS_TRY(gs_marked_root_confirm(it->marked));
        gs_trace_missing(it->trace, path);
        gs_work_add_name(&it->work, it->known[i]);
    }
    return gs_ok();
}

gs_work *gs_file_work_check(const gs_file_root *root, const gs_job *job) {
    file_work *it = make(GS_WORK_CHECK, root, job, NULL, check);
    note_known(it, job, true);
    return &it->work;
}

// A client that remembers what directories hold looks again when it has changed one.
static gs_status touch_directory(const char *path) {
    char name[PATH_LEN + 20];
    snprintf(name, sizeof name, "%s/.look", path);
    int file = open(name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0 || unlink(name) != 0) {
        gs_status status = gs_error_from_errno(errno, "%s", name);
        if (file >= 0) close(file);
        return status;
    }
    close(file);
    return gs_ok();
}

// Who closed it may have ended over that.
static gs_status look_above(gs_life_look *life, const char *path, const gs_fence *theirs) {
    bool is_above;
    GS_TRY(gs_fence_is_above(&is_above, path, theirs));
    if (is_above) GS_TRY(gs_fence_finish(path));
    life->is_raised = is_above;
    return gs_ok();
}

static gs_status look_for_life(gs_write *base, gs_job_store *store) {
    (void)store;
    file_work *it = (file_work *)base;
    gs_life_look *life = &it->work.life;
    const gs_fence theirs = {it->cluster, life->generation};
    int64_t number = 0;
    GS_FAILPOINT("life.look");
    GS_TRY(gs_marked_root_check(it->marked));
    GS_TRY(touch_directory(it->path));
    GS_TRY(gs_fence_stands(&life->stands, it->path, &theirs));
    GS_TRY(gs_life_sign_read(&number, it->path, &theirs));
    bool is_same = number == life->number;
    life->number = number;
    // It may be closed to them, and nobody have heard of it.
    if (!life->stands) return look_above(life, it->path, &theirs);
    if (!life->raises || !is_same) return gs_ok();
    GS_FAILPOINT("life.close");
    GS_TRY(gs_fence_close(it->path, &theirs));
    life->is_raised = true;
    GS_FAILPOINT("life.closed");
    return gs_ok();
}

gs_work *gs_file_work_look_for_life(const gs_file_root *root, const gs_job *job, const char *cluster, const gs_life_look *life) {
    file_work *it = make(GS_WORK_LOOK_FOR_LIFE, root, job, NULL, look_for_life);
    it->work.life = *life;
    snprintf(it->cluster, sizeof it->cluster, "%s", cluster);
    return &it->work;
}

static gs_status remove_checkpoint(gs_write *base, gs_job_store *store) {
    (void)store;
    const file_work *it = (const file_work *)base;
    GS_TRY(gs_marked_root_check(it->marked));
    gs_status status = gs_file_remove_checkpoint(it->path);
    return status.code == GS_NOT_FOUND ? gs_marked_root_confirm(it->marked) : status;
}

gs_work *gs_file_work_remove_checkpoint(const gs_file_root *root, const gs_job *job, const char *directory) {
    return &make(GS_WORK_REMOVE_CHECKPOINT, root, job, directory, remove_checkpoint)->work;
}

// Nobody waits for these two: what is not removed is a line in the log.
static gs_status remove_parts(gs_write *base, gs_job_store *store) {
    (void)store;
    const file_work *it = (const file_work *)base;
    char manifest[PATH_LEN + 20];
    snprintf(manifest, sizeof manifest, "%s/MANIFEST.json", it->path);
    // A rank may have made a checkpoint of it by itself, or nobody can tell: the next start adopts it.
    gs_status status = gs_marked_root_check(it->marked);
    if (!status.code && gs_file_is_gone(it->path)) status = gs_marked_root_confirm(it->marked);
    if (!status.code) status = gs_directory_refuse_links(it->path, 2);
    if (!status.code && gs_file_is_gone(manifest)) status = gs_file_remove_tree(it->path, 2);
    if (status.code) gs_log_warn("parts not removed", "path=%s reason=\"%s\"", it->path, status.message);
    return status;
}

gs_work *gs_file_work_remove_parts(const gs_file_root *root, const gs_job *job, const char *directory) {
    return &make(GS_WORK_REMOVE_PARTS, root, job, directory, remove_parts)->work;
}

static gs_status sweep(gs_write *base, gs_job_store *store) {
    (void)store;
    const file_work *it = (const file_work *)base;
    gs_status status = gs_marked_root_check(it->marked);
    if (!status.code) status = gs_sweeper_run(it->sweeper, it->path, gs_now_ns());
    if (status.code) gs_log_warn("not swept", "path=%s reason=\"%s\"", it->path, status.message);
    return status;
}

gs_work *gs_file_work_sweep(const gs_file_root *root, const gs_job *job) {
    file_work *it = make(GS_WORK_SWEEP, root, job, NULL, sweep);
    it->sweeper = root->sweeper;
    return &it->work;
}

// Below a mount point without its disk nothing is there either.
static gs_status check_place(const file_work *it) {
    char root[PATH_LEN];
    uint64_t life;
    if (!gs_file_is_gone(it->path)) return gs_ok();
    snprintf(root, sizeof root, "%s", it->path);
    *strrchr(root, '/') = '\0';
    gs_status status = gs_place_mark_read(&life, root, it->cluster);
    if (!status.code) return status;
    return gs_error(GS_UNAVAILABLE, "nor is the mark of this cluster there, its disk may be away: %.300s", status.message);
}

static gs_status purge(gs_write *base, gs_job_store *store) {
    (void)store;
    const file_work *it = (const file_work *)base;
    if (!gs_purges_begin(it->purges, it->work.job)) return gs_error(GS_CANCELLED, "%s: is not to be removed now", it->path);
    GS_FAILPOINT("store.purge");
    gs_status status = gs_marked_root_check(it->marked);
    if (!status.code) status = check_place(it);
    if (!status.code) status = gs_file_remove_tree_unless(it->path, gs_purges_stopping(it->purges));
    if (status.code && status.code != GS_CANCELLED)
        gs_log_warn("checkpoints not purged", "path=%s reason=\"%s\"", it->path, status.message);
    return status;
}

gs_work *gs_file_work_purge(const gs_file_root *root, gs_purges *purges, const char *cluster, uint64_t job) {
    file_work *it = make_of(GS_WORK_PURGE, root, job, NULL, purge);
    it->purges = purges;
    snprintf(it->cluster, sizeof it->cluster, "%s", cluster);
    return &it->work;
}
