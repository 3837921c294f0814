#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/agent_devices.h"

static gs_status read_hello(gs_agent_devices *out, const char *text) {
    gs_json *hello = NULL;
    gs_status parsed = gs_json_parse(&hello, text, strlen(text));
    assert_int_equal(parsed.code, GS_OK);
    gs_status status = gs_agent_devices_read(out, hello);
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

static void a_device_belongs_to_one_worker(void **state) {
    (void)state;
    gs_agent_devices first, second;
    static const char hello[] = "{\"devices\":[{\"uuid\":\"a\",\"memory_bytes\":5},"
                                "{\"uuid\":\"b\",\"memory_bytes\":5}]}";
    assert_int_equal(read_hello(&first, "{\"devices\":[{\"uuid\":\"a\",\"memory_bytes\":5}]}").code,
                     GS_OK);
    assert_int_equal(read_hello(&second, hello).code, GS_OK);
    gs_agent_devices_drop_taken(&second, &first, "w1");
    assert_int_equal(second.count, 1);
    assert_string_equal(second.items[0].uuid, "b");
    assert_string_equal(second.reason, "");
    gs_agent_devices_drop_taken(&first, &second, "w2");
    assert_int_equal(first.count, 1);
    gs_agent_devices_release(&second);
    assert_int_equal(read_hello(&second, hello).code, GS_OK);
    gs_agent_devices_drop_taken(&first, &second, "w2");
    assert_int_equal(first.count, 0);
    assert_string_equal(first.reason, "worker w2 offers a already");
    gs_agent_devices_release(&first);
    gs_agent_devices_release(&second);
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
        cmocka_unit_test(a_device_belongs_to_one_worker),
        cmocka_unit_test(garbage_names_the_member),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
