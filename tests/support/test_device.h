// The device that a test runs on: the environment variable GRADSYNC_TEST_DEVICE ("cuda:0"), else the CPU.
//
// Where there is no GPU, tests of one are skipped; with GRADSYNC_DEMAND_DEVICE they fail: a run that is there for a
// device must not pass without one.
#ifndef TESTS_SUPPORT_TEST_DEVICE_H
#define TESTS_SUPPORT_TEST_DEVICE_H

#include <stdio.h>
#include <stdlib.h>

#include "kernels/device.h"

static inline const char *gs_test_device_name(void) {
    const char *name = getenv("GRADSYNC_TEST_DEVICE");
    return name && *name ? name : "cpu";
}

// Before a test is skipped for want of a device. Does not return where one is demanded.
static inline void gs_test_miss_device(const char *why) {
    const char *demanded = getenv("GRADSYNC_DEMAND_DEVICE");
    if (!demanded || !*demanded) return;
    fprintf(stderr, "GRADSYNC_DEMAND_DEVICE is set, but there is no device: %s\n", why);
    exit(1);
}

// The name of a GPU, a simulated one with GRADSYNC_CUDA=SIM, or NULL: whoever wants one skips its test.
static inline const char *gs_test_gpu_name(void) {
    char why[256];
    if (gs_cuda_device_count(why, sizeof why) > 0) return "cuda:0";
    gs_test_miss_device(why);
    return NULL;
}

#endif
