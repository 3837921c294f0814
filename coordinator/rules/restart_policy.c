#include "coordinator/rules/restart_policy.h"

bool gs_exit_code_permanent(int exit_code) {
    return exit_code == 65 || exit_code == 66 || exit_code == 77 || exit_code == 78;
}

static gs_restart_decision fail(const char *reason) {
    return (gs_restart_decision){.action = GS_RESTART_FAIL, .reason = reason};
}

gs_restart_decision gs_restart_decide(const gs_job_spec *spec, const gs_restart_facts *facts) {
    if (gs_exit_code_permanent(facts->exit_code)) return fail("WorkerError");
    bool lost = facts->kind == GS_FAILURE_LOST;
    int wish = lost ? spec->restart.on_worker_lost : spec->restart.on_worker_error;
    if (wish == GS_ON_FAIL) return fail(lost ? "WorkerLost" : "WorkerError");
    if (!facts->committed && facts->startup_failures > 1) {
        return fail(lost ? "WorkerLost" : "WorkerError");
    }
    if (facts->restarts_in_window >= spec->restart.max_restarts) {
        gs_restart_decision decision = fail("RestartBudgetExhausted");
        decision.exhausted = true;
        return decision;
    }
    // The first loss of a healthy job costs no wait; a loop of them backs off.
    double backoff = 0;
    if (facts->restarts_in_window > 0 || !facts->committed) {
        backoff = spec->restart.backoff_initial_seconds;
        for (int i = 1; i < facts->restarts_in_window; i++) {
            backoff *= 2;
            if (backoff >= spec->restart.backoff_max_seconds) break;
        }
        if (backoff > spec->restart.backoff_max_seconds) backoff = spec->restart.backoff_max_seconds;
    }
    return (gs_restart_decision){
        .action = wish == GS_ON_RESTART ? GS_RESTART_SAME : GS_RESTART_RESCALE,
        .backoff_seconds = backoff,
    };
}
