#include "gradsync/bucket/bucket.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"

#define MAX_PARAMS 60

static size_t make_params(gs_param_spec *params, uint64_t seed) {
    gs_random_key key = {.seed = seed, .stream = 2};
    size_t num_params = 1 + gs_random_u64(key, 0) % MAX_PARAMS;
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP64, GS_FP16, GS_BF16};
    for (size_t i = 0; i < num_params; i++)
        params[i] =
            gs_param_spec_make(dtypes[seed < 100 ? 0 : (i + seed) % 4],
                               1 + (int64_t)(gs_random_u64(key, i + 1) % 300), 0, "p%zu", i);
    return num_params;
}

static gs_bucket_plan make_plan(const gs_param_spec *params, size_t num_params, uint64_t seed) {
    gs_bucket_plan plan;
    uint64_t limit = 4 + gs_random_u64((gs_random_key){.seed = seed, .stream = 3}, 0) % 20000;
    gs_status status = gs_bucket_plan_parity(&plan, params, num_params, limit / 4, limit, NULL);
    assert_string_equal(status.message, "");
    return plan;
}

static void members_are_padded_and_buckets_aligned_for_any_plan(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        gs_param_spec params[MAX_PARAMS];
        size_t num_params = make_params(params, seed), offsets[MAX_PARAMS], max_bytes;
        gs_bucket_plan plan = make_plan(params, num_params, seed);
        gs_bucket buckets[MAX_PARAMS];
        gs_bucket_layout(buckets, offsets, &plan, params, 1);
        assert_int_equal(gs_bucket_max_layout_bytes(&max_bytes, params, num_params, 1).code, GS_OK);
        size_t end = 0;
        for (size_t b = 0; b < plan.num_buckets; b++) {
            assert_true(buckets[b].offset_bytes % 256 == 0 && buckets[b].offset_bytes >= end);
            end = buckets[b].offset_bytes;
            bool wide = buckets[b].dtype == GS_FP64;
            assert_int_equal(buckets[b].element_bytes, wide ? 8 : 4);
            for (size_t i = 0; i < buckets[b].num_params; i++) {
                size_t param = buckets[b].params[i];
                assert_true(offsets[param] % 64 == 0 && offsets[param] >= end);
                end = offsets[param] + gs_param_spec_count(&params[param]) * (wide ? 8 : 4);
                assert_int_equal(params[param].dtype == GS_FP64, wide);
            }
            size_t grads_end =
                buckets[b].offset_bytes + buckets[b].grad_count * buckets[b].element_bytes;
            assert_true(grads_end >= end && grads_end - end < 64);
            end = grads_end + buckets[b].reserved_count * buckets[b].element_bytes;
        }
        assert_true(end <= max_bytes);
        gs_bucket_plan_release(&plan);
    }
}

static void reserved_elements_survive_sums_and_scales(void **state) {
    (void)state;
    gs_param_spec params[MAX_PARAMS];
    size_t num_params = make_params(params, 5), offsets[MAX_PARAMS], bytes;
    gs_bucket_plan plan = make_plan(params, num_params, 5);
    gs_bucket buckets[MAX_PARAMS];
    gs_bucket_layout(buckets, offsets, &plan, params, 1);
    assert_int_equal(gs_bucket_max_layout_bytes(&bytes, params, num_params, 1).code, GS_OK);
    char *slot = calloc(1, bytes);
    const gs_bucket *bucket = &buckets[plan.num_buckets - 1];
    float *reserved = (float *)(slot + bucket->offset_bytes) + bucket->grad_count;

    for (int world = 1; world <= 1000; world += 111) {
        for (int64_t divisor = 1; divisor < 100000; divisor = divisor * 7 + 1) {
            uint8_t used[MAX_PARAMS] = {0}, used_anywhere[MAX_PARAMS];
            used[bucket->params[0]] = 1;
            const int64_t samples = 1234567;
            gs_bucket_write_reserved(
                bucket, gs_bucket_reserved_at(bucket, slot), &(gs_bucket_share){.used = used, .samples = samples, .active = true});
            float scale = (float)(1.0 / (double)divisor);
            for (size_t i = 0; i < bucket->reserved_count; i++) {
                float one = reserved[i], sum = 0;
                for (int r = 0; r < world; r++) sum += one;
                reserved[i] = sum * scale;
            }
            gs_bucket_reserved sums;
            gs_bucket_read_reserved(&sums, used_anywhere, bucket, gs_bucket_reserved_at(bucket, slot), 1.0 / (double)divisor);
            assert_int_equal(sums.samples, samples * world);
            assert_int_equal(sums.num_ranks, world);
            assert_int_equal(sums.num_active, world);
            assert_int_equal(used_anywhere[bucket->params[0]], 1);
            if (bucket->num_params > 1) assert_int_equal(used_anywhere[bucket->params[1]], 0);
        }
    }
    free(slot);
    gs_bucket_plan_release(&plan);
}

// The largest world that logical shards allow: every rank with the low bits all set.
static void samples_of_4096_ranks_are_exact(void **state) {
    (void)state;
    const int world = 4096;
    gs_param_spec param = gs_param_spec_make(GS_FP32, 1, 0, "p");
    gs_bucket_plan plan = make_plan(&param, 1, 1);
    gs_bucket bucket;
    size_t offset;
    gs_bucket_layout(&bucket, &offset, &plan, &param, 1);
    float slot[128] = {0};
    const double scales[] = {1.0, 1.0 / 4096, 1.0 / 3, 1.0 / 4095};
    for (int64_t samples = 1; samples <= 1 << 20; samples *= 2) {
        for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++) {
            uint8_t used = 1;
            gs_bucket_write_reserved(&bucket, gs_bucket_reserved_at(&bucket, slot),
                                     &(gs_bucket_share){.used = &used, .samples = samples - 1});
            for (size_t i = 0; i < bucket.reserved_count; i++) {
                float one = slot[bucket.grad_count + i], sum = 0;
                for (int r = 0; r < world; r++) sum += one;
                slot[bucket.grad_count + i] = (float)((double)sum * scales[s]);
            }
            gs_bucket_reserved sums;
            gs_bucket_read_reserved(&sums, &used, &bucket, gs_bucket_reserved_at(&bucket, slot), scales[s]);
            assert_int_equal(sums.samples, (samples - 1) * world);
            assert_int_equal(sums.num_ranks, world);
        }
    }
    gs_bucket_plan_release(&plan);
}

static void reserved_elements_that_are_no_counts_are_told(void **state) {
    (void)state;
    gs_param_spec param = gs_param_spec_make(GS_FP32, 1, 0, "p");
    gs_bucket_plan plan = make_plan(&param, 1, 1);
    gs_bucket bucket;
    size_t offset;
    gs_bucket_layout(&bucket, &offset, &plan, &param, 1);
    const float damaged[] = {NAN, INFINITY, -1, 1e30f, 0x1p61f};
    for (size_t d = 0; d < sizeof damaged / sizeof damaged[0]; d++) {
        float slot[128];
        for (size_t i = 0; i < 128; i++) slot[i] = damaged[d];
        gs_bucket_reserved sums;
        uint8_t used;
        gs_bucket_read_reserved(&sums, &used, &bucket, gs_bucket_reserved_at(&bucket, slot), 1);
        assert_int_equal(sums.num_ranks, -1);
        assert_int_equal(sums.samples, -1);
    }
    gs_bucket_plan_release(&plan);
}

static void padding_is_cleared_and_gradients_are_not(void **state) {
    (void)state;
    gs_param_spec params[MAX_PARAMS];
    size_t num_params = make_params(params, 9), offsets[MAX_PARAMS], bytes;
    gs_bucket_plan plan = make_plan(params, num_params, 9);
    gs_bucket buckets[MAX_PARAMS];
    gs_bucket_layout(buckets, offsets, &plan, params, 1);
    assert_int_equal(gs_bucket_max_layout_bytes(&bytes, params, num_params, 1).code, GS_OK);
    char *slot = malloc(bytes);
    memset(slot, 0x11, bytes);
    for (size_t b = 0; b < plan.num_buckets; b++) {
        gs_bucket_clear_padding(&buckets[b], slot, params);
        const char *at = slot + buckets[b].offset_bytes;
        size_t num_bytes = (buckets[b].grad_count + buckets[b].reserved_count) * sizeof(float);
        size_t num_grad_bytes = 0, num_kept = 0;
        for (size_t i = 0; i < buckets[b].num_params; i++)
            num_grad_bytes += gs_param_spec_bytes(&params[buckets[b].params[i]]);
        for (size_t i = 0; i < num_bytes; i++) num_kept += at[i] == 0x11;
        assert_int_equal(num_kept, num_grad_bytes);
    }
    free(slot);
    gs_bucket_plan_release(&plan);
}

static void bucket_of_a_sparse_parameter_holds_counts_alone(void **state) {
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        gs_param_spec param = gs_param_spec_make(wide ? GS_FP64 : GS_FP32, 50257, 768, "wte");
        param.sparse = true;
        size_t member = 0, offset, bytes;
        gs_plan_bucket planned = {.dtype = param.dtype, .num_params = 1};
        const gs_bucket_plan plan = {
            .num_buckets = 1, .num_params = 1, .buckets = &planned, .params = &member};
        gs_bucket bucket;
        gs_bucket_layout(&bucket, &offset, &plan, &param, 1);
        assert_int_equal(bucket.grad_count, 0);
        assert_int_equal(gs_bucket_max_layout_bytes(&bytes, &param, 1, 1).code, GS_OK);
        assert_int_equal(bytes, 256);
        _Alignas(64) char slot[256] = {0};
        uint8_t used = 1;
        gs_bucket_write_reserved(
            &bucket, gs_bucket_reserved_at(&bucket, slot), &(gs_bucket_share){.used = &used, .samples = 1234567, .active = true});
        gs_bucket_reserved sums;
        used = 0;
        gs_bucket_read_reserved(&sums, &used, &bucket, gs_bucket_reserved_at(&bucket, slot), 1);
        assert_int_equal(used, 1);
        assert_int_equal(sums.samples, 1234567);
        assert_int_equal(sums.num_ranks, 1);
        assert_int_equal(sums.num_active, 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_padded_and_buckets_aligned_for_any_plan),
        cmocka_unit_test(reserved_elements_survive_sums_and_scales),
        cmocka_unit_test(samples_of_4096_ranks_are_exact),
        cmocka_unit_test(reserved_elements_that_are_no_counts_are_told),
        cmocka_unit_test(bucket_of_a_sparse_parameter_holds_counts_alone),
        cmocka_unit_test(padding_is_cleared_and_gradients_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
