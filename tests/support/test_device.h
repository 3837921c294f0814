// The device that a test runs on: the environment variable GRADSYNC_TEST_DEVICE ("cuda:0"), else the CPU.
#ifndef TESTS_SUPPORT_TEST_DEVICE_H
#define TESTS_SUPPORT_TEST_DEVICE_H

#include <stdlib.h>

#include "kernels/device.h"

static inline const char *gs_test_device_name(void) {
    const char *name = getenv("GRADSYNC_TEST_DEVICE");
    return name && *name ? name : "cpu";
}

// The name of a GPU, a simulated one with GRADSYNC_CUDA=SIM, or NULL: whoever wants one skips its test.
static inline const char *gs_test_gpu_name(void) {
    char why[256];
    return gs_cuda_device_count(why, sizeof why) > 0 ? "cuda:0" : NULL;
}

#endif
