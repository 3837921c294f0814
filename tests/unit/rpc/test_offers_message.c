// What rank 0 tells of hook "auto", as the coordinator hears it; and what is no such message.
#include "rpc/plan/offers_message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PLAN "xxh3:00112233445566778899aabbccddeeff"

static gs_status hear(gs_plan_offers *heard, const char *text) {
    gs_json *message;
    assert_int_equal(gs_json_parse(&message, text, strlen(text)).code, GS_OK);
    gs_status status = gs_offers_message_decode(heard, message);
    gs_json_release(message);
    return status;
}

static void what_is_said_is_heard(void **state) {
    (void)state;
    gs_hook_offers buckets[2] = {
        {.chosen = GS_OFFER_INT8, .step = 64, .seconds = {0.25, 0.125, 0.126, 0.0625}, .errors = {0, 0.0002, 0.0017, 1}},
        {.chosen = GS_OFFER_ALLREDUCE, .step = -1, .seconds = {0.5, 0, 0, 0}, .errors = {0, -1, -1, -1}, .with_seconds = 0.5, .without_seconds = 0.25, .is_tried = true}};
    gs_plan_offers offers = {.plan_hash = PLAN, .buckets = buckets, .num_buckets = 2}, heard;
    gs_json *message = gs_offers_message_encode(&offers);
    char *text;
    assert_int_equal(gs_json_encode(&text, NULL, message, false).code, GS_OK);
    gs_status status = hear(&heard, text);
    assert_string_equal(status.message, "");
    assert_string_equal(heard.plan_hash, PLAN);
    assert_int_equal(heard.num_buckets, 2);
    for (size_t b = 0; b < 2; b++) {
        assert_int_equal(heard.buckets[b].chosen, buckets[b].chosen);
        assert_int_equal(heard.buckets[b].step, buckets[b].step);
        assert_memory_equal(heard.buckets[b].seconds, buckets[b].seconds, sizeof buckets[b].seconds);
        assert_memory_equal(heard.buckets[b].errors, buckets[b].errors, sizeof buckets[b].errors);
        assert_true(heard.buckets[b].with_seconds == buckets[b].with_seconds && heard.buckets[b].without_seconds == buckets[b].without_seconds);
        assert_int_equal(heard.buckets[b].is_tried, buckets[b].is_tried);
    }
    gs_plan_offers_release(&heard);
    gs_json_release(message);
    free(text);
}

static void what_cannot_be_is_refused_by_name(void **state) {
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"{\"plan\":\"none\",\"buckets\":[[0,0,[1,0,0,0],[0,-1,-1,-1]]]}", "offers/plan: is no digest"},
        {"{\"plan\":\"" PLAN "\",\"buckets\":[]}", "offers/buckets: 0 of them, must be 1 to 1024"},
        {"{\"plan\":\"" PLAN "\",\"buckets\":[[0,0,[1,0,0,0],[0,-1,-1,-1]],[9,0,[1,0,0,0],[0,-1,-1,-1]]]}",
         "offers/buckets/1: is no bucket's offers"},
        {"{\"plan\":\"" PLAN "\",\"buckets\":[[0,-2,[1,0,0,0],[0,-1,-1,-1]]]}", "offers/buckets/0: is no bucket's offers"},
        {"{\"plan\":\"" PLAN "\",\"buckets\":[[0,0,[1,0,0],[0,-1,-1,-1]]]}", "offers/buckets/0: is no bucket's offers"},
        {"{\"plan\":\"" PLAN "\",\"buckets\":[[0,0,[-1,0,0,0],[0,-1,-1,-1]]]}", "offers/buckets/0: is no bucket's offers"},
        {"{\"plan\":\"" PLAN "\",\"buckets\":[[0,0,[1,0,0,0],[0,-1,-1,2]]]}", "offers/buckets/0: is no bucket's offers"},
        {"{\"plan\":\"" PLAN "\",\"buckets\":[7]}", "offers/buckets/0: is no bucket's offers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gs_plan_offers heard;
        gs_status status = hear(&heard, rows[i].text);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        assert_string_equal(status.message, rows[i].message);
        assert_null(heard.buckets);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_said_is_heard),
        cmocka_unit_test(what_cannot_be_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
