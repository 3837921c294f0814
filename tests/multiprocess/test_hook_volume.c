// What a plan says that hooks send is what they send: wire bytes of each bucket, counted where collectives are posted,
// against core/hook_volume, for every kind that the library has.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/hook_volume.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/asserts.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"

#define NUM_BUCKETS 2
#define FIRST_STEP 2  // where hooks that begin later begin

// Matrices that pay and one that does not, vectors; none fills its lines.
static void shape_params(small_reducer *small) {
    small->params[0] = gs_param_spec_make(GS_FP32, 301, 77, "wide");
    small->params[1] = gs_param_spec_make(GS_FP32, 77, 0, "bias");
    small->params[2] = gs_param_spec_make(GS_FP32, 70, 41, "narrow");
    small->params[3] = gs_param_spec_make(GS_FP32, 3, 5, "small");
}

// The kind under test, with its reserved elements counted apart.
static const gs_comm_hook *counted;
static uint64_t reserved_bytes[NUM_BUCKETS];

static gs_status run_counted(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    reserved_bytes[bucket->index] = bucket->reserved_count * gs_dtype_bytes(bucket->dtype);
    return counted->run(state, bucket, work);
}

static size_t choose_numbers(gs_hook_number *numbers, const gs_comm_hook *hook) {
    static const gs_hook_number wanted[] = {{"start_step", FIRST_STEP}, {"rank", 3}, {"ratio", 0.03},
                                            {"local_ranks", 1}};
    size_t count = 0;
    for (size_t i = 0; i < hook->num_options; i++) {
        for (size_t k = 0; k < sizeof wanted / sizeof wanted[0]; k++)
            if (strcmp(hook->options[i].name, wanted[k].name) == 0) numbers[count++] = wanted[k];
    }
    return count;
}

// Zeros are as many bytes as anything.
static gs_status take_steps(gs_reducer *reducer) {
    for (int64_t step = 0; step <= FIRST_STEP; step++) {
        gs_reducer_pass pass;
        gs_reduce_result result;
        GS_TRY(gs_reducer_begin(reducer, step));
        GS_TRY(gs_reducer_begin_pass(reducer, &pass, 1));
        GS_TRY(gs_reducer_end_pass(reducer));
        GS_TRY(gs_reducer_finish(reducer, &result, soon()));
        GS_TRY(gs_reducer_commit(reducer));
    }
    return gs_ok();
}

static gs_status compare(const small_reducer *small, const gs_bucket_plan *plan,
                         const gs_hook_rule *rule) {
    const gs_reduce_stats *stats = gs_reducer_stats(small->reducer);
    uint64_t elements = 0, sent = 0, compressed = 0;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const gs_plan_bucket *bucket = &plan->buckets[b];
        gs_hook_volume volume = gs_hook_volume_of(rule, small->params, plan->params + bucket->first,
                                                  bucket->num_params);
        uint64_t bytes = volume.wire_bytes + reserved_bytes[b];
        elements += volume.elements;
        sent += volume.elements_sent;
        compressed += volume.num_compressed;
        if (stats->buckets[b].wire_bytes != bytes)
            return gs_error(GS_INTERNAL, "%s, bucket %zu: %llu bytes, not %llu", rule->kind, b,
                            (unsigned long long)stats->buckets[b].wire_bytes,
                            (unsigned long long)bytes);
    }
    bool says = stats->elements && compressed;
    if (says && (stats->elements != elements || stats->elements_sent != sent))
        return gs_error(GS_INTERNAL, "%s: %llu of %llu elements, not %llu of %llu", rule->kind,
                        (unsigned long long)stats->elements_sent, (unsigned long long)stats->elements,
                        (unsigned long long)sent, (unsigned long long)elements);
    return gs_ok();
}

static gs_status count_hook(const gs_rank_env *env, const char *kind, const char *wrapper) {
    counted = gs_comm_hook_find(kind);
    if (!counted) return gs_error(GS_NOT_FOUND, "no hook %s", kind);
    gs_comm_hook hook = *counted;
    gs_hook_number numbers[8];
    hook.run = run_counted;
    gs_hook_choice inner = {.hook = &hook, .numbers = numbers};
    inner.num_numbers = choose_numbers(numbers, counted);
    const gs_hook_choice outer = {.hook = wrapper ? gs_comm_hook_find(wrapper) : NULL, .inner = &inner};
    const gs_hook_rule rule = {.kind = kind,
                               .wire_dtype = wrapper ? GS_FP16 : GS_DTYPE_UNSET,
                               .world_size = env->world_size,
                               .local_ranks = 1,
                               .rank = 3,
                               .min_compression_rate = 2,
                               .ratio = 0.03};
    small_reducer small;
    gs_bucket_plan plan = {0};
    small_reducer_prepare(&small);
    shape_params(&small);
    const gs_reducer_options options = {.hooks = wrapper ? &outer : &inner, .num_hooks = 1};
    GS_TRY(small_reducer_open(&small, &options, env));
    // The last and the second last parameter; the other two.
    gs_status status = gs_bucket_plan_parity(&plan, small.params, SMALL_PARAMS, 5000, 1 << 20, NULL);
    if (!status.code && plan.num_buckets != NUM_BUCKETS)
        status = gs_error(GS_INTERNAL, "%zu buckets", plan.num_buckets);
    if (!status.code) status = gs_reducer_set_plan(small.reducer, &plan, soon());
    if (!status.code) status = take_steps(small.reducer);
    if (!status.code) status = compare(&small, &plan, &rule);
    small_reducer_close(&small);
    gs_bucket_plan_release(&plan);
    return status;
}

static gs_status body_count(const gs_rank_env *env) {
    static const char *const kinds[] = {
        "allreduce", "fp16",         "bf16",         "powersgd", "batched_powersgd",
        "int8",      "int8_channel", "uint8_gather", "topk",     "onebit",
        "local_sgd", "noop"};
    static const char *const wrapped[] = {"allreduce", "powersgd",     "batched_powersgd", "int8",
                                          "int8_channel", "uint8_gather", "topk", "onebit"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        GS_TRY(count_hook(env, kinds[i], NULL));
    for (size_t i = 0; i < sizeof wrapped / sizeof wrapped[0]; i++)
        GS_TRY(count_hook(env, wrapped[i], "wrap_fp16"));
    return gs_ok();
}

static void hooks_send_what_plans_say(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("count", 2, "", soon()));
}

static void more_ranks_send_what_plans_say(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("count", 4, "", soon()));
}

static void alone_it_is_the_same_sum(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("count", 1, "", soon()));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"count", body_count}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hooks_send_what_plans_say),
        cmocka_unit_test(more_ranks_send_what_plans_say),
        cmocka_unit_test(alone_it_is_the_same_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
