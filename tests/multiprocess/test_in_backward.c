// optimizer.in_backward as a job: parameters are updated while other buckets are on their way, and
// every step ends with the bits that it has when they are updated behind the commit. What a rank
// that dies in between leaves: tests/fault/test_step_transaction.c.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/device_memory.h"
#include "tests/support/ranks.h"
#include "tests/support/sample.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"
#include "tests/support/trainer_rank.h"

#define STEPS 6
#define NUM_DEVICE_JOBS 2

#define GPT2(members)                                                                              \
    "\"kind\":\"gpt2\"," members                                                                   \
    "\"gpt2\":{\"layers\":2,\"heads\":2,\"channels\":16,\"context\":8,\"vocab\":64"
#define MLP(norm) "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,16,14,10],\"batch_norm\":\"" norm "\""

typedef struct job {
    const char *what;
    int world_size, logical_shards;
    bool exact;
    const char *model, *optimizer, *reducer;
} job;

static const job jobs[] = {
    // These on a device, too, where runs that are sampled take one of them.
    {"overflows", 2, 2, false, GPT2("\"precision\":\"fp16\",") "}",
     "\"kind\":\"adamw\",\"loss_scale\":{\"init\":16777216,\"backoff_factor\":0.0625}", ""},
    {"unused layers in halves", 2, 2, false, GPT2("\"precision\":\"bf16\",") ",\"layer_drop\":0.6}",
     "\"kind\":\"adamw\",\"weight_decay\":0.1", ""},
    // Where steps take less.
    {"two ranks", 2, 2, false, GPT2("") "}", "\"kind\":\"adamw\",\"weight_decay\":0.1", ""},
    {"passes that add up", 3, 6, false, MLP("local") "}", "\"kind\":\"sgd\",\"momentum\":0.9", ""},
    {"exact", 2, 3, true, MLP("none") "}", "\"kind\":\"adam\"", ""},
    {"unused layers", 2, 2, false, GPT2("") ",\"layer_drop\":0.6}",
     "\"kind\":\"adamw\",\"zero_grad\":\"zero\"", ""},
    {"rows that come last", 2, 2, false, GPT2("") "}", "\"kind\":\"adamw\"",
     ",\"sparse_embedding\":\"gather\""},
    {"another hook", 2, 2, false, GPT2("") "}", "\"kind\":\"adamw\"", ",\"wire_dtype\":\"bf16\""},
};

static int num_steps(void) {
    return test_device_is_host() ? STEPS : 3;
}

static void train(gs_digest held[TRAINER_RANK_MAX_STEPS], const job *of, bool in_backward) {
    char *spec, *dir = gs_temp_dir_make();
    if (asprintf(&spec,
                 "{\"name\":\"early\",\"exact\":%s,\"logical_shards\":%d,\"world\":{\"min\":1,"
                 "\"max\":%d},\"model\":{\"seed\":5,%s},\"data\":{\"kind\":\"synthetic\","
                 "\"micro_batch\":2},\"optimizer\":{%s,\"lr\":0.01,\"in_backward\":%s},"
                 "\"reducer\":{\"first_bucket_bytes\":512,\"bucket_cap_bytes\":2048,"
                 "\"check_replicas_every_steps\":2%s},\"steps\":{\"target\":%d}}",
                 of->exact ? "true" : "false", of->logical_shards, of->world_size, of->model,
                 of->optimizer, in_backward ? "true" : "false", of->reducer, num_steps()) < 0)
        abort();
    gs_status status =
        trainer_rank_train_on(held, dir, spec, of->world_size, NULL, gs_test_device_name());
    if (status.code) fail_msg("%s: %s", of->what, status.message);
    assert_int_equal(trainer_rank_last_step(held), num_steps());
    gs_temp_dir_remove(dir);
    free(spec);
}

static void check_job(const job *of) {
    static gs_digest at_end[TRAINER_RANK_MAX_STEPS], in_backward[TRAINER_RANK_MAX_STEPS];
    train(at_end, of, false);
    train(in_backward, of, true);
    for (int step = 1; step <= num_steps(); step++) {
        if (!gs_digest_equal(at_end[step], in_backward[step]))
            fail_msg("%s: step %d ends with other bits", of->what, step);
    }
}

static void every_step_ends_with_the_bits_of_one_update_at_its_end(void **state) {
    (void)state;
    sample drawn = sample_from_environment();
    size_t num_jobs = test_device_is_host() ? sizeof jobs / sizeof jobs[0] : NUM_DEVICE_JOBS;
    if (test_device_is_host() || drawn.share <= 1) {
        for (size_t i = 0; i < num_jobs; i++) check_job(&jobs[i]);
        return;
    }
    if (!sample_takes_all_of("updates in backward on a device")) return;
    job alone = jobs[drawn.seed % num_jobs];
    alone.world_size = 1;
    sample_say(&drawn, "the jobs, with one rank");
    check_job(&alone);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    if (!test_device_is_there()) return TEST_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_step_ends_with_the_bits_of_one_update_at_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
