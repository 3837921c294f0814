// Plans that change while ranks train: all of them at one step, with the same bits as without.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/digest.h"
#include "core/plan_policy.h"
#include "rpc/schema/job_spec.h"
#include "rpc/schema/model_params.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"

#define STEPS 60
#define MAX_ORDERS 64

#define MLP                                                                                        \
    "\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[20,24,16,5],\"batch_norm\":\"local\"}},"       \
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":6,\"global_batch\":48},"
#define GPT2(layer_drop)                                                                           \
    "\"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"layers\":4,\"heads\":2,\"channels\":16,"             \
    "\"context\":8,\"vocab\":32,\"layer_drop\":" layer_drop "}},"                                  \
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2},"

typedef struct replan_run {
    char *dir, *spec;
    int world_size;
    gs_digest held[TRAINER_RANK_MAX_STEPS];  // after each step, of all ranks
    int num_orders;
    uint64_t plan_digest;  // of the last plan, of all ranks
    long long plan_step;
} replan_run;

static void count_orders(replan_run *run) {
    char path[600];
    for (run->num_orders = 0; run->num_orders < MAX_ORDERS; run->num_orders++) {
        snprintf(path, sizeof path, "%s/order-%d", run->dir, run->num_orders);
        if (access(path, F_OK) != 0) return;
    }
}

static void read_plan(const replan_run *run, int rank, uint64_t *digest, long long *step) {
    char path[600];
    unsigned long long read_digest;
    snprintf(path, sizeof path, "%s/plan-%d", run->dir, rank);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu %lld", &read_digest, step), 2);
    fclose(file);
    *digest = read_digest;
}

// Trains; all ranks held the same after every step and end with the same plan from the same step
// on.
static void train(replan_run *run, const char *model, int rebuild_after, int world_size,
                  int withheld) {
    char *arg = NULL, problem[160] = "";
    *run = (replan_run){.dir = gs_temp_dir_make(), .world_size = world_size};
    if (asprintf(&run->spec,
                 "{\"name\":\"replan\",\"exact\":true,%s\"world\":{\"min\":1,\"max\":4},"
                 "\"logical_shards\":4,\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.003},"
                 "\"reducer\":{\"first_bucket_bytes\":1024,\"bucket_cap_bytes\":4096,"
                 "\"rebuild_after_steps\":%d,\"timeout_seconds\":60},"
                 "\"debug\":{\"step_delay_ms\":2},\"steps\":{\"target\":%d}}",
                 model, rebuild_after, STEPS) < 0 ||
        asprintf(&arg, "{\"spec\":%s,\"dir\":\"%s\",\"resume\":\"\",\"withheld\":%d}", run->spec,
                 run->dir, withheld) < 0)
        abort();
    gs_status status = gs_ranks_run("train", world_size, arg, gs_deadline_in_seconds(200));
    free(arg);
    if (status.code) fail_msg("%s", status.message);
    assert_true(trainer_rank_read_record(run->held, run->dir, 0, problem));
    assert_int_equal(trainer_rank_last_step(run->held), STEPS);
    read_plan(run, 0, &run->plan_digest, &run->plan_step);
    for (int rank = 1; rank < world_size; rank++) {
        gs_digest others[TRAINER_RANK_MAX_STEPS];
        uint64_t digest;
        long long step;
        assert_true(trainer_rank_read_record(others, run->dir, rank, problem));
        for (int i = 0; i <= STEPS; i++) assert_true(gs_digest_equal(run->held[i], others[i]));
        read_plan(run, rank, &digest, &step);
        assert_true(digest == run->plan_digest);
        assert_true(step == run->plan_step);
    }
    count_orders(run);
}

static void release(replan_run *run) {
    gs_temp_dir_remove(run->dir);
    free(run->spec);
}

// The digest of the plan that a job starts with, along `order` when that is not NULL.
static uint64_t plan_of(const replan_run *run, const size_t *order) {
    gs_json *object;
    gs_field_errors errors = {0};
    gs_job_spec *spec = calloc(1, sizeof *spec);
    gs_param_spec *params = NULL;
    size_t num_params = 0;
    gs_bucket_plan plan;
    assert_non_null(spec);
    assert_int_equal(gs_json_parse(&object, run->spec, strlen(run->spec)).code, GS_OK);
    assert_int_equal(gs_job_spec_decode(spec, object, &errors).code, GS_OK);
    assert_int_equal(gs_model_params_of_spec(&params, &num_params, spec).code, GS_OK);
    gs_plan_policy policy = gs_job_spec_plan_policy(spec);
    gs_status status = gs_plan_policy_apply(&plan, &policy, params, num_params, order);
    assert_string_equal(status.message, "");
    uint64_t digest = gs_digest_fold(gs_bucket_plan_digest(&plan));
    gs_bucket_plan_release(&plan);
    gs_json_release(object);
    free(params);
    free(spec);
    return digest;
}

static void assert_same_bits(const replan_run *a, const replan_run *b) {
    for (int step = 1; step <= STEPS; step++) {
        if (!gs_digest_equal(a->held[step], b->held[step])) fail_msg("differs at step %d", step);
    }
}

static void check_rebuild(const char *model) {
    replan_run rebuilt, kept;
    train(&rebuilt, model, 1, 2, -1);
    train(&kept, model, 0, 2, -1);
    // Ready order is not registration order in these models; it is told once, and stays.
    assert_int_equal(rebuilt.num_orders, 1);
    assert_true(rebuilt.plan_step > 0);
    assert_true(rebuilt.plan_digest != plan_of(&rebuilt, NULL));
    assert_int_equal(kept.num_orders, 0);
    assert_true(kept.plan_step == 0);
    assert_true(kept.plan_digest == plan_of(&kept, NULL));
    assert_same_bits(&rebuilt, &kept);
    release(&rebuilt);
    release(&kept);
}

static void an_mlp_is_rebuilt_once_with_the_same_bits(void **state) {
    (void)state;
    check_rebuild(MLP);
}

static void a_gpt2_is_rebuilt_once_with_the_same_bits(void **state) {
    (void)state;
    check_rebuild(GPT2("0"));
}

static void a_rank_without_the_plan_holds_back_the_change_and_no_step(void **state) {
    (void)state;
    for (int withheld = 0; withheld < 3; withheld++) {
        replan_run run;
        train(&run, MLP, 1, 3, withheld);
        assert_int_equal(run.num_orders, 1);
        assert_true(run.plan_step == 0);
        assert_true(run.plan_digest == plan_of(&run, NULL));
        release(&run);
    }
}

// Which layers a step leaves out changes from step to step; the order of the rest does not.
static void layers_left_out_at_random_do_not_rebuild_again_and_again(void **state) {
    (void)state;
    replan_run dropped;
    train(&dropped, GPT2("0.4"), 1, 2, -1);
    assert_in_range(dropped.num_orders, 1, 2);
    assert_true(dropped.plan_step > 0);
    release(&dropped);
}

static void the_order_is_taken_after_as_many_steps_as_asked(void **state) {
    (void)state;
    replan_run run;
    train(&run, MLP, 25, 2, -1);
    assert_int_equal(run.num_orders, 1);
    assert_true(run.plan_step >= 25);
    release(&run);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_mlp_is_rebuilt_once_with_the_same_bits),
        cmocka_unit_test(a_gpt2_is_rebuilt_once_with_the_same_bits),
        cmocka_unit_test(a_rank_without_the_plan_holds_back_the_change_and_no_step),
        cmocka_unit_test(layers_left_out_at_random_do_not_rebuild_again_and_again),
        cmocka_unit_test(the_order_is_taken_after_as_many_steps_as_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
