#include "rpc/checkpoint/draft.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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

static gs_file_place place_of(const gs_draft *draft) { return (gs_file_place){draft->directory, draft->name}; }

gs_status gs_draft_write(gs_draft *draft, gs_json *object, const gs_directory *directory, const char *cluster, uint32_t generation) {
    draft->directory = directory;
    snprintf(draft->name, sizeof draft->name, PREFIX "%016" PRIx64 "-%u-%08x", word_of(cluster), generation,
             (unsigned)gs_random_from_system());
    return gs_sealed_json_draft(object, place_of(draft), &draft->bytes, &draft->digest);
}

gs_status gs_draft_publish(const gs_draft *draft, gs_file_place place) { return gs_sealed_json_publish(place_of(draft), place); }

void gs_draft_drop(const gs_draft *draft) { unlinkat(draft->directory->fd, draft->name, 0); }

// As gs_fence_check would its writer.
static bool is_refused(const char *name, const char *cluster, uint32_t generation) {
    uint64_t word;
    unsigned number;
    if (sscanf(name, PREFIX "%16" SCNx64 "-%u-", &word, &number) != 2 || !number) return false;
    return word != word_of(cluster) || number < generation;
}

// Its own descriptor: a list moves along the directory.
static DIR *list_of(const gs_directory *directory) {
    int fd = openat(directory->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !list) close(fd);
    return list;
}

gs_status gs_draft_remove_refused(const gs_directory *directory, const char *cluster, uint32_t generation) {
    if (!generation) return gs_ok();
    DIR *list = list_of(directory);
    if (!list) return gs_error_from_errno(errno, "%s", directory->path);
    gs_status status = gs_ok();
    const struct dirent *entry;
    while ((errno = 0, entry = readdir(list))) {
        if (!is_refused(entry->d_name, cluster, generation) || unlinkat(dirfd(list), entry->d_name, 0) == 0 || errno == ENOENT) continue;
        if (!status.code) status = gs_error_from_errno(errno, "%s/%s", directory->path, entry->d_name);
    }
    if (errno && !status.code) status = gs_error_from_errno(errno, "%s", directory->path);
    closedir(list);
    return status;
}
