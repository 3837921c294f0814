// Random models, plans, ready orders, worlds, types and options against a serial sum; after every
// step all ranks hold the same bits.
//
//   PROPERTY_SEEDS=200   seeds for each world, instead of a handful
//   PROPERTY_FIRST=17    the first of them
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/device_memory.h"
#include "tests/support/reduce_runner.h"

#define NUM_SEEDS 8
#define SECONDS_PER_SEED 20.0

static uint64_t number_from_environment(const char *name, uint64_t fallback) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : fallback;
}

// arg: "first count"
static gs_status body_cases(const gs_rank_env *env) {
    uint64_t first, count;
    if (sscanf(env->arg, "%" SCNu64 " %" SCNu64, &first, &count) != 2)
        return gs_error(GS_INVALID_ARGUMENT, "arguments: %s", env->arg);
    uint64_t all = 0;
    for (uint64_t seed = first; seed < first + count; seed++) {
        reduce_case model;
        reduce_case_init(&model, seed, env->world_size);
        uint64_t digest;
        gs_status status =
            reduce_runner_run(&model, env, &digest, gs_deadline_in_seconds(SECONDS_PER_SEED));
        reduce_case_release(&model);
        if (status.code) return status;
        all = all * 31 + digest;
    }
    char note[32];
    snprintf(note, sizeof note, "%016" PRIx64, all);
    gs_rank_note(env, note);
    return gs_ok();
}

static void run_world(int world_size) {
    uint64_t count = number_from_environment("PROPERTY_SEEDS", NUM_SEEDS);
    uint64_t first = number_from_environment("PROPERTY_FIRST", 1000 * (uint64_t)world_size);
    printf("world %d, seeds %" PRIu64 " to %" PRIu64 "\n", world_size, first, first + count - 1);
    char arg[64];
    snprintf(arg, sizeof arg, "%" PRIu64 " %" PRIu64, first, count);
    gs_ranks *ranks;
    gs_status statuses[REDUCE_CASE_MAX_WORLD];
    gs_status status = gs_ranks_start(&ranks, "cases", world_size, arg, NULL);
    assert_string_equal(status.message, "");
    status = gs_ranks_wait(ranks, statuses,
                           gs_deadline_in_seconds(SECONDS_PER_SEED * (double)(count + 1)));
    assert_string_equal(status.message, "");
    for (int r = 0; r < world_size; r++) assert_string_equal(statuses[r].message, "");
    for (int r = 1; r < world_size; r++)
        assert_string_equal(gs_ranks_note(ranks, r), gs_ranks_note(ranks, 0));
    gs_ranks_destroy(ranks);
}

static void run_worlds(int first, int last) {
    int most = (int)number_from_environment("PROPERTY_MOST_RANKS", REDUCE_CASE_MAX_WORLD);
    if (first > most) skip();
    for (int world_size = first; world_size <= last && world_size <= most; world_size++)
        run_world(world_size);
}

static void world_of_one_reduces_like_the_serial_sum(void **state) {
    (void)state;
    run_world(1);
}

static void two_to_four_ranks_reduce_like_the_serial_sum_with_equal_bits(void **state) {
    (void)state;
    run_worlds(2, 4);
}

static void five_to_eight_ranks_reduce_like_the_serial_sum_with_equal_bits(void **state) {
    (void)state;
    run_worlds(5, 8);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"cases", body_cases}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    if (!test_device_is_there()) return TEST_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(world_of_one_reduces_like_the_serial_sum),
        cmocka_unit_test(two_to_four_ranks_reduce_like_the_serial_sum_with_equal_bits),
        cmocka_unit_test(five_to_eight_ranks_reduce_like_the_serial_sum_with_equal_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
