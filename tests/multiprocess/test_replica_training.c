// Jobs with several replicas for each process: they train as that many processes would.
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
#include "tests/support/sample.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"

#define NUM_STEPS 12

#define MLP                                                                                        \
    "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[20,24,16,5],\"batch_norm\":\"local\"}},"       \
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":6,\"global_batch\":48},"
#define GPT2                                                                                       \
    "\"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"layers\":3,\"heads\":2,\"channels\":32,"             \
    "\"context\":12,\"vocab\":64,\"layer_drop\":0.4}},"                                            \
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2},"
#define GPT2_FP16                                                                                  \
    "\"model\":{\"kind\":\"gpt2\",\"precision\":\"fp16\",\"gpt2\":{\"layers\":2,\"heads\":2,"      \
    "\"channels\":32,\"context\":12,\"vocab\":64}},"                                               \
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2,\"global_batch\":16},"
#define ADAMW                                                                                      \
    "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003,\"weight_decay\":0.01,\"grad_clip_norm\":1},"
// Buckets far smaller than the model, so that several of them are in flight.
#define BUCKETS "\"first_bucket_bytes\":1024,\"bucket_cap_bytes\":[4096],\"timeout_seconds\":%d"

typedef struct job {
    const char *model, *optimizer, *reducer;  // reducer: more members, each with a comma before it
    int ranks, replicas;
    bool exact;
    int timeout_seconds;  // 0: 60
} job;

static char *make_spec(const job *what) {
    char *text = NULL;
    if (asprintf(&text,
                 "{\"name\":\"replicas\",\"exact\":%s,\"logical_shards\":4,"
                 "\"world\":{\"min\":%d,\"max\":%d,\"replicas_per_process\":%d},%s%s"
                 "\"reducer\":{" BUCKETS "%s},\"steps\":{\"target\":%d}}",
                 what->exact ? "true" : "false", what->ranks, what->ranks, what->replicas,
                 what->model, what->optimizer ? what->optimizer : ADAMW,
                 what->timeout_seconds ? what->timeout_seconds : 60,
                 what->reducer ? what->reducer : "", NUM_STEPS) < 0)
        abort();
    return text;
}

// What rank 0 held after each step; that the others held the same is checked.
static void train(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *dir, const job *what) {
    char *spec = make_spec(what);
    gs_status status = trainer_rank_train(digests, dir, spec, what->ranks, NULL);
    if (status.code) fail_msg("%d replicas: %s", what->replicas, status.message);
    free(spec);
}

static void assert_same_bits(const job *a, const job *b) {
    gs_digest ours[TRAINER_RANK_MAX_STEPS], theirs[TRAINER_RANK_MAX_STEPS];
    char *dir = gs_temp_dir_make(), *other = gs_temp_dir_make();
    train(ours, dir, a);
    train(theirs, other, b);
    for (int step = 1; step <= NUM_STEPS; step++) {
        assert_true(gs_digest_fold(ours[step]) != 0);
        if (!gs_digest_equal(ours[step], theirs[step]))
            fail_msg("%d · %d against %d · %d differ at step %d", a->ranks, a->replicas, b->ranks,
                     b->replicas, step);
    }
    gs_temp_dir_remove(dir);
    gs_temp_dir_remove(other);
}

// Sums in another order: 12 steps of AdamW at lr 0.003 keep the parameters within 1e-4 of each
// other.
static void assert_trained_near(const job *a, const job *b) {
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    char *dir = gs_temp_dir_make(), *other = gs_temp_dir_make();
    train(digests, dir, a);
    train(digests, other, b);
    assert_ok(trainer_rank_check_near(other, dir, (gs_near){1e-4, 1e-4, false}));
    gs_temp_dir_remove(dir);
    gs_temp_dir_remove(other);
}

static void one_rank_of_two_replicas_trains_as_two_ranks_to_the_bit(void **state) {
    (void)state;
    const char *const models[] = {MLP, GPT2};
    for (size_t i = 0; i < 2; i++)
        assert_same_bits(&(job){.model = models[i], .ranks = 1, .replicas = 2},
                         &(job){.model = models[i], .ranks = 2, .replicas = 1});
}

static void two_ranks_of_two_replicas_train_as_four_ranks(void **state) {
    (void)state;
    assert_trained_near(&(job){.model = GPT2, .ranks = 2, .replicas = 2},
                        &(job){.model = GPT2, .ranks = 4, .replicas = 1});
}

static void exact_mode_does_not_depend_on_the_number_of_replicas(void **state) {
    (void)state;
    const char *const models[] = {MLP, GPT2};
    for (size_t i = 0; i < 2; i++) {
        job alone = {.model = models[i], .ranks = 1, .replicas = 1, .exact = true};
        assert_same_bits(&(job){.model = models[i], .ranks = 1, .replicas = 3, .exact = true},
                         &alone);
        assert_same_bits(&(job){.model = models[i], .ranks = 2, .replicas = 2, .exact = true},
                         &alone);
    }
}

static void replicas_of_16_bit_precision_have_values_and_gradients_of_their_own(void **state) {
    (void)state;
    assert_same_bits(&(job){.model = GPT2_FP16, .ranks = 1, .replicas = 2},
                     &(job){.model = GPT2_FP16, .ranks = 2, .replicas = 1});
}

static void mean_over_samples_is_over_all_replicas(void **state) {
    (void)state;
    const char *by_samples = ",\"op\":\"sample_mean\"";
    assert_trained_near(&(job){.model = GPT2, .reducer = by_samples, .ranks = 1, .replicas = 4},
                        &(job){.model = GPT2, .ranks = 1, .replicas = 1});
}

// Twice the gradient at half the learning rate: exact in binary.
static void divisor_over_processes_adds_the_gradients_of_a_rank(void **state) {
    (void)state;
    assert_same_bits(&(job){.model = GPT2,
                            .optimizer = "\"optimizer\":{\"kind\":\"sgd\",\"lr\":0.05},",
                            .reducer = ",\"replica_divisor\":\"processes\"",
                            .ranks = 1,
                            .replicas = 2},
                     &(job){.model = GPT2,
                            .optimizer = "\"optimizer\":{\"kind\":\"sgd\",\"lr\":0.1},",
                            .ranks = 1,
                            .replicas = 2});
}

static void statistics_of_a_rank_are_those_of_its_first_replica(void **state) {
    (void)state;
    const char *kept = ",\"buffers\":\"none\"", *averaged = ",\"buffers\":\"average\"";
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    char *dir = gs_temp_dir_make();
    train(digests, dir, &(job){.model = MLP, .reducer = averaged, .ranks = 2, .replicas = 2});
    gs_temp_dir_remove(dir);
    assert_same_bits(&(job){.model = MLP, .reducer = kept, .ranks = 1, .replicas = 2},
                     &(job){.model = MLP, .ranks = 1, .replicas = 2});
}

// A replica's error in the middle of a step ends it everywhere, by name; nobody has applied it.
static void failing_replica_ends_the_step_on_every_rank(void **state) {
#ifndef GRADSYNC_FAILPOINTS
    (void)state;
    skip();
#else
    (void)state;
    const char *environment[] = {"GRADSYNC_FAILPOINTS=step.backward#1=error@6", NULL};
    job what = {.model = MLP, .ranks = 2, .replicas = 2};
    char *dir = gs_temp_dir_make(), *spec = make_spec(&what), problem[160] = "";
    char *arg = trainer_rank_arg(spec, dir, NULL);
    gs_ranks *ranks;
    gs_status statuses[2], status = gs_ranks_start(&ranks, "train", 2, arg, environment);
    if (status.code) fail_msg("%s", status.message);
    status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(120));
    if (status.code) fail_msg("%s", status.message);
    if (!strstr(statuses[1].message, "rank 1, replica "))
        fail_msg("rank 1 says \"%s\"", statuses[1].message);
    // Four passes of a rank in each step: the sixth is in step 1.
    assert_string_equal(gs_ranks_note(ranks, 0), "end aborted 1");
    gs_digest ours[TRAINER_RANK_MAX_STEPS], theirs[TRAINER_RANK_MAX_STEPS];
    assert_true(trainer_rank_read_record(ours, dir, 0, problem));
    assert_true(trainer_rank_read_record(theirs, dir, 1, problem));
    assert_int_equal(trainer_rank_last_step(ours), 1);
    assert_true(gs_digest_equal(ours[1], theirs[1]));
    gs_ranks_destroy(ranks);
    gs_temp_dir_remove(dir);
    free(spec);
    free(arg);
#endif
}

// The survivor, with a replica of its own in the middle of a pass, is back at a step boundary.
static void die_at(const char *armed) {
    const char *environment[] = {armed, NULL};
    job what = {.model = MLP, .ranks = 2, .replicas = 2};
    char *dir = gs_temp_dir_make(), *spec = make_spec(&what), problem[160] = "";
    char *arg = trainer_rank_arg(spec, dir, NULL);
    gs_ranks *ranks;
    gs_status statuses[2], status = gs_ranks_start(&ranks, "train", 2, arg, environment);
    if (!status.code) status = gs_ranks_wait_note(ranks, 0, "settling", gs_deadline_in_seconds(60));
    trainer_rank_declare_dead(dir, 1);
    if (!status.code) status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60));
    if (status.code) fail_msg("%s", status.message);
    if (strcmp(gs_ranks_note(ranks, 0), "end aborted 2") != 0 ||
        strcmp(statuses[1].message, "killed by signal 9") != 0)
        fail_msg("%s: \"%s\", and rank 1: %s", armed, gs_ranks_note(ranks, 0), statuses[1].message);
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_true(trainer_rank_read_record(digests, dir, 0, problem));
    assert_int_equal(trainer_rank_last_step(digests), 2);
    gs_ranks_destroy(ranks);
    gs_temp_dir_remove(dir);
    free(spec);
    free(arg);
}

// Four passes of a rank in each step: the tenth is in step 2.
static void death_of_a_rank_with_replicas_ends_the_step_of_the_others(void **state) {
    (void)state;
#ifndef GRADSYNC_FAILPOINTS
    skip();
#endif
    static const char *const armed[] = {"GRADSYNC_FAILPOINTS=step.backward#1=kill@10",
                                        "GRADSYNC_FAILPOINTS=replica.begin_pass#1=kill@10",
                                        "GRADSYNC_FAILPOINTS=replica.mark_ready#1=kill@90",
                                        "GRADSYNC_FAILPOINTS=replica.end_pass#1=kill@10",
                                        "GRADSYNC_FAILPOINTS=replicas.end#1=kill@3"};
    size_t num_armed = sizeof armed / sizeof *armed;
    // With a seed one of them.
    if (getenv("GRADSYNC_SEED"))
        die_at(armed[sample_number("GRADSYNC_SEED", 0) % num_armed]);
    else
        for (size_t i = 0; i < num_armed; i++) die_at(armed[i]);
}

// It sleeps through the deadline of the step and into the teardown, and wakes up in memory that is
// still there.
static void replica_that_comes_late_is_named_and_waited_for(void **state) {
    (void)state;
#ifndef GRADSYNC_FAILPOINTS
    skip();
#else
    const char *environment[] = {"GRADSYNC_FAILPOINTS=pass_runners.other#1=sleep:6000@3", NULL};
    job what = {.model = MLP, .ranks = 2, .replicas = 2, .timeout_seconds = 2};
    char *dir = gs_temp_dir_make(), *spec = make_spec(&what), problem[160] = "";
    char *arg = trainer_rank_arg(spec, dir, NULL);
    gs_ranks *ranks;
    gs_status statuses[2], status = gs_ranks_start(&ranks, "train", 2, arg, environment);
    if (!status.code) status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(120));
    if (status.code) fail_msg("%s", status.message);
    const char *late = "fault timeout suspect 1: rank 1, step 2: replica 1 began 0 of 2 passes";
    status = gs_ranks_wait_note(ranks, 1, late, (gs_deadline){0});
    if (status.code) fail_msg("%s", status.message);
    assert_string_equal(gs_ranks_note(ranks, 0), "end aborted 2");
    gs_digest ours[TRAINER_RANK_MAX_STEPS], theirs[TRAINER_RANK_MAX_STEPS];
    assert_true(trainer_rank_read_record(ours, dir, 0, problem));
    assert_true(trainer_rank_read_record(theirs, dir, 1, problem));
    assert_int_equal(trainer_rank_last_step(ours), 2);
    assert_true(gs_digest_equal(ours[2], theirs[2]));
    gs_ranks_destroy(ranks);
    gs_temp_dir_remove(dir);
    free(spec);
    free(arg);
#endif
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_of_two_replicas_trains_as_two_ranks_to_the_bit),
        cmocka_unit_test(two_ranks_of_two_replicas_train_as_four_ranks),
        cmocka_unit_test(exact_mode_does_not_depend_on_the_number_of_replicas),
        cmocka_unit_test(replicas_of_16_bit_precision_have_values_and_gradients_of_their_own),
        cmocka_unit_test(mean_over_samples_is_over_all_replicas),
        cmocka_unit_test(divisor_over_processes_adds_the_gradients_of_a_rank),
        cmocka_unit_test(statistics_of_a_rank_are_those_of_its_first_replica),
        cmocka_unit_test(failing_replica_ends_the_step_on_every_rank),
        cmocka_unit_test(death_of_a_rank_with_replicas_ends_the_step_of_the_others),
        cmocka_unit_test(replica_that_comes_late_is_named_and_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
