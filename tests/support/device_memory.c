#include "tests/support/device_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test_device.h"

#define WAIT_SECONDS 30.0
#define MAX_COPIES 4096

// Pinned copies on their way, until the next time that the host waits for the device.
static struct {
    gs_device *device;
    void *memory;
} copies[MAX_COPIES];
static size_t num_copies;

static void must(gs_status status, const char *what) {
    if (!status.code) return;
    fprintf(stderr, "%s: %s: %s\n", gs_test_device_name(), what, status.message);
    exit(1);
}

bool test_device_is_host(void) {
    return strcmp(gs_test_device_name(), "cpu") == 0;
}

bool test_device_is_there(void) {
    char why[256];
    if (test_device_is_host() || gs_cuda_device_count(why, sizeof why) > 0) return true;
    gs_test_miss_device(why);
    fprintf(stderr, "skipped: %s\n", why);
    return false;
}

gs_status test_device_try(gs_device **out, int num_threads) {
    gs_status status = gs_device_open(
        out, gs_test_device_name(), &(gs_device_options){.num_threads = num_threads});
    if (test_device_is_host()) return status;
    if (status.code == GS_UNAVAILABLE || status.code == GS_UNIMPLEMENTED) {
        gs_test_miss_device(status.message);
        fprintf(stderr, "skipped: %s\n", status.message);
        exit(TEST_SKIPPED);
    }
    return status;
}

gs_device *test_device_open(int num_threads) {
    gs_device *device;
    must(test_device_try(&device, num_threads), "open");
    return device;
}

static void forget_copies(gs_device *device) {
    size_t num_left = 0;
    for (size_t i = 0; i < num_copies; i++) {
        if (copies[i].device == device)
            gs_device_free_pinned(device, copies[i].memory);
        else
            copies[num_left++] = copies[i];
    }
    num_copies = num_left;
}

// What stuck to the stream is the test's to find; here only the machine must be in order.
static void wait_for(gs_device *device) {
    gs_stream *stream = gs_device_stream(device);
    gs_status stuck = gs_stream_wait(stream, gs_deadline_in_seconds(WAIT_SECONDS));
    must(gs_stream_wait(stream, gs_deadline_in_seconds(WAIT_SECONDS)), "wait");
    gs_stream_fail(stream, stuck);
    forget_copies(device);
}

void test_device_close(gs_device *device) {
    if (!device) return;
    if (!gs_device_is_host(device)) wait_for(device);
    gs_device_close(device);
}

void *device_memory_alloc(gs_device *device, size_t bytes) {
    void *memory;
    must(gs_device_alloc(device, &memory, bytes ? bytes : 1), "memory");
    return memory;
}

void device_memory_free(gs_device *device, void *memory) {
    gs_device_free(device, memory);
}

void device_memory_write(gs_device *device, void *to, const void *from, size_t bytes) {
    void *copy;
    if (!bytes) return;
    if (gs_device_is_host(device)) {
        memcpy(to, from, bytes);
        return;
    }
    if (num_copies == MAX_COPIES) wait_for(device);
    must(gs_device_alloc_pinned(device, &copy, bytes), "pinned memory");
    memcpy(copy, from, bytes);
    gs_device_kernels(device)->copy(gs_device_stream(device), to, copy, bytes);
    copies[num_copies].device = device;
    copies[num_copies++].memory = copy;
}

void device_memory_read(gs_device *device, void *to, const void *from, size_t bytes) {
    if (!bytes) return;
    if (gs_device_is_host(device)) {
        memcpy(to, from, bytes);
        return;
    }
    must(gs_device_download(device, to, from, bytes), "download");
}

void *device_memory_copy(gs_device *device, const void *from, size_t bytes) {
    void *memory = device_memory_alloc(device, bytes);
    device_memory_write(device, memory, from, bytes);
    return memory;
}
