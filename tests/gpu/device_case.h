// What tests of kernels/device.h on "cuda:0" begin with: the device, open for all of a program's cases, and what they ask of
// it. Without a device every case is skipped.
#ifndef TESTS_GPU_DEVICE_CASE_H
#define TESTS_GPU_DEVICE_CASE_H

#include <stddef.h>

#include "core/status.h"
#include "kernels/device.h"

#define COUNT ((size_t)100003)
#define PATIENCE gs_deadline_in_seconds(60)

// Of the group: cmocka's setup and teardown.
int open_first(void **state);
int close_first(void **state);

gs_device *take_device(void);  // or skips the case, and says why
void assert_status(gs_status status, gs_code code, const char *text);
void *take_memory(size_t bytes);  // of that device, which frees it
float read_float(const float *at);

#endif
