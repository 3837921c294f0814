// The device of tests that run on any (test_device.h), and its memory, which they reach through these
// functions alone; on the CPU they are plain copies.
//
// Where there is no such device the test ends as skipped, or as failed where one is demanded. What cannot be done in a test's surroundings
// (memory, a device that breaks) ends the process with words.
#ifndef TESTS_SUPPORT_DEVICE_MEMORY_H
#define TESTS_SUPPORT_DEVICE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "kernels/device.h"

#define TEST_SKIPPED 77

bool test_device_is_host(void);  // of the device that will be opened
bool test_device_is_there(void);  // for the parents of ranks, who skip when it is not
gs_device *test_device_open(int num_threads);
// The same for those that return a status; a missing device is skipped all the same.
GS_NODISCARD gs_status test_device_try(gs_device **out, int num_threads);
void test_device_close(gs_device *device);  // takes NULL

void *device_memory_alloc(gs_device *device, size_t bytes);  // zeroed; device_memory_free before the device is closed
void device_memory_free(gs_device *device, void *memory);
void *device_memory_copy(gs_device *device, const void *from, size_t bytes);  // the same, written
// Enqueued on the compute stream, from a copy: whoever reads too early sees what was there before.
void device_memory_write(gs_device *device, void *to, const void *from, size_t bytes);
// What is there when the compute stream has done what it was given.
void device_memory_read(gs_device *device, void *to, const void *from, size_t bytes);

#endif
