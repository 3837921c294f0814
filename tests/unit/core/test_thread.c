#include "core/thread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct counter {
    atomic_int turns;
    gs_queue *queue;
} counter;

static void count_until_stopped(void *ctx, const atomic_bool *stopping) {
    counter *c = ctx;
    while (!atomic_load(stopping)) atomic_fetch_add(&c->turns, 1);
}

static void stop_ends_a_running_thread(void **state) {
    (void)state;
    counter c = {0};
    gs_thread *thread = NULL;
    assert_int_equal(gs_thread_start(&thread, "counter", count_until_stopped, &c).code, GS_OK);
    while (atomic_load(&c.turns) == 0) continue;
    gs_thread_stop(thread);
    int turns = atomic_load(&c.turns);
    assert_int_equal(atomic_load(&c.turns), turns);
    gs_thread_stop(NULL);
}

static void push_numbers(void *ctx, const atomic_bool *stopping) {
    (void)stopping;
    counter *c = ctx;
    for (intptr_t i = 1; i <= 1000; i++) {
        if (!gs_queue_push(c->queue, (void *)i, gs_deadline_in_ms(10000))) return;
    }
    gs_queue_close(c->queue);
}

static void a_small_queue_carries_everything_in_order(void **state) {
    (void)state;
    counter c = {.queue = gs_queue_create(3)};
    gs_thread *thread = NULL;
    assert_int_equal(gs_thread_start(&thread, "pusher", push_numbers, &c).code, GS_OK);
    void *item;
    intptr_t expected = 1;
    while (gs_queue_pop(c.queue, &item, gs_deadline_in_ms(10000))) {
        assert_int_equal((intptr_t)item, expected++);
    }
    assert_int_equal(expected, 1001);
    gs_thread_stop(thread);
    gs_queue_destroy(c.queue);
}

static void a_full_queue_refuses_at_the_deadline(void **state) {
    (void)state;
    gs_queue *queue = gs_queue_create(1);
    int a = 0;
    void *item = NULL;
    assert_false(gs_queue_pop(queue, &item, gs_deadline_in_ms(1)));
    assert_true(gs_queue_push(queue, &a, gs_deadline_in_ms(1)));
    assert_false(gs_queue_push(queue, &a, gs_deadline_in_ms(1)));
    gs_queue_close(queue);
    assert_true(gs_queue_pop(queue, &item, gs_deadline_in_ms(1)));
    assert_ptr_equal(item, &a);
    assert_false(gs_queue_pop(queue, &item, gs_deadline_in_ms(10000)));
    assert_false(gs_queue_push(queue, &a, gs_deadline_in_ms(10000)));
    gs_queue_destroy(queue);
}

static void at_least_one_core_is_usable(void **state) {
    (void)state;
    assert_true(gs_usable_cores() >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_ends_a_running_thread),
        cmocka_unit_test(a_small_queue_carries_everything_in_order),
        cmocka_unit_test(a_full_queue_refuses_at_the_deadline),
        cmocka_unit_test(at_least_one_core_is_usable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
