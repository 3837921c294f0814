#include "rpc/schema/job_freeze.h"
#include "rpc/schema/job_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_of_owners_has_a_bucket_for_the_small_ones_of_each),
        cmocka_unit_test(whole_parameters_have_buckets_of_one_owner),
        cmocka_unit_test(what_is_cut_or_nobodys_has_the_plan_of_its_policy),
        cmocka_unit_test(a_bucket_trains_or_rests_as_a_whole),
        cmocka_unit_test(overlap_deals_the_buckets_of_the_plan),
        cmocka_unit_test(the_plan_of_a_sharded_job_is_fixed),
        cmocka_unit_test(a_fixed_plan_is_the_same_wherever_ranks_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
