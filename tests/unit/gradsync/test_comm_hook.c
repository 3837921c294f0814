// The contract of hooks in a world of one, with hooks of the test's own: what is refused, what they are told,
// where their memory lies, what becomes of their state.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/hooks/hook_calls.h"
#include "gradsync/hooks/hook_facts.h"
#include "gradsync/reducer/bucket_queue.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"

static void hooks_are_found_by_their_names(void **state) {
    (void)state;
    assert_ptr_equal(gs_comm_hook_find("allreduce"), &gs_hook_allreduce);
    assert_ptr_equal(gs_comm_hook_find("fp16"), &gs_hook_fp16);
    assert_ptr_equal(gs_comm_hook_find("bf16"), &gs_hook_bf16);
    assert_ptr_equal(gs_comm_hook_find("wrap_fp16"), &gs_hook_wrap_fp16);
    assert_ptr_equal(gs_comm_hook_find("wrap_bf16"), &gs_hook_wrap_bf16);
    assert_null(gs_comm_hook_find("all"));
    assert_null(gs_comm_hook_find("allreduce "));
    assert_null(gs_comm_hook_find(""));
}

// A hook that counts for each parameter in how many committed steps it travelled: two counts, of which one holds.
typedef struct counter {
    const gs_hook_choice *choice;
    size_t num_params;
    int64_t *counts[2];  // in the reducer's memory
    int holding;
    uint16_t **marks;  // of each bucket
    int num_plans, num_commits, num_rollbacks, num_loads;
    double grad_unit;  // of the last step
    gs_device *device;
} counter;
static counter *counting;  // the last one made
static int num_destroyed;

static const gs_hook_option count_options[] = {
    {.name = "rank", .fallback = 2, .least = 1, .most = 64, .is_whole = true},
    {.name = "epsilon", .fallback = 0.5, .least = 0, .most = 1},
};

static gs_status measure_counter(gs_hook_needs *needs, const gs_hook_setup *setup) {
    double rank = gs_hook_option_value(setup->choice, "rank");
    if (rank > 8 && gs_hook_option_value(setup->choice, "epsilon") == 0)
        return gs_error(GS_INVALID_ARGUMENT, "option epsilon: 0, with a rank of %g", rank);
    *needs = (gs_hook_needs){.state_bytes = 2 * setup->num_params * sizeof(int64_t),
                             .bucket_bytes = gs_hook_most_bytes(setup, sizeof(uint16_t))};
    return gs_ok();
}

static gs_status create_counter(void **state, const gs_hook_setup *setup) {
    counter *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->choice = setup->choice;
    self->num_params = setup->num_params;
    self->counts[0] = setup->state;
    self->counts[1] = self->counts[0] + setup->num_params;
    self->device = setup->device;
    *state = counting = self;
    return gs_ok();
}

static gs_status place_counter(void *state, const gs_hook_plan *plan) {
    counter *self = state;
    self->num_plans++;
    free(self->marks);
    self->marks = calloc(plan->num_buckets, sizeof *self->marks);
    for (size_t b = 0; b < plan->num_buckets; b++) {
        void *memory;
        const gs_hook_layout *bucket = &plan->buckets[b];
        if (bucket->hook != plan->hook) continue;
        GS_TRY(gs_hook_place(&memory, plan, bucket->count * sizeof(uint16_t)));
        self->marks[b] = memory;
    }
    return gs_ok();
}

static int64_t count_of(const counter *self, int which, size_t param) {
    int64_t count;
    device_memory_read(self->device, &count, self->counts[which] + param, sizeof count);
    return count;
}

static gs_status run_counter(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    counter *self = state;
    self->grad_unit = bucket->grad_unit;
    uint16_t *marks = self->marks[bucket->index], mark = (uint16_t)(bucket->index + 1);
    if ((uintptr_t)marks % GS_HOOK_PLACE_BYTES) return gs_error(GS_INTERNAL, "a crooked place");
    for (size_t i = 0; i < bucket->count; i++)
        device_memory_write(self->device, marks + i, &mark, sizeof mark);
    for (size_t i = 0; i < bucket->num_params; i++) {
        size_t param = bucket->params[i].index;
        int64_t count = count_of(self, self->holding, param) + 1;
        device_memory_write(self->device, self->counts[!self->holding] + param, &count,
                            sizeof count);
    }
    return gs_hook_allreduce.run(NULL, bucket, work);
}

static gs_status finish_counter(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                                gs_deadline deadline) {
    const counter *self = state;
    for (size_t i = 0; i < bucket->count; i++) {
        uint16_t mark;
        device_memory_read(self->device, &mark, self->marks[bucket->index] + i, sizeof mark);
        if (mark != bucket->index + 1)
            return gs_error(GS_INTERNAL, "element %zu of its memory is another's", i);
    }
    return gs_hook_allreduce.finish(NULL, bucket, result, deadline);
}

static void commit_counter(void *state) {
    counter *self = state;
    self->holding = !self->holding;
    self->num_commits++;
}

static void roll_counter_back(void *state) {
    ((counter *)state)->num_rollbacks++;
}

static bool tensor_of_counter(void *state, size_t index, gs_hook_tensor *tensor) {
    counter *self = state;
    if (index >= self->num_params) return false;
    *tensor = (gs_hook_tensor){.name = "count",
                               .param = (int64_t)index,
                               .dtype = GS_I64,
                               .count = 1,
                               .data = self->counts[self->holding] + index};
    return true;
}

static gs_status load_counter(void *state) {
    ((counter *)state)->num_loads++;
    return gs_ok();
}

static void destroy_counter(void *state) {
    counter *self = state;
    num_destroyed++;
    free(self->marks);
    free(self);
}

static const gs_comm_hook counter_hook = {
    .name = "counter",
    .options = count_options,
    .num_options = sizeof count_options / sizeof count_options[0],
    .measure = measure_counter,
    .create = create_counter,
    .on_plan = place_counter,
    .run = run_counter,
    .finish = finish_counter,
    .commit = commit_counter,
    .rollback = roll_counter_back,
    .tensor = tensor_of_counter,
    .loaded = load_counter,
    .destroy = destroy_counter};

static gs_status open_hooked(small_reducer *small, const gs_hook_choice *choices, size_t num) {
    small_reducer_prepare(small);
    small->params[1].dtype = GS_FP64;
    return small_reducer_open(small, &(gs_reducer_options){.hooks = choices, .num_hooks = num},
                              NULL);
}

static void assert_refused(const gs_hook_choice *choice, const char *words) {
    small_reducer small;
    gs_status status = open_hooked(&small, choice, 1);
    if (!status.code || !strstr(status.message, words)) print_error("%s\n", status.message);
    assert_true(status.code != GS_OK);
    assert_non_null(strstr(status.message, words));
}

static void options_are_checked_by_name(void **state) {
    (void)state;
    static const struct {
        gs_hook_number numbers[2];
        size_t num_numbers;
        const char *words;
    } cases[] = {
        {{{"width", 3}}, 1, "hook \"counter\": it has no option \"width\""},
        {{{"rank", 0}}, 1, "hook \"counter\": option rank: 0, must be 1 to 64"},
        {{{"rank", 2.5}}, 1, "hook \"counter\": option rank: 2.5, must be a whole number"},
        {{{"epsilon", NAN}}, 1, "hook \"counter\": option epsilon: nan"},
        {{{"rank", 3}, {"rank", 4}}, 2, "hook \"counter\": option rank: given twice"},
        {{{"rank", 9}, {"epsilon", 0}}, 2, "hook \"counter\": option epsilon: 0, with a rank of 9"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        assert_refused(&(gs_hook_choice){.hook = &counter_hook,
                                         .numbers = cases[c].numbers,
                                         .num_numbers = cases[c].num_numbers},
                       cases[c].words);
    const gs_hook_choice plain = {.hook = &gs_hook_allreduce};
    assert_refused(&(gs_hook_choice){.hook = &counter_hook, .inner = &plain},
                   "hook \"counter\": it wraps no other hook");
    gs_comm_hook wrapper = gs_hook_allreduce;
    wrapper.name = "wrapper";
    wrapper.wraps = true;
    assert_refused(&(gs_hook_choice){.hook = &wrapper},
                   "hook \"wrapper\": it wraps another hook, and there is none");
    const gs_hook_choice wrong = {
        .hook = &counter_hook, .numbers = (const gs_hook_number[]){{"rank", 65}}, .num_numbers = 1};
    assert_refused(&(gs_hook_choice){.hook = &wrapper, .inner = &wrong},
                   "hook \"wrapper\": hook \"counter\": option rank: 65");
}

static gs_status measure_too_many(gs_hook_needs *needs, const gs_hook_setup *setup) {
    (void)setup;
    *needs = (gs_hook_needs){.num_phases = 3};
    return gs_ok();
}

static gs_status measure_beyond_memory(gs_hook_needs *needs, const gs_hook_setup *setup) {
    *needs = (gs_hook_needs){.bucket_bytes = gs_hook_most_bytes(setup, (size_t)1 << 61)};
    return gs_ok();
}

static gs_status place_too_much(void *state, const gs_hook_plan *plan) {
    void *memory;
    (void)state;
    return gs_hook_place(&memory, plan, 1);
}

static void powersgd_refuses_what_does_not_fit_together(void **state) {
    (void)state;
    const struct {
        gs_hook_number numbers[3];
        const char *words;
    } cases[] = {
        {{{"start_step", 1}, {"rank", 1}, {"seed", 0}},
         "option start_step: 1, with error_feedback at least 2"},
        {{{"start_step", 0}, {"error_feedback", 0}, {"seed", 0}},
         "option start_step: 0, with warm_start at least 2"},
        {{{"rank", 65}, {"start_step", 2}, {"seed", 0}}, "option rank: 65"},
    };
    static const char *const names[] = {"powersgd", "batched_powersgd"};
    for (size_t i = 0; i < 6; i++)
        assert_refused(&(gs_hook_choice){.hook = gs_comm_hook_find(names[i % 2]),
                                         .numbers = cases[i / 2].numbers,
                                         .num_numbers = 3},
                       cases[i / 2].words);
}

static void what_a_hook_does_not_declare_is_refused(void **state) {
    (void)state;
    gs_comm_hook hook = gs_hook_allreduce;
    hook.name = "greedy";
    hook.on_plan = place_too_much;
    assert_refused(&(gs_hook_choice){.hook = &hook},
                   "hook \"greedy\": its buckets need 1 bytes more than the 0 that it declared");
    hook = gs_hook_allreduce;
    hook.name = "slow";
    hook.measure = measure_too_many;
    small_reducer small;
    const gs_hook_choice slow = {.hook = &hook};
    small_reducer_prepare(&small);
    small.num_lanes = 1;
    gs_status status =
        small_reducer_open(&small, &(gs_reducer_options){.hooks = &slow, .num_hooks = 1}, NULL);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "lanes: the communicator has 1, hook \"slow\" takes 3"));
    hook = gs_hook_allreduce;
    hook.name = "endless";
    hook.measure = measure_beyond_memory;
    assert_refused(&(gs_hook_choice){.hook = &hook},
                   "hook \"endless\": 0 and 18446744073709551615 bytes");
}

static void hook_without_all_functions_is_refused(void **state) {
    (void)state;
    gs_comm_hook hook = gs_hook_allreduce;
    hook.name = "half";
    hook.commit = NULL;
    assert_refused(&(gs_hook_choice){.hook = &hook}, "hook \"half\": it has no function \"commit\"");
    hook = gs_hook_allreduce;
    hook.name = NULL;
    assert_refused(&(gs_hook_choice){.hook = &hook}, "hook 0: has no name");
}

static gs_status create_unwilling(void **hook_state, const gs_hook_setup *setup) {
    (void)setup;
    *hook_state = NULL;
    return gs_error(GS_UNAVAILABLE, "no room for this hook");
}

static void hook_that_was_not_made_is_not_destroyed(void **state) {
    (void)state;
    gs_comm_hook hook = counter_hook;
    hook.create = create_unwilling;
    num_destroyed = 0;
    assert_refused(&(gs_hook_choice){.hook = &hook}, "no room for this hook");
    assert_int_equal(num_destroyed, 0);
}

static gs_status take_step(small_reducer *small, int64_t step, double value) {
    gs_reduce_result result;
    return small_reducer_run_step(small, step, (const double[]){1, 1, 1, value}, &result);
}

static void assert_counts(int64_t count) {
    for (size_t p = 0; p < SMALL_PARAMS; p++)
        assert_int_equal(count_of(counting, counting->holding, p), count);
}

static void state_follows_the_step(void **state) {
    (void)state;
    small_reducer small;
    const gs_hook_choice choice = {.hook = &counter_hook};
    assert_ok(open_hooked(&small, &choice, 1));
    assert_counts(0);
    assert_int_equal(gs_reducer_commit(small.reducer).code, GS_FAILED_PRECONDITION);
    assert_ok(take_step(&small, 0, 1));
    assert_counts(0);
    assert_ok(gs_reducer_commit(small.reducer));
    assert_ok(gs_reducer_commit(small.reducer));  // once for a step
    assert_counts(1);
    assert_ok(take_step(&small, 1, 1));
    assert_ok(gs_reducer_rollback(small.reducer));
    assert_counts(1);
    assert_ok(take_step(&small, 1, 1));  // redone; nobody says what became of it
    assert_ok(take_step(&small, 2, INFINITY));
    assert_counts(2);
    assert_ok(gs_reducer_begin(small.reducer, 3));  // what was not finite does not count
    assert_counts(2);
    assert_int_equal(counting->num_rollbacks, 2);
    assert_int_equal(gs_reducer_commit(small.reducer).code, GS_FAILED_PRECONDITION);
    small_reducer_close(&small);
}

// 0.1 and 65520 are no fp16; the counter's own sum rounds nothing.
static void wrapper_rounds_gradients_and_hands_on_the_rest(void **state) {
    (void)state;
    small_reducer small;
    gs_hook_state_tensor tensor;
    const gs_hook_choice inner = {.hook = &counter_hook};
    const gs_hook_choice choice = {.hook = &gs_hook_wrap_fp16, .inner = &inner};
    num_destroyed = 0;
    assert_ok(open_hooked(&small, &choice, 1));
    const double values[] = {0.1, 0.1, 3, 65519.9}, rounded[] = {0x1.998p-4, 0x1.998p-4, 3, 65504};
    gs_reduce_result result;
    assert_ok(small_reducer_run_step(&small, 0, values, &result));
    for (size_t p = 0; p < SMALL_PARAMS; p++)
        assert_near(small_reducer_grad(&small, p, SMALL_COUNT - 1), rounded[p], 0);
    assert_ok(gs_reducer_commit(small.reducer));
    assert_counts(1);
    assert_ok(take_step(&small, 1, 65520));
    assert_true(isinf(small_reducer_grad(&small, 3, 0)));
    assert_ok(gs_reducer_rollback(small.reducer));
    assert_counts(1);
    assert_int_equal(counting->num_commits, 1);
    assert_int_equal(counting->num_rollbacks, 1);
    assert_true(gs_reducer_hook_state(&tensor, small.reducer, SMALL_PARAMS - 1));
    assert_string_equal(tensor.name, "wrap_fp16/count/fc3");
    assert_false(gs_reducer_hook_state(&tensor, small.reducer, SMALL_PARAMS));
    assert_ok(gs_reducer_hook_state_loaded(small.reducer));
    assert_int_equal(counting->num_loads, 1);
    small_reducer_close(&small);
    assert_int_equal(num_destroyed, 1);
}

static void wrapper_names_what_does_not_fit(void **state) {
    (void)state;
    gs_comm_hook unwilling = counter_hook;
    unwilling.create = create_unwilling;
    const gs_hook_choice inner = {.hook = &unwilling}, bf16 = {.hook = &gs_hook_bf16};
    num_destroyed = 0;
    assert_refused(&(gs_hook_choice){.hook = &gs_hook_wrap_fp16, .inner = &inner},
                   "hook \"wrap_fp16\": around hook \"counter\": no room for this hook");
    assert_int_equal(num_destroyed, 0);
    assert_refused(&(gs_hook_choice){.hook = &gs_hook_wrap_fp16, .inner = &bf16},
                   "around hook \"bf16\": sends bf16, and the wire dtype is fp16");
}

static void hook_is_told_the_unit_of_gradients(void **state) {
    (void)state;
    small_reducer small;
    const gs_hook_choice choice = {.hook = &counter_hook};
    assert_ok(open_hooked(&small, &choice, 1));
    assert_ok(take_step(&small, 0, 1));
    assert_true(counting->grad_unit == 1);
    const double wrong[] = {0, -1, INFINITY, NAN};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(gs_reducer_set_grad_unit(small.reducer, wrong[i]).code,
                         GS_INVALID_ARGUMENT);
    assert_ok(gs_reducer_set_grad_unit(small.reducer, 65536));
    assert_ok(take_step(&small, 1, 1));
    assert_true(counting->grad_unit == 65536);
    small_reducer_close(&small);
}

static void state_outlives_plans_and_resets(void **state) {
    (void)state;
    small_reducer small;
    gs_bucket_plan one;
    gs_comm *next;
    const gs_hook_choice choice = {.hook = &counter_hook};
    assert_ok(open_hooked(&small, &choice, 1));
    assert_int_equal(counting->num_plans, 1);
    assert_ok(take_step(&small, 0, 1));
    assert_ok(gs_bucket_plan_parity(&one, small.params, SMALL_PARAMS, 1 << 20, 1 << 20, NULL));
    assert_ok(gs_reducer_set_plan(small.reducer, &one, soon()));
    gs_bucket_plan_release(&one);
    assert_int_equal(counting->num_plans, 2);
    assert_counts(1);
    assert_ok(take_step(&small, 1, 1));
    assert_ok(gs_reducer_commit(small.reducer));
    assert_ok(gs_reducer_begin(small.reducer, 2));
    assert_ok(small_reducer_connect(&next, &small, NULL, 2));
    assert_ok(gs_reducer_reset(small.reducer, next, soon()));
    gs_comm_destroy(small.comm);
    small.comm = next;
    assert_int_equal(counting->num_plans, 3);
    assert_counts(2);
    assert_ok(take_step(&small, 2, 1));
    assert_ok(gs_reducer_commit(small.reducer));
    assert_counts(3);
    small_reducer_close(&small);
}

// What a step changed would replace what was loaded, at its commit.
static void state_is_loaded_when_the_step_is_decided(void **state) {
    (void)state;
    small_reducer small;
    const gs_hook_choice choice = {.hook = &counter_hook};
    assert_ok(open_hooked(&small, &choice, 1));
    assert_ok(gs_reducer_hook_state_loaded(small.reducer));
    assert_ok(take_step(&small, 0, 1));
    assert_int_equal(gs_reducer_hook_state_loaded(small.reducer).code, GS_FAILED_PRECONDITION);
    assert_int_equal(counting->num_loads, 1);
    assert_ok(gs_reducer_commit(small.reducer));
    assert_ok(gs_reducer_hook_state_loaded(small.reducer));
    assert_ok(take_step(&small, 1, 1));
    assert_ok(gs_reducer_rollback(small.reducer));
    assert_ok(gs_reducer_hook_state_loaded(small.reducer));
    assert_int_equal(counting->num_loads, 3);
    small_reducer_close(&small);
}

static void reset_small(small_reducer *small) {
    gs_comm *next;
    assert_ok(small_reducer_connect(&next, small, NULL, 2));
    assert_ok(gs_reducer_reset(small->reducer, next, soon()));
    gs_comm_destroy(small->comm);
    small->comm = next;
}

// Whoever goes on has applied the step, even where what comes next is refused, or ends with another rank.
static void step_that_was_gone_beyond_counts(void **state) {
    (void)state;
    small_reducer small;
    gs_bucket_plan plan;
    const gs_hook_choice choice = {.hook = &counter_hook};
    assert_ok(open_hooked(&small, &choice, 1));
    assert_ok(take_step(&small, 0, 1));
    assert_ok(gs_bucket_plan_copy(&plan, &small.plan));
    plan.buckets[0].hook = 1;
    assert_int_equal(gs_reducer_set_plan(small.reducer, &plan, soon()).code, GS_INVALID_ARGUMENT);
    gs_bucket_plan_release(&plan);
    reset_small(&small);
    assert_counts(1);
    small_reducer_close(&small);

    assert_ok(open_hooked(&small, &choice, 1));
    assert_ok(take_step(&small, 0, 1));
    assert_int_equal(gs_reducer_begin_uneven(small.reducer, 1, &(gs_join_round){0}).code,
                     GS_FAILED_PRECONDITION);
    reset_small(&small);
    assert_counts(1);
    small_reducer_close(&small);
}

// A tail posts in lane 0 while all buckets are on their way.
static void buckets_in_flight_leave_room_for_tails(void **state) {
    (void)state;
    for (int posts = 1; posts <= GS_HOOK_MAX_POSTS; posts++) {
        size_t most = gs_bucket_queue_most(posts);
        assert_true(most > 0 && most <= GS_MAX_BUCKETS_IN_FLIGHT);
        assert_true(most * (size_t)posts + GS_MAX_TAILS <= 1024 - 32);
    }
    assert_int_equal(gs_bucket_queue_most(3), GS_MAX_BUCKETS_IN_FLIGHT);
}

// fc3 and fc2 with the first hook, the others with the second; each in memory of its own.
static void buckets_choose_their_hooks(void **state) {
    (void)state;
    small_reducer small;
    const gs_hook_choice choices[] = {
        {.hook = &gs_hook_allreduce},
        {.hook = &counter_hook, .numbers = (const gs_hook_number[]){{"rank", 7}}, .num_numbers = 1}};
    assert_ok(open_hooked(&small, choices, 2));
    gs_bucket_plan plan;
    assert_ok(gs_bucket_plan_copy(&plan, &small.plan));
    plan.buckets[plan.num_buckets - 1].hook = 1;
    assert_ok(gs_reducer_set_plan(small.reducer, &plan, soon()));
    assert_near(gs_hook_option_value(counting->choice, "rank"), 7, 0);
    assert_near(gs_hook_option_value(counting->choice, "epsilon"), 0.5, 0);
    assert_ok(take_step(&small, 0, 1));
    assert_ok(gs_reducer_commit(small.reducer));
    assert_int_equal(count_of(counting, counting->holding, 0), 1);
    assert_int_equal(count_of(counting, counting->holding, 3), 0);
    plan.buckets[0].hook = 2;
    gs_status status = gs_reducer_set_plan(small.reducer, &plan, soon());
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "bucket 0: hook 2 of 2"));
    gs_bucket_plan_release(&plan);
    small_reducer_close(&small);
}

static gs_status measure_two_phases(gs_hook_needs *needs, const gs_hook_setup *setup) {
    GS_TRY(measure_counter(needs, setup));
    needs->num_phases = 2;
    return gs_ok();
}

// Ranks compare what holds, not what was said.
static void facts_are_those_that_hold(void **state) {
    (void)state;
    gs_param_spec param = gs_param_spec_make(GS_FP32, 4, 0, "p");
    gs_comm_hook longer = counter_hook;
    longer.measure = measure_two_phases;
    const gs_hook_choice choices[] = {
        {.hook = &counter_hook},
        {.hook = &counter_hook, .numbers = (const gs_hook_number[]){{"rank", 2}}, .num_numbers = 1},
        {.hook = &counter_hook, .numbers = (const gs_hook_number[]){{"rank", 3}}, .num_numbers = 1},
        {.hook = &longer}};
    gs_hook_fact facts[4][3];
    for (int i = 0; i < 4; i++) {
        _Alignas(256) char memory[2 * GS_HOOK_PLACE_BYTES];
        gs_hook_set set;
        gs_device *device;
        assert_ok(gs_device_open(&device, "cpu", &(gs_device_options){.num_threads = 1}));
        assert_ok(gs_hook_set_init(&set,
                                   &(gs_hook_set_options){.choices = &choices[i],
                                                          .num_choices = 1,
                                                          .params = &param,
                                                          .num_params = 1,
                                                          .device = device},
                                   memory));
        assert_int_equal(gs_hook_facts_count(&set), 3);
        gs_hook_facts_write(facts[i], &set);
        gs_hook_set_release(&set);
        gs_device_close(device);
    }
    assert_memory_equal(facts[0], facts[1], sizeof facts[0]);
    assert_ok(gs_hook_facts_compare(facts[1], 3, facts[0], 3));
    gs_status status = gs_hook_facts_compare(facts[2], 3, facts[0], 3);
    assert_non_null(strstr(status.message, "\"counter\": option rank 3 against 2"));
    status = gs_hook_facts_compare(facts[3], 3, facts[0], 3);
    assert_non_null(strstr(status.message, "\"counter\": phases 2 against 1"));
    status = gs_hook_facts_compare(facts[0], 2, facts[0], 3);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
}

// Only a GPU's library sends what was rounded; who does not say the device may have one.
static void rounding_on_the_host_takes_no_memory(void **state) {
    (void)state;
    small_reducer small;
    size_t as_it_is, rounded, anywhere;
    small_reducer_prepare(&small);
    assert_ok(gs_device_open(&small.device, "cpu", &(gs_device_options){.num_threads = 1}));
    gs_reducer_options options = {.params = small.params,
                                  .num_params = SMALL_PARAMS,
                                  .shards = {.num_shards = 1, .world_size = 1},
                                  .device = small.device};
    assert_ok(gs_reducer_arena_bytes(&as_it_is, &options));
    options.wire_dtype = GS_BF16;
    assert_ok(gs_reducer_arena_bytes(&rounded, &options));
    options.device = NULL;
    assert_ok(gs_reducer_arena_bytes(&anywhere, &options));
    assert_int_equal(rounded, as_it_is);
    assert_true(anywhere > rounded);
    small_reducer_close(&small);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hooks_are_found_by_their_names),
        cmocka_unit_test(options_are_checked_by_name),
        cmocka_unit_test(powersgd_refuses_what_does_not_fit_together),
        cmocka_unit_test(what_a_hook_does_not_declare_is_refused),
        cmocka_unit_test(hook_without_all_functions_is_refused),
        cmocka_unit_test(hook_that_was_not_made_is_not_destroyed),
        cmocka_unit_test(rounding_on_the_host_takes_no_memory),
        cmocka_unit_test(state_follows_the_step),
        cmocka_unit_test(wrapper_rounds_gradients_and_hands_on_the_rest),
        cmocka_unit_test(wrapper_names_what_does_not_fit),
        cmocka_unit_test(hook_is_told_the_unit_of_gradients),
        cmocka_unit_test(state_outlives_plans_and_resets),
        cmocka_unit_test(state_is_loaded_when_the_step_is_decided),
        cmocka_unit_test(step_that_was_gone_beyond_counts),
        cmocka_unit_test(buckets_in_flight_leave_room_for_tails),
        cmocka_unit_test(buckets_choose_their_hooks),
        cmocka_unit_test(facts_are_those_that_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
