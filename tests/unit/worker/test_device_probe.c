// The probe asks a child of the same program: here this test, which answers as GRADSYNC_TEST_PROBE says.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "worker/agent/host/device_probe.h"
#include "worker/agent/host/host_devices.h"

#define TWO_GPUS                                                                              \
    "{\"devices\":[{\"ordinal\":0,\"uuid\":\"GPU-a\",\"name\":\"x\",\"memory_bytes\":1},"     \
    "{\"ordinal\":1,\"uuid\":\"GPU-b\",\"name\":\"x\",\"memory_bytes\":1}],\"nccl\":\"2.28.9\"}"
#define NO_GPU "{\"devices\":[],\"devices_reason\":\"no NVIDIA driver\"}"

static int answer(void) {
    const char *how = getenv("GRADSYNC_TEST_PROBE");
    if (!strcmp(how, "crash")) abort();
    if (!strcmp(how, "hang")) pause();
    if (!strcmp(how, "fail")) return 3;
    printf("%s\n", how);
    return 0;
}

static gs_status ask(gs_json **found, const char *how, double seconds) {
    setenv("GRADSYNC_TEST_PROBE", how, 1);
    *found = NULL;
    return gs_device_probe_ask(found, &(gs_device_asker){0}, gs_deadline_in_seconds(seconds));
}

static void what_a_child_prints_is_found(void **state) {
    (void)state;
    gs_json *found;
    assert_int_equal(ask(&found, TWO_GPUS, 30).code, GS_OK);
    assert_int_equal(gs_json_count(gs_json_get(found, "devices")), 2);
    gs_json_release(found);
}

static void a_driver_that_hangs_is_given_up(void **state) {
    (void)state;
    gs_json *found;
    gs_status status = ask(&found, "hang", 0.2);
    assert_int_equal(status.code, GS_DEADLINE_EXCEEDED);
    assert_non_null(strstr(status.message, "the driver does not answer"));
}

static void a_driver_that_crashes_kills_the_child_alone(void **state) {
    (void)state;
    gs_json *found;
    gs_status status = ask(&found, "crash", 30);
    assert_int_equal(status.code, GS_INTERNAL);
    assert_non_null(strstr(status.message, "died of signal 6"));
    status = ask(&found, "fail", 30);
    assert_non_null(strstr(status.message, "exit code 3"));
}

static void what_is_no_answer_is_an_error(void **state) {
    (void)state;
    gs_json *found;
    assert_int_not_equal(ask(&found, "{\"devices\":", 30).code, GS_OK);
    assert_int_not_equal(ask(&found, "", 30).code, GS_OK);
}

static void this_build_says_what_it_sees(void **state) {
    (void)state;
    gs_json *found = gs_device_probe_here();
    const gs_json *devices = gs_json_get(found, "devices");
    bool has_reason = gs_json_string_or(found, "devices_reason", "")[0] != '\0';
    assert_true(gs_json_count(devices) > 0 || has_reason);
    assert_true(gs_json_get(found, "nccl") || gs_json_get(found, "nccl_reason"));
    gs_json_release(found);
}

static gs_status choose(gs_host_devices *out, const char *wanted, int per_slot, const char *probe) {
    gs_json *found = NULL;
    gs_status parsed = gs_json_parse(&found, probe, strlen(probe));
    assert_int_equal(parsed.code, GS_OK);
    gs_status status = gs_host_devices_choose(out, wanted, per_slot, found, gs_ok());
    gs_json_release(found);
    return status;
}

static void slots_get_devices_in_order(void **state) {
    (void)state;
    gs_host_devices devices;
    char visible[64];
    assert_int_equal(choose(&devices, "auto", 1, TWO_GPUS).code, GS_OK);
    assert_int_equal(gs_host_devices_slots(&devices), 2);
    gs_host_devices_visible(visible, sizeof visible, &devices, 1);
    assert_string_equal(visible, "GPU-b");
    assert_int_equal(gs_host_devices_of_slot(&devices, 2), 0);
    gs_host_devices_visible(visible, sizeof visible, &devices, 2);
    assert_string_equal(visible, "");
    gs_host_devices_release(&devices);
    assert_int_equal(choose(&devices, "auto", 2, TWO_GPUS).code, GS_OK);
    assert_int_equal(gs_host_devices_slots(&devices), 1);
    gs_host_devices_visible(visible, sizeof visible, &devices, 0);
    assert_string_equal(visible, "GPU-a,GPU-b");
    gs_host_devices_release(&devices);
}

static void named_devices_must_be_there(void **state) {
    (void)state;
    gs_host_devices devices;
    assert_int_equal(choose(&devices, "1", 1, TWO_GPUS).code, GS_OK);
    assert_int_equal(devices.count, 1);
    gs_host_devices_release(&devices);
    const char *const wrong[] = {"2", "0,0", "one", "-1", "0;1", "0,x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(choose(&devices, wrong[i], 1, TWO_GPUS).code, GS_INVALID_ARGUMENT);
    gs_status status = choose(&devices, "0", 1, NO_GPU);
    assert_non_null(strstr(status.message, "there is no GPU 0 here: no NVIDIA driver"));
    assert_int_equal(choose(&devices, "auto", 3, TWO_GPUS).code, GS_INVALID_ARGUMENT);
}

static void without_devices_there_is_a_reason_and_one_slot(void **state) {
    (void)state;
    gs_host_devices devices;
    assert_int_equal(choose(&devices, "auto", 1, NO_GPU).code, GS_OK);
    assert_string_equal(devices.reason, "no NVIDIA driver");
    assert_int_equal(gs_host_devices_slots(&devices), 1);
    gs_json *hello = gs_json_new_object();
    gs_host_devices_describe(hello, &devices);
    assert_string_equal(gs_json_string_or(hello, "devices_reason", ""), "no NVIDIA driver");
    gs_json_release(hello);
    gs_host_devices_release(&devices);
    gs_status failed = gs_error(GS_DEADLINE_EXCEEDED, "the driver does not answer");
    assert_int_equal(gs_host_devices_choose(&devices, "auto", 1, NULL, failed).code, GS_OK);
    assert_string_equal(devices.reason, "the driver does not answer");
    gs_host_devices_release(&devices);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "devices") == 0) return answer();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_child_prints_is_found),
        cmocka_unit_test(a_driver_that_hangs_is_given_up),
        cmocka_unit_test(a_driver_that_crashes_kills_the_child_alone),
        cmocka_unit_test(what_is_no_answer_is_an_error),
        cmocka_unit_test(this_build_says_what_it_sees),
        cmocka_unit_test(slots_get_devices_in_order),
        cmocka_unit_test(named_devices_must_be_there),
        cmocka_unit_test(without_devices_there_is_a_reason_and_one_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
