// Averages of parameters by a table of periods: whose turn it is, the bits of a serial simulation
// of local SGD, and a rank that dies in the middle of one.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "gradsync/step/averager.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"

#define MOST_RANKS 4
#define NUM_TENSORS 3
#define NUM_STEPS 14
#define LARGE_COUNT 5000

// What a rank trains: two tensors of fp32 around one of fp64; the last one is used in odd steps
// alone.
typedef struct model {
    float large[LARGE_COUNT], small[3];
    double wide[7];
} model;

static void view(gs_tensor_view views[NUM_TENSORS], model *self) {
    views[0] = (gs_tensor_view){self->large, LARGE_COUNT, GS_FP32};
    views[1] = (gs_tensor_view){self->wide, 7, GS_FP64};
    views[2] = (gs_tensor_view){self->small, 3, GS_FP32};
}

static void start(model *self) {
    for (int i = 0; i < LARGE_COUNT; i++) self->large[i] = (float)(i % 13) / 7;
    for (int i = 0; i < 7; i++) self->wide[i] = i / 3.0;
    for (int i = 0; i < 3; i++) self->small[i] = (float)i / 3;
}

// The update of a rank by itself: towards a place of its own.
static void update(model *self, int rank, int64_t step) {
    float rate = 1.0f / (float)(step + 2);
    for (int i = 0; i < LARGE_COUNT; i++)
        self->large[i] -= rate * (self->large[i] - (float)(rank + i % 5));
    for (int i = 0; i < 7; i++) self->wide[i] -= (self->wide[i] - rank) / 3;
    for (int i = 0; i < 3 && step % 2; i++) self->small[i] -= rate * (self->small[i] - (float)rank);
}

// Serially: the ranks [first, last) in their order, then the factor, in the type itself.
static void average(model *ranks, int first, int last, bool small) {
    float narrow = 1.0f / (float)(last - first);
    double wide = 1.0 / (last - first);
    model mean = ranks[first];
    for (int r = first + 1; r < last; r++) {
        for (int i = 0; i < LARGE_COUNT; i++) mean.large[i] += ranks[r].large[i];
        for (int i = 0; i < 7; i++) mean.wide[i] += ranks[r].wide[i];
        for (int i = 0; i < 3; i++) mean.small[i] += ranks[r].small[i];
    }
    for (int i = 0; i < LARGE_COUNT; i++) mean.large[i] *= narrow;
    for (int i = 0; i < 7; i++) mean.wide[i] *= wide;
    for (int i = 0; i < 3; i++) mean.small[i] *= narrow;
    for (int r = first; r < last; r++) {
        memcpy(ranks[r].large, mean.large, sizeof mean.large);
        memcpy(ranks[r].wide, mean.wide, sizeof mean.wide);
        if (small) memcpy(ranks[r].small, mean.small, sizeof mean.small);
    }
}

static const gs_average_level periodic[] = {{3, 0}};
static const gs_average_level hierarchical[] = {{2, 2}, {4, 3}, {8, 0}};

static gs_averager_options options_of(const char *table, gs_tensor_view *views, gs_comm *comm) {
    bool is_periodic = strcmp(table, "periodic") == 0;
    return (gs_averager_options){.levels = is_periodic ? periodic : hierarchical,
                                 .num_levels = is_periodic ? 1 : 3,
                                 .start_step = 2,
                                 .tensors = views,
                                 .num_tensors = NUM_TENSORS,
                                 .comm = comm};
}

// How many neighbours average after a step, by the rules themselves.
static int group_of(const char *table, int64_t step, int world_size) {
    if (step < 2) return 0;
    if (strcmp(table, "periodic") == 0) return (step - 2) % 3 == 0 ? world_size : 0;
    return step % 8 == 0 ? world_size : step % 4 == 0 ? 3 : step % 2 == 0 ? 2 : 0;
}

static gs_status compare(const model *got, const model *wanted, int64_t step) {
    if (memcmp(got->large, wanted->large, sizeof got->large) == 0 &&
        memcmp(got->wide, wanted->wide, sizeof got->wide) == 0 &&
        memcmp(got->small, wanted->small, sizeof got->small) == 0)
        return gs_ok();
    return gs_error(GS_DATA_LOSS, "step %d: other bits than the serial run: %.9g, not %.9g",
                    (int)step, (double)got->large[7], (double)wanted->large[7]);
}

static gs_status run_steps(const gs_rank_env *env, comm_rank *self, model *ranks, model *mine) {
    gs_tensor_view views[NUM_TENSORS];
    gs_averager *averager = NULL;
    view(views, mine);
    const gs_averager_options options = options_of(env->arg, views, self->comm);
    gs_status status = gs_averager_create(&averager, &options, soon());
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
        int group = group_of(env->arg, step, env->world_size), num_ranks = 0;
        const uint8_t used[NUM_TENSORS] = {1, 1, step % 2 != 0};
        for (int r = 0; r < env->world_size; r++) update(&ranks[r], r, step);
        update(mine, env->rank, step);
        for (int first = 0; group && first < env->world_size; first += group) {
            int last = first + group < env->world_size ? first + group : env->world_size;
            average(ranks, first, last, used[2]);
        }
        status = gs_averager_run(averager, step, used, &num_ranks, soon());
        if (!status.code && (num_ranks > 0) != (group > 0))
            status = gs_error(GS_INTERNAL, "step %d: averaged over %d ranks", (int)step, num_ranks);
        if (!status.code) status = compare(mine, &ranks[env->rank], step);
    }
    // Whatever the table says: before a save.
    average(ranks, 0, env->world_size, true);
    if (!status.code) status = gs_averager_run_all(averager, NUM_STEPS, NULL, soon());
    if (!status.code) status = compare(mine, &ranks[env->rank], NUM_STEPS);
    gs_averager_destroy(averager);
    return status;
}

static gs_status simulate(const gs_rank_env *env) {
    comm_rank self;
    model *ranks = calloc(MOST_RANKS + 1, sizeof *ranks), *mine = ranks + MOST_RANKS;
    if (!ranks) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (int r = 0; r <= MOST_RANKS; r++) start(&ranks[r]);
    gs_status status = comm_rank_open(&self, env, 0, NULL);
    if (!status.code) status = run_steps(env, &self, ranks, mine);
    comm_rank_close(&self);
    free(ranks);
    return status;
}

#ifdef GRADSYNC_FAILPOINTS
// Rank 2 dies in an average. The others, of which one may have its result and the other not, meet
// again and make it of what they brought.
static gs_status lose_rank(const gs_rank_env *env) {
    comm_rank self;
    gs_averager *averager = NULL;
    gs_comm *next = NULL;
    gs_tensor_view views[NUM_TENSORS];
    model *ranks = calloc(MOST_RANKS, sizeof *ranks), *mine = &ranks[3];
    bool half = strcmp(env->arg, "half") == 0;
    int num_ranks;
    int64_t step = -1;
    if (!ranks) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (int r = 0; r < MOST_RANKS; r++) start(&ranks[r]);
    for (int r = 0; r < 2; r++) update(&ranks[r], r, 2);
    update(mine, env->rank, 2);
    average(ranks, 0, 2, true);
    gs_status status = comm_rank_open(&self, env, 0, NULL);
    view(views, mine);
    const gs_averager_options options = options_of("periodic", views, self.comm);
    if (!status.code) status = gs_averager_create(&averager, &options, soon());
    if (!status.code) {
        gs_status lost = gs_averager_run(averager, 2, NULL, &num_ranks, soon());
        gs_rank_note(env, "averaged");
        bool has_result = half && env->rank == 0;
        if ((lost.code != GS_OK) == has_result)
            status = gs_error(GS_INTERNAL, "the average: %s", lost.message);
    }
    const gs_comm_options again = {.rank = env->rank,
                                   .world_size = 2,
                                   .ranks = (const int[]){0, 1},
                                   .generation = 2,
                                   .exchange = gs_rank_exchange,
                                   .exchange_ctx = env->exchange,
                                   .device = self.device};
    if (!status.code) status = gs_comm_create(&next, &again, soon());
    if (!status.code) status = gs_averager_reset(averager, next, &step, soon());
    if (!status.code && step != 2)
        status = gs_error(GS_INTERNAL, "step %lld is to be averaged again", (long long)step);
    if (!status.code) status = gs_averager_run(averager, 2, NULL, &num_ranks, soon());
    if (!status.code) status = compare(mine, &ranks[env->rank], 2);
    // Nothing is left over for the next time.
    if (!status.code) status = gs_averager_reset(averager, next, &step, soon());
    if (!status.code && step != -1)
        status = gs_error(GS_INTERNAL, "step %lld once more", (long long)step);
    gs_averager_destroy(averager);
    gs_comm_destroy(next);
    comm_rank_close(&self);
    free(ranks);
    return status;
}
#endif

// Rank 1 brings integers; the others may come as far as the average.
static gs_status bring_integers(const gs_rank_env *env) {
    comm_rank self;
    gs_averager *averager = NULL;
    float value = 0;
    int num_ranks;
    gs_tensor_view views[NUM_TENSORS];
    gs_status status = comm_rank_open(&self, env, 4096, NULL);
    for (int i = 0; i < NUM_TENSORS; i++) views[i] = (gs_tensor_view){&value, 1, GS_FP32};
    if (env->rank == 1) views[0].dtype = GS_I64;
    const gs_averager_options options = options_of(env->arg, views, self.comm);
    if (!status.code) status = gs_averager_create(&averager, &options, soon());
    if (!status.code) status = gs_averager_run(averager, 2, NULL, &num_ranks, soon());
    gs_averager_destroy(averager);
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {{"simulate", simulate},
                                      {"integers", bring_integers},
#ifdef GRADSYNC_FAILPOINTS
                                      {"lose", lose_rank},
#endif
                                      {NULL, NULL}};

static void run(int world_size, const char *table) {
    gs_status status = gs_ranks_run("simulate", world_size, table, soon());
    if (status.code) print_error("%d ranks, %s: %s\n", world_size, table, status.message);
    assert_int_equal(status.code, GS_OK);
}

static void averages_have_the_bits_of_a_serial_simulation(void **state) {
    (void)state;
    run(2, "periodic");
    run(3, "periodic");
    run(4, "hierarchical");
}

static gs_comm *open_alone(gs_device **device) {
    gs_comm *comm;
    assert_ok(gs_device_open(device, "cpu", &(gs_device_options){.num_threads = 1}));
    assert_ok(
        gs_comm_create(&comm, &(gs_comm_options){.world_size = 1, .device = *device}, soon()));
    return comm;
}

static void the_longest_period_that_divides_the_step_has_its_turn(void **state) {
    (void)state;
    gs_device *device;
    gs_comm *comm = open_alone(&device);
    static const struct {
        gs_average_level levels[3];
        size_t num_levels;
        int64_t start_step, step;
        int level;
    } cases[] = {
        // One level counts from the start, several count steps themselves.
        {{{3, 0}}, 1, 2, 1, -1},
        {{{3, 0}}, 1, 2, 2, 0},
        {{{3, 0}}, 1, 2, 3, -1},
        {{{3, 0}}, 1, 2, 5, 0},
        {{{2, 2}, {4, 0}}, 2, 3, 2, -1},
        {{{2, 2}, {4, 0}}, 2, 3, 4, 1},
        {{{2, 2}, {4, 0}}, 2, 3, 5, -1},
        {{{2, 2}, {4, 0}}, 2, 3, 6, 0},
        {{{2, 2}, {3, 4}, {12, 0}}, 3, 0, 6, 1},
        {{{2, 2}, {3, 4}, {12, 0}}, 3, 0, 12, 2},
        {{{2, 2}, {3, 4}, {12, 0}}, 3, 0, 0, 2},
        {{{1, 0}}, 1, 0, 7, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gs_averager *averager;
        const gs_averager_options options = {.levels = cases[i].levels,
                                             .num_levels = cases[i].num_levels,
                                             .start_step = cases[i].start_step,
                                             .comm = comm};
        assert_ok(gs_averager_create(&averager, &options, soon()));
        assert_int_equal(gs_averager_due(averager, cases[i].step), cases[i].level);
        gs_averager_destroy(averager);
    }
    gs_comm_destroy(comm);
    gs_device_close(device);
}

static void tables_that_do_not_ascend_to_all_ranks_are_refused(void **state) {
    (void)state;
    gs_device *device;
    gs_comm *comm = open_alone(&device);
    static const struct {
        gs_average_level levels[2];
        size_t num_levels;
        int64_t start_step;
        const char *words;
    } cases[] = {
        {{{0}}, 0, 0, "0 levels"},
        {{{0, 0}}, 1, 0, "has period 0"},
        {{{4, 2}, {4, 0}}, 2, 0, "ascend"},
        {{{2, 4}, {4, 2}}, 2, 0, "ascend"},
        {{{2, 0}, {4, 0}}, 2, 0, "is of 0 ranks"},
        {{{2, 0}}, 1, -1, "start step -1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gs_averager *averager;
        const gs_averager_options options = {.levels = cases[i].levels,
                                             .num_levels = cases[i].num_levels,
                                             .start_step = cases[i].start_step,
                                             .comm = comm};
        gs_status status = gs_averager_create(&averager, &options, soon());
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        if (!strstr(status.message, cases[i].words)) fail_msg("%s", status.message);
    }
    gs_comm_destroy(comm);
    gs_device_close(device);
}

static void what_one_rank_has_no_average_of_is_told_to_all(void **state) {
    (void)state;
    static const char *const tables[] = {"periodic", "hierarchical"};
    for (int i = 0; i < 2; i++) {
        gs_ranks *ranks;
        gs_status statuses[3];
        assert_ok(gs_ranks_start(&ranks, "integers", 3, tables[i], NULL));
        assert_ok(gs_ranks_wait(ranks, statuses, soon()));
        gs_ranks_destroy(ranks);
        for (int rank = 0; rank < 3; rank++) {
            assert_int_equal(statuses[rank].code, rank == 1 ? GS_INVALID_ARGUMENT : GS_ABORTED);
            if (!strstr(statuses[rank].message, "tensor 0 of i64 has no average"))
                fail_msg("rank %d: %s", rank, statuses[rank].message);
        }
    }
}

#ifdef GRADSYNC_FAILPOINTS
static void a_rank_that_dies_in_an_average_leaves_none_with_half_of_it(void **state) {
    (void)state;
    static const char *const armed[][2] = {
        {"none", "GRADSYNC_FAILPOINTS=averager.summed#2=kill"},
        {"half", "GRADSYNC_FAILPOINTS=averager.confirmed#2=kill,averager.confirmed#1=stop,averager."
                 "adopt#1=error"},
    };
    for (size_t i = 0; i < 2; i++) {
        gs_ranks *ranks;
        gs_status statuses[3];
        assert_ok(
            gs_ranks_start(&ranks, "lose", 3, armed[i][0], (const char *[]){armed[i][1], NULL}));
        // Rank 1 stands still between its result and its parameters until rank 0 has both, and until rank 2,
        // which would hear of its failure, has died.
        if (i == 1) {
            assert_ok(gs_ranks_wait_note(ranks, 0, "averaged", soon()));
            siginfo_t changed;
            assert_int_equal(waitid(P_PID, (id_t)gs_ranks_pid(ranks, 1), &changed, WSTOPPED), 0);
            assert_int_equal(
                waitid(P_PID, (id_t)gs_ranks_pid(ranks, 2), &changed, WEXITED | WNOWAIT), 0);
            gs_ranks_signal(ranks, 1, SIGCONT);
        }
        assert_ok(gs_ranks_wait(ranks, statuses, soon()));
        gs_ranks_destroy(ranks);
        assert_ok(statuses[0]);
        assert_ok(statuses[1]);
        assert_int_equal(statuses[2].code, GS_ABORTED);
    }
}
#endif

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_period_that_divides_the_step_has_its_turn),
        cmocka_unit_test(tables_that_do_not_ascend_to_all_ranks_are_refused),
        cmocka_unit_test(what_one_rank_has_no_average_of_is_told_to_all),
        cmocka_unit_test(averages_have_the_bits_of_a_serial_simulation),
#ifdef GRADSYNC_FAILPOINTS
        cmocka_unit_test(a_rank_that_dies_in_an_average_leaves_none_with_half_of_it),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
