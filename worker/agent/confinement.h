// What a worker allows its trainers: whose they are, what they may take of the host, which secrets and variables they may be given.
//
// A trainer reads files and talks to its likes. It gets no privilege by what it executes (no_new_privs), keeps no capability but two
// that root needs to be of use (files of others, memory that stays in its place), and none as another user. Applied in the child
// between fork and exec, where system calls alone are safe.
#ifndef WORKER_AGENT_CONFINEMENT_H
#define WORKER_AGENT_CONFINEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/json/json.h"
#include "worker/agent/rank_cgroup.h"
#include "worker/trainer_user.h"

typedef struct gs_confinement_options {
    const gs_trainer_user *user;   // NULL: the agent's
    const char *cgroup, *secrets;  // "": none
    const char *pass_environment;  // names of variables, with commas between (rank_environment.h); NULL or "": none
    const char *withheld[3];       // files of the agent's own that no job may name, ended by NULL
    int64_t memory_bytes, open_files;  // of a slot; 0: no limit of ours
    bool core_files;  // also of those with keys and secrets
} gs_confinement_options;

typedef struct gs_confinement {
    gs_confinement_options options;  // the texts are the caller's
    gs_trainer_user user;
    gs_rank_cgroup *cgroup;  // owned; NULL: none
} gs_confinement;            // {0}: the agent's user, no limits, no secrets

// FAILED_PRECONDITION, NOT_FOUND, PERMISSION_DENIED name the option.
GS_NODISCARD gs_status gs_confinement_open(gs_confinement *out, const gs_confinement_options *options);
void gs_confinement_close(gs_confinement *confinement);

// For one trainer.
typedef struct gs_confined {
    const gs_confinement *of;
    int64_t memory_bytes, open_files;  // the less of what job and worker say; 0: none
    bool counts_data;                  // without a cgroup: its private memory
    bool has_secrets;                  // a key, or what its job names: nothing of its memory is written to a file when it fails
    int members_fd;                    // of its cgroup; -1: none
} gs_confined;

// `document`: what it is launched with ("spec", "device"). gs_confined_release when it has been started.
GS_NODISCARD gs_status gs_confined_begin(gs_confined *out, const gs_confinement *confinement, const gs_json *document, int slot);
void gs_confined_release(gs_confined *confined);
// In the child. NULL, or what could not be done; errno says why.
const char *gs_confined_apply(const gs_confined *confined);

#endif
