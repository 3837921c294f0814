#include "worker/agent/rank_environment.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"

static char *dir;

static int set_up(void **state) {
    (void)state;
    dir = gs_temp_dir_make();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    gs_temp_dir_remove(dir);
    return 0;
}

static void put_file(const char *name, const char *text, size_t bytes) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void put_text(const char *name, const char *text) { put_file(name, text, strlen(text)); }

static gs_status make(gs_rank_environment *out, const char *environment, const char *secrets) {
    static char *const own[] = {(char *)(uintptr_t)"TZ=UTC", (char *)(uintptr_t)"NCCL_DEBUG=INFO",
                                (char *)(uintptr_t)"RANK=0", NULL};
    static char *const set[] = {(char *)(uintptr_t)"RANK=3", NULL};
    const gs_rank_environment_sources sources = {.own = own, .secrets = secrets, .set = set};
    char text[600];
    gs_json *spec;
    snprintf(text, sizeof text, "{\"environment\":[%s]}", environment);
    assert_ok(gs_json_parse(&spec, text, strlen(text)));
    gs_status status = gs_rank_environment_make(out, spec, &sources);
    gs_json_release(spec);
    return status;
}

static const char *value_of(const gs_rank_environment *environment, const char *name) {
    size_t length = strlen(name), found = 0;
    const char *value = NULL;
    for (size_t i = 0; i < environment->count; i++) {
        if (strncmp(environment->variables[i], name, length) || environment->variables[i][length] != '=') continue;
        value = environment->variables[i] + length + 1;
        found++;
    }
    assert_true(found <= 1);
    assert_null(environment->variables[environment->count]);
    return value;
}

static void a_rank_has_its_agents_variables_its_jobs_and_its_own(void **state) {
    gs_rank_environment environment;
    (void)state;
    put_text("tracker.token", "s3cr3t-value\n");
    assert_ok(make(&environment,
                   "{\"name\":\"TZ\",\"value\":\"CET\"},{\"name\":\"EMPTY\"},{\"name\":\"TOKEN\",\"secret\":\"tracker.token\"}", dir));
    assert_string_equal(value_of(&environment, "TZ"), "CET");
    assert_string_equal(value_of(&environment, "EMPTY"), "");
    assert_string_equal(value_of(&environment, "TOKEN"), "s3cr3t-value");
    assert_string_equal(value_of(&environment, "NCCL_DEBUG"), "INFO");
    assert_string_equal(value_of(&environment, "RANK"), "3");
    gs_rank_environment_release(&environment);
}

// Credentials of whoever started the worker have names that no list of ours knows.
static void of_its_agents_a_rank_gets_what_is_named_and_nothing_else(void **state) {
    static const char *const kept[] = {"PATH", "HOME", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME",
                                       "OPENBLAS_CORETYPE", "GRADSYNC_REDUCER_LOG", "GRADSYNC_HOST", "GRADSYNC_KERNEL_TIMES", "GRADSYNC_NCCL_WINDOWS",
                                       "GRADSYNC_NCCL_REGISTRATION", "GRADSYNC_MATMUL_CANDIDATES", "GRADSYNC_MATMUL_WORKSPACE_MIB", "WANTED", "ALSO_WANTED"};
    static const char *const left[] = {"AWS_SECRET_ACCESS_KEY", "GRADSYNC_TOKEN", "GRADSYNC_TOKEN_FILE", "GRADSYNC_SECRETS", "GRADSYNC_KEY",
                                       "GRADSYNC_ENROL", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR",
                                       "DBUS_SESSION_BUS_ADDRESS", "PATHS", "HOMES", "GRADSYNC_HOSTS", "WANTED_TOO", "ALSO", "UNWANTED"};
    enum { KEPT = sizeof kept / sizeof *kept, LEFT = sizeof left / sizeof *left };
    char *own[KEPT + LEFT + 2] = {NULL}, nameless[] = "NO_VALUE";
    gs_rank_environment environment;
    (void)state;
    for (int i = 0; i < KEPT + LEFT; i++)
        assert_true(asprintf(&own[i], "%s=x%d", i < KEPT ? kept[i] : left[i - KEPT], i) > 0);
    own[KEPT + LEFT] = nameless;
    const gs_rank_environment_sources sources = {.own = own, .passed = ",WANTED, ALSO_WANTED,MISSING,NO_VALUE"};
    assert_ok(gs_rank_environment_make(&environment, NULL, &sources));
    for (int i = 0; i < KEPT; i++) assert_string_equal(value_of(&environment, kept[i]), strchr(own[i], '=') + 1);
    for (int i = 0; i < LEFT; i++)
        if (value_of(&environment, left[i])) fail_msg("a rank gets %s", left[i]);
    assert_int_equal(environment.count, KEPT);
    gs_rank_environment_release(&environment);
    for (int i = 0; i < KEPT + LEFT; i++) free(own[i]);
}

static void a_rank_of_another_user_has_his_home(void **state) {
    static char *const own[] = {(char *)(uintptr_t)"HOME=/root", (char *)(uintptr_t)"PATH=/bin", NULL};
    static char *const user[] = {(char *)(uintptr_t)"HOME=/home/trainer", (char *)(uintptr_t)"USER=trainer", NULL};
    const gs_rank_environment_sources sources = {.own = own, .user = user};
    gs_rank_environment environment;
    (void)state;
    assert_ok(gs_rank_environment_make(&environment, NULL, &sources));
    assert_string_equal(value_of(&environment, "HOME"), "/home/trainer");
    assert_string_equal(value_of(&environment, "USER"), "trainer");
    assert_string_equal(value_of(&environment, "PATH"), "/bin");
    gs_rank_environment_release(&environment);
}

// A line that is longer than a piece is cut; a secret in it is not, wherever it lies.
static void no_piece_ends_within_a_secret(void **state) {
    static const char text[] = "0123456789abcdefghijklmnopqrst";
    char *secrets[] = {(char *)(uintptr_t)"cdefghijkl", (char *)(uintptr_t)"89abcdef"};
    const gs_rank_environment environment = {.secrets = secrets, .num_secrets = 2};
    (void)state;
    assert_int_equal(gs_rank_environment_longest(&environment), 10);
    for (size_t at = 1; at < sizeof text - 10; at++) {
        size_t wanted = at > 8 && at < 22 ? 8 : at;  // in either, or where they overlap
        assert_int_equal(gs_rank_environment_cut(&environment, text, sizeof text - 1, at), wanted);
    }
    assert_int_equal(gs_rank_environment_cut(&environment, text + 12, 18, 5), 10);  // it begins the piece
}

// systemd puts all credentials of a unit into one directory.
static void the_workers_own_key_is_no_jobs_secret(void **state) {
    char key[600];
    static char text[] = "{\"environment\":[{\"name\":\"A\",\"secret\":\"worker.key\"}]}";
    gs_rank_environment environment;
    gs_json *spec;
    (void)state;
    put_text("worker.key", "the-key-of-this-worker\n");
    snprintf(key, sizeof key, "%s/./worker.key", dir);
    const char *const withheld[] = {"/nowhere", key, NULL};
    const gs_rank_environment_sources sources = {.secrets = dir, .withheld = withheld};
    assert_ok(gs_json_parse(&spec, text, strlen(text)));
    gs_status status = gs_rank_environment_make(&environment, spec, &sources);
    assert_int_equal(status.code, GS_PERMISSION_DENIED);
    gs_json_release(spec);
}

// As Kubernetes puts them there: a link to a file of a directory that a link stands for.
static void a_secret_may_be_a_link_that_stays_in_its_directory(void **state) {
    gs_rank_environment environment;
    char path[600], target[600];
    (void)state;
    snprintf(path, sizeof path, "%s/..2026", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    put_text("..2026/key", "first-line-of-it\nsecond-line\n");
    snprintf(path, sizeof path, "%s/..data", dir);
    assert_int_equal(symlink("..2026", path), 0);
    snprintf(path, sizeof path, "%s/key", dir);
    assert_int_equal(symlink("..data/key", path), 0);
    assert_ok(make(&environment, "{\"name\":\"KEY\",\"secret\":\"key\"}", dir));
    assert_string_equal(value_of(&environment, "KEY"), "first-line-of-it\nsecond-line");
    gs_rank_environment_release(&environment);

    snprintf(path, sizeof path, "%s/out", dir);
    snprintf(target, sizeof target, "/etc/passwd");
    assert_int_equal(symlink(target, path), 0);
    gs_status status = make(&environment, "{\"name\":\"KEY\",\"secret\":\"out\"}", dir);
    assert_int_equal(status.code, GS_PERMISSION_DENIED);
    assert_non_null(strstr(status.message, "secret out"));
}

static void what_cannot_be_given_is_an_error_that_names_it_and_not_its_value(void **state) {
    static const struct {
        const char *item, *secrets;
        gs_code code;
        const char *said;
    } cases[] = {
        {"{\"name\":\"A\",\"secret\":\"missing\"}", "here", GS_NOT_FOUND, "secret missing"},
        {"{\"name\":\"A\",\"secret\":\"long\"}", "", GS_FAILED_PRECONDITION, "--secrets"},
        {"{\"name\":\"A\",\"secret\":\"short\"}", "here", GS_FAILED_PRECONDITION, "shorter than 6"},
        {"{\"name\":\"A\",\"secret\":\"zero\"}", "here", GS_FAILED_PRECONDITION, "zero byte"},
        {"{\"name\":\"A\",\"secret\":\"large\"}", "here", GS_FAILED_PRECONDITION, "more than"},
        {"{\"name\":\"A\",\"secret\":\"folder\"}", "here", GS_FAILED_PRECONDITION, "regular file"},
        // Nobody's word but the worker's own makes it run other code.
        {"{\"name\":\"A\",\"secret\":\"../long\"}", "here", GS_INVALID_ARGUMENT, "is no name"},
        {"{\"name\":\"LD_PRELOAD\",\"value\":\"x\"}", "here", GS_FAILED_PRECONDITION, "LD_PRELOAD"},
        {"{\"name\":\"A=B\",\"value\":\"x\"}", "here", GS_FAILED_PRECONDITION, "may not set"},
    };
    static char large[GS_SECRET_MOST_BYTES + 1];
    char path[600];
    (void)state;
    memset(large, 'x', sizeof large);
    put_text("short", "12345\n");
    put_text("long", "hush-hush");
    put_file("zero", "hush\0hush", 9);
    put_file("large", large, sizeof large);
    snprintf(path, sizeof path, "%s/folder", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gs_rank_environment environment;
        gs_status status = make(&environment, cases[i].item, *cases[i].secrets ? dir : "");
        assert_int_equal(status.code, cases[i].code);
        if (!strstr(status.message, cases[i].said)) fail_msg("%s: %s", cases[i].item, status.message);
        assert_null(strstr(status.message, "hush"));
        assert_int_equal(environment.count, 0);
    }
}

static void no_line_of_a_secret_is_shown(void **state) {
    gs_rank_environment environment;
    (void)state;
    put_text("one", "abcabc");
    put_text("three", "abcabc-and-more");
    put_text("two", "-----BEGIN-----\r\nMIGHAgEAMBMGByqG\r\nab\r\n-----END-----\r\n");
    assert_ok(make(&environment, "{\"name\":\"ONE\",\"secret\":\"one\"},{\"name\":\"TWO\",\"secret\":\"two\"},"
                               "{\"name\":\"THREE\",\"secret\":\"three\"}", dir));
    static const char *const lines[][2] = {
        {"token=abcabc and abcabcabcabc.", "token=*** and ******."},
        {"abcabc", "***"},
        {"abcabcab", "***ab"},
        {"abcabc-and-more", "***"},
        {"  MIGHAgEAMBMGByqG", "  ***"},
        {"nothing here", "nothing here"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        // To the byte, so that a sanitizer sees who reads behind it.
        size_t bytes = strlen(lines[i][0]);
        char *text = malloc(bytes + !bytes);
        assert_non_null(text);
        memcpy(text, lines[i][0], bytes);
        bytes = gs_rank_environment_hide(&environment, text, bytes);
        assert_int_equal(bytes, strlen(lines[i][1]));
        assert_memory_equal(text, lines[i][1], bytes);
        free(text);
    }
    gs_rank_environment_release(&environment);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_rank_has_its_agents_variables_its_jobs_and_its_own),
        TEST(of_its_agents_a_rank_gets_what_is_named_and_nothing_else),
        cmocka_unit_test(a_rank_of_another_user_has_his_home),
        TEST(the_workers_own_key_is_no_jobs_secret),
        cmocka_unit_test(no_piece_ends_within_a_secret),
        TEST(a_secret_may_be_a_link_that_stays_in_its_directory),
        TEST(what_cannot_be_given_is_an_error_that_names_it_and_not_its_value),
        TEST(no_line_of_a_secret_is_shown),
    };
    return cmocka_run_group_tests_name("worker rank_environment", tests, NULL, NULL);
}
