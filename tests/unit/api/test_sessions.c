#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/access/sessions.h"
#include "core/clock.h"

#define SECONDS(n) ((n) * GS_NS_PER_SEC + 1)

static int make(void **state) {
    *state = gs_sessions_create();
    return *state ? 0 : -1;
}

static int drop(void **state) {
    gs_sessions_destroy(*state);
    return 0;
}

static void begin(gs_sessions *sessions, char secret[GS_SECRET_TEXT_BYTES], const char *token, int64_t now_ns) {
    assert_int_equal(gs_sessions_begin(sessions, secret, token, now_ns).code, GS_OK);
}

static bool is_there(gs_sessions *sessions, const char *secret, int64_t now_ns) {
    char token[GS_TOKEN_ID_BYTES];
    uint64_t number;
    return gs_sessions_find(sessions, token, &number, secret, now_ns);
}

// Who looks whether it goes on does not keep it going.
static void a_session_that_is_looked_at_is_not_used(void **state) {
    char secret[GS_SECRET_TEXT_BYTES], token[GS_TOKEN_ID_BYTES];
    uint64_t number, other;
    begin(*state, secret, "t-00000001", SECONDS(1));
    assert_true(gs_sessions_find(*state, token, &number, secret, SECONDS(2)));
    assert_true(gs_sessions_has(*state, number, SECONDS(GS_SESSION_IDLE_SECONDS)));
    assert_false(gs_sessions_has(*state, number, SECONDS(GS_SESSION_IDLE_SECONDS + 3)));
    assert_false(gs_sessions_has(*state, 0, SECONDS(2)));
    gs_sessions_end(*state, secret);
    assert_false(gs_sessions_has(*state, number, SECONDS(2)));
    begin(*state, secret, "t-00000001", SECONDS(3));
    assert_true(gs_sessions_find(*state, token, &other, secret, SECONDS(3)));
    assert_true(other != number);
}

static void a_session_names_its_token(void **state) {
    uint64_t number;
    char a[GS_SECRET_TEXT_BYTES], b[GS_SECRET_TEXT_BYTES], token[GS_TOKEN_ID_BYTES];
    begin(*state, a, "t-00000001", SECONDS(1));
    begin(*state, b, "t-00000002", SECONDS(1));
    assert_true(gs_sessions_find(*state, token, &number, b, SECONDS(2)));
    assert_string_equal(token, "t-00000002");
    assert_true(gs_sessions_find(*state, token, &number, a, SECONDS(2)));
    assert_string_equal(token, "t-00000001");
    gs_sessions_end(*state, a);
    assert_false(is_there(*state, a, SECONDS(2)));
    assert_true(is_there(*state, b, SECONDS(2)));
    assert_false(is_there(*state, "", SECONDS(2)));
}

static void it_ends_when_it_is_not_used_and_after_a_week(void **state) {
    char idle[GS_SECRET_TEXT_BYTES], used[GS_SECRET_TEXT_BYTES];
    begin(*state, idle, "t-00000001", SECONDS(0));
    begin(*state, used, "t-00000001", SECONDS(0));
    int64_t half = GS_SESSION_IDLE_SECONDS / 2, at = 0;
    for (; at + half < GS_SESSION_SECONDS; at += half) assert_true(is_there(*state, used, SECONDS(at)));
    assert_false(is_there(*state, idle, SECONDS(GS_SESSION_IDLE_SECONDS)));
    assert_true(is_there(*state, used, SECONDS(GS_SESSION_SECONDS - 1)));
    assert_false(is_there(*state, used, SECONDS(GS_SESSION_SECONDS)));
}

static void a_token_pushes_out_its_own_sessions_alone(void **state) {
    char other[GS_SECRET_TEXT_BYTES], first[GS_SECRET_TEXT_BYTES], more[GS_SECRET_TEXT_BYTES];
    begin(*state, other, "t-00000002", SECONDS(0));
    begin(*state, first, "t-00000001", SECONDS(1));
    for (int i = 1; i < GS_SESSIONS_OF_TOKEN; i++) begin(*state, more, "t-00000001", SECONDS(1 + i));
    assert_true(is_there(*state, first, SECONDS(100)));
    for (int i = 0; i < GS_SESSIONS_OF_TOKEN; i++) begin(*state, more, "t-00000001", SECONDS(200 + i));
    assert_false(is_there(*state, first, SECONDS(300)));
    assert_true(is_there(*state, more, SECONDS(300)));
    assert_true(is_there(*state, other, SECONDS(300)));
}

static void where_all_places_are_taken_the_longest_unused_goes(void **state) {
    char first[GS_SECRET_TEXT_BYTES], more[GS_SECRET_TEXT_BYTES], token[GS_TOKEN_ID_BYTES];
    begin(*state, first, "t-first", SECONDS(1));
    for (int i = 0; i < GS_SESSIONS_MOST; i++) {
        snprintf(token, sizeof token, "t-%d", i);
        begin(*state, more, token, SECONDS(2 + i));
    }
    assert_false(is_there(*state, first, SECONDS(3)));
    assert_true(is_there(*state, more, SECONDS(3)));
}

static void where_all_places_are_taken_who_has_most_gives_one(void **state) {
    char lone[GS_SECRET_TEXT_BYTES], first[GS_SECRET_TEXT_BYTES], more[GS_SECRET_TEXT_BYTES], token[GS_TOKEN_ID_BYTES];
    begin(*state, lone, "t-lone", SECONDS(1));
    for (int i = 0; i < GS_SESSIONS_MOST - 1; i++) {
        snprintf(token, sizeof token, "t-%d", i / GS_SESSIONS_OF_TOKEN);
        begin(*state, i == 0 ? first : more, token, SECONDS(2 + i));
    }
    begin(*state, more, "t-late", SECONDS(3000));
    assert_true(is_there(*state, lone, SECONDS(3001)));
    assert_false(is_there(*state, first, SECONDS(3001)));
    assert_true(is_there(*state, more, SECONDS(3001)));
}

static void of_two_cookies_of_one_name_none_counts(void **state) {
    (void)state;
    static const struct {
        const char *header, *secret;
    } cases[] = {{"gradsync=abc", "abc"}, {"a=b; gradsync=abc ;c=d", "abc"}, {"gradsync=", ""}, {"", ""}, {"xgradsync=abc", ""},
                 {"gradsync=abc; gradsync=def", ""}, {"gradsync=abc;gradsync=", ""}, {"gradsyncs=abc", ""}, {";;; gradsync=abc;;", "abc"},
                 {"gradsync=0123456789012345678901234567890123456789012345678901234567890", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char secret[GS_SECRET_TEXT_BYTES];
        gs_session_of_cookies(secret, cases[i].header, "gradsync");
        if (strcmp(secret, cases[i].secret) != 0) fail_msg("%s: '%s'", cases[i].header, secret);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_session_names_its_token, make, drop),
        cmocka_unit_test_setup_teardown(a_session_that_is_looked_at_is_not_used, make, drop),
        cmocka_unit_test_setup_teardown(it_ends_when_it_is_not_used_and_after_a_week, make, drop),
        cmocka_unit_test_setup_teardown(a_token_pushes_out_its_own_sessions_alone, make, drop),
        cmocka_unit_test_setup_teardown(where_all_places_are_taken_the_longest_unused_goes, make, drop),
        cmocka_unit_test_setup_teardown(where_all_places_are_taken_who_has_most_gives_one, make, drop),
        cmocka_unit_test(of_two_cookies_of_one_name_none_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
