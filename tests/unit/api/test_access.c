#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/access/token_store.h"
#include "core/clock.h"
#include "core/thread.h"
#include "rpc/json/sealed_json.h"
#include "tests/support/temp_dir.h"

enum { PATIENCE_SECONDS = 60 };

typedef struct place {
    char *dir, path[512], admin_path[512];
} place;

static int make_place(void **state) {
    place *here = calloc(1, sizeof *here);
    here->dir = gs_temp_dir_make();
    snprintf(here->path, sizeof here->path, "%s/tokens.json", here->dir);
    snprintf(here->admin_path, sizeof here->admin_path, "%s/admin.token", here->dir);
    *state = here;
    return 0;
}

static int remove_place(void **state) {
    place *here = *state;
    gs_temp_dir_remove(here->dir);
    free(here);
    return 0;
}

static gs_token_store *open_store(const place *here, bool is_required) {
    gs_token_store *store = NULL;
    gs_status status = gs_token_store_open(&store, &(gs_token_store_options){.path = here->path, .is_required = is_required});
    if (status.code) fail_msg("%s", status.message);
    return store;
}

static gs_token make(gs_token_store *store, char secret[GS_SECRET_TEXT_BYTES], const char *name, gs_role role) {
    gs_token made;
    gs_status status = gs_token_store_make(store, &made, secret, name, role, 0);
    if (status.code) fail_msg("%s", status.message);
    return made;
}

static gs_status admit(gs_token_store *store, const char *secret, gs_role needed) {
    char header[128];
    gs_caller caller;
    snprintf(header, sizeof header, "Bearer %s", secret ? secret : "");
    return gs_token_store_admit(store, &caller, secret ? header : NULL, needed);
}

static void read_admin(const place *here, char secret[GS_SECRET_TEXT_BYTES]) {
    FILE *file = fopen(here->admin_path, "r");
    assert_non_null(file);
    assert_non_null(fgets(secret, GS_SECRET_TEXT_BYTES, file));
    fclose(file);
}

static void secrets_differ_and_have_their_form(void **state) {
    (void)state;
    char a[GS_SECRET_TEXT_BYTES], b[GS_SECRET_TEXT_BYTES], text[GS_SECRET_HASH_TEXT_BYTES];
    gs_secret_hash hash_a, hash_b, again;
    assert_int_equal(gs_secret_draw(a).code, GS_OK);
    assert_int_equal(gs_secret_draw(b).code, GS_OK);
    assert_int_equal(strlen(a), GS_SECRET_TEXT_BYTES - 1);
    assert_string_not_equal(a, b);
    assert_true(gs_secret_hash_of(&hash_a, a, strlen(a)));
    assert_true(gs_secret_hash_of(&hash_b, b, strlen(b)));
    assert_false(gs_secret_hash_equal(&hash_a, &hash_b));
    gs_secret_hash_format(text, &hash_a);
    assert_true(gs_secret_hash_parse(&again, text));
    assert_true(gs_secret_hash_equal(&hash_a, &again));
}

// As sha256sum has it.
static void the_hash_is_sha256(void **state) {
    (void)state;
    static const char secret[] = "gs_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    char text[GS_SECRET_HASH_TEXT_BYTES];
    gs_secret_hash hash;
    assert_true(gs_secret_hash_of(&hash, secret, strlen(secret)));
    gs_secret_hash_format(text, &hash);
    assert_string_equal(text, "b7299c05c3d73a83c78e3758092bd21de660968bac2ba612fd2f181b6fa9ffa5");
}

static void headers_that_hold_no_token_are_none(void **state) {
    (void)state;
#define AS "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    static const char *const wrong[] = {"", "Bearer", "Bearer ", "Bearer gs_", "Bearer " AS, "Basic gs_" AS, "gs_" AS,
                                        "Bearer gs_" AS "A", "Bearer gs_" AS " ", "Bearer gs_" AS ",Bearer gs_" AS,
                                        "Bearer gt_" AS, "Bearer\tgs_" AS, "Bearer gs_AAAA=" AS};
    gs_secret_hash hash;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (gs_secret_hash_of_header(&hash, wrong[i])) fail_msg("taken: %s", wrong[i]);
    assert_true(gs_secret_hash_of_header(&hash, "Bearer gs_" AS));
    assert_true(gs_secret_hash_of_header(&hash, "bearer   gs_" AS));
}

static void nobody_is_asked_until_a_token_is_made(void **state) {
    const place *here = *state;
    gs_token_store *store = open_store(here, false);
    char secret[GS_SECRET_TEXT_BYTES], admin[GS_SECRET_TEXT_BYTES];
    assert_false(gs_token_store_asks(store));
    assert_int_equal(admit(store, NULL, GS_ROLE_ADMIN).code, GS_OK);
    assert_int_not_equal(access(here->path, F_OK), 0);

    make(store, secret, "ci", GS_ROLE_VIEWER);
    assert_true(gs_token_store_asks(store));
    assert_int_equal(admit(store, NULL, GS_ROLE_METRICS).code, GS_UNAUTHENTICATED);
    assert_int_equal(admit(store, NULL, GS_ROLE_ANYBODY).code, GS_OK);
    assert_int_equal(admit(store, secret, GS_ROLE_VIEWER).code, GS_OK);
    gs_status status = admit(store, secret, GS_ROLE_OPERATOR);
    assert_int_equal(status.code, GS_PERMISSION_DENIED);
    assert_non_null(strstr(status.message, "needs operator"));

    struct stat facts;
    assert_int_equal(stat(here->admin_path, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
    assert_int_equal(stat(here->path, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
    read_admin(here, admin);
    assert_int_equal(admit(store, admin, GS_ROLE_ADMIN).code, GS_OK);
    gs_token_store_close(store);
}

// No revocation opens the door, in this life or in the next one.
static void revoking_the_last_token_lets_nobody_in(void **state) {
    const place *here = *state;
    gs_token_store *store = open_store(here, true);
    char admin[GS_SECRET_TEXT_BYTES], other[GS_SECRET_TEXT_BYTES];
    read_admin(here, admin);
    gs_token made = make(store, other, "other", GS_ROLE_ADMIN);
    gs_json *view = gs_token_store_view(store);
    const char *first = gs_json_string_or(gs_json_at(gs_json_get(view, "items"), 0), "id", "");
    assert_int_equal(gs_token_store_revoke(store, first).code, GS_OK);
    assert_int_equal(gs_token_store_revoke(store, first).code, GS_OK);
    assert_int_equal(gs_token_store_revoke(store, made.id).code, GS_OK);
    gs_json_release(view);
    assert_int_equal(gs_token_store_revoke(store, "nobody").code, GS_NOT_FOUND);
    for (int life = 0; life < 2; life++) {
        gs_status status = admit(store, admin, GS_ROLE_METRICS);
        assert_int_equal(status.code, GS_UNAUTHENTICATED);
        assert_non_null(strstr(status.message, "was revoked at"));
        assert_int_equal(admit(store, other, GS_ROLE_METRICS).code, GS_UNAUTHENTICATED);
        assert_int_equal(admit(store, NULL, GS_ROLE_METRICS).code, GS_UNAUTHENTICATED);
        gs_token_store_close(store);
        store = open_store(here, false);
    }
    read_admin(here, other);  // the next life made another administrator
    assert_string_not_equal(other, admin);
    assert_int_equal(admit(store, other, GS_ROLE_ADMIN).code, GS_OK);
    gs_token_store_close(store);
}

static void names_are_of_one_token_that_counts(void **state) {
    gs_token_store *store = open_store(*state, true);
    char secret[GS_SECRET_TEXT_BYTES];
    gs_token made;
    make(store, secret, "ci", GS_ROLE_VIEWER);
    assert_int_equal(gs_token_store_make(store, &made, secret, "ci", GS_ROLE_VIEWER, 0).code, GS_ALREADY_EXISTS);
    assert_int_equal(gs_token_store_revoke(store, "ci").code, GS_OK);
    make(store, secret, "ci", GS_ROLE_VIEWER);
    gs_token_store_close(store);
}

static void names_that_look_like_ids_are_refused(void **state) {
    gs_token_store *store = open_store(*state, true);
    char secret[GS_SECRET_TEXT_BYTES];
    gs_token made = make(store, secret, "t-1234567", GS_ROLE_VIEWER), other;
    assert_int_equal(gs_token_store_make(store, &other, secret, made.id, GS_ROLE_VIEWER, 0).code, GS_INVALID_ARGUMENT);
    gs_token_store_close(store);
}

static void what_may_be_a_secret_is_masked(void **state) {
    (void)state;
    char secret[GS_SECRET_TEXT_BYTES], text[256], shown[256];
    assert_int_equal(gs_secret_draw(secret).code, GS_OK);
    snprintf(text, sizeof text, "/v1/tokens/gs_a/%s/x%s", secret, secret);
    gs_secret_mask(text);
    static const char stars[] = "*******************************************";
    snprintf(shown, sizeof shown, "/v1/tokens/gs_a/gs_%s/xgs_%s", stars, stars);
    assert_string_equal(text, shown);
}

static void what_has_expired_says_so(void **state) {
    (void)state;
    gs_token_list list = {0};
    gs_token token = {.name = "old", .role = GS_ROLE_ADMIN, .created_ms = 1000, .expires_ms = 2000};
    char secret[GS_SECRET_TEXT_BYTES];
    assert_int_equal(gs_secret_draw(secret).code, GS_OK);
    assert_true(gs_secret_hash_of(&token.hash, secret, strlen(secret)));
    assert_int_equal(gs_token_list_add(&list, &token, 1000).code, GS_OK);
    assert_true(gs_token_list_has_admin(&list, 1999));
    assert_false(gs_token_list_has_admin(&list, 2000));
    gs_json *view = gs_token_view(&list.items[0], 2000);
    assert_string_equal(gs_json_string_or(view, "state", ""), "expired");
    gs_json_release(view);
    gs_token_list_release(&list);
}

static void places_of_ended_tokens_are_used_again(void **state) {
    (void)state;
    gs_token_list list = {0};
    for (int i = 0; i <= GS_TOKENS_MOST; i++) {
        gs_token token = {.role = GS_ROLE_VIEWER, .created_ms = i + 1, .expires_ms = i == 5 ? 10 : 0};
        snprintf(token.name, sizeof token.name, "n%d", i);
        memcpy(token.hash.bytes, &i, sizeof i);
        assert_int_equal(gs_token_list_add(&list, &token, 5000).code, GS_OK);
    }
    assert_int_equal(list.count, GS_TOKENS_MOST);
    assert_string_equal(list.items[5].name, "n6");
    gs_token more = {.name = "more", .role = GS_ROLE_VIEWER};
    assert_int_equal(gs_token_list_add(&list, &more, 5000).code, GS_FAILED_PRECONDITION);
    gs_json *file = gs_token_list_encode(&list);
    gs_token_list again = {0};
    assert_int_equal(gs_token_list_decode(&again, file).code, GS_OK);
    assert_int_equal(again.count, list.count);
    assert_memory_equal(&again.items[999].hash, &list.items[999].hash, sizeof again.items[999].hash);
    gs_json_release(file);
    gs_token_list_release(&again);
    gs_token_list_release(&list);
}

// As the API apart does, which has the coordinator's file.
static void changes_of_another_process_are_seen(void **state) {
    gs_token_store *ours = open_store(*state, false), *theirs = open_store(*state, false);
    char secret[GS_SECRET_TEXT_BYTES];
    gs_token made = make(theirs, secret, "ci", GS_ROLE_VIEWER);
    gs_deadline deadline = gs_deadline_in_seconds(PATIENCE_SECONDS);
    while (!gs_token_store_asks(ours) && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    assert_int_equal(admit(ours, secret, GS_ROLE_VIEWER).code, GS_OK);
    assert_int_equal(gs_token_store_revoke(theirs, made.id).code, GS_OK);
    while (!admit(ours, secret, GS_ROLE_VIEWER).code && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    assert_int_equal(admit(ours, secret, GS_ROLE_VIEWER).code, GS_UNAUTHENTICATED);
    gs_token_store_close(theirs);
    gs_token_store_close(ours);
}

typedef struct maker {
    gs_token_store *store;
    const char *prefix;
} maker;

enum { MADE_BY_EACH = 5 };

static void make_some(void *ctx, const atomic_bool *stopping) {
    (void)stopping;
    const maker *it = ctx;
    for (int i = 0; i < MADE_BY_EACH; i++) {
        char name[32], secret[GS_SECRET_TEXT_BYTES];
        gs_token made;
        snprintf(name, sizeof name, "%s%d", it->prefix, i);
        gs_status status = gs_token_store_make(it->store, &made, secret, name, GS_ROLE_VIEWER, 0);
        if (status.code) fprintf(stderr, "%s: %s\n", name, status.message);
    }
}

static void tokens_made_at_the_same_time_are_all_there(void **state) {
    gs_token_store *stores[2] = {open_store(*state, true), open_store(*state, true)};
    maker makers[4] = {{stores[0], "a"}, {stores[0], "b"}, {stores[1], "c"}, {stores[1], "d"}};
    gs_thread *threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(gs_thread_start(&threads[i], "maker", make_some, &makers[i]).code, GS_OK);
    for (int i = 0; i < 4; i++) gs_thread_stop(threads[i]);
    gs_token_store *after = open_store(*state, true);
    gs_json *view = gs_token_store_view(after);
    assert_int_equal(gs_json_count(gs_json_get(view, "items")), 4 * MADE_BY_EACH + 1);
    gs_json_release(view);
    for (int i = 0; i < 2; i++) gs_token_store_close(stores[i]);
    gs_token_store_close(after);
}

// A look that began before a revocation, and takes long, does not show what was before it. The first of all tests: it is the first
// look that takes long.
static void what_is_revoked_does_not_come_back_by_a_look(void **state) {
    char secret[GS_SECRET_TEXT_BYTES], other[GS_SECRET_TEXT_BYTES];
    gs_token_store *ours = open_store(*state, true);
    gs_token made = make(ours, secret, "ours", GS_ROLE_VIEWER);
    gs_token_store *theirs = open_store(*state, false);
    make(theirs, other, "theirs", GS_ROLE_VIEWER);
    gs_deadline looking = gs_deadline_in_ms(1200), shown = gs_deadline_in_ms(3000);
    while (!gs_deadline_passed(looking)) gs_sleep_ns(GS_NS_PER_MS);
    assert_int_equal(gs_token_store_revoke(ours, made.id).code, GS_OK);
    while (!gs_deadline_passed(shown)) assert_int_equal(admit(ours, secret, GS_ROLE_VIEWER).code, GS_UNAUTHENTICATED);
    gs_token_store_close(theirs);
    gs_token_store_close(ours);
}

// Where no descriptor is free for a moment, the file cannot be read; it does not change again behind that.
static void a_revocation_is_not_lost_by_a_read_that_fails(void **state) {
    const place *here = *state;
    char secret[GS_SECRET_TEXT_BYTES], fresh[600];
    gs_token_store *store = open_store(here, true), *other = NULL;
    gs_token made = make(store, secret, "ours", GS_ROLE_VIEWER);
    snprintf(fresh, sizeof fresh, "cp %s %s.fresh", here->path, here->path);
    assert_int_equal(system(fresh), 0);
    snprintf(fresh, sizeof fresh, "%s.fresh", here->path);
    assert_int_equal(gs_token_store_open(&other, &(gs_token_store_options){.path = fresh}).code, GS_OK);
    assert_int_equal(gs_token_store_revoke(other, made.id).code, GS_OK);
    gs_token_store_close(other);
    struct rlimit usual, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    int free_fd = dup(STDERR_FILENO);  // the lowest that is free
    none = (struct rlimit){.rlim_cur = (rlim_t)free_fd, .rlim_max = usual.rlim_max};
    assert_int_equal(close(free_fd), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(rename(fresh, here->path), 0);
    gs_deadline deadline = gs_deadline_in_seconds(60);
    while (!gs_token_store_is_behind(store) && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    bool was_behind = gs_token_store_is_behind(store);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_true(was_behind);
    assert_int_equal(admit(store, secret, GS_ROLE_VIEWER).code, GS_OK);
    while (gs_token_store_is_behind(store) && !gs_deadline_passed(deadline)) gs_sleep_ns(GS_NS_PER_MS);
    assert_int_equal(admit(store, secret, GS_ROLE_VIEWER).code, GS_UNAUTHENTICATED);
    gs_token_store_close(store);
}

static gs_status try_to_open(const place *here) {
    gs_token_store *store = NULL;
    gs_status status = gs_token_store_open(&store, &(gs_token_store_options){.path = here->path});
    gs_token_store_close(store);
    return status;
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void a_file_that_is_not_ours_opens_nothing(void **state) {
    const place *here = *state;
    gs_token_store_close(open_store(here, true));
    assert_int_equal(chmod(here->path, 0620), 0);
    assert_int_equal(try_to_open(here).code, GS_FAILED_PRECONDITION);
    assert_int_equal(chmod(here->path, 0600), 0);
    assert_int_equal(try_to_open(here).code, GS_OK);
    write_file(here->path, "{\"version\":1,\"tokens\":[]}\n");
    assert_int_equal(try_to_open(here).code, GS_DATA_LOSS);
    uint64_t bytes;
    gs_digest digest;
    gs_json *later = gs_json_new_object();
    gs_json_set_int(later, "version", 2);
    assert_int_equal(gs_sealed_json_write(later, here->path, &bytes, &digest).code, GS_OK);
    assert_int_equal(try_to_open(here).code, GS_DATA_LOSS);
}

// What it leads to may come yet, as where a volume is mounted late.
static void a_link_to_nowhere_opens_no_door(void **state) {
    const place *here = *state;
    assert_int_equal(symlink("not there yet", here->path), 0);
    assert_int_equal(try_to_open(here).code, GS_FAILED_PRECONDITION);
}

// Those known before count on: what cannot be read lets nobody in, and locks nobody out.
static void damage_while_it_runs_changes_nothing(void **state) {
    const place *here = *state;
    gs_token_store *store = open_store(here, true);
    char admin[GS_SECRET_TEXT_BYTES], secret[GS_SECRET_TEXT_BYTES];
    gs_token made;
    read_admin(here, admin);
    write_file(here->path, "{}");
    gs_status status = gs_token_store_make(store, &made, secret, "ci", GS_ROLE_VIEWER, 0);
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_int_equal(unlink(here->path), 0);
    assert_int_equal(admit(store, admin, GS_ROLE_ADMIN).code, GS_OK);
    assert_int_equal(admit(store, NULL, GS_ROLE_METRICS).code, GS_UNAUTHENTICATED);
    gs_token_store_close(store);
}

static void where_tokens_are_ignored_none_is_made(void **state) {
    const place *here = *state;
    gs_token_store *store = NULL;
    gs_token made;
    char secret[GS_SECRET_TEXT_BYTES];
    assert_int_equal(gs_token_store_open(&store, &(gs_token_store_options){.path = here->path, .is_required = true, .is_ignored = true}).code, GS_OK);
    assert_int_equal(admit(store, NULL, GS_ROLE_ADMIN).code, GS_OK);
    assert_int_equal(gs_token_store_make(store, &made, secret, "ci", GS_ROLE_VIEWER, 0).code, GS_FAILED_PRECONDITION);
    gs_token_store_close(store);
    assert_int_not_equal(access(here->path, F_OK), 0);
}

static void exchange_files(void *ctx, const atomic_bool *stopping) {
    const place *here = ctx;
    char other[600];
    (void)stopping;
    snprintf(other, sizeof other, "%s.other", here->path);
    gs_sleep_ns(150 * GS_NS_PER_MS);
    if (rename(other, here->path) != 0) abort();
}

// Between the look at the file and its being read another one comes into its place, which anybody could have written. Only builds
// with failpoints stop there; elsewhere the next look refuses it.
static void what_is_read_is_what_was_looked_at(void **state) {
    const place *here = *state;
    char command[1400];
    gs_thread *thread = NULL;
    gs_token_store *store = open_store(here, true);
    gs_token_store_close(store);
    snprintf(command, sizeof command, "cp %s %s.other && chmod 666 %s.other", here->path, here->path, here->path);
    assert_int_equal(system(command), 0);
    assert_int_equal(gs_thread_start(&thread, "exchange", exchange_files, *state).code, GS_OK);
    gs_status status = gs_token_store_open(&store, &(gs_token_store_options){.path = here->path, .is_required = true});
    gs_thread_stop(thread);
    if (!status.code) {
#ifdef GRADSYNC_FAILPOINTS
        fail_msg("a file that was exchanged is taken");
#endif
        gs_token_store_close(store);
        return;
    }
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, here->path));
}

int main(void) {
    setenv("GRADSYNC_FAILPOINTS", "tokens.look=sleep:1500,tokens.read=sleep:500", 1);  // of debug builds
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_read_is_what_was_looked_at, make_place, remove_place),  // the first to come to tokens.read
        cmocka_unit_test_setup_teardown(what_is_revoked_does_not_come_back_by_a_look, make_place, remove_place),
        cmocka_unit_test_setup_teardown(a_revocation_is_not_lost_by_a_read_that_fails, make_place, remove_place),
        cmocka_unit_test(secrets_differ_and_have_their_form),
        cmocka_unit_test(the_hash_is_sha256),
        cmocka_unit_test(headers_that_hold_no_token_are_none),
        cmocka_unit_test_setup_teardown(nobody_is_asked_until_a_token_is_made, make_place, remove_place),
        cmocka_unit_test_setup_teardown(revoking_the_last_token_lets_nobody_in, make_place, remove_place),
        cmocka_unit_test_setup_teardown(names_are_of_one_token_that_counts, make_place, remove_place),
        cmocka_unit_test_setup_teardown(names_that_look_like_ids_are_refused, make_place, remove_place),
        cmocka_unit_test(what_may_be_a_secret_is_masked),
        cmocka_unit_test(what_has_expired_says_so),
        cmocka_unit_test(places_of_ended_tokens_are_used_again),
        cmocka_unit_test_setup_teardown(changes_of_another_process_are_seen, make_place, remove_place),
        cmocka_unit_test_setup_teardown(tokens_made_at_the_same_time_are_all_there, make_place, remove_place),
        cmocka_unit_test_setup_teardown(a_file_that_is_not_ours_opens_nothing, make_place, remove_place),
        cmocka_unit_test_setup_teardown(a_link_to_nowhere_opens_no_door, make_place, remove_place),
        cmocka_unit_test_setup_teardown(damage_while_it_runs_changes_nothing, make_place, remove_place),
        cmocka_unit_test_setup_teardown(where_tokens_are_ignored_none_is_made, make_place, remove_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
