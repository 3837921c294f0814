#include "coordinator/store/leftovers.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/store/files/files.h"
#include "core/clock.h"
#include "core/log.h"

#define MARK ".removed-"

typedef struct leftovers {
    gs_write base;
    gs_writer *writer;  // borrowed
    char jobs_dir[1200];
    size_t count;
    uint64_t ids[];  // of deleted jobs, in order
} leftovers;

typedef struct removal {
    gs_write base;
    const atomic_bool *stopping;  // borrowed, of the writer: the next start goes on with the tree
    char aside[GS_ASIDE_LEN];
} removal;

gs_status gs_leftovers_put_aside(char aside[GS_ASIDE_LEN], const char *folder) {
    snprintf(aside, GS_ASIDE_LEN, "%s" MARK "%llx", folder, (unsigned long long)gs_now_ns());
    if (rename(folder, aside) == 0) return gs_ok();
    int failed = errno;
    aside[0] = '\0';
    return failed == ENOENT ? gs_ok() : gs_error_from_errno(failed, "%s", folder);
}

static gs_status remove_aside(gs_write *base, gs_job_store *store) {
    (void)store;
    const removal *it = (const removal *)base;
    return gs_file_remove_tree_unless(it->aside, it->stopping);
}

static void removed(gs_write *base, gs_status status) {
    if (status.code && status.code != GS_CANCELLED) gs_log_warn("folder not removed", "path=%s reason=\"%s\"", ((const removal *)base)->aside, status.message);
    free(base);
}

void gs_leftovers_remove(gs_writer *writer, const char *aside) {
    removal *it = aside[0] ? calloc(1, sizeof *it) : NULL;
    if (!it) return;  // the next start does it
    it->base = (gs_write){.run = remove_aside, .done = removed, .lane = GS_LANE_TREES};
    it->stopping = gs_writer_stopping(writer);
    snprintf(it->aside, sizeof it->aside, "%s", aside);
    gs_writer_submit(writer, &it->base);
}

static int compare_ids(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static bool is_left(const leftovers *it, const char *name) {
    uint64_t id;
    return gs_job_id_parse(&id, name) && bsearch(&id, it->ids, it->count, sizeof *it->ids, compare_ids);
}

static bool is_aside(const leftovers *it, const char *name) {
    (void)it;
    return strstr(name, MARK) != NULL;
}

static gs_status for_each(const leftovers *it, bool (*is_meant)(const leftovers *it, const char *name),
                          gs_status (*act)(const leftovers *it, const char *path)) {
    DIR *list = opendir(it->jobs_dir);
    if (!list) return gs_error_from_errno(errno, "%s", it->jobs_dir);
    for (const struct dirent *entry; (entry = readdir(list));) {
        if (!is_meant(it, entry->d_name)) continue;
        char path[1500];
        snprintf(path, sizeof path, "%s/%s", it->jobs_dir, entry->d_name);
        gs_status status = act(it, path);
        if (status.code == GS_CANCELLED) break;
        gs_log_info("left by a deletion", "path=%s result=%s", path, gs_code_name(status.code));
    }
    closedir(list);
    return gs_ok();
}

static gs_status put_aside(const leftovers *it, const char *path) {
    (void)it;
    char aside[GS_ASIDE_LEN];
    return gs_leftovers_put_aside(aside, path);
}

static gs_status remove_one(const leftovers *it, const char *path) {
    return gs_file_remove_tree_unless(path, gs_writer_stopping(it->writer));
}

static gs_status remove_all(gs_write *base, gs_job_store *store) {
    (void)store;
    return for_each((const leftovers *)base, is_aside, remove_one);
}

static void all_removed(gs_write *base, gs_status status) {
    if (status.code) gs_log_warn("not removed what deletions left", "reason=\"%s\"", status.message);
    free(base);
}

static gs_status put_all_aside(gs_write *base, gs_job_store *store) {
    (void)store;
    return for_each((const leftovers *)base, is_left, put_aside);
}

static void all_aside(gs_write *base, gs_status status) {
    leftovers *it = (leftovers *)base;
    if (status.code) gs_log_warn("not looked for what deletions left", "reason=\"%s\"", status.message);
    it->base = (gs_write){.run = remove_all, .done = all_removed, .lane = GS_LANE_TREES, .bytes = it->base.bytes};
    gs_writer_submit(it->writer, &it->base);
}

gs_write *gs_leftovers_create(const gs_job_table *jobs, const char *data_dir, gs_writer *writer) {
    if (jobs->num_tombstones == 0) return NULL;
    leftovers *it = calloc(1, sizeof *it + jobs->num_tombstones * sizeof *it->ids);
    if (!it) return NULL;
    it->base = (gs_write){.run = put_all_aside, .done = all_aside, .lane = GS_LANE_LOGS};
    it->writer = writer;
    snprintf(it->jobs_dir, sizeof it->jobs_dir, "%s/jobs", data_dir);
    for (size_t i = 0; i < jobs->num_tombstones; i++) {
        uint64_t id = jobs->tombstones[i].job;
        if (!gs_job_table_get(jobs, id)) it->ids[it->count++] = id;  // else it was adopted again
    }
    it->base.bytes = it->count * sizeof *it->ids;
    return &it->base;
}
