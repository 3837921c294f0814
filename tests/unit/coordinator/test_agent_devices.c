#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/observe/worker_view.h"
#include "coordinator/serve/decode_agent.h"

static gs_status read_hello(gs_agent_devices *out, const char *text) {
    char hello_text[400];
    gs_json *hello = NULL;
    gs_engine_event event = {0};
    snprintf(hello_text, sizeof hello_text, "{\"worker\":\"w0\",\"slots\":2%s%s", text[1] == '}' ? "" : ",", text + 1);
    gs_status parsed = gs_json_parse(&hello, hello_text, strlen(hello_text));
    assert_string_equal(parsed.message, "");
    gs_decode_agent_hello(&event, hello);
    gs_status status = event.agent_hello.refusal;
    *out = event.agent_hello.devices;
    event.agent_hello.devices = (gs_agent_devices){0};
    gs_engine_event_release(&event);
    gs_json_release(hello);
    return status;
}

static void slots_own_whole_groups_of_devices(void **state) {
    (void)state;
    gs_agent_devices devices;
    char uuids[64];
    gs_status status = read_hello(
        &devices, "{\"devices_per_slot\":2,\"nccl\":\"2.28.9\",\"devices\":["
                  "{\"uuid\":\"a\",\"memory_bytes\":5},{\"uuid\":\"b\",\"memory_bytes\":5},"
                  "{\"uuid\":\"c\",\"memory_bytes\":5}]}");
    assert_int_equal(status.code, GS_OK);
    assert_int_equal(gs_agent_devices_of_slot(&devices, 0), 2);
    assert_int_equal(gs_agent_devices_of_slot(&devices, 1), 0);  // one is left: no group
    gs_agent_devices_uuids(uuids, sizeof uuids, &devices, 0);
    assert_string_equal(uuids, "a,b");
    gs_agent_devices_uuids(uuids, 4, &devices, 0);
    assert_string_equal(uuids, "a,b");
    gs_agent_devices_uuids(uuids, 3, &devices, 0);
    assert_string_equal(uuids, "a,");
    gs_agent_devices_uuids(uuids, sizeof uuids, &devices, 1);
    assert_string_equal(uuids, "");
    gs_json *view = gs_agent_devices_to_view(&devices);
    assert_int_equal(gs_json_count(view), 3);
    gs_json_release(view);
    gs_agent_devices_release(&devices);
}

static void an_agent_without_devices_has_a_reason(void **state) {
    (void)state;
    gs_agent_devices devices;
    assert_int_equal(read_hello(&devices, "{}").code, GS_OK);
    assert_string_equal(devices.reason, "it offers none");
    gs_agent_devices_release(&devices);
    assert_int_equal(read_hello(&devices, "{\"devices\":[],\"devices_reason\":\"why\"}").code, GS_OK);
    assert_string_equal(devices.reason, "why");
    gs_agent_devices_release(&devices);
}

// The agent gives slot 1 its second GPU whoever has the first.
static void a_device_of_another_worker_keeps_its_place(void **state) {
    (void)state;
    static const char hello[] = "{\"devices_per_slot\":%d,\"devices\":[{\"uuid\":\"a\",\"memory_bytes\":5},"
                                "{\"uuid\":\"b\",\"memory_bytes\":5}]}";
    gs_agent_devices devices;
    char text[200], uuids[64];
    for (int per_slot = 1; per_slot <= 2; per_slot++) {
        snprintf(text, sizeof text, hello, per_slot);
        assert_int_equal(read_hello(&devices, text).code, GS_OK);
        assert_int_equal(gs_agent_devices_find(&devices, "b"), 1);
        assert_int_equal(gs_agent_devices_find(&devices, "c"), -1);
        gs_agent_devices_leave(&devices, 0, "w1");
        assert_string_equal(devices.reason, "worker w1 offers a already");
        assert_int_equal(gs_agent_devices_of_slot(&devices, 0), 0);
        assert_int_equal(gs_agent_devices_of_slot(&devices, 1), per_slot == 1);
        gs_agent_devices_uuids(uuids, sizeof uuids, &devices, 1);
        assert_string_equal(uuids, per_slot == 1 ? "b" : "");
        gs_json *view = gs_agent_devices_to_view(&devices);
        assert_int_equal(gs_json_count(view), 1);
        gs_json_release(view);
        gs_agent_devices_release(&devices);
    }
}

static void a_group_that_no_slot_fills_has_a_reason(void **state) {
    (void)state;
    gs_agent_devices devices;
    gs_status status = read_hello(
        &devices, "{\"devices_per_slot\":2,\"devices\":[{\"uuid\":\"a\",\"memory_bytes\":5}]}");
    assert_int_equal(status.code, GS_OK);
    assert_int_equal(gs_agent_devices_of_slot(&devices, 0), 0);
    assert_string_equal(devices.reason, "it has 1 GPUs and gives 2 to each slot");
    gs_agent_devices_release(&devices);
}

static void garbage_names_the_member(void **state) {
    (void)state;
    static const struct {
        const char *hello, *words;
    } cases[] = {
        {"{\"devices\":[{\"memory_bytes\":5}]}", "devices[0]: has no uuid"},
        {"{\"devices\":[{\"uuid\":\"a\",\"memory_bytes\":-1}]}", "memory_bytes"},
        {"{\"devices\":[{\"uuid\":\"a\"}]}", "memory_bytes"},
        {"{\"devices_per_slot\":0,\"devices\":[{\"uuid\":\"a\",\"memory_bytes\":1}]}",
         "devices_per_slot"},
        {"{\"devices\":[7]}", "devices[0]"},
        {"{\"devices\":[{\"uuid\":\"a\",\"memory_bytes\":1},{\"uuid\":\"a\",\"memory_bytes\":1}]}",
         "devices[1]: a is there twice"},
        {"{\"devices\":[[],{}]}", "devices[0]"},
        {"{\"devices\":{\"uuid\":\"a\"}}", "devices: is no list"},
        {"{\"devices\":7}", "devices: is no list"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gs_agent_devices devices;
        gs_status status = read_hello(&devices, cases[i].hello);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        if (!strstr(status.message, cases[i].words)) fail_msg("%s", status.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_own_whole_groups_of_devices),
        cmocka_unit_test(an_agent_without_devices_has_a_reason),
        cmocka_unit_test(a_device_of_another_worker_keeps_its_place),
        cmocka_unit_test(a_group_that_no_slot_fills_has_a_reason),
        cmocka_unit_test(garbage_names_the_member),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
