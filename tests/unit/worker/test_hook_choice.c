// The specification's hooks against the library's: each kind that a job may ask for is there, with the same options.
#include "worker/state/hook_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"

static gs_job_hook default_hook(int kind) {
    gs_job_hook hook = {0};
    gs_fields_set_defaults(&hook, gs_job_hook_fields);
    hook.kind = kind;
    gs_job_hook_fill(&hook, NULL);
    return hook;
}

static int count_kinds(void) {
    int count = 0;
    while (gs_job_hook_fields[0].words[count]) count++;
    return count;
}

static const gs_field *field_named(const char *name) {
    const gs_field *field = gs_job_hook_fields;
    while (strcmp(field->name, name) != 0) field++;
    return field;
}

// What is not given is the same on both sides; what a job may give the hook takes.
static void check_option(const gs_hook_number *given, const gs_comm_hook *hook) {
    for (size_t i = 0; i < hook->num_options; i++) {
        const gs_hook_option *option = &hook->options[i];
        if (strcmp(option->name, given->name) != 0) continue;
        const gs_field *field = field_named(given->name);
        if (option->fallback != given->number)
            fail_msg("%s: %s is %g, in the library %g", hook->name, option->name, given->number,
                     option->fallback);
        bool fits = field->type == GS_FIELD_BOOL ||
                    (option->least <= field->least && option->most >= field->most);
        if (!fits)
            fail_msg("%s: %s is %g to %g, in the library %g to %g", hook->name, option->name,
                     field->least, field->most, option->least, option->most);
        assert_true(option->is_whole == (field->type != GS_FIELD_DOUBLE));
        return;
    }
    fail_msg("%s has no option %s", hook->name, given->name);
}

static void kinds_have_the_librarys_options(void **state) {
    (void)state;
    for (int kind = 1; kind < count_kinds(); kind++) {
        gs_job_hook hook = default_hook(kind);
        gs_job_hook_choice made;
        assert_ok(gs_job_hook_choose(&made, &hook));
        assert_string_equal(made.choice.hook->name, gs_job_hook_kinds[kind].name);
        assert_int_equal(made.choice.num_numbers, made.choice.hook->num_options);
        for (size_t i = 0; i < made.choice.num_numbers; i++)
            check_option(&made.choice.numbers[i], made.choice.hook);
    }
}

static void plain_all_reduce_is_the_reducers_own(void **state) {
    (void)state;
    gs_job_hook hook = default_hook(GS_JOB_HOOK_ALLREDUCE);
    gs_job_hook_choice made;
    assert_ok(gs_job_hook_choose(&made, &hook));
    assert_null(made.choice.hook);
    assert_null(made.choice.inner);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_have_the_librarys_options),
        cmocka_unit_test(plain_all_reduce_is_the_reducers_own),
    };
    return cmocka_run_group_tests_name("worker hook_choice", tests, NULL, NULL);
}
