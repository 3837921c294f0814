// Two optimizers over parameters of their own behind one reducer, each cut among ranks: the bits of
// whole updates by one process, in every world and partition, all under one loss scale; and goes
// on, after a rank was killed and with fewer of them, from what each rank had saved of each
// optimizer.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "gradsync/optim/grad_scaler.h"
#include "gradsync/optim/optimizer.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/sharded/param_gather.h"
#include "gradsync/sharded/shard_reduce.h"
#include "gradsync/sharded/shards.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/temp_dir.h"

#define NUM_PARAMS 6
#define NUM_OPTIMIZERS 2
#define NUM_SHARDS 12    // logical ones: of an exact sum, whatever the world
#define POISONED_STEP 1  // a gradient of one optimizer's is infinite: neither is stepped
#define SAVED_STEP 3     // steps that are done when all save
#define DYING_STEP 4
#define NUM_STEPS 7
#define MAX_WORLD 3
#define GATHER_LANE 1
#define ARENA_BYTES ((size_t)512 << 10)
#define DEADLINE gs_deadline_in_seconds(60)

static const int64_t counts[NUM_PARAMS] = {301, 17, 1, 96, 250, 33};
#define POISONED 1
static const int optimizer_of[NUM_PARAMS] = {0, 1, 1, 0, 0, 1};

static const gs_optimizer_options kinds[NUM_OPTIMIZERS] = {
    {.kind = "adamw", .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.05f},
    {.kind = "sgd", .momentum = 0.9f},
};
static const gs_grad_scaler_options scaling = {
    .init_scale = 1024, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 100};
static const float rates[NUM_OPTIMIZERS] = {0.05f, 0.01f};

typedef struct trainer {
    comm_rank rank;
    gs_param_spec params[NUM_PARAMS];
    bool decays[NUM_PARAMS];
    gs_bucket_plan plan;
    gs_shards *shards;
    gs_hook_choice choice;
    gs_reducer *reducer;
    gs_param_gather *gather;
    gs_optimizer *optimizers[NUM_OPTIMIZERS];
    gs_grad_scaler scaler;  // of both
    void *const *values;
    bool is_whole;  // every optimizer has every tensor and is told which are its own
} trainer;

static gs_status cut(trainer *self, gs_partition partition) {
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        self->params[i] = gs_param_spec_make(GS_FP32, counts[i], 0, "p%zu", i);
        self->decays[i] = i % 2 == 0;
    }
    GS_TRY(gs_bucket_plan_parity(&self->plan, self->params, NUM_PARAMS, 400, 900, NULL));
    return gs_shards_create(&self->shards, &(gs_shards_options){.partition = partition,
                                                                .plan = &self->plan,
                                                                .params = self->params,
                                                                .num_params = NUM_PARAMS,
                                                                .world_size = self->rank.world_size,
                                                                .optimizers = optimizer_of});
}

static gs_status make_reducer(trainer *self) {
    size_t bytes;
    self->choice = (gs_hook_choice){.hook = gs_shard_reduce_hook(), .user = self->shards};
    const gs_reducer_options options = {.params = self->params,
                                        .num_params = NUM_PARAMS,
                                        .plan = &self->plan,
                                        .shards = {.num_shards = NUM_SHARDS,
                                                   .world_size = self->rank.world_size,
                                                   .rank = self->rank.rank,
                                                   .exact = true},
                                        .hooks = &self->choice,
                                        .num_hooks = 1,
                                        .arena = self->rank.arena,
                                        .device = self->rank.device,
                                        .tally = GS_TALLY_APART};
    GS_TRY(gs_reducer_arena_bytes(&bytes, &options));
    GS_TRY(gs_reducer_create(&self->reducer, &options, self->rank.comm, DEADLINE));
    GS_TRY(gs_param_gather_create(
        &self->gather,
        &(gs_param_gather_options){.shards = self->shards,
                                   .comm = self->rank.comm,
                                   .params = (char *)gs_arena_data(self->rank.arena) + bytes,
                                   .lane = GATHER_LANE},
        DEADLINE));
    self->values = gs_param_gather_params(self->gather);
    return gs_ok();
}

static gs_status make_optimizers(trainer *self) {
    for (int k = 0; k < NUM_OPTIMIZERS; k++) {
        gs_optimizer_options options = kinds[k];
        if (!self->is_whole)
            options.segments =
                gs_shards_of_optimizer(self->shards, self->rank.rank, k, &options.num_segments);
        GS_TRY(gs_optimizer_create(&self->optimizers[k], &options, self->params, self->decays,
                                   NUM_PARAMS, self->rank.device));
    }
    return gs_ok();
}

static gs_status open_trainer(trainer *self, const gs_rank_env *env, gs_partition partition,
                              bool is_whole) {
    *self = (trainer){.is_whole = is_whole};
    GS_TRY(comm_rank_open(&self->rank, env, ARENA_BYTES, &(gs_comm_options){.num_lanes = 2}));
    GS_TRY(cut(self, partition));
    GS_TRY(make_reducer(self));
    GS_TRY(make_optimizers(self));
    GS_TRY(gs_grad_scaler_init(&self->scaler, &scaling));
    for (size_t p = 0; p < NUM_PARAMS; p++)
        for (int64_t i = 0; i < counts[p]; i++)
            ((float *)self->values[p])[i] = sinf((float)(3 * i) + (float)p);
    return gs_ok();
}

static void close_trainer(trainer *self) {
    for (int k = 0; k < NUM_OPTIMIZERS; k++) gs_optimizer_destroy(self->optimizers[k]);
    gs_param_gather_destroy(self->gather);
    gs_reducer_destroy(self->reducer);
    gs_shards_destroy(self->shards);
    gs_bucket_plan_release(&self->plan);
    comm_rank_close(&self->rank);
}

static float grad_of(int shard, size_t param, int64_t i, int64_t step, float value) {
    float noise = (float)((int)((i * 7 + (int64_t)param + step) % 23) - 11) / 8;
    return noise * (1 + (float)shard / 3) + 0.3f * value;
}

static gs_status run_passes(trainer *self, int64_t step) {
    gs_reducer_pass pass = {0};
    GS_TRY(gs_reducer_begin(self->reducer, step));
    while (!pass.reduces) {
        GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, 1));
        for (size_t p = NUM_PARAMS; p-- > 0;) {
            float *grad = pass.grads[p];
            const float *values = self->values[p];
            for (int64_t i = 0; i < counts[p]; i++) {
                float value = grad_of(pass.shard, p, i, step, values[i]) * pass.grad_factor *
                              gs_grad_scaler_scale(&self->scaler);
                grad[i] = value + (pass.accumulate ? grad[i] : 0);
            }
            if (step == POISONED_STEP && p == POISONED && pass.shard == NUM_SHARDS - 1)
                grad[0] = INFINITY;
            GS_TRY(gs_reducer_mark_ready(self->reducer, p));
        }
        GS_TRY(gs_reducer_end_pass(self->reducer));
    }
    return gs_ok();
}

static gs_status step_whole(trainer *self, int k) {
    uint8_t used[NUM_PARAMS];
    for (size_t p = 0; p < NUM_PARAMS; p++) used[p] = optimizer_of[p] == k;
    return gs_optimizer_step(self->optimizers[k], self->values, gs_reducer_grads(self->reducer),
                             used, rates[k], gs_grad_scaler_inverse(&self->scaler));
}

static gs_status step_optimizer(trainer *self, int k, const uint8_t *used) {
    if (self->is_whole) return step_whole(self, k);
    void *params[NUM_PARAMS], *grads[NUM_PARAMS];
    gs_shards_point_optimizer(params, self->shards, self->rank.rank, k, self->values,
                              sizeof(float));
    gs_shards_point_optimizer(grads, self->shards, self->rank.rank, k,
                              gs_reducer_grads(self->reducer), sizeof(float));
    return gs_optimizer_step(self->optimizers[k], params, grads, used, rates[k],
                             gs_grad_scaler_inverse(&self->scaler));
}

static gs_status take_step(trainer *self, int64_t step) {
    gs_reduce_result result;
    GS_TRY(run_passes(self, step));
    GS_TRY(gs_reducer_finish(self->reducer, &result, DEADLINE));
    if (result.nonfinite != (step == POISONED_STEP))
        return gs_error(GS_INTERNAL, "step %lld: nonfinite %d", (long long)step, result.nonfinite);
    for (int k = 0; k < NUM_OPTIMIZERS && !result.nonfinite; k++)
        GS_TRY(step_optimizer(self, k, result.used));
    gs_grad_scaler_update(&self->scaler, &scaling, result.nonfinite);
    GS_TRY(gs_reducer_commit(self->reducer));
    GS_TRY(gs_param_gather_start(self->gather, step));
    return gs_param_gather_finish(self->gather, DEADLINE);
}

// ---- what is saved: each optimizer's state by its own name, each segment by its owner

typedef gs_status move_run(const char *path, size_t first, void *data, size_t bytes);

static gs_status write_run(const char *path, size_t first, void *data, size_t bytes) {
    FILE *file = fopen(path, "r+");
    if (!file) file = fopen(path, "w");
    bool moved =
        file && fseek(file, (long)first, SEEK_SET) == 0 && fwrite(data, 1, bytes, file) == bytes;
    if (file && fclose(file)) moved = false;
    return moved ? gs_ok() : gs_error(GS_INTERNAL, "cannot write %s", path);
}

static gs_status read_run(const char *path, size_t first, void *data, size_t bytes) {
    FILE *file = fopen(path, "r");
    bool moved =
        file && fseek(file, (long)first, SEEK_SET) == 0 && fread(data, 1, bytes, file) == bytes;
    if (file) fclose(file);
    return moved ? gs_ok()
                 : gs_error(GS_DATA_LOSS, "%s: has no %zu bytes from %zu on", path, bytes, first);
}

static gs_status move_segment(trainer *self, const char *dir, int k, size_t index, move_run *move) {
    size_t num;
    const gs_segment *own = gs_optimizer_segments(self->optimizers[k], &num) + index;
    size_t first = own->first * sizeof(float), bytes = own->count * sizeof(float);
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, self->params[own->tensor].name);
    GS_TRY(move(path, first, (float *)self->values[own->tensor] + own->first, bytes));
    for (int which = 0; which < gs_optimizer_state_count(self->optimizers[k]); which++) {
        snprintf(path, sizeof path, "%s/optimizer.%d.%s.%s", dir, k,
                 gs_optimizer_state_name(self->optimizers[k], which),
                 self->params[own->tensor].name);
        GS_TRY(move(path, first, gs_optimizer_state(self->optimizers[k], which, index), bytes));
    }
    return gs_ok();
}

static gs_status move_all(trainer *self, const char *dir, move_run *move) {
    char path[300];
    for (int k = 0; k < NUM_OPTIMIZERS; k++) {
        size_t num;
        gs_optimizer_segments(self->optimizers[k], &num);
        for (size_t i = 0; i < num; i++) GS_TRY(move_segment(self, dir, k, i, move));
        snprintf(path, sizeof path, "%s/optimizer.%d.num_updates", dir, k);
        if (move == read_run || self->rank.rank == 0)
            GS_TRY(move(path, 0, gs_optimizer_num_updates(self->optimizers[k]),
                        NUM_PARAMS * sizeof(int64_t)));
    }
    return gs_ok();
}

static gs_status meet(trainer *self) {
    return gs_comm_run(self->rank.comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1},
                       DEADLINE);
}

// Files are made by one rank, so that others write into them and not anew.
static gs_status save(trainer *self, const char *dir) {
    for (int rank = 0; rank < self->rank.world_size; rank++) {
        if (rank == self->rank.rank) GS_TRY(move_all(self, dir, write_run));
        GS_TRY(meet(self));
    }
    return gs_ok();
}

// What others own comes from them.
static gs_status load(trainer *self, const char *dir) {
    GS_TRY(move_all(self, dir, read_run));
    GS_TRY(gs_param_gather_start(self->gather, SAVED_STEP));
    return gs_param_gather_finish(self->gather, DEADLINE);
}

static void note_values(const trainer *self, const gs_rank_env *env) {
    char text[GS_DIGEST_TEXT_LEN];
    gs_digest_stream *stream = gs_digest_stream_create();
    for (size_t p = 0; p < NUM_PARAMS; p++)
        gs_digest_stream_add(stream, self->values[p], (size_t)counts[p] * sizeof(float));
    gs_digest_format(text, gs_digest_stream_value(stream));
    gs_digest_stream_destroy(stream);
    gs_rank_note(env, text);
}

static gs_status train(trainer *self, int64_t step, int dying, const char *dir) {
    float scale = gs_grad_scaler_scale(&self->scaler) / (step > POISONED_STEP ? 1 : 2);
    if (step) GS_TRY(load(self, dir));
    for (; step < NUM_STEPS; step++) {
        if (step == DYING_STEP && self->rank.rank == dying) raise(SIGKILL);
        GS_TRY(take_step(self, step));
        if (step + 1 == SAVED_STEP && dying >= 0) GS_TRY(save(self, dir));
    }
    if (gs_grad_scaler_scale(&self->scaler) == scale) return gs_ok();
    return gs_error(GS_INTERNAL, "a scale of %g", (double)gs_grad_scaler_scale(&self->scaler));
}

// arg: "PARTITION FIRST_STEP DYING_RANK DIR"; given: everything on every rank.
static gs_status body_train(const gs_rank_env *env) {
    int partition, dying;
    long long step;
    char dir[200];
    trainer self;
    if (sscanf(env->arg, "%d %lld %d %199s", &partition, &step, &dying, dir) != 4)
        return gs_error(GS_INVALID_ARGUMENT, "arguments: %s", env->arg);
    bool is_whole = partition == GS_PARTITION_GIVEN;
    gs_status status =
        open_trainer(&self, env, is_whole ? GS_PARTITION_FLAT : (gs_partition)partition, is_whole);
    if (!status.code) status = train(&self, step, dying, dir);
    if (!status.code) note_values(&self, env);
    close_trainer(&self);
    return status;
}

// ---- the parent

// What all ranks ended with.
static void run(char *values, int world_size, gs_partition partition, int64_t step,
                const char *dir) {
    gs_ranks *ranks;
    gs_status statuses[MAX_WORLD];
    char arg[300];
    snprintf(arg, sizeof arg, "%d %lld -1 %s", (int)partition, (long long)step, dir);
    assert_ok(gs_ranks_start(&ranks, "train", world_size, arg, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    for (int r = 0; r < world_size; r++) {
        if (statuses[r].code) fail_msg("rank %d: %s", r, statuses[r].message);
        assert_string_equal(gs_ranks_note(ranks, r), gs_ranks_note(ranks, 0));
    }
    snprintf(values, GS_DIGEST_TEXT_LEN, "%s", gs_ranks_note(ranks, 0));
    gs_ranks_destroy(ranks);
}

static void each_updates_its_own_with_the_bits_of_whole_updates(void **state) {
    (void)state;
    char whole[GS_DIGEST_TEXT_LEN], parts[GS_DIGEST_TEXT_LEN];
    run(whole, 1, GS_PARTITION_GIVEN, 0, "-");
    for (gs_partition partition = GS_PARTITION_FLAT; partition <= GS_PARTITION_SORTED; partition++)
        for (int world_size = 1; world_size <= MAX_WORLD; world_size++) {
            run(parts, world_size, partition, 0, "-");
            if (strcmp(parts, whole) != 0)
                fail_msg("%s, %d ranks: %s, whole: %s", gs_partition_name(partition), world_size,
                         parts, whole);
        }
}

static void die(int dying, gs_partition partition, const char *dir) {
    gs_ranks *ranks;
    gs_status statuses[MAX_WORLD];
    char arg[300];
    snprintf(arg, sizeof arg, "%d 0 %d %s", (int)partition, dying, dir);
    assert_ok(gs_ranks_start(&ranks, "train", MAX_WORLD, arg, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    for (int r = 0; r < MAX_WORLD; r++) assert_int_not_equal(statuses[r].code, GS_OK);
    assert_non_null(strstr(statuses[dying].message, "killed"));
    gs_ranks_destroy(ranks);
}

static void after_a_kill_fewer_go_on_from_what_each_had_saved(void **state) {
    (void)state;
    char whole[GS_DIGEST_TEXT_LEN], parts[GS_DIGEST_TEXT_LEN];
    run(whole, 1, GS_PARTITION_GIVEN, 0, "-");
    for (gs_partition partition = GS_PARTITION_FLAT; partition <= GS_PARTITION_GREEDY;
         partition++) {
        char *dir = gs_temp_dir_make();
        die(1, partition, dir);
        run(parts, MAX_WORLD - 1, partition, SAVED_STEP, dir);
        assert_string_equal(parts, whole);
        gs_temp_dir_remove(dir);
    }
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", body_train}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_updates_its_own_with_the_bits_of_whole_updates),
        cmocka_unit_test(after_a_kill_fewer_go_on_from_what_each_had_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
