// The real gradsync-coordinator as a child process, with ports of its own, killed and started again.
#ifndef TESTS_SUPPORT_COORDINATOR_PROCESS_H
#define TESTS_SUPPORT_COORDINATOR_PROCESS_H

#include <sys/types.h>

#include "core/clock.h"
#include "core/status.h"

typedef struct gs_coordinator_process {
    char *directory;  // owned; data below it
    char control[128], http[128];
    pid_t pid;
    const char *flag;  // that it gets besides; NULL: none
    int log_file;  // where its log goes; 0: "coordinator.log" in the directory
} gs_coordinator_process;

// Starts it and waits until it serves; a second start keeps addresses and data.
GS_NODISCARD gs_status gs_coordinator_process_start(gs_coordinator_process *process);
void gs_coordinator_process_pause(const gs_coordinator_process *process, int64_t duration_ns);  // SIGSTOP
void gs_coordinator_process_kill(gs_coordinator_process *process);  // SIGKILL
// SIGTERM; the exit code, −1 when it did not end in time or by a signal.
int gs_coordinator_process_stop(gs_coordinator_process *process);
int gs_coordinator_process_wait(gs_coordinator_process *process);  // the same, of one that ends by itself
// Kills what runs and removes the directory.
void gs_coordinator_process_release(gs_coordinator_process *process);

#endif
