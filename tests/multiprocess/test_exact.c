// Exact mode: the same bits for every world size and across a stop and a resume. Normal mode: N ranks train
// as one does, to rounding.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"
#include "worker/checkpoint/safetensors.h"

#define MLP                                                                                        \
    "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[20,24,16,5],\"batch_norm\":\"local\"}},"       \
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":6,\"global_batch\":48},"
#define GPT2                                                                                       \
    "\"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"layers\":2,\"heads\":2,\"channels\":32,"             \
    "\"context\":12,\"vocab\":64}},\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2},"
// Buckets far smaller than the model, so that several of them are in flight.
#define COMMON                                                                                     \
    "\"world\":{\"min\":1,\"max\":4},\"logical_shards\":4,"                                        \
    "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003,\"weight_decay\":0.01,\"grad_clip_norm\":1},"  \
    "\"reducer\":{\"first_bucket_bytes\":1024,\"bucket_cap_bytes\":4096,\"timeout_seconds\":60},"

static char *make_spec(const char *model, bool exact, int steps) {
    char *text = NULL;
    if (asprintf(&text, "{\"name\":\"exact\",\"exact\":%s,%s" COMMON "\"steps\":{\"target\":%d}}",
                 exact ? "true" : "false", model, steps) < 0) {
        abort();
    }
    return text;
}

// Trains in `dir`; what rank 0 held after each step comes back, and that the others held the same is checked.
static void train(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *dir, const char *spec,
                  int world_size, const char *resume) {
    gs_status status = trainer_rank_train(digests, dir, spec, world_size, resume);
    if (status.code) fail_msg("%s", status.message);
}

static void assert_same_from(const gs_digest *a, const gs_digest *b, int first, int last,
                             const char *what) {
    for (int step = first; step <= last; step++) {
        assert_true(gs_digest_fold(a[step]) != 0);
        if (!gs_digest_equal(a[step], b[step])) fail_msg("%s: differs at step %d", what, step);
    }
}

static void check_world_sizes(const char *model) {
    char *spec = make_spec(model, true, 50), *dir = gs_temp_dir_make();
    gs_digest one[TRAINER_RANK_MAX_STEPS], many[TRAINER_RANK_MAX_STEPS];
    train(one, dir, spec, 1, NULL);
    gs_temp_dir_remove(dir);
    for (int world_size = 2; world_size <= 4; world_size++) {
        char what[32];
        snprintf(what, sizeof what, "%d ranks", world_size);
        dir = gs_temp_dir_make();
        train(many, dir, spec, world_size, NULL);
        assert_same_from(one, many, 1, 50, what);
        gs_temp_dir_remove(dir);
    }
    free(spec);
}

static void exact_mlp_has_the_same_bits_for_1_2_3_4_ranks(void **state) {
    (void)state;
    check_world_sizes(MLP);
}

static void exact_gpt2_has_the_same_bits_for_1_2_3_4_ranks(void **state) {
    (void)state;
    check_world_sizes(GPT2);
}

static void resume_at_another_world_size_has_the_same_bits(void **state) {
    (void)state;
    char *whole = make_spec(MLP, true, 40), *first = make_spec(MLP, true, 17);
    char *dir = gs_temp_dir_make();
    gs_digest undisturbed[TRAINER_RANK_MAX_STEPS], resumed[TRAINER_RANK_MAX_STEPS];
    train(undisturbed, dir, whole, 2, NULL);
    gs_temp_dir_remove(dir);

    dir = gs_temp_dir_make();
    train(resumed, dir, first, 3, NULL);
    assert_int_equal(trainer_rank_last_step(resumed), 17);
    char *checkpoint = trainer_rank_checkpoint(dir);
    assert_non_null(checkpoint);
    for (int world_size = 1; world_size <= 4; world_size += 3) {
        char *other = gs_temp_dir_make();
        train(resumed, other, whole, world_size, checkpoint);
        assert_same_from(undisturbed, resumed, 18, 40, "resumed");
        gs_temp_dir_remove(other);
    }
    gs_temp_dir_remove(dir);
    free(checkpoint);
    free(whole);
    free(first);
}

static void resume_with_another_learning_rate_is_refused(void **state) {
    (void)state;
    char *spec = make_spec(MLP, true, 3), *dir = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    train(digests, dir, spec, 1, NULL);
    char *checkpoint = trainer_rank_checkpoint(dir);
    char *other = strdup(spec);
    memcpy(strstr(other, "0.003"), "0.004", 5);
    char *arg = trainer_rank_arg(other, dir, checkpoint);
    gs_status status = gs_ranks_run("train", 1, arg, gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "/optimizer/lr"));
    gs_temp_dir_remove(dir);
    free(checkpoint);
    free(arg);
    free(other);
    free(spec);
}

static gs_safetensors *open_parameters(const char *dir) {
    gs_safetensors *file = NULL;
    char path[700], *checkpoint = trainer_rank_checkpoint(dir);
    assert_non_null(checkpoint);
    snprintf(path, sizeof path, "%s/part-0.safetensors", checkpoint);
    gs_status status = gs_safetensors_open(&file, path);
    if (status.code) fail_msg("%s", status.message);
    free(checkpoint);
    return file;
}

// Sums in another order: 20 steps of AdamW at lr 0.003 keep the parameters within 1e-4 of each other.
static void assert_near(const char *dir_a, const char *dir_b) {
    gs_safetensors *a = open_parameters(dir_a), *b = open_parameters(dir_b);
    for (size_t i = 0; i < gs_safetensors_count(a); i++) {
        const gs_safetensor *ours = gs_safetensors_at(a, i);
        const gs_safetensor *theirs = gs_safetensors_find(b, ours->name);
        if (strncmp(ours->name, "optimizer.", 10) == 0 || ours->dtype != GS_FP32) continue;
        const float *x = ours->data, *y = theirs->data;
        for (size_t j = 0; j < ours->bytes / sizeof(float); j++) {
            if (fabsf(x[j] - y[j]) > 1e-4f * (1 + fabsf(x[j]))) {
                fail_msg("%s[%zu]: %g against %g", ours->name, j, (double)x[j], (double)y[j]);
            }
        }
    }
    gs_safetensors_close(a);
    gs_safetensors_close(b);
}

static void three_ranks_train_as_one_does(void **state) {
    (void)state;
    char *spec = make_spec(GPT2, false, 20);
    char *alone = gs_temp_dir_make(), *together = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    train(digests, alone, spec, 1, NULL);
    train(digests, together, spec, 3, NULL);
    assert_near(alone, together);
    gs_temp_dir_remove(alone);
    gs_temp_dir_remove(together);
    free(spec);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_mlp_has_the_same_bits_for_1_2_3_4_ranks),
        cmocka_unit_test(exact_gpt2_has_the_same_bits_for_1_2_3_4_ranks),
        cmocka_unit_test(resume_at_another_world_size_has_the_same_bits),
        cmocka_unit_test(resume_with_another_learning_rate_is_refused),
        cmocka_unit_test(three_ranks_train_as_one_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
