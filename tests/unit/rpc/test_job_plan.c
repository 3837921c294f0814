#include "rpc/schema/job_freeze.h"
#include "rpc/schema/job_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/owner_rules.h"
#include "core/plan_policy.h"
#include "tests/support/asserts.h"

#define NUM_PARAMS 30

static gs_job_spec make_spec(int sharding, int partition) {
    gs_job_spec spec = {0};
    spec.reducer.bucket_cap_bytes[0] = 4000;
    spec.reducer.num_bucket_caps = 1;
    spec.reducer.sharding = sharding;
    spec.reducer.partition = partition;
    return spec;
}

static void make_params(gs_param_spec *params) {
    for (size_t i = 0; i < NUM_PARAMS; i++)
        params[i] = gs_param_spec_make(GS_FP32, 1 + (int64_t)(i * 7 % 11), 37, "p%zu", i);
}

// What the ranks deal themselves is the reference.
static void expect_owners_of_rule(int partition, int world_size) {
    gs_param_spec params[NUM_PARAMS];
    gs_job_spec spec = make_spec(GS_SHARDING_OPTIMIZER, partition);
    size_t counts[NUM_PARAMS];
    int wanted[NUM_PARAMS], *owners;
    gs_bucket_plan plan;
    make_params(params);
    for (size_t i = 0; i < NUM_PARAMS; i++) counts[i] = gs_param_spec_count(&params[i]);
    const gs_owner_request request = {
        .counts = counts, .num_params = NUM_PARAMS, .world_size = world_size};
    assert_ok(partition == GS_SHARD_OSS ? gs_owners_greedy(wanted, &request)
                                        : gs_owners_sorted(wanted, NULL, &request));
    assert_ok(gs_job_plan_owners(&owners, &spec, world_size, params, NUM_PARAMS));
    assert_memory_equal(owners, wanted, sizeof wanted);
    free(owners);

    assert_ok(gs_job_plan_make(&plan, &spec, world_size, params, NUM_PARAMS, NULL));
    assert_ok(gs_bucket_plan_check(&plan, params, NUM_PARAMS));
    for (size_t b = 0; b < plan.num_buckets; b++) {
        const size_t *members = plan.params + plan.buckets[b].first;
        for (size_t i = 1; i < plan.buckets[b].num_params; i++)
            assert_int_equal(wanted[members[i]], wanted[members[0]]);
    }
    gs_bucket_plan_release(&plan);
}

// Not more than one bucket of small ones for each owner, and the same members wherever it is
// planned.
static void a_plan_of_owners_has_a_bucket_for_the_small_ones_of_each(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    int *owners;
    gs_bucket_plan plan;
    gs_job_spec spec = make_spec(GS_SHARDING_OPTIMIZER, GS_SHARD_OSS);
    spec.reducer.plan = GS_PLAN_OWNER;
    make_params(params);
    assert_ok(gs_job_plan_owners(&owners, &spec, 3, params, NUM_PARAMS));
    assert_ok(gs_job_plan_make(&plan, &spec, 3, params, NUM_PARAMS, NULL));
    assert_ok(gs_bucket_plan_check(&plan, params, NUM_PARAMS));
    size_t num_shared[3] = {0};
    for (size_t b = 0; b < plan.num_buckets; b++) {
        const gs_plan_bucket *bucket = &plan.buckets[b];
        const size_t *members = plan.params + bucket->first;
        for (size_t i = 1; i < bucket->num_params; i++)
            assert_int_equal(owners[members[i]], owners[members[0]]);
        if (bucket->num_params > 1) assert_true(bucket->bytes < 4000);
        num_shared[owners[members[0]]] += bucket->num_params > 1;
    }
    for (int r = 0; r < 3; r++) assert_int_equal(num_shared[r], 1);
    assert_true(plan.num_buckets < NUM_PARAMS);
    gs_bucket_plan_release(&plan);
    free(owners);
}

static void whole_parameters_have_buckets_of_one_owner(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 40; world_size += 3) {
        expect_owners_of_rule(GS_SHARD_OSS, world_size);
        expect_owners_of_rule(GS_SHARD_ZERO, world_size);
    }
}

static void what_is_cut_or_nobodys_has_the_plan_of_its_policy(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    make_params(params);
    const gs_job_spec specs[] = {make_spec(GS_SHARDING_OPTIMIZER, GS_SHARD_FLAT),
                                 make_spec(GS_SHARDING_NONE, GS_SHARD_OSS)};
    for (size_t i = 0; i < 2; i++) {
        int *owners = &(int){0};
        gs_bucket_plan plan, wanted;
        gs_plan_policy policy = gs_job_spec_plan_policy(&specs[i]);
        assert_ok(gs_job_plan_owners(&owners, &specs[i], 4, params, NUM_PARAMS));
        assert_null(owners);
        assert_ok(gs_job_plan_make(&plan, &specs[i], 4, params, NUM_PARAMS, NULL));
        assert_ok(gs_plan_policy_apply(&wanted, &policy, params, NUM_PARAMS, NULL));
        assert_true(gs_digest_equal(gs_bucket_plan_digest(&plan), gs_bucket_plan_digest(&wanted)));
        gs_bucket_plan_release(&plan);
        gs_bucket_plan_release(&wanted);
    }
}

// p0, p10, p11 and so on by one rule, p3 and p13 by two, the others by none.
static void a_bucket_trains_or_rests_as_a_whole(void **state) {
    (void)state;
    static const gs_job_freeze rules[] = {{"p?", 2, 5}, {"*3", 0, 3}};
    gs_param_spec params[NUM_PARAMS];
    make_params(params);
    for (int partition = GS_SHARD_FLAT; partition <= GS_SHARD_ZERO; partition++) {
        gs_job_spec spec = make_spec(GS_SHARDING_OPTIMIZER, partition);
        gs_bucket_plan plan;
        memcpy(spec.model.freeze, rules, sizeof rules);
        spec.model.num_freezes = 2;
        spec.steps.target = 9;
        assert_ok(gs_job_plan_make(&plan, &spec, 3, params, NUM_PARAMS, NULL));
        assert_ok(gs_bucket_plan_check(&plan, params, NUM_PARAMS));
        for (int64_t step = 0; step < 9; step++) {
            for (size_t b = 0; b < plan.num_buckets; b++) {
                const size_t *members = plan.params + plan.buckets[b].first;
                for (size_t i = 0; i < plan.buckets[b].num_params; i++)
                    assert_int_equal(gs_job_freeze_trains(&spec, &params[members[i]], step),
                                     gs_job_freeze_trains(&spec, &params[members[0]], step));
            }
        }
        assert_false(gs_job_freeze_trains(&spec, &params[3], 0));
        assert_false(gs_job_freeze_trains(&spec, &params[3], 4));
        assert_true(gs_job_freeze_trains(&spec, &params[3], 5));
        assert_true(gs_job_freeze_trains(&spec, &params[12], 0));
        assert_true(gs_job_freeze_ever_trains(&spec, &params[3]));
        spec.steps.target = 5;
        assert_false(gs_job_freeze_ever_trains(&spec, &params[3]));
        assert_int_equal(gs_job_freeze_next_change(&spec, 0), 2);
        assert_int_equal(gs_job_freeze_next_change(&spec, 3), 5);
        assert_int_equal(gs_job_freeze_next_change(&spec, 5), INT64_MAX);
        gs_bucket_plan_release(&plan);
    }
}

static void overlap_deals_the_buckets_of_the_plan(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    gs_job_spec spec = make_spec(GS_SHARDING_OPTIMIZER, GS_SHARD_FLAT);
    gs_bucket_plan plan;
    int *owners = &(int){0};
    make_params(params);
    assert_ok(gs_job_plan_make(&plan, &spec, 3, params, NUM_PARAMS, NULL));
    assert_ok(gs_job_plan_bucket_owners(&owners, &spec, 3, &plan, params, NUM_PARAMS));
    assert_null(owners);
    spec.reducer.zero_overlap = GS_ZERO_OVERLAP_STEP;
    assert_ok(gs_job_plan_bucket_owners(&owners, &spec, 3, &plan, params, NUM_PARAMS));
    for (size_t b = 0; b < plan.num_buckets; b++) {
        for (size_t i = 0; i < plan.buckets[b].num_params; i++)
            assert_int_equal(owners[plan.params[plan.buckets[b].first + i]], b % 3);
    }
    free(owners);
    gs_bucket_plan_release(&plan);
}

static void the_plan_of_a_sharded_job_is_fixed(void **state) {
    (void)state;
    gs_job_spec spec = make_spec(GS_SHARDING_NONE, GS_SHARD_FLAT);
    assert_false(gs_job_plan_is_fixed(&spec));
    spec.reducer.sharding = GS_SHARDING_GRADIENTS;
    assert_true(gs_job_plan_is_fixed(&spec));
}

// Where its ranks are changes nothing of it; of another one it does.
static void a_fixed_plan_is_the_same_wherever_ranks_are(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    for (size_t i = 0; i < NUM_PARAMS; i++) params[i] = gs_param_spec_make(GS_FP32, 100000, 0, "p%zu", i);
    for (int sharding = GS_SHARDING_NONE; sharding <= GS_SHARDING_GRADIENTS; sharding++) {
        gs_job_spec spec = make_spec(sharding, GS_SHARD_FLAT);
        spec.reducer.plan = GS_PLAN_AUTO;
        spec.reducer.num_bucket_caps = 0;
        gs_bucket_plan together, apart;
        assert_ok(gs_job_plan_make_at(&together, &spec, &(gs_plan_place){0}, 3, params, NUM_PARAMS, NULL));
        assert_ok(gs_job_plan_make_at(&apart, &spec, &(gs_plan_place){.apart = true}, 3, params, NUM_PARAMS, NULL));
        assert_int_equal(gs_digest_equal(gs_bucket_plan_digest(&together), gs_bucket_plan_digest(&apart)), gs_job_plan_is_fixed(&spec));
        gs_bucket_plan_release(&together);
        gs_bucket_plan_release(&apart);
    }
}

static gs_job_spec spec;  // as people write it

static void decode(const char *text) {
    gs_json *object;
    gs_field_errors errors = {0};
    assert_ok(gs_json_parse(&object, text, strlen(text)));
    gs_status status = gs_job_spec_decode(&spec, object, &errors);
    gs_json_release(object);
    if (status.code) fail_msg("%s: %s %s", text, errors.items[0].pointer, errors.items[0].message);
}

static void expect_plan_of_halves(const size_t *order, size_t a, size_t b, size_t c) {
    gs_param_spec params[60];
    gs_bucket_plan plan;
    gs_plan_policy policy = gs_job_spec_plan_policy(&spec);
    for (size_t i = 0; i < 60; i++)
        params[i] = gs_param_spec_make(GS_FP32, 128 << 10, 0, "p%zu", i);
    assert_ok(gs_plan_policy_apply(&plan, &policy, params, 60, order));
    assert_int_equal(plan.num_buckets, 3);
    assert_int_equal(plan.buckets[0].num_params, a);
    assert_int_equal(plan.buckets[1].num_params, b);
    assert_int_equal(plan.buckets[2].num_params, c);
    gs_bucket_plan_release(&plan);
}

// What a job of parity gets for tensors of 512 KiB: one bucket of 1 MiB, the others of 25 MiB. It is
// the first to be ready once the order is known; before, as in the original, the one of the first layers.
static void a_parity_plan_has_a_small_bucket_of_1_mib(void **state) {
    (void)state;
    size_t backwards[60];
    for (size_t i = 0; i < 60; i++) backwards[i] = 59 - i;
    decode("{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5},\"reducer\":{\"plan\":\"parity\"}}");
    expect_plan_of_halves(NULL, 8, 50, 2);
    expect_plan_of_halves(backwards, 2, 50, 8);
}

static gs_digest digest_of(const gs_job_spec *of, const gs_param_spec *params, size_t num_params, size_t *num_buckets) {
    gs_bucket_plan plan;
    assert_ok(gs_job_plan_make(&plan, of, 1, params, num_params, NULL));
    const gs_digest digest = gs_bucket_plan_digest(&plan);
    *num_buckets = plan.num_buckets;
    gs_bucket_plan_release(&plan);
    return digest;
}

// Nothing of what lies in a host's caches counts there. What a benchmark takes for it, the table's defaults, is the same.
static void a_job_on_gpus_that_says_nothing_has_the_caps(void **state) {
    (void)state;
    gs_param_spec params[60];
    size_t on_gpus, of_defaults, of_parity, on_cpus;
    gs_job_spec *defaults = calloc(1, sizeof *defaults);
    assert_non_null(defaults);
    for (size_t i = 0; i < 60; i++) params[i] = gs_param_spec_make(GS_FP32, 128 << 10, 0, "p%zu", i);
    gs_fields_set_defaults(defaults, gs_job_spec_fields);
    defaults->world.device = GS_SPEC_DEVICE_CUDA;
    const gs_digest bench = digest_of(defaults, params, 60, &of_defaults);
    decode("{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5},\"world\":{\"device\":\"cuda\"}}");
    const gs_digest gpus = digest_of(&spec, params, 60, &on_gpus);
    decode("{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5},\"reducer\":{\"plan\":\"parity\"}}");
    const gs_digest parity = digest_of(&spec, params, 60, &of_parity);
    decode("{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5},\"world\":{\"device\":\"cpu\"}}");
    (void)digest_of(&spec, params, 60, &on_cpus);
    assert_int_equal(on_gpus, 3);
    assert_true(on_cpus > 3);
    assert_true(gs_digest_equal(gpus, parity));
    assert_true(gs_digest_equal(gpus, bench));
    free(defaults);
}

static void expect_plan(const char *reducer, int plan) {
    char text[400];
    snprintf(text, sizeof text, "{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5},\"reducer\":%s}", reducer);
    decode(text);
    if (spec.reducer.plan != plan) fail_msg("%s: plan %d, not %d", reducer, spec.reducer.plan, plan);
}

// Who gives caps means them; so does who compresses whole buckets, or keeps parts of them.
static void who_says_nothing_has_plans_made_for_him(void **state) {
    (void)state;
    expect_plan("{}", GS_PLAN_AUTO);
    expect_plan("{\"wire_dtype\":\"bf16\"}", GS_PLAN_AUTO);
    expect_plan("{\"hook\":{\"kind\":\"fp16\"}}", GS_PLAN_AUTO);
    expect_plan("{\"max_buckets\":9}", GS_PLAN_AUTO);
    expect_plan("{\"bucket_cap_bytes\":9000}", GS_PLAN_PARITY);
    expect_plan("{\"first_bucket_bytes\":0}", GS_PLAN_PARITY);
    expect_plan("{\"small_bucket\":\"last\"}", GS_PLAN_PARITY);
    expect_plan("{\"hook\":{\"kind\":\"int8\"}}", GS_PLAN_PARITY);
    expect_plan("{\"hook\":{\"kind\":\"topk\"}}", GS_PLAN_PARITY);
    expect_plan("{\"sharding\":\"optimizer\"}", GS_PLAN_PARITY);
    expect_plan("{\"plan\":\"auto\",\"bucket_cap_bytes\":9000}", GS_PLAN_AUTO);
    expect_plan("{\"plan\":\"auto\",\"hook\":{\"kind\":\"int8\"}}", GS_PLAN_AUTO);
    gs_json *stored;
    const char *text = "{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5}}";
    assert_ok(gs_json_parse(&stored, text, strlen(text)));
    gs_field_errors errors = {0};
    assert_ok(gs_job_spec_decode_stored(&spec, stored, &errors));
    assert_int_equal(spec.reducer.plan, GS_PLAN_PARITY);
    gs_json_release(stored);
}

static void caps_alone_drop_the_small_first_bucket(void **state) {
    (void)state;
    decode("{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5},\"reducer\":{\"plan\":\"parity\"}}");
    gs_plan_policy policy = gs_job_spec_plan_policy(&spec);
    assert_true(policy.first_bytes == GS_FIRST_BUCKET_BYTES);
    assert_int_equal(policy.num_caps, 1);
    assert_true(policy.caps_bytes[0] == GS_BUCKET_CAP_BYTES);
    assert_false(policy.one_host || policy.small_last || policy.max_buckets);

    decode("{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5},"
              "\"reducer\":{\"bucket_cap_bytes\":5000}}");
    policy = gs_job_spec_plan_policy(&spec);
    assert_true(policy.first_bytes == 0);
    assert_true(policy.caps_bytes[0] == 5000);

    decode("{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5},\"reducer\":{"
              "\"first_bucket_bytes\":70,\"bucket_cap_bytes\":[5000,9000],\"small_bucket\":\"last\","
              "\"max_buckets\":12}}");
    policy = gs_job_spec_plan_policy(&spec);
    assert_true(policy.first_bytes == 70);
    assert_int_equal(policy.num_caps, 2);
    assert_true(policy.caps_bytes[1] == 9000);
    assert_true(policy.small_last);
    assert_int_equal(policy.max_buckets, 12);

    decode("{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5},"
              "\"reducer\":{\"plan\":\"auto\"}}");
    assert_true(gs_job_spec_plan_policy(&spec).one_host);
}

// The limits of a plan for four parameters of 2 MiB with a cap of 4 MiB.
static void expect_limits(const char *reducer, size_t num_buckets, uint64_t first_bytes) {
    char text[256];
    gs_param_spec params[4];
    gs_bucket_plan plan;
    snprintf(text, sizeof text,
             "{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":5},\"reducer\":{%s}}", reducer);
    decode(text);
    gs_plan_policy policy = gs_job_spec_plan_policy(&spec);
    for (size_t i = 0; i < 4; i++) params[i] = gs_param_spec_make(GS_FP32, 1 << 19, 0, "p%zu", i);
    assert_ok(gs_plan_policy_apply(&plan, &policy, params, 4, (const size_t[]){3, 2, 1, 0}));
    assert_int_equal(plan.num_buckets, num_buckets);
    assert_int_equal(plan.buckets[0].limit_bytes, first_bytes);
    for (size_t b = 1; b < num_buckets; b++) assert_int_equal(plan.buckets[b].limit_bytes, 4 << 20);
    gs_bucket_plan_release(&plan);
}

static void a_plan_of_caps_alone_has_no_small_bucket(void **state) {
    (void)state;
    expect_limits("\"bucket_cap_bytes\":4194304", 2, 4 << 20);
    expect_limits("\"bucket_cap_bytes\":4194304,\"first_bucket_bytes\":1048576", 3, 1 << 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_of_owners_has_a_bucket_for_the_small_ones_of_each),
        cmocka_unit_test(whole_parameters_have_buckets_of_one_owner),
        cmocka_unit_test(what_is_cut_or_nobodys_has_the_plan_of_its_policy),
        cmocka_unit_test(a_bucket_trains_or_rests_as_a_whole),
        cmocka_unit_test(overlap_deals_the_buckets_of_the_plan),
        cmocka_unit_test(the_plan_of_a_sharded_job_is_fixed),
        cmocka_unit_test(a_fixed_plan_is_the_same_wherever_ranks_are),
        cmocka_unit_test(a_parity_plan_has_a_small_bucket_of_1_mib),
        cmocka_unit_test(a_job_on_gpus_that_says_nothing_has_the_caps),
        cmocka_unit_test(who_says_nothing_has_plans_made_for_him),
        cmocka_unit_test(caps_alone_drop_the_small_first_bucket),
        cmocka_unit_test(a_plan_of_caps_alone_has_no_small_bucket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
