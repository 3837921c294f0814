// Updates that a GPU is given before the host knows the norm (GRADSYNC_CUDA_FACTOR_ON_DEVICE=1): the bits of updates that
// waited, also where a step is skipped, and a state that is one or the other when a step ends in an error. On the first GPU,
// a simulated one in builds with GRADSYNC_CUDA=SIM; skipped without. Whether updates did come ahead a failpoint tells, so
// that is left out in builds without.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"
#include "tests/support/trainer_rank.h"

#define CHOICE "GRADSYNC_CUDA_FACTOR_ON_DEVICE"
#define FAILPOINTS "GRADSYNC_FAILPOINTS"
#define STEPS 5

#define MLP "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,16,8,3]}"
#define GPT2 \
    "\"kind\":\"gpt2\",\"gpt2\":{\"layers\":1,\"heads\":2,\"channels\":16,\"context\":8,\"vocab\":64}"
#define ADAMW "\"kind\":\"adamw\",\"lr\":0.003,\"weight_decay\":0.01,\"grad_clip_norm\":0.05"
#define SGD "\"kind\":\"sgd\",\"lr\":0.05,\"momentum\":0.9"

typedef struct job {
    const char *model, *optimizer;
    int passes, shards;
    const char *reducer, *more;  // members, with a comma in front
    bool waits;                  // for the host, whatever is asked
} job;

static const job jobs[] = {
    {.model = MLP, .optimizer = SGD ",\"grad_clip_norm\":0.05"},
    {.model = MLP, .optimizer = SGD, .passes = 2},
    {.model = GPT2, .optimizer = ADAMW},
    // Masters in halves, passes that add up.
    {.model = GPT2 ",\"precision\":\"bf16\"", .optimizer = ADAMW, .passes = 2},
    // Overflows at first: steps are skipped, and the scale falls.
    {.model = GPT2 ",\"precision\":\"fp16\"",
     .optimizer = ADAMW ",\"loss_scale\":{\"init\":268435456,\"backoff_factor\":0.00390625}"},
    // Gradients whose squares fp32 could not hold, and then some that are not finite.
    {.model = "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,16,16,16,3],\"batch_norm\":\"none\"}",
     .optimizer = "\"kind\":\"sgd\",\"lr\":1000"},
    // Some rest in a bucket of others.
    {.model = GPT2 ",\"freeze\":[{\"params\":\"wpe.weight\",\"until_step\":2},{\"params\":\"*.ln_2.*\",\"from_step\":3}]",
     .optimizer = ADAMW},
    {.model = "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,16,3],\"batch_norm\":\"none\"}",
     .optimizer = ADAMW,
     .shards = 3,
     .more = ",\"exact\":true"},
    {.model = GPT2, .optimizer = ADAMW, .reducer = ",\"sparse_embedding\":\"gather\""},
    {.model = GPT2, .optimizer = ADAMW, .reducer = ",\"static_graph\":true,\"unused_parameters\":\"error\""},
    {.model = MLP, .optimizer = SGD ",\"offload\":true", .waits = true},
    {.model = MLP, .optimizer = SGD ",\"grad_clip_norm\":0.05", .shards = 2, .waits = true},
    {.model = MLP,
     .optimizer = ADAMW,
     .shards = 2,
     .reducer = ",\"sharding\":\"optimizer\"",
     .waits = true},
};
#define NUM_JOBS (sizeof jobs / sizeof *jobs)

static char *make_spec(const job *what) {
    char *spec = NULL;
    int shards = what->shards ? what->shards : 1, passes = what->passes ? what->passes : 1;
    if (asprintf(&spec,
                 "{\"name\":\"ahead\",\"world\":{\"min\":1,\"max\":%d},\"logical_shards\":%d,\"model\":{%s},"
                 "\"data\":{\"micro_batch\":2,\"global_batch\":%d},\"optimizer\":{%s},"
                 "\"reducer\":{\"first_bucket_bytes\":512,\"bucket_cap_bytes\":8192,\"timeout_seconds\":60%s},"
                 "\"steps\":{\"target\":%d}%s}",
                 shards, shards, what->model, 2 * passes * shards, what->optimizer,
                 what->reducer ? what->reducer : "", STEPS, what->more ? what->more : "") < 0)
        abort();
    return spec;
}

typedef struct outcome {
    gs_status status;
    gs_digest held[TRAINER_RANK_MAX_STEPS], last;  // after each step; when the trainer ended
    int64_t last_step;                              // then
    long long settled_step;  // what it had applied when it settled; -1: it did not
} outcome;

static long long read_settled(const char *dir) {
    char path[600];
    long long step = -1;
    snprintf(path, sizeof path, "%s/settle-0", dir);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    if (fscanf(file, "%lld", &step) != 1) step = -1;
    fclose(file);
    return step;
}

// One rank, unless updates wait and there are several.
static void train(outcome *out, const job *what, const char *choice, const char *failpoints) {
    char *spec = make_spec(what), *dir = gs_temp_dir_make(), problem[160] = "";
    int ranks = what->waits && what->shards ? what->shards : 1;
    *out = (outcome){.last_step = -1};
    char *arg = trainer_rank_arg_on(spec, dir, NULL, gs_test_gpu_name());
    setenv(CHOICE, choice, 1);
    if (failpoints) setenv(FAILPOINTS, failpoints, 1);
    out->status = gs_ranks_run("train", ranks, arg, gs_deadline_in_seconds(200));
    unsetenv(CHOICE);
    if (failpoints) unsetenv(FAILPOINTS);
    if (!trainer_rank_read_record(out->held, dir, 0, problem)) fail_msg("%s: %s", what->model, problem);
    (void)trainer_rank_read_outcome(&out->last, &out->last_step, dir, 0);
    out->settled_step = read_settled(dir);
    gs_temp_dir_remove(dir);
    free(arg);
    free(spec);
}

static void assert_same(const job *what, const outcome *a, const outcome *b, int last) {
    for (int step = 1; step <= last; step++) {
        assert_true(gs_digest_fold(b->held[step]) != 0);
        if (!gs_digest_equal(a->held[step], b->held[step]))
            fail_msg("%s, %s: runs differ at step %d", what->model, what->optimizer, step);
    }
}

static void want_gpu(void) {
    if (!gs_test_gpu_name()) skip();
}

#ifdef GRADSYNC_FAILPOINTS
// The last of as many updates as there are steps fails, so all of them came ahead.
static void train_ahead(outcome *out, const job *what, int *last) {
    char point[40];
    snprintf(point, sizeof point, "step.ahead=error@%d", what->waits ? 1 : STEPS);
    train(out, what, "1", point);
    *last = what->waits ? STEPS : STEPS - 1;
    if (!what->waits != (out->status.code != GS_OK && strstr(out->status.message, "step.ahead")))
        fail_msg("%s, %s: updates %s: %s", what->model, what->optimizer,
                 what->waits ? "came ahead" : "waited for the host", out->status.message);
}
#else
static void train_ahead(outcome *out, const job *what, int *last) {
    train(out, what, "1", NULL);
    assert_ok(out->status);
    *last = STEPS;
}
#endif

static void the_bits_are_those_of_updates_that_waited(void **state) {
    (void)state;
    want_gpu();
    for (size_t i = 0; i < NUM_JOBS; i++) {
        outcome waited, ahead;
        int last;
        train(&waited, &jobs[i], "0", NULL);
        assert_ok(waited.status);
        train_ahead(&ahead, &jobs[i], &last);
        assert_same(&jobs[i], &ahead, &waited, last);
    }
}

// What keeps a rank from committing a step whose update has been made does not take the update back: the step counts, before
// anybody is asked whether it does.
static void a_step_that_is_updated_counts_whatever_follows(void **state) {
    (void)state;
    want_gpu();
#ifndef GRADSYNC_FAILPOINTS
    skip();
#else
    static const char *const places[] = {"step.reduced=error@3", "commit.enter=error@3", "commit.leave=error@3"};
    outcome whole, ended;
    train(&whole, &jobs[0], "0", NULL);
    assert_ok(whole.status);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        train(&ended, &jobs[0], "1", places[i]);
        assert_int_equal(ended.status.code, GS_INTERNAL);
        assert_same(&jobs[0], &ended, &whole, 2);
        if (ended.last_step != 3 || ended.settled_step != 3)
            fail_msg("%s: settled with step %lld, ended with %lld", places[i], ended.settled_step,
                     (long long)ended.last_step);
        assert_true(gs_digest_equal(ended.last, whole.held[3]));
    }
#endif
}

// The reducer fails behind an update that was made: parameters would be one step ahead of what its hooks carry.
static void a_state_of_which_a_part_is_updated_is_nobodys(void **state) {
    (void)state;
    want_gpu();
#ifndef GRADSYNC_FAILPOINTS
    skip();
#else
    outcome ended;
    train(&ended, &jobs[0], "1", "reducer.complete=error@3");
    assert_int_equal(ended.status.code, GS_INTERNAL);
    assert_true(gs_digest_fold(ended.last) == 0);
    train(&ended, &jobs[0], "1", "reducer.finish=error@3");
    assert_int_equal(ended.status.code, GS_INTERNAL);
    assert_int_equal(ended.last_step, 2);
    assert_true(gs_digest_equal(ended.last, ended.held[2]));
#endif
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_updates_that_waited),
        cmocka_unit_test(a_step_that_is_updated_counts_whatever_follows),
        cmocka_unit_test(a_state_of_which_a_part_is_updated_is_nobodys),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
