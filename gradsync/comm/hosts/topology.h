// Which ranks can share memory, as all of them agree: hosts, and columns across them.
//
// A host is ranks that the kernel can pass memory between: one boot of one kernel, one network
// namespace (abstract sockets belong to it), one user. Two containers of a machine are two hosts
// unless they share these. Whether memory can really be passed, the handshake of shm proves.
//
// Column k is the k-th rank of each host: these drive a slice between the hosts. There are as many
// as the smallest host has ranks. Its ranks ascend, so they need not be in the order of their hosts.
#ifndef GRADSYNC_COMM_HOSTS_TOPOLOGY_H
#define GRADSYNC_COMM_HOSTS_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/comm/stages.h"
#include "kernels/kernels.h"

#define GS_HOSTS_MOST_RANKS GS_REDUCE_MAX_INPUTS  // that the kernels add at once

typedef struct gs_hosts_topology {
    int world_size, num_hosts, num_columns;
    int host_of[GS_HOSTS_MOST_RANKS];   // in order of the lowest rank
    int place_of[GS_HOSTS_MOST_RANKS];  // among the ranks of its host, in their order
    int size_of[GS_HOSTS_MOST_RANKS];   // by host: how many ranks
    // By column and host: which of the column that host's is.
    uint8_t number_of[GS_HOSTS_MOST_RANKS][GS_HOSTS_MOST_RANKS];
} gs_hosts_topology;

// A stage of the creation. UNAVAILABLE: two levels are no gain here, and why.
GS_NODISCARD gs_status gs_hosts_topology_learn(gs_hosts_topology *out,
                                               const gs_comm_options *options, gs_stages *stages);

// The ranks of a host, and those of a column, ascending; returns how many.
int gs_hosts_members(const gs_hosts_topology *topology, int host, int *ranks);
int gs_hosts_column(const gs_hosts_topology *topology, int column, int *ranks);
// "2 and 2", "3, 1 and 1": ranks of each host.
void gs_hosts_topology_describe(const gs_hosts_topology *topology, char *text, size_t text_bytes);

#endif
