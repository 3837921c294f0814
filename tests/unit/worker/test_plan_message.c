#include "worker/plan_message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/param_spec.h"

static gs_json *encode(const gs_bucket_plan *plan) {
    gs_json *out = gs_json_new_object(), *buckets = gs_json_new_array();
    char hash[GS_DIGEST_TEXT_LEN];
    for (size_t i = 0; i < plan->num_buckets; i++) {
        const gs_plan_bucket *bucket = &plan->buckets[i];
        gs_json *row = gs_json_new_object(), *params = gs_json_new_array();
        for (size_t p = 0; p < bucket->num_params; p++) {
            gs_json_push(params, gs_json_new_int((int64_t)plan->params[bucket->first + p]));
        }
        gs_json_set_int(row, "limit_bytes", (int64_t)bucket->limit_bytes);
        gs_json_set_int(row, "bytes", (int64_t)bucket->bytes);
        gs_json_set_string(row, "dtype", gs_dtype_name(bucket->dtype));
        gs_json_set_int(row, "device", bucket->device);
        gs_json_set(row, "params", params);
        gs_json_push(buckets, row);
    }
    gs_digest_format(hash, gs_bucket_plan_digest(plan));
    gs_json_set_string(out, "hash", hash);
    gs_json_set(out, "buckets", buckets);
    return out;
}

static void make_plan(gs_bucket_plan *plan) {
    gs_param_spec params[5];
    for (int i = 0; i < 5; i++) params[i] = gs_param_spec_make(GS_FP32, 100 + i, 7, "p%d", i);
    gs_status status = gs_bucket_plan_parity(plan, params, 5, 4096, 8192, NULL);
    assert_int_equal(status.code, GS_OK);
    assert_true(plan->num_buckets > 1);
}

static void a_plan_comes_through_unchanged(void **state) {
    (void)state;
    gs_bucket_plan plan, decoded;
    make_plan(&plan);
    gs_json *message = encode(&plan);
    gs_status status = gs_plan_message_decode(&decoded, message);
    assert_string_equal(status.message, "");
    assert_true(gs_digest_equal(gs_bucket_plan_digest(&plan), gs_bucket_plan_digest(&decoded)));
    assert_int_equal(decoded.num_params, 5);
    gs_json_release(message);
    gs_bucket_plan_release(&plan);
    gs_bucket_plan_release(&decoded);
}

static void a_plan_that_is_not_its_hash_is_refused(void **state) {
    (void)state;
    gs_bucket_plan plan, decoded;
    make_plan(&plan);
    plan.params[0] ^= 1;
    gs_json *message = encode(&plan);
    plan.params[0] ^= 1;
    char hash[GS_DIGEST_TEXT_LEN];
    gs_digest_format(hash, gs_bucket_plan_digest(&plan));
    gs_json_set_string(message, "hash", hash);
    gs_status status = gs_plan_message_decode(&decoded, message);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    gs_json_release(message);
    gs_bucket_plan_release(&plan);
}

static void a_bucket_without_bytes_is_named(void **state) {
    (void)state;
    static const char text[] =
        "{\"hash\":\"\",\"buckets\":[{\"limit_bytes\":1,\"dtype\":\"fp32\",\"device\":0}]}";
    gs_json *message;
    gs_bucket_plan decoded;
    gs_status status = gs_json_parse(&message, text, sizeof text - 1);
    assert_int_equal(status.code, GS_OK);
    status = gs_plan_message_decode(&decoded, message);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "bucket 0"));
    gs_json_release(message);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_comes_through_unchanged),
        cmocka_unit_test(a_plan_that_is_not_its_hash_is_refused),
        cmocka_unit_test(a_bucket_without_bytes_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
