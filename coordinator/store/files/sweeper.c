#include "coordinator/store/files/sweeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "coordinator/model/memory.h"
#include "coordinator/store/files/files.h"
#include "core/directory.h"
#include "core/log.h"

#define PATH_LEN 2300

// A directory that is no checkpoint, as it was when it was seen first.
typedef struct candidate {
    char *path;  // owned
    struct timespec changed;
    int64_t since_ns, seen_ns;
} candidate;

struct gs_sweeper {
    int64_t age_ns;
    size_t most_watched;
    candidate *items;
    size_t count, reserved;
    _Atomic uint64_t num_refused;
};

gs_sweeper *gs_sweeper_create(int64_t age_ns, size_t most_watched) {
    gs_sweeper *sweeper = gs_model_alloc(1, sizeof *sweeper);
    sweeper->age_ns = age_ns;
    sweeper->most_watched = most_watched;
    return sweeper;
}

size_t gs_sweeper_count(const gs_sweeper *sweeper) { return sweeper->count; }

uint64_t gs_sweeper_num_refused(const gs_sweeper *sweeper) { return atomic_load(&sweeper->num_refused); }

static void forget(gs_sweeper *sweeper, size_t index) {
    free(sweeper->items[index].path);
    sweeper->items[index] = sweeper->items[--sweeper->count];
}

void gs_sweeper_destroy(gs_sweeper *sweeper) {
    if (!sweeper) return;
    while (sweeper->count) forget(sweeper, sweeper->count - 1);
    free(sweeper->items);
    free(sweeper);
}

static candidate *find(gs_sweeper *sweeper, const char *path) {
    for (size_t i = 0; i < sweeper->count; i++) {
        if (strcmp(sweeper->items[i].path, path) == 0) return &sweeper->items[i];
    }
    return NULL;
}

// Its age; 0: it is new, or has changed.
static int64_t note(gs_sweeper *sweeper, const char *path, struct timespec changed, int64_t now_ns) {
    candidate *known = find(sweeper, path);
    if (!known && sweeper->count == sweeper->most_watched) {
        atomic_fetch_add(&sweeper->num_refused, 1);
        return 0;
    }
    if (!known) {
        sweeper->items = gs_model_grow(sweeper->items, sweeper->count, &sweeper->reserved, sizeof *sweeper->items);
        known = &sweeper->items[sweeper->count++];
        size_t bytes = strlen(path) + 1;
        *known = (candidate){.path = memcpy(gs_model_alloc(bytes, 1), path, bytes), .changed = changed, .since_ns = now_ns};
    }
    bool is_same = known->changed.tv_sec == changed.tv_sec && known->changed.tv_nsec == changed.tv_nsec;
    if (!is_same) known->since_ns = now_ns;
    known->changed = changed;
    known->seen_ns = now_ns;
    return now_ns - known->since_ns;
}

static bool is_later(struct timespec a, struct timespec b) {
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

// When anything in it has, by the clock of its disk: to be compared with itself alone.
static struct timespec last_change(const char *path, struct timespec changed) {
    DIR *list = opendir(path);
    const struct dirent *entry;
    while (list && (entry = readdir(list))) {
        struct stat info;
        bool is_file = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
        if (is_file && fstatat(dirfd(list), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && is_later(info.st_ctim, changed))
            changed = info.st_ctim;
    }
    if (list) closedir(list);
    return changed;
}

static void look_at(gs_sweeper *sweeper, const char *path, int64_t now_ns) {
    char manifest[PATH_LEN + 100];
    struct stat info;
    snprintf(manifest, sizeof manifest, "%s/MANIFEST.json", path);
    if (lstat(path, &info) != 0 || !S_ISDIR(info.st_mode) || !gs_file_is_gone(manifest)) return;
    if (note(sweeper, path, last_change(path, info.st_ctim), now_ns) < sweeper->age_ns) return;
    gs_status status = gs_file_remove_tree(path, 2);
    gs_log_info("garbage removed", "path=%s result=%s", path, gs_code_name(status.code));
}

// What is below it and was not there this time; and what nobody has looked at for long: its job is over, or was purged.
static void forget_gone(gs_sweeper *sweeper, const char *directory, int64_t now_ns) {
    size_t length = strlen(directory);
    for (size_t i = sweeper->count; i-- > 0;) {
        const candidate *item = &sweeper->items[i];
        bool is_below = strncmp(item->path, directory, length) == 0 && item->path[length] == '/';
        bool is_gone = is_below && (item->seen_ns != now_ns || gs_file_is_gone(item->path));
        if (is_gone || now_ns - item->seen_ns > sweeper->age_ns) forget(sweeper, i);
    }
}

gs_status gs_sweeper_run(gs_sweeper *sweeper, const char *directory, int64_t now_ns) {
    GS_TRY(gs_directory_refuse_links(directory, 1));
    DIR *list = opendir(directory);
    if (!list && errno != ENOENT) return gs_error_from_errno(errno, "sweep %s", directory);
    const struct dirent *entry;
    while (list && (entry = readdir(list))) {
        char path[PATH_LEN];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        look_at(sweeper, path, now_ns);
    }
    if (list) closedir(list);
    forget_gone(sweeper, directory, now_ns);
    return gs_ok();
}
