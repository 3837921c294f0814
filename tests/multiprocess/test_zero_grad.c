// What a parameter has that no rank used in a step, as a job: no gradient (it is skipped, its
// counts and state rest), or zero (momentum and decay go on, once it has had one).
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
#include "rpc/checkpoint/safetensors.h"
#include "worker/models/layer_drop.h"

#define STEPS 12
#define SHARDS 3
#define LAYERS 3
#define SEED 7
#define DROP 0.75

static char *make_spec(const char *zero_grad) {
    char *spec = NULL;
    if (asprintf(
            &spec,
            "{\"name\":\"zero-grad\",\"exact\":true,\"logical_shards\":%d,\"world\":{\"min\":1,"
            "\"max\":%d},\"model\":{\"kind\":\"gpt2\",\"seed\":%d,\"gpt2\":{\"layers\":%d,"
            "\"heads\":2,\"channels\":16,\"context\":8,\"vocab\":32,\"layer_drop\":%g}},"
            "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2},\"optimizer\":{\"kind\":"
            "\"sgd\",\"lr\":0.1,\"momentum\":0.9,\"weight_decay\":0.1,\"zero_grad\":\"%s\"},"
            "\"reducer\":{\"first_bucket_bytes\":512,\"bucket_cap_bytes\":2048},"
            "\"steps\":{\"target\":%d}}",
            SHARDS, SHARDS, SEED, LAYERS, DROP, zero_grad, STEPS) < 0)
        abort();
    return spec;
}

// Steps after which each layer counts as updated, by the drawn layers alone.
static void expect_updates(int64_t updates[LAYERS], bool zero) {
    const gs_layer_drop drop = {.probability = DROP, .seed = SEED};
    for (int layer = 0; layer < LAYERS; layer++) {
        bool had_one = false;
        updates[layer] = 0;
        for (int64_t step = 0; step < STEPS; step++) {
            bool used = false;
            for (int shard = 0; shard < SHARDS; shard++)
                used |= !gs_layer_drop_skips(&drop, step, shard, layer);
            had_one |= used;
            updates[layer] += used || (zero && had_one);
        }
    }
}

static size_t find_param(const gs_safetensors *file, int layer) {
    char name[64];
    // Parameters come first and in registration order: wte, wpe, then 12 of each layer.
    snprintf(name, sizeof name, "h.%d.ln_1.weight", layer);
    assert_non_null(gs_safetensors_find(file, name));
    return 2 + 12 * (size_t)layer;
}

static gs_digest run(const char *zero_grad, int world_size) {
    char *spec = make_spec(zero_grad), *dir = gs_temp_dir_make(), path[700];
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    gs_status status = trainer_rank_train(digests, dir, spec, world_size, NULL);
    if (status.code) fail_msg("%s: %s", zero_grad, status.message);

    char *checkpoint = trainer_rank_checkpoint(dir);
    snprintf(path, sizeof path, "%s/part-0.safetensors", checkpoint);
    gs_safetensors *file;
    assert_int_equal(gs_safetensors_load(&file, path).code, GS_OK);
    const gs_safetensor *found = gs_safetensors_find(file, "optimizer.num_updates");
    int64_t expected[LAYERS];
    expect_updates(expected, strcmp(zero_grad, "zero") == 0);
    for (int layer = 0; layer < LAYERS; layer++) {
        int64_t updates;
        memcpy(&updates, (const char *)found->data + sizeof updates * find_param(file, layer),
               sizeof updates);
        if (updates != expected[layer])
            fail_msg("%s: layer %d was updated %lld times, expected %lld", zero_grad, layer,
                     (long long)updates, (long long)expected[layer]);
    }
    gs_safetensors_close(file);
    gs_temp_dir_remove(dir);
    free(checkpoint);
    free(spec);
    return digests[STEPS];
}

static void drawn_layers_tell_the_two_apart(void **state) {
    (void)state;
    int64_t skipped[LAYERS], zeroed[LAYERS];
    expect_updates(skipped, false);
    expect_updates(zeroed, true);
    bool differs = false, starts_late = false;
    for (int layer = 0; layer < LAYERS; layer++) {
        differs |= skipped[layer] < zeroed[layer];
        starts_late |= zeroed[layer] < STEPS;
    }
    assert_true(differs && starts_late);
}

static void undefined_skips_what_no_rank_used_on_every_world(void **state) {
    (void)state;
    gs_digest alone = run("undefined", 1);
    assert_true(gs_digest_equal(alone, run("undefined", 2)));
    assert_true(gs_digest_equal(alone, run("undefined", 3)));
}

static void zero_goes_on_by_momentum_and_decay_on_every_world(void **state) {
    (void)state;
    gs_digest alone = run("zero", 1);
    assert_true(gs_digest_equal(alone, run("zero", 2)));
    assert_true(gs_digest_equal(alone, run("zero", 3)));
    assert_false(gs_digest_equal(alone, run("undefined", 1)));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_layers_tell_the_two_apart),
        cmocka_unit_test(undefined_skips_what_no_rank_used_on_every_world),
        cmocka_unit_test(zero_goes_on_by_momentum_and_decay_on_every_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
