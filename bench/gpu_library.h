// Whether what is measured is cuBLASLt: numbers of our own tiles, which are the way out where it is
// not found, would be taken for those of the GPU.
#ifndef BENCH_GPU_LIBRARY_H
#define BENCH_GPU_LIBRARY_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"

// Says what is missing. GRADSYNC_OWN_PRODUCTS=1: own tiles are meant.
static inline bool measures_library(const gs_device *device) {
    char arithmetic[256];
    const char *own = getenv("GRADSYNC_OWN_PRODUCTS");
    gs_device_arithmetic(device, arithmetic, sizeof arithmetic);
    if (!strstr(arithmetic, "matmul=own") || (own && strcmp(own, "1") == 0)) return true;
    printf("FAIL cuBLASLt was not found (GRADSYNC_CUBLASLT names its file): %s\n", arithmetic);
    return false;
}

#endif
