// reducer.static_graph as a job: the promise changes when buckets start, and never what comes out.
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

#define STEPS 8

static const char *const models[] = {
    "\"model\":{\"kind\":\"gpt2\",\"seed\":5,\"gpt2\":{\"layers\":2,\"heads\":2,\"channels\":16,"
    "\"context\":8,\"vocab\":32}}",
    "\"model\":{\"kind\":\"mlp\",\"seed\":5,\"mlp\":{\"dims\":[12,16,10],\"batch_norm\":\"local\"}"
    "}"};

// Six shards on up to three ranks: two to six passes a step, of which the last one is counted.
static gs_digest run(const char *model, int world_size, bool exact, bool is_static) {
    char *spec, *dir = gs_temp_dir_make();
    if (asprintf(&spec,
                 "{\"name\":\"static\",\"exact\":%s,\"logical_shards\":6,\"world\":{\"min\":1,"
                 "\"max\":3},%s,\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2},\"optimizer\":{"
                 "\"kind\":\"adamw\",\"lr\":0.01},\"reducer\":{\"first_bucket_bytes\":512,"
                 "\"bucket_cap_bytes\":2048,\"static_graph\":%s},\"steps\":{\"target\":%d}}",
                 exact ? "true" : "false", model, is_static ? "true" : "false", STEPS) < 0)
        abort();
    gs_digest first[TRAINER_RANK_MAX_STEPS];
    gs_status status = trainer_rank_train(first, dir, spec, world_size, NULL);
    if (status.code) fail_msg("%s", status.message);
    assert_int_equal(trainer_rank_last_step(first), STEPS);
    gs_temp_dir_remove(dir);
    free(spec);
    return first[STEPS];
}

static void static_job_trains_to_the_same_bits(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        for (int world_size = 1; world_size <= 3; world_size++) {
            gs_digest plain = run(models[m], world_size, false, false);
            assert_true(gs_digest_equal(plain, run(models[m], world_size, false, true)));
        }
    }
}

static void static_exact_job_has_the_same_bits_on_every_world(void **state) {
    (void)state;
    gs_digest plain = run(models[0], 1, true, false);
    for (int world_size = 1; world_size <= 3; world_size++)
        assert_true(gs_digest_equal(plain, run(models[0], world_size, true, true)));
}

// No specification says so: the model leaves out layers in spite of its promise.
static void static_job_that_drops_layers_fails_and_names_a_parameter(void **state) {
    (void)state;
    char *arg, *dir = gs_temp_dir_make();
    if (asprintf(&arg,
                 "{\"spec\":{\"name\":\"static\",\"logical_shards\":2,%s,\"data\":{\"kind\":"
                 "\"synthetic\"},\"optimizer\":{\"lr\":0.01},\"reducer\":{\"static_graph\":true},"
                 "\"steps\":{\"target\":100}},\"dir\":\"%s\",\"layer_drop\":0.5}",
                 models[0], dir) < 0)
        abort();
    gs_status status = gs_ranks_run("train", 1, arg, gs_deadline_in_seconds(100));
    if (!strstr(status.message, "rank 0, step ") || !strstr(status.message, ": parameter ") ||
        !strstr(status.message, "in the first step: the static graph changed"))
        fail_msg("\"%s\"", status.message);
    gs_temp_dir_remove(dir);
    free(arg);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(static_job_trains_to_the_same_bits),
        cmocka_unit_test(static_exact_job_has_the_same_bits_on_every_world),
        cmocka_unit_test(static_job_that_drops_layers_fails_and_names_a_parameter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
