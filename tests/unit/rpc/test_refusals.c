// Refusals are told once for each key and minute, whoever knocks how often.
#include "rpc/server/refusals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

#define SECONDS(n) ((n) * GS_NS_PER_SEC)

typedef struct stage {
    char *dir, path[300];
    gs_refusals refusals;
} stage;

static int set_up(void **state) {
    stage *it = calloc(1, sizeof *it);
    it->dir = gs_temp_dir_make();
    snprintf(it->path, sizeof it->path, "%s/audit.jsonl", it->dir);
    assert_ok(gs_audit_open(&it->refusals.audit, &(gs_audit_options){.path = it->path}));
    *state = it;
    return 0;
}

static int tear_down(void **state) {
    stage *it = *state;
    gs_temp_dir_remove(it->dir);
    free(it);
    return 0;
}

static void note(stage *it, const char *who, int64_t now_ns) {
    gs_refusal facts = {.role = "viewer", .what = "StopJob", .result = "PERMISSION_DENIED", .name = "eye", .from = "127.0.0.1:1"};
    snprintf(facts.who, sizeof facts.who, "%s", who);
    gs_refusals_note(&it->refusals, &facts, now_ns);
}

// Of all lines "who:count ", in their order. Closes the audit.
static void read_counts(stage *it, char *text, size_t bytes) {
    char path[320], line[1024];
    size_t used = 0;
    gs_refusals_tell(&it->refusals, INT64_MAX);
    gs_audit_close(it->refusals.audit);
    snprintf(path, sizeof path, "%s.refused", it->path);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    text[0] = '\0';
    while (fgets(line, sizeof line, file)) {
        const char *who = strstr(line, "\"token\":\""), *count = strstr(line, "\"count\":");
        assert_non_null(who);
        assert_non_null(count);
        who += strlen("\"token\":\"");
        used += (size_t)snprintf(text + used, bytes - used, "%.*s:%ld ", (int)strcspn(who, "\""), who, strtol(count + strlen("\"count\":"), NULL, 10));
        assert_true(used < bytes);
    }
    fclose(file);
}

static void a_key_has_one_line_a_minute(void **state) {
    char counts[400];
    for (int i = 0; i < 30; i++) note(*state, "k-1", SECONDS(1 + i));
    note(*state, "k-2", SECONDS(31));
    note(*state, "k-1", SECONDS(62));  // its minute is over: the 29 are told, and this one waits
    for (int i = 0; i < 5; i++) note(*state, "k-1", SECONDS(63));
    read_counts(*state, counts, sizeof counts);
    assert_string_equal(counts, "k-1:1 k-2:1 k-1:29 k-1:6 ");
}

static void what_a_minute_has_collected_is_told_though_nobody_comes_again(void **state) {
    char counts[400];
    stage *it = *state;
    note(it, "k-1", SECONDS(1));
    note(it, "k-1", SECONDS(2));
    gs_refusals_tell(&it->refusals, SECONDS(60));
    assert_int_equal(it->refusals.items[0].num_untold, 1);
    gs_refusals_tell(&it->refusals, SECONDS(61));
    gs_refusals_tell(&it->refusals, SECONDS(122));
    assert_int_equal(it->refusals.count, 0);
    note(it, "k-1", SECONDS(130));
    read_counts(it, counts, sizeof counts);
    assert_string_equal(counts, "k-1:1 k-1:1 k-1:1 ");
}

static void new_keys_without_end_are_told_by_their_number(void **state) {
    char counts[2000], who[16];
    for (int i = 0; i < 1000; i++) {
        snprintf(who, sizeof who, "k-%d", i);
        note(*state, who, SECONDS(1));
    }
    read_counts(*state, counts, sizeof counts);
    int num_lines = 0;
    for (const char *c = counts; *c; c++) num_lines += *c == ' ';
    assert_int_equal(num_lines, GS_REFUSALS_MOST + 1);
    assert_non_null(strstr(counts, "others:968 "));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_key_has_one_line_a_minute),
        TEST(what_a_minute_has_collected_is_told_though_nobody_comes_again),
        TEST(new_keys_without_end_are_told_by_their_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
