// Statistics of a batch that lies on several ranks, between real processes.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "core/random.h"
#include "gradsync/step/batch_sync.h"
#include "tests/support/asserts.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"

#define MAX_WORLD 4
#define CHANNELS 7
#define MAX_ROWS 40
// A mean that is large beside the spread: E[x²] − E[x]² would lose every digit of the variance.
#define FAR 3e8

typedef struct rank_side {
    gs_device *device;
    gs_comm *comm;
    gs_batch_sync *sync;
} rank_side;

static gs_status open_side(rank_side *side, const gs_rank_env *env, double timeout_seconds) {
    GS_TRY(gs_device_open(&side->device, "cpu", &(gs_device_options){0}));
    GS_TRY(gs_comm_create(&side->comm,
                          &(gs_comm_options){.backend = "shm",
                                             .rank = env->rank,
                                             .world_size = env->world_size,
                                             .generation = 1,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = env->exchange,
                                             .device = side->device},
                          soon()));
    return gs_batch_sync_create(&side->sync, side->comm, CHANNELS, timeout_seconds);
}

static void close_side(rank_side *side) {
    gs_batch_sync_destroy(side->sync);
    gs_comm_destroy(side->comm);
    gs_device_close(side->device);
}

// Rank 1 has no rows, the others all different numbers.
static int rows_of(int rank) {
    return rank == 1 ? 0 : 3 + 11 * rank;
}

static double value_at(int rank, int row, int channel) {
    gs_random_key key = {.seed = 17, .stream = (uint64_t)(rank * MAX_ROWS + row)};
    return FAR + (double)(gs_random_u64(key, (uint64_t)channel) % 1000) / 1000.0 + channel;
}

// Over the rows of ranks [first, end), in two passes.
static double measure(double *mean, double *m2, int channel, int first, int end) {
    double rows = 0, sum = 0, squares = 0;
    for (int rank = first; rank < end; rank++)
        for (int row = 0; row < rows_of(rank); row++, rows++)
            sum += value_at(rank, row, channel) - FAR;
    double centre = rows > 0 ? sum / rows : 0;
    for (int rank = first; rank < end; rank++) {
        for (int row = 0; row < rows_of(rank); row++) {
            double distance = value_at(rank, row, channel) - FAR - centre;
            squares += distance * distance;
        }
    }
    *mean = rows > 0 ? centre + FAR : 0;
    *m2 = squares;
    return rows;
}

static gs_status body_combine(const gs_rank_env *env) {
    rank_side side;
    double rows = 0, mean[CHANNELS], m2[CHANNELS], sums[2 * CHANNELS];
    uint64_t digest, all[MAX_WORLD];
    GS_TRY(open_side(&side, env, 20));
    const gs_model_sync *sync = gs_batch_sync_at(side.sync, 3);
    for (int c = 0; c < CHANNELS; c++)
        rows = measure(&mean[c], &m2[c], c, env->rank, env->rank + 1);
    for (int i = 0; i < 2 * CHANNELS; i++) sums[i] = env->rank + i;
    GS_TRY(sync->combine(sync->ctx, &rows, mean, m2, CHANNELS));
    GS_TRY(sync->sum(sync->ctx, sums, 2 * CHANNELS));
    for (int c = 0; c < CHANNELS; c++) {
        double wanted_mean, wanted_m2;
        double wanted_rows = measure(&wanted_mean, &wanted_m2, c, 0, env->world_size);
        if (rows != wanted_rows ||
            !is_near(mean[c], wanted_mean, (gs_near){.absolute = 1e-14 * FAR}) ||
            !is_near(m2[c], wanted_m2, (gs_near){.relative = 1e-6}))
            return gs_error(GS_INTERNAL, "channel %d: %g rows, mean %.17g (%.17g), m2 %g (%g)", c,
                            rows, mean[c], wanted_mean, m2[c], wanted_m2);
    }
    int ranks = env->world_size;
    for (int i = 0; i < 2 * CHANNELS; i++)
        if (sums[i] != ranks * i + ranks * (ranks - 1) / 2.0)
            return gs_error(GS_INTERNAL, "sum %d is %g", i, sums[i]);
    digest = gs_hash64(mean, sizeof mean, 0) ^ gs_hash64(m2, sizeof m2, 1);
    GS_TRY(gs_rank_exchange(env->exchange, "digests", NULL, 0, &digest, sizeof digest, all, soon()));
    for (int i = 0; i < ranks; i++)
        if (all[i] != digest) return gs_error(GS_INTERNAL, "rank %d has other bits", i);
    close_side(&side);
    return gs_ok();
}

static void parts_are_put_together_without_losing_the_variance(void **state) {
    (void)state;
    for (int world = 2; world <= MAX_WORLD; world++)
        assert_ok(gs_ranks_run("combine", world, "", soon()));
}

static gs_status body_late(const gs_rank_env *env) {
    rank_side side;
    double rows = 2, mean[CHANNELS] = {0}, m2[CHANNELS] = {0};
    int64_t mine = 0, all[MAX_WORLD];
    GS_TRY(open_side(&side, env, 0.1));
    const gs_model_sync *sync = gs_batch_sync_at(side.sync, 5);
    gs_status status = gs_ok();
    if (env->rank != 1) status = sync->combine(sync->ctx, &rows, mean, m2, CHANNELS);
    GS_TRY(gs_rank_exchange(env->exchange, "late", NULL, 0, &mine, sizeof mine, all, soon()));
    close_side(&side);
    return env->rank == 1 ? gs_error(GS_ABORTED, "rank 1 stayed away, step 5") : status;
}

// A rank whose model has another layer.
static gs_status body_other_width(const gs_rank_env *env) {
    rank_side side;
    double rows = 2, mean[CHANNELS] = {0}, m2[CHANNELS] = {0};
    GS_TRY(open_side(&side, env, 20));
    const gs_model_sync *sync = gs_batch_sync_at(side.sync, 5);
    gs_status status =
        sync->combine(sync->ctx, &rows, mean, m2, env->rank == 1 ? CHANNELS - 1 : CHANNELS);
    close_side(&side);
    return status;
}

static gs_status body_too_wide(const gs_rank_env *env) {
    rank_side side;
    double rows = 2, wide[CHANNELS + 1] = {0};
    GS_TRY(open_side(&side, env, 20));
    const gs_model_sync *sync = gs_batch_sync_at(side.sync, 5);
    gs_status status = sync->combine(sync->ctx, &rows, wide, wide, CHANNELS + 1);
    close_side(&side);
    return status;
}

static void check_told(const char *body, const char *const words[2]) {
    gs_ranks *ranks;
    gs_status statuses[3];
    assert_ok(gs_ranks_start(&ranks, body, 3, "", NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, soon()));
    gs_ranks_destroy(ranks);
    for (int rank = 0; rank < 3; rank++) {
        for (int i = 0; i < 2; i++)
            if (!statuses[rank].code || !strstr(statuses[rank].message, words[i]))
                fail_msg("%s, rank %d: \"%s\" does not say \"%s\"", body, rank,
                         statuses[rank].message, words[i]);
    }
}

static void rank_that_stays_away_or_differs_is_named(void **state) {
    (void)state;
    check_told("late", (const char *const[]){"rank 1", "step 5"});
    check_told("other_width", (const char *const[]){"rank 1", "step 5"});
    check_told("too_wide", (const char *const[]){"8 values, made for 7", "step 5"});
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"combine", body_combine},
                                          {"late", body_late},
                                          {"other_width", body_other_width},
                                          {"too_wide", body_too_wide},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_put_together_without_losing_the_variance),
        cmocka_unit_test(rank_that_stays_away_or_differs_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
