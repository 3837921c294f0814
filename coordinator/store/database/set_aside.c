#include "coordinator/store/database/set_aside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

#define MARK ".damaged-"
#define NAME_LEN 256

static bool is_there(const char *path) { return access(path, F_OK) == 0 || errno != ENOENT; }

// "." for a path without one.
static const char *split(char *folder, size_t folder_bytes, const char *path) {
    const char *base = strrchr(path, '/');
    snprintf(folder, folder_bytes, "%.*s", base ? (int)(base - path) : 1, base ? path : ".");
    return base ? base + 1 : path;
}

static gs_status move(const char *path, const char *aside, const char *suffix) {
    char from[4200], to[4200];
    snprintf(from, sizeof from, "%s%s", path, suffix);
    snprintf(to, sizeof to, "%s%s", aside, suffix);
    if (rename(from, to) == 0 || (errno == ENOENT && suffix[0])) return gs_ok();
    return gs_error_from_errno(errno, "%s cannot be moved aside", from);
}

// The write-ahead log may hold committed data that is nowhere else. It goes last: a database without its log opens and
// lacks what was in it, while a log that stays alone is found by the next start, which opens nothing.
static gs_status move_logs(const char *path, const char *aside) {
    gs_status status = move(path, aside, "-wal");
    return status.code ? status : move(path, aside, "-shm");
}

// What a power failure undoes of it is a state that the check knows: nobody needs to be told that this failed.
static void sync_folder(const char *path) {
    char name[4096];
    split(name, sizeof name, path);
    int folder = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    (void)!fsync(folder);
    close(folder);
}

gs_status gs_set_aside(const char *path, gs_status status) {
    char aside[4096];
    snprintf(aside, sizeof aside, "%s" MARK "%lld", path, (long long)gs_wall_ms());
    gs_status moved = move(path, aside, "");
    if (!moved.code) moved = move_logs(path, aside);
    sync_folder(path);
    if (moved.code) return gs_status_prefix(status, "%s is damaged, and %s", path, moved.message);
    return gs_status_prefix(status, "%s was damaged and is now %s", path, aside);
}

typedef struct found {
    char database[NAME_LEN];  // the newest that was set aside; "": none
    char log[NAME_LEN];       // of one that is not there; "": none
} found;

static void look_at(found *it, DIR *list, const char *name, const char *rest) {
    const char *suffix = strchr(rest, '-');
    if (!suffix) {
        if (strcmp(name, it->database) > 0) snprintf(it->database, sizeof it->database, "%s", name);
    } else if (!strcmp(suffix, "-wal")) {
        char owner[NAME_LEN];
        snprintf(owner, sizeof owner, "%.*s", (int)(suffix - name), name);
        bool is_alone = faccessat(dirfd(list), owner, F_OK, 0) != 0 && errno == ENOENT;
        if (is_alone) snprintf(it->log, sizeof it->log, "%s", name);
    }
}

static void find_aside(found *it, DIR *list, const char *base) {
    size_t length = strlen(base);
    *it = (found){0};
    for (const struct dirent *entry; (entry = readdir(list));) {
        const char *rest = entry->d_name + length;
        if (!strncmp(entry->d_name, base, length) && !strncmp(rest, MARK, strlen(MARK)))
            look_at(it, list, entry->d_name, rest + strlen(MARK));
    }
}

// Of a database that was set aside when a kill or an error came: a new one in its place would end it.
static gs_status move_forgotten_log(const char *path, const char *aside) {
    char log[4200];
    snprintf(log, sizeof log, "%s-wal", aside);
    if (is_there(log)) return gs_ok();
    gs_status status = move_logs(path, aside);
    sync_folder(path);
    return status;
}

gs_status gs_set_aside_check(const char *path) {
    char folder[4096], aside[4400];
    const char *base = split(folder, sizeof folder, path);
    DIR *list = opendir(folder);
    if (!list) return gs_ok();  // who makes the file says what is in the way
    found it;
    find_aside(&it, list, base);
    closedir(list);
    if (it.log[0])
        return gs_error(GS_DATA_LOSS,
                        "%s/%s is the log of a damaged database that is not beside it, and may hold what no other file "
                        "does: put it back as %s-wal, or move it away to go on without it", folder, it.log, base);
    if (is_there(path) || !it.database[0]) return gs_ok();
    snprintf(aside, sizeof aside, "%s/%s", folder, it.database);
    GS_TRY(move_forgotten_log(path, aside));
    return gs_error(GS_DATA_LOSS,
                    "%s was damaged, and nothing is in its place: repair or restore it as %s, or move it away to "
                    "begin with nothing", aside, base);
}
