// How an agent was started.
#ifndef WORKER_AGENT_AGENT_OPTIONS_H
#define WORKER_AGENT_AGENT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gs_agent_options {
    char *coordinator;  // "tcp://127.0.0.1:8471"
    char *key;          // the file of this worker's key; NULL, "": it shows none
    char *enrol;        // the file of a token that it gets one with, if it is not there; NULL, "": none
    int64_t slots;    // 0: one for each group of devices_per_slot GPUs, at least one
    char *devices;    // "auto", "none", "0,2"; NULL is none
    int64_t devices_per_slot;
    char *data_root;
    char *data_address;  // of the ranks here; "": where the coordinator is reached from
    char *checkpoints;  // "": what the coordinator says
    char *name;         // "": the host's
    char *log_level;
    char *run_as, *cgroup, *secrets, *pass_environment;  // what trainers may (confinement.h); "": nothing said
    char *memory_per_slot;            // "16GiB"; "" and "0": no limit
    int64_t open_files_per_slot;      // 0: no limit
    bool core_files;  // processes with keys and secrets may leave them, and be looked into
    double grace_seconds;                // of trainers, when the agent is asked to end
    double coordinator_timeout_seconds;  // without one and without trainers: exit; 0: never
} gs_agent_options;

#endif
