// Windows alone: how much memory they take by a formula of the test's own, whose place is whose,
// what is refused by name, and what a program of one rank may not do.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/bucket/grad_layout.h"
#include "gradsync/sharded/shard_reduce.h"
#include "gradsync/sharded/shards.h"
#include "tests/support/asserts.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"

#define NUM_PARAMS 9
#define NUM_WINDOWS 2

static const int64_t counts[NUM_PARAMS] = {5000, 17, 800, 0, 1, 301, 64, 1200, 90};

// ---- memory

static size_t round_up(size_t value, size_t boundary) {
    return (value + boundary - 1) / boundary * boundary;
}

// A bucket's members, each in whole lines, in as many even parts of whole lines as there are ranks.
static size_t data_bytes(const gs_bucket_plan *plan, size_t bucket, size_t world_size) {
    size_t bytes = 0;
    for (size_t i = 0; i < plan->buckets[bucket].num_params; i++)
        bytes += round_up(4 * (size_t)counts[plan->params[plan->buckets[bucket].first + i]], 64);
    return round_up(bytes, 64 * world_size);
}

static bool has_member(const gs_bucket_plan *plan, size_t bucket, size_t param) {
    for (size_t i = 0; i < plan->buckets[bucket].num_params; i++)
        if (plan->params[plan->buckets[bucket].first + i] == param) return true;
    return false;
}

// Of each window its largest bucket, all of the bucket of `early`, one part of all others; of that
// one, too, where several passes add up.
static size_t formula(const gs_bucket_plan *plan, size_t world_size, size_t early, int passes) {
    size_t windows[NUM_WINDOWS] = {0}, num_dealt = 0, total = 0;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        size_t bytes = data_bytes(plan, b, world_size);
        if (has_member(plan, b, early)) {
            total += round_up(bytes, 256) + (passes > 1 ? bytes / world_size : 0);
            continue;
        }
        size_t *window = &windows[num_dealt++ % NUM_WINDOWS];
        if (round_up(bytes, 256) > *window) *window = round_up(bytes, 256);
        total += bytes / world_size;
    }
    for (size_t w = 0; w < NUM_WINDOWS; w++) total += windows[w];
    return round_up(total, 256);
}

static void make_params(gs_param_spec *params, gs_bucket_plan *plan) {
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        params[p] = gs_param_spec_make(GS_FP32, 1, 0, "p%zu", p);
        params[p].shape[0] = counts[p];
    }
    assert_ok(gs_bucket_plan_parity(plan, params, NUM_PARAMS, 100, 300, NULL));
}

static void windows_and_parts_are_all_that_the_arena_holds(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan;
    const bool opens_early[NUM_PARAMS] = {[0] = true};
    make_params(params, &plan);
    assert_true(plan.num_buckets > NUM_WINDOWS + 2);
    for (int world_size = 1; world_size <= 8; world_size++) {
        for (int early = 0, passes = 1; early < 4; early++, passes = 1 + early / 2) {
            gs_shards *shards;
            size_t bytes;
            assert_ok(gs_shards_create(&shards, &(gs_shards_options){.plan = &plan,
                                                                     .params = params,
                                                                     .num_params = NUM_PARAMS,
                                                                     .world_size = world_size}));
            const gs_hook_choice choice = {.hook = gs_shard_reduce_hook(), .user = shards};
            assert_ok(gs_reducer_arena_bytes(
                &bytes, &(gs_reducer_options){
                            .params = params,
                            .num_params = NUM_PARAMS,
                            .plan = &plan,
                            .shards = {.num_shards = world_size, .world_size = world_size},
                            .passes_per_shard = passes,
                            .hooks = &choice,
                            .num_hooks = 1,
                            .tally = GS_TALLY_APART,
                            .windows = {.num_windows = NUM_WINDOWS,
                                        .opens_early = early % 2 ? opens_early : NULL}}));
            assert_int_equal(
                bytes, formula(&plan, (size_t)world_size, early % 2 ? 0 : NUM_PARAMS, passes));
            gs_shards_destroy(shards);
        }
    }
    gs_bucket_plan_release(&plan);
}

// [first, end) of what a bucket takes.
typedef struct run {
    size_t first, end;
} run;

static bool overlap(run a, run b) {
    return a.first < b.end && b.first < a.end;
}

static void places_are_shared_by_windows_alone(void **state) {
    (void)state;
    enum { WORLD = 3 };
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan;
    gs_grad_layout layout;
    const bool opens_early[NUM_PARAMS] = {[2] = true};
    make_params(params, &plan);
    const gs_grad_layout_shape shape = {.params = params,
                                        .num_params = NUM_PARAMS,
                                        .num_slots = 1,
                                        .tally = GS_TALLY_APART,
                                        .num_parts = WORLD,
                                        .num_windows = NUM_WINDOWS,
                                        .own_part = 1,
                                        .opens_early = opens_early};
    size_t bytes;
    assert_ok(gs_grad_layout_bytes(&bytes, &shape, &plan));
    char *memory = aligned_alloc(256, bytes);
    assert_ok(gs_grad_layout_init(&layout, &shape, memory));
    assert_ok(gs_grad_layout_set_plan(&layout, &plan));
    assert_int_equal(layout.slot_bytes, bytes);
    for (size_t b = 0; b < plan.num_buckets; b++) {
        const gs_bucket *one = &layout.buckets[b];
        run data = {one->offset_bytes, one->offset_bytes + one->grad_count * 4};
        run kept = {one->result.offset_bytes, one->result.offset_bytes + one->result.count * 4};
        assert_true(data.end <= bytes && kept.end <= bytes);
        assert_int_equal(one->in_window, !has_member(&plan, b, 2));
        assert_int_equal(one->result.count,
                         one->in_window ? one->grad_count / WORLD : one->grad_count);
        assert_int_equal(one->result.first, one->in_window ? one->result.count : 0);
        if (one->in_window) assert_false(overlap(data, kept));
        for (size_t c = 0; c < b; c++) {
            const gs_bucket *other = &layout.buckets[c];
            run there = {other->offset_bytes, other->offset_bytes + other->grad_count * 4};
            run stays = {other->result.offset_bytes,
                         other->result.offset_bytes + other->result.count * 4};
            bool same = one->in_window && other->in_window && one->window == other->window;
            if (!same) assert_false(overlap(data, there));
            assert_false(overlap(kept, stays));
            if (same) assert_true(one->before >= c && one->before < b);
        }
    }
    // An element of a result lies where its parameter's pointer says, wherever that begins.
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        const gs_bucket *bucket = &layout.buckets[layout.bucket_of[p]];
        for (size_t i = 0; i < (size_t)counts[p]; i++) {
            if (!gs_grad_layout_keeps(&layout, &(gs_segment){p, i, 1})) continue;
            size_t in_bucket = (layout.offset_bytes[p] - bucket->offset_bytes) / 4 + i;
            uintptr_t at = (uintptr_t)gs_grad_layout_results(&layout)[p] + 4 * i;
            assert_int_equal(at - (uintptr_t)memory,
                             bucket->result.offset_bytes + 4 * (in_bucket - bucket->result.first));
        }
    }
    gs_grad_layout_release(&layout);
    free(memory);
    gs_bucket_plan_release(&plan);
}

// Fewer ranks have larger parts, and more passes.
static void another_world_lies_as_if_it_were_the_first(void **state) {
    (void)state;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan;
    gs_grad_layout layout, fresh;
    const bool opens_early[NUM_PARAMS] = {[2] = true};
    make_params(params, &plan);
    gs_grad_layout_shape shape = {.params = params,
                                  .num_params = NUM_PARAMS,
                                  .num_slots = 1,
                                  .tally = GS_TALLY_APART,
                                  .num_parts = 4,
                                  .num_windows = NUM_WINDOWS,
                                  .own_part = 3,
                                  .opens_early = opens_early};
    char *memory = aligned_alloc(256, 1 << 20);
    assert_ok(gs_grad_layout_init(&layout, &shape, memory));
    assert_ok(gs_grad_layout_set_plan(&layout, &plan));
    shape.num_parts = 2;
    shape.own_part = 1;
    shape.adds_up = true;
    assert_ok(gs_grad_layout_resize(&layout, &shape));
    assert_ok(gs_grad_layout_init(&fresh, &shape, memory));
    assert_ok(gs_grad_layout_set_plan(&fresh, &plan));
    assert_int_equal(layout.slot_bytes, fresh.slot_bytes);
    assert_memory_equal(layout.results, fresh.results, sizeof(void *[NUM_PARAMS]));
    for (size_t b = 0; b < plan.num_buckets; b++) {
        assert_int_equal(layout.buckets[b].offset_bytes, fresh.buckets[b].offset_bytes);
        assert_true(layout.buckets[b].result.is_apart);
    }
    gs_grad_layout_release(&layout);
    gs_grad_layout_release(&fresh);
    free(memory);
    gs_bucket_plan_release(&plan);
}

// ---- a reducer of two buckets, [3 2] and [1 0], in one window

typedef struct window_rank {
    small_reducer small;
    gs_shards *shards;
    gs_hook_choice choice;
} window_rank;

// The plan of a small reducer is known when one has been open.
static gs_status open_rank_of(window_rank *self, const gs_reducer_options *wanted, int64_t count) {
    gs_reducer_options options = *wanted;
    small_reducer first;
    small_reducer_prepare(&first);
    small_reducer_prepare(&self->small);
    for (size_t p = 0; p < SMALL_PARAMS; p++)
        first.params[p].shape[0] = self->small.params[p].shape[0] = count;
    assert_ok(small_reducer_open(&first, &(gs_reducer_options){0}, NULL));
    assert_ok(gs_shards_create(&self->shards, &(gs_shards_options){.plan = &first.plan,
                                                                   .params = first.params,
                                                                   .num_params = SMALL_PARAMS,
                                                                   .world_size = 1}));
    small_reducer_close(&first);
    self->choice = (gs_hook_choice){.hook = gs_shard_reduce_hook(), .user = self->shards};
    if (!options.num_hooks) options.hooks = &self->choice;
    options.num_hooks = 1;
    options.tally = GS_TALLY_APART;
    if (!options.windows.num_windows) options.windows.num_windows = 1;
    return small_reducer_open(&self->small, &options, NULL);
}

static gs_status open_rank(window_rank *self, const gs_reducer_options *wanted) {
    return open_rank_of(self, wanted, SMALL_COUNT);
}

static void close_rank(window_rank *self) {
    small_reducer_close(&self->small);
    gs_shards_destroy(self->shards);
}

static void begin_pass(window_rank *self, gs_reducer_pass *pass) {
    assert_ok(gs_reducer_begin(self->small.reducer, 0));
    assert_ok(gs_reducer_begin_pass(self->small.reducer, pass, 1));
}

static gs_status write(window_rank *self, const gs_reducer_pass *pass, size_t param) {
    GS_TRY(gs_reducer_open_grad(self->small.reducer, param));
    small_reducer_write(&self->small, pass, param, (double)param + 1);
    return gs_ok();
}

static gs_status write_and_mark(window_rank *self, const gs_reducer_pass *pass, size_t param) {
    GS_TRY(write(self, pass, param));
    return gs_reducer_mark_ready(self->small.reducer, param);
}

static void expect(gs_status status, gs_code code, const char *words) {
    if (status.code != code || !strstr(status.message, words))
        fail_msg("%d \"%s\", not \"%s\"", status.code, status.message, words);
}

static void what_a_pass_leaves_out_is_zero(void **state) {
    (void)state;
    window_rank self;
    gs_reducer_pass pass;
    gs_reduce_result result;
    assert_ok(open_rank(&self, &(gs_reducer_options){0}));
    for (int64_t step = 0; step < 3; step++) {
        assert_ok(gs_reducer_begin(self.small.reducer, step));
        assert_ok(gs_reducer_begin_pass(self.small.reducer, &pass, 1));
        if (step == 1) assert_ok(gs_reducer_mark_unused(self.small.reducer, 0));
        if (step == 1) assert_ok(gs_reducer_mark_unused(self.small.reducer, 2));
        assert_ok(write_and_mark(&self, &pass, 3));
        if (step != 1) assert_ok(write_and_mark(&self, &pass, 2));
        if (step != 2) assert_ok(write_and_mark(&self, &pass, 1));
        if (step == 0) assert_ok(write_and_mark(&self, &pass, 0));
        assert_ok(gs_reducer_end_pass(self.small.reducer));
        assert_ok(gs_reducer_finish(self.small.reducer, &result, soon()));
        const double expected[][SMALL_PARAMS] = {{1, 2, 3, 4}, {0, 2, 0, 4}, {0, 0, 3, 4}};
        for (size_t p = 0; p < SMALL_PARAMS; p++) {
            assert_true(small_reducer_grad(&self.small, p, SMALL_COUNT - 1) == expected[step][p]);
            assert_int_equal(result.used[p], expected[step][p] > 0);
        }
        assert_int_equal(gs_reducer_grad_offset(self.small.reducer, 0), SIZE_MAX);
        assert_false(gs_reducer_posts_all(self.small.reducer));
    }
    close_rank(&self);
}

static void what_would_wait_for_itself_is_named(void **state) {
    (void)state;
    window_rank self;
    gs_reducer_pass pass;
    gs_reduce_result result;
    const char *words = "parameter 1 \"fc1\" is written, but its window is that of bucket 0, and "
                        "parameter 2 \"fc2\" of bucket 0 is not final";
    assert_ok(open_rank(&self, &(gs_reducer_options){0}));
    begin_pass(&self, &pass);
    assert_ok(write_and_mark(&self, &pass, 3));
    assert_ok(write(&self, &pass, 2));
    expect(write(&self, &pass, 1), GS_FAILED_PRECONDITION, words);
    // It sticks.
    expect(gs_reducer_open_callback(self.small.reducer, 2), GS_FAILED_PRECONDITION, words);
    expect(gs_reducer_finish(self.small.reducer, &result, soon()), GS_FAILED_PRECONDITION, words);
    close_rank(&self);
}

static void what_opens_early_waits_for_nobody(void **state) {
    (void)state;
    window_rank self;
    gs_reducer_pass pass;
    gs_reduce_result result;
    const bool opens_early[SMALL_PARAMS] = {true};
    assert_ok(open_rank(&self, &(gs_reducer_options){.windows = {.opens_early = opens_early}}));
    begin_pass(&self, &pass);
    assert_ok(write(&self, &pass, 0));
    for (size_t p = SMALL_PARAMS; p-- > 1;) assert_ok(write_and_mark(&self, &pass, p));
    assert_ok(gs_reducer_mark_ready(self.small.reducer, 0));
    assert_ok(gs_reducer_end_pass(self.small.reducer));
    assert_ok(gs_reducer_finish(self.small.reducer, &result, soon()));
    for (size_t p = 0; p < SMALL_PARAMS; p++)
        assert_true(small_reducer_grad(&self.small, p, 0) == (double)p + 1);
    close_rank(&self);
}

// One program that is wrong, and what it is told.
typedef gs_status (*wrong_program)(window_rank *self, const gs_reducer_pass *pass);

static gs_status mark_unopened(window_rank *self, const gs_reducer_pass *pass) {
    (void)pass;
    return gs_reducer_mark_ready(self->small.reducer, 3);
}

static gs_status write_marked(window_rank *self, const gs_reducer_pass *pass) {
    GS_TRY(write_and_mark(self, pass, 3));
    return write(self, pass, 3);
}

static gs_status write_unused(window_rank *self, const gs_reducer_pass *pass) {
    GS_TRY(gs_reducer_mark_unused(self->small.reducer, 3));
    return write(self, pass, 3);
}

static gs_status write_beyond(window_rank *self, const gs_reducer_pass *pass) {
    (void)pass;
    return gs_reducer_open_grad(self->small.reducer, SMALL_PARAMS);
}

static gs_status write_outside(window_rank *self, const gs_reducer_pass *pass) {
    (void)pass;
    GS_TRY(gs_reducer_end_pass(self->small.reducer));
    return gs_reducer_open_grad(self->small.reducer, 3);
}

static gs_status add_tail(window_rank *self, const gs_reducer_pass *pass) {
    (void)pass;
    return gs_reducer_add_tail(self->small.reducer, &(gs_reducer_tail){0});
}

static gs_status mark_twice(window_rank *self, const gs_reducer_pass *pass) {
    GS_TRY(write_and_mark(self, pass, 3));
    return gs_reducer_mark_ready(self->small.reducer, 3);
}

static void wrong_programs_are_told(void **state) {
    (void)state;
    static const struct {
        wrong_program run;
        const char *words;
        bool static_graph;
    } cases[] = {
        {mark_unopened,
         "parameter 3 \"fc3\" marked ready, but nobody said that it would be written", false},
        {write_marked, "parameter 3 \"fc3\" is written after it was final", false},
        {write_unused, "parameter 3 \"fc3\" is written after it was final", false},
        {write_beyond, "there is no parameter 4", false},
        {write_outside, "parameter 3 \"fc3\" is written outside a pass", false},
        {add_tail, "a tail is for whole gradients", false},
        {mark_twice, "parameter 3 \"fc3\" marked ready twice in the first step of a static graph",
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        window_rank self;
        gs_reducer_pass pass;
        assert_ok(open_rank(&self, &(gs_reducer_options){.static_graph = cases[i].static_graph}));
        begin_pass(&self, &pass);
        expect(cases[i].run(&self, &pass), GS_FAILED_PRECONDITION, cases[i].words);
        close_rank(&self);
    }
}

static void options_that_do_not_fit_are_named(void **state) {
    (void)state;
    static float memory[SMALL_PARAMS][SMALL_COUNT];
    gs_separate_grad separate[SMALL_PARAMS];
    const gs_hook_choice whole = {.hook = &gs_hook_allreduce};
    for (size_t p = 0; p < SMALL_PARAMS; p++) separate[p] = (gs_separate_grad){memory[p], GS_FP32};
    const struct {
        gs_reducer_options options;
        gs_code code;
        const char *words;
    } cases[] = {
        {{.windows = {.num_windows = -1}}, GS_INVALID_ARGUMENT, "windows: -1, must be 0 to 1024"},
        {{.windows = {.num_windows = 1025}}, GS_INVALID_ARGUMENT, "windows: 1025"},
        {{.windows = {.wait_seconds = -1}}, GS_INVALID_ARGUMENT, "windows: a wait of -1 seconds"},
        {{.hooks = &whole, .num_hooks = 1}, GS_INVALID_ARGUMENT, "for a hook of even parts"},
        {{.separate = separate}, GS_INVALID_ARGUMENT, "windows: separate gradients"},
        {{.passes_per_shard = 2, .static_graph = true},
         GS_UNIMPLEMENTED,
         "windows: several passes of a step of a static graph"},
        {{.shards = {.num_shards = 2, .exact = true}},
         GS_UNIMPLEMENTED,
         "windows: several passes of a step in exact mode"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        window_rank self;
        expect(open_rank(&self, &cases[i].options), cases[i].code, cases[i].words);
        gs_shards_destroy(self.shards);
    }
}

static void a_plan_of_larger_windows_is_refused(void **state) {
    (void)state;
    window_rank self;
    gs_bucket_plan plan;
    // Four buckets of 640 bytes in one window of 768; then one of 2560 in one of as many.
    assert_ok(open_rank_of(&self, &(gs_reducer_options){0}, 160));
    assert_int_equal(self.small.plan.num_buckets, SMALL_PARAMS);
    assert_ok(gs_bucket_plan_parity(&plan, self.small.params, SMALL_PARAMS, 4096, 4096, NULL));
    assert_int_equal(plan.num_buckets, 1);
    assert_ok(gs_shards_redo(self.shards, 1, &plan, NULL));
    expect(gs_reducer_set_plan(self.small.reducer, &plan, soon()), GS_FAILED_PRECONDITION,
           "the plan's windows need 5120");
    gs_bucket_plan_release(&plan);
    close_rank(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_and_parts_are_all_that_the_arena_holds),
        cmocka_unit_test(places_are_shared_by_windows_alone),
        cmocka_unit_test(another_world_lies_as_if_it_were_the_first),
        cmocka_unit_test(what_a_pass_leaves_out_is_zero),
        cmocka_unit_test(what_would_wait_for_itself_is_named),
        cmocka_unit_test(what_opens_early_waits_for_nobody),
        cmocka_unit_test(wrong_programs_are_told),
        cmocka_unit_test(options_that_do_not_fit_are_named),
        cmocka_unit_test(a_plan_of_larger_windows_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
