#include "gradsync/bucket/reduce_stats.h"
#include "tests/support/asserts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void busy_is_the_union_of_the_buckets_times(void **state) {
    (void)state;
    const gs_bucket_times times[] = {{.started_ns = 100, .finished_ns = 200},
                                     {.started_ns = 150, .finished_ns = 180},
                                     {.started_ns = 190, .finished_ns = 260},
                                     {.started_ns = 0, .finished_ns = 0},
                                     {.started_ns = 300, .finished_ns = 310}};
    gs_reduce_stats stats = {.num_buckets = 5, .buckets = times, .busy_ns = 99, .wait_ns = 99};
    gs_reduce_stats_sum_buckets(&stats);
    assert_int_equal(stats.busy_ns, 160 + 10);
    assert_int_equal(stats.wait_ns, 0);
}

static void wait_is_from_post_to_arrival_of_the_last_rank(void **state) {
    (void)state;
    const gs_bucket_times times[] = {{.posted_ns = 100, .all_arrived_ns = 140},
                                     {.posted_ns = 200, .all_arrived_ns = 200},
                                     {.posted_ns = 300, .all_arrived_ns = 305},
                                     {.posted_ns = 400}};
    gs_reduce_stats stats = {.num_buckets = 4, .buckets = times};
    gs_reduce_stats_sum_buckets(&stats);
    assert_int_equal(stats.wait_ns, 45);
}

static void overlap_is_the_hidden_share_of_the_busy_time(void **state) {
    (void)state;
    assert_near(gs_reduce_stats_overlap_ratio(&(gs_reduce_stats){.busy_ns = 100, .exposed_ns = 25}),
                0.75, 0);
    assert_near(
        gs_reduce_stats_overlap_ratio(&(gs_reduce_stats){.busy_ns = 100, .exposed_ns = 140}), 0, 0);
    assert_near(gs_reduce_stats_overlap_ratio(&(gs_reduce_stats){.exposed_ns = 1}), 0, 0);
}

static void the_first_launch_is_the_earliest_post(void **state) {
    (void)state;
    const gs_bucket_times times[] = {{.posted_ns = 0}, {.posted_ns = 300}, {.posted_ns = 200}};
    gs_reduce_stats stats = {.num_buckets = 3, .buckets = times, .first_launch_ns = 7};
    gs_reduce_stats_sum_buckets(&stats);
    assert_int_equal(stats.first_launch_ns, 200);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(busy_is_the_union_of_the_buckets_times),
        cmocka_unit_test(wait_is_from_post_to_arrival_of_the_last_rank),
        cmocka_unit_test(overlap_is_the_hidden_share_of_the_busy_time),
        cmocka_unit_test(the_first_launch_is_the_earliest_post),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
