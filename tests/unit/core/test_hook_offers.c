// Which way a bucket takes: by times, by errors against the budget, and by the one in use; and what is said of it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/hook_offers.h"

// A link of 1 Gbit/s, a bucket of 25 MiB, gradients as they are drawn.
static gs_hook_offers slow_link(void) {
    return (gs_hook_offers){.step = 3,
                            .seconds = {0.224, 0.123, 0.126, 0.078},
                            .errors = {0, 0.0002, 0.0017, 0.006}};
}

static gs_hook_offers fast_link(void) {
    return (gs_hook_offers){.step = 3,
                            .seconds = {0.0102, 0.0098, 0.0095, 0.031},
                            .errors = {0, 0.0002, 0.0017, 0.006}};
}

static void the_quickest_within_the_budget_is_taken(void **state) {
    (void)state;
    const gs_hook_offers offers = slow_link();
    assert_int_equal(gs_hook_offers_choose(&offers, 0.01), GS_OFFER_INT8);
    assert_int_equal(gs_hook_offers_choose(&offers, 0.005), GS_OFFER_FP16);
    assert_int_equal(gs_hook_offers_choose(&offers, 0.0001), GS_OFFER_ALLREDUCE);
    // Without a budget nothing else, not even where it would lose nothing.
    gs_hook_offers exact = offers;
    exact.errors[GS_OFFER_INT8] = 0;
    assert_int_equal(gs_hook_offers_choose(&exact, 1e-9), GS_OFFER_INT8);
    assert_int_equal(gs_hook_offers_choose(&exact, 0), GS_OFFER_ALLREDUCE);
}

static void on_a_fast_link_nothing_is_compressed(void **state) {
    (void)state;
    const gs_hook_offers offers = fast_link();
    assert_int_equal(gs_hook_offers_choose(&offers, 0.5), GS_OFFER_ALLREDUCE);
}

static void what_is_not_offered_or_not_measured_is_not_taken(void **state) {
    (void)state;
    gs_hook_offers offers = slow_link();
    offers.seconds[GS_OFFER_INT8] = 0;
    assert_int_equal(gs_hook_offers_choose(&offers, 0.5), GS_OFFER_FP16);
    for (int kind = 1; kind < GS_NUM_OFFERS; kind++) offers.errors[kind] = -1;
    assert_int_equal(gs_hook_offers_choose(&offers, 0.5), GS_OFFER_ALLREDUCE);
    offers = slow_link();
    offers.errors[GS_OFFER_INT8] = __builtin_nan("");
    assert_int_equal(gs_hook_offers_choose(&offers, 0.5), GS_OFFER_FP16);
}

static void what_is_in_use_stays_for_little(void **state) {
    (void)state;
    gs_hook_offers offers = slow_link();
    offers.chosen = GS_OFFER_BF16;
    assert_int_equal(gs_hook_offers_choose(&offers, 0.002), GS_OFFER_BF16);
    assert_int_equal(gs_hook_offers_choose(&offers, 0.01), GS_OFFER_INT8);
    // Over the budget now, or no longer worth it.
    offers.errors[GS_OFFER_BF16] = 0.1;
    assert_int_equal(gs_hook_offers_choose(&offers, 0.002), GS_OFFER_FP16);
    offers = fast_link();
    offers.chosen = GS_OFFER_INT8;
    assert_int_equal(gs_hook_offers_choose(&offers, 0.5), GS_OFFER_ALLREDUCE);
}

static void expect_reason(gs_hook_offers offers, double error_budget, const char *part) {
    char text[256];
    offers.chosen = gs_hook_offers_choose(&offers, error_budget);
    gs_hook_offers_explain(text, sizeof text, &offers, error_budget);
    if (!strstr(text, part)) fail_msg("\"%s\" has no \"%s\"", text, part);
}

static void the_reason_has_times_and_errors(void **state) {
    (void)state;
    gs_hook_offers offers = slow_link();
    expect_reason(offers, 0.01, "int8_channel takes 78.000 ms where plain sums take 224.000, and loses 0.006");
    expect_reason(offers, 0.0001, "int8_channel would take 78.000 ms for 224.000, but loses 0.006");
    expect_reason(fast_link(), 0.01, "nothing else is quicker by a tenth");
    offers.step = -1;
    for (int kind = 1; kind < GS_NUM_OFFERS; kind++) offers.errors[kind] = -1;
    expect_reason(offers, 0.01, "were looked at yet");
    gs_hook_offers tried = slow_link();
    tried.is_tried = true;
    tried.with_seconds = 0.0219;
    char text[256];
    gs_hook_offers_explain(text, sizeof text, &tried, 0.01);
    assert_non_null(strstr(text, "steps took 21.900 ms with compression; plain sums are tried beside it"));
    tried.without_seconds = 0.0213;
    gs_hook_offers_explain(text, sizeof text, &tried, 0.01);
    assert_non_null(strstr(text, "steps take 21.900 ms with compression and 21.300 with plain sums: it does not show"));
    expect_reason((gs_hook_offers){.step = -1}, 0.01, "only plain sums are offered");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_quickest_within_the_budget_is_taken),
        cmocka_unit_test(on_a_fast_link_nothing_is_compressed),
        cmocka_unit_test(what_is_not_offered_or_not_measured_is_not_taken),
        cmocka_unit_test(what_is_in_use_stays_for_little),
        cmocka_unit_test(the_reason_has_times_and_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
