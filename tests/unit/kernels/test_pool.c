#include "tests/unit/kernels/kernel_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "kernels/cpu/pool.h"

#define MOST_ITEMS 1000

typedef struct counted {
    atomic_int times[MOST_ITEMS];
    gs_cpu_pool *nested;
} counted;

static void count_item(void *ctx, size_t item) {
    counted *counts = ctx;
    atomic_fetch_add(&counts->times[item], 1);
}

static void assert_each_once(gs_cpu_pool *pool, size_t num_items) {
    counted *counts = calloc(1, sizeof *counts);
    assert_non_null(counts);
    gs_cpu_pool_run(pool, num_items, count_item, counts);
    for (size_t i = 0; i < MOST_ITEMS; i++) {
        assert_int_equal(atomic_load(&counts->times[i]), i < num_items ? 1 : 0);
    }
    free(counts);
}

static void each_item_runs_once(void **state) {
    (void)state;
    for (int num_threads = 1; num_threads <= 5; num_threads++) {
        gs_cpu_pool *pool;
        assert_int_equal(gs_cpu_pool_create(&pool, num_threads).code, GS_OK);
        for (size_t num_items = 0; num_items <= 40; num_items++) assert_each_once(pool, num_items);
        for (int round = 0; round < 200; round++) assert_each_once(pool, 3);
        assert_each_once(pool, MOST_ITEMS);
        gs_cpu_pool_destroy(pool);
    }
}

static void run_nested(void *ctx, size_t item) {
    counted *counts = ctx;
    (void)item;
    gs_cpu_pool_run(counts->nested, 10, count_item, counts);
}

static void nested_job_runs_inline(void **state) {
    (void)state;
    counted *counts = calloc(1, sizeof *counts);
    assert_non_null(counts);
    assert_int_equal(gs_cpu_pool_create(&counts->nested, 3).code, GS_OK);
    gs_cpu_pool_run(counts->nested, 20, run_nested, counts);
    for (size_t i = 0; i < 10; i++) assert_int_equal(atomic_load(&counts->times[i]), 20);
    gs_cpu_pool_destroy(counts->nested);
    free(counts);
}

static void *run_many_jobs(void *ctx) {
    counted *counts = ctx;
    for (int round = 0; round < 300; round++) {
        gs_cpu_pool_run(counts->nested, 7, count_item, counts);
    }
    return NULL;
}

static void two_threads_may_share_a_pool(void **state) {
    (void)state;
    counted *counts = calloc(1, sizeof *counts);
    assert_non_null(counts);
    assert_int_equal(gs_cpu_pool_create(&counts->nested, 2).code, GS_OK);
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, run_many_jobs, counts), 0);
    run_many_jobs(counts);
    pthread_join(other, NULL);
    for (size_t i = 0; i < 7; i++) assert_int_equal(atomic_load(&counts->times[i]), 600);
    gs_cpu_pool_destroy(counts->nested);
    free(counts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_item_runs_once),
        cmocka_unit_test(nested_job_runs_inline),
        cmocka_unit_test(two_threads_may_share_a_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
