// Whether a test or a benchmark has the libraries that it is about. Our own kernels are the way out where cuBLASLt or cuDNN is not
// found: they would pass and prove nothing of the library, and their times would be taken for its.
#ifndef TESTS_SUPPORT_DEVICE_LIBRARY_H
#define TESTS_SUPPORT_DEVICE_LIBRARY_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/choice.h"
#include "kernels/device.h"

// Says what is missing. GRADSYNC_OWN_PRODUCTS=1: own tiles are meant.
static inline bool gs_test_has_libraries(const gs_device *device) {
    char arithmetic[256];
    const char *own = getenv("GRADSYNC_OWN_PRODUCTS");
    gs_device_arithmetic(device, arithmetic, sizeof arithmetic);
    if (strstr(arithmetic, "matmul=own") && !(own && strcmp(own, "1") == 0)) {
        printf("FAIL cuBLASLt was not found (GRADSYNC_CUBLASLT names its file): %s\n", arithmetic);
        return false;
    }
    if (gs_device_chooses(device, GS_CHOICE_CUDNN_ATTENTION) && !strstr(arithmetic, " cudnn=")) {
        printf("FAIL cuDNN was not found, though GRADSYNC_CUDA_CUDNN_ATTENTION=1 asks for it (GRADSYNC_CUDNN names its file; a "
               "build without its headers has none): %s\n", arithmetic);
        return false;
    }
    return true;
}

#endif
