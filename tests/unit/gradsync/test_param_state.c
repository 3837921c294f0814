#include "gradsync/hooks/param_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"
#include "gradsync/hooks/hook_calls.h"
#include "tests/support/asserts.h"

#define NUM_PARAMS 4

static gs_param_spec specs[NUM_PARAMS];
static gs_hook_param params[NUM_PARAMS];

// The second parameter is kept of in no state here, the third one is fp64.
static size_t count_but_second(const void *ctx, const gs_hook_param *param) {
    return param->index == 1 ? 0 : *(const size_t *)ctx + param->index;
}

typedef struct kept {
    size_t base;
    gs_param_state_options options;
    gs_device *device;
    void *memory;
    gs_param_state state;
} kept;

static void open_kept(kept *self) {
    *self = (kept){.base = 5};
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        specs[i] = gs_param_spec_make(i == 2 ? GS_FP64 : GS_FP32, 3, 0, "w%zu", i);
        params[i] = (gs_hook_param){
            .index = i, .spec = &specs[i], .dtype = specs[i].dtype, .count = 3, .room = 16};
    }
    self->options = (gs_param_state_options){.name = "error",
                                             .is_own = true,
                                             .params = params,
                                             .num_params = NUM_PARAMS,
                                             .count = count_but_second,
                                             .ctx = &self->base};
    assert_int_equal(gs_device_open(&self->device, "cpu", NULL).code, GS_OK);
    self->memory = gs_alloc_aligned(gs_param_state_bytes(&self->options), 64);
    assert_ok(gs_param_state_init(&self->state, &self->options, self->device, self->memory));
}

static void close_kept(kept *self) {
    gs_param_state_release(&self->state);
    free(self->memory);
    gs_device_close(self->device);
}

static void a_commit_makes_hold_what_the_step_wrote_and_nothing_else(void **state) {
    (void)state;
    kept self;
    open_kept(&self);
    void *held[NUM_PARAMS];
    for (size_t i = 0; i < NUM_PARAMS; i++) held[i] = gs_param_state_held(&self.state, i);
    void *written = gs_param_state_write(&self.state, 0);
    assert_ptr_not_equal(written, held[0]);
    assert_ptr_equal(gs_param_state_held(&self.state, 0), held[0]);
    gs_param_state_commit(&self.state);
    assert_ptr_equal(gs_param_state_held(&self.state, 0), written);
    assert_ptr_equal(gs_param_state_held(&self.state, 2), held[2]);
    gs_param_state_commit(&self.state);
    assert_ptr_equal(gs_param_state_held(&self.state, 0), written);
    assert_ptr_equal(gs_param_state_write(&self.state, 0), held[0]);
    close_kept(&self);
}

static void a_rollback_forgets_what_the_step_wrote(void **state) {
    (void)state;
    kept self;
    open_kept(&self);
    void *held = gs_param_state_held(&self.state, 2),
         *written = gs_param_state_write(&self.state, 2);
    gs_param_state_rollback(&self.state);
    gs_param_state_commit(&self.state);
    assert_ptr_equal(gs_param_state_held(&self.state, 2), held);
    assert_ptr_equal(gs_param_state_write(&self.state, 2), written);
    close_kept(&self);
}

static void tensors_are_those_that_are_kept_apart_from_each_other(void **state) {
    (void)state;
    static const size_t params_kept[] = {0, 2, 3};
    kept self;
    open_kept(&self);
    gs_hook_tensor tensor;
    assert_null(gs_param_state_held(&self.state, 1));
    for (size_t i = 0; i < 3; i++) {
        assert_true(gs_param_state_tensor(&self.state, i, &tensor));
        assert_string_equal(tensor.name, "error");
        assert_int_equal(tensor.param, params_kept[i]);
        assert_int_equal(tensor.count, 5 + params_kept[i]);
        assert_int_equal(tensor.dtype, params[params_kept[i]].dtype);
        assert_true(tensor.is_own);
        assert_true(tensor.is_on_host);
        assert_ptr_equal(tensor.data, gs_param_state_held(&self.state, params_kept[i]));
        assert_null(tensor.beside);
        void *written = gs_param_state_write(&self.state, params_kept[i]);
        assert_true(gs_param_state_tensor(&self.state, i, &tensor));
        assert_ptr_equal(tensor.beside, written);
        // Every byte of both copies may be written without touching another.
        memset(tensor.data, (int)(2 * i + 1), tensor.count * gs_dtype_bytes(tensor.dtype));
        memset(tensor.beside, (int)(2 * i + 2), tensor.count * gs_dtype_bytes(tensor.dtype));
    }
    assert_false(gs_param_state_tensor(&self.state, 3, &tensor));
    for (size_t i = 0; i < 3; i++) {
        assert_true(gs_param_state_tensor(&self.state, i, &tensor));
        for (size_t b = 0; b < tensor.count * gs_dtype_bytes(tensor.dtype); b++) {
            assert_int_equal(((char *)tensor.data)[b], 2 * i + 1);
            assert_int_equal(((char *)tensor.beside)[b], 2 * i + 2);
        }
    }
    close_kept(&self);
}

static void what_does_not_fit_has_no_size(void **state) {
    (void)state;
    kept self;
    open_kept(&self);
    size_t huge = SIZE_MAX / 4;
    self.options.ctx = &huge;
    assert_int_equal(gs_param_state_bytes(&self.options), SIZE_MAX);
    close_kept(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_commit_makes_hold_what_the_step_wrote_and_nothing_else),
        cmocka_unit_test(a_rollback_forgets_what_the_step_wrote),
        cmocka_unit_test(tensors_are_those_that_are_kept_apart_from_each_other),
        cmocka_unit_test(what_does_not_fit_has_no_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
