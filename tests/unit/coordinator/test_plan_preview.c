#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "coordinator/serve/plan_preview.h"
#include "core/digest.h"

enum { NUM_NAMES = 24000, NUM_SLOTS = 32768, NAME_BYTES = 12 };

static gs_status answer;
static gs_json *answered;

void __wrap_gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body);
void __wrap_gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body) {
    (void)call;
    gs_json_release(answered);
    answer = status;
    answered = body;
}

static void write_name(char name[NAME_BYTES], uint64_t number) {
    for (int i = 0; i < 8; i++, number /= 32) name[i] = (char)('A' + number % 32);
    name[8] = '\0';
}

// With the seed that everybody knows the name falls on the first slots of a map of core/u64_map.c.
static bool is_chosen(const char *name) {
    uint64_t key = gs_hash64(name, 8, 0) | 1;
    return ((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (NUM_SLOTS - 1)) < NUM_SLOTS / 256;
}

// In seconds of this thread: so many tensors, each on a device of its own.
static double preview(bool with_chosen_names) {
    gs_json *request = gs_json_new_object(), *tensors = gs_json_new_array(), *limits = gs_json_new_array();
    uint64_t number = 0;
    for (int i = 0; i < NUM_NAMES; i++) {
        char name[NAME_BYTES];
        do write_name(name, ++number);
        while (with_chosen_names && !is_chosen(name));
        gs_json *tensor = gs_json_new_object();
        gs_json_set_int(tensor, "elements", 1);
        gs_json_set_string(tensor, "device", name);
        gs_json_push(tensors, tensor);
    }
    gs_json_push(limits, gs_json_new_int(1));
    gs_json_set(request, "tensors", tensors);
    gs_json_set(request, "limits_bytes", limits);
    struct timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    gs_preview_plan(NULL, NULL, NULL, request);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    gs_json_release(request);
    if (answer.code) fail_msg("%s", answer.message);
    assert_int_equal(gs_json_count(gs_json_get(answered, "buckets")), NUM_NAMES);
    return (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}

static void chosen_names_of_devices_cost_no_more_than_others(void **state) {
    (void)state;
    double usual_seconds = preview(false), chosen_seconds = preview(true);
    print_message("usual %.3f s, chosen %.3f s\n", usual_seconds, chosen_seconds);
    assert_true(chosen_seconds < 2 * usual_seconds + 0.1);
    gs_json_release(answered);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chosen_names_of_devices_cost_no_more_than_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
