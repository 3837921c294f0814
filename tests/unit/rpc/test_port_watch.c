// When a crowd at the control port is one, and how often it is warned of.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <zmq.h>

#include "rpc/server/port_watch.h"

#define SECOND GS_NS_PER_SEC
#define BEGIN (1000 * SECOND)

static void note(gs_port_watch *watch, int event, int times) {
    for (int i = 0; i < times; i++) gs_port_watch_note(watch, event);
}

static void silence_of_many_is_warned_of_when_it_lasts(void **state) {
    (void)state;
    gs_port_watch watch = {0};
    for (int i = 0; i < 20; i++) assert_false(gs_port_watch_look(&watch, GS_MANY_SILENT + 50, 50, BEGIN + i * SECOND));  // a full house
    int64_t now_ns = BEGIN + 20 * SECOND;
    for (int i = 0; i < 5; i++) assert_false(gs_port_watch_look(&watch, GS_MANY_SILENT + 51, 50, now_ns + i * SECOND));
    assert_false(gs_port_watch_look(&watch, 50, 50, now_ns + 5 * SECOND));  // workers that were starting
    now_ns += 6 * SECOND;
    for (int i = 0; i < 5; i++) assert_false(gs_port_watch_look(&watch, GS_MANY_SILENT + 51, 50, now_ns + i * SECOND));
    assert_true(gs_port_watch_look(&watch, GS_MANY_SILENT + 51, 50, now_ns + 5 * SECOND));
    int num_warnings = 0;
    for (int i = 6; i < 186; i++) num_warnings += gs_port_watch_look(&watch, GS_MANY_SILENT + 51, 50, now_ns + i * SECOND);
    assert_int_equal(num_warnings, 3);
}

// Connections that are cut at once leave nobody silent.
static void handshakes_that_come_to_nothing_are_warned_of_by_their_number_in_a_minute(void **state) {
    (void)state;
    gs_port_watch watch = {0};
    for (int i = 0; i < 600; i++) {
        note(&watch, ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL, GS_MANY_FAILED / 60);
        assert_false(gs_port_watch_look(&watch, 10, 10, BEGIN + i * SECOND));
    }
    int num_warnings = 0;
    for (int i = 600; i < 900; i++) {
        note(&watch, ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL, GS_MANY_FAILED / 20);
        num_warnings += gs_port_watch_look(&watch, 10, 10, BEGIN + i * SECOND);
    }
    assert_in_range(num_warnings, 4, 5);
}

static void a_connection_is_counted_once(void **state) {
    (void)state;
    gs_port_watch watch = {0};
    note(&watch, ZMQ_EVENT_ACCEPTED, 3);
    note(&watch, ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL, 1);
    note(&watch, ZMQ_EVENT_HANDSHAKE_FAILED_AUTH, 1);  // whose key was not let in: its keeper counts it
    note(&watch, ZMQ_EVENT_DISCONNECTED, 2);
    assert_int_equal(watch.num_accepted, 3);
    assert_int_equal(watch.num_failed, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_of_many_is_warned_of_when_it_lasts),
        cmocka_unit_test(handshakes_that_come_to_nothing_are_warned_of_by_their_number_in_a_minute),
        cmocka_unit_test(a_connection_is_counted_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
