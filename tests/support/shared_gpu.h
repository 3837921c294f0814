// Several ranks on one GPU, for tests: NCCL takes each for a host of its own and carries the data
// over sockets. Correct and slow; not for products.
#ifndef TESTS_SUPPORT_SHARED_GPU_H
#define TESTS_SUPPORT_SHARED_GPU_H

#include <stdio.h>
#include <stdlib.h>

// In the rank's process, before the first communicator. What is already in the environment stays.
static inline void gs_share_gpu(int rank) {
    static const char *const settings[][2] = {
        {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_NET", "Socket"},   {"NCCL_IB_DISABLE", "1"},
        {"NCCL_MNNVL_ENABLE", "0"},   {"NCCL_RAS_ENABLE", "0"}, {"NCCL_ALGO", "Ring"},
        {"NCCL_PROTO", "Simple"},     {"NCCL_MAX_CTAS", "2"},
    };
    char host[32];
    snprintf(host, sizeof host, "gsync-test-%d", rank);
    setenv("NCCL_HOSTID", host, 0);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i][0], settings[i][1], 0);
}

#endif
