// Optimizer state from one partition to another: every element is where its new owner expects it,
// whatever plans and rules there are before and behind, and training goes on with the bits of one
// that was never dealt anew.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/optim/optimizer.h"
#include "gradsync/sharded/reshard.h"
#include "gradsync/sharded/shards.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"

#define NUM_PARAMS 6
#define MAX_ELEMENTS 2000
#define DEADLINE gs_deadline_in_seconds(60)

// Odd ones, some smaller than a line, one larger than all others together.
static const int64_t counts[NUM_PARAMS] = {301, 2, 33, 1, 777, 64};

// A plan by its cap, along the parameters or against them.
typedef struct layout {
    gs_partition partition;
    uint64_t cap_bytes;
    bool is_observed;
} layout;

static const layout layouts[] = {
    {GS_PARTITION_FLAT, 600, false},   {GS_PARTITION_FLAT, 5000, true},
    {GS_PARTITION_GREEDY, 600, false}, {GS_PARTITION_SORTED, 1, true},
    {GS_PARTITION_FLAT, 1, true},
};
#define NUM_LAYOUTS (sizeof layouts / sizeof *layouts)

// What a rank has by one of them.
typedef struct part {
    gs_shards *shards;
    gs_optimizer *optimizer;
    size_t num_segments;
    const gs_segment *segments;
} part;

static void list_params(gs_param_spec *params) {
    for (size_t p = 0; p < NUM_PARAMS; p++)
        params[p] = gs_param_spec_make(GS_FP32, counts[p], 0, "p%zu", p);
}

static gs_status open_first(part *out, const comm_rank *rank, const layout *by, const char *kind,
                            size_t num_params) {
    gs_param_spec params[NUM_PARAMS];
    bool decays[NUM_PARAMS] = {true, false, true};
    gs_bucket_plan plan;
    static const size_t order[NUM_PARAMS] = {3, 0, 5, 1, 4, 2};
    *out = (part){0};
    list_params(params);
    GS_TRY(gs_bucket_plan_parity(&plan, params, num_params, by->cap_bytes, by->cap_bytes,
                                 by->is_observed ? order : NULL));
    gs_status status =
        gs_shards_create(&out->shards, &(gs_shards_options){.partition = by->partition,
                                                            .plan = &plan,
                                                            .params = params,
                                                            .num_params = num_params,
                                                            .world_size = rank->world_size});
    gs_bucket_plan_release(&plan);
    GS_TRY(status);
    out->segments = gs_shards_of_rank(out->shards, rank->rank, &out->num_segments);
    return gs_optimizer_create(&out->optimizer,
                               &(gs_optimizer_options){.kind = kind,
                                                       .beta1 = 0.9f,
                                                       .beta2 = 0.99f,
                                                       .eps = 1e-6f,
                                                       .momentum = 0.9f,
                                                       .weight_decay = 0.1f,
                                                       .segments = out->segments,
                                                       .num_segments = out->num_segments},
                               params, decays, num_params, rank->device);
}

static gs_status open_part(part *out, const comm_rank *rank, const layout *by, const char *kind) {
    return open_first(out, rank, by, kind, NUM_PARAMS);
}

static void close_part(part *of) {
    gs_optimizer_destroy(of->optimizer);
    gs_shards_destroy(of->shards);
    *of = (part){0};
}

// All parameters, and the gradients of a step; parameter 2 has none in odd ones.
typedef struct model {
    float values[MAX_ELEMENTS], grads[MAX_ELEMENTS];
    void *params[NUM_PARAMS], *param_grads[NUM_PARAMS];
} model;

static void begin_model(model *of) {
    size_t at = 0;
    for (size_t p = 0; p < NUM_PARAMS; at += (size_t)counts[p++]) {
        of->params[p] = of->values + at;
        of->param_grads[p] = of->grads + at;
    }
    for (size_t i = 0; i < MAX_ELEMENTS; i++) of->values[i] = (float)(i % 17) / 8;
}

static void write_grads(model *of, int64_t step) {
    for (size_t i = 0; i < MAX_ELEMENTS; i++)
        of->grads[i] = (float)((int)((i * 7 + (size_t)step * 5) % 23) - 11) / 4;
}

static gs_status step_part(model *of, part *with, int64_t step) {
    const uint8_t used[NUM_PARAMS] = {1, 1, step % 2 == 0, 1, 1, 1};
    void *params[2 * NUM_PARAMS], *grads[2 * NUM_PARAMS];
    write_grads(of, step);
    for (size_t i = 0; i < with->num_segments; i++) {
        gs_segment own = with->segments[i];
        params[i] = (float *)of->params[own.tensor] + own.first;
        grads[i] = (float *)of->param_grads[own.tensor] + own.first;
    }
    return gs_optimizer_step(with->optimizer, params, grads, used, 0.05f, 1);
}

// What this rank owns has the values and the state of an optimizer that has everything.
static gs_status compare(const model *cut, const part *with, const model *whole,
                         const gs_optimizer *all) {
    if (memcmp(gs_optimizer_num_updates(with->optimizer),
               gs_optimizer_num_updates((gs_optimizer *)(uintptr_t)all),
               NUM_PARAMS * sizeof(int64_t)) != 0)
        return gs_error(GS_INTERNAL, "other counts of updates");
    for (size_t i = 0; i < with->num_segments; i++) {
        gs_segment own = with->segments[i];
        size_t bytes = own.count * sizeof(float);
        if (memcmp((float *)cut->params[own.tensor] + own.first,
                   (float *)whole->params[own.tensor] + own.first, bytes) != 0)
            return gs_error(GS_INTERNAL, "parameter %zu: other values", own.tensor);
        for (int s = 0; s < gs_optimizer_state_count(with->optimizer); s++)
            if (memcmp(gs_optimizer_state(with->optimizer, s, i),
                       gs_optimizer_state((gs_optimizer *)(uintptr_t)all, s, own.tensor) +
                           own.first,
                       bytes) != 0)
                return gs_error(GS_INTERNAL, "parameter %zu: another %s", own.tensor,
                                gs_optimizer_state_name(with->optimizer, s));
    }
    return gs_ok();
}

// The values of all ranks' parts, as a gather would bring them.
static void share_values(model *of, const model *whole) {
    memcpy(of->values, whole->values, sizeof of->values);
}

static gs_status walk_layouts(const comm_rank *rank, const char *kind, size_t piece_bytes) {
    static model cut, whole;
    gs_param_spec params[NUM_PARAMS];
    bool decays[NUM_PARAMS] = {true, false, true};
    gs_optimizer *all;
    part now, next = {0};
    list_params(params);
    begin_model(&cut);
    begin_model(&whole);
    GS_TRY(gs_optimizer_create(&all,
                               &(gs_optimizer_options){.kind = kind,
                                                       .beta1 = 0.9f,
                                                       .beta2 = 0.99f,
                                                       .eps = 1e-6f,
                                                       .momentum = 0.9f,
                                                       .weight_decay = 0.1f},
                               params, decays, NUM_PARAMS, rank->device));
    gs_status status = open_part(&now, rank, &layouts[0], kind);
    for (size_t i = 0; i < 2 * NUM_LAYOUTS && !status.code; i++) {
        const uint8_t used[NUM_PARAMS] = {1, 1, i % 2 == 0, 1, 1, 1};
        status = step_part(&cut, &now, (int64_t)i);
        memcpy(whole.grads, cut.grads, sizeof whole.grads);
        if (!status.code)
            status = gs_optimizer_step(all, whole.params, whole.param_grads, used, 0.05f, 1);
        if (!status.code) status = compare(&cut, &now, &whole, all);
        share_values(&cut, &whole);
        if (!status.code) status = open_part(&next, rank, &layouts[(i + 1) % NUM_LAYOUTS], kind);
        if (!status.code)
            status = gs_reshard_optimizer(&(gs_reshard_options){.from = now.shards,
                                                                .to = next.shards,
                                                                .comm = rank->comm,
                                                                .device = rank->device,
                                                                .piece_bytes = piece_bytes},
                                          next.optimizer, now.optimizer, DEADLINE);
        if (!status.code) status = compare(&cut, &next, &whole, all);
        status = gs_status_prefix(status, "%s, change %zu", kind, i);
        close_part(&now);
        now = next;
        next = (part){0};
    }
    close_part(&now);
    gs_optimizer_destroy(all);
    return status;
}

static gs_status body_deal_anew(const gs_rank_env *env) {
    comm_rank rank;
    gs_status status = comm_rank_open(&rank, env, 1 << 16, NULL);
    if (!status.code) status = walk_layouts(&rank, "adamw", 0);
    if (!status.code) status = walk_layouts(&rank, "sgd", 100);
    comm_rank_close(&rank);
    return status;
}

// Four parameters train two steps, then six do, cut otherwise.
static gs_status add_a_group(const comm_rank *rank, part *now, part *next, model *cut) {
    enum { FIRST = 4 };
    GS_TRY(open_first(now, rank, &layouts[2], "adamw", FIRST));
    GS_TRY(open_part(next, rank, &layouts[1], "adamw"));
    for (int64_t step = 0; step < 2; step++) GS_TRY(step_part(cut, now, step));
    const gs_reshard_options options = {
        .from = now->shards, .to = next->shards, .comm = rank->comm, .device = rank->device};
    GS_TRY(gs_reshard_optimizer(&options, next->optimizer, now->optimizer, DEADLINE));
    for (size_t i = 0; i < next->num_segments; i++) {
        gs_segment own = next->segments[i];
        const float *first = gs_optimizer_state(next->optimizer, 0, i);
        bool is_new = own.tensor >= FIRST;
        for (size_t e = 0; e < own.count; e++)
            if (is_new && first[e] != 0)
                return gs_error(GS_INTERNAL, "new parameter %zu has a state", own.tensor);
        if (is_new == (gs_optimizer_num_updates(next->optimizer)[own.tensor] != 0))
            return gs_error(GS_INTERNAL, "parameter %zu: other updates", own.tensor);
    }
    return gs_ok();
}

// As with one optimizer of all that has rested for the new ones.
static gs_status body_add(const gs_rank_env *env) {
    static model cut, whole;
    static const uint8_t first[2][NUM_PARAMS] = {{1, 1, 1, 1, 0, 0}, {1, 1, 0, 1, 0, 0}};
    static const uint8_t both[NUM_PARAMS] = {1, 1, 1, 1, 1, 1};
    const bool decays[NUM_PARAMS] = {true, false, true};
    const gs_optimizer_options options = {.kind = "adamw",
                                          .beta1 = 0.9f,
                                          .beta2 = 0.99f,
                                          .eps = 1e-6f,
                                          .momentum = 0.9f,
                                          .weight_decay = 0.1f};
    gs_param_spec params[NUM_PARAMS];
    comm_rank rank;
    gs_optimizer *all = NULL;
    part now = {0}, next = {0};
    list_params(params);
    begin_model(&cut);
    begin_model(&whole);
    gs_status status = comm_rank_open(&rank, env, 1 << 16, NULL);
    if (!status.code)
        status = gs_optimizer_create(&all, &options, params, decays, NUM_PARAMS, rank.device);
    if (!status.code) status = add_a_group(&rank, &now, &next, &cut);
    for (int64_t step = 0; step < 3 && !status.code; step++) {
        write_grads(&whole, step);
        status = gs_optimizer_step(all, whole.params, whole.param_grads,
                                   step < 2 ? first[step] : both, 0.05f, 1);
        if (step == 1) share_values(&cut, &whole);
    }
    if (!status.code) status = step_part(&cut, &next, 2);
    if (!status.code) status = compare(&cut, &next, &whole, all);
    close_part(&now);
    close_part(&next);
    gs_optimizer_destroy(all);
    comm_rank_close(&rank);
    return status;
}

static gs_status deal_to(const gs_rank_env *env, const layout *to, const char *kind) {
    comm_rank rank;
    part now = {0}, next = {0};
    gs_status status = comm_rank_open(&rank, env, 1 << 16, NULL);
    if (!status.code) status = open_part(&now, &rank, &layouts[0], kind);
    if (!status.code) status = open_part(&next, &rank, to, kind);
    if (!status.code)
        status = gs_reshard_optimizer(
            &(gs_reshard_options){
                .from = now.shards, .to = next.shards, .comm = rank.comm, .device = rank.device},
            next.optimizer, now.optimizer, DEADLINE);
    close_part(&now);
    close_part(&next);
    comm_rank_close(&rank);
    return status;
}

// Rank 1 goes to another partition than the others.
static gs_status body_differ(const gs_rank_env *env) {
    return deal_to(env, &layouts[env->rank == 1 ? 3 : 2], "adam");
}

// Rank 1 has fewer states than the others, each as large as theirs.
static gs_status body_other_states(const gs_rank_env *env) {
    return deal_to(env, &layouts[2], env->rank == 1 ? "sgd" : "adam");
}

// The state of an optimizer whose rank has done a step.
static gs_status check_untouched(const part *of, const float *const *before) {
    for (size_t i = 0; i < of->num_segments; i++)
        if (memcmp(gs_optimizer_state(of->optimizer, 0, i), before[i],
                   of->segments[i].count * sizeof(float)) != 0)
            return gs_error(GS_INTERNAL, "the old state of segment %zu has changed", i);
    return gs_ok();
}

static gs_status deal_and_look_back(const comm_rank *rank, part *now, part *next) {
    static model cut;
    static float memory[MAX_ELEMENTS];
    const float *before[2 * NUM_PARAMS];
    size_t at = 0;
    begin_model(&cut);
    GS_TRY(step_part(&cut, now, 0));
    for (size_t i = 0; i < now->num_segments; i++) {
        before[i] = memcpy(memory + at, gs_optimizer_state(now->optimizer, 0, i),
                           now->segments[i].count * sizeof(float));
        at += now->segments[i].count;
    }
    gs_status status = gs_reshard_optimizer(&(gs_reshard_options){.from = now->shards,
                                                                  .to = next->shards,
                                                                  .comm = rank->comm,
                                                                  .device = rank->device,
                                                                  .piece_bytes = 100},
                                            next->optimizer, now->optimizer, DEADLINE);
    GS_TRY(check_untouched(now, before));
    return status;
}

// Rank 1 dies at a piece of it.
static gs_status body_die(const gs_rank_env *env) {
    comm_rank rank;
    part now = {0}, next = {0};
    gs_status status = comm_rank_open(&rank, env, 1 << 16, NULL);
    if (!status.code) status = open_part(&now, &rank, &layouts[0], "adam");
    if (!status.code) status = open_part(&next, &rank, &layouts[3], "adam");
    if (!status.code) status = deal_and_look_back(&rank, &now, &next);
    close_part(&now);
    close_part(&next);
    comm_rank_close(&rank);
    return status;
}

static gs_status body_misuse(const gs_rank_env *env) {
    comm_rank rank;
    part now, next, other;
    GS_TRY(comm_rank_open(&rank, env, 1 << 16, NULL));
    GS_TRY(open_part(&now, &rank, &layouts[0], "adam"));
    GS_TRY(open_part(&next, &rank, &layouts[1], "adam"));
    GS_TRY(open_part(&other, &rank, &layouts[1], "sgd"));
    const gs_reshard_options options = {
        .from = now.shards, .to = next.shards, .comm = rank.comm, .device = rank.device};
    gs_status kinds = gs_reshard_optimizer(&options, other.optimizer, now.optimizer, DEADLINE);
    gs_status swapped = gs_reshard_optimizer(&options, now.optimizer, next.optimizer, DEADLINE);
    close_part(&now);
    close_part(&next);
    close_part(&other);
    comm_rank_close(&rank);
    if (!strstr(kinds.message, "optimizers of two kinds")) return kinds;
    return strstr(swapped.message, "the old optimizer is not of the segments") ? gs_ok() : swapped;
}

static void state_is_where_its_new_owners_expect_it(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 5; world_size++) {
        gs_status status = gs_ranks_run("deal_anew", world_size, NULL, gs_deadline_in_seconds(60));
        if (status.code) fail_msg("%s", status.message);
    }
}

static void a_group_that_is_added_begins_beside_what_there_was(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 4; world_size++)
        assert_ok(gs_ranks_run("add", world_size, NULL, gs_deadline_in_seconds(60)));
}

static void check_told(const char *body, const char *words) {
    gs_ranks *ranks;
    gs_status statuses[3];
    assert_ok(gs_ranks_start(&ranks, body, 3, NULL, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    for (int r = 0; r < 3; r++)
        if (!strstr(statuses[r].message, words))
            fail_msg("%s, rank %d: %s", body, r, statuses[r].message);
    gs_ranks_destroy(ranks);
}

static void a_rank_with_another_partition_or_other_states_is_named_on_all(void **state) {
    (void)state;
    check_told("differ", "rank 1 against rank 0: another owner of some element to be");
    check_told("other_states",
               "rank 1 against rank 0: number of states of the optimizer that is dealt anew "
               "1 against 2");
}

static void a_rank_that_dies_takes_nothing_from_the_others(void **state) {
    (void)state;
#ifndef GRADSYNC_FAILPOINTS
    skip();
#endif
    static const char *const places[] = {"GRADSYNC_FAILPOINTS=sharded.reshard#1=kill@1",
                                         "GRADSYNC_FAILPOINTS=sharded.reshard#1=kill@7"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        gs_ranks *ranks;
        gs_status statuses[3];
        assert_ok(gs_ranks_start(&ranks, "die", 3, NULL, (const char *const[]){places[i], NULL}));
        assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
        gs_ranks_destroy(ranks);
        assert_string_equal(statuses[1].message, "killed by signal 9");
        for (int r = 0; r < 3; r += 2)
            if (statuses[r].code != GS_ABORTED || !strstr(statuses[r].message, "rank 1 died"))
                fail_msg("rank %d: %s", r, statuses[r].message);
    }
}

static void what_does_not_fit_is_refused_by_name(void **state) {
    (void)state;
    gs_status status = gs_ranks_run("misuse", 2, NULL, gs_deadline_in_seconds(60));
    assert_string_equal(status.message, "");
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"deal_anew", body_deal_anew},
                                          {"add", body_add},
                                          {"differ", body_differ},
                                          {"die", body_die},
                                          {"misuse", body_misuse},
                                          {"other_states", body_other_states},
                                          {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_is_where_its_new_owners_expect_it),
        cmocka_unit_test(a_group_that_is_added_begins_beside_what_there_was),
        cmocka_unit_test(a_rank_with_another_partition_or_other_states_is_named_on_all),
        cmocka_unit_test(a_rank_that_dies_takes_nothing_from_the_others),
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
