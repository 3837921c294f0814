// Unix sockets: for their owner alone, what was left behind is replaced, what is somebody else's stays.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/http/listener.h"
#include "tests/support/temp_dir.h"

typedef struct place {
    char *dir, path[96], address[104];
} place;

static int make_place(void **state) {
    place *here = calloc(1, sizeof *here);
    here->dir = gs_temp_dir_make();
    assert_true((size_t)snprintf(here->path, sizeof here->path, "%s/s", here->dir) < sizeof here->path);
    snprintf(here->address, sizeof here->address, "unix:%s", here->path);
    *state = here;
    return 0;
}

static int remove_place(void **state) {
    place *here = *state;
    gs_temp_dir_remove(here->dir);
    free(here);
    return 0;
}

static gs_status listen_at(int *fd, const place *here) {
    char bound[GS_HTTP_ADDRESS_LEN];
    return gs_listener_open(fd, bound, here->address);
}

static bool is_there(const char *path) {
    struct stat facts;
    return lstat(path, &facts) == 0;
}

static void a_socket_is_for_its_owner_whatever_the_umask(void **state) {
    const place *here = *state;
    struct stat facts;
    int fd;
    mode_t before = umask(0);
    gs_status status = listen_at(&fd, here);
    umask(before);
    assert_int_equal(status.code, GS_OK);
    assert_int_equal(stat(here->path, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
    close(fd);
}

static void what_is_left_is_replaced_and_what_is_used_is_not(void **state) {
    const place *here = *state;
    int first, second;
    assert_int_equal(listen_at(&first, here).code, GS_OK);
    assert_int_equal(listen_at(&second, here).code, GS_UNAVAILABLE);
    close(first);
    assert_int_equal(listen_at(&second, here).code, GS_OK);
    close(second);
}

static void what_is_no_socket_is_not_replaced(void **state) {
    const place *here = *state;
    int fd;
    assert_int_equal(symlink("/dev/null", here->path), 0);
    assert_int_equal(listen_at(&fd, here).code, GS_UNAVAILABLE);
    assert_true(is_there(here->path));
}

static void a_socket_that_was_replaced_stays(void **state) {
    const place *here = *state;
    int first, second;
    char moved[128];
    snprintf(moved, sizeof moved, "%s.moved", here->path);
    assert_int_equal(listen_at(&first, here).code, GS_OK);
    gs_socket_mark mark = gs_socket_mark_of(here->path);
    assert_int_equal(rename(here->path, moved), 0);  // its inode is not used again meanwhile
    assert_int_equal(listen_at(&second, here).code, GS_OK);
    gs_socket_mark other = gs_socket_mark_of(here->path);
    gs_socket_remove(here->path, mark);
    assert_true(is_there(here->path));
    gs_socket_remove(here->path, (gs_socket_mark){0});
    assert_true(is_there(here->path));
    gs_socket_remove(here->path, other);
    assert_false(is_there(here->path));
    close(first);
    close(second);
}

static void neighbours_share_a_network_of_ipv6(void **state) {
    static const char *const cases[][2] = {
        {"10.0.0.3:51234", "10.0.0.3"},          {"[2001:db8:1:2:3:4:5:6]:9", "2001:db8:1:2::/64"},
        {"[2001:db8:1:2:ffff::1]:77", "2001:db8:1:2::/64"}, {"[2001:db8:1:3::1]:9", "2001:db8:1:3::/64"},
        {"[::1]:9", "::1"},                      {"unix uid=1000 pid=77", ""},
        {"?", ""}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[GS_HTTP_PEER_LEN];
        gs_http_peer_neighbourhood(text, cases[i][0]);
        assert_string_equal(text, cases[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_share_a_network_of_ipv6),
        cmocka_unit_test_setup_teardown(a_socket_is_for_its_owner_whatever_the_umask, make_place, remove_place),
        cmocka_unit_test_setup_teardown(what_is_left_is_replaced_and_what_is_used_is_not, make_place, remove_place),
        cmocka_unit_test_setup_teardown(what_is_no_socket_is_not_replaced, make_place, remove_place),
        cmocka_unit_test_setup_teardown(a_socket_that_was_replaced_stays, make_place, remove_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
