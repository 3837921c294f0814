// Training whose gradients are partly rows (sparse_embedding) or partly absent (layer_drop):
// against the dense run, against a serial reference, for every world size and across a resume.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "gradsync/reducer/bucket_queue.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"
#include "worker/models/layer_drop.h"
#include "worker/models/registry.h"

static char *make_spec(const char *members, const char *gpt2, const char *reducer, int steps) {
    char *text = NULL;
    if (asprintf(&text,
                 "{\"name\":\"sparse\",%s\"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"layers\":3,"
                 "\"heads\":2,\"channels\":16,\"context\":12%s}},\"data\":{\"kind\":\"synthetic\","
                 "\"micro_batch\":1,\"global_batch\":8},\"world\":{\"min\":1,\"max\":4},"
                 "\"logical_shards\":4,\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003,"
                 "\"weight_decay\":0.01,\"grad_clip_norm\":1},\"reducer\":{%s"
                 "\"first_bucket_bytes\":1024,\"bucket_cap_bytes\":4096,\"timeout_seconds\":60},"
                 "\"steps\":{\"target\":%d}}",
                 members, gpt2, reducer, steps) < 0)
        abort();
    return text;
}

// Three steps of SGD at lr 1: the parameters show what the gradients were.
// Each parameter has a bucket.
static char *make_sgd_spec(const char *precision, int layers, const char *reducer) {
    char *text = NULL;
    if (asprintf(&text,
                 "{\"name\":\"sparse\",\"model\":{\"kind\":\"gpt2\",\"precision\":\"%s\",\"gpt2\":{"
                 "\"layers\":%d,\"heads\":2,\"channels\":16,\"context\":12,\"vocab\":600}},"
                 "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":1,\"global_batch\":8},"
                 "\"world\":{\"min\":1,\"max\":4},\"logical_shards\":4,"
                 "\"optimizer\":{\"kind\":\"sgd\",\"lr\":1},\"reducer\":{%s"
                 "\"first_bucket_bytes\":1,\"bucket_cap_bytes\":1,\"timeout_seconds\":60},"
                 "\"steps\":{\"target\":3}}",
                 precision, layers, reducer) < 0)
        abort();
    return text;
}

static void assert_same_from(const gs_digest *a, const gs_digest *b, int first, int last) {
    for (int step = first; step <= last; step++) {
        assert_true(gs_digest_fold(a[step]) != 0);
        if (!gs_digest_equal(a[step], b[step])) fail_msg("differs at step %d", step);
    }
}

// Sums in another order: AdamW at lr 0.003 keeps the parameters of 15 steps this near each other.
#define NEAR 1e-4

static void embedding_rows_train_as_the_dense_gradient_does(void **state) {
    (void)state;
    const char *const ways[][2] = {{"gather", ""},
                                   {"owner", ""},
                                   {"auto", "\"static_graph\":true,"},
                                   {"owner", "\"op\":\"sum\","},
                                   {"gather", "\"op\":\"sample_mean\","}};
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char with_rows[96];
        snprintf(with_rows, sizeof with_rows, "\"sparse_embedding\":\"%s\",%s", ways[i][0],
                 ways[i][1]);
        char *dense = make_spec("", ",\"vocab\":600", ways[i][1], 15);
        char *sparse = make_spec("", ",\"vocab\":600", with_rows, 15);
        char *dense_dir = gs_temp_dir_make();
        assert_ok(trainer_rank_train(digests, dense_dir, dense, 2, NULL));
        for (int world_size = 1; world_size <= 3; world_size++) {
            char *dir = gs_temp_dir_make();
            assert_ok(trainer_rank_train(digests, dir, sparse, world_size, NULL));
            assert_ok(trainer_rank_check_near(dir, dense_dir, (gs_near){NEAR, NEAR, false}));
            gs_temp_dir_remove(dir);
        }
        gs_temp_dir_remove(dense_dir);
        free(dense);
        free(sparse);
    }
}

static void check_against_dense(const char *precision, int layers, const char *reducer,
                                double tolerance) {
    char with_rows[96];
    snprintf(with_rows, sizeof with_rows, "\"sparse_embedding\":\"owner\",%s", reducer);
    char *dense = make_sgd_spec(precision, layers, reducer);
    char *sparse = make_sgd_spec(precision, layers, with_rows);
    char *dense_dir = gs_temp_dir_make(), *dir = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(digests, dense_dir, dense, 2, NULL));
    assert_ok(trainer_rank_train(digests, dir, sparse, 2, NULL));
    assert_ok(trainer_rank_check_near(dir, dense_dir, (gs_near){tolerance, tolerance, false}));
    gs_temp_dir_remove(dir);
    gs_temp_dir_remove(dense_dir);
    free(dense);
    free(sparse);
}

// Rows stay fp32 there: what the dense gradient loses by rounding is the difference.
static void rows_go_with_16_bit_parameters_a_loss_scale_and_a_16_bit_wire(void **state) {
    (void)state;
    check_against_dense("bf16", 2, "", 1e-3f);
    check_against_dense("fp16", 2, "", 1e-4f);
    check_against_dense("fp32", 2, "\"wire_dtype\":\"bf16\",", 1e-3f);
}

// Then rows are posted by the tail, since the last buckets are not in flight at the end of
// backward.
static void rows_come_behind_more_buckets_than_are_in_flight_at_once(void **state) {
    (void)state;
    const int layers = 22;
    assert_true(4 + 12 * layers > GS_MAX_BUCKETS_IN_FLIGHT);
    check_against_dense("fp32", layers, "", 1e-5f);
}

// Checkpoint at step 7, then on to 15.
static void check_resume(const char *members, const char *gpt2, const char *reducer, int world_size,
                         int other_size) {
    char *whole = make_spec(members, gpt2, reducer, 15),
         *first = make_spec(members, gpt2, reducer, 7);
    gs_digest undisturbed[TRAINER_RANK_MAX_STEPS], resumed[TRAINER_RANK_MAX_STEPS];
    char *dir = gs_temp_dir_make();
    assert_ok(trainer_rank_train(undisturbed, dir, whole, world_size, NULL));
    gs_temp_dir_remove(dir);
    dir = gs_temp_dir_make();
    assert_ok(trainer_rank_train(resumed, dir, first, world_size, NULL));
    char *checkpoint = trainer_rank_checkpoint(dir);
    assert_non_null(checkpoint);
    char *other = gs_temp_dir_make();
    assert_ok(trainer_rank_train(resumed, other, whole, other_size, checkpoint));
    assert_same_from(undisturbed, resumed, 8, 15);
    gs_temp_dir_remove(other);
    gs_temp_dir_remove(dir);
    free(checkpoint);
    free(whole);
    free(first);
}

static void embedding_rows_have_the_same_bits_after_a_resume(void **state) {
    (void)state;
    check_resume("", ",\"vocab\":600", "\"sparse_embedding\":\"auto\",", 2, 2);
}

#define DROP ",\"vocab\":32,\"layer_drop\":0.4"

static void exact_layer_drop_has_the_same_bits_for_1_2_3_4_ranks(void **state) {
    (void)state;
    char *spec = make_spec("\"exact\":true,", DROP, "", 25), *dir = gs_temp_dir_make();
    gs_digest one[TRAINER_RANK_MAX_STEPS], many[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(one, dir, spec, 1, NULL));
    gs_temp_dir_remove(dir);
    for (int world_size = 2; world_size <= 4; world_size++) {
        dir = gs_temp_dir_make();
        assert_ok(trainer_rank_train(many, dir, spec, world_size, NULL));
        assert_same_from(one, many, 1, 25);
        gs_temp_dir_remove(dir);
    }
    free(spec);
}

static void layer_drop_has_the_same_bits_after_a_resume_at_another_world_size(void **state) {
    (void)state;
    check_resume("\"exact\":true,", DROP, "", 3, 2);
}

static void three_ranks_with_layer_drop_and_rows_train_as_one_does(void **state) {
    (void)state;
    char *dense = make_spec("", ",\"vocab\":600,\"layer_drop\":0.4", "", 15);
    char *sparse =
        make_spec("", ",\"vocab\":600,\"layer_drop\":0.4", "\"sparse_embedding\":\"gather\",", 15);
    char *alone = gs_temp_dir_make(), *together = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(digests, alone, dense, 1, NULL));
    assert_ok(trainer_rank_train(digests, together, sparse, 3, NULL));
    assert_ok(trainer_rank_check_near(together, alone, (gs_near){NEAR, NEAR, false}));
    gs_temp_dir_remove(alone);
    gs_temp_dir_remove(together);
    free(dense);
    free(sparse);
}

// What follows runs a model on the reducer itself, to see which parameters were used.
#define NUM_LAYERS 4
#define DROP_STEPS 12
#define MAX_PARAMS (2 + 12 * NUM_LAYERS + 2)

static const gs_gpt2_options small = {.layers = NUM_LAYERS,
                                      .heads = 2,
                                      .channels = 8,
                                      .context = 4,
                                      .vocab = 16,
                                      .micro_batch = 2,
                                      .layer_drop = 0.6,
                                      .seed = 3};

typedef struct drop_rank {
    comm_rank self;
    gs_model model;
    gs_param_spec specs[MAX_PARAMS];
    size_t num_params;
    void *params[MAX_PARAMS];
    float *referee[MAX_PARAMS];
    void *one[MAX_PARAMS];
    gs_reducer *reducer;
    int32_t tokens[8], targets[8];
} drop_rank;

static gs_status open_drop_rank(drop_rank *rank, const gs_rank_env *env) {
    GS_TRY(comm_rank_open(&rank->self, env, (size_t)1 << 20, NULL));
    GS_TRY(gs_gpt2_create(&rank->model, &small, rank->self.device));
    const gs_model_param *list = rank->model.ops->params(rank->model.state, &rank->num_params);
    for (size_t p = 0; p < rank->num_params; p++) {
        size_t bytes = gs_param_spec_bytes(&list[p].spec);
        rank->specs[p] = list[p].spec;
        rank->params[p] = calloc(1, bytes);
        rank->referee[p] = calloc(1, bytes);
        rank->one[p] = calloc(1, bytes);
    }
    GS_TRY(rank->model.ops->init(rank->model.state, rank->params, NULL, 9));
    gs_bucket_plan plan;
    GS_TRY(gs_bucket_plan_parity(&plan, rank->specs, rank->num_params, 256, 1024, NULL));
    gs_reducer_options options = {
        .params = rank->specs,
        .num_params = rank->num_params,
        .plan = &plan,
        .shards = {.num_shards = env->world_size, .world_size = env->world_size, .rank = env->rank},
        .arena = rank->self.arena,
        .device = rank->self.device};
    gs_status status =
        gs_reducer_create(&rank->reducer, &options, rank->self.comm, gs_deadline_in_seconds(60));
    gs_bucket_plan_release(&plan);
    return status;
}

static void close_drop_rank(drop_rank *rank) {
    gs_reducer_destroy(rank->reducer);
    gs_model_destroy(&rank->model);
    for (size_t p = 0; p < rank->num_params; p++) {
        free(rank->params[p]);
        free(rank->referee[p]);
        free(rank->one[p]);
    }
    comm_rank_close(&rank->self);
}

static gs_batch batch_of_shard(drop_rank *rank, int64_t step, int shard) {
    gs_random_key key = {1, gs_random_stream((uint64_t)step, (uint64_t)shard, 0)};
    for (uint64_t i = 0; i < 8; i++) {
        rank->tokens[i] = (int32_t)(gs_random_u64(key, i) % 16);
        rank->targets[i] = (int32_t)(gs_random_u64(key, 8 + i) % 16);
    }
    return (gs_batch){.rows = 2, .positions = 4, .tokens = rank->tokens, .targets = rank->targets};
}

static gs_status run_shard(drop_rank *rank, gs_model_pass *pass, int64_t step, int shard) {
    gs_batch batch = batch_of_shard(rank, step, shard);
    pass->batch = &batch;
    pass->training = true;
    pass->step = step;
    pass->shard = shard;
    pass->params = rank->params;
    GS_TRY(rank->model.ops->forward(rank->model.state, pass));
    return rank->model.ops->backward(rank->model.state, pass);
}

// The mean over all shards, one after the other.
static gs_status run_referee(drop_rank *rank, int64_t step) {
    int num_shards = rank->self.world_size;
    for (size_t p = 0; p < rank->num_params; p++)
        memset(rank->referee[p], 0, gs_param_spec_bytes(&rank->specs[p]));
    for (int shard = 0; shard < num_shards; shard++) {
        gs_model_pass pass = {.grads = rank->one, .grad_factor = 1};
        GS_TRY(run_shard(rank, &pass, step, shard));
        for (size_t p = 0; p < rank->num_params; p++)
            for (size_t i = 0; i < gs_param_spec_count(&rank->specs[p]); i++)
                rank->referee[p][i] += ((float *)rank->one[p])[i] / (float)num_shards;
    }
    return gs_ok();
}

// What the draws say of the parameters of a layer: whether any shard keeps it.
static bool is_used(int world_size, int64_t step, size_t param) {
    gs_layer_drop drop = {small.layer_drop, small.seed};
    if (param < 2 || param >= 2 + 12 * NUM_LAYERS) return true;
    for (int shard = 0; shard < world_size; shard++)
        if (!gs_layer_drop_skips(&drop, step, shard, (int64_t)(param - 2) / 12)) return true;
    return false;
}

static gs_status check_drop_step(const drop_rank *rank, const gs_reduce_result *result,
                                 int64_t step, int *num_unused) {
    void *const *grads = gs_reducer_grads(rank->reducer);
    for (size_t p = 0; p < rank->num_params; p++) {
        bool used = is_used(rank->self.world_size, step, p);
        *num_unused += !used;
        if (result->used[p] != used)
            return gs_error(GS_INTERNAL, "step %d: %s: used is %d", (int)step, rank->specs[p].name,
                            result->used[p]);
        for (size_t i = 0; i < gs_param_spec_count(&rank->specs[p]); i++) {
            if (!(fabsf(((float *)grads[p])[i] - rank->referee[p][i]) <= 1e-6f))
                return gs_error(GS_INTERNAL, "step %d: %s[%zu]: %g against %g", (int)step,
                                rank->specs[p].name, i, (double)((float *)grads[p])[i],
                                (double)rank->referee[p][i]);
        }
    }
    return gs_ok();
}

static gs_status body_drop(const gs_rank_env *env) {
    drop_rank rank = {0};
    gs_status status = open_drop_rank(&rank, env);
    char kept[DROP_STEPS * NUM_LAYERS + 16] = "";
    int num_unused = 0;
    gs_layer_drop drop = {small.layer_drop, small.seed};
    for (int64_t step = 0; step < DROP_STEPS && !status.code; step++) {
        gs_reducer_pass reducing;
        gs_reduce_result result;
        status = run_referee(&rank, step);
        if (!status.code) status = gs_reducer_begin(rank.reducer, step);
        if (!status.code) status = gs_reducer_begin_pass(rank.reducer, &reducing, 2);
        gs_model_pass pass = {.grads = reducing.grads,
                              .accumulate = reducing.accumulate,
                              .grad_factor = 1,
                              .ready = gs_reducer_ready_callback,
                              .ready_ctx = rank.reducer,
                              .skipped = gs_reducer_unused_callback,
                              .skipped_ctx = rank.reducer};
        if (!status.code) status = run_shard(&rank, &pass, step, env->rank);
        if (!status.code) status = gs_reducer_end_pass(rank.reducer);
        if (!status.code)
            status = gs_reducer_finish(rank.reducer, &result, gs_deadline_in_seconds(60));
        if (!status.code) status = check_drop_step(&rank, &result, step, &num_unused);
        for (int64_t layer = 0; layer < NUM_LAYERS; layer++)
            strcat(kept, gs_layer_drop_skips(&drop, step, env->rank, layer) ? "-" : "x");
    }
    snprintf(kept + strlen(kept), 16, " %d", num_unused);
    gs_rank_note(env, kept);
    close_drop_rank(&rank);
    return status;
}

static void
dropped_layers_are_unused_where_no_shard_kept_them_and_the_mean_is_the_serial_one(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[3];
    assert_int_equal(gs_ranks_start(&ranks, "drop", 3, "", NULL).code, GS_OK);
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)).code, GS_OK);
    for (int r = 0; r < 3; r++) assert_string_equal(statuses[r].message, "");
    // Sets of layers differ between ranks, and some layer was dropped by all of them in some step.
    assert_string_not_equal(gs_ranks_note(ranks, 0), gs_ranks_note(ranks, 1));
    assert_string_not_equal(gs_ranks_note(ranks, 1), gs_ranks_note(ranks, 2));
    assert_null(strstr(gs_ranks_note(ranks, 0), " 0"));
    assert_true(strchr(gs_ranks_note(ranks, 0), 'x') && strchr(gs_ranks_note(ranks, 0), '-'));
    gs_ranks_destroy(ranks);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {"drop", body_drop}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_rows_train_as_the_dense_gradient_does),
        cmocka_unit_test(rows_go_with_16_bit_parameters_a_loss_scale_and_a_16_bit_wire),
        cmocka_unit_test(rows_come_behind_more_buckets_than_are_in_flight_at_once),
        cmocka_unit_test(embedding_rows_have_the_same_bits_after_a_resume),
        cmocka_unit_test(exact_layer_drop_has_the_same_bits_for_1_2_3_4_ranks),
        cmocka_unit_test(layer_drop_has_the_same_bits_after_a_resume_at_another_world_size),
        cmocka_unit_test(three_ranks_with_layer_drop_and_rows_train_as_one_does),
        cmocka_unit_test(
            dropped_layers_are_unused_where_no_shard_kept_them_and_the_mean_is_the_serial_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
