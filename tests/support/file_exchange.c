#include "tests/support/file_exchange.h"

#include <errno.h>
#include <stdio.h>

#define PATH_LEN 600

static void make_path(char path[PATH_LEN], const file_exchange *self, const char *tag, int rank) {
    int used = snprintf(path, PATH_LEN, "%s/g%u-", self->dir, self->generation);
    for (const char *at = tag; *at && used < PATH_LEN - 20; at++)
        path[used++] = *at == '/' ? '+' : *at;
    snprintf(path + used, (size_t)(PATH_LEN - used), "-%d", rank);
}

static gs_status write_mine(const char *path, const void *mine, size_t bytes) {
    char temporary[PATH_LEN + 8];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = fopen(temporary, "we");
    if (!file) return gs_error_from_errno(errno, "%s", temporary);
    size_t written = fwrite(mine, 1, bytes, file);
    int failed = fclose(file) || written != bytes || rename(temporary, path);
    return failed ? gs_error_from_errno(errno, "%s", path) : gs_ok();
}

static gs_status read_theirs(const char *path, void *theirs, size_t bytes, gs_deadline deadline) {
    FILE *file;
    while (!(file = fopen(path, "re"))) {
        if (gs_deadline_passed(deadline))
            return gs_error(GS_DEADLINE_EXCEEDED, "%s is not there", path);
        gs_sleep_ns(GS_NS_PER_MS);
    }
    size_t got = fread(theirs, 1, bytes, file);
    fclose(file);
    return got == bytes ? gs_ok() : gs_error(GS_FAILED_PRECONDITION, "%s: %zu bytes", path, got);
}

gs_status file_exchange_run(void *ctx, const char *tag, const int *ranks, int num_ranks,
                            const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    const file_exchange *self = ctx;
    char path[PATH_LEN];
    make_path(path, self, tag, self->rank);
    GS_TRY(write_mine(path, mine, bytes));
    for (int i = 0; i < num_ranks; i++) {
        make_path(path, self, tag, ranks ? ranks[i] : i);
        GS_TRY(read_theirs(path, (char *)all + (size_t)i * bytes, bytes, deadline));
    }
    return gs_ok();
}
