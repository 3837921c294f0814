#include "coordinator/store/set_aside.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

#define MARK ".damaged-"

// The write-ahead log may hold committed data that is nowhere else. It goes first: one that stayed alone would be taken
// for the next database's own.
gs_status gs_set_aside(const char *path, gs_status status) {
    static const char *const suffixes[] = {"-wal", "-shm", ""};
    char aside[4096];
    snprintf(aside, sizeof aside, "%s" MARK "%lld", path, (long long)gs_wall_ms());
    for (int i = 0; i < 3; i++) {
        char from[4200], to[4200];
        snprintf(from, sizeof from, "%s%s", path, suffixes[i]);
        snprintf(to, sizeof to, "%s%s", aside, suffixes[i]);
        if (rename(from, to) == 0 || (errno == ENOENT && suffixes[i][0])) continue;
        return gs_status_prefix(status, "%s is damaged and %s cannot be moved aside", path, from);
    }
    return gs_status_prefix(status, "%s was damaged and is now %s", path, aside);
}

// The database among what was set aside, "" for none.
static void find_aside(char *name, size_t name_bytes, DIR *list, const char *base) {
    size_t length = strlen(base);
    name[0] = '\0';
    for (const struct dirent *entry; (entry = readdir(list));) {
        const char *rest = entry->d_name + length;
        bool is_one = !strncmp(entry->d_name, base, length) && !strncmp(rest, MARK, strlen(MARK));
        bool is_log = is_one && strchr(rest + strlen(MARK), '-');
        if (is_one && !is_log) snprintf(name, name_bytes, "%s", entry->d_name);
    }
}

gs_status gs_set_aside_check(const char *path) {
    if (access(path, F_OK) == 0 || errno != ENOENT) return gs_ok();
    const char *base = strrchr(path, '/');
    char folder[4096], name[256];
    snprintf(folder, sizeof folder, "%.*s", base ? (int)(base - path) : 1, base ? path : ".");
    DIR *list = opendir(folder);
    if (!list) return gs_ok();  // who makes the file says what is in the way
    find_aside(name, sizeof name, list, base ? base + 1 : path);
    closedir(list);
    if (!name[0]) return gs_ok();
    return gs_error(GS_DATA_LOSS,
                    "%s/%s was damaged, and nothing is in its place: repair or restore it as %s, or move it away to "
                    "begin with nothing", folder, name, base ? base + 1 : path);
}
