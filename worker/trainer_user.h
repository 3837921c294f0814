// Whose trainers are: the worker's user, or another one that may not read what is the worker's.
//
// Root may become anybody. A worker that was given the right to change its user (CAP_SETUID) and nothing else takes the trainers'
// user as its real one, keeps its own as the one that counts, and gives the right up before it speaks to anybody: from then on it can
// become that one user in a child, for good, and no other. By its real user it may still signal what it has started.
#ifndef WORKER_TRAINER_USER_H
#define WORKER_TRAINER_USER_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "core/status.h"

#define GS_TRAINER_GROUPS 64

typedef struct gs_trainer_user {
    bool is_another;  // than the worker's
    bool is_real;     // the worker has it as its real user, and keeps its groups
    uid_t user;
    gid_t groups[GS_TRAINER_GROUPS];  // the first is its own
    int num_groups;
    char home[PATH_MAX + 8], user_name[80], log_name[80];  // "HOME=…", "USER=…", "LOGNAME=…" of its entry
} gs_trainer_user;  // {0}: the worker's

// `run_as`: "user", "user:group", numbers; "": the worker's. Before the process has a second thread, and before it speaks to anybody.
// FAILED_PRECONDITION, NOT_FOUND, PERMISSION_DENIED name the option.
GS_NODISCARD gs_status gs_trainer_user_choose(gs_trainer_user *out, const char *run_as);
// In a child, between fork and exec; errno says why not. Until it executes something nobody of that user may look into it.
bool gs_trainer_user_become(const gs_trainer_user *who);
// Whether that user may do so (R_OK and the like), found out by a child that has become it.
GS_NODISCARD gs_status gs_trainer_user_may(bool *may, const gs_trainer_user *who, const char *path, int mode);

#endif
