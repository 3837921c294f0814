// Exit codes of agents and trainers: supervisors and the restart policy read them (sysexits).
//
// 65, 66, 77 and 78 are never restarted: retrying cannot help.
#ifndef WORKER_EXIT_CODE_H
#define WORKER_EXIT_CODE_H

#include "core/status.h"

typedef enum gs_exit_code {
    GS_EXIT_DONE = 0,
    GS_EXIT_USAGE = 64,
    GS_EXIT_BAD_DATA = 65,
    GS_EXIT_NO_INPUT = 66,
    GS_EXIT_UNREACHABLE = 69,    // no coordinator for too long
    GS_EXIT_INTERNAL = 70,
    GS_EXIT_SYSTEM = 71,
    GS_EXIT_IO = 74,
    GS_EXIT_TEMPORARY = 75,      // restart me
    GS_EXIT_ABORT_HUNG = 76,     // a communicator could not be aborted, a replica did not return
    GS_EXIT_PERMISSION = 77,
    GS_EXIT_CONFIGURATION = 78,  // also: slot or name busy
} gs_exit_code;

// What an error that ends a process means to whoever decides about a restart.
typedef struct gs_exit_reason {
    gs_exit_code exit_code;
    const char *error_class;  // "user", "infrastructure", "system"
    const char *hint;         // one sentence; NULL: none
} gs_exit_reason;

gs_exit_reason gs_exit_reason_of(gs_status status);
// Whatever the error's code: the GPU answers nothing else in this process.
gs_exit_reason gs_exit_reason_of_lost_device(void);

#endif
