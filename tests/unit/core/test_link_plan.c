#include "core/link_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/link_groups.h"
#include "core/plan_policy.h"
#include "core/random.h"
#include "tests/support/near.h"

#define MAX_PARAMS 200

typedef struct link_case {
    gs_param_spec params[MAX_PARAMS];
    size_t order[MAX_PARAMS];
    double ready[MAX_PARAMS];
    int keys[MAX_PARAMS];
    gs_link_request request;
} link_case;

static void must(gs_status status) {
    if (status.code) fail_msg("%s", status.message);
}

static void begin_case(link_case *made, size_t num_params) {
    made->request = (gs_link_request){.params = made->params,
                                      .num_params = num_params,
                                      .order = made->order,
                                      .ready_seconds = made->ready};
    for (size_t i = 0; i < num_params; i++) made->order[i] = num_params - 1 - i;
}

// Sizes over five decades; gradients that come one by one, in bursts, or all at the end.
static void draw_case(link_case *made, gs_random_key key, size_t num_params) {
    double now = 0, pace = pow(10, -5 + 4 * gs_random_uniform(key, 0));
    uint64_t shape = gs_random_u64(key, 1) % 3;
    begin_case(made, num_params);
    for (size_t i = 0; i < num_params; i++) {
        int64_t count = (int64_t)pow(10, 1 + 5 * gs_random_uniform(key, 100 + i));
        made->params[i] = gs_param_spec_make(GS_FP32, count, 0, "p%zu", i);
    }
    for (size_t i = num_params; i > 1; i--) {
        size_t other = gs_random_u64(key, 1000 + i) % i, swapped = made->order[i - 1];
        made->order[i - 1] = made->order[other];
        made->order[other] = swapped;
    }
    for (size_t i = 0; i < num_params; i++) {
        if (shape == 0 || (shape == 1 && gs_random_u64(key, 2000 + i) % 5 == 0) || i + 1 == num_params)
            now += pace * (0.1 + gs_random_uniform(key, 3000 + i)) * (shape == 1 ? 5 : 1);
        made->ready[made->order[i]] = now;
    }
}

static gs_link_cost draw_cost(gs_random_key key) {
    return (gs_link_cost){pow(10, -5 + 3 * gs_random_uniform(key, 10)),
                          pow(10, -10 + 3 * gs_random_uniform(key, 11))};
}

static gs_link_model model_of(gs_link_cost cost) {
    return (gs_link_model){.cost = cost, .low = cost, .high = cost, .wire_ratio = 1, .num_samples = 1};
}

static double forecast(const gs_bucket_plan *plan, const link_case *made, gs_link_cost cost) {
    double seconds;
    must(gs_link_plan_forecast(&seconds, plan, &made->request, &cost, 1));
    return seconds;
}

static double bound_of(const link_case *made, gs_link_cost cost) {
    double seconds;
    must(gs_link_plan_bound(&seconds, &made->request, &cost, 1));
    return seconds;
}

static double parity_of(const link_case *made, gs_link_cost cost) {
    gs_bucket_plan plan;
    gs_plan_policy policy = {.first_bytes = GS_FIRST_BUCKET_BYTES};
    must(gs_plan_policy_apply_owned(&plan, &policy, made->request.keys, made->params, made->request.num_params,
                                    made->order));
    double seconds = forecast(&plan, made, cost);
    gs_bucket_plan_release(&plan);
    return seconds;
}

// All cuts of the order, one bit for each place between two parameters.
static double least_of_all(const link_case *made, gs_link_cost cost) {
    size_t count = made->request.num_params;
    double least = INFINITY;
    for (uint32_t cuts = 0; cuts < 1u << (count - 1); cuts++) {
        double finish = 0, bytes = 0, ready = 0;
        for (size_t i = 0; i < count; i++) {
            size_t param = made->order[i];
            bytes += (double)gs_param_spec_grad_bytes(&made->params[param]);
            if (made->ready[param] > ready) ready = made->ready[param];
            if (i + 1 < count && !(cuts >> i & 1)) continue;
            finish = (finish > ready ? finish : ready) + cost.start_seconds + cost.byte_seconds * bytes;
            bytes = 0;
        }
        if (finish < least) least = finish;
    }
    return least;
}

static void the_best_plan_is_the_best_of_all(void **state) {
    (void)state;
    static link_case made;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        gs_random_key key = {seed, 1};
        draw_case(&made, key, 1 + seed % 11);
        gs_link_cost cost = draw_cost(key);
        gs_bucket_plan plan;
        must(gs_link_plan_best(&plan, &made.request, &cost));
        must(gs_bucket_plan_check(&plan, made.params, made.request.num_params));
        double ours = forecast(&plan, &made, cost), least = least_of_all(&made, cost);
        if (ours > least * (1 + 1e-12) || ours < least * (1 - 1e-12))
            fail_msg("seed %llu: %.12g, the best of all %.12g", (unsigned long long)seed, ours, least);
        if (bound_of(&made, cost) > least * (1 + 1e-12))
            fail_msg("seed %llu: the bound %.12g is above %.12g", (unsigned long long)seed, bound_of(&made, cost), least);
        gs_bucket_plan_release(&plan);
    }
}

// Wherever the link turns out to lie in the range that a plan is made for.
static void no_plan_is_a_hundredth_slower_than_caps_of_25_mib(void **state) {
    (void)state;
    static link_case made;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        gs_random_key key = {seed, 2};
        draw_case(&made, key, 1 + gs_random_u64(key, 5) % (MAX_PARAMS - 1));
        gs_link_model model = model_of(draw_cost(key));
        gs_bucket_plan plan;
        must(gs_link_plan_make(&plan, &made.request, &model));
        must(gs_bucket_plan_check(&plan, made.params, made.request.num_params));
        for (uint64_t i = 0; i < 40; i++) {
            gs_link_cost real = {model.cost.start_seconds * (0.5 + 1.5 * gs_random_uniform(key, 5000 + 2 * i)),
                                 model.cost.byte_seconds * (0.75 + 0.6 * gs_random_uniform(key, 5001 + 2 * i))};
            double ours = forecast(&plan, &made, real), parity = parity_of(&made, real);
            if (ours > 1.01 * parity)
                fail_msg("seed %llu: %.6g s, caps of 25 MiB %.6g s", (unsigned long long)seed, ours, parity);
            if (ours < bound_of(&made, real) * (1 - 1e-12)) fail_msg("seed %llu: below the bound", (unsigned long long)seed);
        }
        gs_bucket_plan_release(&plan);
    }
}

// GPT-2 of 124 M parameters: twelve layers of equal length in backward, the tied embedding last and largest.
static void make_gpt2(link_case *made, double backward_seconds) {
    static const int64_t counts[] = {768, 768, 768 * 2304, 2304, 768 * 768, 768, 768, 768, 768 * 3072, 3072, 3072 * 768, 768};
    size_t num = 0;
    made->params[num++] = gs_param_spec_make(GS_FP32, 50257, 768, "wte");
    made->params[num++] = gs_param_spec_make(GS_FP32, 1024, 768, "wpe");
    for (int layer = 0; layer < 12; layer++)
        for (size_t i = 0; i < 12; i++, num++) made->params[num] = gs_param_spec_make(GS_FP32, counts[i], 0, "h%d.%zu", layer, i);
    begin_case(made, num);
    for (size_t i = 0; i < num; i++) made->ready[made->order[i]] = backward_seconds * (double)(i + 1) / (double)num;
}

static void plans_of_a_gbit_link_are_near_the_bound(void **state) {
    (void)state;
    static link_case made;
    static const double starts[] = {0.0002, 0.02}, backwards[] = {0.2, 1, 5, 20};
    for (size_t s = 0; s < 2; s++) {
        for (size_t k = 0; k < 4; k++) {
            make_gpt2(&made, backwards[k]);
            gs_link_model model = model_of((gs_link_cost){starts[s], 8e-9});
            gs_bucket_plan plan;
            must(gs_link_plan_make(&plan, &made.request, &model));
            double ours = forecast(&plan, &made, model.cost), bound = bound_of(&made, model.cost);
            // Of these 20 ms, five times: no bucket is wider than the widest of the caps.
            if (ours > 1.03 * bound)
                fail_msg("start %g s, backward %g s: %.4f of the bound", starts[s], backwards[k], ours / bound);
            gs_bucket_plan_release(&plan);
        }
    }
}

static void types_keys_and_sparse_gradients_share_no_bucket(void **state) {
    (void)state;
    static link_case made;
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP64, GS_BF16};
    for (uint64_t seed = 1; seed <= 100; seed++) {
        gs_random_key key = {seed, 3};
        draw_case(&made, key, 1 + gs_random_u64(key, 5) % (MAX_PARAMS - 1));
        made.request.keys = made.keys;
        for (size_t i = 0; i < made.request.num_params; i++) {
            made.keys[i] = (int)(gs_random_u64(key, 6000 + i) % 3);
            made.params[i].dtype = dtypes[gs_random_u64(key, 7000 + i) % 3];
            made.params[i].sparse = gs_random_u64(key, 8000 + i) % 9 == 0;
        }
        made.request.max_buckets = seed % 2 ? 0 : 80;
        gs_link_model model = model_of(draw_cost(key));
        gs_bucket_plan plan;
        gs_status status = gs_link_plan_make(&plan, &made.request, &model);
        if (status.code && made.request.max_buckets && strstr(status.message, "max_buckets")) continue;
        must(status);
        must(gs_bucket_plan_check(&plan, made.params, made.request.num_params));
        if (made.request.max_buckets) assert_true(plan.num_buckets <= 80);
        for (size_t b = 0; b < plan.num_buckets; b++) {
            const size_t *members = plan.params + plan.buckets[b].first;
            for (size_t i = 0; i < plan.buckets[b].num_params; i++) {
                assert_int_equal(made.keys[members[i]], made.keys[members[0]]);
                if (made.params[members[i]].sparse) assert_int_equal(plan.buckets[b].num_params, 1);
            }
        }
        gs_bucket_plan_release(&plan);
    }
}

// One wide enough hides everything: buckets may be small. On a slow one all is late, and starts are dear.
static void dear_starts_make_fewer_buckets(void **state) {
    (void)state;
    static link_case made;
    make_gpt2(&made, 1);
    gs_bucket_plan cheap, dear;
    gs_link_model model = model_of((gs_link_cost){1e-5, 1e-9});
    must(gs_link_plan_make(&cheap, &made.request, &model));
    model.cost.start_seconds = 0.05;
    must(gs_link_plan_make(&dear, &made.request, &model));
    assert_true(dear.num_buckets < cheap.num_buckets);
    gs_bucket_plan_release(&cheap);
    gs_bucket_plan_release(&dear);
}

static void what_compression_leaves_out_does_not_travel(void **state) {
    (void)state;
    static link_case made;
    make_gpt2(&made, 1);
    gs_link_cost cost = {0.001, 8e-9};
    double whole, quarter;
    must(gs_link_plan_bound(&whole, &made.request, &cost, 1));
    must(gs_link_plan_bound(&quarter, &made.request, &cost, 0.25));
    assert_true(quarter < 0.5 * whole);
    gs_bucket_plan plan, same;
    gs_link_model model = model_of(cost), quick = model_of((gs_link_cost){0.001, 2e-9});
    model.wire_ratio = 0.25;
    must(gs_link_plan_make(&plan, &made.request, &model));
    must(gs_link_plan_make(&same, &made.request, &quick));
    assert_true(gs_digest_equal(gs_bucket_plan_digest(&plan), gs_bucket_plan_digest(&same)));
    gs_bucket_plan_release(&plan);
    gs_bucket_plan_release(&same);
}

// A sum in place is kept beside its input: memory is what a bucket may be wide of.
static void no_bucket_is_wider_than_the_widest_of_the_caps(void **state) {
    (void)state;
    static link_case made;
    begin_case(&made, 40);
    for (size_t i = 0; i < 40; i++) made.params[i] = gs_param_spec_make(GS_FP32, 5 << 20, 0, "p%zu", i);
    // All are ready at once, and a start is dear: one of 800 MiB were best.
    for (size_t i = 0; i < 40; i++) made.ready[i] = 1;
    gs_link_model model = model_of((gs_link_cost){1, 1e-9});
    gs_bucket_plan plan;
    must(gs_link_plan_make(&plan, &made.request, &model));
    for (size_t b = 0; b < plan.num_buckets; b++) assert_in_range(plan.buckets[b].bytes, 1, 4 * GS_BUCKET_CAP_BYTES);
    assert_in_range(plan.num_buckets, 8, 10);
    gs_bucket_plan_release(&plan);
}

typedef struct large_case {
    gs_param_spec *params;
    size_t *order;
    double *ready;
    int *keys;
    gs_link_request request;
} large_case;

// Two types and two keys that take turns, and every nth sparse; n 0: none.
static void begin_large(large_case *made, size_t num_params, size_t sparse_every) {
    *made = (large_case){calloc(num_params, sizeof *made->params), calloc(num_params, sizeof *made->order),
                         calloc(num_params, sizeof *made->ready), calloc(num_params, sizeof *made->keys), {0}};
    assert_true(made->params && made->order && made->ready && made->keys);
    for (size_t i = 0; i < num_params; i++) {
        made->params[i] = gs_param_spec_make(i % 7 ? GS_FP32 : GS_BF16, 1 + (int64_t)(i * 7919 % 40000), 0, "p%zu", i);
        made->params[i].sparse = sparse_every && i % sparse_every == 0;
        made->keys[i] = i % 1000 < 10;
        made->order[i] = num_params - 1 - i;
        made->ready[num_params - 1 - i] = (double)i / (double)num_params;
    }
    made->request = (gs_link_request){.params = made->params, .num_params = num_params, .order = made->order, .ready_seconds = made->ready, .keys = made->keys};
}

static void end_large(large_case *made) {
    free(made->params);
    free(made->order);
    free(made->ready);
    free(made->keys);
}

static void of_many_parameters_neighbours_go_together(void **state) {
    (void)state;
    large_case made;
    begin_large(&made, 10000, 2500);
    gs_link_groups groups;
    must(gs_link_groups_make(&groups, &made.request));
    assert_in_range(groups.request.num_params, 100, GS_LINK_MOST_GROUPS);
    gs_link_cost cost = {0.0005, 1e-9};
    gs_bucket_plan coarse, whole;
    must(gs_link_plan_best(&coarse, &groups.request, &cost));
    must(gs_link_groups_expand(&whole, &groups, &coarse));
    must(gs_bucket_plan_check(&whole, made.params, made.request.num_params));
    double of_groups = 0, of_params;
    for (size_t b = 0; b < coarse.num_buckets; b++) {
        double ready = 0;
        for (size_t i = 0; i < coarse.buckets[b].num_params; i++)
            ready = fmax(ready, groups.request.ready_seconds[coarse.params[coarse.buckets[b].first + i]]);
        of_groups = fmax(of_groups, ready) + cost.start_seconds + cost.byte_seconds * (double)coarse.buckets[b].bytes;
    }
    must(gs_link_plan_forecast(&of_params, &whole, &made.request, &cost, 1));
    if (!is_near(of_params, of_groups, (gs_near){.relative = 1e-9})) fail_msg("%.12g of groups, %.12g of their parameters", of_groups, of_params);
    gs_bucket_plan_release(&coarse);
    gs_bucket_plan_release(&whole);
    gs_link_groups_release(&groups);
    end_large(&made);
}

static void plans_of_many_parameters_are_as_good(void **state) {
    (void)state;
    static const double starts[] = {0.0002, 0.02};
    for (size_t s = 0; s < 2; s++) {
        large_case made;
        begin_large(&made, 10000, 0);
        made.request.keys = NULL;
        gs_link_model model = model_of((gs_link_cost){starts[s], 1e-9});
        gs_bucket_plan plan;
        must(gs_link_plan_make(&plan, &made.request, &model));
        must(gs_bucket_plan_check(&plan, made.params, made.request.num_params));
        double ours, theirs;
        must(gs_link_plan_forecast(&ours, &plan, &made.request, &model.cost, 1));
        gs_bucket_plan_release(&plan);
        must(gs_link_plan_best(&plan, &made.request, &model.cost));
        must(gs_link_plan_forecast(&theirs, &plan, &made.request, &model.cost, 1));
        double share = ours / theirs;
        if (!(share <= 1.05)) fail_msg("start %g s: %.4f of the best that is cut anywhere", starts[s], share);
        gs_bucket_plan_release(&plan);
        end_large(&made);
    }
}

// Each is alone: nothing goes together, and the caps remain.
static void too_many_that_are_alone_have_the_caps(void **state) {
    (void)state;
    large_case made;
    begin_large(&made, 3000, 1);
    gs_link_model model = model_of((gs_link_cost){0.001, 1e-9});
    gs_bucket_plan plan;
    must(gs_link_plan_make(&plan, &made.request, &model));
    must(gs_bucket_plan_check(&plan, made.params, made.request.num_params));
    assert_int_equal(plan.num_buckets, 3000);
    gs_bucket_plan_release(&plan);
    end_large(&made);
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    static link_case made;
    make_gpt2(&made, 1);
    gs_bucket_plan plan;
    gs_link_model model = {0};
    gs_status status = gs_link_plan_make(&plan, &made.request, &model);
    assert_string_equal(status.message, "link: nothing is known of it");
    model = model_of((gs_link_cost){0.001, 8e-9});
    made.order[3] = made.order[4];
    status = gs_link_plan_make(&plan, &made.request, &model);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "order[4]"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_plan_is_the_best_of_all),
        cmocka_unit_test(no_plan_is_a_hundredth_slower_than_caps_of_25_mib),
        cmocka_unit_test(plans_of_a_gbit_link_are_near_the_bound),
        cmocka_unit_test(types_keys_and_sparse_gradients_share_no_bucket),
        cmocka_unit_test(dear_starts_make_fewer_buckets),
        cmocka_unit_test(what_compression_leaves_out_does_not_travel),
        cmocka_unit_test(no_bucket_is_wider_than_the_widest_of_the_caps),
        cmocka_unit_test(of_many_parameters_neighbours_go_together),
        cmocka_unit_test(plans_of_many_parameters_are_as_good),
        cmocka_unit_test(too_many_that_are_alone_have_the_caps),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
