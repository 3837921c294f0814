// The backends that the library brings, for the table in comm.c, and what they say alike. One of an embedder's own comes by
// pointer.
#ifndef GRADSYNC_COMM_BACKENDS_H
#define GRADSYNC_COMM_BACKENDS_H

#include <stddef.h>
#include <stdint.h>

#include "gradsync/comm/comm_backend.h"

extern const gs_comm_backend gs_comm_self;
extern const gs_comm_backend gs_comm_shm;
extern const gs_comm_backend gs_comm_net;
extern const gs_comm_backend gs_comm_hosts;
#ifdef GRADSYNC_CUDA
extern const gs_comm_backend gs_comm_nccl;
#endif

// What a backend can tell beside its slots, which programs fill as well.
typedef struct gs_backend_facts {
    const gs_comm_backend *backend;
    bool (*peer_link)(const void *backend, int peer, gs_comm_link *out);  // as gs_comm_peer_link
    gs_status (*share)(void *backend, const uint16_t *shares);            // as gs_comm_share
} gs_backend_facts;

extern const gs_backend_facts gs_comm_net_facts;
extern const gs_backend_facts gs_comm_hosts_facts;

// In a message: "3", "1, 2 and 7", or the first sixteen "and 40 more". A gs_comm_failure has all.
void gs_backends_list_ranks(char *text, size_t text_bytes, const int *ranks, int count);

// Where this process runs, as ranks tell each other: equal numbers, one host, whose kernel can pass memory between them (one boot, one
// network name space, one user). Never 0. A rank that cannot know is taken to be alone.
uint64_t gs_backends_host(int rank);

#endif
