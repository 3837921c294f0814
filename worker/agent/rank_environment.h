// The environment of a rank: what it needs of the agent's own, by name, with the variables that the job sets.
//
// Nothing of the agent's is a rank's unless a list here or the agent's --pass-environment names it, for whoever starts a worker
// may have anything in the environment, and whoever submits jobs may have a rank print what it has.
//
// A job names its secrets. Their values lie in files of the agent's --secrets directory, as systemd (LoadCredential=) and
// Kubernetes put them there, and go from there into the environment of the rank's process: never into a message, a launch document
// or a log of the agent. What a rank prints is looked through for them before it is sent anywhere.
#ifndef WORKER_AGENT_RANK_ENVIRONMENT_H
#define WORKER_AGENT_RANK_ENVIRONMENT_H

#include <stddef.h>

#include "core/status.h"
#include "rpc/json/json.h"

// Shorter ones could not be taken out of a log without destroying it.
#define GS_SECRET_LEAST_BYTES 6
#define GS_SECRET_MOST_BYTES 65536

typedef struct gs_rank_environment {
    char **variables;  // owned; "NAME=value", ended by NULL: for execve
    size_t count;
    char **secrets;  // owned; lines of their values
    size_t num_secrets;
} gs_rank_environment;  // {0} is empty

typedef struct gs_rank_environment_sources {
    char *const *own;     // the agent's environment, ended by NULL; NULL: empty
    char *const *user;    // "NAME=value" in the place of the agent's, where ranks are another user's; ended by NULL; NULL: none
    const char *passed;   // names that are taken from it beside the usual ones, with commas between; NULL or "": none
    const char *secrets;  // their directory; NULL or "": there are none here
    const char *const *withheld;  // paths of files that no job may name, whatever directory has them; ended by NULL; NULL: none
    char *const *set;     // "NAME=value" of the agent for this rank, which nobody overrides, ended by NULL; NULL: none
} gs_rank_environment_sources;

// `spec`: the job's, with "environment" or without.
// FAILED_PRECONDITION, NOT_FOUND, PERMISSION_DENIED name the secret.
GS_NODISCARD gs_status gs_rank_environment_make(gs_rank_environment *out, const gs_json *spec,
                                                const gs_rank_environment_sources *sources);
// Overwrites what is secret.
void gs_rank_environment_release(gs_rank_environment *environment);

// Where a text that goes on may be cut near `at` so that no secret is: the longest secret but a byte has to be seen behind it.
size_t gs_rank_environment_cut(const gs_rank_environment *environment, const char *text, size_t bytes, size_t at);
size_t gs_rank_environment_longest(const gs_rank_environment *environment);  // in bytes; 0: there is none
// Puts "***" in the place of each secret, or line of one, in the text; returns how long it is then.
size_t gs_rank_environment_hide(const gs_rank_environment *environment, char *text, size_t bytes);

#endif
