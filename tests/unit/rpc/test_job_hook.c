#include "rpc/schema/job_hook.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"

static gs_job_hook hook;
static gs_field_errors errors;

static int kind_named(const char *name) {
    int kind = 0;
    while (strcmp(gs_job_hook_kinds[kind].name, name) != 0) kind++;
    return kind;
}

// As in a specification, but for the word of the kind.
static void decode(const char *kind, const char *members) {
    char text[400];
    gs_json *given = NULL;
    snprintf(text, sizeof text, "{%s}", members);
    assert_ok(gs_json_parse(&given, text, strlen(text)));
    errors = (gs_field_errors){0};
    hook = (gs_job_hook){0};
    gs_status status = gs_fields_decode(&hook, gs_job_hook_fields, given, &errors);
    assert_true(!status.code || errors.count > 0);
    hook.kind = kind_named(kind);
    gs_job_hook_fill(&hook, given);
    gs_job_hook_check(&hook, given, "", &errors);
    gs_json_release(given);
}

static void expect_error(const char *kind, const char *members, const char *pointer,
                         const char *message) {
    decode(kind, members);
    if (errors.count != 1) fail_msg("%s {%s}: %d errors", kind, members, errors.count);
    assert_string_equal(errors.items[0].message, message);
    assert_string_equal(errors.items[0].pointer, pointer);
}

static bool has_word(const char *words, const char *word) {
    char all[200], one[80];
    snprintf(all, sizeof all, " %s ", words);
    snprintf(one, sizeof one, " %s ", word);
    return strstr(all, one) != NULL;
}

static void members_of_another_kind_are_refused_by_name(void **state) {
    (void)state;
    // Who has what, as users are told.
    static const struct {
        const char *kind, *members;
    } rows[] = {{"allreduce", "wrap"},
                {"fp16", "divide_after_cast"},
                {"bf16", "divide_after_cast"},
                {"powersgd",
                 "wrap rank start_step error_feedback warm_start orthogonalization_epsilon seed min_compression_rate"},
                {"batched_powersgd",
                 "wrap rank start_step error_feedback warm_start orthogonalization_epsilon seed"},
                {"int8", ""},
                {"int8_channel", ""},
                {"uint8_gather", "wrap"},
                {"topk", "wrap ratio error_feedback start_step"},
                {"onebit", "error_feedback start_step"},
                {"local_sgd", "start_step period group_averages local_ranks"},
                {"noop", ""},
                {"auto", "error_budget error_feedback"}};
    static const char *const members[][2] = {
        {"wrap", "\"fp16\""}, {"rank", "2"}, {"start_step", "20"}, {"min_compression_rate", "1.5"},
        {"error_feedback", "false"}, {"warm_start", "false"}, {"orthogonalization_epsilon", "1e-8"},
        {"ratio", "0.5"}, {"period", "2"}, {"seed", "3"}, {"divide_after_cast", "true"},
        {"local_ranks", "1"}, {"error_budget", "0.02"}, {"group_averages", "[{\"period\":2,\"group_size\":2}]"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t k = 0; k < sizeof members / sizeof members[0]; k++) {
            char given[80], message[80], pointer[80];
            snprintf(given, sizeof given, "\"%s\":%s", members[k][0], members[k][1]);
            snprintf(message, sizeof message, "kind is %s", rows[i].kind);
            snprintf(pointer, sizeof pointer, "/%s", members[k][0]);
            bool has = has_word(rows[i].members, members[k][0]);
            if (!has)
                expect_error(rows[i].kind, given, pointer, message);
            else decode(rows[i].kind, given);
            assert_int_equal(errors.count, has ? 0 : 1);
        }
    }
}

static void what_is_remembered_needs_two_plain_steps(void **state) {
    (void)state;
    const char *const kinds[] = {"powersgd", "batched_powersgd"};
    for (int i = 0; i < 2; i++) {
        expect_error(kinds[i], "\"start_step\":1", "/start_step", "must be at least 2 with error_feedback");
        expect_error(kinds[i], "\"start_step\":0,\"error_feedback\":false", "/start_step",
                     "must be at least 2 with warm_start");
        decode(kinds[i], "\"start_step\":2");
        assert_int_equal(errors.count, 0);
        decode(kinds[i], "\"start_step\":0,\"error_feedback\":false,\"warm_start\":false");
        assert_int_equal(errors.count, 0);
    }
    decode("topk", "\"start_step\":0,\"error_feedback\":true");
    assert_int_equal(errors.count, 0);
}

static void values_out_of_range_are_refused_once(void **state) {
    (void)state;
    expect_error("powersgd", "\"rank\":0", "/rank", "must be between 1 and 64");
    expect_error("auto", "\"error_budget\":0.6", "/error_budget", "must be between 0 and 0.5");
    expect_error("auto", "\"error_budget\":-0.1", "/error_budget", "must be between 0 and 0.5");
    expect_error("fp16", "\"rank\":0", "/rank", "must be between 1 and 64");  // not by its kind, too
    expect_error("powersgd", "\"error_feedback\":1,\"start_step\":5", "/error_feedback",
                 "must be true or false, not an integer");
    expect_error("powersgd", "\"min_compression_rate\":0", "/min_compression_rate",
                 "must be between 1e-06 and 1000000");
    expect_error("topk", "\"ratio\":0", "/ratio", "must be between 1e-06 and 1");
    expect_error("local_sgd", "\"period\":0", "/period", "must be between 1 and 1000000");
    expect_error("allreduce", "\"wrap\":\"fp32\"", "/wrap", "must be one of: none, fp16, bf16");
}

#define AVERAGE(period, size) "{\"period\":" #period ",\"group_size\":" #size "}"
#define AVERAGES(...) "\"period\":16,\"group_averages\":[" __VA_ARGS__ "]"

static void averages_over_groups_ascend(void **state) {
    (void)state;
    decode("local_sgd", AVERAGES(AVERAGE(2, 2) "," AVERAGE(15, 5)));
    assert_int_equal(errors.count, 0);
    assert_int_equal(hook.num_group_averages, 2);
    assert_int_equal(hook.group_averages[1].group_size, 5);
    expect_error("local_sgd", AVERAGES(AVERAGE(16, 2)), "/group_averages/0/period",
                 "must be less than period, 16: that of all ranks");
    expect_error("local_sgd", AVERAGES(AVERAGE(2, 2) "," AVERAGE(2, 4)), "/group_averages/1/period",
                 "must be more than 2: periods ascend");
    expect_error("local_sgd", AVERAGES(AVERAGE(2, 4) "," AVERAGE(8, 4)), "/group_averages/1/group_size",
                 "must be more than 4: sizes ascend");
    expect_error("local_sgd", AVERAGES(AVERAGE(2, 1)), "/group_averages/0/group_size",
                 "must be between 2 and 4096");
    expect_error("local_sgd", AVERAGES("{\"period\":2}"), "/group_averages/0/group_size", "must be given");
    expect_error("noop", "\"group_averages\":[]", "/group_averages", "kind is noop");
}

static void plans_show_every_average(void **state) {
    (void)state;
    static const char *const shown[][3] = {
        {"local_sgd", AVERAGES(AVERAGE(4, 2)), "[{\"period\":4,\"group_size\":2},{\"period\":16}]"},
        {"local_sgd", "", "[{\"period\":4}]"}};
    for (size_t i = 0; i < 2; i++) {
        char *text = NULL;
        decode(shown[i][0], shown[i][1]);
        gs_json *averages = gs_job_hook_averages(&hook);
        assert_ok(gs_json_encode(&text, NULL, averages, false));
        assert_string_equal(text, shown[i][2]);
        free(text);
        gs_json_release(averages);
    }
    decode("noop", "");
    assert_null(gs_job_hook_averages(&hook));
}

static void defaults_are_those_of_the_kind(void **state) {
    (void)state;
    decode("powersgd", "");
    assert_int_equal(hook.start_step, 1000);
    assert_int_equal(hook.rank, 1);
    assert_true(hook.error_feedback && hook.warm_start && hook.min_compression_rate == 2);
    assert_true(gs_job_hook_carries(&hook));
    assert_true(gs_job_hook_number(&hook, "error_feedback") == 1);
    assert_true(gs_job_hook_number(&hook, "start_step") == 1000);
    assert_true(gs_job_hook_number(&hook, "min_compression_rate") == 2);
    decode("topk", "");
    assert_int_equal(hook.start_step, 0);
    assert_true(hook.ratio == 0.01 && hook.rank == 0 && !hook.warm_start);
    decode("onebit", "\"start_step\":7,\"error_feedback\":false");
    assert_int_equal(hook.start_step, 7);
    assert_false(gs_job_hook_carries(&hook));
    decode("fp16", "");
    assert_false(gs_job_hook_carries(&hook));
    gs_job_hook bare = {.kind = kind_named("fp16")};
    assert_memory_equal(&hook, &bare, sizeof bare);
}

static void what_is_not_of_the_kind_is_not_shown(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"allreduce", "{\"kind\":\"allreduce\",\"wrap\":\"none\"}"},
        {"int8", "{\"kind\":\"allreduce\"}"},
        {"topk", "{\"kind\":\"allreduce\",\"wrap\":\"none\",\"start_step\":0,\"error_feedback\":true,\"ratio\":0.01}"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *text = NULL;
        decode(rows[i][0], "");
        gs_job_hook shown = hook;
        shown.kind = GS_JOB_HOOK_ALLREDUCE;  // whose word is always there
        gs_json *encoded = gs_fields_encode(&shown, gs_job_hook_fields);
        gs_job_hook_trim(encoded, &hook);
        assert_ok(gs_json_encode(&text, NULL, encoded, false));
        assert_string_equal(text, rows[i][1]);
        free(text);
        gs_json_release(encoded);
    }
}

static void words_and_rows_of_kinds_agree(void **state) {
    (void)state;
    const char *const *words = gs_job_hook_fields[0].words;
    for (int i = 0; words[i]; i++) assert_string_equal(words[i], gs_job_hook_kinds[i].name);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_of_another_kind_are_refused_by_name),
        cmocka_unit_test(what_is_remembered_needs_two_plain_steps),
        cmocka_unit_test(values_out_of_range_are_refused_once),
        cmocka_unit_test(averages_over_groups_ascend),
        cmocka_unit_test(plans_show_every_average),
        cmocka_unit_test(defaults_are_those_of_the_kind),
        cmocka_unit_test(what_is_not_of_the_kind_is_not_shown),
        cmocka_unit_test(words_and_rows_of_kinds_agree),
    };
    return cmocka_run_group_tests_name("rpc job_hook", tests, NULL, NULL);
}
