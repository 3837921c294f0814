// What this host can compute with: cores that may be used, and how many each trainer gets.
#ifndef WORKER_AGENT_HOST_TOPOLOGY_H
#define WORKER_AGENT_HOST_TOPOLOGY_H

typedef struct gs_topology {
    int usable_cores;    // logical ones: affinity mask and cgroup quota
    int physical_cores;  // behind them; hyper-threads share one
} gs_topology;

gs_topology gs_topology_read(void);

// Threads for one of `slots` trainers: physical cores shared evenly, at least 1.
int gs_topology_threads_per_slot(const gs_topology *topology, int slots);

#endif
