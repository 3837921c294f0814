// The same job on a GPU as on CPUs: ranks train on the first GPU, a simulated one in builds with
// GRADSYNC_CUDA=SIM, and what they held is compared with each other, with graphs turned off, and with a CPU.
// Without a GPU everything here is skipped.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"
#include "tests/support/ranks.h"
#include "tests/support/sample.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"
#include "tests/support/trainer_rank.h"
#include "worker/checkpoint/checkpoint.h"

#define STEPS 6
// Of losses and parameters after a few steps; sums of a GPU have another order.
#define CLOSE 2e-4
// What rounding activations and gradients to bf16 changes: 8 bits of every number.
#define BF16_CLOSE 3e-2

#define MLP "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,16,8,3]}"
#define MLP_WITHOUT_NORM "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,16,3],\"batch_norm\":\"none\"}"
#define GPT2 \
    "\"kind\":\"gpt2\",\"gpt2\":{\"layers\":2,\"heads\":2,\"channels\":32,\"context\":16," \
    "\"vocab\":64}"
// Other passes in each phase: backward ends above what rests at first, later norms rest alone.
#define RESTING_MLP MLP ",\"freeze\":[{\"params\":\"fc1.*\",\"until_step\":3},{\"params\":\"bn1.weight\"}," \
    "{\"params\":\"bn2.*\",\"from_step\":4}]"
#define RESTING_GPT2 GPT2 ",\"freeze\":[{\"params\":\"w?e.weight\",\"until_step\":3}," \
    "{\"params\":\"h.0.*\",\"until_step\":2},{\"params\":\"*.ln_2.*\",\"from_step\":3}," \
    "{\"params\":\"wpe.weight\",\"from_step\":4}]"
#define ADAMW "\"kind\":\"adamw\",\"lr\":0.003,\"weight_decay\":0.01,\"grad_clip_norm\":1"
#define SGD "\"kind\":\"sgd\",\"lr\":0.05,\"momentum\":0.9"

typedef struct job {
    const char *model, *optimizer, *precision;
    int micro_batch, passes, shards;
    const char *data, *more;  // members of data and of the specification, with a comma in front
    const char *reducer;      // the same of the reducer
} job;

static char *make_spec(const job *what, int steps) {
    char *spec = NULL;
    int shards = what->shards ? what->shards : 1, passes = what->passes ? what->passes : 1;
    if (asprintf(&spec,
                 "{\"name\":\"device\",\"world\":{\"min\":1,\"max\":%d},\"logical_shards\":%d,"
                 "\"model\":{%s,\"precision\":\"%s\"},\"data\":{\"micro_batch\":%d,"
                 "\"global_batch\":%d%s},\"optimizer\":{%s},\"reducer\":{\"first_bucket_bytes\":512,"
                 "\"bucket_cap_bytes\":8192,\"timeout_seconds\":60%s},\"steps\":{\"target\":%d}%s}",
                 shards, shards, what->model, what->precision ? what->precision : "fp32",
                 what->micro_batch, what->micro_batch * passes * shards,
                 what->data ? what->data : "", what->optimizer, what->reducer ? what->reducer : "", steps,
                 what->more ? what->more : "") < 0)
        abort();
    return spec;
}

// A run that is over: what its ranks held after each step, and its directory with the last checkpoint.
typedef struct outcome {
    char *dir;
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    double loss;  // of the last step
} outcome;

static void train(outcome *out, const job *what, int ranks, int steps, const char *device,
                  const outcome *resume) {
    char *spec = make_spec(what, steps), *from = NULL;
    trainer_rank_report report;
    out->dir = gs_temp_dir_make();
    if (resume) from = trainer_rank_checkpoint(resume->dir);
    gs_status status =
        trainer_rank_train_on(out->digests, out->dir, spec, ranks, from, device);
    if (status.code) fail_msg("%s on %s: %s", what->model, device, status.message);
    assert_int_equal(trainer_rank_last_step(out->digests), steps);
    assert_true(trainer_rank_read_report(&report, out->dir, 0));
    out->loss = report.loss;
    assert_true(isfinite(out->loss));
    free(spec);
    free(from);
}

static void forget(outcome *of) {
    gs_temp_dir_remove(of->dir);
    *of = (outcome){0};
}

static void load(gs_trainer_state *state, gs_device *device, const job *what, const outcome *from) {
    char *text = make_spec(what, STEPS), *checkpoint = trainer_rank_checkpoint(from->dir);
    gs_job_spec *spec = calloc(1, sizeof *spec);
    gs_field_errors errors = {0};
    gs_json *json;
    assert_non_null(spec);
    assert_non_null(checkpoint);
    gs_status status = gs_json_parse(&json, text, strlen(text));
    if (!status.code) status = gs_job_spec_decode(spec, json, &errors);
    if (!status.code) status = gs_trainer_state_init(state, spec, device);
    if (!status.code) status = gs_checkpoint_load(state, checkpoint, spec);
    if (status.code) fail_msg("%s", status.message);
    gs_json_release(json);
    free(spec);
    free(text);
    free(checkpoint);
}

// ‖a − b‖ / ‖b‖ of the parameters that two runs ended with.
static double distance(const job *what, const outcome *a, const outcome *b) {
    gs_device *cpu;
    gs_trainer_state x, y;
    double apart = 0, norm = 0;
    assert_int_equal(gs_device_open(&cpu, "cpu", &(gs_device_options){0}).code, GS_OK);
    load(&x, cpu, what, a);
    load(&y, cpu, what, b);
    for (size_t t = 0; t < x.num_params; t++) {
        const float *p = gs_trainer_state_data(&x, t), *q = gs_trainer_state_data(&y, t);
        for (size_t i = 0; i < x.tensors[t].bytes / sizeof(float); i++) {
            apart += pow((double)p[i] - (double)q[i], 2);
            norm += pow((double)q[i], 2);
        }
    }
    gs_trainer_state_release(&x);
    gs_trainer_state_release(&y);
    gs_device_close(cpu);
    return sqrt(apart / norm);
}

static void assert_close(const job *what, const outcome *a, const outcome *b, double tolerance) {
    double apart = distance(what, a, b);
    if (!(fabs(a->loss - b->loss) <= tolerance * (1 + fabs(b->loss))))
        fail_msg("%s: losses %.9g and %.9g", what->model, a->loss, b->loss);
    if (!(apart <= tolerance)) fail_msg("%s: parameters are %g apart", what->model, apart);
}

static void assert_same(const outcome *a, const outcome *b, int first, int last) {
    for (int step = first; step <= last; step++) {
        assert_true(gs_digest_fold(a->digests[step]) != 0);
        if (!gs_digest_equal(a->digests[step], b->digests[step]))
            fail_msg("runs differ at step %d", step);
    }
}

// Skips where there is no GPU.
static const char *want_gpu(void) {
    const char *gpu = gs_test_gpu_name();
    if (!gpu) skip();
    return gpu;
}

static const job one_rank_jobs[] = {
    {.model = MLP, .optimizer = SGD, .micro_batch = 8},
    {.model = MLP_WITHOUT_NORM, .optimizer = ADAMW, .micro_batch = 5},
    {.model = GPT2, .optimizer = ADAMW, .micro_batch = 2},
    {.model = RESTING_GPT2, .optimizer = ADAMW, .micro_batch = 1, .passes = 3},
    {.model = MLP, .optimizer = SGD, .micro_batch = 4, .passes = 4},
    {.model = RESTING_MLP, .optimizer = SGD, .micro_batch = 8},
};
#define NUM_ONE_RANK_JOBS ((int)(sizeof one_rank_jobs / sizeof one_rank_jobs[0]))

// Passes that the model cannot tell apart: what they add up to is rounded into one of several partial sums.
static const job rounded_exact_job = {.model = MLP_WITHOUT_NORM,
                                      .optimizer = SGD,
                                      .precision = "bf16",
                                      .micro_batch = 2,
                                      .passes = 2,
                                      .shards = 3,
                                      .more = ",\"exact\":true"};

static void one_rank_trains_as_on_a_cpu(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    for (int i = 0; i < NUM_ONE_RANK_JOBS; i++) {
        outcome here, there;
        train(&here, &one_rank_jobs[i], 1, STEPS, "cpu", NULL);
        train(&there, &one_rank_jobs[i], 1, STEPS, gpu, NULL);
        assert_close(&one_rank_jobs[i], &there, &here, CLOSE);
        forget(&here);
        forget(&there);
    }
}

// Most passes of these runs are launched as graphs; without them the same kernels run in the same order.
static void graphs_change_no_bit(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    for (int i = 0; i <= NUM_ONE_RANK_JOBS; i++) {
        const job *what = i < NUM_ONE_RANK_JOBS ? &one_rank_jobs[i] : &rounded_exact_job;
        outcome with, without;
        train(&with, what, 1, STEPS, gpu, NULL);
        setenv("GRADSYNC_GRAPHS", "0", 1);
        train(&without, what, 1, STEPS, gpu, NULL);
        unsetenv("GRADSYNC_GRAPHS");
        assert_same(&with, &without, 1, STEPS);
        forget(&with);
        forget(&without);
    }
}

static void ranks_hold_the_same_bits_and_train_as_on_cpus(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    static const job jobs[] = {
        {.model = MLP_WITHOUT_NORM, .optimizer = SGD, .micro_batch = 4, .shards = 6},
        {.model = GPT2, .optimizer = ADAMW, .micro_batch = 1, .shards = 6},
    };
    for (int i = 0; i < 2; i++) {
        outcome here;
        train(&here, &jobs[i], 2, STEPS, "cpu", NULL);
        for (int ranks = 2; ranks <= 3; ranks++) {
            outcome there;
            train(&there, &jobs[i], ranks, STEPS, gpu, NULL);
            assert_close(&jobs[i], &there, &here, CLOSE);
            forget(&there);
        }
        forget(&here);
    }
}

// Without a record, for whose digests each step would wait for what owners send: parameters are on their way
// when a step begins, and so is what its digest compares.
static void train_quietly(outcome *out, const job *what, int ranks, int steps, const char *device,
                          const outcome *resume) {
    char *spec = make_spec(what, steps), *arg, *from = NULL;
    trainer_rank_report report;
    out->dir = gs_temp_dir_make();
    if (resume) from = trainer_rank_checkpoint(resume->dir);
    if (asprintf(&arg, "{\"spec\":%s,\"dir\":\"%s\",\"resume\":\"%s\",\"device\":\"%s\",\"quiet\":true}",
                 spec, out->dir, from ? from : "", device) < 0)
        abort();
    gs_status status = gs_ranks_run("train", ranks, arg, gs_deadline_in_seconds(120));
    if (status.code) fail_msg("%s on %s: %s", what->reducer, device, status.message);
    assert_true(trainer_rank_read_report(&report, out->dir, 0));
    out->loss = report.loss;
    free(spec);
    free(from);
    free(arg);
}

#define SHARDED ",\"check_replicas_every_steps\":1,\"sharding\":\"optimizer\""

// An update that waits for the norm overlaps with nothing.
#define ADAMW_UNCLIPPED "\"kind\":\"adamw\",\"lr\":0.003,\"weight_decay\":0.01"

static const job sharded_jobs[] = {
    {.optimizer = ADAMW, .reducer = SHARDED},
    {.optimizer = ADAMW, .shards = 2, .reducer = ",\"sharding\":\"gradients\""},
    {.optimizer = ADAMW, .reducer = SHARDED ",\"partition\":\"oss\""},
    {.optimizer = ADAMW_UNCLIPPED, .reducer = SHARDED ",\"zero_overlap\":\"step\"", .passes = 2},
    {.optimizer = ADAMW_UNCLIPPED,
     .reducer = SHARDED ",\"zero_overlap\":\"interleaved\",\"zero_split_buckets\":true"},
    {.model = RESTING_GPT2, .optimizer = ADAMW, .reducer = SHARDED},
    // Masters in halves, and fp32 ones.
    {.optimizer = ADAMW, .precision = "bf16", .reducer = SHARDED},
    {.optimizer = SGD, .precision = "bf16", .reducer = SHARDED ",\"partition\":\"zero\""},
    {.optimizer = ADAMW ",\"loss_scale\":{\"init\":1024}",
     .precision = "fp16",
     .shards = 2,
     .reducer = ",\"sharding\":\"gradients\""},
    {.optimizer = ADAMW_UNCLIPPED,
     .precision = "bf16",
     .reducer = SHARDED ",\"zero_overlap\":\"interleaved\""},
};
#define NUM_SHARDED_JOBS (sizeof sharded_jobs / sizeof sharded_jobs[0])

// Each rank updates a part: 2 ranks for some steps, then as many as there are shards, which read what those have
// saved; with gradients in windows one rank, with two passes a step. A job that is not sharded reads the end. CPUs
// round other numbers to 16 bits.
static void train_sharded(const job *of, const char *gpu) {
    job what = *of, whole;
    outcome here, first, there;
    if (!what.model) what.model = GPT2;
    what.micro_batch = 1;
    if (!what.shards) what.shards = 3;
    whole = what;
    whole.reducer = NULL;
    train(&here, &whole, 1, 5, what.precision ? gpu : "cpu", NULL);
    train_quietly(&first, &what, 2, 2, gpu, NULL);
    train_quietly(&there, &what, what.shards == 3 ? 3 : 1, 5, gpu, &first);
    assert_close(&whole, &there, &here, CLOSE);
    forget(&here);
    forget(&first);
    forget(&there);
}

// Whatever comes first on a device.
static void sharded_runs_on_a_gpu_have_the_same_bits(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    static const job what = {.model = MLP_WITHOUT_NORM,
                             .optimizer = ADAMW,
                             .micro_batch = 4,
                             .shards = 2,
                             .reducer = ",\"sharding\":\"gradients\""};
    outcome first, second;
    train(&first, &what, 2, STEPS, gpu, NULL);
    train(&second, &what, 2, STEPS, gpu, NULL);
    assert_same(&first, &second, 1, STEPS);
    forget(&first);
    forget(&second);
}

// One of them where cases are drawn: each takes the software machine seconds.
static void sharded_ranks_train_as_on_cpus(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    sample drawn = sample_from_environment();
    sample_say(&drawn, "sharded jobs on a device");
    for (size_t i = 0; i < NUM_SHARDED_JOBS; i++)
        if (drawn.share <= 1 || drawn.seed % NUM_SHARDED_JOBS == i) train_sharded(&sharded_jobs[i], gpu);
}

// More than fits the pieces that are enqueued when a step begins: the rest is read when an owner is about to update a
// part of it. Read behind that, ranks would have other parameters.
static void digests_end_before_an_owner_updates(void **state) {
    (void)state;
    static const job large = {
        .model = "\"kind\":\"mlp\",\"mlp\":{\"dims\":[16,4200,1024],\"batch_norm\":\"none\"}",
        .optimizer = SGD,
        .micro_batch = 1,
        .shards = 2,
        .reducer = SHARDED ",\"zero_overlap\":\"step\""};
    outcome there;
    train(&there, &large, 2, 1, want_gpu(), NULL);
    forget(&there);
}

// There the host has a part in every norm, forward and backward.
// Two of three ranks are neighbours: a communicator of their own beside that of all.
static const job apart_job = {
    .model = MLP_WITHOUT_NORM,
    .optimizer = ADAMW,
    .micro_batch = 4,
    .shards = 3,
    .reducer = ",\"hook\":{\"kind\":\"local_sgd\",\"start_step\":1,\"period\":3,\"local_ranks\":2}"};

#define NUM_OFFLOADED 3

// The host makes the update with the bits that the device has, and saves what is its own.
static void state_in_the_hosts_memory_changes_no_bit(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    static const job offloaded[NUM_OFFLOADED] = {
        {.model = GPT2, .optimizer = ADAMW, .reducer = ",\"sharding\":\"optimizer\""},
        {.model = MLP, .optimizer = SGD},
        {.model = GPT2, .optimizer = SGD, .precision = "bf16"},
    };
    sample drawn = sample_from_environment();
    sample_say(&drawn, "jobs with their state on the host");
    for (size_t i = 0; i < NUM_OFFLOADED; i++) {
        if (drawn.share > 1 && drawn.seed % NUM_OFFLOADED != i) continue;
        outcome there, here, resumed;
        char optimizer[200];
        job on_host = offloaded[i], on_device = offloaded[i];
        on_host.micro_batch = on_device.micro_batch = 2;
        on_host.shards = on_device.shards = 2;
        snprintf(optimizer, sizeof optimizer, "%s,\"offload\":true", on_device.optimizer);
        on_host.optimizer = optimizer;
        train(&there, &on_device, 2, STEPS, gpu, NULL);
        train(&here, &on_host, 2, STEPS / 2, gpu, NULL);
        assert_same(&here, &there, 1, STEPS / 2);
        train(&resumed, &on_host, 2, STEPS, gpu, &here);
        assert_same(&resumed, &there, STEPS / 2 + 1, STEPS);
        forget(&there);
        forget(&here);
        forget(&resumed);
    }
}

static void train_apart(gs_digest held[3][TRAINER_RANK_MAX_STEPS], outcome *out, const char *device) {
    char *spec = make_spec(&apart_job, 4), problem[160] = "";
    trainer_rank_report report;
    out->dir = gs_temp_dir_make();
    char *arg = trainer_rank_arg_on(spec, out->dir, NULL, device);
    gs_status status = gs_ranks_run("train", 3, arg, gs_deadline_in_seconds(120));
    if (status.code) fail_msg("on %s: %s", device, status.message);
    for (int rank = 0; rank < 3; rank++)
        if (!trainer_rank_read_record(held[rank], out->dir, rank, problem)) fail_msg("%s", problem);
    assert_true(trainer_rank_read_report(&report, out->dir, 0));
    out->loss = report.loss;
    free(arg);
    free(spec);
}

// After four steps they are averaged, to be saved.
static void ranks_that_train_apart_do_as_on_cpus(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    static gs_digest held[3][TRAINER_RANK_MAX_STEPS];
    outcome here, there;
    if (!sample_takes_all_of("ranks apart on a device")) return;
    train_apart(held, &here, "cpu");
    train_apart(held, &there, gpu);
    for (int step = 1; step <= 4; step++) {
        assert_true(gs_digest_equal(held[0][step], held[1][step]));
        bool is_one = step == 1 || step == 4;
        assert_int_equal(gs_digest_equal(held[0][step], held[2][step]), is_one);
    }
    assert_close(&apart_job, &there, &here, CLOSE);
    forget(&here);
    forget(&there);
}

static void synchronised_norms_train_as_on_cpus(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    static const job what = {.model = "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,16,8,3],"
                                      "\"batch_norm\":\"sync\"}",
                             .optimizer = SGD,
                             .micro_batch = 4,
                             .shards = 2};
    outcome here, there;
    train(&here, &what, 2, 4, "cpu", NULL);
    train(&there, &what, 2, 4, gpu, NULL);
    assert_close(&what, &there, &here, CLOSE);
    forget(&here);
    forget(&there);
}

#ifdef GRADSYNC_CUDA_SIM
// What a rank asked of the CUDA runtime between the last plan switch, with its captures, and the last step.
static void assert_steps_ask_for_nothing(const outcome *of, int rank, int first, int last) {
    char path[600];
    long long step, before[3] = {-1, -1, -1}, now[3];
    int num_steps = 0;
    snprintf(path, sizeof path, "%s/calls-%d", of->dir, rank);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fscanf(file, "%lld %lld %lld %lld", &step, &now[0], &now[1], &now[2]) == 4) {
        if (step > first && memcmp(now, before, sizeof now) != 0)
            fail_msg("rank %d, step %lld: %lld allocations, %lld waits, %lld copies that wait", rank,
                     step, now[0] - before[0], now[1] - before[1], now[2] - before[2]);
        memcpy(before, now, sizeof now);
        num_steps += step > first;
    }
    fclose(file);
    assert_int_equal(num_steps, last - first);
}
#endif

// The host only asks whether events have passed: it never sleeps in the driver, where no deadline counts.
static void steps_neither_allocate_nor_wait_in_the_driver(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    (void)gpu;
#ifndef GRADSYNC_CUDA_SIM
    skip();
#else
    static const struct {
        job what;
        int ranks;
        bool ahead;  // updates do not wait for the norm
    } runs[] = {
        {{.model = MLP, .optimizer = SGD, .micro_batch = 4, .passes = 2}, 1, false},
        {{.model = GPT2, .optimizer = ADAMW, .micro_batch = 1}, 1, true},
        {{.model = GPT2, .optimizer = ADAMW, .precision = "bf16", .micro_batch = 1, .passes = 2}, 1, false},
        {{.model = MLP, .optimizer = SGD, .micro_batch = 4, .shards = 2}, 2, false},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        outcome out;
        if (runs[i].ahead) setenv("GRADSYNC_CUDA_FACTOR_ON_DEVICE", "1", 1);
        train(&out, &runs[i].what, runs[i].ranks, 10, gpu, NULL);
        unsetenv("GRADSYNC_CUDA_FACTOR_ON_DEVICE");
        for (int rank = 0; rank < runs[i].ranks; rank++)
            assert_steps_ask_for_nothing(&out, rank, 6, 10);
        forget(&out);
    }
#endif
}

static void checkpoint_goes_from_a_cpu_to_a_gpu_and_back(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    static const job what = {.model = MLP, .optimizer = SGD, .micro_batch = 8};
    outcome whole, here, there, back;
    train(&whole, &what, 1, STEPS, "cpu", NULL);
    train(&here, &what, 1, 2, "cpu", NULL);
    train(&there, &what, 1, 4, gpu, &here);
    train(&back, &what, 1, STEPS, "cpu", &there);
    assert_close(&what, &back, &whole, CLOSE);
    forget(&whole);
    forget(&here);
    forget(&there);
    forget(&back);
}

static void resumed_run_on_a_gpu_has_the_same_bits(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    static const job jobs[] = {
        {.model = MLP, .optimizer = SGD, .micro_batch = 8},
        {.model = GPT2, .optimizer = ADAMW, .micro_batch = 2},
        {.model = GPT2, .optimizer = ADAMW, .micro_batch = 2, .precision = "bf16"},
    };
    for (int i = 0; i < 3; i++) {
        outcome whole, first, rest;
        train(&whole, &jobs[i], 1, STEPS, gpu, NULL);
        train(&first, &jobs[i], 1, 3, gpu, NULL);
        train(&rest, &jobs[i], 1, STEPS, gpu, &first);
        assert_same(&whole, &first, 1, 3);
        assert_same(&whole, &rest, 4, STEPS);
        forget(&whole);
        forget(&first);
        forget(&rest);
    }
}

static void training_in_16_bits_stays_near_fp32(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    static const char *const precisions[] = {"bf16", "fp16"};
    static const char *const models[] = {GPT2, MLP};
    for (int m = 0; m < 2; m++) {
        job what = {.model = models[m], .optimizer = ADAMW, .micro_batch = 4, .passes = 2};
        outcome exact;
        train(&exact, &what, 1, STEPS, gpu, NULL);
        for (int p = 0; p < 2; p++) {
            outcome rounded;
            what.precision = precisions[p];
            what.more = NULL;
            train(&rounded, &what, 1, STEPS, gpu, NULL);
            if (!(fabs(rounded.loss - exact.loss) <= BF16_CLOSE * (1 + exact.loss)))
                fail_msg("%s: losses %.9g and %.9g", precisions[p], rounded.loss, exact.loss);
            forget(&rounded);
        }
        forget(&exact);
    }
}

static void ranks_of_16_bits_hold_the_same_masters(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    static const job what = {
        .model = GPT2, .optimizer = ADAMW, .precision = "bf16", .micro_batch = 1, .shards = 2};
    outcome one, two;
    train(&one, &what, 1, STEPS, gpu, NULL);
    train(&two, &what, 2, STEPS, gpu, NULL);
    assert_close(&what, &two, &one, BF16_CLOSE);
    forget(&one);
    forget(&two);
}

static void exact_mode_has_the_same_bits_for_any_number_of_ranks(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    static const job what = {.model = MLP_WITHOUT_NORM,
                             .optimizer = SGD,
                             .micro_batch = 2,
                             .shards = 3,
                             .more = ",\"exact\":true"};
    outcome one;
    train(&one, &what, 1, STEPS, gpu, NULL);
    for (int ranks = 2; ranks <= 3; ranks++) {
        outcome more;
        train(&more, &what, ranks, STEPS, gpu, NULL);
        assert_same(&one, &more, 1, STEPS);
        forget(&more);
    }
    forget(&one);
}

// Whoever reads the state, or runs the model between steps, leaves it as it was.
static void saves_evaluations_and_samples_change_no_bit(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    static const job plain = {.model = GPT2, .optimizer = ADAMW, .micro_batch = 2},
                     busy = {.model = GPT2,
                             .optimizer = ADAMW,
                             .micro_batch = 2,
                             .data = ",\"eval_every_steps\":2,\"eval_batches\":2",
                             .more = ",\"sample\":{\"tokens\":8,\"prompt\":\"\\n\"},"
                                     "\"checkpoint\":{\"every_steps\":2}"};
    outcome quiet, disturbed;
    train(&quiet, &plain, 1, STEPS, gpu, NULL);
    train(&disturbed, &busy, 1, STEPS, gpu, NULL);
    assert_same(&quiet, &disturbed, 1, STEPS);
    forget(&quiet);
    forget(&disturbed);
}

#ifdef GRADSYNC_FAILPOINTS
// Runs two ranks of which one is killed; the other settles and saves what it held.
static void train_until_death(outcome *out, const job *what, const char *gpu) {
    const char *environment[] = {"GRADSYNC_FAILPOINTS=step.backward#1=kill@4", NULL};
    char *spec = make_spec(what, STEPS), problem[160] = "";
    out->dir = gs_temp_dir_make();
    char *arg = trainer_rank_arg_on(spec, out->dir, NULL, gpu);
    gs_ranks *ranks;
    gs_status statuses[2], status = gs_ranks_start(&ranks, "train", 2, arg, environment);
    if (!status.code) status = gs_ranks_wait_note(ranks, 0, "settling", gs_deadline_in_seconds(90));
    trainer_rank_declare_dead(out->dir, 1);
    if (!status.code) status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(90));
    if (status.code) fail_msg("%s", status.message);
    assert_string_equal(statuses[1].message, "killed by signal 9");
    assert_true(trainer_rank_read_record(out->digests, out->dir, 0, problem));
    gs_ranks_destroy(ranks);
    free(arg);
    free(spec);
}
#endif

// Killed in its fourth step, so that three were applied.
static void survivor_of_a_killed_rank_saves_and_goes_on_with_the_same_bits(void **state) {
    (void)state;
    const char *gpu = want_gpu();
    (void)gpu;
#ifndef GRADSYNC_FAILPOINTS
    skip();
#else
    static const job what = {
        .model = MLP_WITHOUT_NORM, .optimizer = SGD, .micro_batch = 4, .shards = 2};
    outcome whole, broken, rest;
    train(&whole, &what, 2, STEPS, gpu, NULL);
    train_until_death(&broken, &what, gpu);
    assert_int_equal(trainer_rank_last_step(broken.digests), 3);
    train(&rest, &what, 2, STEPS, gpu, &broken);
    assert_same(&whole, &broken, 1, 3);
    assert_same(&whole, &rest, 4, STEPS);
    forget(&whole);
    forget(&broken);
    forget(&rest);
#endif
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_trains_as_on_a_cpu),
        cmocka_unit_test(graphs_change_no_bit),
        cmocka_unit_test(ranks_hold_the_same_bits_and_train_as_on_cpus),
        cmocka_unit_test(ranks_that_train_apart_do_as_on_cpus),
        cmocka_unit_test(sharded_ranks_train_as_on_cpus),
        cmocka_unit_test(digests_end_before_an_owner_updates),
        cmocka_unit_test(sharded_runs_on_a_gpu_have_the_same_bits),
        cmocka_unit_test(state_in_the_hosts_memory_changes_no_bit),
        cmocka_unit_test(synchronised_norms_train_as_on_cpus),
        cmocka_unit_test(steps_neither_allocate_nor_wait_in_the_driver),
        cmocka_unit_test(checkpoint_goes_from_a_cpu_to_a_gpu_and_back),
        cmocka_unit_test(resumed_run_on_a_gpu_has_the_same_bits),
        cmocka_unit_test(training_in_16_bits_stays_near_fp32),
        cmocka_unit_test(ranks_of_16_bits_hold_the_same_masters),
        cmocka_unit_test(exact_mode_has_the_same_bits_for_any_number_of_ranks),
        cmocka_unit_test(saves_evaluations_and_samples_change_no_bit),
        cmocka_unit_test(survivor_of_a_killed_rank_saves_and_goes_on_with_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
