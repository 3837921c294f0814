// "int8", "int8_channel" and "uint8_gather" between ranks: the bits of a serial reference in worlds of 1 to 8, for
// fp32 and fp64, buckets of odd sizes, several in flight; ranks without data; NaN; zeros; bytes on the wire.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "core/random.h"
#include "gradsync/comm/device_arena.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/step/join.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/quantized_reference.h"
#include "tests/support/ranks.h"
#include "tests/support/sample.h"
#include "tests/support/soon.h"

#define NUM_PARAMS 8
#define MAX_WORLD 9

// What step `step` is for.
enum { PLAIN_STEP, ZERO_STEP, NAN_STEP, MERGED_STEP, UNEVEN_STEP, NUM_STEPS };

static const char *const hook_names[] = {"int8", "int8_channel", "uint8_gather"};

// ---- what goes over the wire, of each kind of collective: what a rank sends in a ring

static uint64_t sent_bytes[GS_BARRIER + 1];

gs_status __real_gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective);
gs_status __wrap_gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective);
gs_status __wrap_gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective) {
    const uint64_t others = (uint64_t)gs_comm_world_size(comm) - 1;
    const uint64_t bytes = gs_collective_sent_bytes(collective) * others;
    sent_bytes[collective->kind] +=
        collective->kind == GS_ALLREDUCE ? 2 * bytes / (others + 1) : bytes;
    return __real_gs_comm_post(comm, work, collective);
}

// ---- a rank with a reducer that has the hook

typedef struct quantized {
    const gs_rank_env *env;
    const char *name;
    gs_dtype dtype, wire_dtype;
    bool is_wrapped;  // in a hook that rounds to the wire dtype, too
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plans[2];  // a bucket for each; one for all
    gs_hook_choice choice, inner;
    gs_reducer_options options;
    gs_reducer *reducer;
} quantized;

// The hook as it is, and what it was told of buckets.
static gs_comm_hook watched;
static gs_status (*place_really)(void *state, const gs_hook_plan *plan);
static const gs_hook_layout *layouts;
static size_t num_layouts;

static gs_status place_watched(void *state, const gs_hook_plan *plan) {
    layouts = plan->buckets;
    num_layouts = plan->num_buckets;
    return place_really(state, plan);
}

// The last one is cut into parts in any world, of two segments in a world of two.
static size_t count_of(const quantized *self, size_t param) {
    static const size_t counts[NUM_PARAMS - 1] = {1, 511, 512, 513, 1024, 700, 8191};
    if (param < NUM_PARAMS - 1) return counts[param];
    return self->env->world_size == 2 ? 140001 : 4100 * (size_t)self->env->world_size + 77;
}

static gs_status open_quantized(quantized *self, const gs_rank_env *env, const char *name,
                                gs_dtype dtype, gs_dtype wire_dtype) {
    *self = (quantized){.env = env, .name = name, .dtype = dtype, .wire_dtype = wire_dtype};
    self->is_wrapped = wire_dtype && dtype == GS_FP32;
    watched = *gs_comm_hook_find(name);
    place_really = watched.on_plan;
    watched.on_plan = place_watched;
    self->inner.hook = &watched;
    self->choice = self->inner;
    if (self->is_wrapped)
        self->choice = (gs_hook_choice){
            .hook = gs_comm_hook_find(wire_dtype == GS_FP16 ? "wrap_fp16" : "wrap_bf16"),
            .inner = &self->inner};
    for (size_t p = 0; p < NUM_PARAMS; p++)
        self->params[p] = gs_param_spec_make(dtype, (int64_t)count_of(self, p), 0, "layer.%zu", p);
    GS_TRY(gs_bucket_plan_parity(&self->plans[0], self->params, NUM_PARAMS, 1, 1, NULL));
    GS_TRY(gs_bucket_plan_parity(&self->plans[1], self->params, NUM_PARAMS, 1 << 30, 1 << 30, NULL));
    self->options = (gs_reducer_options){
        .params = self->params,
        .num_params = NUM_PARAMS,
        .plan = &self->plans[0],
        .shards = {.num_shards = env->world_size, .world_size = env->world_size, .rank = env->rank},
        .op = GS_MEAN,
        .wire_dtype = self->is_wrapped ? GS_DTYPE_UNSET : wire_dtype,
        .hooks = &self->choice,
        .num_hooks = 1};
    size_t bytes;
    int num_lanes;
    GS_TRY(test_device_try(&self->device, 1));
    GS_TRY(gs_reducer_arena_bytes(&bytes, &self->options));
    GS_TRY(gs_reducer_lanes(&num_lanes, &self->options));
    GS_TRY(gs_arena_create_on(&self->arena, bytes, self->device));
    GS_TRY(gs_comm_create(&self->comm,
                          &(gs_comm_options){.rank = env->rank,
                                             .world_size = env->world_size,
                                             .generation = 1,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = env->exchange,
                                             .arena = self->arena,
                                             .device = self->device,
                                             .num_lanes = num_lanes},
                          soon()));
    self->options.arena = self->arena;
    self->options.device = self->device;
    return gs_reducer_create(&self->reducer, &self->options, self->comm, soon());
}

static void close_quantized(quantized *self) {
    gs_reducer_destroy(self->reducer);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    test_device_close(self->device);
    gs_bucket_plan_release(&self->plans[0]);
    gs_bucket_plan_release(&self->plans[1]);
}

static bool has_data(const quantized *self, int64_t step, int rank) {
    return step != UNEVEN_STEP || rank < self->env->world_size - 1 || self->env->world_size == 1;
}

// Of all sizes; a third is 0, and what ranks have differs by its factor.
static double value_of(const quantized *self, int64_t step, int rank, size_t param, size_t i) {
    const gs_random_key key = {.seed = 9, .stream = (uint64_t)(step * 16 + rank) * 16 + param};
    const uint64_t bits = gs_random_u64(key, i);
    if (step == ZERO_STEP || !has_data(self, step, rank)) return 0;
    if (step == NAN_STEP && rank == self->env->world_size / 2 && i == count_of(self, param) / 2) {
        if (param == 3) return (double)NAN;
        if (param == NUM_PARAMS - 1) return -(double)INFINITY;
    }
    if (bits % 3 == 0) return 0;
    double value = (double)((int64_t)(bits >> 40) - (1 << 23)) * 0x1p-23 * (rank + 1);
    return self->dtype == GS_FP64 ? value * (1 + 0x1p-40) : (double)(float)value;
}

static double *make_numbers(size_t count) {
    double *numbers = calloc(count + 1, sizeof *numbers);
    if (!numbers) abort();
    return numbers;
}

static gs_status run_pass(quantized *self, int64_t step) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, 1));
    for (size_t p = NUM_PARAMS; p-- > 0;) {
        const size_t count = count_of(self, p);
        double *wide = make_numbers(count);
        float *narrow = (float *)(void *)wide;
        for (size_t i = 0; i < count; i++) {
            double value = value_of(self, step, self->env->rank, p, i);
            if (self->dtype == GS_FP64)
                wide[i] = value;
            else
                narrow[i] = (float)value;
        }
        device_memory_write(self->device, pass.grads[p], wide, count * gs_dtype_bytes(self->dtype));
        free(wide);
        GS_TRY(gs_reducer_mark_ready(self->reducer, p));
    }
    return gs_reducer_end_pass(self->reducer);
}

static gs_status run_step(quantized *self, int64_t step, gs_reduce_result *result) {
    if (step == MERGED_STEP) GS_TRY(gs_reducer_set_plan(self->reducer, &self->plans[1], soon()));
    if (step != UNEVEN_STEP) {
        GS_TRY(gs_reducer_begin(self->reducer, step));
    } else {
        gs_join_round round;
        GS_TRY(gs_join_announce(&round, self->comm, has_data(self, step, self->env->rank),
                                GS_DIVIDE_BY_INITIAL, step, soon()));
        GS_TRY(gs_reducer_begin_uneven(self->reducer, step, &round));
    }
    if (has_data(self, step, self->env->rank)) GS_TRY(run_pass(self, step));
    return gs_reducer_finish(self->reducer, result, soon());
}

// ---- the reference

// The result, on the host, to be freed.
static void *copy_result(const quantized *self, size_t param) {
    double *copy = make_numbers(count_of(self, param));
    device_memory_read(self->device, copy, gs_reducer_grads(self->reducer)[param],
                       count_of(self, param) * gs_dtype_bytes(self->dtype));
    return copy;
}

static double number_of(const quantized *self, const void *numbers, size_t i) {
    return self->dtype == GS_FP64 ? ((const double *)numbers)[i]
                                  : (double)((const float *)numbers)[i];
}

static void expect(double *out, double *steps, const quantized *self, const quantized_reference *bucket) {
    if (strcmp(self->name, "uint8_gather") == 0)
        quantized_reference_uint8_gather(out, steps, bucket);
    else if (self->env->world_size > 8)
        quantized_reference_allreduce(out, bucket);
    else
        quantized_reference_int8(out, bucket, strcmp(self->name, "int8") == 0 ? 0 : 512);
}

// Rounded once: off the exact mean by less than a step, whose size is a 255th of the means' range.
static gs_status check_error(const quantized_reference *bucket, const double *got, const double *steps) {
    for (size_t i = 0; i < bucket->count; i++) {
        double mean = 0, magnitude = 0;
        for (int r = 0; r < bucket->world_size; r++) {
            mean += bucket->grads[r][i] / bucket->world_size;
            magnitude += fabs(bucket->grads[r][i]);
        }
        double unit = bucket->wire_dtype == GS_BF16 ? 0x1p-8 : bucket->wire_dtype ? 0x1p-11 : 0x1p-22;
        if (!(fabs(got[i] - mean) <= 1.001 * steps[i] + 2 * unit * magnitude + 0x1p-24))
            return gs_error(GS_INTERNAL, "element %zu: %a is too far from the mean %a, step %a", i,
                            got[i], mean, steps[i]);
    }
    return gs_ok();
}

// What a wrapper makes of gradients and of results.
static double wrapped(const quantized *self, double value) {
    return self->is_wrapped ? quantized_reference_sent(self->wire_dtype, value) : value;
}

// How far a GPU's result may be from the reference, where the two add in other orders. Of each of `magnitude`, the sum of
// what ranks' numbers add to the mean in absolute value, no rounding takes more than `unit`: the library rounds at each
// of its additions and the scaled sum once, the reference once. So means differ by (ranks + 1) roundings at most, one of
// them in whatever lies below the smallest normal number. Each of two means is rounded to its own codes by less than a
// step, and a wrapper rounds both once more.
static double slack_of(const quantized *self, double magnitude, double step) {
    const double num_roundings = self->env->world_size + (self->is_wrapped ? 3 : 1);
    double unit = self->wire_dtype == GS_FP16   ? 0x1p-11
                  : self->wire_dtype == GS_BF16 ? 0x1p-8
                  : self->dtype == GS_FP64      ? 0x1p-53
                                                : 0x1p-24;
    double tiny = self->wire_dtype == GS_FP16 ? 0x1p-25 : 0;
    return 2.002 * step + 1.01 * num_roundings * (unit * magnitude + tiny);
}

static bool is_within(double got, double wanted, double slack) {
    return memcmp(&got, &wanted, sizeof got) == 0 || (isnan(got) && isnan(wanted)) ||
           fabs(got - wanted) <= slack;
}

static double magnitude_at(const quantized_reference *bucket, size_t i) {
    double magnitude = 0;
    for (int r = 0; r < bucket->world_size; r++) magnitude += fabs(bucket->grads[r][i]);
    return magnitude * bucket->scale;
}

static gs_status check_bucket(const quantized *self, const gs_hook_layout *layout, int64_t step) {
    double *grads[MAX_WORLD], *want = make_numbers(layout->count), *steps = make_numbers(layout->count);
    const int world_size = self->env->world_size;
    for (int r = 0; r < world_size; r++) {
        grads[r] = make_numbers(layout->count);
        for (size_t m = 0; m < layout->num_params; m++) {
            const gs_hook_param *param = &layout->params[m];
            for (size_t i = 0; i < param->count; i++)
                grads[r][param->first + i] =
                    wrapped(self, value_of(self, step, r, param->index, i));
        }
    }
    const quantized_reference bucket = {.world_size = world_size,
                                   .dtype = self->dtype,
                                   .wire_dtype = self->wire_dtype,
                                   .count = layout->count,
                                   .scale = 1.0 / world_size,
                                   .grads = (const double *const *)grads};
    expect(want, steps, self, &bucket);
    gs_status status = gs_ok();
    const bool is_gather = strcmp(self->name, "uint8_gather") == 0;
    const bool adds_elsewhere = is_gather && !test_device_is_host();  // of the others codes are gathered
    for (size_t m = 0; m < layout->num_params && !status.code; m++) {
        const gs_hook_param *param = &layout->params[m];
        void *result = copy_result(self, param->index);
        for (size_t i = 0; i < param->count && !status.code; i++) {
            const size_t at = param->first + i;
            double got = number_of(self, result, i), wanted = wrapped(self, want[at]);
            double slack = adds_elsewhere ? slack_of(self, magnitude_at(&bucket, at), steps[at]) : 0;
            if (!is_within(got, wanted, slack))
                status = gs_error(GS_INTERNAL, "parameter %zu, element %zu is %a, not %a",
                                  param->index, i, got, wanted);
        }
        free(result);
    }
    if (!status.code && step == PLAIN_STEP && is_gather) status = check_error(&bucket, want, steps);
    for (int r = 0; r < world_size; r++) free(grads[r]);
    free(want);
    free(steps);
    return status;
}

static gs_status check_same_bits(const quantized *self, int64_t step) {
    char tag[64];
    uint64_t digest = 0, all[MAX_WORLD];
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        void *result = copy_result(self, p);
        digest = gs_hash64(result, count_of(self, p) * gs_dtype_bytes(self->dtype), digest);
        free(result);
    }
    snprintf(tag, sizeof tag, "%s %d %d %d", self->name, (int)self->dtype, (int)self->wire_dtype,
             (int)step);
    GS_TRY(gs_rank_exchange(self->env->exchange, tag, NULL, 0, &digest, sizeof digest, all, soon()));
    for (int r = 0; r < self->env->world_size; r++)
        if (all[r] != digest) return gs_error(GS_INTERNAL, "other bits than rank %d", r);
    return gs_ok();
}

// One rank compares with the reference, each step another; all hold the same.
static gs_status check_step(const quantized *self, const gs_reduce_result *result, int64_t step) {
    GS_TRY(check_same_bits(self, step));
    for (size_t b = 0; b < num_layouts && step % self->env->world_size == self->env->rank; b++)
        GS_TRY(gs_status_prefix(check_bucket(self, &layouts[b], step), "bucket %zu", b));
    if (!result->nonfinite == (step == NAN_STEP))
        return gs_error(GS_INTERNAL, "%llu numbers are not finite",
                        (unsigned long long)result->nonfinite);
    return gs_ok();
}

// ---- bytes: what the formulas of the guide say, and messages' ends

static gs_status check_range(const char *what, uint64_t bytes, double least, double most) {
    if ((double)bytes >= least && (double)bytes <= most) return gs_ok();
    return gs_error(GS_INTERNAL, "%s: %llu bytes, not %g to %g", what, (unsigned long long)bytes,
                    least, most);
}

static gs_status check_bytes(const quantized *self) {
    const double n = self->env->world_size, width = (double)gs_dtype_bytes(self->dtype);
    const double sent_width =
        self->wire_dtype ? (double)gs_dtype_bytes(self->wire_dtype) : width;
    const bool is_gather = strcmp(self->name, "uint8_gather") == 0;
    const bool has_rows = strcmp(self->name, "int8_channel") == 0;
    double all = 0, cut = 0, ends = 0;
    for (size_t b = 0; b < num_layouts; b++) {
        double count = (double)layouts[b].count, part = floor(count / n / 64) * 64;
        all += count;
        if (n > 1 && part >= 4096) cut += n * part;
        ends += 48 + (has_rows ? 2 * width * (count / 512 + 1) : 2 * width * (count / 65536));
    }
    if (is_gather) {
        GS_TRY(check_range("reduce-scatter", sent_bytes[GS_REDUCE_SCATTER],
                           sent_width * cut * (n - 1) / n, sent_width * cut * (n - 1) / n));
        GS_TRY(check_range("all-gather", sent_bytes[GS_ALLGATHER], cut * (n - 1) / n,
                           (cut / n + ends) * (n - 1)));
        return check_range("all-reduce", sent_bytes[GS_ALLREDUCE], 0,
                           2 * width * (all - cut + 64 * NUM_PARAMS) * (n - 1) / n);
    }
    GS_TRY(check_range("all-reduce", sent_bytes[GS_ALLREDUCE], 0,
                       2 * width * (n > 8 ? all + 64 * NUM_PARAMS : 64 * NUM_PARAMS)));
    return check_range("all-gather", sent_bytes[GS_ALLGATHER], n > 8 ? 0 : all * (n - 1),
                       n > 8 ? 0 : (all + ends) * (n - 1));
}

static gs_status run_steps(quantized *self) {
    for (int64_t step = 0; step < NUM_STEPS; step++) {
        gs_reduce_result result;
        memset(sent_bytes, 0, sizeof sent_bytes);
        gs_status status = run_step(self, step, &result);
        if (!status.code) status = check_step(self, &result, step);
        if (!status.code && step != UNEVEN_STEP) status = check_bytes(self);
        if (status.code) return gs_status_prefix(status, "step %d", (int)step);
    }
    return gs_ok();
}

static gs_status run_hook(const gs_rank_env *env, const char *name, gs_dtype dtype,
                          gs_dtype wire_dtype) {
    quantized self;
    gs_status status = open_quantized(&self, env, name, dtype, wire_dtype);
    if (!status.code) status = run_steps(&self);
    close_quantized(&self);
    return gs_status_prefix(status, "%s of %s by %s", name, gs_dtype_name(dtype),
                            gs_dtype_name(wire_dtype));
}

static gs_status body_hooks(const gs_rank_env *env) {
    for (size_t h = 0; h < 3; h++) {
        GS_TRY(run_hook(env, hook_names[h], GS_FP32, GS_DTYPE_UNSET));
        if (env->world_size <= 4) GS_TRY(run_hook(env, hook_names[h], GS_FP64, GS_DTYPE_UNSET));
    }
    return gs_ok();
}

// Floats in 16 bits: half the bytes of the reduce-scatter. Small buckets, and codes, have none or are none.
static gs_status body_halves(const gs_rank_env *env) {
    GS_TRY(run_hook(env, "uint8_gather", GS_FP32, GS_FP16));
    GS_TRY(run_hook(env, "uint8_gather", GS_FP32, GS_BF16));
    GS_TRY(run_hook(env, "uint8_gather", GS_FP64, GS_BF16));
    return run_hook(env, "int8_channel", GS_FP32, GS_FP16);
}

static void run_worlds(const char *body, int first, int last) {
    for (int world_size = first; world_size <= last; world_size++)
        assert_ok(gs_ranks_run(body, world_size, "", gs_deadline_in_seconds(120)));
}

// On a device; where runs are sampled one of them.
static const struct {
    const char *name;
    gs_dtype dtype, wire_dtype;
} device_runs[] = {{"uint8_gather", GS_FP32, GS_FP16}, {"uint8_gather", GS_FP64, GS_BF16},
                   {"uint8_gather", GS_FP32, 0},       {"int8", GS_FP32, 0},
                   {"int8_channel", GS_FP32, GS_FP16}, {"int8", GS_FP64, 0}};
enum { NUM_DEVICE_RUNS = sizeof device_runs / sizeof device_runs[0] };

static gs_status body_device(const gs_rank_env *env) {
    const sample drawn = sample_from_environment();
    for (uint64_t i = 0; i < NUM_DEVICE_RUNS; i++)
        if (drawn.share <= 1 || i == drawn.seed / 3 % NUM_DEVICE_RUNS)
            GS_TRY(run_hook(env, device_runs[i].name, device_runs[i].dtype,
                            device_runs[i].wire_dtype));
    return gs_ok();
}

static void every_kind_agrees_with_the_serial_reference(void **state) {
    (void)state;
    const sample drawn = sample_from_environment();
    if (!sample_takes_all_of("hooks of 8 bits on a device")) return;
    run_worlds("device", 2, drawn.share <= 1 ? 3 : 2);
}

static void one_to_four_ranks_have_the_bits_of_the_serial_reference(void **state) {
    (void)state;
    run_worlds("hooks", 1, 4);
}

static void five_to_eight_ranks_have_the_bits_of_the_serial_reference(void **state) {
    (void)state;
    run_worlds("hooks", 5, 8);
}

static void a_wire_dtype_halves_what_floats_there_are(void **state) {
    (void)state;
    run_worlds("halves", 1, 3);
}

static gs_status body_many(const gs_rank_env *env) {
    GS_TRY(run_hook(env, "int8", GS_FP32, GS_DTYPE_UNSET));
    return run_hook(env, "int8_channel", GS_FP32, GS_DTYPE_UNSET);
}

static void more_than_eight_ranks_reduce_exactly_and_send_less(void **state) {
    (void)state;
    run_worlds("many", 9, 9);
}

static void exact_mode_is_refused(void **state) {
    (void)state;
    const gs_param_spec param = gs_param_spec_make(GS_FP32, 10, 0, "weight");
    for (size_t h = 0; h < 3; h++) {
        const gs_hook_choice choice = {.hook = gs_comm_hook_find(hook_names[h])};
        const gs_reducer_options options = {
            .params = &param,
            .num_params = 1,
            .shards = {.num_shards = 1, .world_size = 1, .exact = true},
            .hooks = &choice,
            .num_hooks = 1};
        size_t bytes;
        gs_status status = gs_reducer_arena_bytes(&bytes, &options);
        assert_int_equal(status.code, GS_FAILED_PRECONDITION);
        assert_non_null(strstr(status.message, hook_names[h]));
        assert_non_null(strstr(status.message, "exact mode"));
    }
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"hooks", body_hooks}, {"halves", body_halves}, {"many", body_many},
                                          {"device", body_device}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    if (!test_device_is_there()) return TEST_SKIPPED;
    const struct CMUnitTest device_tests[] = {
        cmocka_unit_test(every_kind_agrees_with_the_serial_reference),
    };
    if (!test_device_is_host()) return cmocka_run_group_tests(device_tests, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_to_four_ranks_have_the_bits_of_the_serial_reference),
        cmocka_unit_test(five_to_eight_ranks_have_the_bits_of_the_serial_reference),
        cmocka_unit_test(a_wire_dtype_halves_what_floats_there_are),
        cmocka_unit_test(more_than_eight_ranks_reduce_exactly_and_send_less),
        cmocka_unit_test(exact_mode_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
