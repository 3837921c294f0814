// Uneven inputs between real processes: who has data is known everywhere, ranks without any shadow
// the others in everything, and all end in the same state; or all end alike.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "gradsync/step/join.h"
#include "tests/support/asserts.h"
#include "tests/support/grad_case.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"

#define MAX_WORLD 5

typedef struct rank_side {
    gs_device *device;
    gs_comm *comm;
} rank_side;

static gs_status open_side(rank_side *side, const gs_rank_env *env) {
    GS_TRY(gs_device_open(&side->device, "cpu", &(gs_device_options){0}));
    return gs_comm_create(&side->comm,
                          &(gs_comm_options){.backend = "shm",
                                             .rank = env->rank,
                                             .world_size = env->world_size,
                                             .generation = 1,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = env->exchange,
                                             .device = side->device},
                          soon());
}

static void close_side(rank_side *side) {
    gs_comm_destroy(side->comm);
    gs_device_close(side->device);
}

// Batches of a rank: none, one, and then ever more.
static int64_t batches_of(int rank) {
    return rank < 2 ? rank : 2 * rank + 1;
}

static gs_status add_up(gs_comm *comm, int64_t mine, int64_t wanted, int64_t step) {
    int64_t sum = 0;
    GS_TRY(gs_comm_run(comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = &mine,
                                        .recv = &sum,
                                        .count = 1,
                                        .dtype = GS_I64,
                                        .op = GS_OP_SUM,
                                        .step = step,
                                        .bucket = -1},
                       soon()));
    if (sum == wanted || wanted < 0) return gs_ok();
    return gs_error(GS_INTERNAL, "step %lld: sum %lld, wanted %lld", (long long)step,
                    (long long)sum, (long long)wanted);
}

typedef struct shadow_log {
    gs_comm *comm;
    char order[64];
    int dies_after;  // 0: never
} shadow_log;

static gs_status shadow(shadow_log *log, const gs_join_round *round, int64_t step, char name) {
    size_t length = strlen(log->order);
    if (length + 1 < sizeof log->order) log->order[length] = name;
    if (round->active) return gs_error(GS_INTERNAL, "a rank with data shadows");
    if (log->dies_after && --log->dies_after == 0) raise(SIGKILL);
    return add_up(log->comm, 0, -1, step);
}

static gs_status shadow_first(void *ctx, const gs_join_round *round, int64_t step,
                              gs_deadline deadline) {
    (void)deadline;
    return shadow(ctx, round, step, 'a');
}

static gs_status shadow_second(void *ctx, const gs_join_round *round, int64_t step,
                               gs_deadline deadline) {
    (void)deadline;
    return shadow(ctx, round, step, 'b');
}

// One step of two joinables, each with a collective of its own.
static gs_status run_step(gs_join *join, gs_comm *comm, const gs_join_round *round, int64_t step) {
    if (!round->active) return gs_join_shadow(join, soon());
    GS_TRY(add_up(comm, 1, round->num_active, step));
    return add_up(comm, 10, 10 * round->num_active, step);
}

static gs_status check_round(const gs_join_round *round, int64_t step, int world_size) {
    int active = 0, source = -1;
    for (int rank = 0; rank < world_size; rank++) {
        if (step >= batches_of(rank)) continue;
        active++;
        source = rank;
    }
    if (round->num_active == active && round->source == source) return gs_ok();
    return gs_error(GS_INTERNAL, "step %lld: %d active, source %d; wanted %d, %d", (long long)step,
                    round->num_active, round->source, active, source);
}

static gs_status run_rounds(gs_join *join, gs_comm *comm, const gs_rank_env *env) {
    gs_join_round round = {.num_active = 1};
    for (int64_t step = 0; round.num_active > 0; step++) {
        GS_TRY(gs_join_open(join, &round, step < batches_of(env->rank), step, soon()));
        GS_TRY(check_round(&round, step, env->world_size));
        if (round.num_active) GS_TRY(run_step(join, comm, &round, step));
    }
    return gs_ok();
}

static void count_warnings(void *ctx, gs_log_level level, const char *line) {
    if (level == GS_LOG_WARN && strstr(line, "uneven")) ++*(int *)ctx;
}

static gs_status check_shadowed(const gs_join *join, const shadow_log *log, int num_warnings,
                                const gs_rank_env *env) {
    int64_t shadowed = gs_join_shadowed_steps(join);
    int64_t wanted = batches_of(env->world_size - 1) - batches_of(env->rank);
    if (shadowed != wanted || strlen(log->order) != (size_t)(2 * wanted))
        return gs_error(GS_INTERNAL, "%lld steps were shadowed, wanted %lld", (long long)shadowed,
                        (long long)wanted);
    for (int64_t i = 0; i < 2 * wanted; i++)
        if (log->order[i] != (i % 2 ? 'b' : 'a'))
            return gs_error(GS_INTERNAL, "shadowed in another order: %s", log->order);
    if (num_warnings != (wanted >= 3))
        return gs_error(GS_INTERNAL, "%d warnings after %lld steps", num_warnings,
                        (long long)wanted);
    return gs_ok();
}

static gs_status body_rounds(const gs_rank_env *env) {
    rank_side side;
    int num_warnings = 0;
    gs_join *join;
    GS_TRY(open_side(&side, env));
    gs_log_set_sink(count_warnings, &num_warnings);
    shadow_log log = {.comm = side.comm};
    const gs_joinable joinables[] = {{"first", shadow_first, &log},
                                     {"second", shadow_second, &log}};
    gs_join_options options = {.joinables = joinables, .num_joinables = 2, .warn_after_steps = 3};
    GS_TRY(gs_join_create(&join, &options, side.comm));
    GS_TRY(run_rounds(join, side.comm, env));
    GS_TRY(check_shadowed(join, &log, num_warnings, env));

    // Buffers differ until the end, parameters never do.
    float params[3] = {1, 2, 3}, buffers[2] = {(float)env->rank, 7};
    const gs_tensor_view param = {params, 3, GS_FP32}, buffer = {buffers, 2, GS_FP32};
    GS_TRY(gs_join_finish(join, &(gs_join_state){&param, &buffer, 1, 1}, soon()));
    if (buffers[0] != (float)(env->world_size - 1))
        return gs_error(GS_INTERNAL, "buffers are those of rank %g", (double)buffers[0]);
    gs_join_destroy(join);
    close_side(&side);
    gs_log_set_sink(NULL, NULL);
    return gs_ok();
}

// What a rank logs, of the one event that is looked for.
typedef struct seen_warning {
    int count;
    int64_t step, shadowed;
} seen_warning;

static void see_warning(void *ctx, gs_log_level level, const char *line) {
    seen_warning *seen = ctx;
    const char *words = strstr(line, "no data left for long");
    long long step, shadowed;
    if (level != GS_LOG_WARN || !words) return;
    seen->count++;
    if (sscanf(strstr(words, "step="), "step=%lld shadowed=%lld", &step, &shadowed) == 2) {
        seen->step = step;
        seen->shadowed = shadowed;
    }
}

// Rank 0 alone has data, for 1100 steps; steps are counted from 7.
static gs_status body_long_shadow(const gs_rank_env *env) {
    rank_side side;
    gs_join *join;
    seen_warning seen = {0};
    GS_TRY(open_side(&side, env));
    GS_TRY(gs_join_create(&join, &(gs_join_options){0}, side.comm));
    gs_log_set_sink(see_warning, &seen);
    for (int64_t step = 7; step < 1107; step++) {
        gs_join_round round;
        GS_TRY(gs_join_open(join, &round, env->rank == 0, step, soon()));
        if (env->rank) GS_TRY(gs_join_shadow(join, soon()));
        if (env->rank && seen.count != (step - 6 >= 1000))
            return gs_error(GS_INTERNAL, "%d warnings after %d shadowed steps", seen.count,
                            (int)(step - 6));
    }
    gs_log_set_sink(NULL, NULL);
    if (env->rank == 0 && seen.count) return gs_error(GS_INTERNAL, "a rank with data is warned");
    if (env->rank && (seen.shadowed != 1000 || seen.step != 1006))
        return gs_error(GS_INTERNAL, "it says %d steps at step %d", (int)seen.shadowed,
                        (int)seen.step);
    gs_join_destroy(join);
    close_side(&side);
    return gs_ok();
}

static void joinables_are_shadowed_in_order_and_the_last_rank_gives_the_end_state(void **state) {
    (void)state;
    for (int world = 2; world <= MAX_WORLD; world++)
        assert_ok(gs_ranks_run("rounds", world, "", soon()));
}

// Each of these buffers travels alone. The source, which is the last rank, leaves after the first.
#define LARGE_COUNT ((size_t)1 << 19)

static gs_status body_source_leaves(const gs_rank_env *env) {
    rank_side side;
    gs_join *join;
    gs_join_round round;
    GS_TRY(open_side(&side, env));
    GS_TRY(gs_join_create(&join, &(gs_join_options){0}, side.comm));
    GS_TRY(gs_join_open(join, &round, true, 0, soon()));
    float param = 1, *memory = malloc(2 * LARGE_COUNT * sizeof *memory);
    if (!memory) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < 2 * LARGE_COUNT; i++) memory[i] = (float)env->rank;
    const gs_tensor_view params = {&param, 1, GS_FP32};
    const gs_tensor_view buffers[2] = {{memory, LARGE_COUNT, GS_FP32},
                                       {memory + LARGE_COUNT, LARGE_COUNT, GS_FP32}};
    bool leaves = env->rank == env->world_size - 1;
    gs_status status = gs_join_finish(join, &(gs_join_state){&params, buffers, 1, leaves ? 1 : 2},
                                      gs_deadline_in_seconds(3));
    gs_join_destroy(join);
    close_side(&side);
    bool kept = true;
    for (size_t i = 0; i < 2 * LARGE_COUNT; i++) kept = kept && memory[i] == (float)env->rank;
    free(memory);
    if (!leaves && !status.code) return gs_error(GS_INTERNAL, "the end state was taken over");
    return kept ? gs_ok() : gs_error(GS_INTERNAL, "buffers changed in part");
}

static void an_end_state_that_does_not_arrive_whole_changes_nothing(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("source_leaves", 2, "", soon()));
}

// Parameters that are not equal at the end are a defect that nobody would see.
static gs_status body_params_differ(const gs_rank_env *env) {
    rank_side side;
    gs_join *join;
    gs_join_round round;
    GS_TRY(open_side(&side, env));
    GS_TRY(gs_join_create(&join, &(gs_join_options){0}, side.comm));
    GS_TRY(gs_join_open(join, &round, true, 0, soon()));
    float params[3] = {1, 2, env->rank == 1 ? 4 : 3};
    const gs_tensor_view param = {params, 3, GS_FP32};
    gs_status status =
        gs_join_finish(join, &(gs_join_state){.params = &param, .num_params = 1}, soon());
    gs_join_destroy(join);
    close_side(&side);
    return status;
}

static gs_status body_other_step(const gs_rank_env *env) {
    rank_side side;
    gs_join_round round;
    GS_TRY(open_side(&side, env));
    gs_status status = gs_join_announce(&round, side.comm, true, GS_DIVIDE_BY_INITIAL,
                                        env->rank == 1 ? 8 : 7, soon());
    close_side(&side);
    return status;
}

// The first rank without data ends all of them: with `stops`, before anything of the step.
static gs_status body_stops(const gs_rank_env *env) {
    rank_side side;
    gs_join *join;
    gs_join_round round;
    GS_TRY(open_side(&side, env));
    GS_TRY(gs_join_create(&join, &(gs_join_options){.stops = true}, side.comm));
    gs_status status = gs_ok();
    for (int64_t step = 0; !status.code; step++)
        status = gs_join_open(join, &round, step < (env->rank == 1 ? 3 : 5), step, soon());
    gs_join_destroy(join);
    close_side(&side);
    return status;
}

// Rank 2 is there when the time of rank 0 begins, and has four seconds to say so.
static gs_status body_late(const gs_rank_env *env) {
    rank_side side;
    gs_join_round round;
    int64_t mine = 0, all[MAX_WORLD];
    GS_TRY(open_side(&side, env));
    gs_status status = gs_ok();
    GS_TRY(gs_rank_exchange(env->exchange, "begin", NULL, 0, &mine, sizeof mine, all, soon()));
    if (env->rank != 1)
        status = gs_join_announce(&round, side.comm, true, GS_DIVIDE_BY_INITIAL, 4,
                                  gs_deadline_in_seconds(4));
    GS_TRY(gs_rank_exchange(env->exchange, "late", NULL, 0, &mine, sizeof mine, all, soon()));
    close_side(&side);
    return env->rank == 1 ? gs_error(GS_DEADLINE_EXCEEDED, "step 4: rank 1 stayed away") : status;
}

static gs_status body_killed(const gs_rank_env *env) {
    rank_side side;
    gs_join *join;
    GS_TRY(open_side(&side, env));
    // Rank 1 runs out first and dies in its third step as a shadow, between the two joinables.
    shadow_log log = {.comm = side.comm, .dies_after = env->rank == 1 ? 6 : 0};
    const gs_joinable joinables[] = {{"first", shadow_first, &log},
                                     {"second", shadow_second, &log}};
    gs_join_options options = {.joinables = joinables, .num_joinables = 2};
    GS_TRY(gs_join_create(&join, &options, side.comm));
    gs_status status = run_rounds(join, side.comm, env);
    gs_join_destroy(join);
    close_side(&side);
    return status;
}

typedef struct ending {
    const char *body;
    gs_code code;
    const char *words[2];
    int victim;  // whose status is not looked at; -1: none
} ending;

// Every rank ends with the words, and with the code if there is one: of a time that passed the
// first rank tells the others by an abort.
static void check_ending(const ending *wanted) {
    enum { WORLD = 3 };
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    assert_ok(gs_ranks_start(&ranks, wanted->body, WORLD, "", NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    gs_ranks_destroy(ranks);
    for (int rank = 0; rank < WORLD; rank++) {
        if (rank == wanted->victim) continue;
        if (wanted->code && statuses[rank].code != wanted->code)
            fail_msg("%s, rank %d: code %d: %s", wanted->body, rank, statuses[rank].code,
                     statuses[rank].message);
        assert_int_not_equal(statuses[rank].code, GS_OK);
        for (int i = 0; i < 2; i++)
            if (!strstr(statuses[rank].message, wanted->words[i]))
                fail_msg("%s, rank %d: \"%s\" does not say \"%s\"", wanted->body, rank,
                         statuses[rank].message, wanted->words[i]);
    }
}

static void another_step_is_told_on_all_ranks(void **state) {
    (void)state;
    check_ending(&(ending){"other_step", GS_FAILED_PRECONDITION, {"rank 1", "step 7"}, 1});
}

static void early_end_is_the_same_error_on_all_ranks(void **state) {
    (void)state;
    check_ending(&(ending){"stops", GS_OUT_OF_RANGE, {"rank 1", "step 3"}, -1});
}

static void rank_that_does_not_announce_is_named(void **state) {
    (void)state;
    check_ending(&(ending){"late", GS_OK, {"rank 1", "step 4"}, -1});
}

static void differing_parameters_at_the_end_name_the_rank(void **state) {
    (void)state;
    check_ending(&(ending){"params_differ", GS_FAILED_PRECONDITION, {"rank 1", "not those"}, -1});
}

static void rank_that_dies_as_a_shadow_ends_the_others(void **state) {
    (void)state;
    check_ending(&(ending){"killed", GS_OK, {"rank 1", "step"}, 1});
}

// One rank that shadows where it must not: before a step is open, with data, or when nobody has
// any.
static gs_status shadow_alone(gs_device *device, bool opens, bool active) {
    gs_comm *comm;
    gs_join *join;
    gs_join_round round;
    assert_ok(gs_comm_create(
        &comm, &(gs_comm_options){.backend = "self", .world_size = 1, .device = device}, soon()));
    assert_ok(gs_join_create(&join, &(gs_join_options){0}, comm));
    if (opens) assert_ok(gs_join_open(join, &round, active, 0, soon()));
    gs_status status = gs_join_shadow(join, soon());
    assert_int_equal(gs_join_open(join, &round, true, 1, soon()).code, GS_ABORTED);
    gs_join_destroy(join);
    gs_comm_destroy(comm);
    return status;
}

static void shadowing_with_data_is_refused(void **state) {
    (void)state;
    gs_device *device;
    assert_ok(gs_device_open(&device, "cpu", &(gs_device_options){0}));
    const struct {
        bool opens, active;
        const char *words;
    } cases[] = {{false, false, "join: rank 0 has nothing to shadow"},
                 {true, true, "join: rank 0 has nothing to shadow: it has data"},
                 {true, false, "join: rank 0 has nothing to shadow"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gs_status status = shadow_alone(device, cases[i].opens, cases[i].active);
        assert_int_equal(status.code, GS_FAILED_PRECONDITION);
        assert_string_equal(status.message, cases[i].words);
    }
    gs_device_close(device);
}

// What the hook of a rank without data saw.
static struct { size_t buckets, nonzero; } seen;

static gs_status run_counting(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const float *data = bucket->data;
    seen.buckets++;
    for (size_t i = 0; i < bucket->count; i++) seen.nonzero += data[i] != 0;
    return gs_hook_allreduce.run(state, bucket, work);
}

static gs_status run_uneven_step(grad_rank *rank, bool active, gs_join_divisor divisor) {
    gs_join_round round;
    gs_reduce_result result;
    seen.buckets = seen.nonzero = 0;
    GS_TRY(gs_join_announce(&round, rank->comm, active, divisor, 0, soon()));
    GS_TRY(gs_reducer_begin_uneven(rank->reducer, 0, &round));
    size_t num_buckets = gs_reducer_plan(rank->reducer)->num_buckets;
    bool hooked = rank->model->hook.hook != NULL;
    if (!active && hooked && (seen.buckets != num_buckets || seen.nonzero))
        return gs_error(GS_INTERNAL, "the hook saw %zu of %zu buckets, %zu values not zero",
                        seen.buckets, num_buckets, seen.nonzero);
    if (active) GS_TRY(grad_rank_run_passes(rank, 0));
    GS_TRY(gs_reducer_finish(rank->reducer, &result, soon()));
    if (result.active_ranks != round.num_active)
        return gs_error(GS_INTERNAL, "%d active ranks", result.active_ranks);
    return gs_ok();
}

// One step in which rank 1 has no data; the digest of its gradients, which all ranks share.
static gs_status reduce_uneven(uint64_t *digest, const gs_rank_env *env, const gs_comm_hook *hook,
                               gs_join_divisor divisor) {
    grad_case model;
    grad_rank rank;
    uint64_t all[MAX_WORLD];
    grad_case_init(&model, (uint64_t)atoi(env->arg), env->world_size);
    model.hook.hook = hook;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
    GS_TRY(run_uneven_step(&rank, env->rank != 1, divisor));
    *digest = grad_rank_digest(&rank);
    GS_TRY(gs_rank_exchange(env->exchange, "digests", NULL, 0, digest, sizeof *digest, all, soon()));
    grad_rank_close(&rank);
    grad_case_release(&model);
    for (int i = 0; i < env->world_size; i++)
        if (all[i] != *digest) return gs_error(GS_INTERNAL, "gradients of rank %d differ", i);
    return gs_ok();
}

// In the original a hook divides by the group's size, whatever the join's divisor.
static gs_status body_hook(const gs_rank_env *env) {
    uint64_t hooked, plain, by_initial;
    gs_comm_hook counting = gs_hook_allreduce;
    counting.name = "counting";
    counting.run = run_counting;
    GS_TRY(reduce_uneven(&hooked, env, &counting, GS_DIVIDE_BY_ACTIVE));
    GS_TRY(reduce_uneven(&plain, env, NULL, GS_DIVIDE_BY_ACTIVE));
    GS_TRY(reduce_uneven(&by_initial, env, &counting, GS_DIVIDE_BY_INITIAL));
    if (hooked != plain) return gs_error(GS_INTERNAL, "a hook changes the divisor of a join");
    if (hooked == by_initial) return gs_error(GS_INTERNAL, "the divisor has no effect");
    return gs_ok();
}

static void hooks_run_on_zero_buffers_and_the_divisor_holds_with_them(void **state) {
    (void)state;
    for (int seed = 1; seed <= 4; seed++) {
        char arg[16];
        snprintf(arg, sizeof arg, "%d", seed);
        gs_ranks *ranks;
        gs_status statuses[3];
        assert_ok(gs_ranks_start(&ranks, "hook", 3, arg, NULL));
        assert_ok(gs_ranks_wait(ranks, statuses, soon()));
        gs_ranks_destroy(ranks);
        for (int rank = 0; rank < 3; rank++)
            if (statuses[rank].code)
                print_message("seed %d, rank %d: %s\n", seed, rank, statuses[rank].message);
        for (int rank = 0; rank < 3; rank++) assert_ok(statuses[rank]);
    }
}

static void the_thousandth_shadowed_step_is_warned_of_once(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("long_shadow", 2, "", gs_deadline_in_seconds(60)));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"long_shadow", body_long_shadow},
                                          {"rounds", body_rounds},
                                          {"params_differ", body_params_differ},
                                          {"source_leaves", body_source_leaves},
                                          {"other_step", body_other_step},
                                          {"stops", body_stops},
                                          {"late", body_late},
                                          {"killed", body_killed},
                                          {"hook", body_hook},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_thousandth_shadowed_step_is_warned_of_once),
        cmocka_unit_test(joinables_are_shadowed_in_order_and_the_last_rank_gives_the_end_state),
        cmocka_unit_test(an_end_state_that_does_not_arrive_whole_changes_nothing),
        cmocka_unit_test(another_step_is_told_on_all_ranks),
        cmocka_unit_test(early_end_is_the_same_error_on_all_ranks),
        cmocka_unit_test(rank_that_does_not_announce_is_named),
        cmocka_unit_test(differing_parameters_at_the_end_name_the_rank),
        cmocka_unit_test(rank_that_dies_as_a_shadow_ends_the_others),
        cmocka_unit_test(shadowing_with_data_is_refused),
        cmocka_unit_test(hooks_run_on_zero_buffers_and_the_divisor_holds_with_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
