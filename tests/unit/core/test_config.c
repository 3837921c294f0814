#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/config.h"

typedef struct settings {
    char *data_dir;
    int64_t slots, cache_bytes;
    double wait_seconds;
    bool drain;
    char *names;
} settings;

static const gs_config_field fields[] = {
    {"data_dir", GS_CONFIG_STRING, offsetof(settings, data_dir), "/var/lib", 0, 0, "DIR", "Where."},
    {"slots", GS_CONFIG_INT, offsetof(settings, slots), "1", 1, 64, "N", "How many."},
    {"cache_bytes", GS_CONFIG_INT, offsetof(settings, cache_bytes), "1MiB", 0, 0, "SIZE",
     "How much."},
    {"wait_seconds", GS_CONFIG_DOUBLE, offsetof(settings, wait_seconds), "1.5", 0, 0, "S",
     "How long."},
    {"drain", GS_CONFIG_BOOL, offsetof(settings, drain), "false", 0, 0, NULL, "Whether."},
    {"names", GS_CONFIG_LIST, offsetof(settings, names), "a,b", 0, 0, "NAME", "Which."}};

// The file's path is its contents here: "slots=3".
static gs_status read_path(const char *path,
                           gs_status (*set)(void *set_ctx, const char *name, const char *value),
                           void *set_ctx) {
    char name[64] = "";
    const char *equals = strchr(path, '=');
    memcpy(name, path, (size_t)(equals - path));
    return set(set_ctx, name, equals + 1);
}

static const gs_config_program program = {.name = "thing",
                                          .synopsis = "[FLAGS]",
                                          .description = "Does it.",
                                          .fields = fields,
                                          .num_fields = 6,
                                          .read_file = read_path};

static gs_status parse(settings *values, gs_config_outcome *outcome, const char *a, const char *b,
                       const char *c) {
    char *argv[5] = {(char *)"thing", (char *)a, (char *)b, (char *)c, NULL};
    int argc = 1 + (a != NULL) + (b != NULL) + (c != NULL);
    return gs_config_parse(values, outcome, &program, argc, argv);
}

static int clear_environment(void **state) {
    (void)state;
    unsetenv("GRADSYNC_SLOTS");
    unsetenv("GRADSYNC_CONFIG");
    unsetenv("GRADSYNC_NAMES");
    return 0;
}

static void defaults_hold_without_flags(void **state) {
    (void)state;
    settings values = {0};
    gs_config_outcome outcome;
    assert_int_equal(parse(&values, &outcome, NULL, NULL, NULL).code, GS_OK);
    assert_int_equal(outcome, GS_CONFIG_RUN);
    assert_string_equal(values.data_dir, "/var/lib");
    assert_int_equal(values.slots, 1);
    assert_int_equal(values.cache_bytes, 1 << 20);
    assert_true(values.wait_seconds == 1.5);
    assert_false(values.drain);
    gs_config_release(&values, &program);
}

static void flag_beats_environment_beats_file_beats_default(void **state) {
    (void)state;
    settings values = {0};
    gs_config_outcome outcome;
    assert_int_equal(parse(&values, &outcome, "--config", "slots=2", NULL).code, GS_OK);
    assert_int_equal(values.slots, 2);
    setenv("GRADSYNC_SLOTS", "3", 1);
    assert_int_equal(parse(&values, &outcome, "--config=slots=2", NULL, NULL).code, GS_OK);
    assert_int_equal(values.slots, 3);
    assert_int_equal(parse(&values, &outcome, "--config=slots=2", "--slots", "4").code, GS_OK);
    assert_int_equal(values.slots, 4);
    gs_config_release(&values, &program);
}

static void flags_take_values_in_both_forms(void **state) {
    (void)state;
    settings values = {0};
    gs_config_outcome outcome;
    assert_int_equal(
        parse(&values, &outcome, "--data-dir=/x", "--drain", "--cache-bytes=2KiB").code, GS_OK);
    assert_string_equal(values.data_dir, "/x");
    assert_true(values.drain);
    assert_int_equal(values.cache_bytes, 2048);
    assert_int_equal(parse(&values, &outcome, "--drain=false", NULL, NULL).code, GS_OK);
    assert_false(values.drain);
    gs_config_release(&values, &program);
}

static void a_list_gathers_its_flags_and_nothing_before_them(void **state) {
    (void)state;
    settings values = {0};
    gs_config_outcome outcome;
    assert_int_equal(parse(&values, &outcome, NULL, NULL, NULL).code, GS_OK);
    assert_string_equal(values.names, "a,b");
    assert_int_equal(parse(&values, &outcome, "--names=c", "--names", "d,e").code, GS_OK);
    assert_string_equal(values.names, "c,d,e");
    setenv("GRADSYNC_NAMES", "f,g", 1);
    assert_int_equal(parse(&values, &outcome, "--config=names=h", NULL, NULL).code, GS_OK);
    assert_string_equal(values.names, "f,g");
    assert_int_equal(parse(&values, &outcome, "--names=c", NULL, NULL).code, GS_OK);
    assert_string_equal(values.names, "c");
    gs_config_release(&values, &program);
}

static void assert_refused(const char *a, const char *b, const char *message) {
    settings values = {0};
    gs_config_outcome outcome;
    gs_status status = parse(&values, &outcome, a, b, NULL);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_string_equal(status.message, message);
    assert_null(values.data_dir);
}

static void errors_name_the_source_and_suggest(void **state) {
    (void)state;
    assert_refused("--slotz=1", NULL, "unknown flag --slotz; did you mean --slots?");
    assert_refused("--dta-dir", "x", "unknown flag --dta-dir; did you mean --data-dir?");
    assert_refused("--slots", NULL, "--slots needs a value");
    assert_refused("--slots=65", NULL, "--slots: 65 is not between 1 and 64");
    assert_refused("--slots=2x", NULL, "--slots: '2x' is not a whole number");
    assert_refused("--cache-bytes=2x", NULL,
                   "--cache-bytes: '2x' is not a whole number or a size like 25MiB");
    assert_refused("--drain=maybe", NULL, "--drain: 'maybe' is not true or false");
    assert_refused("--wait-seconds=nan", NULL, "--wait-seconds: 'nan' is not a number");
    assert_refused("word", NULL, "unexpected argument 'word'");
    assert_refused("--config=slot=1", NULL, "slot=1: slot is unknown; did you mean slots?");
    setenv("GRADSYNC_SLOTS", "many", 1);
    assert_refused(NULL, NULL, "GRADSYNC_SLOTS: 'many' is not a whole number");
}

// What `flag` prints; standard output goes through a file meanwhile.
static void capture(char text[4096], const char *flag, const char *more) {
    settings values = {0};
    gs_config_outcome outcome;
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    FILE *file = tmpfile();
    assert_non_null(file);
    dup2(fileno(file), STDOUT_FILENO);
    gs_status status = parse(&values, &outcome, flag, more, NULL);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, 4095, file)] = '\0';
    fclose(file);
    assert_int_equal(status.code, GS_OK);
    assert_int_equal(outcome, GS_CONFIG_EXIT);
    gs_config_release(&values, &program);
}

static void help_lists_every_flag_with_its_default(void **state) {
    (void)state;
    char text[4096];
    capture(text, "--help", NULL);
    assert_non_null(strstr(text, "Usage: thing [FLAGS]"));
    assert_non_null(strstr(text, "--data-dir DIR"));
    assert_non_null(strstr(text, "(default /var/lib)"));
    assert_non_null(strstr(text, "--print-config"));
}

static void printed_config_shows_values_and_origins(void **state) {
    (void)state;
    char text[4096];
    capture(text, "--print-config", "--data-dir=/a\"b");
    assert_non_null(strstr(text, "\"data_dir\": \"/a\\\"b\",  // flag"));
    assert_non_null(strstr(text, "\"slots\": 1,  // default"));
    assert_non_null(strstr(text, "\"drain\": false,  // default"));
    assert_non_null(strstr(text, "\"names\": \"a,b\"  // default\n}"));
}

static void nearest_word_forgives_a_third_of_the_letters(void **state) {
    (void)state;
    const char *const words[] = {"submit", "list", "stop"};
    assert_string_equal(gs_nearest_word("submt", words, 3), "submit");
    assert_string_equal(gs_nearest_word("STOP", words, 3), "stop");
    assert_null(gs_nearest_word("xyzzy", words, 3));
    assert_null(gs_nearest_word("", words, 3));
}

static void two_swapped_letters_are_one_slip(void **state) {
    (void)state;
    const char *const words[] = {"model", "optimizer", "lease"};
    assert_string_equal(gs_nearest_word("modle", words, 3), "model");
    assert_string_equal(gs_nearest_word("omdel", words, 3), "model");
    assert_string_equal(gs_nearest_word("Laese", words, 3), "lease");
    assert_null(gs_nearest_word("edlom", words, 3));  // the same letters, but not neighbours
}

static void sizes_have_units(void **state) {
    (void)state;
    int64_t bytes = 0;
    assert_true(gs_parse_bytes(&bytes, "25MiB"));
    assert_int_equal(bytes, 26214400);
    assert_true(gs_parse_bytes(&bytes, "1.5GiB"));
    assert_int_equal(bytes, 1610612736);
    assert_true(gs_parse_bytes(&bytes, "1000"));
    assert_int_equal(bytes, 1000);
    assert_true(gs_parse_bytes(&bytes, "2 kB"));
    assert_int_equal(bytes, 2000);
    assert_false(gs_parse_bytes(&bytes, "-1"));
    assert_false(gs_parse_bytes(&bytes, "1Mib"));
    assert_false(gs_parse_bytes(&bytes, "1.2.3"));
    assert_false(gs_parse_bytes(&bytes, "99999999TiB"));
    assert_false(gs_parse_bytes(&bytes, ""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(defaults_hold_without_flags, clear_environment),
        cmocka_unit_test_setup(flag_beats_environment_beats_file_beats_default, clear_environment),
        cmocka_unit_test_setup(flags_take_values_in_both_forms, clear_environment),
        cmocka_unit_test_setup(a_list_gathers_its_flags_and_nothing_before_them, clear_environment),
        cmocka_unit_test_setup(errors_name_the_source_and_suggest, clear_environment),
        cmocka_unit_test_setup(help_lists_every_flag_with_its_default, clear_environment),
        cmocka_unit_test_setup(printed_config_shows_values_and_origins, clear_environment),
        cmocka_unit_test(nearest_word_forgives_a_third_of_the_letters),
        cmocka_unit_test(two_swapped_letters_are_one_slip),
        cmocka_unit_test(sizes_have_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
