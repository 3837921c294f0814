#include "rpc/plan/plan_message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "core/random.h"
#include "rpc/plan/param_page.h"
#include "rpc/wire/frame.h"

#define NUM_PARAMS 9

static const gs_plan_label label = {.revision = 4, .reason = "ready_order", .is_observed = true};

// Three types, one sparse: buckets of all kinds.
static void list_params(gs_param_spec params[NUM_PARAMS]) {
    static const gs_dtype dtypes[] = {GS_FP32, GS_BF16, GS_FP64};
    for (int i = 0; i < NUM_PARAMS; i++)
        params[i] = gs_param_spec_make(dtypes[i % 3], 100 + i, 7, "p%d", i);
    params[3].sparse = true;
}

static void make_plan(gs_bucket_plan *plan, const gs_param_spec *params, size_t num_params,
                      const size_t *order) {
    gs_status status = gs_bucket_plan_parity(plan, params, num_params, 1024, 4096, order);
    assert_string_equal(status.message, "");
    assert_true(plan->num_buckets > 1);
}

static gs_status pass_on(gs_bucket_plan *decoded, gs_json *message, const gs_param_spec *params,
                         size_t num_params) {
    gs_status status = gs_plan_message_decode(decoded, message, params, num_params);
    gs_json_release(message);
    return status;
}

static void a_plan_comes_through_unchanged(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    list_params(params);
    for (uint64_t seed = 0; seed < 50; seed++) {
        gs_bucket_plan plan, decoded;
        size_t order[NUM_PARAMS];
        for (size_t i = 0; i < NUM_PARAMS; i++) order[i] = i;
        for (size_t i = NUM_PARAMS; i-- > 1;) {
            size_t k = gs_random_u64((gs_random_key){.seed = 8, .stream = seed}, i) % (i + 1);
            size_t swapped = order[i];
            order[i] = order[k];
            order[k] = swapped;
        }
        make_plan(&plan, params, NUM_PARAMS, order);
        for (size_t b = 0; b < plan.num_buckets && seed % 2; b++)
            plan.buckets[b].hook = (int)(b * seed % 3);
        gs_json *message = gs_plan_message_encode(&plan, &label);
        assert_int_equal(gs_json_int_or(message, "revision", 0), 4);
        assert_string_equal(gs_json_string_or(message, "reason", ""), "ready_order");
        assert_true(gs_json_bool_or(message, "observed", false));
        gs_status status = pass_on(&decoded, message, params, NUM_PARAMS);
        assert_string_equal(status.message, "");
        assert_true(gs_digest_equal(gs_bucket_plan_digest(&plan), gs_bucket_plan_digest(&decoded)));
        for (size_t b = 0; b < plan.num_buckets; b++)
            assert_int_equal(decoded.buckets[b].hook, plan.buckets[b].hook);
        gs_bucket_plan_release(&plan);
        gs_bucket_plan_release(&decoded);
    }
}

static void the_most_parameters_in_as_many_buckets_fit_a_message(void **state) {
    (void)state;
    gs_param_spec *params = calloc(GS_MAX_PARAMS, sizeof *params);
    char *text = NULL;
    size_t bytes = 0;
    gs_bucket_plan plan, decoded;
    assert_non_null(params);
    // No two neighbours have a limit in common.
    for (int i = 0; i < GS_MAX_PARAMS; i++) {
        params[i] = gs_param_spec_make(GS_FP32, 1 << 20, 9, "p%d", i);
        params[i].sparse = i % 2;
    }
    make_plan(&plan, params, GS_MAX_PARAMS, NULL);
    assert_int_equal(plan.num_buckets, GS_MAX_PARAMS);
    gs_json *message = gs_plan_message_encode(&plan, &label);
    gs_status status = gs_json_encode(&text, &bytes, message, false);
    assert_string_equal(status.message, "");
    assert_in_range(bytes, 1, GS_FRAME_MAX_BODY_BYTES / 2);
    status = pass_on(&decoded, message, params, GS_MAX_PARAMS);
    assert_string_equal(status.message, "");
    assert_true(gs_digest_equal(gs_bucket_plan_digest(&plan), gs_bucket_plan_digest(&decoded)));
    gs_bucket_plan_release(&plan);
    gs_bucket_plan_release(&decoded);
    free(params);
    free(text);
}

static void a_plan_that_is_not_its_hash_is_refused(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan, decoded;
    list_params(params);
    make_plan(&plan, params, NUM_PARAMS, NULL);
    gs_json *message = gs_plan_message_encode(&plan, &label);
    gs_json *limits = gs_json_new_array(), *run = gs_json_new_array();
    gs_json_push(run, gs_json_new_int(5));
    gs_json_push(run, gs_json_new_int((int64_t)plan.num_buckets));
    gs_json_push(limits, run);
    gs_json_set(message, "limits", limits);
    gs_status status = pass_on(&decoded, message, params, NUM_PARAMS);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "plan: its hash is xxh3:"));
    gs_bucket_plan_release(&plan);
}

// Another model's plan does not reach the reducer, whatever its hash.
static void a_plan_of_other_parameters_is_refused(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan, decoded;
    list_params(params);
    make_plan(&plan, params, NUM_PARAMS, NULL);
    gs_status status =
        pass_on(&decoded, gs_plan_message_encode(&plan, &label), params, NUM_PARAMS - 1);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    params[0].shape[0]++;
    status = pass_on(&decoded, gs_plan_message_encode(&plan, &label), params, NUM_PARAMS);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    gs_bucket_plan_release(&plan);
}

static void what_is_wrong_with_a_message_is_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *problem;
    } cases[] = {
        {"{}", "plan: members: 0, the model has 3 parameters"},
        {"[]", "plan: members: 0, the model has 3 parameters"},
        {"{\"members\":[0,1]}", "plan: members: 2, the model has 3 parameters"},
        {"{\"members\":[0,1,3]}", "plan: members[2]: no parameter"},
        {"{\"members\":[0,-1,2]}", "plan: members[1]: no parameter"},
        {"{\"members\":[0,\"1\",2]}", "plan: members[1]: no parameter"},
        {"{\"members\":[0,1,2],\"sizes\":[2,2]}", "plan: sizes[1]: 2 of 1 members that are left"},
        {"{\"members\":[0,1,2],\"sizes\":[3,1]}", "plan: sizes[1]: 1 of 0 members that are left"},
        {"{\"members\":[0,1,2],\"sizes\":[0,3]}", "plan: sizes[0]: 0 of 3 members that are left"},
        {"{\"members\":[0,1,2],\"sizes\":[9223372036854775807]}", "plan: sizes[0]: "},
        {"{\"members\":[0,1,2],\"sizes\":[3]}", "plan: limits: of 0 buckets, there are 1"},
        {"{\"members\":[0,1,2],\"sizes\":[3],\"limits\":[[8,2]]}", "plan: limits[0]: must be"},
        {"{\"members\":[0,1,2],\"sizes\":[3],\"limits\":[[-8,1]]}", "plan: limits[0]: must be"},
        {"{\"members\":[0,1,2],\"sizes\":[3],\"limits\":[[8,0]]}", "plan: limits[0]: must be"},
        {"{\"members\":[0,1,2],\"sizes\":[3],\"limits\":[8]}", "plan: limits[0]: must be"},
        {"{\"members\":[0,1,2],\"sizes\":[3],\"limits\":[[8,1]]}", "plan: its hash is xxh3:"},
        {"{\"members\":[0,1,2],\"sizes\":[3],\"limits\":[[8,1]],\"hooks\":[[-1,1]]}",
         "plan: hooks[0]: must be"},
        {"{\"members\":[0,1,2],\"sizes\":[3],\"limits\":[[8,1]],\"hooks\":[[1,2]]}",
         "plan: hooks[0]: must be"},
        {"{\"members\":[0,1,2],\"sizes\":[3],\"limits\":[[8,1]],\"hooks\":[]}",
         "plan: hooks: of 0 buckets, there are 1"},
        {"{\"members\":[0,1,1],\"sizes\":[3],\"limits\":[[8,1]]}", "plan: its hash is xxh3:"},
    };
    gs_param_spec params[3];
    for (int i = 0; i < 3; i++) params[i] = gs_param_spec_make(GS_FP32, 4, 0, "p%d", i);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gs_json *message;
        gs_bucket_plan decoded;
        gs_status status = gs_json_parse(&message, cases[i].text, strlen(cases[i].text));
        assert_string_equal(status.message, "");
        status = pass_on(&decoded, message, params, 3);
        if (!strstr(status.message, cases[i].problem))
            fail_msg("%s: %s", cases[i].text, status.message);
        assert_null(decoded.buckets);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_comes_through_unchanged),
        cmocka_unit_test(the_most_parameters_in_as_many_buckets_fit_a_message),
        cmocka_unit_test(a_plan_that_is_not_its_hash_is_refused),
        cmocka_unit_test(a_plan_of_other_parameters_is_refused),
        cmocka_unit_test(what_is_wrong_with_a_message_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
