// Named places where a debug build may fail, stall or die; a release contains none of them.
//
// Armed by the environment: GRADSYNC_FAILPOINTS="name=action[@count],name=action…" where count is
// the number of the pass that triggers (1 is the first, the default), or FIRST-LAST of all that do. Actions: `kill` (SIGKILL to
// this process), `stop` (SIGSTOP), `sleep:MS`, `error` (the call returns INTERNAL).
// An entry may be bound to one rank: "name#2=kill@5" triggers in the process whose RANK is 2.
#ifndef CORE_FAILPOINT_H
#define CORE_FAILPOINT_H

#include "core/status.h"

#ifdef GRADSYNC_FAILPOINTS
GS_NODISCARD gs_status gs_failpoint_pass(const char *name);
#define GS_FAILPOINT(name) GS_TRY(gs_failpoint_pass(name))
// For functions that return nothing: kill, stop and sleep work, `error` is ignored.
#define GS_FAILPOINT_VOID(name)                                                                    \
    do {                                                                                           \
        gs_status gs_failpoint_ignored = gs_failpoint_pass(name);                                  \
        (void)gs_failpoint_ignored;                                                                \
    } while (0)
#else
#define GS_FAILPOINT(name) ((void)0)
#define GS_FAILPOINT_VOID(name) ((void)0)
#endif

#endif
