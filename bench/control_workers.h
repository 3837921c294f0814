// Simulated agents and trainers: thousands of ZMTP connections on one thread, speaking the control
// plane of rpc/README.md as far as a healthy job does. No training, no sockets of libzmq (two
// descriptors and some threads' attention each): what is measured is the coordinator.
#ifndef BENCH_CONTROL_WORKERS_H
#define BENCH_CONTROL_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef struct control_workers control_workers;

typedef struct control_workers_options {
    const char *host;
    int port;
    int num_agents, slots;  // of each agent; one trainer runs in each slot
    double step_seconds;    // how often they are heard is told them
    bool ends_jobs;         // at the steps that their jobs ask for; else they train for ever
} control_workers_options;

typedef struct control_workers_counts {
    int agents_welcome, trainers_stepping, links_lost;  // ended trainers are lost links, too
    uint64_t sent, received;
} control_workers_counts;

GS_NODISCARD gs_status control_workers_start(control_workers **out,
                                             const control_workers_options *options);
control_workers_counts control_workers_count(control_workers *workers);
void control_workers_stop(control_workers *workers);

#endif
