#include "gradsync/reducer/reducer_record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "tests/support/asserts.h"
#include "tests/support/grad_case.h"

#define NUM_PARAMS 3

// Lines that reached the host's sink.
typedef struct seen_lines {
    char last[2100];
    char last_of_times[2100];
    int constructions, environments, times, samples, failures;
} seen_lines;

static void take_line(void *ctx, gs_log_level level, const char *line) {
    seen_lines *seen = ctx;
    (void)level;
    snprintf(seen->last, sizeof seen->last, "%s", line);
    seen->constructions += strstr(line, "msg=\"reducer\"") != NULL;
    seen->environments += strstr(line, "msg=\"reducer environment\"") != NULL;
    seen->samples += strstr(line, "msg=\"reducer sample\"") != NULL;
    seen->failures += strstr(line, "msg=\"reducer failed\"") != NULL;
    if (!strstr(line, "msg=\"reducer times\"")) return;
    seen->times++;
    snprintf(seen->last_of_times, sizeof seen->last_of_times, "%s", line);
}

typedef struct fixture {
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan;
    gs_device *device;
    gs_reducer_record record;
    seen_lines seen;
} fixture;

static void open_fixture(fixture *f, gs_record_level level, int64_t every) {
    memset(f, 0, sizeof *f);
    for (size_t i = 0; i < NUM_PARAMS; i++)
        f->params[i] = gs_param_spec_make(GS_FP32, 4, 0, "fc%zu.weight", i);
    assert_ok(gs_bucket_plan_parity(&f->plan, f->params, NUM_PARAMS, 32, 32, NULL));
    assert_ok(gs_device_open(&f->device, "cpu", &(gs_device_options){.num_threads = 1}));
    gs_log_set_sink(take_line, &f->seen);
    gs_record_facts facts = {.params = f->params,
                             .num_params = NUM_PARAMS,
                             .plan = &f->plan,
                             .rank = 1,
                             .world_size = 2,
                             .num_shards = 2,
                             .passes_per_shard = 1,
                             .op = "mean",
                             .hook = "allreduce",
                             .backend = "shm",
                             .algorithm = "direct",
                             .device = f->device};
    assert_ok(gs_reducer_record_init(
        &f->record, &facts,
        &(gs_record_options){.level = level,
                             .sample_every = every,
                             .model = "mlp",
                             .job = "j",
                             .buffers = "broadcast",
                             .batch_norm = "sync",
                             .uneven_inputs = "join",
                             .num_replicas = 2}));
}

static void close_fixture(fixture *f) {
    gs_log_set_sink(NULL, NULL);
    gs_reducer_record_release(&f->record);
    gs_bucket_plan_release(&f->plan);
    gs_device_close(f->device);
}

// A step whose five points lie `unit` apart.
static gs_reduce_stats stats_of(int64_t step, int64_t unit) {
    return (gs_reduce_stats){.step = step,
                             .forward_begin_ns = 1000,
                             .backward_begin_ns = 1000 + unit,
                             .first_launch_ns = 1000 + 2 * unit,
                             .backward_end_ns = 1000 + 4 * unit,
                             .end_ns = 1000 + 7 * unit};
}

static void run_step(fixture *f, const gs_reduce_stats *stats, const uint8_t *used) {
    static const size_t order[NUM_PARAMS] = {2, 0, 1};
    static const uint8_t all[NUM_PARAMS] = {1, 1, 1};
    gs_reducer_record_begin(&f->record, stats->step);
    gs_reducer_record_finish(&f->record, stats, used ? used : all, order);
}

static void construction_and_environment_are_said_at_once(void **state) {
    (void)state;
    fixture f;
    setenv("OPENBLAS_NUM_THREADS", "1 of them", 1);
    open_fixture(&f, GS_RECORD_INFO, 0);
    assert_int_equal(f.seen.constructions, 1);
    assert_int_equal(f.seen.environments, 1);
    static const char *const words[] = {"rank=1", "host=", "pid=", "backend=shm", "algorithm=direct",
                                        "num_threads=1", "arithmetic=", "level=info",
                                        "OPENBLAS_NUM_THREADS=\"1 of them\""};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        assert_non_null(strstr(f.seen.last, words[i]));
    gs_strbuf text = {0};
    gs_reducer_record_write_construction(&text, &f.record);
    static const char *const facts[] = {"world_size=2", "num_parameter_tensors=3", "model=mlp",
                                        "total_parameter_size_bytes=48", "dtypes=fp32",
                                        "comm_hook=allreduce", "gradient_as_bucket_view=1",
                                        "bucket_cap_bytes=32", "bucket_sizes=\"16,32\"",
                                        "has_rebuilt_buckets=0", "num_replicas=2",
                                        "buffers=broadcast", "batch_norm=sync",
                                        "uneven_inputs=join"};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        assert_non_null(strstr(gs_strbuf_text(&text), facts[i]));
    gs_strbuf_release(&text);
    close_fixture(&f);
}

static void means_run_over_the_sampled_steps_alone(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_RECORD_OFF, 5);
    // Steps 1 to 10 take one unit, those behind ten times as much: of them 15 and 20 are sampled.
    for (int64_t step = 1; step <= 22; step++) {
        gs_reduce_stats stats = stats_of(step, step <= 10 ? 100 : 1000);
        run_step(&f, &stats, NULL);
    }
    assert_int_equal(f.record.num_samples, 12);
    assert_int_equal(f.record.forward.num_samples, 12);
    assert_near(f.record.forward.mean_ns, (10 * 100 + 2 * 1000) / 12.0, 1e-9);
    assert_near(f.record.backward.mean_ns, 3 * 3000 / 12.0, 1e-9);
    assert_near(f.record.comm.mean_ns, 5 * 3000 / 12.0, 1e-9);
    assert_near(f.record.overlap.mean_ns, 2 * 3000 / 12.0, 1e-9);
    assert_int_equal(f.record.comm.last_ns, 5000);
    close_fixture(&f);
}

static void every_step_is_sampled_when_k_is_one(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_RECORD_OFF, 1);
    for (int64_t step = 0; step < 37; step++) {
        gs_reduce_stats stats = stats_of(step, 10);
        run_step(&f, &stats, NULL);
    }
    assert_int_equal(f.record.num_samples, 37);
    close_fixture(&f);
}

static void a_negative_k_is_refused(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_RECORD_OFF, 0);
    assert_int_equal(f.record.sample_every, GS_RECORD_SAMPLE_EVERY);
    gs_reducer_record other;
    gs_record_facts facts = f.record.facts;
    facts.plan = &f.plan;
    gs_status status =
        gs_reducer_record_init(&other, &facts, &(gs_record_options){.sample_every = -1});
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "sample_every: -1"));
    gs_reducer_record_release(&other);
    close_fixture(&f);
}

static void negative_and_missing_differences_are_left_out(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_RECORD_OFF, 1);
    gs_reduce_stats good = stats_of(0, 100), no_forward = stats_of(1, 100), late = stats_of(2, 100);
    no_forward.forward_begin_ns = 0;                     // the host did not tell
    late.first_launch_ns = late.backward_end_ns + 50;    // launched behind the backward pass
    run_step(&f, &good, NULL);
    run_step(&f, &no_forward, NULL);
    run_step(&f, &late, NULL);
    assert_int_equal(f.record.forward.num_samples, 2);
    assert_near(f.record.forward.mean_ns, 100, 0);
    assert_int_equal(f.record.overlap.num_samples, 2);
    assert_near(f.record.overlap.mean_ns, 200, 0);
    assert_int_equal(f.record.overlap.last_ns, -1);
    assert_int_equal(f.record.comm.num_samples, 3);
    close_fixture(&f);
}

static void times_are_said_after_set_numbers_of_samples(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_RECORD_INFO, 1);
    static const int milestones[] = {10, 20, 50, 100, 500, 800, 1000};
    for (int64_t step = 0; step < 1200; step++) {
        gs_reduce_stats stats = stats_of(step, 100);
        int before = f.seen.times;
        run_step(&f, &stats, NULL);
        bool due = false;
        for (int i = 0; i < 7; i++) due |= step + 1 == milestones[i];
        assert_int_equal(f.seen.times - before, due);
    }
    assert_int_equal(f.seen.samples, 0);
    static const char *const words[] = {
        "samples=1000",
        "forward_compute_time_ns=100",
        "avg_backward_compute_time_ns=300",
        "avg_backward_comm_time_ns=500",
        "avg_backward_compute_comm_overlap_time_ns=200",
        "backward_comm_time_start=1200",
        "prev_iteration_grad_ready_order=\"2,0,1\"",
        "has_error=0"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        assert_non_null(strstr(f.seen.last_of_times, words[i]));
    close_fixture(&f);
}

static void nothing_is_said_when_off(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_RECORD_OFF, 1);
    for (int64_t step = 0; step < 20; step++) {
        gs_reduce_stats stats = stats_of(step, 100);
        run_step(&f, &stats, NULL);
        assert_false(f.record.times_params);
    }
    gs_reducer_record_fail(&f.record, 20, gs_error(GS_INTERNAL, "broken"));
    assert_string_equal(f.seen.last, "");
    assert_true(f.record.has_error);
    close_fixture(&f);
}

static void detail_names_what_this_rank_did_not_use(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_RECORD_DETAIL, 1);
    gs_reduce_stats stats = stats_of(0, 100);
    run_step(&f, &stats, (const uint8_t[]){1, 0, 1});
    assert_int_equal(f.seen.samples, 1);
    assert_non_null(strstr(f.seen.last, "locally_unused=\"fc1.weight\""));
    close_fixture(&f);
}

// The original adds the bytes of each step to those of the steps before.
static void unused_bytes_of_a_step_replace_those_of_the_step_before(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_RECORD_OFF, 1);
    for (int64_t step = 0; step < 5; step++) {
        gs_reduce_stats stats = stats_of(step, 100);
        stats.num_unused = 1;
        stats.unused_bytes = 16;
        run_step(&f, &stats, NULL);
        assert_int_equal(f.record.unused_bytes, 16);
    }
    gs_reduce_stats none = stats_of(5, 100);
    run_step(&f, &none, NULL);
    assert_int_equal(f.record.unused_bytes, 0);
    assert_int_equal(f.record.num_unused, 0);
    close_fixture(&f);
}

static void a_graph_could_be_static_while_the_same_parameters_are_used(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_RECORD_OFF, 1);
    const uint8_t some[NUM_PARAMS] = {1, 0, 1}, others[NUM_PARAMS] = {0, 1, 1};
    gs_reduce_stats stats = stats_of(0, 100);
    run_step(&f, &stats, some);
    run_step(&f, &stats, some);
    assert_true(f.record.could_be_static);
    assert_int_equal(f.record.num_locally_unused, 1);
    run_step(&f, &stats, others);
    assert_false(f.record.could_be_static);
    run_step(&f, &stats, some);
    assert_false(f.record.could_be_static);
    close_fixture(&f);
}

static void the_first_error_stays_with_its_step(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_RECORD_INFO, 1);
    gs_reducer_record_fail(&f.record, 7, gs_error(GS_FAILED_PRECONDITION, "marked \"twice\""));
    gs_reducer_record_fail(&f.record, 8, gs_error(GS_ABORTED, "a consequence"));
    assert_int_equal(f.record.error_step, 7);
    assert_int_equal(f.seen.failures, 1);
    assert_non_null(strstr(f.seen.last, "step=7"));
    assert_non_null(strstr(f.seen.last, " error=\"marked \\\"twice\\\"\""));
    // What the times say is for milestones; this line is read by somebody in a hurry.
    assert_true(strlen(f.seen.last) < 160);
    close_fixture(&f);
}

static void a_rebuilt_plan_is_kept_beside_the_first(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_RECORD_INFO, 1);
    gs_bucket_plan rebuilt;
    const size_t order[] = {1, 0, 2};
    assert_ok(gs_bucket_plan_parity(&rebuilt, f.params, NUM_PARAMS, 16, 16, order));
    gs_reducer_record_set_plan(&f.record, &rebuilt);
    gs_bucket_plan_release(&rebuilt);
    assert_int_equal(f.record.num_buckets, 2);
    assert_int_equal(f.record.num_rebuilt_buckets, 3);
    assert_non_null(strstr(f.seen.last, "has_rebuilt_buckets=1"));
    assert_non_null(strstr(f.seen.last, "rebuilt_bucket_sizes=\"16,16,16\""));
    assert_non_null(strstr(f.seen.last, "rebuilt_param_indices=\"1,0,2\""));
    close_fixture(&f);
}

static void long_lists_fit_a_log_line(void **state) {
    (void)state;
    fixture f;
    enum { MANY = 400 };
    static gs_param_spec params[MANY];
    open_fixture(&f, GS_RECORD_OFF, 1);
    gs_reducer_record_release(&f.record);
    gs_bucket_plan_release(&f.plan);
    for (size_t i = 0; i < MANY; i++) params[i] = gs_param_spec_make(GS_FP32, 1 << 20, 0, "p%zu", i);
    assert_ok(gs_bucket_plan_parity(&f.plan, params, MANY, 1, 1, NULL));
    gs_record_facts facts = {.params = params, .num_params = MANY, .plan = &f.plan, .device = f.device};
    assert_ok(gs_reducer_record_init(&f.record, &facts,
                                     &(gs_record_options){.level = GS_RECORD_OFF}));
    gs_reducer_record_set_plan(&f.record, &f.plan);
    gs_strbuf text = {0};
    gs_reducer_record_write_construction(&text, &f.record);
    assert_true(text.len < 1900);
    assert_non_null(strstr(gs_strbuf_text(&text), ",…\""));
    gs_strbuf_release(&text);
    close_fixture(&f);
}

static void the_environment_sets_the_level(void **state) {
    (void)state;
    fixture f;
    setenv("GRADSYNC_REDUCER_LOG", "detail", 1);
    open_fixture(&f, GS_RECORD_UNSET, 0);
    assert_int_equal(f.record.level, GS_RECORD_DETAIL);
    close_fixture(&f);
    open_fixture(&f, GS_RECORD_OFF, 0);  // the option wins
    assert_int_equal(f.record.level, GS_RECORD_OFF);
    close_fixture(&f);
    setenv("GRADSYNC_REDUCER_LOG", "loud", 1);
    open_fixture(&f, GS_RECORD_UNSET, 0);
    assert_int_equal(f.record.level, GS_RECORD_OFF);
    assert_non_null(strstr(f.seen.last, "known=off,info,detail"));
    close_fixture(&f);
    unsetenv("GRADSYNC_REDUCER_LOG");
}

// A real reducer of one rank.
typedef struct reducer_fixture {
    grad_case model;
    grad_rank rank;
    gs_reducer *reducer;
    seen_lines seen;
} reducer_fixture;

static void open_reducer(reducer_fixture *f, const char *level) {
    memset(f, 0, sizeof *f);
    f->model = (grad_case){.num_params = 3, .num_shards = 1, .passes_per_shard = 1};
    // Gradients of 16-bit parameters are fp32: 16 bytes each.
    for (size_t i = 0; i < 3; i++)
        f->model.params[i] = gs_param_spec_make(GS_BF16, 4, 0, "fc%zu.weight", i);
    assert_ok(gs_bucket_plan_parity(&f->model.plan, f->model.params, 3, 32, 32, NULL));
    gs_log_set_sink(take_line, &f->seen);
    setenv("GRADSYNC_REDUCER_LOG", level, 1);
    assert_ok(grad_rank_open(&f->rank, &f->model, NULL, NULL, gs_deadline_in_seconds(60)));
    unsetenv("GRADSYNC_REDUCER_LOG");
    f->reducer = f->rank.reducer;
}

static void close_reducer(reducer_fixture *f) {
    gs_log_set_sink(NULL, NULL);
    grad_rank_close(&f->rank);
    grad_case_release(&f->model);
}

static void a_reducers_steps_fill_its_record(void **state) {
    (void)state;
    reducer_fixture f;
    open_reducer(&f, "info");
    assert_int_equal(f.seen.constructions, 1);
    gs_reduce_result result;
    gs_reducer_pass pass;
    for (int64_t step = 0; step < 10; step++) {
        assert_ok(gs_reducer_begin(f.reducer, step));
        gs_reducer_note_forward(f.reducer);
        assert_ok(gs_reducer_begin_pass(f.reducer, &pass, 1));
        assert_ok(gs_reducer_mark_ready(f.reducer, 2));
        assert_ok(gs_reducer_mark_ready(f.reducer, 0));
        assert_ok(gs_reducer_end_pass(f.reducer));
        assert_ok(gs_reducer_finish(f.reducer, &result, gs_deadline_in_seconds(60)));
        const gs_reduce_stats *stats = gs_reducer_stats(f.reducer);
        assert_int_equal(stats->num_unused, 1);
        assert_int_equal(stats->unused_bytes, 16);
        assert_non_null(stats->param_ready_ns);
        assert_true(stats->param_ready_ns[2] >= 0);
        assert_true(stats->param_ready_ns[0] >= stats->param_ready_ns[2]);
        assert_int_equal(stats->param_ready_ns[1], -1);
        assert_true(stats->forward_begin_ns >= stats->begin_ns);
        assert_true(stats->first_launch_ns >= stats->backward_begin_ns);
    }
    const gs_reducer_record *record = gs_reducer_get_record(f.reducer);
    assert_int_equal(record->num_samples, 10);
    assert_int_equal(record->forward.num_samples, 10);
    assert_int_equal(record->comm.num_samples, 10);
    assert_true(record->could_be_static);
    assert_int_equal(record->last_ready_order[0], 2);
    assert_int_equal(f.seen.times, 1);
    close_reducer(&f);
}

// Each mark's time lies between the moments right before and right behind it.
static void parameters_are_timed_from_the_begin_of_the_backward(void **state) {
    (void)state;
    static const size_t order[] = {2, 0, 1};
    reducer_fixture f;
    gs_reduce_result result;
    gs_reducer_pass pass;
    int64_t before[3], behind[3];
    open_reducer(&f, "info");
    assert_ok(gs_reducer_begin(f.reducer, 0));
    assert_ok(gs_reducer_begin_pass(f.reducer, &pass, 1));
    for (size_t i = 0; i < 3; i++) {
        size_t param = order[i];
        int64_t until_ns = gs_now_ns() + GS_NS_PER_MS;
        while ((before[param] = gs_now_ns()) < until_ns) {}
        assert_ok(gs_reducer_mark_ready(f.reducer, param));
        behind[param] = gs_now_ns();
    }
    assert_ok(gs_reducer_end_pass(f.reducer));
    assert_ok(gs_reducer_finish(f.reducer, &result, gs_deadline_in_seconds(60)));
    const gs_reduce_stats *stats = gs_reducer_stats(f.reducer);
    const gs_reducer_record *record = gs_reducer_get_record(f.reducer);
    for (size_t p = 0; p < 3; p++) {
        int64_t at_ns = stats->backward_begin_ns + stats->param_ready_ns[p];
        assert_true(at_ns >= before[p] && at_ns <= behind[p]);
        assert_int_equal(record->param_ready_ns[p], stats->param_ready_ns[p]);
    }
    close_reducer(&f);
}

// Moments of the host's lie between the five points of a step, so that no two can be confused.
static void five_points_lie_where_the_step_was(void **state) {
    (void)state;
    reducer_fixture f;
    gs_reduce_result result;
    gs_reducer_pass pass;
    int64_t between[6];
    open_reducer(&f, "info");
    assert_ok(gs_reducer_begin(f.reducer, 0));
    between[0] = gs_now_ns();
    gs_reducer_note_forward(f.reducer);
    between[1] = gs_now_ns();
    assert_ok(gs_reducer_begin_pass(f.reducer, &pass, 1));
    assert_ok(gs_reducer_mark_ready(f.reducer, 0));
    between[2] = gs_now_ns();
    assert_ok(gs_reducer_mark_ready(f.reducer, 1));
    assert_ok(gs_reducer_mark_ready(f.reducer, 2));
    between[3] = gs_now_ns();
    assert_ok(gs_reducer_end_pass(f.reducer));
    between[4] = gs_now_ns();
    assert_ok(gs_reducer_finish(f.reducer, &result, gs_deadline_in_seconds(60)));
    between[5] = gs_now_ns();
    const gs_reduce_stats *stats = gs_reducer_stats(f.reducer);
    const int64_t points[] = {stats->forward_begin_ns, stats->backward_begin_ns,
                              stats->first_launch_ns, stats->backward_end_ns, stats->end_ns};
    for (size_t i = 0; i < 5; i++)
        assert_true(between[i] <= points[i] && points[i] <= between[i + 1]);
    close_reducer(&f);
}

static void a_reducers_error_lands_in_its_record(void **state) {
    (void)state;
    reducer_fixture f;
    open_reducer(&f, "info");
    gs_reducer_pass pass;
    assert_ok(gs_reducer_begin(f.reducer, 3));
    assert_ok(gs_reducer_begin_pass(f.reducer, &pass, 1));
    assert_ok(gs_reducer_mark_ready(f.reducer, 1));
    gs_status twice = gs_reducer_mark_ready(f.reducer, 1);
    const gs_reducer_record *record = gs_reducer_get_record(f.reducer);
    assert_true(record->has_error);
    assert_int_equal(record->error_step, 3);
    assert_string_equal(record->error.message, twice.message);
    assert_non_null(strstr(f.seen.last, "fc1.weight"));
    close_reducer(&f);
}

static void no_parameter_is_timed_when_off(void **state) {
    (void)state;
    reducer_fixture f;
    open_reducer(&f, "off");
    gs_reducer_pass pass;
    gs_reduce_result result;
    assert_ok(gs_reducer_begin(f.reducer, 0));
    assert_ok(gs_reducer_begin_pass(f.reducer, &pass, 1));
    for (size_t i = 0; i < 3; i++) assert_ok(gs_reducer_mark_ready(f.reducer, i));
    assert_ok(gs_reducer_end_pass(f.reducer));
    assert_ok(gs_reducer_finish(f.reducer, &result, gs_deadline_in_seconds(60)));
    assert_null(gs_reducer_stats(f.reducer)->param_ready_ns);
    assert_string_equal(f.seen.last, "");
    close_reducer(&f);
}

// CTest runs this program once more with OPENBLAS_CORETYPE set to an old core.
static void what_the_environment_holds_back_follows_the_arithmetic(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_RECORD_INFO, 0);
    char limit[128], part[200];
    gs_device_limit(f.record.facts.device, limit, sizeof limit);
    snprintf(part, sizeof part, "; %s\"", limit);
#if defined(__x86_64__)
    bool modern = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const char *core = getenv("OPENBLAS_CORETYPE");
    if (modern && core && strcmp(core, "Sandybridge") == 0) assert_string_not_equal(limit, "");
#endif
    if (*limit) {
        assert_non_null(strstr(f.seen.last, part));
    } else {
        assert_null(strstr(f.seen.last, "held"));
    }
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(construction_and_environment_are_said_at_once),
        cmocka_unit_test(what_the_environment_holds_back_follows_the_arithmetic),
        cmocka_unit_test(means_run_over_the_sampled_steps_alone),
        cmocka_unit_test(every_step_is_sampled_when_k_is_one),
        cmocka_unit_test(a_negative_k_is_refused),
        cmocka_unit_test(negative_and_missing_differences_are_left_out),
        cmocka_unit_test(times_are_said_after_set_numbers_of_samples),
        cmocka_unit_test(nothing_is_said_when_off),
        cmocka_unit_test(detail_names_what_this_rank_did_not_use),
        cmocka_unit_test(unused_bytes_of_a_step_replace_those_of_the_step_before),
        cmocka_unit_test(a_graph_could_be_static_while_the_same_parameters_are_used),
        cmocka_unit_test(the_first_error_stays_with_its_step),
        cmocka_unit_test(a_rebuilt_plan_is_kept_beside_the_first),
        cmocka_unit_test(long_lists_fit_a_log_line),
        cmocka_unit_test(the_environment_sets_the_level),
        cmocka_unit_test(a_reducers_steps_fill_its_record),
        cmocka_unit_test(parameters_are_timed_from_the_begin_of_the_backward),
        cmocka_unit_test(five_points_lie_where_the_step_was),
        cmocka_unit_test(a_reducers_error_lands_in_its_record),
        cmocka_unit_test(no_parameter_is_timed_when_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
