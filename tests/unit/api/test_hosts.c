#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/http/hosts.h"

enum { PORT = 8470 };

static gs_hosts *make_hosts(const char *listen, bool on_loopback, const char *allowed) {
    gs_hosts *hosts = NULL;
    gs_status status = gs_hosts_create(&hosts, listen, on_loopback, allowed);
    if (status.code) fail_msg("%s", status.message);
    return hosts;
}

static void assert_all(const gs_hosts *hosts, gs_code code, const char *const *names) {
    for (; *names; names++) {
        gs_status status = gs_hosts_check_host(hosts, *names, PORT);
        if (status.code != code) fail_msg("%s: %s", *names, status.code ? status.message : "taken");
    }
}

static void loopback_names_with_our_port_are_ours(void **state) {
    (void)state;
    static const char *const ours[] = {"localhost:8470",         "LocalHost:8470",
                                       "localhost.:8470",        "127.0.0.1:8470",
                                       "127.9.9.9:8470",         "[::1]:8470",
                                       "[0:0:0:0:0:0:0:1]:8470", "[0000:0000::1]:8470",
                                       "localhost:08470",        NULL};
    for (int on_loopback = 0; on_loopback < 2; on_loopback++) {
        gs_hosts *hosts = make_hosts(on_loopback ? "127.0.0.1:0" : "0.0.0.0:0", on_loopback, NULL);
        assert_all(hosts, GS_OK, ours);
        gs_hosts_destroy(hosts);
    }
}

static void other_names_and_ports_are_foreign(void **state) {
    (void)state;
    static const char *const foreign[] = {"evil.example:8470",
                                          "localhost.evil.example:8470",
                                          "127.0.0.1.evil.example:8470",
                                          "localhost",
                                          "localhost:",
                                          "localhost:80",
                                          "127.0.0.1",
                                          "127.0.0.1:8471",
                                          "[::1]",
                                          "[::1]:8471",
                                          "localhost..:8470",
                                          ".localhost:8470",
                                          ".:8470",
                                          ":8470",
                                          "",
                                          "[]:8470",
                                          "[::1",
                                          "[::1]8470",
                                          "[127.0.0.1]:8470",
                                          "::1",
                                          "localhost:8470evil",
                                          "localhost:84700",
                                          "localhost:184706",
                                          "localhost:-1",
                                          "localhost:+8470",
                                          "localhost: 8470",
                                          "evil@localhost:8470",
                                          "local host:8470",
                                          "localhost:8470/x",
                                          "localhost:8470,evil",
                                          "127.1:8470",
                                          "2130706433:8470",
                                          "0x7f.0.0.1:8470",
                                          "[::1%25lo]:8470",
                                          "localhost:8470:8470",
                                          NULL};
    for (int on_loopback = 0; on_loopback < 2; on_loopback++) {
        gs_hosts *hosts = make_hosts(on_loopback ? "127.0.0.1:0" : "0.0.0.0:0", on_loopback, NULL);
        assert_all(hosts, GS_PERMISSION_DENIED, foreign);
        assert_int_equal(gs_hosts_check_host(hosts, NULL, PORT).code, GS_PERMISSION_DENIED);
        gs_hosts_destroy(hosts);
    }
}

static void names_of_any_length_are_judged(void **state) {
    (void)state;
    gs_hosts *hosts = make_hosts("127.0.0.1:0", true, NULL);
    char name[1200];
    for (size_t len = 1; len < sizeof name; len++) {
        memset(name, 'a', len);
        name[len] = '\0';
        assert_int_equal(gs_hosts_check_host(hosts, name, PORT).code, GS_PERMISSION_DENIED);
        name[0] = '[';
        assert_int_equal(gs_hosts_check_host(hosts, name, PORT).code, GS_PERMISSION_DENIED);
    }
    gs_hosts_destroy(hosts);
}

// A page whose name was rebound to us says that name; whoever says an address came by it.
static void addresses_are_ours_where_others_may_reach_us(void **state) {
    (void)state;
    static const char *const addresses[] = {"192.168.1.5:8470", "0.0.0.0:8470",
                                            "[2001:DB8::5]:8470", NULL};
    static const char *const other_ports[] = {"192.168.1.5", "192.168.1.5:30470",
                                              "[2001:db8::5]:8471", NULL};
    gs_hosts *open = make_hosts("0.0.0.0:8470", false, NULL);
    gs_hosts *local = make_hosts("127.0.0.1:8470", true, NULL);
    assert_all(open, GS_OK, addresses);
    assert_all(open, GS_PERMISSION_DENIED, other_ports);
    assert_all(local, GS_PERMISSION_DENIED, addresses);
    gs_hosts_destroy(open);
    gs_hosts_destroy(local);
}

static void own_name_and_listened_name_are_ours_where_others_may_reach_us(void **state) {
    (void)state;
    char machine[256] = "", host[300];
    assert_int_equal(gethostname(machine, sizeof machine - 1), 0);
    snprintf(host, sizeof host, "%s:%d", machine, PORT);
    gs_hosts *open = make_hosts("Front.example:0", false, NULL);
    assert_int_equal(gs_hosts_check_host(open, host, PORT).code, GS_OK);
    assert_int_equal(gs_hosts_check_host(open, "front.example:8470", PORT).code, GS_OK);
    assert_int_equal(gs_hosts_check_host(open, "front.example:80", PORT).code,
                     GS_PERMISSION_DENIED);
    gs_hosts_destroy(open);
}

static void allowed_names_are_taken_with_their_port(void **state) {
    (void)state;
    static const char *const taken[] = {"coordinator:8470",
                                        "COORDINATOR.:8470",
                                        "localhost:9000",
                                        "train.example",
                                        "train.example:443",
                                        "train.example:1",
                                        "[fd00::1]:7",
                                        "web:80",
                                        "web",
                                        NULL};
    static const char *const refused[] = {
        "coordinator:8471", "coordinator", "localhost:9001", "x.train.example", "[fd00::1]:8",
        "web:81",           NULL};
    gs_hosts *hosts = make_hosts("127.0.0.1:0", true,
                                 "coordinator:8470,localhost:9000,Train.example.,[FD00:0::1]:7,"
                                 "web:80");
    assert_all(hosts, GS_OK, taken);
    assert_all(hosts, GS_PERMISSION_DENIED, refused);
    gs_hosts_destroy(hosts);
}

static void bad_entries_are_named(void **state) {
    (void)state;
    static const char *const bad[] = {"*",       "a b", "http://a", "a:x",
                                      "a:65536", ",a",  "fd00::1",  NULL};
    for (const char *const *entry = bad; *entry; entry++) {
        gs_hosts *hosts = NULL;
        char list[64];
        snprintf(list, sizeof list, "fine:1,%s", *entry);
        gs_status status = gs_hosts_create(&hosts, "127.0.0.1:0", true, list);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        assert_non_null(strstr(status.message, "--allow-host"));
    }
}

static void a_refusal_says_how_to_allow_it(void **state) {
    (void)state;
    gs_hosts *hosts = make_hosts("127.0.0.1:0", true, NULL);
    gs_status status = gs_hosts_check_host(hosts, "Service.example", PORT);
    assert_non_null(strstr(status.message, "--allow-host service.example:80,"));
    status = gs_hosts_check_host(hosts, "[FD00::1]:8470", PORT);
    assert_non_null(strstr(status.message, "--allow-host [fd00::1]:8470,"));
    gs_hosts_destroy(hosts);
}

static void only_pages_of_the_asked_host_and_port_may_call(void **state) {
    (void)state;
    static const char *const same[][2] = {{NULL, "localhost:8470"},
                                          {"http://localhost:8470", "localhost:8470"},
                                          {"HTTP://LOCALHOST:8470", "localhost.:8470"},
                                          {"http://[::1]:8470", "[0:0::1]:8470"},
                                          {"http://localhost", "localhost"},
                                          {"http://localhost", "localhost:80"},
                                          {"http://localhost:80", "localhost"},
                                          {"https://train.example", "train.example"},
                                          {"https://train.example", "train.example:443"}};
    static const char *const foreign[][2] = {{"null", "localhost:8470"},
                                             {"", "localhost:8470"},
                                             {"http://", "localhost:8470"},
                                             {"http://evil.example", "localhost:8470"},
                                             {"http://localhost", "localhost:8470"},
                                             {"http://localhost:3000", "localhost:8470"},
                                             {"https://localhost", "localhost:80"},
                                             {"http://127.0.0.1:8470", "localhost:8470"},
                                             {"http://localhost:8470/", "localhost:8470"},
                                             {"http://localhost:8470 http://a", "localhost:8470"},
                                             {"http://a@localhost:8470", "localhost:8470"},
                                             {"file://localhost:8470", "localhost:8470"},
                                             {"http://localhost:8470", NULL},
                                             {"http://[::1]:8470", "[::1"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        assert_int_equal(gs_hosts_check_origin(same[i][0], same[i][1]).code, GS_OK);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        assert_int_equal(gs_hosts_check_origin(foreign[i][0], foreign[i][1]).code,
                         GS_PERMISSION_DENIED);
}

static void pages_of_other_origins_change_nothing(void **state) {
    (void)state;
    assert_int_equal(gs_hosts_check_site(NULL).code, GS_OK);
    assert_int_equal(gs_hosts_check_site("same-origin").code, GS_OK);
    assert_int_equal(gs_hosts_check_site("none").code, GS_OK);
    assert_int_equal(gs_hosts_check_site("same-site").code, GS_PERMISSION_DENIED);  // another port of this host
    assert_int_equal(gs_hosts_check_site("cross-site").code, GS_PERMISSION_DENIED);
    assert_int_equal(gs_hosts_check_site("").code, GS_PERMISSION_DENIED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback_names_with_our_port_are_ours),
        cmocka_unit_test(other_names_and_ports_are_foreign),
        cmocka_unit_test(names_of_any_length_are_judged),
        cmocka_unit_test(addresses_are_ours_where_others_may_reach_us),
        cmocka_unit_test(own_name_and_listened_name_are_ours_where_others_may_reach_us),
        cmocka_unit_test(allowed_names_are_taken_with_their_port),
        cmocka_unit_test(bad_entries_are_named),
        cmocka_unit_test(a_refusal_says_how_to_allow_it),
        cmocka_unit_test(only_pages_of_the_asked_host_and_port_may_call),
        cmocka_unit_test(pages_of_other_origins_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
