// How many launches copies of a bucket are: the CPU plays a device with memory of its own, and what
// is launched there is counted.
#include "gradsync/bucket/copy_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/bucket/grad_copies.h"
#include "kernels/backend.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"

// Two buckets, [5 4 3] and [2 1 0]; tensors are fp32 and fp16 by turns.
enum { NUM_PARAMS = 6, COUNT = 16 };

static const gs_kernels *cpu_kernels;
static size_t num_launches;

static void counted_cast_many(gs_stream *stream, const gs_cast_item *items, size_t num_items,
                              gs_dtype to, gs_dtype from, float scale) {
    num_launches++;
    cpu_kernels->cast_many(stream, items, num_items, to, from, scale);
}

typedef struct copies_case {
    gs_device *host, device;
    gs_kernels kernels;
    gs_grad_layout layout;
    gs_grad_copies copies;
    float tensors[NUM_PARAMS][COUNT];  // or of 16 bits
    _Alignas(256) char memory[1 << 16];
} copies_case;

static void open_case(copies_case *self) {
    gs_param_spec params[NUM_PARAMS];
    gs_separate_grad tensors[NUM_PARAMS];
    const gs_grad_layout_shape shape = {.params = params, .num_params = NUM_PARAMS, .num_slots = 1};
    const uint64_t limit_bytes = 3 * COUNT * sizeof(float);
    gs_bucket_plan plan;
    size_t bytes;
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        params[p] = gs_param_spec_make(GS_FP32, COUNT, 0, "p%zu", p);
        tensors[p] = (gs_separate_grad){self->tensors[p], p % 2 ? GS_FP16 : GS_FP32};
    }
    self->host = test_device_open(1);
    self->device = *self->host;
    cpu_kernels = self->host->kernels;
    self->kernels = *cpu_kernels;
    self->kernels.cast_many = counted_cast_many;
    self->device.kernels = &self->kernels;
    self->device.is_host = false;
    assert_ok(gs_bucket_plan_parity(&plan, params, NUM_PARAMS, limit_bytes, limit_bytes, NULL));
    assert_int_equal(plan.num_buckets, 2);
    assert_ok(gs_grad_layout_bytes(&bytes, &shape, NULL));
    assert_true(bytes <= sizeof self->memory);
    assert_ok(gs_grad_layout_init(&self->layout, &shape, self->memory));
    assert_ok(gs_grad_layout_set_plan(&self->layout, &plan));
    gs_bucket_plan_release(&plan);
    assert_ok(gs_grad_copies_init(&self->copies, tensors, &self->layout, &self->device));
    assert_ok(gs_grad_copies_place(&self->copies, &self->layout));
    num_launches = 0;
}

static void close_case(copies_case *self) {
    gs_grad_copies_release(&self->copies);
    gs_grad_layout_release(&self->layout);
    test_device_close(self->host);
}

static void put_tensor(copies_case *self, size_t param, float value) {
    uint16_t half = gs_fp32_to_fp16(value);
    for (size_t i = 0; i < COUNT; i++) {
        if (param % 2)
            memcpy((char *)self->tensors[param] + 2 * i, &half, sizeof half);
        else
            self->tensors[param][i] = value;
    }
}

static float get_tensor(const copies_case *self, size_t param) {
    uint16_t half;
    memcpy(&half, (const char *)self->tensors[param] + 2 * (COUNT - 1), sizeof half);
    return param % 2 ? gs_fp16_to_fp32(half) : self->tensors[param][COUNT - 1];
}

// Parameter 0 is not of this window: its place keeps what it holds.
static void bucket_is_copied_in_with_one_launch_for_each_type(void **state) {
    (void)state;
    static copies_case self;
    open_case(&self);
    void *const *grads = gs_grad_layout_grads(&self.layout, 0);
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        put_tensor(&self, p, (float)(p + 1));
        gs_grad_copies_in(&self.copies, &self.layout, 0, p, &self.device);
        ((float *)grads[p])[COUNT - 1] = -1;
        self.copies.written[p] = p > 0;
    }
    assert_int_equal(num_launches, 0);
    for (size_t b = 0; b < 2; b++) {
        gs_grad_copies_bucket_in(&self.copies, &self.layout, 0, b, gs_work_stream_of(&self.device));
        assert_int_equal(num_launches, 2 * (b + 1));
    }
    for (size_t p = 0; p < NUM_PARAMS; p++)
        assert_near(((float *)grads[p])[COUNT - 1], p ? (float)(p + 1) : -1, 0);
    close_case(&self);
}

static void bucket_is_copied_out_with_one_launch_for_each_type(void **state) {
    (void)state;
    static copies_case self;
    static const uint8_t used[NUM_PARAMS] = {0, 1, 1, 1, 1, 1};
    open_case(&self);
    void *const *grads = gs_grad_layout_grads(&self.layout, 0);
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        put_tensor(&self, p, -1);
        ((float *)grads[p])[COUNT - 1] = (float)(p + 1);
    }
    for (size_t b = 0; b < 2; b++) {
        gs_grad_copies_bucket_out(&self.copies, &self.layout, b, used, &self.device);
        assert_int_equal(num_launches, 2 * (b + 1));
    }
    for (size_t p = 0; p < NUM_PARAMS; p++)
        assert_near(get_tensor(&self, p), p ? (float)(p + 1) : -1, 0);
    close_case(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bucket_is_copied_in_with_one_launch_for_each_type),
        cmocka_unit_test(bucket_is_copied_out_with_one_launch_for_each_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
