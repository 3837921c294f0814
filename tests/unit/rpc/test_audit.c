#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/strbuf.h"
#include "rpc/json/json.h"
#include "rpc/keys/audit.h"
#include "tests/support/temp_dir.h"

typedef struct place {
    char *dir, path[512];
} place;

static int make_place(void **state) {
    place *here = calloc(1, sizeof *here);
    here->dir = gs_temp_dir_make();
    snprintf(here->path, sizeof here->path, "%s/audit.jsonl", here->dir);
    *state = here;
    return 0;
}

static int remove_place(void **state) {
    place *here = *state;
    gs_temp_dir_remove(here->dir);
    free(here);
    return 0;
}

static gs_audit *open_audit(const place *here, uint64_t most_bytes) {
    gs_audit *audit = NULL;
    gs_status status = gs_audit_open(&audit, &(gs_audit_options){.path = here->path, .most_bytes = most_bytes, .most_files = 2});
    if (status.code) fail_msg("%s", status.message);
    return audit;
}

static gs_audit_line line_of(gs_audit_kind kind, const char *id) {
    return (gs_audit_line){.kind = kind, .request_id = id, .method = "POST", .route = "/v1/jobs", .path = "/v1/jobs", .token = "t-00000001",
                           .name = "ci", .role = "operator", .from = "127.0.0.1:9", .status = kind == GS_AUDIT_ASKED ? 0 : 201};
}

static void write_line(gs_audit *audit, gs_audit_kind kind, const char *id) {
    gs_audit_line line = line_of(kind, id);
    gs_audit_write(audit, &line);
}

static gs_strbuf read_text(const place *here, const char *ending) {
    char path[600], part[4096];
    gs_strbuf text = {0};
    snprintf(path, sizeof path, "%s%s", here->path, ending);
    FILE *file = fopen(path, "r");
    for (size_t got; file && (got = fread(part, 1, sizeof part, file)) > 0;) gs_strbuf_add(&text, part, got);
    if (file) fclose(file);
    return text;
}

// "seq:id …" of all whole lines, in order.
static void assert_lines(const place *here, const char *ending, const char *expected) {
    gs_strbuf text = read_text(here, ending), seen = {0};
    for (const char *line = gs_strbuf_text(&text), *end; (end = strchr(line, '\n')); line = end + 1) {
        gs_json *json = NULL;
        if (gs_json_parse(&json, line, (size_t)(end - line)).code) {
            gs_strbuf_puts(&seen, seen.len ? " cut" : "cut");
            continue;
        }
        gs_strbuf_printf(&seen, "%s%lld:%s", seen.len ? " " : "", (long long)gs_json_int_or(json, "seq", -1), gs_json_string_or(json, "id", "?"));
        gs_json_release(json);
    }
    assert_string_equal(gs_strbuf_text(&seen), expected);
    gs_strbuf_release(&seen);
    gs_strbuf_release(&text);
}

static void a_line_says_who_did_what_and_what_came_of_it(void **state) {
    gs_audit *audit = open_audit(*state, 0);
    gs_audit_line line = line_of(GS_AUDIT_ANSWERED, "r-1");
    line.made = "/v1/jobs/j-1";
    gs_audit_write(audit, &line);
    gs_audit_close(audit);
    gs_strbuf text = read_text(*state, "");
    static const char *const parts[] = {"{\"seq\":1,\"at\":\"2", "\"event\":\"answered\"", "\"id\":\"r-1\"", "\"method\":\"POST\"",
                                        "\"route\":\"/v1/jobs\"", "\"token\":\"t-00000001\"", "\"name\":\"ci\"", "\"role\":\"operator\"",
                                        "\"from\":\"127.0.0.1:9\"", "\"status\":201", "\"made\":\"/v1/jobs/j-1\""};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(gs_strbuf_text(&text), parts[i])) fail_msg("no %s in %s", parts[i], gs_strbuf_text(&text));
    gs_strbuf_release(&text);
    struct stat facts;
    assert_int_equal(stat(((place *)*state)->path, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
}

// Another thread writes them, before the file is closed at the latest.
static void what_is_posted_is_there_in_its_order(void **state) {
    gs_audit *audit = open_audit(*state, 0);
    char id[16];
    for (int i = 0; i < 500; i++) {
        snprintf(id, sizeof id, "p-%03d", i);
        gs_audit_line line = line_of(GS_AUDIT_ANSWERED, id);
        line.status = 0;
        line.result = "OK";
        line.by = "ci (t-1)";
        gs_audit_post(audit, &line);
    }
    gs_audit_close(audit);
    gs_strbuf text = read_text(*state, "");
    const char *at = gs_strbuf_text(&text);
    for (int i = 0; i < 500; i++) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "{\"seq\":%d,", i + 1);
        at = strstr(at, wanted);
        assert_non_null(at);
        snprintf(wanted, sizeof wanted, "\"id\":\"p-%03d\"", i);
        at = strstr(at, wanted);
        assert_non_null(at);
    }
    assert_non_null(strstr(at, "\"by\":\"ci (t-1)\""));
    assert_non_null(strstr(at, "\"result\":\"OK\""));
    gs_strbuf_release(&text);
}

static void numbers_go_on_over_restarts(void **state) {
    for (int life = 0; life < 3; life++) {
        gs_audit *audit = open_audit(*state, 0);
        write_line(audit, GS_AUDIT_ASKED, "a");
        write_line(audit, GS_AUDIT_ANSWERED, "a");
        gs_audit_close(audit);
    }
    assert_lines(*state, "", "1:a 2:a 3:a 4:a 5:a 6:a");
}

// As a loss of power leaves it.
static void what_was_cut_stays_and_the_next_line_is_whole(void **state) {
    const place *here = *state;
    gs_audit *audit = open_audit(here, 0);
    write_line(audit, GS_AUDIT_ASKED, "a");
    write_line(audit, GS_AUDIT_ASKED, "b");
    gs_audit_close(audit);
    struct stat facts;
    assert_int_equal(stat(here->path, &facts), 0);
    assert_int_equal(truncate(here->path, facts.st_size - 20), 0);
    audit = open_audit(here, 0);
    write_line(audit, GS_AUDIT_ASKED, "c");
    gs_audit_close(audit);
    assert_lines(here, "", "1:a cut 2:c");
}

static void full_files_are_renamed_and_the_oldest_goes(void **state) {
    const place *here = *state;
    char id[16];
    gs_audit *audit = open_audit(here, 300);  // two lines
    for (int i = 1; i <= 8; i++) {
        snprintf(id, sizeof id, "%d", i);
        write_line(audit, GS_AUDIT_ANSWERED, id);
    }
    gs_audit_close(audit);
    assert_lines(here, "", "7:7 8:8");
    assert_lines(here, ".1", "5:5 6:6");
    assert_lines(here, ".2", "3:3 4:4");
    assert_lines(here, ".3", "");
    // The next life looks into the file before where this one is empty.
    assert_int_equal(truncate(here->path, 0), 0);
    audit = open_audit(here, 300);
    write_line(audit, GS_AUDIT_ANSWERED, "9");
    gs_audit_close(audit);
    assert_lines(here, "", "7:9");
}

static void strangers_push_nothing_out(void **state) {
    gs_audit *audit = open_audit(*state, 300);
    write_line(audit, GS_AUDIT_ASKED, "a");
    for (int i = 0; i < 20; i++) write_line(audit, GS_AUDIT_REFUSED, "stranger");
    write_line(audit, GS_AUDIT_ANSWERED, "a");
    gs_audit_close(audit);
    assert_lines(*state, "", "1:a 2:a");
    assert_lines(*state, ".refused", "19:stranger 20:stranger");
}

// A file that may not grow stands for a disk that is full.
static void what_cannot_be_written_is_counted_and_leaves_no_half(void **state) {
    gs_audit *audit = open_audit(*state, 0);
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    write_line(audit, GS_AUDIT_ASKED, "a");
    struct stat facts;
    assert_int_equal(stat(((place *)*state)->path, &facts), 0);
    small = before;
    small.rlim_cur = (rlim_t)facts.st_size + 50;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    write_line(audit, GS_AUDIT_ANSWERED, "a");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(gs_audit_lost(audit), 1);
    write_line(audit, GS_AUDIT_ASKED, "b");
    gs_audit_close(audit);
    assert_lines(*state, "", "1:a 2:b");
}

static void a_link_is_refused(void **state) {
    const place *here = *state;
    gs_audit *audit = NULL;
    assert_int_equal(symlink("/dev/null", here->path), 0);
    assert_int_not_equal(gs_audit_open(&audit, &(gs_audit_options){.path = here->path}).code, GS_OK);
    gs_audit_close(audit);
}

int main(void) {
    signal(SIGXFSZ, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_line_says_who_did_what_and_what_came_of_it, make_place, remove_place),
        cmocka_unit_test_setup_teardown(what_is_posted_is_there_in_its_order, make_place, remove_place),
        cmocka_unit_test_setup_teardown(numbers_go_on_over_restarts, make_place, remove_place),
        cmocka_unit_test_setup_teardown(what_was_cut_stays_and_the_next_line_is_whole, make_place, remove_place),
        cmocka_unit_test_setup_teardown(full_files_are_renamed_and_the_oldest_goes, make_place, remove_place),
        cmocka_unit_test_setup_teardown(strangers_push_nothing_out, make_place, remove_place),
        cmocka_unit_test_setup_teardown(what_cannot_be_written_is_counted_and_leaves_no_half, make_place, remove_place),
        cmocka_unit_test_setup_teardown(a_link_is_refused, make_place, remove_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
