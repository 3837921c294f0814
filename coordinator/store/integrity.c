#include "coordinator/store/integrity.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "coordinator/store/job_store.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/thread.h"

struct gs_integrity {
    char path[1200];
    int wake_fd;
    gs_thread *thread;
    gs_status found;  // the thread's until is_known
    atomic_bool is_known;
};

static void check(void *ctx, const atomic_bool *stopping) {
    gs_integrity *it = ctx;
    int64_t begun_ns = gs_now_ns();
    gs_status status = gs_job_store_check(it->path, stopping);
    if (atomic_load(stopping)) return;
    if (!status.code) gs_log_info("database is sound", "seconds=%.3f", gs_seconds_since(begun_ns));
    else gs_log_error("database checked", "reason=\"%s\"", status.message);
    // A disk that cannot be read now may be read by the next start.
    it->found = status.code == GS_DATA_LOSS ? status : gs_ok();
    atomic_store(&it->is_known, true);
    uint64_t one = 1;
    ssize_t written = write(it->wake_fd, &one, sizeof one);
    (void)written;
}

gs_status gs_integrity_start(gs_integrity **out, const char *path, int wake_fd) {
    gs_integrity *it = calloc(1, sizeof *it);
    if (!it) return gs_error(GS_RESOURCE_EXHAUSTED, "integrity: out of memory");
    snprintf(it->path, sizeof it->path, "%s", path);
    it->wake_fd = wake_fd;
    gs_status status = gs_job_store_is_large(path) ? gs_thread_start(&it->thread, "integrity", check, it) : gs_ok();
    if (status.code) free(it);
    else *out = it;
    return status;
}

gs_status gs_integrity_found(const gs_integrity *it) { return it && atomic_load(&it->is_known) ? it->found : gs_ok(); }

void gs_integrity_stop(gs_integrity *it) {
    if (!it) return;
    gs_thread_stop(it->thread);
    free(it);
}
