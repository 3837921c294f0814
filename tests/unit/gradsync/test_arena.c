#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "gradsync/tensor/arena.h"

static void an_arena_is_zero_page_sized_and_writable_to_its_end(void **state) {
    (void)state;
    gs_arena *arena;
    assert_int_equal(gs_arena_create(&arena, 10001).code, GS_OK);
    unsigned char *data = gs_arena_data(arena);
    size_t bytes = gs_arena_bytes(arena);
    assert_true(bytes >= 10001 && bytes % 4096 == 0);
    for (size_t i = 0; i < bytes; i++) assert_int_equal(data[i], 0);
    data[bytes - 1] = 7;
    gs_arena_destroy(arena);
    gs_arena_destroy(NULL);
}

static void another_mapping_of_the_descriptor_sees_the_same_bytes(void **state) {
    (void)state;
    gs_arena *arena;
    assert_int_equal(gs_arena_create(&arena, 4096).code, GS_OK);
    int *twin = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, gs_arena_fd(arena), 0);
    assert_ptr_not_equal(twin, MAP_FAILED);
    *(int *)gs_arena_data(arena) = 42;
    assert_int_equal(*twin, 42);
    munmap(twin, 4096);
    gs_arena_destroy(arena);
}

static void nobody_can_resize_it(void **state) {
    (void)state;
    gs_arena *arena;
    assert_int_equal(gs_arena_create(&arena, 8192).code, GS_OK);
    assert_int_not_equal(ftruncate(gs_arena_fd(arena), 4096), 0);
    assert_int_not_equal(ftruncate(gs_arena_fd(arena), 16384), 0);
    gs_arena_destroy(arena);
}

static void contains_means_wholly_inside(void **state) {
    (void)state;
    gs_arena *arena;
    assert_int_equal(gs_arena_create(&arena, 4096).code, GS_OK);
    unsigned char *data = gs_arena_data(arena);
    size_t bytes = gs_arena_bytes(arena);
    assert_true(gs_arena_contains(arena, data, bytes));
    assert_true(gs_arena_contains(arena, data + bytes, 0));
    assert_false(gs_arena_contains(arena, data, bytes + 1));
    assert_false(gs_arena_contains(arena, data + 1, bytes));
    assert_false(gs_arena_contains(arena, data - 1, 1));
    assert_false(gs_arena_contains(arena, &bytes, sizeof bytes));
    assert_false(gs_arena_contains(arena, data, SIZE_MAX));
    gs_arena_destroy(arena);
}

static void more_memory_than_there_is_is_an_error_at_once(void **state) {
    (void)state;
    gs_arena *arena = NULL;
    assert_int_equal(gs_arena_create(&arena, SIZE_MAX).code, GS_INVALID_ARGUMENT);
    gs_status status = gs_arena_create(&arena, (size_t)1 << 50);
    assert_int_equal(status.code, GS_RESOURCE_EXHAUSTED);
    assert_null(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_arena_is_zero_page_sized_and_writable_to_its_end),
        cmocka_unit_test(another_mapping_of_the_descriptor_sees_the_same_bytes),
        cmocka_unit_test(nobody_can_resize_it),
        cmocka_unit_test(contains_means_wholly_inside),
        cmocka_unit_test(more_memory_than_there_is_is_an_error_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
