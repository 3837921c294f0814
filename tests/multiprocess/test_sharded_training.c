// reducer.sharding as a job: each rank updates a part of the parameters and holds the optimizer
// state of that part alone, and all that is saved has the bits that it has when every rank updates
// everything.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/state/trainer_state.h"

#define STEPS 5

// An odd width, so that parts of a bucket begin inside a row.
#define MLP "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,17,15,10],\"batch_norm\":\"local\"}"
#define SYNC_MLP "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,17,15,10],\"batch_norm\":\"sync\"}"
#define BF16 ",\"precision\":\"bf16\""
#define FP16 ",\"precision\":\"fp16\""
// Gradients overflow in the first step, on some ranks alone, and not in the last.
#define LARGE_SCALE ",\"loss_scale\":{\"init\":524288}"
#define GPT2                                                                                       \
    "\"kind\":\"gpt2\",\"gpt2\":{\"layers\":2,\"heads\":2,\"channels\":16,\"context\":8,"          \
    "\"vocab\":64}"
#define ADAMW "\"kind\":\"adamw\",\"weight_decay\":0.1"

typedef struct job {
    const char *what;
    int world_size, logical_shards;
    const char *model, *optimizer, *reducer;
    bool exact, in_windows;  // with sharding gradients
} job;

static const job jobs[] = {
    {"one rank", 1, 2, MLP, ADAMW, "", false, false},
    {"two ranks", 2, 2, MLP, ADAMW ",\"grad_clip_norm\":0.05", "", false, false},
    {"passes that add up", 3, 6, MLP, "\"kind\":\"sgd\",\"momentum\":0.9,\"grad_clip_norm\":0.1",
     "", false, false},
    {"a rate of its own for each step", 4, 4, GPT2,
     "\"kind\":\"adam\",\"grad_clip_norm\":0.05,\"schedule\":{\"kind\":\"cosine\",\"warmup_steps\":"
     "2}",
     "", false, false},
    {"exact", 3, 4, "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,17,15,10]}", ADAMW, "", true, false},
    {"whole tensors, as they come", 2, 2, GPT2, ADAMW, ",\"partition\":\"oss\"", false, false},
    {"whole tensors, large ones first", 4, 4, MLP, ADAMW ",\"grad_clip_norm\":0.05",
     ",\"partition\":\"zero\"", false, false},
    {"buckets of owners", 3, 3, GPT2, ADAMW ",\"grad_clip_norm\":0.05",
     ",\"partition\":\"oss\",\"plan\":\"owner\"", false, false},
    {"overlap", 2, 4, MLP, ADAMW, ",\"zero_overlap\":\"step\"", false, false},
    {"interleaved", 4, 4, GPT2, "\"kind\":\"adam\"",
     ",\"zero_overlap\":\"interleaved\",\"zero_split_buckets\":true", false, false},
    {"overlap of layers left out", 2, 4,
     "\"kind\":\"gpt2\",\"gpt2\":{\"layers\":3,\"heads\":2,\"channels\":16,\"context\":8,"
     "\"vocab\":64,\"layer_drop\":0.5}",
     ADAMW, ",\"zero_overlap\":\"interleaved\"", false, false},
    {"exact overlap that waits for the norm", 3, 3,
     "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,17,15,10]}", ADAMW ",\"grad_clip_norm\":0.05",
     ",\"zero_overlap\":\"interleaved\"", true, false},
    {"synchronised norms", 3, 3, SYNC_MLP, ADAMW ",\"grad_clip_norm\":0.05", "", false, false},
    {"mean over samples", 2, 3, GPT2, ADAMW, ",\"op\":\"sample_mean\"", false, false},
    {"synchronised norms in windows", 2, 2, SYNC_MLP, ADAMW, ",\"op\":\"sample_mean\"", false,
     true},
    {"16 bits on the way", 2, 2, MLP, ADAMW, ",\"wire_dtype\":\"bf16\"", false, false},
    {"gradients in windows", 3, 3, MLP, ADAMW ",\"grad_clip_norm\":0.05", "", false, true},
    {"tied weights, and no state", 2, 2, GPT2, "\"kind\":\"sgd\",\"momentum\":0", ",\"op\":\"sum\"",
     true, true},
    {"masters", 2, 4, MLP BF16, ADAMW ",\"grad_clip_norm\":0.05", "", false, false},
    {"masters of one rank", 1, 2, MLP FP16, ADAMW LARGE_SCALE, ",\"partition\":\"oss\"", false,
     false},
    {"masters of whole tensors, scaled", 4, 4, GPT2 FP16,
     "\"kind\":\"adam\",\"grad_clip_norm\":0.05" LARGE_SCALE, ",\"partition\":\"zero\"", false,
     false},
    {"masters, interleaved", 3, 3, GPT2 FP16, ADAMW LARGE_SCALE,
     ",\"zero_overlap\":\"interleaved\",\"zero_split_buckets\":true", false, false},
    {"masters and windows, scaled", 3, 3, MLP FP16, "\"kind\":\"sgd\",\"momentum\":0.9" LARGE_SCALE,
     "", false, true},
    {"exact masters", 3, 4, "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,17,15,10]}" BF16, ADAMW, "",
     true, false},
};

static bool is_of_shards(const char *members) {
    return strstr(members, "partition") || strstr(members, "zero_");
}

static int passes = 1;  // micro-batches of a logical shard in a step

static char *write_spec(const job *of, bool is_sharded, int target) {
    char *spec;
    if (asprintf(
            &spec,
            "{\"name\":\"parts\",\"exact\":%s,\"logical_shards\":%d,"
            "\"world\":{\"min\":%d,\"max\":%d},"
            "\"model\":{\"seed\":5,%s},"
            "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2,\"global_batch\":%d},"
            "\"optimizer\":{%s,\"lr\":0.01},\"reducer\":{\"first_bucket_bytes\":512,"
            "\"bucket_cap_bytes\":2048,\"check_replicas_every_steps\":2,\"sharding\":\"%s\"%s},"
            "\"checkpoint\":{\"every_steps\":2},\"steps\":{\"target\":%d}}",
            of->exact ? "true" : "false", of->logical_shards,
            of->in_windows ? of->logical_shards : 1, of->logical_shards, of->model,
            2 * passes * of->logical_shards, of->optimizer,
            !is_sharded      ? "none"
            : of->in_windows ? "gradients"
                             : "optimizer",
            is_sharded || !is_of_shards(of->reducer) ? of->reducer : "", target) < 0)
        abort();
    return spec;
}

// Without a record, for whose digests each step waits: parameters arrive while the next one
// computes.
static void train_quietly(const job *of, const char *dir, const char *spec) {
    char *arg;
    if (asprintf(&arg, "{\"spec\":%s,\"dir\":\"%s\",\"quiet\":true,\"device\":\"cpu\"}", spec,
                 dir) < 0)
        abort();
    gs_status status = gs_ranks_run("train", of->world_size, arg, gs_deadline_in_seconds(200));
    if (status.code) fail_msg("%s: %s", of->what, status.message);
    free(arg);
}

static void train_on_record(const job *of, const char *dir, const char *spec, int world_size,
                            int target, const char *resume) {
    static gs_digest held[TRAINER_RANK_MAX_STEPS];
    gs_status status = trainer_rank_train_on(held, dir, spec, world_size, resume, "cpu");
    if (status.code) fail_msg("%s: %s", of->what, status.message);
    assert_int_equal(trainer_rank_last_step(held), target);
}

// Returns the checkpoint of the end: the caller's.
static char *train(const job *of, const char *dir, bool is_sharded, int world_size, int target,
                   const char *resume) {
    char *spec = write_spec(of, is_sharded, target);
    if (is_sharded && of->world_size)
        train_quietly(of, dir, spec);
    else
        train_on_record(of, dir, spec, world_size, target, resume);
    free(spec);
    char *checkpoint = trainer_rank_checkpoint(dir);
    assert_non_null(checkpoint);
    return checkpoint;
}

// What lies in a checkpoint, as one rank has it that has it all.
typedef struct loaded {
    gs_device *device;
    gs_json *object;
    gs_trainer_state state;
} loaded;

static void load(loaded *out, const job *of, const char *checkpoint) {
    gs_job_spec spec;
    gs_field_errors errors = {0};
    char *text = write_spec(of, false, STEPS);
    assert_ok(gs_json_parse(&out->object, text, strlen(text)));
    assert_ok(gs_job_spec_decode(&spec, out->object, &errors));
    assert_ok(gs_device_open(&out->device, "cpu", &(gs_device_options){.num_threads = 1}));
    assert_ok(gs_trainer_state_init(&out->state, &spec, out->device));
    assert_ok(gs_checkpoint_load(&out->state, checkpoint, &spec));
    free(text);
}

static void unload(loaded *of) {
    gs_trainer_state_release(&of->state);
    gs_device_close(of->device);
    gs_json_release(of->object);
}

// Of all that is in a checkpoint, whoever wrote which part of it.
static gs_digest digest_of(const job *of, const char *checkpoint) {
    loaded one;
    load(&one, of, checkpoint);
    gs_digest digest = gs_trainer_state_digest(&one.state);
    int64_t skipped = one.state.position.skipped_steps, taken = one.state.position.step - skipped;
    if (strstr(of->optimizer, LARGE_SCALE) && !(skipped && taken))
        fail_msg("%s: %d of %d steps were skipped", of->what, (int)skipped, (int)(skipped + taken));
    unload(&one);
    return digest;
}

// Whether the parameters of two checkpoints are, of which the other is of a job with so many
// passes.
static bool are_near(const job *of, const char *a, const char *b, int passes_of_b) {
    static const gs_near within = {1e-5, 1e-5, false};
    loaded one, other;
    bool near = true;
    load(&one, of, a);
    passes = passes_of_b;
    load(&other, of, b);
    for (size_t p = 0; p < one.state.num_params; p++) {
        const float *x = one.state.params[p], *y = other.state.params[p];
        for (size_t i = 0; i < gs_param_spec_count(&one.state.param_specs[p]); i++)
            near = near && is_near((double)x[i], (double)y[i], within);
    }
    unload(&one);
    unload(&other);
    return near;
}

static void assert_same(const job *of, const char *one, const char *other) {
    if (!gs_digest_equal(digest_of(of, one), digest_of(of, other)))
        fail_msg("%s: another state", of->what);
}

static void what_is_saved_has_the_bits_of_whole_updates(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        const job *of = &jobs[i];
        char *dir = gs_temp_dir_make(), *whole_dir = gs_temp_dir_make();
        char *parts = train(of, dir, true, of->world_size, STEPS, NULL);
        char *whole = train(of, whole_dir, false, of->world_size, STEPS, NULL);
        assert_same(of, parts, whole);
        free(parts);
        free(whole);
        gs_temp_dir_remove(dir);
        gs_temp_dir_remove(whole_dir);
    }
}

// Each micro-batch is reduced, and what stays of it adds up: sums in another order than those of a
// job that reduces the last one alone, so parameters are near. (Adam would make much of the last bits of gradients near
// zero.)
static void gradients_of_several_micro_batches_add_up(void **state) {
    (void)state;
    static const job of_passes[] = {
        {"micro-batches", 3, 3, MLP, "\"kind\":\"sgd\",\"momentum\":0.9,\"grad_clip_norm\":0.05",
         "", false, true},
        {"micro-batches of sums", 2, 2, GPT2, "\"kind\":\"sgd\",\"momentum\":0.9",
         ",\"op\":\"sample_mean\"", false, true}};
    for (size_t i = 0; i < sizeof of_passes / sizeof of_passes[0]; i++) {
        const job *of = &of_passes[i];
        char *dir = gs_temp_dir_make(), *whole_dir = gs_temp_dir_make(),
             *first_dir = gs_temp_dir_make();
        passes = 3;
        char *parts = train(of, dir, true, of->world_size, STEPS, NULL);
        char *whole = train(of, whole_dir, false, of->world_size, STEPS, NULL);
        passes = 1;
        char *first = train(of, first_dir, true, of->world_size, STEPS, NULL);
        passes = 3;
        assert_true(are_near(of, parts, whole, 3));
        assert_false(are_near(of, parts, first, 1));
        free(parts);
        free(whole);
        free(first);
        gs_temp_dir_remove(dir);
        gs_temp_dir_remove(whole_dir);
        gs_temp_dir_remove(first_dir);
    }
}

// 2 ranks, then 3, then 1; sharded or not, as the digits of `kinds` say.
static gs_digest train_on_and_on(const job *of, const char *kinds) {
    static const int worlds[] = {2, 3, 1};
    char *dirs[3], *last = NULL;
    for (int i = 0; i < 3; i++) {
        dirs[i] = gs_temp_dir_make();
        char *next = train(of, dirs[i], kinds[i] == '1', worlds[i], 2 * i + 1, last);
        free(last);
        last = next;
    }
    gs_digest digest = digest_of(of, last);
    for (int i = 0; i < 3; i++) gs_temp_dir_remove(dirs[i]);
    free(last);
    return digest;
}

static void checkpoints_go_on_in_any_world_sharded_or_not(void **state) {
    (void)state;
    static const char *const kinds[] = {"111", "010"};
    static const job jobs_of_worlds[] = {
        {"another world", 0, 6, MLP, ADAMW, "", false, false},
        {"another world of masters", 0, 6, GPT2 FP16,
         ADAMW ",\"loss_scale\":{\"init\":64,\"growth_interval\":2}", "", false, false}};
    for (size_t j = 0; j < 2; j++) {
        const job *of = &jobs_of_worlds[j];
        gs_digest whole = train_on_and_on(of, "000");
        for (int i = 0; i < 2; i++) {
            if (!gs_digest_equal(train_on_and_on(of, kinds[i]), whole))
                fail_msg("%s, sharded as in %s: another state", of->what, kinds[i]);
        }
    }
}

// In exact mode the state at the end has one value, whatever the world, whoever owns what, and
// however often it was cut otherwise on the way.
static void exact_jobs_have_the_same_bits_in_any_world_cut_in_any_way(void **state) {
    (void)state;
    static const int worlds[] = {4, 3, 2};
    static const char *const cuts[] = {",\"partition\":\"oss\"", "", ",\"zero_overlap\":\"step\""};
    char *dirs[4], *last = NULL;
    job of = {"exact in any world",
              0,
              4,
              "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,17,15,10]}",
              ADAMW,
              "",
              true,
              false};
    for (int i = 0; i < 4; i++) dirs[i] = gs_temp_dir_make();
    char *whole = train(&of, dirs[3], false, 2, STEPS, NULL);
    for (int i = 0; i < 3; i++) {
        of.reducer = cuts[i];
        char *next = train(&of, dirs[i], true, worlds[i], 2 * i + 1, last);
        free(last);
        last = next;
    }
    of.reducer = "";
    assert_same(&of, last, whole);
    for (int i = 0; i < 4; i++) gs_temp_dir_remove(dirs[i]);
    free(last);
    free(whole);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_has_the_bits_of_whole_updates),
        cmocka_unit_test(gradients_of_several_micro_batches_add_up),
        cmocka_unit_test(checkpoints_go_on_in_any_world_sharded_or_not),
        cmocka_unit_test(exact_jobs_have_the_same_bits_in_any_world_cut_in_any_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
