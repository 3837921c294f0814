// How a run comes to its end, whoever sees to it: drained, killed, failed and settled; and what the exit of a
// member means. What becomes of the job then is run_end.h.
#ifndef COORDINATOR_ENGINE_RUNS_RUN_LIFE_H
#define COORDINATOR_ENGINE_RUNS_RUN_LIFE_H

#include "coordinator/engine/base/mind.h"

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
void gs_run_fail(gs_engine *engine, gs_run *run, const gs_blame *blame, const char *format, ...)
    GS_PRINTF(4, 5);
void gs_run_drain(gs_engine *engine, gs_run *run, bool save, double grace_seconds);
void gs_run_kill(gs_engine *engine, gs_run *run, double grace_seconds);
// No more waiting for Settle: decides with what is there.
void gs_run_settle_now(gs_engine *engine, gs_run *run);
// The same once nobody is awaited any more.
void gs_run_try_settle(gs_engine *engine, gs_run *run);
// The trainer is gone, by report of its agent or because the agent came back without it. Takes log_tail.
void gs_member_exited(gs_engine *engine, gs_member *member, int exit_code, int signal, char *log_tail);
// A step report of a member: progress is the strongest evidence.
void gs_member_progressed(gs_engine *engine, gs_member *member, int64_t applied_step);
// A row of it is on the disk.
void gs_run_recorded(gs_engine *engine, gs_run *run);
// All rounds end; who is held gets `status`.
void gs_run_drop_exchanges(gs_engine *engine, gs_run *run, gs_status status);
// Ends streams and held calls that are left, and forgets the run: its job has none any more.
void gs_run_release(gs_engine *engine, gs_run *run);

#endif
