// How ranks of the stand-in meet: a root thread behind the unique id, then one Unix socket for each pair.
#ifndef TESTS_NCCL_SIM_MESH_H
#define TESTS_NCCL_SIM_MESH_H

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define NCCL_SIM_MAX_RANKS 64
#define NCCL_SIM_NAME_LEN 40

typedef struct nccl_sim_card {
    uint64_t nonce;
    int32_t rank, num_ranks, version;
    char host_id[64];
    unsigned char device[16];  // uuid
    char door[NCCL_SIM_NAME_LEN];
} nccl_sim_card;

// Starts the root thread, which lives until all ranks have come.
ncclResult_t nccl_sim_make_id(ncclUniqueId *id);
// Fills `sockets` (-1 for the own rank) and `cards`; ends early when *aborted. `why` gets a sentence.
ncclResult_t nccl_sim_connect(int *sockets, nccl_sim_card *cards, const nccl_sim_card *mine,
                              const ncclUniqueId *id, const atomic_bool *aborted, char *why,
                              size_t why_bytes);
// From rank 0 to all others, between ranks that are connected and send nothing else.
bool nccl_sim_share_id(const int *sockets, int rank, int num_ranks, ncclUniqueId *id,
                       const atomic_bool *aborted);
// Both directions end, for the peer too.
void nccl_sim_hang_up(int socket);

#endif
