#include "rpc/checkpoint/draft.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/random.h"
#include "rpc/json/sealed_json.h"

#define PREFIX ".draft-"

// A cluster's name may be anything.
static uint64_t word_of(const char *cluster) { return gs_digest_fold(gs_digest_of(cluster, strlen(cluster))); }

gs_status gs_draft_write(gs_draft *draft, gs_json *object, const char *directory, const char *cluster, uint32_t generation) {
    int length = snprintf(draft->path, sizeof draft->path, "%s/" PREFIX "%016" PRIx64 "-%u-%08x", directory, word_of(cluster),
                          generation, (unsigned)gs_random_from_system());
    if (length < (int)sizeof draft->path) return gs_sealed_json_draft(object, draft->path, &draft->bytes, &draft->digest);
    gs_json_release(object);
    return gs_error(GS_INVALID_ARGUMENT, "checkpoint directory: the path is too long");
}

gs_status gs_draft_publish(const gs_draft *draft, const char *path) { return gs_sealed_json_publish(draft->path, path); }

void gs_draft_drop(const gs_draft *draft) { unlink(draft->path); }

// As gs_fence_check would its writer.
static bool is_refused(const char *name, const char *cluster, uint32_t generation) {
    uint64_t word;
    unsigned number;
    if (sscanf(name, PREFIX "%16" SCNx64 "-%u-", &word, &number) != 2 || !number) return false;
    return word != word_of(cluster) || number < generation;
}

gs_status gs_draft_remove_refused(const char *directory, const char *cluster, uint32_t generation) {
    if (!generation) return gs_ok();
    DIR *list = opendir(directory);
    if (!list) return gs_error_from_errno(errno, "%s", directory);
    gs_status status = gs_ok();
    const struct dirent *entry;
    while ((errno = 0, entry = readdir(list))) {
        if (!is_refused(entry->d_name, cluster, generation) || unlinkat(dirfd(list), entry->d_name, 0) == 0 || errno == ENOENT) continue;
        if (!status.code) status = gs_error_from_errno(errno, "%s/%s", directory, entry->d_name);
    }
    if (errno && !status.code) status = gs_error_from_errno(errno, "%s", directory);
    closedir(list);
    return status;
}
