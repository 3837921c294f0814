// State of hooks among the tensors of a trainer's state: from a reducer into a checkpoint, out of it into another
// reducer.
#include "worker/state/hook_tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/hooks/hook_calls.h"
#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"
#include "tests/support/temp_dir.h"
#include "worker/checkpoint/checkpoint.h"

// A hook that counts the committed steps of each parameter, in two copies.
typedef struct counter {
    int64_t *counts[2];
    int holding;
    bool is_own;
    int num_loads;
    gs_device *device;
} counter;
static counter *counting;

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    *needs = (gs_hook_needs){.state_bytes = 2 * setup->num_params * sizeof(int64_t)};
    return gs_ok();
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    counter *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->counts[0] = setup->state;
    self->counts[1] = self->counts[0] + setup->num_params;
    self->is_own = setup->choice->user != NULL;
    self->device = setup->device;
    *state = counting = self;
    return gs_ok();
}

static int64_t count_of(size_t param) {
    int64_t count;
    device_memory_read(counting->device, &count, counting->counts[counting->holding] + param,
                       sizeof count);
    return count;
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    counter *self = state;
    for (size_t i = 0; i < bucket->num_params; i++) {
        size_t param = bucket->params[i].index;
        int64_t count = count_of(param) + 1;
        device_memory_write(self->device, self->counts[!self->holding] + param, &count,
                            sizeof count);
    }
    return gs_hook_allreduce.run(NULL, bucket, work);
}

static void commit(void *state) {
    counter *self = state;
    self->holding = !self->holding;
}

static bool tensor_at(void *state, size_t index, gs_hook_tensor *tensor) {
    counter *self = state;
    if (index >= SMALL_PARAMS) return false;
    *tensor = (gs_hook_tensor){.name = "count",
                               .param = (int64_t)index,
                               .dtype = GS_I64,
                               .count = 1,
                               .data = self->counts[self->holding] + index,
                               .is_own = self->is_own};
    return true;
}

static gs_status loaded(void *state) {
    ((counter *)state)->num_loads++;
    return gs_ok();
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    (void)state;
    (void)plan;
    return gs_ok();
}

static const gs_comm_hook *counter_hook(void) {
    static gs_comm_hook hook;
    hook = gs_hook_allreduce;
    hook.name = "counter";
    hook.measure = measure;
    hook.create = create;
    hook.on_plan = on_plan;
    hook.run = run;
    hook.commit = commit;
    hook.tensor = tensor_at;
    hook.loaded = loaded;
    hook.destroy = free;
    return &hook;
}

static const char mlp_spec[] =
    "{\"name\":\"c\",\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[30,20,4],\"batch_norm\":\"local\"}},"
    "\"optimizer\":{\"kind\":\"adamw\",\"lr\":0.01},\"steps\":{\"target\":9}}";

typedef struct fixture {
    gs_job_spec spec;
    gs_trainer_state state;
    small_reducer small;
} fixture;

static void open_state(fixture *f) {
    gs_json *json;
    gs_field_errors errors = {0};
    *f = (fixture){0};
    assert_ok(gs_json_parse(&json, mlp_spec, strlen(mlp_spec)));
    assert_ok(gs_job_spec_decode(&f->spec, json, &errors));
    gs_json_release(json);
    small_reducer_prepare(&f->small);
    assert_ok(test_device_try(&f->small.device, 1));
    assert_ok(gs_trainer_state_init(&f->state, &f->spec, f->small.device));
}

static void open_reducer(fixture *f, const gs_hook_choice *choice) {
    assert_ok(small_reducer_open(&f->small,
                                 &(gs_reducer_options){.hooks = choice, .num_hooks = choice != NULL},
                                 NULL));
}

static gs_status attach(fixture *f) {
    return gs_hook_tensors_attach(&f->state, f->small.reducer, f->small.comm);
}

static void close_all(fixture *f) {
    gs_trainer_state_release(&f->state);
    small_reducer_close(&f->small);
}

static void take_step(fixture *f, int64_t step) {
    static const double ones[SMALL_PARAMS] = {1, 1, 1, 1};
    gs_reduce_result result;
    assert_ok(small_reducer_run_step(&f->small, step, ones, &result));
    assert_ok(gs_reducer_commit(f->small.reducer));
    gs_hook_tensors_follow(&f->state, f->small.reducer);
}

// The path of the checkpoint that was written, to be freed.
static char *save(fixture *f, const char *directory, gs_digest *digest) {
    gs_state_snapshot snapshot;
    gs_checkpoint_result result;
    char *path = NULL;
    assert_ok(gs_state_snapshot_init(&snapshot, &f->state, (gs_share_range){0}));
    assert_ok(gs_state_snapshot_take(&snapshot, &f->state));
    assert_ok(gs_checkpoint_save(
        &result, &snapshot,
        &(gs_checkpoint_options){
            .directory = directory,
            .job = "j-000000000001",
            .spec = &f->spec,
            .request = {.reason = "periodic", .world_size = 1, .num_parts = 1}}));
    *digest = result.state_digest;
    gs_state_snapshot_release(&snapshot);
    if (asprintf(&path, "%s/%s", directory, result.name) < 0) abort();
    return path;
}

static void state_of_hooks_goes_through_a_checkpoint(void **state) {
    (void)state;
    fixture first, second;
    gs_digest saved;
    const gs_hook_choice choice = {.hook = counter_hook()};
    char *directory = gs_temp_dir_make();
    open_state(&first);
    size_t num_model = first.state.num_tensors;
    gs_digest plain = gs_trainer_state_digest(&first.state);
    open_reducer(&first, &choice);
    assert_ok(attach(&first));
    assert_int_equal(first.state.num_tensors, num_model + SMALL_PARAMS);
    assert_string_equal(first.state.tensors[num_model + 2].name, "hook/counter/count/fc2");
    for (int64_t step = 0; step < 3; step++) take_step(&first, step);
    assert_int_equal(count_of(3), 3);
    char *path = save(&first, directory, &saved);
    assert_false(gs_digest_equal(plain, saved));
    assert_true(gs_digest_equal(gs_trainer_state_digest(&first.state), saved));

    // The reducer may go: what its hooks carried rests in the state.
    assert_ok(gs_hook_tensors_detach(&first.state));
    gs_reducer_destroy(first.small.reducer);
    first.small.reducer = NULL;
    assert_true(gs_digest_equal(gs_trainer_state_digest(&first.state), saved));
    close_all(&first);

    open_state(&second);
    assert_ok(gs_checkpoint_load(&second.state, path, &second.spec));
    assert_int_equal(second.state.num_tensors, num_model + SMALL_PARAMS);
    assert_true(gs_digest_equal(gs_trainer_state_digest(&second.state), saved));
    open_reducer(&second, &choice);
    assert_int_equal(count_of(3), 0);
    assert_ok(attach(&second));
    assert_int_equal(counting->num_loads, 1);
    for (size_t p = 0; p < SMALL_PARAMS; p++) assert_int_equal(count_of(p), 3);
    assert_true(gs_digest_equal(gs_trainer_state_digest(&second.state), saved));
    take_step(&second, 3);
    assert_int_equal(count_of(0), 4);
    assert_false(gs_digest_equal(gs_trainer_state_digest(&second.state), saved));
    assert_ok(gs_hook_tensors_detach(&second.state));
    close_all(&second);
    free(path);
    gs_temp_dir_remove(directory);
}

static void state_that_does_not_fit_the_hooks_is_named(void **state) {
    (void)state;
    fixture f;
    const gs_hook_choice choice = {.hook = counter_hook()};
    open_state(&f);
    gs_state_tensor tensor = {.name = "hook/other/residual", .dtype = GS_FP32, .num_dims = 1};
    tensor.shape[0] = 3;
    tensor.bytes = 12;
    assert_ok(gs_hook_tensors_add(&f.state, &tensor));
    open_reducer(&f, NULL);
    gs_status status = attach(&f);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "no hook of this job has the tensor \"hook/other/residual\""));
    close_all(&f);

    open_state(&f);
    assert_ok(gs_hook_tensors_add(&f.state, &tensor));
    open_reducer(&f, &choice);
    status = attach(&f);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "the state has no tensor \"hook/counter/count/fc0\""));
    close_all(&f);
}

static void state_of_one_rank_alone_is_refused_by_name(void **state) {
    (void)state;
    fixture f;
    const gs_hook_choice choice = {.hook = counter_hook(), .user = &f};
    open_state(&f);
    open_reducer(&f, &choice);
    gs_status status = attach(&f);
    assert_int_equal(status.code, GS_UNIMPLEMENTED);
    assert_non_null(strstr(status.message, "\"hook/counter/count/fc0\" is each rank's own"));
    close_all(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_of_hooks_goes_through_a_checkpoint),
        cmocka_unit_test(state_that_does_not_fit_the_hooks_is_named),
        cmocka_unit_test(state_of_one_rank_alone_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
