#include "worker/trainer_user.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAME_BYTES 256
#define LOOKUP_BYTES 65536

// Whole, and a number.
static bool read_number(unsigned *number, const char *text) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    // The highest one is "unchanged" to the kernel.
    if (!*text || *end || errno || *text == '-' || *text == '+' || value >= UINT32_MAX) return false;
    *number = (unsigned)value;
    return true;
}

static gs_status find_group(gid_t *group, const char *name) {
    char buffer[LOOKUP_BYTES];
    struct group entry, *found = NULL;
    if (read_number(group, name)) return gs_ok();
    getgrnam_r(name, &entry, buffer, sizeof buffer, &found);
    if (!found) return gs_error(GS_NOT_FOUND, "there is no group \"%s\"", name);
    *group = found->gr_gid;
    return gs_ok();
}

// Without an entry: no home, and its number for a name.
static void name_user(gs_trainer_user *out, const char *name, const char *home) {
    snprintf(out->home, sizeof out->home, "HOME=%s", home && *home ? home : "/");
    snprintf(out->user_name, sizeof out->user_name, "USER=%s", name);
    snprintf(out->log_name, sizeof out->log_name, "LOGNAME=%s", name);
}

static gs_status find_user(gs_trainer_user *out, const char *name, bool has_group) {
    char buffer[LOOKUP_BYTES];
    struct passwd entry, *found = NULL;
    unsigned number;
    bool is_number = read_number(&number, name);
    if (is_number) getpwuid_r(number, &entry, buffer, sizeof buffer, &found);
    else getpwnam_r(name, &entry, buffer, sizeof buffer, &found);
    name_user(out, found ? found->pw_name : name, found ? found->pw_dir : NULL);
    if (found) {
        out->user = found->pw_uid;
        out->num_groups = GS_TRAINER_GROUPS;
        if (getgrouplist(found->pw_name, found->pw_gid, out->groups, &out->num_groups) < 0)
            return gs_error(GS_FAILED_PRECONDITION, "\"%s\" is in more than %d groups", name, GS_TRAINER_GROUPS);
        return gs_ok();
    }
    if (!is_number) return gs_error(GS_NOT_FOUND, "there is no user \"%s\"", name);
    if (!has_group) return gs_error(GS_NOT_FOUND, "user %s has no name here: give its group too, as %s:GROUP", name, name);
    out->user = number;
    out->num_groups = 1;
    return gs_ok();
}

// Those of this thread, of which there is no other.
static gs_status read_capabilities(uint64_t *effective) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2];
    if (syscall(SYS_capget, &header, sets) != 0) return gs_error_from_errno(errno, "capabilities");
    *effective = sets[0].effective | (uint64_t)sets[1].effective << 32;
    return gs_ok();
}

static gs_status give_up_capabilities(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[2] = {{0}};
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capset, &header, none) != 0) return gs_error_from_errno(errno, "giving up capabilities");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return gs_error_from_errno(errno, "renouncing new privileges");
    return gs_ok();
}

static int count_threads(void) {
    char line[128];
    int count = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && !count && fgets(line, sizeof line, file)) sscanf(line, "Threads: %d", &count);
    if (file) fclose(file);
    return count;
}

// Any other thread would keep the right that this one gives up.
static gs_status take_real_user(gs_trainer_user *out) {
    uid_t own = geteuid();
    int threads = count_threads();
    if (threads != 1)
        return gs_error(GS_FAILED_PRECONDITION, "a library has begun %d threads, and each has the right to change its user: start the "
                                                "worker with OPENBLAS_NUM_THREADS=1", threads);
    if (out->groups[0] != getegid())
        return gs_error(GS_PERMISSION_DENIED, "the worker may change its user, but not its group: name that too, as USER:%u", (unsigned)getegid());
    if (setresuid(out->user, own, own) != 0) return gs_error_from_errno(errno, "taking the user");
    GS_TRY(give_up_capabilities());
    out->is_real = true;
    return gs_ok();
}

// A worker that runs trainers as its own user has no use for the right to change it, which a service may have been given.
static gs_status renounce(void) {
    uint64_t capabilities;
    if (geteuid() == 0) return gs_ok();
    GS_TRY(read_capabilities(&capabilities));
    if (!(capabilities >> CAP_SETUID & 1)) return gs_ok();
    int threads = count_threads();
    if (threads != 1)
        return gs_error(GS_FAILED_PRECONDITION, "a library has begun %d threads, and each has the right to change its user: start the "
                                                "worker with OPENBLAS_NUM_THREADS=1, or without CAP_SETUID", threads);
    return give_up_capabilities();
}

static gs_status choose(gs_trainer_user *out, const char *run_as) {
    char name[NAME_BYTES];
    uint64_t capabilities;
    if (strlen(run_as) >= sizeof name) return gs_error(GS_INVALID_ARGUMENT, "the name is too long");
    snprintf(name, sizeof name, "%s", run_as);
    char *colon = strchr(name, ':');
    if (colon) *colon = '\0';
    GS_TRY(find_user(out, name, colon != NULL));
    if (colon) {
        // This group, and no others that the user is in.
        GS_TRY(find_group(&out->groups[0], colon + 1));
        out->num_groups = 1;
    }
    out->is_another = out->user != geteuid() || out->groups[0] != getegid();
    if (!out->is_another) return renounce();
    if (geteuid() == 0) return gs_ok();
    GS_TRY(read_capabilities(&capabilities));
    if (!(capabilities >> CAP_SETUID & 1))
        return gs_error(GS_PERMISSION_DENIED, "the worker has to be root, or to have CAP_SETUID, to run trainers as another user");
    // With this right they could be anybody again.
    if (out->user == 0) return gs_error(GS_PERMISSION_DENIED, "trainers of a worker that is not root are not root");
    return take_real_user(out);
}

gs_status gs_trainer_user_choose(gs_trainer_user *out, const char *run_as) {
    *out = (gs_trainer_user){0};
    return run_as && *run_as ? gs_status_prefix(choose(out, run_as), "--run-as %s", run_as) : renounce();
}

// The kernel's own calls: the C library's would ask all threads, of which a child has one that runs.
bool gs_trainer_user_become(const gs_trainer_user *who) {
    if (!who->is_another) return true;
    if (!who->is_real && (syscall(SYS_setgroups, (size_t)who->num_groups, who->groups) != 0 ||
                          syscall(SYS_setresgid, who->groups[0], who->groups[0], who->groups[0]) != 0))
        return false;
    if (syscall(SYS_setresuid, who->user, who->user, who->user) != 0) return false;
    // It is a copy of the worker, key and all. Executing a program makes it another one, and sets this anew.
    return prctl(PR_SET_DUMPABLE, 0) == 0;
}

gs_status gs_trainer_user_may(bool *may, const gs_trainer_user *who, const char *path, int mode) {
    enum { YES = 0, NO, NOT_THAT_USER };
    int ended = 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (!gs_trainer_user_become(who)) _exit(NOT_THAT_USER);
        _exit(access(path, mode) == 0 ? YES : NO);
    }
    if (pid < 0) return gs_error_from_errno(errno, "fork");
    while (waitpid(pid, &ended, 0) < 0)
        if (errno != EINTR) return gs_error_from_errno(errno, "asking what trainers may");
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) == NOT_THAT_USER)
        return gs_error(GS_PERMISSION_DENIED, "a child could not become the user of trainers");
    *may = WEXITSTATUS(ended) == YES;
    return gs_ok();
}
