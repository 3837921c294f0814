// Simulated agents and trainers: thousands of ZMTP connections on one thread, speaking the control
// plane of rpc/README.md as far as a healthy job does. No training, no sockets of libzmq (two
// descriptors and some threads' attention each): what is measured is the coordinator.
#ifndef BENCH_CONTROL_WORKERS_H
#define BENCH_CONTROL_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/keys/key_file.h"

typedef struct control_workers control_workers;

typedef struct control_workers_options {
    const char *host;
    int port;
    int num_agents, slots;  // of each agent; one trainer runs in each slot
    double step_seconds;    // how often they are heard is told them
    const gs_key_file *key;  // of a pool that is called sim, borrowed; NULL: the coordinator asks for none
    bool ends_jobs;         // at the steps that their jobs ask for; else they train for ever
} control_workers_options;

typedef struct control_workers_counts {
    int agents_welcome, trainers_stepping, links_lost;  // ended trainers are lost links, too
    uint64_t sent, received, reports;  // reports are among the sent
} control_workers_counts;

GS_NODISCARD gs_status control_workers_start(control_workers **out,
                                             const control_workers_options *options);
control_workers_counts control_workers_count(control_workers *workers);
// From now on they step so often.
void control_workers_pace(control_workers *workers, double step_seconds);
void control_workers_stop(control_workers *workers);

#endif
