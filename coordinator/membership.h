// From go to the end: heartbeats, evidence, verdicts, abort, settle, exits, and what becomes of the job.
// Loop thread.
#ifndef COORDINATOR_MEMBERSHIP_H
#define COORDINATOR_MEMBERSHIP_H

#include "coordinator/coordinator.h"
#include "coordinator/fault.h"
#include "coordinator/run.h"

typedef struct gs_blame {
    gs_failure_kind kind;
    const gs_member *member;  // the culprit; NULL: not known
    const char *reason;       // "WorkerLost", "WorkerError", "PlanMismatch" …
    const char *class;        // "user", "infrastructure", "system"; NULL: from the exit code
    const char *hint;         // may be NULL
    bool evict;               // it is alive and will not leave by itself: its agent kills it
    gs_fault_kind fault;
    const gs_fault_facts *seen;  // with `fault`'s kind, by a rank; NULL: the coordinator found out, and accuses
                                 // the member
} gs_blame;

// Ends the generation: abort to all, then settle or exit. The first blame stays.
void gs_run_fail(gs_coordinator *coordinator, gs_run *run, const gs_blame *blame,
                 const char *format, ...) GS_PRINTF(4, 5);
// The trainer is gone, by report of its agent or because the agent came back without it.
void gs_member_exited(gs_coordinator *coordinator, gs_member *member, int exit_code, int signal,
                      const gs_json *log_tail);
// The step named `key` of a message, within what a job can reach; `fallback` when it is not there.
int64_t gs_member_step_of(const gs_json *message, const char *key, int64_t fallback);
// A step report of a member: progress is the strongest evidence.
void gs_member_progressed(gs_coordinator *coordinator, gs_member *member, int64_t applied_step);
// The state that a member that came back is owed: prepare, start, go, abort, drain.
void gs_member_resend(gs_coordinator *coordinator, gs_member *member);
void gs_member_send_abort(gs_run *run, gs_member *member);
void gs_member_send_drain(gs_run *run, gs_member *member);
void gs_run_drain(gs_coordinator *coordinator, gs_run *run, const char *reason, bool save,
                  double grace_seconds);
// No more waiting for Settle: decides with what is there.
void gs_run_settle_now(gs_coordinator *coordinator, gs_run *run);
void gs_run_kill(gs_coordinator *coordinator, gs_run *run, double grace_seconds);

void gs_heartbeat(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                  const gs_json *request);
void gs_fault(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);
void gs_settle(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
               const gs_json *request);
void gs_bye(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);

#endif
