// What hooks declare is enough for any plan in any world, on a device whose library sends copies, too. The
// communicator is played: a hook asks it for its rank and its world when it takes its memory.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"
#include "core/random.h"
#include "gradsync/bucket/grad_layout.h"
#include "gradsync/hooks/hook_calls.h"
#include "gradsync/hooks/hook_set.h"
#include "tests/support/asserts.h"
#include "tests/support/soon.h"

#define MOST_PARAMS 24
#define NUM_MODELS 8
#define NUM_PLANS 4

static int world_size;
static bool sends_copies;

int __wrap_gs_comm_world_size(const gs_comm *comm);
int __wrap_gs_comm_world_size(const gs_comm *comm) {
    (void)comm;
    return world_size;
}

int __wrap_gs_comm_rank(const gs_comm *comm);
int __wrap_gs_comm_rank(const gs_comm *comm) {
    (void)comm;
    return world_size - 1;
}

bool __wrap_gs_device_is_host(const gs_device *device);
bool __wrap_gs_device_is_host(const gs_device *device) {
    (void)device;
    return !sends_copies;
}

typedef struct model {
    gs_param_spec params[MOST_PARAMS];
    size_t num_params;
    uint64_t seed, drawn;
} model;

static uint64_t draw(model *self, uint64_t below) {
    return gs_random_u64((gs_random_key){self->seed, 1}, self->drawn++) % below;
}

static gs_dtype draw_dtype(model *self) {
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP32, GS_FP64, GS_BF16};
    return dtypes[draw(self, sizeof dtypes / sizeof dtypes[0])];
}

// Scalars, empty ones, vectors, matrices, sparse ones; of some models all of one size.
static void draw_model(model *self, uint64_t seed) {
    *self = (model){.seed = seed};
    self->num_params = 1 + draw(self, MOST_PARAMS);
    const bool is_even = draw(self, 4) == 0;
    const int64_t side = (int64_t)(8 * (1 + draw(self, 60)));
    for (size_t i = 0; i < self->num_params; i++) {
        gs_param_spec *param = &self->params[i];
        *param = (gs_param_spec){.dtype = is_even ? GS_FP32 : draw_dtype(self),
                                 .num_dims = is_even ? 2 : (int)draw(self, 4)};
        snprintf(param->name, sizeof param->name, "p%zu", i);
        for (int d = 0; d < param->num_dims; d++)
            param->shape[d] = is_even ? side : (int64_t)draw(self, draw(self, 12) ? 120 : 2);
        param->sparse = !is_even && param->num_dims == 2 && draw(self, 10) == 0;
    }
}

static void place(model *self, gs_hook_set *set, gs_grad_layout *layout, void *memory) {
    size_t order[MOST_PARAMS];
    gs_bucket_plan plan;
    for (size_t i = 0; i < self->num_params; i++) order[i] = i;
    for (size_t i = self->num_params; i-- > 1;) {
        size_t other = draw(self, i + 1), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    const uint64_t caps[] = {1, 4096, 100000, UINT64_C(1) << 40};
    assert_ok(gs_bucket_plan_parity(&plan, self->params, self->num_params, caps[draw(self, 4)],
                                    caps[draw(self, 4)], order));
    assert_ok(gs_grad_layout_set_plan(layout, &plan));
    assert_ok(gs_hook_set_place(set, layout, NULL, memory, soon()));
    gs_bucket_plan_release(&plan);
}

// Plans in one world, then in another one, as after a reset.
static void check_model(const gs_hook_choice *choice, uint64_t seed, gs_device *device,
                        gs_dtype wire_dtype) {
    model self;
    gs_hook_set set;
    gs_grad_layout layout;
    draw_model(&self, seed);
    world_size = 1 + (int)draw(&self, 12);
    const gs_hook_set_options options = {.choices = choice,
                                         .num_choices = 1,
                                         .params = self.params,
                                         .num_params = self.num_params,
                                         .wire_dtype = wire_dtype,
                                         .rank = world_size - 1,
                                         .world_size = world_size,
                                         .device = device};
    const gs_grad_layout_shape shape = {.params = self.params, .num_params = self.num_params};
    gs_hook_set_needs needs;
    assert_ok(gs_hook_set_measure(&needs, &options));
    void *state = gs_alloc_aligned(needs.state_bytes, GS_HOOK_PLACE_BYTES);
    assert_ok(gs_grad_layout_init(&layout, &shape, NULL));
    assert_ok(gs_hook_set_init(&set, &options, state));
    for (int world = 0; world < 2; world++) {
        if (world) {
            world_size = 1 + (int)draw(&self, 64);
            assert_ok(gs_hook_set_resize(&set, 0, world_size));
        }
        void *memory = gs_alloc_aligned(set.needs.bucket_bytes, GS_HOOK_PLACE_BYTES);
        for (int p = 0; p < NUM_PLANS; p++) place(&self, &set, &layout, memory);
        free(memory);
    }
    gs_hook_set_release(&set);
    gs_grad_layout_release(&layout);
    free(state);
}

static const char *const names[] = {"allreduce", "fp16",        "int8",   "int8_channel",
                                    "uint8_gather", "powersgd", "batched_powersgd",
                                    "topk",      "onebit",      "noop"};

static gs_hook_choice choose(const char *name, gs_hook_number *number) {
    static const double ratios[] = {0.07, 0.01, 1, 1e-9, 0.05};
    static int next;
    *number = (gs_hook_number){0};
    if (!strcmp(name, "topk")) *number = (gs_hook_number){"ratio", ratios[next++ % 5]};
    if (strstr(name, "powersgd")) *number = (gs_hook_number){"rank", 1 + next++ % 9};
    return (gs_hook_choice){
        .hook = gs_comm_hook_find(name), .numbers = number, .num_numbers = number->name != NULL};
}

static void what_is_declared_is_enough(void **state) {
    (void)state;
    gs_device *device;
    gs_hook_number number;
    assert_ok(gs_device_open(&device, "cpu", NULL));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        print_message("%s\n", names[i]);
        for (uint64_t seed = 1; seed <= NUM_MODELS; seed++) {
            const gs_hook_choice choice = choose(names[i], &number);
            const gs_hook_choice wrapper = {.hook = &gs_hook_wrap_bf16, .inner = &choice};
            sends_copies = seed % 2;
if(0)            print_message("%s, seed %d\n", names[i], (int)seed);
            check_model(&choice, seed, device, GS_DTYPE_UNSET);
            if (strcmp(names[i], "fp16") != 0) check_model(&wrapper, seed, device, GS_DTYPE_UNSET);
        }
    }
    sends_copies = false;
    gs_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_declared_is_enough)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
