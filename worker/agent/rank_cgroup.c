#include "worker/agent/rank_cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"

#define ROOT "/sys/fs/cgroup"
#define NAME_BYTES 64

enum { REMOVE_MS = 250 };  // processes that are killed leave within milliseconds; the agent does nothing else meanwhile

// What the versions call the same things.
typedef struct version {
    const char *members, *limit, *swap_limit, *kills;
} version;

static const version versions[2] = {
    {"cgroup.procs", "memory.max", "memory.swap.max", "memory.events"},
    // The second counts memory and swap together.
    {"cgroup.procs", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"},
};

struct gs_rank_cgroup {
    int fd;  // of the directory
    const version *files;
};

static gs_status write_file(int directory_fd, const char *name, const char *text) {
    int fd = openat(directory_fd, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return gs_error_from_errno(errno, "%s", name);
    ssize_t put = write(fd, text, strlen(text));
    int error_number = errno;
    close(fd);
    return put < 0 ? gs_error_from_errno(error_number, "%s", name) : gs_ok();
}

static bool has_file(int directory_fd, const char *name) {
    return faccessat(directory_fd, name, F_OK, 0) == 0;
}

// The line "0::/path" of version 2.
static gs_status find_own(char path[PATH_MAX]) {
    char line[PATH_MAX];
    FILE *file = fopen("/proc/self/cgroup", "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(path, PATH_MAX, ROOT "%s", line + 3);
        found = true;
    }
    if (file) fclose(file);
    return found ? gs_ok() : gs_error(GS_FAILED_PRECONDITION, "own: this process is in no group of version 2");
}

// A group that others are made in holds no processes itself.
static gs_status step_aside(int fd) {
    char pid[24];
    if (mkdirat(fd, "agent", 0755) != 0 && errno != EEXIST) return gs_error_from_errno(errno, "agent");
    int below = openat(fd, "agent", O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (below < 0) return gs_error_from_errno(errno, "agent");
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    gs_status status = write_file(below, "cgroup.procs", pid);
    close(below);
    return gs_status_prefix(status, "agent");
}

// What a group of version 2 may divide is what the group above it gives, and what no hierarchy of version 1 has.
static gs_status check_controller(int fd) {
    char text[256] = "";
    int controllers = openat(fd, "cgroup.controllers", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (controllers < 0) return gs_error_from_errno(errno, "cgroup.controllers");
    ssize_t bytes = read(controllers, text, sizeof text - 1);
    close(controllers);
    text[bytes > 0 ? bytes : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    for (const char *word = text; *word; word += strcspn(word, " "), word += strspn(word, " ")) {
        if (strcspn(word, " ") == strlen("memory") && strncmp(word, "memory", strlen("memory")) == 0) return gs_ok();
    }
    return gs_error(GS_FAILED_PRECONDITION, "is not given the memory controller (cgroup.controllers: \"%s\"): give it that above, or "
                                            "a group of version 1's memory controller, if that has it", text);
}

static gs_status prepare(gs_rank_cgroup *cgroup, bool is_own) {
    if (has_file(cgroup->fd, versions[1].limit)) {
        cgroup->files = &versions[1];
        return gs_ok();
    }
    if (!has_file(cgroup->fd, "cgroup.subtree_control"))
        return gs_error(GS_FAILED_PRECONDITION, "is no group of version 2, and none of the memory controller of version 1");
    GS_TRY(check_controller(cgroup->fd));
    cgroup->files = &versions[0];
    if (is_own) GS_TRY(step_aside(cgroup->fd));
    gs_status status = write_file(cgroup->fd, "cgroup.subtree_control", "+memory");
    if (status.code) status.code = GS_FAILED_PRECONDITION;
    return status;
}

gs_status gs_rank_cgroup_open(gs_rank_cgroup **out, const char *directory) {
    char path[PATH_MAX];
    bool is_own = strcmp(directory, "own") == 0;
    snprintf(path, sizeof path, "%s", directory);
    if (is_own) GS_TRY(find_own(path));
    gs_rank_cgroup *cgroup = calloc(1, sizeof *cgroup);
    if (!cgroup) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    cgroup->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    gs_status status = gs_ok();
    if (cgroup->fd < 0) status = gs_error_from_errno(errno, "%s", path);
    else status = gs_status_prefix(prepare(cgroup, is_own), "%s", path);
    if (status.code) {
        gs_rank_cgroup_close(cgroup);
        return status;
    }
    *out = cgroup;
    return status;
}

void gs_rank_cgroup_close(gs_rank_cgroup *cgroup) {
    if (!cgroup) return;
    if (cgroup->fd >= 0) close(cgroup->fd);
    free(cgroup);
}

static void name_group(char name[NAME_BYTES], int slot) { snprintf(name, NAME_BYTES, "gradsync-slot-%d", slot); }

static int open_group(const gs_rank_cgroup *cgroup, int slot) {
    char name[NAME_BYTES];
    name_group(name, slot);
    return openat(cgroup->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

static gs_status set_limit(const gs_rank_cgroup *cgroup, int group_fd, int64_t memory_bytes) {
    char text[24] = "max";
    if (memory_bytes > 0) snprintf(text, sizeof text, "%lld", (long long)memory_bytes);
    else if (cgroup->files == &versions[1]) snprintf(text, sizeof text, "-1");
    GS_TRY(write_file(group_fd, cgroup->files->limit, text));
    if (memory_bytes <= 0) return gs_ok();
    // Where the kernel counts swap: what is over the limit is not to go there.
    bool counts_all = cgroup->files == &versions[1];
    gs_status ignored = write_file(group_fd, cgroup->files->swap_limit, counts_all ? text : "0");
    (void)ignored;
    return gs_ok();
}

gs_status gs_rank_cgroup_make(int *members_fd, const gs_rank_cgroup *cgroup, int slot, int64_t memory_bytes) {
    char name[NAME_BYTES];
    name_group(name, slot);
    gs_rank_cgroup_remove(cgroup, slot);  // of an agent that was killed
    if (mkdirat(cgroup->fd, name, 0755) != 0 && errno != EEXIST) return gs_error_from_errno(errno, "cgroup %s", name);
    int group_fd = open_group(cgroup, slot);
    if (group_fd < 0) return gs_error_from_errno(errno, "cgroup %s", name);
    gs_status status = set_limit(cgroup, group_fd, memory_bytes);
    *members_fd = -1;
    if (!status.code) {
        *members_fd = openat(group_fd, cgroup->files->members, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
        if (*members_fd < 0) status = gs_error_from_errno(errno, "%s", cgroup->files->members);
    }
    close(group_fd);
    return gs_status_prefix(status, "cgroup %s", name);
}

int64_t gs_rank_cgroup_kills(const gs_rank_cgroup *cgroup, int slot) {
    char text[1024] = "";
    int group_fd = open_group(cgroup, slot);
    if (group_fd < 0) return 0;
    int fd = openat(group_fd, cgroup->files->kills, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    close(group_fd);
    if (fd < 0) return 0;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    const char *found = strstr(text, "oom_kill ");
    // Of a line of its own: "oom_kill_disable" and "oom_group_kill" are others.
    while (found && found != text && found[-1] != '\n') found = strstr(found + 1, "oom_kill ");
    return found ? strtoll(found + strlen("oom_kill "), NULL, 10) : 0;
}

// Of version 2 at once; else one by one.
static void kill_members(const gs_rank_cgroup *cgroup, int group_fd) {
    char line[32];
    if (!write_file(group_fd, "cgroup.kill", "1").code) return;
    int fd = openat(group_fd, cgroup->files->members, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (fd >= 0 && !file) close(fd);
    while (file && fgets(line, sizeof line, file)) {
        long pid = strtol(line, NULL, 10);
        if (pid > 1 && pid != getpid()) kill((pid_t)pid, SIGKILL);
    }
    if (file) fclose(file);
}

void gs_rank_cgroup_remove(const gs_rank_cgroup *cgroup, int slot) {
    char name[NAME_BYTES];
    name_group(name, slot);
    gs_deadline deadline = gs_deadline_in_ms(REMOVE_MS);
    int group_fd = -1;
    while (unlinkat(cgroup->fd, name, AT_REMOVEDIR) != 0 && errno == EBUSY && !gs_deadline_passed(deadline)) {
        if (group_fd < 0) group_fd = open_group(cgroup, slot);
        if (group_fd >= 0) kill_members(cgroup, group_fd);
        gs_sleep_ns(GS_NS_PER_MS);
    }
    if (group_fd >= 0) close(group_fd);
    if (faccessat(cgroup->fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        gs_log_warn("a slot's control group is still in use", "group=%s", name);
}
