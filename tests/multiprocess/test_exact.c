// Exact mode: the same bits for every world size and across a stop and a resume. Normal mode: N
// ranks train as one does, to rounding.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"

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
    assert_ok(trainer_rank_train(one, dir, spec, 1, NULL));
    gs_temp_dir_remove(dir);
    for (int world_size = 2; world_size <= 4; world_size++) {
        char what[32];
        snprintf(what, sizeof what, "%d ranks", world_size);
        dir = gs_temp_dir_make();
        assert_ok(trainer_rank_train(many, dir, spec, world_size, NULL));
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

enum { RESUMED_AT = 11, RESUMED_TO = 24 };

// What as many ranks have saved at RESUMED_AT, each its part or rank 0 all of it, goes on at these worlds as `undisturbed` does.
static void check_resumes(const gs_digest *undisturbed, int savers, const char *parts, const int *world_sizes, size_t num_worlds) {
    static const char format[] =
        "{\"name\":\"exact\",\"exact\":true," MLP "\"world\":{\"min\":1,\"max\":8},\"logical_shards\":8,"
        "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003,\"weight_decay\":0.01,\"grad_clip_norm\":1},"
        "\"reducer\":{\"first_bucket_bytes\":1024,\"bucket_cap_bytes\":4096,\"timeout_seconds\":60},"
        "\"checkpoint\":{\"parts\":\"%s\"},\"steps\":{\"target\":%d}}";
    char whole[sizeof format + 20], first[sizeof format + 20], *dir = gs_temp_dir_make();
    gs_digest resumed[TRAINER_RANK_MAX_STEPS];
    snprintf(whole, sizeof whole, format, parts, RESUMED_TO);
    snprintf(first, sizeof first, format, parts, RESUMED_AT);
    assert_ok(trainer_rank_train(resumed, dir, first, savers, NULL));
    assert_int_equal(trainer_rank_last_step(resumed), RESUMED_AT);
    char *checkpoint = trainer_rank_checkpoint(dir);
    assert_non_null(checkpoint);
    for (size_t i = 0; i < num_worlds; i++) {
        char what[80], *other = gs_temp_dir_make();
        snprintf(what, sizeof what, "saved by %d (parts of %s), resumed by %d", savers, parts, world_sizes[i]);
        assert_ok(trainer_rank_train(resumed, other, whole, world_sizes[i], checkpoint));
        assert_same_from(undisturbed, resumed, RESUMED_AT + 1, RESUMED_TO, what);
        gs_temp_dir_remove(other);
    }
    gs_temp_dir_remove(dir);
    free(checkpoint);
}

static void resume_at_another_world_size_has_the_same_bits(void **state) {
    (void)state;
    static const char spec[] =
        "{\"name\":\"exact\",\"exact\":true," MLP "\"world\":{\"min\":1,\"max\":8},\"logical_shards\":8,"
        "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003,\"weight_decay\":0.01,\"grad_clip_norm\":1},\"steps\":{\"target\":24}}";
    static const int all[] = {1, 2, 3, 4, 8}, three[] = {3};
    gs_digest undisturbed[TRAINER_RANK_MAX_STEPS];
    char *dir = gs_temp_dir_make();
    assert_ok(trainer_rank_train(undisturbed, dir, spec, 2, NULL));
    gs_temp_dir_remove(dir);
    check_resumes(undisturbed, 3, "one", all, sizeof all / sizeof *all);
    check_resumes(undisturbed, 8, "ranks", three, 1);
}

// Each of three ranks writes a third of the state, cut inside tensors.
static void parts_of_three_ranks_resume_at_one_two_and_five(void **state) {
    (void)state;
    static const int world_sizes[] = {1, 2, 5};
    static const char format[] =
        "{\"name\":\"parts\",\"exact\":true,\"logical_shards\":5,\"world\":{\"min\":1,\"max\":5}," MLP
        "\"optimizer\":{\"lr\":0.003,\"weight_decay\":0.01},"
        "\"checkpoint\":{\"parts\":\"ranks\"},\"steps\":{\"target\":%d}}";
    char whole[sizeof format + 8], first[sizeof format + 8], *dir = gs_temp_dir_make();
    snprintf(whole, sizeof whole, format, 16);
    snprintf(first, sizeof first, format, 7);
    // 5 shards of 6 samples
    for (char *text = whole; text; text = text == whole ? first : NULL)
        memcpy(strstr(text, "\"global_batch\":48"), "\"global_batch\":30", 17);
    gs_digest undisturbed[TRAINER_RANK_MAX_STEPS], resumed[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(undisturbed, dir, whole, 2, NULL));
    gs_temp_dir_remove(dir);
    dir = gs_temp_dir_make();
    assert_ok(trainer_rank_train(resumed, dir, first, 3, NULL));
    char *checkpoint = trainer_rank_checkpoint(dir);
    assert_non_null(checkpoint);
    for (size_t i = 0; i < sizeof world_sizes / sizeof *world_sizes; i++) {
        char *other = gs_temp_dir_make();
        assert_ok(trainer_rank_train(resumed, other, whole, world_sizes[i], checkpoint));
        assert_same_from(undisturbed, resumed, 8, 16, "resumed from parts");
        gs_temp_dir_remove(other);
    }
    gs_temp_dir_remove(dir);
    free(checkpoint);
}

static void resume_with_another_learning_rate_is_refused(void **state) {
    (void)state;
    char *spec = make_spec(MLP, true, 3), *dir = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(digests, dir, spec, 1, NULL));
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

static void three_ranks_train_as_one_does(void **state) {
    (void)state;
    char *spec = make_spec(GPT2, false, 20);
    char *alone = gs_temp_dir_make(), *together = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(digests, alone, spec, 1, NULL));
    assert_ok(trainer_rank_train(digests, together, spec, 3, NULL));
    // Sums in another order: 20 steps of AdamW at lr 0.003 keep the parameters within 1e-4 of each
    // other.
    assert_ok(trainer_rank_check_near(together, alone, (gs_near){1e-4, 1e-4, false}));
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
        cmocka_unit_test(parts_of_three_ranks_resume_at_one_two_and_five),
        cmocka_unit_test(resume_with_another_learning_rate_is_refused),
        cmocka_unit_test(three_ranks_train_as_one_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
