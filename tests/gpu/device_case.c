#include "tests/gpu/device_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/asserts.h"
#include "tests/support/test_device.h"

static gs_device *the_device;  // NULL: none, `reason` says why
static char reason[300];

gs_device *take_device(void) {
    if (!the_device) {
        print_message("no CUDA device: %s\n", reason);
        skip();
    }
    return the_device;
}

void assert_status(gs_status status, gs_code code, const char *text) {
    if (status.code != code || !strstr(status.message, text))
        fail_msg("%s: '%s' instead of %s with '%s'", gs_code_name(status.code), status.message,
                 gs_code_name(code), text);
}

void *take_memory(size_t bytes) {
    void *memory = NULL;
    assert_ok(gs_device_alloc(the_device, &memory, bytes));
    return memory;
}

float read_float(const float *at) {
    float value;
    assert_ok(gs_device_download(the_device, &value, at, sizeof value));
    return value;
}

int open_first(void **state) {
    (void)state;
    gs_status status = gs_device_open(&the_device, "cuda:0", NULL);
    if (!status.code) return 0;
    gs_test_miss_device(status.message);
    snprintf(reason, sizeof reason, "%s", status.message);
    return 0;
}

int close_first(void **state) {
    (void)state;
    gs_device_close(the_device);
    return 0;
}
