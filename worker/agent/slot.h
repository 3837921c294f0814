// A place for one trainer: its process, its output, its end.
//
// The process is a re-execution of this binary in a process group of its own, with no more rights than it needs
// (confinement.h); it dies with its agent. Owned by the agent's thread, which polls the descriptors.
#ifndef WORKER_AGENT_SLOT_H
#define WORKER_AGENT_SLOT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/status.h"
#include "rpc/json/json.h"
#include "worker/agent/agent_reports.h"
#include "worker/agent/confinement.h"
#include "worker/agent/log_lines.h"
#include "worker/agent/rank_environment.h"
#include "worker/launch.h"

#define GS_SLOT_TAIL_LINES 20

typedef struct gs_slot gs_slot;

typedef struct gs_slot_output {
    gs_slot *slot;
    const char *stream;  // "stdout", "stderr"
    int fd;              // -1: closed
    gs_log_lines lines;
} gs_slot_output;

struct gs_slot {
    int index;
    gs_agent_reports *reports;  // borrowed
    const gs_confinement *confinement;  // borrowed; NULL: no limits
    gs_rank_environment environment;    // of its trainer; owned
    pid_t pid;                // 0: free
    int pidfd;
    char job[24], cluster[GS_CLUSTER_ID_LEN];
    gs_json *document;  // owned; that it was started with
    uint64_t incarnation;
    gs_curve_pair own_pair;  // by which its trainer is known, where the coordinator asks for keys; else {0}
    bool has_pair;
    gs_launch_page *page;
    gs_slot_output outputs[2];
    int64_t position;   // of its last line
    int64_t kills_before;  // of its control group, for want of memory, when it was started
    int64_t kill_at_ns; // 0: not asked to end
    bool is_held;
    int64_t held_ns;    // since when it is, if so
    char *tail[GS_SLOT_TAIL_LINES];  // owned; a ring of the last lines
    uint64_t num_tail;
};

void gs_slot_init(gs_slot *slot, int index, gs_agent_reports *reports, const gs_confinement *confinement);

// Starts a trainer with this launch document; `key`, which it shows to the coordinator, may be NULL. FAILED_PRECONDITION, NOT_FOUND, PERMISSION_DENIED: what the job wants it
// cannot have here.
GS_NODISCARD gs_status gs_slot_start(gs_slot *slot, const gs_json *document, const gs_key_file *key);
static inline bool gs_slot_busy(const gs_slot *slot) {
    return slot->pid != 0;
}
// SIGTERM now and SIGKILL when the grace has passed; or SIGKILL at once.
void gs_slot_stop(gs_slot *slot, bool kill_now, double grace_seconds);
void gs_slot_tick(gs_slot *slot);  // the grace
// Stands still, or goes on. Who is to end by itself goes on.
void gs_slot_hold(gs_slot *slot, bool holds);
// It stands still for longer than both together; a limit of 0 is none.
bool gs_slot_held_longer(const gs_slot *slot, double limit_seconds, double margin_seconds);
// Reads what is there.
void gs_slot_read(gs_slot *slot, gs_slot_output *output);
// After its pidfd became readable: the last output, the exit report; then the slot is free.
void gs_slot_reap(gs_slot *slot, const char *host);
// {slot, job, cluster, rank, generation, world_size, applied_step, incarnation, pid, numbers?}: the last as its coordinator said it
gs_json *gs_slot_describe(const gs_slot *slot);
// The same with what a coordinator needs to adopt it: {launch_token, device, checkpoints_dir, spec}.
gs_json *gs_slot_describe_fully(const gs_slot *slot);

#endif
