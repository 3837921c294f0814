// Training with 16-bit precision and with 16 bits on the wire, as jobs of real processes: what
// overflows is skipped by all ranks alike, the loss scale backs off once, training goes on near the
// fp32 run, and a resume has the same bits.
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/bucket/grad_norm.h"
#include "gradsync/optim/grad_scaler.h"
#include "rpc/json/sealed_json.h"
#include "tests/support/asserts.h"
#include "tests/support/grad_case.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"
#include "rpc/checkpoint/safetensors.h"

#define STEPS 40

// Two passes for each shard, so that gradients are added up.
static const char spec_format[] =
    "{\"name\":\"precision\",%s\"logical_shards\":4,\"world\":{\"min\":1,\"max\":4},"
    "\"model\":{\"kind\":\"mlp\",\"precision\":\"%s\",\"mlp\":{\"dims\":[20,24,16,5]}},"
    "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":6,\"global_batch\":48},"
    "\"optimizer\":{\"kind\":\"sgd\",\"lr\":%s,\"momentum\":0.9%s},"
    "\"reducer\":{\"first_bucket_bytes\":512,\"bucket_cap_bytes\":2048,\"timeout_seconds\":60%s},"
    "\"steps\":{\"target\":%d}}";

#define EXACT "\"exact\":true,"
// Far above what fp16 holds: the first steps overflow.
#define HUGE_SCALE ",\"loss_scale\":{\"init\":1099511627776,\"growth_interval\":8}"

static char *make_spec_with(const char *rate, const char *exact, const char *precision,
                            const char *optimizer, const char *reducer, int steps) {
    char *spec = NULL;
    if (asprintf(&spec, spec_format, exact, precision, rate, optimizer, reducer, steps) < 0)
        abort();
    return spec;
}

static char *make_spec(const char *exact, const char *precision, const char *optimizer,
                       const char *reducer, int steps) {
    return make_spec_with("0.05,\"grad_clip_norm\":1", exact, precision, optimizer, reducer, steps);
}

static void assert_same(const gs_digest *a, const gs_digest *b, int first, int last) {
    for (int step = first; step <= last; step++) {
        assert_true(gs_digest_fold(a[step]) != 0);
        if (!gs_digest_equal(a[step], b[step])) fail_msg("differs at step %d", step);
    }
}

// The position in the last checkpoint's manifest.
typedef struct run_end {
    int64_t step, skipped_steps, growth_tracker;
    double loss_scale;
} run_end;

static run_end read_end(const char *dir) {
    char path[700], *checkpoint = trainer_rank_checkpoint(dir);
    gs_json *manifest = NULL;
    assert_non_null(checkpoint);
    snprintf(path, sizeof path, "%s/MANIFEST.json", checkpoint);
    gs_status status = gs_sealed_json_read(&manifest, path);
    if (status.code) fail_msg("%s", status.message);
    const gs_json *position = gs_json_get(manifest, "position");
    run_end end = {.step = gs_json_int_or(position, "step", -1),
                   .skipped_steps = gs_json_int_or(position, "skipped_steps", -1),
                   .growth_tracker = gs_json_int_or(position, "growth_tracker", -1),
                   .loss_scale = gs_json_double_or(position, "loss_scale", 0)};
    gs_json_release(manifest);
    free(checkpoint);
    return end;
}

static gs_safetensors *open_tensors(const char *dir) {
    gs_safetensors *file = NULL;
    char path[700], *checkpoint = trainer_rank_checkpoint(dir);
    assert_non_null(checkpoint);
    snprintf(path, sizeof path, "%s/part-0.safetensors", checkpoint);
    gs_status status = gs_safetensors_load(&file, path);
    if (status.code) fail_msg("%s", status.message);
    free(checkpoint);
    return file;
}

static bool is_weight(const gs_safetensor *tensor) {
    return strncmp(tensor->name, "optimizer.", 10) != 0 && tensor->num_dims == 2;
}

// Distance of all weights as a share of their norm.
static double distance(const char *dir_a, const char *dir_b) {
    gs_safetensors *a = open_tensors(dir_a), *b = open_tensors(dir_b);
    double apart = 0, norm = 0;
    for (size_t i = 0; i < gs_safetensors_count(a); i++) {
        const gs_safetensor *ours = gs_safetensors_at(a, i);
        if (!is_weight(ours)) continue;
        const gs_safetensor *theirs = gs_safetensors_find(b, ours->name);
        assert_int_equal(ours->dtype, GS_FP32);  // masters, whatever the precision
        assert_int_equal(theirs->dtype, GS_FP32);
        const float *x = ours->data, *y = theirs->data;
        for (size_t j = 0; j < ours->bytes / sizeof(float); j++) {
            apart += ((double)x[j] - (double)y[j]) * ((double)x[j] - (double)y[j]);
            norm += (double)x[j] * (double)x[j];
        }
    }
    gs_safetensors_close(a);
    gs_safetensors_close(b);
    return sqrt(apart / norm);
}

static void fp16_job_with_a_huge_scale_skips_backs_off_and_trains(void **state) {
    (void)state;
    char *spec = make_spec("", "fp16", HUGE_SCALE, "", STEPS), *dir = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(digests, dir, spec, 3, NULL));
    run_end end = read_end(dir);
    assert_int_equal(end.step, STEPS);
    // From 2^40 to where gradients of this model fit are some 20 halvings, one for each skipped
    // step however many ranks overflowed; every eight good steps double it.
    assert_true(end.skipped_steps >= 15 && end.skipped_steps <= 30);
    int exponent;
    assert_true(frexp(end.loss_scale, &exponent) == 0.5);
    int64_t doublings = exponent - 1 - 40 + end.skipped_steps;
    assert_true(doublings >= 1 && doublings <= (STEPS - end.skipped_steps) / 8);
    gs_temp_dir_remove(dir);
    free(spec);
}

static run_end end_with_scale(const char *more) {
    char members[160];
    snprintf(members, sizeof members,
             ",\"loss_scale\":{\"init\":1099511627776,\"growth_interval\":1000%s}", more);
    char *spec = make_spec("", "fp16", members, "", 60), *dir = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(digests, dir, spec, 1, NULL));
    run_end end = read_end(dir);
    gs_temp_dir_remove(dir);
    free(spec);
    return end;
}

// Overflows that hysteresis forgives are skipped steps more; and no scale is below the smallest.
static void hysteresis_and_the_smallest_scale_hold_in_a_job(void **state) {
    (void)state;
    run_end usual = end_with_scale(""), patient = end_with_scale(",\"hysteresis\":3");
    assert_int_equal(patient.skipped_steps, usual.skipped_steps + 2);
    assert_true(patient.loss_scale == usual.loss_scale);
    // All steps overflow there.
    run_end high = end_with_scale(",\"min\":3e10");
    assert_int_equal(high.skipped_steps, 60);
    assert_true(high.loss_scale == (double)3e10f);
}

// More steps are skipped in a row than a run without a scale may have.
static void a_scale_from_the_largest_float_down_finds_its_place(void **state) {
    (void)state;
    char *spec = make_spec("", "fp16", ",\"loss_scale\":{\"init\":1e38}", "", 150);
    char *dir = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(digests, dir, spec, 1, NULL));
    run_end end = read_end(dir);
    assert_true(end.skipped_steps > 100 && end.skipped_steps < 140);
    gs_temp_dir_remove(dir);
    free(spec);
}

static void check_gives_up(char *spec) {
    char *dir = gs_temp_dir_make(), *arg = trainer_rank_arg(spec, dir, NULL);
    gs_status status = gs_ranks_run("train", 1, arg, gs_deadline_in_seconds(100));
    if (!strstr(status.message, "gradients were not finite 100 times in a row"))
        fail_msg("status %d: %s", status.code, status.message);
    gs_temp_dir_remove(dir);
    free(arg);
    free(spec);
}

// No scale helps weights that are not finite, and none that falls no further helps gradients: the
// run says so instead of skipping for ever.
static void what_no_scale_can_mend_ends_the_run(void **state) {
    (void)state;
    check_gives_up(make_spec_with("1000", "", "fp16", "", "", 240));
    check_gives_up(
        make_spec("", "fp16", ",\"loss_scale\":{\"init\":1099511627776,\"min\":3e10}", "", 120));
}

// A smooth model: rounding moves it a little, and no unit switches on or off by it.
static char *make_gpt2_spec(const char *precision, const char *optimizer, const char *reducer,
                            int replicas, int steps) {
    char *spec = NULL;
    if (asprintf(&spec,
                 "{\"name\":\"smooth\",\"logical_shards\":6,"
                 "\"world\":{\"min\":3,\"max\":3,\"replicas_per_process\":%d},"
                 "\"model\":{\"kind\":\"gpt2\",\"precision\":\"%s\",\"gpt2\":{\"layers\":1,"
                 "\"heads\":2,\"channels\":16,\"context\":8,\"vocab\":32}},"
                 "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":2,\"global_batch\":12},"
                 "\"optimizer\":{\"kind\":\"sgd\",\"lr\":0.1,\"momentum\":0.9%s},"
                 "\"reducer\":{\"first_bucket_bytes\":512,\"bucket_cap_bytes\":2048%s},"
                 "\"steps\":{\"target\":%d}}",
                 replicas, precision, optimizer, reducer, steps) < 0)
        abort();
    return spec;
}

static double distance_from(const char *wanted, const char *spec) {
    char *dir = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(digests, dir, spec, 3, NULL));
    double apart = distance(wanted, dir);
    gs_temp_dir_remove(dir);
    return apart;
}

// bf16 has 8 bits of significand, fp16 has 11; what training moves is far more.
static void runs_in_16_bits_stay_near_the_fp32_run(void **state) {
    (void)state;
    const struct {
        const char *precision, *optimizer, *reducer;
        double most;
    } cases[] = {{"bf16", "", "", 0.005},
                 {"fp16", ",\"loss_scale\":{\"init\":1024}", "", 0.0006},
                 {"fp32", "", ",\"wire_dtype\":\"bf16\"", 0.005},
                 {"fp32", "", ",\"wire_dtype\":\"fp16\"", 0.0006},
                 {"bf16", "", ",\"wire_dtype\":\"fp16\"", 0.005}};
    char *plain = make_gpt2_spec("fp32", "", "", 1, STEPS);
    char *start = make_gpt2_spec("fp32", "", "", 1, 1);
    char *wanted = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(digests, wanted, plain, 3, NULL));
    double moved = distance_from(wanted, start);
    print_message("  training moved the weights by %.4f\n", moved);
    assert_true(moved > 0.1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *spec =
            make_gpt2_spec(cases[i].precision, cases[i].optimizer, cases[i].reducer, 1, STEPS);
        double apart = distance_from(wanted, spec);
        print_message("  %s%s: %.6f\n", cases[i].precision, cases[i].reducer, apart);
        assert_true(apart > 0 && apart < cases[i].most);
        free(spec);
    }
    gs_temp_dir_remove(wanted);
    free(plain);
    free(start);
}

// By the scaled one, every step would be clipped to a thousandth.
static void clipping_is_by_the_norm_without_the_loss_scale(void **state) {
    (void)state;
    static const char clip[] = ",\"grad_clip_norm\":0.3";
    static const char scaled_clip[] = ",\"grad_clip_norm\":0.3,\"loss_scale\":{\"init\":1024}";
    char *clipped = make_gpt2_spec("fp32", clip, "", 1, STEPS);
    char *unclipped = make_gpt2_spec("fp32", "", "", 1, STEPS);
    char *scaled = make_gpt2_spec("fp16", scaled_clip, "", 1, STEPS), *wanted = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(digests, wanted, clipped, 3, NULL));
    double by_clipping = distance_from(wanted, unclipped), apart = distance_from(wanted, scaled);
    print_message("  clipping %.4f, fp16 %.6f\n", by_clipping, apart);
    assert_true(by_clipping > 0.02);
    assert_true(apart > 0 && apart < 0.0006);
    gs_temp_dir_remove(wanted);
    free(clipped);
    free(unclipped);
    free(scaled);
}

// The other ways of a gradient: rows of the embedding beside its dense half, and two replicas in
// each process. Sums come in another order, and rows are not rounded: near, not equal.
static void fp16_goes_with_rows_and_replicas(void **state) {
    (void)state;
    static const char scale[] = ",\"loss_scale\":{\"init\":1024}";
    char *plain = make_gpt2_spec("fp16", scale, "", 1, STEPS), *wanted = gs_temp_dir_make();
    char *rows = make_gpt2_spec("fp16", scale, ",\"sparse_embedding\":\"gather\"", 1, STEPS);
    char *replicas = make_gpt2_spec("fp16", scale, "", 2, STEPS);
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(digests, wanted, plain, 3, NULL));
    double by_rows = distance_from(wanted, rows), by_replicas = distance_from(wanted, replicas);
    print_message("  rows %.6f, replicas %.6f\n", by_rows, by_replicas);
    assert_true(by_rows < 0.0006);
    assert_true(by_replicas < 0.0006);
    gs_temp_dir_remove(wanted);
    free(plain);
    free(rows);
    free(replicas);
}

static void exact_16_bits_have_the_same_bits_for_every_world_and_resume(void **state) {
    (void)state;
    const char *const precisions[] = {"fp16", "bf16"};
    for (int p = 0; p < 2; p++) {
        const char *optimizer = p ? "" : HUGE_SCALE;
        char *whole = make_spec(EXACT, precisions[p], optimizer, "", STEPS);
        char *first = make_spec(EXACT, precisions[p], optimizer, "", 27);
        char *alone = gs_temp_dir_make(), *part = gs_temp_dir_make(), *rest = gs_temp_dir_make();
        gs_digest undisturbed[TRAINER_RANK_MAX_STEPS], other[TRAINER_RANK_MAX_STEPS];
        assert_ok(trainer_rank_train(undisturbed, alone, whole, 1, NULL));
        assert_ok(trainer_rank_train(other, part, first, 3, NULL));
        assert_same(undisturbed, other, 1, 27);
        char *checkpoint = trainer_rank_checkpoint(part);
        assert_ok(trainer_rank_train(other, rest, whole, 4, checkpoint));
        assert_same(undisturbed, other, 28, STEPS);
        free(checkpoint);
        gs_temp_dir_remove(alone);
        gs_temp_dir_remove(part);
        gs_temp_dir_remove(rest);
        free(whole);
        free(first);
    }
}

// Scale and growth tracker go on where they were: stopped while the scale is still falling, and
// later.
static void resume_goes_on_with_the_loss_scale_it_had(void **state) {
    (void)state;
    const int stops[] = {5, 29};
    char *whole = make_spec("", "fp16", HUGE_SCALE, "", STEPS), *dir = gs_temp_dir_make();
    gs_digest undisturbed[TRAINER_RANK_MAX_STEPS], resumed[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(undisturbed, dir, whole, 2, NULL));
    gs_temp_dir_remove(dir);
    for (int i = 0; i < 2; i++) {
        char *first = make_spec("", "fp16", HUGE_SCALE, "", stops[i]);
        char *part = gs_temp_dir_make(), *rest = gs_temp_dir_make();
        assert_ok(trainer_rank_train(resumed, part, first, 2, NULL));
        run_end end = read_end(part);
        assert_true(end.loss_scale > 0 && end.growth_tracker >= 0);
        char *checkpoint = trainer_rank_checkpoint(part);
        assert_ok(trainer_rank_train(resumed, rest, whole, 2, checkpoint));
        assert_same(undisturbed, resumed, stops[i] + 1, STEPS);
        free(checkpoint);
        gs_temp_dir_remove(part);
        gs_temp_dir_remove(rest);
        free(first);
    }
    free(whole);
}

static void resume_with_another_precision_is_refused_by_name(void **state) {
    (void)state;
    const struct {
        const char *precision, *optimizer, *reducer, *pointer;
    } others[] = {{"fp32", "", "", "/model/precision"},
                  {"fp16", ",\"loss_scale\":{\"init\":8}", "", "/optimizer/loss_scale"},
                  {"fp16", ",\"zero_grad\":\"zero\"", "", "/optimizer/zero_grad"},
                  {"fp16", "", ",\"wire_dtype\":\"fp16\"", "/reducer/wire_dtype"}};
    char *spec = make_spec("", "fp16", "", "", 2), *dir = gs_temp_dir_make();
    gs_digest digests[TRAINER_RANK_MAX_STEPS];
    assert_ok(trainer_rank_train(digests, dir, spec, 1, NULL));
    char *checkpoint = trainer_rank_checkpoint(dir);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char *other = make_spec("", others[i].precision, others[i].optimizer, others[i].reducer, 4);
        char *arg = trainer_rank_arg(other, dir, checkpoint);
        gs_status status = gs_ranks_run("train", 1, arg, gs_deadline_in_seconds(60));
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        if (!strstr(status.message, others[i].pointer)) fail_msg("%s", status.message);
        free(arg);
        free(other);
    }
    gs_temp_dir_remove(dir);
    free(checkpoint);
    free(spec);
}

// Which rank overflows in which step follows from a number; a rank knows only its own.
static bool overflows(int64_t step, int rank) {
    return (step * 7 + rank * 5) % 9 == 0;
}

static gs_status run_scaled_step(grad_rank *rank, int64_t step, gs_grad_scaler *scaler,
                                 const gs_grad_scaler_options *options) {
    gs_reducer_pass pass;
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    float value = gs_grad_scaler_scale(scaler) * 3;
    if (overflows(step, rank->rank)) value = rank->rank % 2 ? NAN : INFINITY;
    for (size_t i = 0; i < 100; i++) ((float *)pass.grads[0])[i] = value;
    GS_TRY(gs_reducer_mark_ready(rank->reducer, 0));
    GS_TRY(gs_reducer_end_pass(rank->reducer));
    GS_TRY(gs_reducer_finish(rank->reducer, &result, gs_deadline_in_seconds(60)));
    float mean =
        ((const float *)gs_reducer_grads(rank->reducer)[0])[50] * gs_grad_scaler_inverse(scaler);
    if (!result.nonfinite)
        GS_TRY(check_near("the mean", (double)mean, 3, (gs_near){.absolute = 1e-5}));
    gs_grad_scaler_update(scaler, options, result.nonfinite);
    return gs_ok();
}

static gs_status body_scaler(const gs_rank_env *env) {
    const gs_grad_scaler_options options = {
        .init_scale = 1e6f, .growth_factor = 1.7, .backoff_factor = 0.3, .growth_interval = 2};
    grad_case model = {.num_params = 1, .num_shards = env->world_size, .passes_per_shard = 1};
    model.params[0] = gs_param_spec_make(GS_FP16, 100, 0, "p");
    GS_TRY(gs_bucket_plan_parity(&model.plan, model.params, 1, 4096, 4096, NULL));
    gs_grad_scaler scaler, serial;
    GS_TRY(gs_grad_scaler_init(&scaler, &options));
    GS_TRY(gs_grad_scaler_init(&serial, &options));
    grad_rank rank;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, gs_deadline_in_seconds(60)));
    gs_status status = gs_ok();
    for (int64_t step = 0; step < 60 && !status.code; step++) {
        bool any = false;
        for (int r = 0; r < env->world_size; r++) any |= overflows(step, r);
        gs_grad_scaler_update(&serial, &options, any);
        status = run_scaled_step(&rank, step, &scaler, &options);
        if (!status.code && memcmp(&scaler.scale, &serial.scale, sizeof serial.scale) != 0)
            status = gs_error(GS_INTERNAL, "step %lld: scale %g, expected %g", (long long)step,
                              (double)scaler.scale, (double)serial.scale);
    }
    grad_rank_close(&rank);
    grad_case_release(&model);
    return status;
}

static void overflow_of_any_rank_backs_off_once_on_all(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 4; world_size++) {
        gs_status status = gs_ranks_run("scaler", world_size, "", gs_deadline_in_seconds(60));
        if (status.code) fail_msg("%d ranks: %s", world_size, status.message);
    }
}

// Rank r holds the gradient {r + 1}; one of them may be no number.
static gs_status body_norms(const gs_rank_env *env) {
    gs_device *device = NULL;
    gs_comm *comm = NULL;
    GS_TRY(gs_device_open(&device, "cpu", &(gs_device_options){0}));
    gs_status status = gs_comm_create(&comm,
                                      &(gs_comm_options){.rank = env->rank,
                                                         .world_size = env->world_size,
                                                         .generation = 1,
                                                         .exchange = gs_rank_exchange,
                                                         .exchange_ctx = env->exchange,
                                                         .device = device},
                                      gs_deadline_in_seconds(60));
    const double orders[] = {1, 2, 1000, (double)INFINITY}, wanted[] = {6, sqrt(14), 3, 3};
    for (int i = 0; i < 8 && !status.code; i++) {
        double p = orders[i % 4], norm = 0;
        bool is_bad = i >= 4;
        float value = is_bad && env->rank == i % 3 ? NAN : (float)(env->rank + 1), *grad = &value;
        const size_t count = 1;
        const gs_grad_list list = {&(void *){grad}, &count, 1};
        status = gs_grad_norm_across(&norm, gs_grad_list_norm(&list, p, device), p, comm,
                                     gs_deadline_in_seconds(60));
        if (!status.code)
            status = check_near("the norm", norm, is_bad ? (double)NAN : wanted[i],
                                (gs_near){.absolute = 1e-12, .nonfinite = is_bad});
    }
    gs_comm_destroy(comm);
    gs_device_close(device);
    return status;
}

static void norms_across_ranks_are_of_all_gradients_and_keep_nan(void **state) {
    (void)state;
    gs_status status = gs_ranks_run("norms", 3, "", gs_deadline_in_seconds(60));
    if (status.code) fail_msg("%s", status.message);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"train", trainer_rank_run}, {"scaler", body_scaler}, {"norms", body_norms}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overflow_of_any_rank_backs_off_once_on_all),
        cmocka_unit_test(norms_across_ranks_are_of_all_gradients_and_keep_nan),
        cmocka_unit_test(a_scale_from_the_largest_float_down_finds_its_place),
        cmocka_unit_test(hysteresis_and_the_smallest_scale_hold_in_a_job),
        cmocka_unit_test(what_no_scale_can_mend_ends_the_run),
        cmocka_unit_test(fp16_job_with_a_huge_scale_skips_backs_off_and_trains),
        cmocka_unit_test(runs_in_16_bits_stay_near_the_fp32_run),
        cmocka_unit_test(clipping_is_by_the_norm_without_the_loss_scale),
        cmocka_unit_test(fp16_goes_with_rows_and_replicas),
        cmocka_unit_test(exact_16_bits_have_the_same_bits_for_every_world_and_resume),
        cmocka_unit_test(resume_goes_on_with_the_loss_scale_it_had),
        cmocka_unit_test(resume_with_another_precision_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
