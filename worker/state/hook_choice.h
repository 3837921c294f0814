// The library's hook that a job's specification asks for, with its options.
#ifndef WORKER_STATE_HOOK_CHOICE_H
#define WORKER_STATE_HOOK_CHOICE_H

#include <stddef.h>

#include "core/status.h"
#include "gradsync/hooks/comm_hook.h"
#include "rpc/schema/job_hook.h"

// Points into itself: stays where it was made.
typedef struct gs_job_hook_choice {
    gs_hook_choice choice;  // its hook is NULL where the reducer's own will do
    gs_hook_choice inner;   // of a wrapper
    gs_hook_number numbers[GS_JOB_HOOK_MEMBERS];
} gs_job_hook_choice;

// UNIMPLEMENTED names a hook that this library does not have: a coordinator of another version let the job pass.
GS_NODISCARD gs_status gs_job_hook_choose(gs_job_hook_choice *out, const gs_job_hook *hook);

#endif
