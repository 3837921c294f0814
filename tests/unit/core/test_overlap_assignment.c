#include "core/overlap_assignment.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "tests/support/asserts.h"

#define MOST_PARAMS 40
#define MOST_BUCKETS 8
#define MOST_RANKS 7

// Buckets of parameters 0, 1, … in a row.
typedef struct list {
    size_t counts[MOST_PARAMS], params[MOST_PARAMS];
    gs_plan_bucket buckets[MOST_BUCKETS];
    gs_bucket_plan plan;
} list;

static void add_bucket(list *made, const size_t *counts, size_t num_params) {
    gs_bucket_plan *plan = &made->plan;
    plan->buckets = made->buckets;
    plan->params = made->params;
    made->buckets[plan->num_buckets++] =
        (gs_plan_bucket){.first = plan->num_params, .num_params = num_params};
    for (size_t i = 0; i < num_params; i++, plan->num_params++) {
        made->counts[plan->num_params] = counts[i];
        made->params[plan->num_params] = plan->num_params;
    }
}

static gs_overlap_assignment assign(const list *made, int world_size, bool split) {
    gs_overlap_assignment runs;
    assert_ok(gs_overlap_assign(&runs, &made->plan, made->counts, world_size, split));
    return runs;
}

static void assert_run(const gs_overlap_run *run, size_t bucket, size_t first, size_t num_params,
                       int rank, size_t rank_first) {
    assert_int_equal(run->bucket, bucket);
    assert_int_equal(run->first, first);
    assert_int_equal(run->num_params, num_params);
    assert_int_equal(run->rank, rank);
    assert_int_equal(run->rank_first, rank_first);
}

static void whole_buckets_go_round(void **state) {
    (void)state;
    list made = {0};
    for (int b = 0; b < 3; b++) add_bucket(&made, (const size_t[]){4, 5}, 2);
    gs_overlap_assignment runs = assign(&made, 2, false);
    assert_int_equal(runs.num_runs, 3);
    assert_run(&runs.runs[0], 0, 0, 2, 0, 0);
    assert_run(&runs.runs[1], 1, 0, 2, 1, 0);
    assert_run(&runs.runs[2], 2, 0, 2, 0, 2);
    gs_overlap_assignment_release(&runs);
}

static void a_run_ends_before_it_reaches_a_ranks_share(void **state) {
    (void)state;
    list made = {0};
    add_bucket(&made, (const size_t[]){10, 10}, 2);
    add_bucket(&made, (const size_t[]){5, 5, 5, 5}, 4);
    gs_overlap_assignment runs = assign(&made, 2, true);
    assert_int_equal(runs.num_runs, 4);
    assert_run(&runs.runs[0], 0, 0, 1, 0, 0);
    assert_run(&runs.runs[1], 0, 1, 1, 1, 0);
    assert_run(&runs.runs[2], 1, 0, 3, 0, 1);
    assert_run(&runs.runs[3], 1, 3, 1, 1, 1);
    gs_overlap_assignment_release(&runs);
}

static void small_buckets_are_dealt_first(void **state) {
    (void)state;
    list made = {0};
    add_bucket(&made, (const size_t[]){100}, 1);
    add_bucket(&made, (const size_t[]){10, 20, 30}, 3);
    gs_overlap_assignment runs = assign(&made, 2, true);
    assert_int_equal(runs.num_runs, 2);
    assert_run(&runs.runs[0], 0, 0, 1, 1, 0);
    assert_run(&runs.runs[1], 1, 0, 3, 0, 0);
    gs_overlap_assignment_release(&runs);
}

// The original stops with a failed assertion here.
static void more_runs_than_ranks_go_to_the_least_loaded_again(void **state) {
    (void)state;
    list made = {0};
    add_bucket(&made, (const size_t[]){7, 7, 6}, 3);
    gs_overlap_assignment runs = assign(&made, 2, true);
    assert_int_equal(runs.num_runs, 3);
    assert_run(&runs.runs[0], 0, 0, 1, 0, 0);
    assert_run(&runs.runs[1], 0, 1, 1, 1, 0);
    assert_run(&runs.runs[2], 0, 2, 1, 0, 1);
    gs_overlap_assignment_release(&runs);
}

// Sizes as they come: a rank's lists have no gaps, runs cover what there is, and no run with
// several members reaches the threshold.
static void assert_valid(const gs_overlap_assignment *runs, const list *made, int world_size) {
    size_t next[MOST_RANKS] = {0}, total = 0, num_params = 0;
    uint8_t seen[MOST_RANKS][MOST_PARAMS] = {{0}};
    for (size_t p = 0; p < made->plan.num_params; p++) total += made->counts[p];
    for (size_t i = 0; i < runs->num_runs; i++) {
        const gs_overlap_run *run = &runs->runs[i];
        bool begins = i == 0 || run->bucket != run[-1].bucket;
        assert_in_range(run->rank, 0, world_size - 1);
        assert_int_equal(run->first, begins ? 0 : run[-1].first + run[-1].num_params);
        assert_true(run->num_params > 0);
        size_t elements = 0;
        for (size_t m = 0; m < run->num_params; m++) {
            elements += made->counts[made->buckets[run->bucket].first + run->first + m];
            assert_int_equal(seen[run->rank][run->rank_first + m]++, 0);
        }
        if (run->num_params > 1) assert_true(elements * (size_t)world_size < total);
        next[run->rank] += run->num_params;
        num_params += run->num_params;
    }
    assert_int_equal(num_params, made->plan.num_params);
    for (int r = 0; r < world_size; r++) {
        for (size_t i = 0; i < next[r]; i++) assert_int_equal(seen[r][i], 1);
    }
}

static void every_parameter_has_one_rank_whatever_the_sizes(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        list made = {0};
        uint64_t at = 0;
        const gs_random_key key = {.seed = seed};
        int world_size = 1 + (int)(gs_random_u64(key, at++) % MOST_RANKS);
        for (size_t b = gs_random_u64(key, at++) % (MOST_BUCKETS + 1); b; b--) {
            size_t counts[5], num_params = 1 + gs_random_u64(key, at++) % 5;
            for (size_t i = 0; i < num_params; i++) counts[i] = 1 + gs_random_u64(key, at++) % 50;
            add_bucket(&made, counts, num_params);
        }
        gs_overlap_assignment runs = assign(&made, world_size, true);
        assert_valid(&runs, &made, world_size);
        gs_overlap_assignment_release(&runs);
    }
}

static void sizes_of_2_to_the_62_are_compared_right(void **state) {
    (void)state;
    const size_t huge = (size_t)1 << 62;
    list made = {0};
    add_bucket(&made, (const size_t[]){huge, huge - 1, 1}, 3);
    gs_overlap_assignment runs = assign(&made, 3, true);
    assert_int_equal(runs.num_runs, 3);
    assert_run(&runs.runs[2], 0, 2, 1, 2, 0);
    gs_overlap_assignment_release(&runs);
}

static void what_cannot_be_assigned_is_refused(void **state) {
    (void)state;
    gs_overlap_assignment runs;
    list made = {0};
    add_bucket(&made, (const size_t[]){SIZE_MAX, 1}, 2);
    gs_status status = gs_overlap_assign(&runs, &made.plan, made.counts, 2, true);
    assert_string_equal(status.message, "overlap: more elements than can be counted");
    status = gs_overlap_assign(&runs, &made.plan, made.counts, 0, true);
    assert_string_equal(status.message, "overlap: 0 ranks");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_buckets_go_round),
        cmocka_unit_test(a_run_ends_before_it_reaches_a_ranks_share),
        cmocka_unit_test(small_buckets_are_dealt_first),
        cmocka_unit_test(more_runs_than_ranks_go_to_the_least_loaded_again),
        cmocka_unit_test(every_parameter_has_one_rank_whatever_the_sizes),
        cmocka_unit_test(sizes_of_2_to_the_62_are_compared_right),
        cmocka_unit_test(what_cannot_be_assigned_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
