// Calls that all ranks make together, and rank 1 of three makes wrongly: it is told at once, and so
// are the others, which would otherwise wait for it to their deadline.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/optim/optimizer.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/sharded/param_gather.h"
#include "gradsync/sharded/reshard.h"
#include "gradsync/sharded/shard_norm.h"
#include "gradsync/sharded/shards.h"
#include "gradsync/sparse/sparse_rows.h"
#include "gradsync/step/averager.h"
#include "gradsync/step/batch_sync.h"
#include "gradsync/step/buffers.h"
#include "gradsync/step/join.h"
#include "gradsync/step/state_sync.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/soon.h"

enum { WORLD = 3, CULPRIT = 1, NUM_PARAMS = 3, COUNT = 40, GATHER_LANE = 1 };

typedef struct lone_rank {
    comm_rank rank;
    bool errs;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan;
    gs_shards *shards;
    float memory[NUM_PARAMS * COUNT];
} lone_rank;

static gs_status open_rank(lone_rank *self, const gs_rank_env *env, uint32_t generation) {
    *self = (lone_rank){.errs = env->rank == CULPRIT};
    GS_TRY(comm_rank_open(&self->rank, env, 1 << 16,
                          &(gs_comm_options){.num_lanes = 2, .generation = generation}));
    for (size_t p = 0; p < NUM_PARAMS; p++)
        self->params[p] = gs_param_spec_make(GS_FP32, COUNT, 0, "p%zu", p);
    GS_TRY(gs_bucket_plan_parity(&self->plan, self->params, NUM_PARAMS, 1, 1, NULL));
    return gs_shards_create(&self->shards, &(gs_shards_options){.plan = &self->plan,
                                                                .params = self->params,
                                                                .num_params = NUM_PARAMS,
                                                                .world_size = WORLD});
}

static void close_rank(lone_rank *self) {
    gs_shards_destroy(self->shards);
    gs_bucket_plan_release(&self->plan);
    comm_rank_close(&self->rank);
}

// Options as a program has them that was compiled for a newer library, and sets what this one
// lacks.
#define NEWER(type, ...)                                                                           \
    struct {                                                                                       \
        type known;                                                                                \
        int64_t more;                                                                              \
    } newer = {.known = {__VA_ARGS__}, .more = self->errs}

// ---- state that is dealt anew

static gs_status deal_parts(const gs_reshard_options *options, size_t element_bytes) {
    float from[NUM_PARAMS * COUNT] = {0}, to[NUM_PARAMS * COUNT];
    const void *old_parts[NUM_PARAMS] = {from, from, from};
    void *new_parts[NUM_PARAMS] = {to, to, to};
    return gs_reshard_run(options, new_parts, old_parts, element_bytes, soon());
}

static gs_status deal_no_elements(lone_rank *self) {
    return deal_parts(&(gs_reshard_options){.from = self->shards,
                                            .to = self->shards,
                                            .comm = self->rank.comm,
                                            .device = self->rank.device},
                      self->errs ? 0 : sizeof(float));
}

static gs_status deal_to_another_world(lone_rank *self) {
    gs_shards *others;
    GS_TRY(gs_shards_create(&others, &(gs_shards_options){.plan = &self->plan,
                                                          .params = self->params,
                                                          .num_params = NUM_PARAMS,
                                                          .world_size = WORLD + 1}));
    gs_status status = deal_parts(&(gs_reshard_options){.from = self->shards,
                                                        .to = self->errs ? others : self->shards,
                                                        .comm = self->rank.comm,
                                                        .device = self->rank.device},
                                  sizeof(float));
    gs_shards_destroy(others);
    return status;
}

static gs_status deal_an_optimizer(lone_rank *self, gs_optimizer *optimizer) {
    NEWER(gs_reshard_options, .from = self->shards, .to = self->shards, .comm = self->rank.comm,
          .device = self->rank.device);
    return gs_reshard_optimizer_sized(&newer.known, sizeof newer, optimizer, optimizer, soon());
}

static gs_status deal_with_newer_options(lone_rank *self) {
    const bool decays[NUM_PARAMS] = {0};
    gs_optimizer *optimizer;
    gs_optimizer_options options = {.kind = "sgd", .momentum = 0.5f};
    options.segments = gs_shards_of_rank(self->shards, self->rank.rank, &options.num_segments);
    GS_TRY(gs_optimizer_create(&optimizer, &options, self->params, decays, NUM_PARAMS,
                               self->rank.device));
    gs_status status = deal_an_optimizer(self, optimizer);
    gs_optimizer_destroy(optimizer);
    return status;
}

// ---- parameters on their way

static gs_status make_gather(gs_param_gather **out, lone_rank *self, int lane) {
    NEWER(gs_param_gather_options, .shards = self->shards, .comm = self->rank.comm,
          .params = gs_arena_data(self->rank.arena), .lane = lane);
    if (lane == GATHER_LANE) newer.more = 0;
    return gs_param_gather_create_sized(out, &newer.known, sizeof newer, soon());
}

static gs_status gather_with_newer_options(lone_rank *self) {
    gs_param_gather *gather;
    gs_status status = make_gather(&gather, self, 0);
    gs_param_gather_destroy(gather);
    return status;
}

// Behind a start and its end; rank 1 has forgotten the end.
static gs_status gather_once(lone_rank *self, gs_param_gather *gather) {
    GS_TRY(gs_param_gather_finish(gather, soon()));  // there is nothing to wait for
    GS_TRY(gs_param_gather_start(gather, 5));
    return self->errs ? gs_ok() : gs_param_gather_finish(gather, soon());
}

static gs_status start_twice(lone_rank *self) {
    gs_param_gather *gather;
    GS_TRY(make_gather(&gather, self, GATHER_LANE));
    gs_status status = gather_once(self, gather);
    if (!status.code) status = gs_param_gather_start(gather, 6);
    if (!status.code) status = gs_param_gather_finish(gather, soon());
    gs_param_gather_destroy(gather);
    return status;
}

static gs_status freeze_under_way(lone_rank *self) {
    const bool trainable[NUM_PARAMS] = {true, false, true};
    gs_param_gather *gather;
    GS_TRY(make_gather(&gather, self, GATHER_LANE));
    gs_status status = gather_once(self, gather);
    if (!status.code) status = gs_param_gather_set_trainable(gather, trainable);
    if (!status.code) status = gs_param_gather_start(gather, 6);
    if (!status.code) status = gs_param_gather_finish(gather, soon());
    gs_param_gather_destroy(gather);
    return status;
}

static gs_status norm_of_no_order(lone_rank *self) {
    double norm;
    void *grads[NUM_PARAMS] = {self->memory, self->memory, self->memory};
    gs_shard_grads own = {.grads = grads, .device = self->rank.device};
    own.segments = gs_shards_of_rank(self->shards, self->rank.rank, &own.num_segments);
    return gs_shard_norm(&norm, &own, self->errs ? -2 : 2, self->rank.comm, soon());
}

// ---- what else ranks do together

// Alone there is nothing to do but at the average itself.
static gs_status average(lone_rank *self, size_t options_bytes,
                         const gs_averager_options *options) {
    gs_averager *averager = NULL;
    int num_ranks;
    gs_status status = gs_averager_create_sized(&averager, options, options_bytes, soon());
    if (!status.code) status = gs_averager_run(averager, 0, NULL, &num_ranks, soon());
    gs_averager_destroy(averager);
    (void)self;
    return status;
}

static gs_status average_with_newer_options(lone_rank *self) {
    const gs_tensor_view tensor = {self->memory, COUNT, GS_FP32};
    const gs_average_level level = {.period = 2};
    NEWER(gs_averager_options, .levels = &level, .num_levels = 1, .tensors = &tensor,
          .num_tensors = 1, .comm = self->rank.comm);
    return average(self, sizeof newer, &newer.known);
}

static gs_status sync_with_newer_options(lone_rank *self) {
    const gs_tensor_view tensor = {self->memory, COUNT, GS_FP32};
    gs_state_sync_result result;
    NEWER(gs_state_sync_options, .tensors = &tensor, .num_tensors = 1);
    return gs_state_sync_sized(&result, &newer.known, sizeof newer, self->rank.comm, soon());
}

static gs_status run_hook(void *ctx, void *const *values, const gs_param_spec *specs,
                          size_t num_buffers, const gs_join_round *round, gs_comm *comm,
                          gs_deadline deadline) {
    const lone_rank *self = ctx;
    (void)values, (void)specs, (void)num_buffers, (void)round;
    if (self->errs) return gs_error(GS_DATA_LOSS, "a statistic is lost");
    return gs_comm_run(comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}, deadline);
}

static gs_status lose_a_statistic(lone_rank *self) {
    gs_buffers *buffers;
    GS_TRY(gs_buffers_create(&buffers, self->params, NUM_PARAMS, GS_BUFFERS_LOCAL, false,
                             self->rank.device));
    gs_buffers_set_hook(buffers, &(gs_buffers_hook){run_hook, self, true});
    gs_status status = gs_buffers_begin(buffers, self->rank.comm, soon());
    gs_buffers_destroy(buffers);
    return status;
}

static gs_status shadow(void *ctx, const gs_join_round *round, int64_t step, gs_deadline deadline) {
    lone_rank *self = ctx;
    (void)round, (void)step, (void)deadline;
    return self->errs ? gs_error(GS_DATA_LOSS, "no zeros to send") : gs_ok();
}

static gs_status wait_for_all(lone_rank *self) {
    return gs_comm_run(self->rank.comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}, soon());
}

// The others wait behind it, in the first step.
static gs_status join_with(lone_rank *self, const gs_join_options *options, size_t options_bytes) {
    gs_join *join;
    gs_join_round round;
    gs_status status = gs_join_create_sized(&join, options, options_bytes, self->rank.comm);
    if (!status.code) status = gs_join_open(join, &round, true, 0, soon());
    gs_join_destroy(join);
    return status;
}

static gs_status join_with_newer_options(lone_rank *self) {
    NEWER(gs_join_options, .divisor = GS_DIVIDE_BY_ACTIVE);
    return join_with(self, &newer.known, sizeof newer);
}

static gs_status join_without_shadow(lone_rank *self) {
    const gs_joinable joinable = {.name = "a metric", .shadow = self->errs ? NULL : shadow};
    const gs_join_options options = {.joinables = &joinable, .num_joinables = 1};
    return join_with(self, &options, sizeof options);
}

static gs_status shadow_with_data(lone_rank *self) {
    gs_join *join;
    gs_join_round round;
    GS_TRY(gs_join_create(&join, &(gs_join_options){0}, self->rank.comm));
    gs_status status = gs_join_open(join, &round, true, 0, soon());
    if (!status.code && self->errs) status = gs_join_shadow(join, soon());
    if (!status.code) status = wait_for_all(self);
    gs_join_destroy(join);
    return status;
}

static gs_status combine_too_many(lone_rank *self) {
    gs_batch_sync *sync;
    double rows = 2, mean[3] = {0}, squares[3] = {0};
    GS_TRY(gs_batch_sync_create(&sync, self->rank.comm, 2, 20));
    const gs_model_sync *all = gs_batch_sync_at(sync, 5);
    gs_status status = all->combine(all->ctx, &rows, mean, squares, self->errs ? 3 : 2);
    gs_batch_sync_destroy(sync);
    return status;
}

// More than there is memory for; the others are in their first pass.
static gs_status make_a_huge_batch_sync(lone_rank *self) {
    gs_batch_sync *sync;
    double sums[2] = {0};
    gs_status status =
        gs_batch_sync_create(&sync, self->rank.comm, self->errs ? SIZE_MAX / 4 : 2, 20);
    const gs_model_sync *all = status.code ? NULL : gs_batch_sync_at(sync, 5);
    if (all) status = all->sum(all->ctx, sums, 2);
    gs_batch_sync_destroy(sync);
    return status;
}

// Rank 1 has no data, and nothing to say instead; the others wait behind the step.
static gs_status shadow_nothing(lone_rank *self) {
    gs_join *join;
    gs_join_round round;
    const gs_joinable joinable = {.name = "a metric", .shadow = shadow, .ctx = self};
    GS_TRY(gs_join_create(&join, &(gs_join_options){.joinables = &joinable, .num_joinables = 1},
                          self->rank.comm));
    gs_status status = gs_join_open(join, &round, !self->errs, 0, soon());
    if (!status.code && self->errs) status = gs_join_shadow(join, soon());
    if (!status.code) status = wait_for_all(self);
    gs_join_destroy(join);
    return status;
}

static gs_status make_no_rows(lone_rank *self) {
    gs_sparse_rows *rows;
    const gs_param_spec table = gs_param_spec_make(GS_FP32, 10, 4, "table");
    NEWER(gs_sparse_rows_options, .param = &table, .max_rows = 3, .device = self->rank.device);
    gs_status status =
        gs_sparse_rows_create_sized(&rows, &newer.known, sizeof newer, self->rank.comm, soon());
    gs_sparse_rows_destroy(rows);
    return status;
}

// The others compare their buckets.
static gs_status make_a_newer_reducer(lone_rank *self) {
    gs_reducer *reducer;
    NEWER(gs_reducer_options, .params = self->params, .num_params = NUM_PARAMS, .plan = &self->plan,
          .shards = {.num_shards = WORLD, .rank = self->rank.rank, .world_size = WORLD},
          .arena = self->rank.arena, .device = self->rank.device);
    gs_status status =
        gs_reducer_create_sized(&reducer, &newer.known, sizeof newer, self->rank.comm, soon());
    gs_reducer_destroy(reducer);
    return status;
}

typedef struct lone_error {
    const char *name;
    gs_status (*call)(lone_rank *self);
    const char *words;
} lone_error;

static const lone_error lone_errors[] = {
    {"no elements", deal_no_elements,
     "rank 1: reshard: from, to, communicator, device and elements"},
    {"another world", deal_to_another_world, "rank 1: reshard: shards of 3 and of 4 ranks"},
    {"newer reshard", deal_with_newer_options, "rank 1: gs_reshard_options: an option is set"},
    {"newer gather", gather_with_newer_options,
     "rank 1: gs_param_gather_options: an option is set"},
    {"twice", start_twice, "rank 1: step 6: parameters of step 5 are still on their way"},
    {"under way", freeze_under_way, "rank 1: parameters of step 5 are still on their way"},
    {"norm", norm_of_no_order, "rank 1: norm: p is -2"},
    {"newer averager", average_with_newer_options, "rank 1: gs_averager_options: an option is set"},
    {"newer state", sync_with_newer_options, "rank 1: gs_state_sync_options: an option is set"},
    {"newer join", join_with_newer_options, "rank 1: gs_join_options: an option is set"},
    {"no shadow", join_without_shadow, "rank 1: join: joinable 0 has no shadow function"},
    {"has data", shadow_with_data, "join: rank 1 has nothing to shadow: it has data"},
    {"too many", combine_too_many, "batch statistics, rank 1, step 5: 3 values, made for 2"},
    {"huge", make_a_huge_batch_sync, "batch statistics, rank 1: out of memory"},
    {"buffers", lose_a_statistic, "buffers, rank 1: hook: a statistic is lost"},
    {"shadow", shadow_nothing, "join, step 0: rank 1 shadows a metric: no zeros to send"},
    {"newer reducer", make_a_newer_reducer, "rank 1: gs_reducer_options: an option is set"},
    {"rows", make_no_rows, "rank 1: gs_sparse_rows_options: an option is set"}};
#define NUM_LONE_ERRORS (sizeof lone_errors / sizeof *lone_errors)

// Before the guilty rank no other is named: whoever reads one line of a log reads of that one.
static gs_status check(const gs_status *status, const lone_error *of, bool errs) {
    const char *named = strstr(status->message, "rank ");
    bool blames = named && strncmp(named, "rank 1", strlen("rank 1")) == 0;
    if (errs != (status->code == GS_ABORTED) && blames && strstr(status->message, of->words))
        return gs_ok();
    return gs_error(GS_INTERNAL, "%s: %s \"%s\"", of->name, gs_code_name(status->code),
                    status->message);
}

// Each on a communicator of its own.
static gs_status body_err(const gs_rank_env *env) {
    for (size_t i = 0; i < NUM_LONE_ERRORS; i++) {
        lone_rank self;
        gs_status status = open_rank(&self, env, (uint32_t)i + 1);
        if (!status.code) status = lone_errors[i].call(&self);
        close_rank(&self);
        GS_TRY(check(&status, &lone_errors[i], env->rank == CULPRIT));
    }
    return gs_ok();
}

static void what_one_rank_gets_wrong_all_are_told(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("err", WORLD, "", gs_deadline_in_seconds(100)));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"err", body_err}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_one_rank_gets_wrong_all_are_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
