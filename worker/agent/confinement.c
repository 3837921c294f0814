#include "worker/agent/confinement.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/log.h"

// Highest capability that a kernel may ever have; it says itself where its own end.
#define MOST_CAPABILITIES 64

gs_status gs_confinement_open(gs_confinement *out, const gs_confinement_options *options) {
    *out = (gs_confinement){.options = *options};
    if (options->user) out->user = *options->user;
    if (!out->user.is_another && geteuid() == 0) gs_log_info("trainers run as root: --run-as USER gives them less", "user=root");
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

const char *gs_confined_apply(const gs_confined *confined) {
    const gs_confinement *whose = confined->of;
    bool is_root = !whose->user.is_another && geteuid() == 0;
    uint64_t kept = is_root ? 1ULL << CAP_DAC_OVERRIDE | 1ULL << CAP_IPC_LOCK : 0;
    if (confined->members_fd >= 0 && write(confined->members_fd, "0", 1) != 1) return "enter its cgroup";
    if (!lower_limit(RLIMIT_NOFILE, confined->open_files)) return "limit its descriptors";
    if (confined->has_secrets && setrlimit(RLIMIT_CORE, &(struct rlimit){0}) != 0) return "keep its memory out of files";
    if (confined->counts_data && !lower_limit(RLIMIT_DATA, confined->memory_bytes)) return "limit its memory";
    bound_capabilities(kept);
    if (!gs_trainer_user_become(&whose->user)) return "become its user";
    if (!keep_capabilities(kept)) return "give up its capabilities";
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "renounce new privileges";
    return NULL;
}
