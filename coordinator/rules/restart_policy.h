// What becomes of a job whose generation failed: a pure decision.
#ifndef COORDINATOR_RULES_RESTART_POLICY_H
#define COORDINATOR_RULES_RESTART_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "rpc/schema/job_spec.h"

typedef enum gs_failure_kind {
    GS_FAILURE_LOST = 0,  // killed, silent, exit codes 75 and 76
    GS_FAILURE_ERROR      // the trainer itself said so
} gs_failure_kind;

typedef struct gs_restart_facts {
    gs_failure_kind kind;
    int exit_code;          // −1: a signal, or none known
    bool committed;         // this or an earlier generation committed a step
    int startup_failures;   // in a row before the first committed step, this one included
    int restarts_in_window; // not yet forgiven, this one excluded
} gs_restart_facts;

typedef enum gs_restart_action {
    GS_RESTART_FAIL = 0,
    GS_RESTART_RESCALE,  // with whoever is there
    GS_RESTART_SAME      // wait for as many as before
} gs_restart_action;

typedef struct gs_restart_decision {
    gs_restart_action action;
    const char *reason;  // of a failure: "WorkerError", "RestartBudgetExhausted", …
    bool exhausted;      // it fails for the number of its restarts
    double backoff_seconds;
} gs_restart_decision;

gs_restart_decision gs_restart_decide(const gs_job_spec *spec, const gs_restart_facts *facts);

// 65, 66, 77, 78: wrong input stays wrong.
bool gs_exit_code_permanent(int exit_code);

#endif
