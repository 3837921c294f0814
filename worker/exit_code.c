#include "worker/exit_code.h"

#include <stddef.h>

#include "gradsync/comm/comm.h"

_Static_assert((int)GS_EXIT_ABORT_HUNG == GS_COMM_EXIT_ABORT_HUNG, "the library ends the process so");

gs_exit_reason gs_exit_reason_of(gs_status status) {
    switch (status.code) {
    case GS_OK:
        return (gs_exit_reason){GS_EXIT_DONE, "user", NULL};
    case GS_INVALID_ARGUMENT:
    case GS_OUT_OF_RANGE:
        return (gs_exit_reason){GS_EXIT_BAD_DATA, "user",
                                "correct the job specification or the file that the error names"};
    case GS_DATA_LOSS:
        return (gs_exit_reason){GS_EXIT_BAD_DATA, "user",
                                "the file is damaged: write it again, or leave it out"};
    case GS_NOT_FOUND:
        return (gs_exit_reason){GS_EXIT_NO_INPUT, "user",
                                "data files are looked for below the worker's --data-root"};
    case GS_PERMISSION_DENIED:
    case GS_UNAUTHENTICATED:
        return (gs_exit_reason){GS_EXIT_PERMISSION, "user",
                                "let the worker's user read what the error names"};
    case GS_FAILED_PRECONDITION:
    case GS_ALREADY_EXISTS:
    case GS_UNIMPLEMENTED:
        return (gs_exit_reason){GS_EXIT_CONFIGURATION, "user", NULL};
    case GS_RESOURCE_EXHAUSTED:
        return (gs_exit_reason){GS_EXIT_SYSTEM, "infrastructure",
                                "give the worker more memory or disk, or the job smaller batches"};
    case GS_CANCELLED:
    case GS_DEADLINE_EXCEEDED:
    case GS_ABORTED:
    case GS_UNAVAILABLE:
        return (gs_exit_reason){GS_EXIT_TEMPORARY, "infrastructure", NULL};
    default:
        return (gs_exit_reason){GS_EXIT_INTERNAL, "system", NULL};
    }
}

gs_exit_reason gs_exit_reason_of_lost_device(void) {
    return (gs_exit_reason){GS_EXIT_TEMPORARY, "infrastructure",
                            "the GPU is taken up again by a new process; see dmesg when it recurs"};
}
