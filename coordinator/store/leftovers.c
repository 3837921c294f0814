#include "coordinator/store/leftovers.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/store/files/files.h"
#include "core/log.h"

typedef struct leftovers {
    gs_write base;
    char jobs_dir[1200];
    size_t count;
    uint64_t ids[];  // of deleted jobs, in order
} leftovers;

static int compare_ids(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static bool is_left(const leftovers *it, const char *name) {
    uint64_t id;
    return gs_job_id_parse(&id, name) && bsearch(&id, it->ids, it->count, sizeof *it->ids, compare_ids);
}

static gs_status remove_left(gs_write *base, gs_job_store *store) {
    (void)store;
    const leftovers *it = (const leftovers *)base;
    DIR *list = opendir(it->jobs_dir);
    if (!list) return gs_error_from_errno(errno, "%s", it->jobs_dir);
    for (const struct dirent *entry; (entry = readdir(list));) {
        if (!is_left(it, entry->d_name)) continue;
        char path[1500];
        snprintf(path, sizeof path, "%s/%s", it->jobs_dir, entry->d_name);
        gs_status status = gs_file_remove_tree(path);
        gs_log_info("left by a deletion", "path=%s result=%s", path, gs_code_name(status.code));
    }
    closedir(list);
    return gs_ok();
}

static void done(gs_write *base, gs_status status) {
    if (status.code) gs_log_warn("not looked for what deletions left", "reason=\"%s\"", status.message);
    free(base);
}

gs_write *gs_leftovers_create(const gs_job_table *jobs, const char *data_dir) {
    if (jobs->num_tombstones == 0) return NULL;
    leftovers *it = calloc(1, sizeof *it + jobs->num_tombstones * sizeof *it->ids);
    if (!it) return NULL;
    it->base = (gs_write){.run = remove_left, .done = done, .lane = GS_LANE_LOGS};
    snprintf(it->jobs_dir, sizeof it->jobs_dir, "%s/jobs", data_dir);
    for (size_t i = 0; i < jobs->num_tombstones; i++) {
        uint64_t id = jobs->tombstones[i].job;
        if (!gs_job_table_get(jobs, id)) it->ids[it->count++] = id;  // else it was adopted again
    }
    it->base.bytes = it->count * sizeof *it->ids;
    return &it->base;
}
