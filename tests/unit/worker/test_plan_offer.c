#include "worker/control/plan_offer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/plan/plan_message.h"

#define NUM_PARAMS 5

static gs_bucket_plan make_plan(gs_param_spec params[NUM_PARAMS]) {
    gs_bucket_plan plan;
    for (int i = 0; i < NUM_PARAMS; i++)
        params[i] = gs_param_spec_make(GS_FP32, 100 + i, 7, "p%d", i);
    gs_status status = gs_bucket_plan_parity(&plan, params, NUM_PARAMS, 4096, 8192, NULL);
    assert_string_equal(status.message, "");
    return plan;
}

static gs_json *make_item(const gs_bucket_plan *plan, int revision, int64_t generation) {
    gs_json *item = gs_json_new_object();
    gs_json_set_int(item, "generation", generation);
    gs_json_set(item, "plan",
                gs_plan_message_encode(plan, &(gs_plan_label){revision, "operator", true}));
    return item;
}

static void an_offer_holds_the_plan_and_whom_it_is_for(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan = make_plan(params);
    gs_plan_offer offer;
    gs_json *item = make_item(&plan, 4, 9);
    gs_status status = gs_plan_offer_decode(&offer, item, params, NUM_PARAMS);
    assert_string_equal(status.message, "");
    assert_int_equal(offer.generation, 9);
    assert_int_equal(offer.revision, 4);
    assert_true(offer.digest == gs_digest_fold(gs_bucket_plan_digest(&plan)));
    gs_plan_offer_release(&offer);
    gs_json_release(item);
    gs_bucket_plan_release(&plan);
}

static void an_offer_that_cannot_be_is_none(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan = make_plan(params);
    static const struct {
        int revision;
        int64_t generation;
        size_t num_params;
    } cases[] = {{0, 9, NUM_PARAMS}, {4, 0, NUM_PARAMS}, {4, 9, NUM_PARAMS - 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gs_plan_offer offer;
        gs_json *item = make_item(&plan, cases[i].revision, cases[i].generation);
        gs_status status = gs_plan_offer_decode(&offer, item, params, cases[i].num_params);
        assert_int_not_equal(status.code, GS_OK);
        assert_true(offer.digest == 0);
        assert_null(offer.plan.buckets);
        gs_json_release(item);
    }
    gs_bucket_plan_release(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_offer_holds_the_plan_and_whom_it_is_for),
        cmocka_unit_test(an_offer_that_cannot_be_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
