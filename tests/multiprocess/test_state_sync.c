// Whoever comes with less gets the whole state from the lowest rank that has the most: whoever that
// is, in whatever pieces it lies; and nothing moves where all have the same, or where holders of
// one step differ.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/step/state_sync.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/soon.h"

#define WORLD 3
// Larger than a piece, smaller than one, of another type, empty.
enum { LARGE = 1060000, SMALL = 77, COUNTS = 5, OWN = 70000 };

typedef struct job_state {
    float large[LARGE], small[SMALL];
    int64_t counts[COUNTS];
    float own[OWN];
    int64_t position[2];
} job_state;

static job_state here;  // too large for a stack

static void fill(uint64_t seed) {
    for (size_t i = 0; i < LARGE; i++) here.large[i] = (float)((seed * 31 + i) % 1009);
    for (size_t i = 0; i < SMALL; i++) here.small[i] = (float)(seed + i);
    for (size_t i = 0; i < COUNTS; i++) here.counts[i] = (int64_t)(seed * 100 + i);
    here.position[0] = (int64_t)seed;
    here.position[1] = -(int64_t)seed;
}

static void fill_own(int rank) {
    for (size_t i = 0; i < OWN; i++) here.own[i] = (float)((size_t)rank * 7 + i % 13);
}

static bool holds(uint64_t seed) {
    static job_state before;
    before = here;
    fill(seed);
    bool same = memcmp(before.large, here.large, sizeof here.large) == 0 &&
                memcmp(before.small, here.small, sizeof here.small) == 0 &&
                memcmp(before.counts, here.counts, sizeof here.counts) == 0 &&
                memcmp(before.position, here.position, sizeof here.position) == 0;
    here = before;
    return same;
}

static bool holds_own(int rank) {
    for (size_t i = 0; i < OWN; i++) {
        if (here.own[i] != (float)((size_t)rank * 7 + i % 13)) return false;
    }
    return true;
}

static gs_status sync_state(gs_state_sync_result *result, comm_rank *self, bool has_state,
                            int64_t step, size_t num_tensors) {
    const gs_tensor_view tensors[] = {{here.large, LARGE, GS_FP32},
                                      {here.small, SMALL, GS_FP32},
                                      {NULL, 0, GS_FP32},
                                      {here.counts, COUNTS, GS_I64}};
    const gs_tensor_view own[] = {{here.own, OWN, GS_FP32}};
    return gs_state_sync(result,
                         &(gs_state_sync_options){.tensors = tensors,
                                                  .num_tensors = num_tensors,
                                                  .own = own,
                                                  .num_own = 1,
                                                  .position = here.position,
                                                  .position_bytes = sizeof here.position,
                                                  .has_state = has_state,
                                                  .step = step},
                         self->comm, soon());
}

// What each rank comes with, and what is to come of it: -1 has nothing but initial values.
typedef struct sync_case {
    int64_t steps[WORLD];
    uint64_t seeds[WORLD];  // of the values
    int source;
    const char *error;  // NULL: none
} sync_case;

static const sync_case cases[] = {
    {{-1, -1, -1}, {1, 1, 1}, 0, NULL},  // a first start
    {{-1, -1, -1}, {1, 2, 3}, 0, NULL},  // of models that were drawn differently
    {{8, 8, 8}, {8, 8, 8}, 0, NULL},     // a restart
    {{-1, 8, 8}, {1, 8, 8}, 1, NULL},    // rank 0 is new
    {{8, 8, -1}, {8, 8, 1}, 0, NULL},    // the last one is
    {{-1, -1, 0}, {1, 2, 3}, 2, NULL},   // before its first step
    {{7, 8, 8}, {7, 8, 8}, 1, NULL},     // one has not applied the last step
    {{7, 8, -1}, {7, 8, 1}, 1, NULL},
    {{7, 6, 9}, {7, 6, 9}, 2, NULL},
    {{8, 8, 8}, {8, 5, 8}, 0, "state of step 8: another one on rank 1 than on rank 0"},
    {{-1, 8, 8}, {1, 8, 5}, 1, "state of step 8: another one on rank 2 than on rank 1"},
    {{8, 8, 8}, {8, 5, 5}, 0, "state of step 8: another one on ranks 1, 2 than on rank 0"},
};
enum { NUM_CASES = sizeof cases / sizeof cases[0] };

static gs_status check_case(comm_rank *self, int number) {
    const sync_case *one = &cases[number];
    int rank = self->rank, num_receivers = 0;
    gs_state_sync_result result;
    fill(one->seeds[rank]);
    fill_own(rank);
    gs_status status = sync_state(&result, self, one->steps[rank] >= 0, one->steps[rank], 4);
    bool receives = !one->error && one->seeds[rank] != one->seeds[one->source];
    for (int r = 0; r < WORLD; r++) num_receivers += one->seeds[r] != one->seeds[one->source];
    if (one->error &&
        (status.code != GS_FAILED_PRECONDITION || strcmp(status.message, one->error) != 0))
        return gs_error(GS_INTERNAL, "case %d: \"%.150s\"", number, status.message);
    if (!one->error) GS_TRY(gs_status_prefix(status, "case %d", number));
    if (result.source != one->source || result.received != receives)
        return gs_error(GS_INTERNAL, "case %d, rank %d: source %d, received %d", number, rank,
                        result.source, result.received);
    if (!one->error &&
        (result.num_receivers != num_receivers || (result.bytes > 0) != (num_receivers > 0)))
        return gs_error(GS_INTERNAL, "case %d: %d receivers of %zu bytes", number,
                        result.num_receivers, result.bytes);
    if (!holds(one->error ? one->seeds[rank] : one->seeds[one->source]))
        return gs_error(GS_DATA_LOSS, "case %d, rank %d: another state", number, rank);
    if (!holds_own(receives ? one->source : rank))
        return gs_error(GS_DATA_LOSS, "case %d, rank %d: another rank's own values", number, rank);
    return gs_ok();
}

static gs_status body_cases(const gs_rank_env *env) {
    comm_rank self;
    gs_status status = comm_rank_open(&self, env, 0, NULL);
    for (int i = 0; i < NUM_CASES && !status.code; i++) status = check_case(&self, i);
    comm_rank_close(&self);
    return status;
}

static gs_status body_alone(const gs_rank_env *env) {
    comm_rank self;
    gs_state_sync_result result;
    gs_status status = comm_rank_open(&self, env, 0, NULL);
    fill(5);
    for (int has_state = 0; has_state < 2 && !status.code; has_state++) {
        status = sync_state(&result, &self, has_state, 7, 4);
        bool right = result.has_state == has_state && result.step == (has_state ? 7 : 0) &&
                     !result.received && !result.num_receivers && holds(5);
        if (!status.code && !right)
            status = gs_error(GS_INTERNAL, "has_state %d: step %lld, received %d", has_state,
                              (long long)result.step, result.received);
    }
    comm_rank_close(&self);
    return status;
}

// Of three ranks one has a shorter list: nothing moves, and it is named.
static gs_status body_layouts(const gs_rank_env *env) {
    comm_rank self;
    gs_state_sync_result result;
    gs_status status = comm_rank_open(&self, env, 0, NULL);
    fill((uint64_t)env->rank);
    if (!status.code) {
        status = sync_state(&result, &self, true, env->rank, env->rank == 2 ? 3 : 4);
        bool named =
            strstr(status.message, "rank 2 against rank 0: another list of tensors") != NULL;
        bool kept = holds((uint64_t)env->rank) && !result.received;
        status = status.code == GS_FAILED_PRECONDITION && named && kept
                     ? gs_ok()
                     : gs_error(GS_INTERNAL, "got \"%.150s\"", status.message);
    }
    comm_rank_close(&self);
    return status;
}

// A digest that another one follows, as memory does that loses bits on its way.
static gs_digest lose_bits(void *ctx) {
    int *calls = ctx;
    return (gs_digest){.high = (uint64_t)++ * calls, .low = 1};
}

static gs_status body_losses(const gs_rank_env *env) {
    comm_rank self;
    gs_state_sync_result result;
    int calls = env->rank == 0 ? 0 : 9;  // rank 0 has what rank 1 has, but it comes out as another
    GS_TRY(comm_rank_open(&self, env, 0, NULL));
    const gs_tensor_view tensors[] = {{here.small, SMALL, GS_FP32}};
    gs_status status = gs_state_sync(&result,
                                     &(gs_state_sync_options){.tensors = tensors,
                                                              .num_tensors = 1,
                                                              .has_state = env->rank > 0,
                                                              .step = 4,
                                                              .digest = lose_bits,
                                                              .digest_ctx = &calls},
                                     self.comm, soon());
    bool named = strstr(status.message, "state from rank 1: rank 0 did not receive what was sent");
    if (status.code != GS_DATA_LOSS || !named || result.received != (env->rank == 0))
        status = gs_error(GS_INTERNAL, "got \"%.150s\"", status.message);
    else
        status = gs_ok();
    comm_rank_close(&self);
    return status;
}

static void the_most_advanced_rank_gives_its_state_to_all(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("cases", WORLD, "", gs_deadline_in_seconds(60)));
}

static void a_world_of_one_keeps_what_it_has(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("alone", 1, "", gs_deadline_in_seconds(60)));
}

static void ranks_with_other_tensors_are_named(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("layouts", WORLD, "", gs_deadline_in_seconds(60)));
}

static void what_does_not_arrive_whole_is_named(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("losses", WORLD, "", gs_deadline_in_seconds(60)));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"cases", body_cases},   {"alone", body_alone}, {"layouts", body_layouts},
        {"losses", body_losses}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_most_advanced_rank_gives_its_state_to_all),
        cmocka_unit_test(a_world_of_one_keeps_what_it_has),
        cmocka_unit_test(ranks_with_other_tensors_are_named),
        cmocka_unit_test(what_does_not_arrive_whole_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
