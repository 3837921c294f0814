// Who is known, who may be taken for whom, and what a token becomes.
#include "rpc/keys/key_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "rpc/keys/key_store.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

static gs_known_key key_of(const char *name, gs_role role, bool is_pool) {
    gs_known_key key = {.role = role, .is_pool = is_pool, .created_ms = 1};
    gs_curve_pair pair;
    assert_ok(gs_curve_pair_draw(&pair));
    key.shown = pair.shown;
    snprintf(key.name, sizeof key.name, "%s", name);
    return key;
}

static gs_code add(gs_key_list *list, const char *name, gs_role role, bool is_pool) {
    gs_known_key key = key_of(name, role, is_pool);
    return gs_key_list_add(list, &key, 100).code;
}

static void a_name_belongs_to_one_role_and_one_pool(void **state) {
    (void)state;
    gs_key_list list = {0};
    assert_int_equal(add(&list, "gpu", GS_ROLE_AGENT, true), GS_OK);
    assert_int_equal(add(&list, "gpu", GS_ROLE_AGENT, true), GS_OK);  // the next one, while both count
    assert_int_equal(add(&list, "gpu", GS_ROLE_AGENT, false), GS_ALREADY_EXISTS);
    assert_int_equal(add(&list, "gpu", GS_ROLE_ADMIN, false), GS_ALREADY_EXISTS);
    assert_int_equal(add(&list, "gpu-1", GS_ROLE_AGENT, false), GS_ALREADY_EXISTS);  // the pool could be it
    assert_int_equal(add(&list, "gpu-a", GS_ROLE_AGENT, true), GS_ALREADY_EXISTS);
    assert_int_equal(add(&list, "gpus", GS_ROLE_AGENT, false), GS_OK);
    assert_int_equal(add(&list, "cpu-1", GS_ROLE_AGENT, false), GS_OK);
    assert_int_equal(add(&list, "cpu", GS_ROLE_AGENT, true), GS_ALREADY_EXISTS);
    int count;
    assert_ok(gs_key_list_revoke(&list, "gpu", 200, &count));
    assert_int_equal(count, 2);
    assert_int_equal(gs_key_list_revoke(&list, "gpu", 200, &count).code, GS_NOT_FOUND);
    gs_known_key later = key_of("gpu-1", GS_ROLE_AGENT, false);
    assert_ok(gs_key_list_add(&list, &later, 300));
    gs_key_list_release(&list);
}

static void an_id_is_no_name_and_who_is_meant_is_said(void **state) {
    (void)state;
    gs_key_list list = {0};
    gs_known_key first = key_of("first", GS_ROLE_AGENT, false), second = key_of("second", GS_ROLE_VIEWER, false);
    assert_int_equal(add(&list, "k-0123abcd", GS_ROLE_AGENT, false), GS_INVALID_ARGUMENT);
    assert_int_equal(add(&list, "k-0123abcde", GS_ROLE_AGENT, false), GS_OK);
    assert_ok(gs_key_list_add(&list, &first, 100));
    assert_ok(gs_key_list_add(&list, &second, 100));
    // As a version before could leave it.
    snprintf(list.items[2].name, sizeof list.items[2].name, "%s", first.id);
    int count;
    assert_int_equal(gs_key_list_revoke(&list, first.id, 200, &count).code, GS_ALREADY_EXISTS);
    assert_int_equal(list.items[1].revoked_ms, 0);
    assert_int_equal(list.items[2].revoked_ms, 0);
    assert_ok(gs_key_list_revoke(&list, second.id, 200, &count));
    assert_ok(gs_key_list_revoke(&list, first.id, 300, &count));
    assert_int_equal(count, 1);
    assert_int_equal(list.items[1].revoked_ms, 300);
    gs_key_list_release(&list);
}

static void a_worker_may_ask_again_what_it_was_enrolled_as(void **state) {
    (void)state;
    gs_key_list list = {0};
    gs_known_key token = key_of("gpu-1", GS_ROLE_ENROL, false), key = key_of("", GS_ROLE_AGENT, false), made, again;
    gs_known_key other = key_of("", GS_ROLE_AGENT, false);
    assert_ok(gs_key_list_add(&list, &token, 100));
    assert_ok(gs_key_list_enrol(&list, token.id, "", &key.shown, 200, &made));
    assert_ok(gs_key_list_enrol(&list, made.id, "gpu-2", &key.shown, 300, &again));
    assert_string_equal(again.id, made.id);
    assert_string_equal(again.name, "gpu-1");
    assert_int_equal(gs_key_list_enrol(&list, made.id, "", &other.shown, 300, &again).code, GS_PERMISSION_DENIED);
    int count;
    assert_ok(gs_key_list_revoke(&list, made.id, 400, &count));
    assert_int_equal(gs_key_list_enrol(&list, made.id, "", &key.shown, 500, &again).code, GS_PERMISSION_DENIED);
    assert_int_equal(list.count, 2);
    gs_key_list_release(&list);
}

static void a_key_covers_its_own_name_or_those_of_its_pool(void **state) {
    (void)state;
    assert_true(gs_key_name_covers("gpu", false, "gpu"));
    assert_false(gs_key_name_covers("gpu", false, "gpu-1"));
    assert_false(gs_key_name_covers("gpu", false, ""));
    assert_true(gs_key_name_covers("gpu", true, "gpu-1"));
    assert_false(gs_key_name_covers("gpu", true, "gpu"));
    assert_false(gs_key_name_covers("gpu", true, "gpu-"));
    assert_false(gs_key_name_covers("gpu", true, "gpus-1"));
}

static void a_token_becomes_one_key_once(void **state) {
    (void)state;
    gs_key_list list = {0};
    gs_known_key open = key_of("", GS_ROLE_ENROL, false), named = key_of("one", GS_ROLE_ENROL, false), made;
    gs_known_key late = key_of("", GS_ROLE_ENROL, false), fresh = key_of("x", GS_ROLE_AGENT, false);
    late.expires_ms = 150;
    assert_ok(gs_key_list_add(&list, &open, 100));
    assert_ok(gs_key_list_add(&list, &late, 100));
    assert_int_equal(gs_key_list_enrol(&list, open.id, "", &fresh.shown, 200, &made).code, GS_INVALID_ARGUMENT);
    assert_int_equal(gs_key_list_enrol(&list, open.id, "../x", &fresh.shown, 200, &made).code, GS_INVALID_ARGUMENT);
    assert_int_equal(gs_key_list_enrol(&list, late.id, "one", &fresh.shown, 200, &made).code, GS_PERMISSION_DENIED);
    assert_ok(gs_key_list_enrol(&list, open.id, "one", &fresh.shown, 200, &made));
    assert_string_equal(made.name, "one");
    assert_int_equal(made.role, GS_ROLE_AGENT);
    gs_known_key second = key_of("y", GS_ROLE_AGENT, false);
    assert_int_equal(gs_key_list_enrol(&list, open.id, "two", &second.shown, 201, &made).code, GS_PERMISSION_DENIED);
    // A worker's own key is no token.
    assert_int_equal(gs_key_list_enrol(&list, list.items[2].id, "two", &second.shown, 201, &made).code, GS_PERMISSION_DENIED);
    gs_known_key unnamed = key_of("", GS_ROLE_ENROL, false);
    assert_ok(gs_key_list_add(&list, &unnamed, 300));
    assert_int_equal(gs_key_list_enrol(&list, unnamed.id, "one", &second.shown, 300, &made).code, GS_ALREADY_EXISTS);
    assert_ok(gs_key_list_add(&list, &named, 300));
    assert_int_equal(gs_key_list_enrol(&list, named.id, "two", &second.shown, 300, &made).code, GS_PERMISSION_DENIED);
    assert_ok(gs_key_list_enrol(&list, named.id, "", &second.shown, 300, &made));
    assert_string_equal(made.name, "one");
    gs_key_list_release(&list);
}

static void what_is_written_is_what_is_read(void **state) {
    (void)state;
    gs_key_list list = {0}, again = {0};
    assert_int_equal(add(&list, "gpu", GS_ROLE_AGENT, true), GS_OK);
    assert_int_equal(add(&list, "api", GS_ROLE_OPERATOR, false), GS_OK);
    assert_int_equal(add(&list, "", GS_ROLE_ENROL, false), GS_OK);
    gs_json *file = gs_key_list_encode(&list);
    assert_ok(gs_key_list_decode(&again, file));
    assert_int_equal(again.count, 3);
    assert_memory_equal(again.items, list.items, 3 * sizeof *list.items);
    gs_json_release(file);
    gs_key_list_release(&again);
    gs_key_list_release(&list);
}

static void a_file_of_a_key_holds_both_halves(void **state) {
    (void)state;
    gs_key_file key = {.name = "gpu", .is_pool = true}, again;
    assert_ok(gs_curve_pair_draw(&key.pair));
    key.server = key.pair.shown;
    gs_json *file = gs_key_file_encode(&key);
    assert_ok(gs_key_file_decode(&again, file));
    assert_memory_equal(&again, &key, sizeof key);
    gs_json_set_string(file, "secret", gs_json_string_or(file, "public", ""));
    assert_int_equal(gs_key_file_decode(&again, file).code, GS_INVALID_ARGUMENT);
    gs_json_release(file);
    char text[GS_ENROL_TOKEN_BYTES];
    gs_enrol_token_format(text, &key.server, &key.pair.secret);
    assert_ok(gs_enrol_token_parse(&again, text, strlen(text)));
    assert_true(gs_curve_key_equal(&again.pair.shown, &key.pair.shown));
    assert_int_equal(gs_enrol_token_parse(&again, text, strlen(text) - 1).code, GS_INVALID_ARGUMENT);
}

static gs_status enrol_again(gs_key_list *list, void *ctx) {
    const gs_key_file *key = ctx;
    gs_known_key made;
    return gs_key_list_enrol(list, list->items[0].id, "", &key->pair.shown, 200, &made);
}

// Any worker may ask what it was enrolled as, as often as it likes.
static void a_list_that_has_not_changed_is_not_written(void **state) {
    (void)state;
    char *root = gs_temp_dir_make(), path[GS_KEY_PATH_BYTES];
    gs_key_store_path(path, root);
    gs_known_key known = key_of("gpu-1", GS_ROLE_AGENT, false);
    gs_key_file key;
    assert_ok(gs_key_store_make(path, &known, &key));
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    assert_ok(gs_key_store_change(path, enrol_again, &key));
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    known = key_of("gpu-2", GS_ROLE_AGENT, false);
    assert_ok(gs_key_store_make(path, &known, &key));
    assert_int_equal(stat(path, &after), 0);
    assert_int_not_equal(before.st_ino, after.st_ino);
    gs_temp_dir_remove(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_that_has_not_changed_is_not_written),
        cmocka_unit_test(a_name_belongs_to_one_role_and_one_pool),
        cmocka_unit_test(an_id_is_no_name_and_who_is_meant_is_said),
        cmocka_unit_test(a_worker_may_ask_again_what_it_was_enrolled_as),
        cmocka_unit_test(a_key_covers_its_own_name_or_those_of_its_pool),
        cmocka_unit_test(a_token_becomes_one_key_once),
        cmocka_unit_test(what_is_written_is_what_is_read),
        cmocka_unit_test(a_file_of_a_key_holds_both_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
