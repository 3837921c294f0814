#include "worker/agent/confinement.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/log.h"

#define NAME_BYTES 256
#define LOOKUP_BYTES 65536
// Highest capability that a kernel may ever have; it says itself where its own end.
#define MOST_CAPABILITIES 64

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
static void name_user(gs_confinement *out, const char *name, const char *home) {
    snprintf(out->home, sizeof out->home, "HOME=%s", home && *home ? home : "/");
    snprintf(out->user_name, sizeof out->user_name, "USER=%s", name);
    snprintf(out->log_name, sizeof out->log_name, "LOGNAME=%s", name);
}

static gs_status find_user(gs_confinement *out, const char *name, bool has_group) {
    char buffer[LOOKUP_BYTES];
    struct passwd entry, *found = NULL;
    unsigned number;
    bool is_number = read_number(&number, name);
    if (is_number) getpwuid_r(number, &entry, buffer, sizeof buffer, &found);
    else getpwnam_r(name, &entry, buffer, sizeof buffer, &found);
    name_user(out, found ? found->pw_name : name, found ? found->pw_dir : NULL);
    if (found) {
        out->user = found->pw_uid;
        out->num_groups = GS_CONFINEMENT_GROUPS;
        if (getgrouplist(found->pw_name, found->pw_gid, out->groups, &out->num_groups) < 0)
            return gs_error(GS_FAILED_PRECONDITION, "\"%s\" is in more than %d groups", name, GS_CONFINEMENT_GROUPS);
        return gs_ok();
    }
    if (!is_number) return gs_error(GS_NOT_FOUND, "there is no user \"%s\"", name);
    if (!has_group) return gs_error(GS_NOT_FOUND, "user %s has no name here: give its group too, as %s:GROUP", name, name);
    out->user = number;
    out->num_groups = 1;
    return gs_ok();
}

static gs_status choose_user(gs_confinement *out, const char *run_as) {
    char name[NAME_BYTES];
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
    out->changes_user = out->user != geteuid() || out->groups[0] != getegid();
    if (out->changes_user && geteuid() != 0)
        return gs_error(GS_PERMISSION_DENIED, "the worker has to be root to run trainers as another user");
    return gs_ok();
}

gs_status gs_confinement_open(gs_confinement *out, const gs_confinement_options *options) {
    *out = (gs_confinement){.options = *options};
    if (*options->run_as) GS_TRY(gs_status_prefix(choose_user(out, options->run_as), "--run-as %s", options->run_as));
    else if (geteuid() == 0) gs_log_info("trainers run as root: --run-as USER gives them less", "user=root");
    if (*options->cgroup) GS_TRY(gs_status_prefix(gs_rank_cgroup_open(&out->cgroup, options->cgroup), "--cgroup"));
    return gs_ok();
}

void gs_confinement_close(gs_confinement *confinement) {
    gs_rank_cgroup_close(confinement->cgroup);
    *confinement = (gs_confinement){0};
}

// 0 is none.
static int64_t least_of(int64_t a, int64_t b) {
    if (a <= 0 || b <= 0) return a > b ? a : b;
    return a < b ? a : b;
}

gs_status gs_confined_begin(gs_confined *out, const gs_confinement *confinement, const gs_json *document, int slot) {
    static const gs_confinement none = {0};
    const gs_json *limits = gs_json_get(gs_json_get(document, "spec"), "limits");
    if (!confinement) confinement = &none;
    const gs_confinement_options *options = &confinement->options;
    *out = (gs_confined){.of = confinement,
                         .memory_bytes = least_of(gs_json_int_or(limits, "memory_bytes", 0), options->memory_bytes),
                         .open_files = least_of(gs_json_int_or(limits, "open_files", 0), options->open_files),
                         .members_fd = -1};
    // Drivers of GPUs map more than they use.
    out->counts_data = !confinement->cgroup && strcmp(gs_json_string_or(document, "device", "cpu"), "cuda") != 0;
    if (!confinement->cgroup) return gs_ok();
    return gs_rank_cgroup_make(&out->members_fd, confinement->cgroup, slot, out->memory_bytes);
}

void gs_confined_release(gs_confined *confined) {
    if (confined->members_fd >= 0) close(confined->members_fd);
    confined->members_fd = -1;
}

// No higher than it is: who may raise a limit is not here any more.
static bool lower_limit(int resource, int64_t most) {
    struct rlimit limit;
    if (most <= 0) return true;
    if (getrlimit(resource, &limit) != 0) return false;
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max <= (rlim_t)most) return true;
    limit.rlim_max = (rlim_t)most;
    if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > limit.rlim_max) limit.rlim_cur = limit.rlim_max;
    return setrlimit(resource, &limit) == 0;
}

// Of those that there are, all but these can never come back; without the right to do so there are none to lose.
static void bound_capabilities(uint64_t kept) {
    for (unsigned long i = 0; i < MOST_CAPABILITIES; i++) {
        if (!(kept >> i & 1) && prctl(PR_CAPBSET_DROP, i, 0, 0, 0) != 0 && errno == EINVAL) return;
    }
}

static bool keep_capabilities(uint64_t kept) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2];
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capget, &header, sets) != 0) return false;
    bool has_more = false;
    for (int i = 0; i < 2; i++) {
        uint32_t may = (uint32_t)(kept >> 32 * i);
        has_more |= (sets[i].permitted & ~may) || sets[i].inheritable;
        sets[i].permitted &= may;
        sets[i].effective = sets[i].permitted;
        sets[i].inheritable = 0;
    }
    // Who has nothing to give up may be under a filter that knows no such call.
    return !has_more || syscall(SYS_capset, &header, sets) == 0;
}

// The kernel's own calls: the C library's would ask all threads, of which this process has one that runs.
static bool become(const gs_confinement *whose) {
    return syscall(SYS_setgroups, (size_t)whose->num_groups, whose->groups) == 0 &&
           syscall(SYS_setresgid, whose->groups[0], whose->groups[0], whose->groups[0]) == 0 &&
           syscall(SYS_setresuid, whose->user, whose->user, whose->user) == 0;
}

const char *gs_confined_apply(const gs_confined *confined) {
    const gs_confinement *whose = confined->of;
    bool is_root = !whose->changes_user && geteuid() == 0;
    uint64_t kept = is_root ? 1ULL << CAP_DAC_OVERRIDE | 1ULL << CAP_IPC_LOCK : 0;
    if (confined->members_fd >= 0 && write(confined->members_fd, "0", 1) != 1) return "enter its cgroup";
    if (!lower_limit(RLIMIT_NOFILE, confined->open_files)) return "limit its descriptors";
    if (confined->has_secrets && setrlimit(RLIMIT_CORE, &(struct rlimit){0}) != 0) return "keep its memory out of files";
    if (confined->counts_data && !lower_limit(RLIMIT_DATA, confined->memory_bytes)) return "limit its memory";
    bound_capabilities(kept);
    if (whose->changes_user && !become(whose)) return "become its user";
    if (!keep_capabilities(kept)) return "give up its capabilities";
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "renounce new privileges";
    return NULL;
}
