// Optimizers, the launches for many tensors, and masters in two halves: the CPU's bits.
#include <math.h>

#include "tests/gpu/kernel_case.h"

#define MOST ((size_t)1 << 21)
#define MOST_ITEMS 7

// As in kernels_elementwise.c.
static const kernel_bound sum_bound = {1e-9, 0, "fp64 sums in another order"};

static gs_adamw draw_adamw(kernel_test *test) {
    const double step = 1.0 + (double)kernel_random(test, 1000);
    return (gs_adamw){.lr = kernel_real(test, 1e-5f, 1e-2f),
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .eps = 1e-8f,
                      .weight_decay = kernel_real(test, 0.0f, 0.2f),
                      .grad_scale = kernel_real(test, 0.1f, 1.0f),
                      .correction1 = 1.0 - 1.0 / (1.0 + step),
                      .correction2 = 1.0 - 1.0 / (2.0 + step),
                      .decoupled = kernel_random(test, 2)};
}

// ---- the factor, by which an update is scaled on the device, or left out

enum { NO_FACTOR = 0, FACTOR_APPLIES, FACTOR_LEAVES_OUT, NUM_FACTORS };

static int name_factor(kernel_test *test, int kind) {
    int tensor = kernel_input(test, "factor", GS_I32, 2, KERNEL_ZEROS);
    *(gs_grad_factor *)kernel_data(test, tensor) =
        (gs_grad_factor){.value = kernel_real(test, 0.1f, 1.0f), .applies = kind == FACTOR_APPLIES};
    return tensor;
}

typedef struct factor_shape {
    gs_grad_clip clip;
    size_t count;
} factor_shape;

static void launch_grad_factor(const kernel_run *run) {
    const factor_shape *shape = run->shape;
    run->kernels->grad_factor(run->stream, run->at[0], run->at[1], shape->count, &shape->clip);
}

static void test_grad_factor(kernel_test *test) {
    static const double spoils[] = {0, (double)NAN, (double)INFINITY, 1.7e308};
    for (int round = 0; round < 32; round++) {
        factor_shape shape = {.count = kernel_count(test, 1 << 14)};
        shape.clip = (gs_grad_clip){.max_norm = round % 5 ? (double)kernel_real(test, 0.01f, 200.0f) : 0,
                                    .loss_scale = round % 3 ? 1 : 3.0,
                                    .unscaling = round % 3 ? 1 : 1.0f / 3.0f};
        kernel_begin(test, "%zu sums, at most %g", shape.count, shape.clip.max_norm);
        kernel_output(test, "factor", GS_I32, 2, KERNEL_SAME_BITS);
        double *squares = kernel_data(test, kernel_input(test, "squares", GS_FP64, shape.count, KERNEL_POSITIVE));
        // Two of the last are finite, and their sum is not.
        for (size_t i = 0; i < 2 && i < shape.count && round >= 20; i++)
            squares[kernel_random(test, shape.count)] = spoils[round % 4];
        kernel_check(test, launch_grad_factor, &shape);
    }
}

// ---- adamw and sgd

typedef struct adamw_shape {
    gs_adamw step;
    size_t count;
    int factor;  // its tensor; 0: none
} adamw_shape;

static void launch_adamw(const kernel_run *run) {
    const adamw_shape *shape = run->shape;
    gs_stream_set_factor(run->stream, shape->factor ? run->at[shape->factor] : NULL);
    run->kernels->adamw(run->stream, run->at[0], run->at[1], run->at[2], run->at[3], &shape->step,
                        shape->count);
    gs_stream_set_factor(run->stream, NULL);
}

static void test_adamw(kernel_test *test) {
    for (int round = 0; round < 24; round++) {
        adamw_shape shape = {.step = draw_adamw(test), .count = kernel_count(test, MOST)};
        kernel_begin(test, "count %zu, decoupled %d", shape.count, shape.step.decoupled);
        kernel_inout(test, "param", GS_FP32, shape.count, KERNEL_UNIT, KERNEL_SAME_BITS);
        kernel_inout(test, "m", GS_FP32, shape.count, KERNEL_WIDE, KERNEL_SAME_BITS);
        kernel_inout(test, "v", GS_FP32, shape.count, KERNEL_POSITIVE, KERNEL_SAME_BITS);
        kernel_input(test, "grad", GS_FP32, shape.count, round % 4 ? KERNEL_WIDE : KERNEL_SPECIAL);
        if (round % NUM_FACTORS) shape.factor = name_factor(test, round % NUM_FACTORS);
        kernel_check(test, launch_adamw, &shape);
    }
}

typedef struct sgd_shape {
    gs_sgd step;
    bool has_momentum;
    size_t count;
    int factor;  // its tensor; 0: none
} sgd_shape;

static void launch_sgd(const kernel_run *run) {
    const sgd_shape *shape = run->shape;
    gs_stream_set_factor(run->stream, shape->factor ? run->at[shape->factor] : NULL);
    run->kernels->sgd(run->stream, run->at[0], shape->has_momentum ? run->at[2] : NULL, run->at[1],
                      &shape->step, shape->count);
    gs_stream_set_factor(run->stream, NULL);
}

static sgd_shape draw_sgd(kernel_test *test, int round) {
    sgd_shape shape = {.count = kernel_count(test, MOST), .has_momentum = round % 4 > 0};
    shape.step = (gs_sgd){.lr = kernel_real(test, 1e-3f, 1.0f),
                          .momentum = round % 2 ? 0.9f : 0.0f,
                          .dampening = round % 3 ? 0.0f : 0.1f,
                          .weight_decay = kernel_real(test, 0.0f, 0.1f),
                          .grad_scale = kernel_real(test, 0.1f, 1.0f),
                          .nesterov = kernel_random(test, 2),
                          .first_step = kernel_random(test, 4) == 0};
    kernel_begin(test, "count %zu, momentum %g of %d, nesterov %d, first %d", shape.count,
                 (double)shape.step.momentum, shape.has_momentum, shape.step.nesterov,
                 shape.step.first_step);
    return shape;
}

static void test_sgd(kernel_test *test) {
    for (int round = 0; round < 32; round++) {
        sgd_shape shape = draw_sgd(test, round);
        kernel_inout(test, "param", GS_FP32, shape.count, KERNEL_UNIT, KERNEL_SAME_BITS);
        kernel_input(test, "grad", GS_FP32, shape.count, KERNEL_WIDE);
        if (shape.has_momentum)
            kernel_inout(test, "momentum", GS_FP32, shape.count, KERNEL_WIDE, KERNEL_SAME_BITS);
        if (round % NUM_FACTORS) shape.factor = name_factor(test, round % NUM_FACTORS);
        kernel_check(test, launch_sgd, &shape);
    }
}

// ---- beside

static void launch_adamw_beside(const kernel_run *run) {
    const adamw_shape *shape = run->shape;
    run->kernels->adamw_beside(run->stream, run->at[0], run->at[1], run->at[2], run->at[3],
                               run->at[4], run->at[5], run->at[6], &shape->step, shape->count);
}

static void test_adamw_beside(kernel_test *test) {
    for (int round = 0; round < 24; round++) {
        adamw_shape shape = {.step = draw_adamw(test), .count = kernel_count(test, MOST)};
        kernel_begin(test, "count %zu, decoupled %d", shape.count, shape.step.decoupled);
        kernel_inout(test, "param", GS_FP32, shape.count, KERNEL_UNIT, KERNEL_SAME_BITS);
        kernel_output(test, "was", GS_FP32, shape.count, KERNEL_SAME_BITS);
        kernel_output(test, "next_m", GS_FP32, shape.count, KERNEL_SAME_BITS);
        kernel_output(test, "next_v", GS_FP32, shape.count, KERNEL_SAME_BITS);
        kernel_input(test, "m", GS_FP32, shape.count, KERNEL_WIDE);
        kernel_input(test, "v", GS_FP32, shape.count, KERNEL_POSITIVE);
        kernel_input(test, "grad", GS_FP32, shape.count, round % 4 ? KERNEL_WIDE : KERNEL_SPECIAL);
        kernel_check(test, launch_adamw_beside, &shape);
    }
}

static void launch_sgd_beside(const kernel_run *run) {
    const sgd_shape *shape = run->shape;
    run->kernels->sgd_beside(
        run->stream, run->at[0], run->at[1], shape->has_momentum ? run->at[3] : NULL,
        shape->has_momentum ? run->at[4] : NULL, run->at[2], &shape->step, shape->count);
}

static void test_sgd_beside(kernel_test *test) {
    for (int round = 0; round < 32; round++) {
        sgd_shape shape = draw_sgd(test, round);
        kernel_inout(test, "param", GS_FP32, shape.count, KERNEL_UNIT, KERNEL_SAME_BITS);
        kernel_output(test, "was", GS_FP32, shape.count, KERNEL_SAME_BITS);
        kernel_input(test, "grad", GS_FP32, shape.count, KERNEL_WIDE);
        if (shape.has_momentum) {
            kernel_output(test, "next_momentum", GS_FP32, shape.count, KERNEL_SAME_BITS);
            kernel_input(test, "momentum", GS_FP32, shape.count, KERNEL_WIDE);
        }
        kernel_check(test, launch_sgd_beside, &shape);
    }
}

// ---- many: tensor 0 is the table, the items' tensors follow

typedef struct many_shape {
    size_t num_items, counts[MOST_ITEMS];
    gs_dtype to, from;
    float scale;
    gs_adamw step;
    int forms[MOST_ITEMS];  // of adamw: 0 fp32, 1 fp32 with its bf16, 2 halves
    float decays[MOST_ITEMS];
    int factor;  // its tensor; 0: none
} many_shape;

static many_shape draw_many(kernel_test *test, const char *what) {
    many_shape shape = {.num_items = (size_t)kernel_random(test, MOST_ITEMS + 1)};
    shape.scale = kernel_real(test, -2.0f, 2.0f);
    shape.step = draw_adamw(test);
    size_t total = 0;
    for (size_t i = 0; i < shape.num_items; i++) {
        shape.counts[i] = kernel_count(test, MOST / 4);
        shape.forms[i] = (int)kernel_random(test, 3);
        shape.decays[i] = kernel_real(test, 0.0f, 0.2f);
        total += shape.counts[i];
    }
    kernel_begin(test, "%s of %zu items, %zu elements", what, shape.num_items, total);
    return shape;
}

static void launch_cast_many(const kernel_run *run) {
    const many_shape *shape = run->shape;
    gs_cast_item *items = run->at[0];
    for (size_t i = 0; i < shape->num_items; i++)
        items[i] = (gs_cast_item){run->at[1 + 2 * i], run->at[2 + 2 * i], shape->counts[i]};
    run->kernels->cast_many(run->stream, items, shape->num_items, shape->to, shape->from,
                            shape->scale);
}

static void test_cast_many(kernel_test *test) {
    static const gs_dtype floats[] = {GS_FP32, GS_FP64, GS_FP16, GS_BF16};
    for (int pair = 0; pair < 32; pair++) {
        many_shape shape = draw_many(test, "casts");
        shape.to = floats[pair % 4];
        shape.from = floats[pair / 4 % 4];
        kernel_table(test, MOST_ITEMS * sizeof(gs_cast_item));
        for (size_t i = 0; i < shape.num_items; i++) {
            kernel_output(test, "to", shape.to, shape.counts[i], KERNEL_SAME_BITS);
            kernel_input(test, "from", shape.from, shape.counts[i], KERNEL_SPECIAL);
        }
        kernel_check(test, launch_cast_many, &shape);
    }
}

static void launch_sum_squares_many(const kernel_run *run) {
    const many_shape *shape = run->shape;
    gs_square_item *items = run->at[0];
    for (size_t i = 0; i < shape->num_items; i++)
        items[i] = (gs_square_item){run->at[2 + 2 * i], run->at[1 + 2 * i], shape->counts[i]};
    run->kernels->sum_squares_many(run->stream, items, shape->num_items);
}

static void name_squares(kernel_test *test, const many_shape *shape) {
    kernel_table(test, MOST_ITEMS * sizeof(gs_square_item));
    for (size_t i = 0; i < shape->num_items; i++) {
        kernel_number(test, "sum", GS_FP64, sum_bound);
        kernel_input(test, "from", GS_FP32, shape->counts[i], KERNEL_WIDE);
    }
}

static void test_sum_squares_many(kernel_test *test) {
    for (int round = 0; round < 24; round++) {
        many_shape shape = draw_many(test, "sums of squares");
        name_squares(test, &shape);
        kernel_check(test, launch_sum_squares_many, &shape);
    }
}

static void launch_adamw_many(const kernel_run *run) {
    const many_shape *shape = run->shape;
    gs_adamw_item *items = run->at[0];
    for (size_t i = 0; i < shape->num_items; i++) {
        void *const *at = run->at + 1 + 5 * i;
        const int form = shape->forms[i];
        items[i] = (gs_adamw_item){.param = form == 2 ? NULL : at[0],
                                   .value = form ? at[1] : NULL,
                                   .remainder = form == 2 ? at[0] : NULL,
                                   .m = at[2],
                                   .v = at[3],
                                   .grad = at[4],
                                   .count = shape->counts[i],
                                   .weight_decay = shape->decays[i],
                                   .correction1 = 0.5 / (double)(i + 1),
                                   .correction2 = 0.25 / (double)(i + 1)};
    }
    gs_stream_set_factor(run->stream, shape->factor ? run->at[shape->factor] : NULL);
    run->kernels->adamw_many(run->stream, items, shape->num_items, &shape->step);
    gs_stream_set_factor(run->stream, NULL);
}

// What an update leaves out keeps what was there.
static void name_adamw(kernel_test *test, const many_shape *shape, size_t i, bool is_left_out) {
    const size_t count = shape->counts[i];
    if (shape->forms[i] == 2) {
        // Halves of numbers in range: sixteen bits of any pattern below a bf16 of one.
        kernel_inout(test, "remainder", GS_BF16, count, KERNEL_SPECIAL, KERNEL_SAME_BITS);
        kernel_inout(test, "value", GS_BF16, count, KERNEL_UNIT, KERNEL_SAME_BITS);
    } else {
        kernel_inout(test, "param", GS_FP32, count, KERNEL_UNIT, KERNEL_SAME_BITS);
        if (shape->forms[i] == 1 && is_left_out) {
            kernel_inout(test, "value", GS_BF16, count, KERNEL_UNIT, KERNEL_SAME_BITS);
        } else if (shape->forms[i] == 1) {
            kernel_output(test, "value", GS_BF16, count, KERNEL_SAME_BITS);
        } else {
            kernel_input(test, "nothing", GS_BF16, 0, KERNEL_ZEROS);
        }
    }
    kernel_inout(test, "m", GS_FP32, count, KERNEL_WIDE, KERNEL_SAME_BITS);
    kernel_inout(test, "v", GS_FP32, count, KERNEL_POSITIVE, KERNEL_SAME_BITS);
    kernel_input(test, "grad", GS_FP32, count, KERNEL_WIDE);
}

static void test_adamw_many(kernel_test *test) {
    for (int round = 0; round < 24; round++) {
        many_shape shape = draw_many(test, "steps");
        kernel_table(test, MOST_ITEMS * sizeof(gs_adamw_item));
        const int kind = round % NUM_FACTORS;
        for (size_t i = 0; i < shape.num_items; i++) name_adamw(test, &shape, i, kind == FACTOR_LEAVES_OUT);
        if (kind) shape.factor = name_factor(test, kind);
        kernel_check(test, launch_adamw_many, &shape);
    }
}

// ---- halves: any pattern of bits is a master, and none is a number to be compared

static void fill_patterns(kernel_test *test, int tensor, size_t bytes) {
    uint8_t *data = kernel_data(test, tensor);
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)kernel_random(test, 256);
}

static void launch_split_master(const kernel_run *run) {
    const size_t *count = run->shape;
    run->kernels->split_master(run->stream, run->at[0], run->at[1], run->at[2], *count);
}

static void test_split_master(kernel_test *test) {
    for (int round = 0; round < 16; round++) {
        const size_t count = kernel_count(test, MOST / 4);
        kernel_begin(test, "count %zu", count);
        kernel_output(test, "value", GS_U8, 2 * count, KERNEL_SAME_BITS);
        kernel_output(test, "remainder", GS_U8, 2 * count, KERNEL_SAME_BITS);
        kernel_align(test);
        fill_patterns(test, kernel_input(test, "master", GS_FP32, count, KERNEL_ZEROS), 4 * count);
        kernel_check(test, launch_split_master, &count);
    }
}

static void launch_join_master(const kernel_run *run) {
    const size_t *count = run->shape;
    run->kernels->join_master(run->stream, run->at[0], run->at[1], run->at[2], *count);
}

static void test_join_master(kernel_test *test) {
    for (int round = 0; round < 16; round++) {
        const size_t count = kernel_count(test, MOST / 4);
        kernel_begin(test, "count %zu", count);
        kernel_output(test, "master", GS_I32, count, KERNEL_SAME_BITS);
        fill_patterns(test, kernel_input(test, "value", GS_BF16, count, KERNEL_ZEROS), 2 * count);
        fill_patterns(test, kernel_input(test, "remainder", GS_BF16, count, KERNEL_ZEROS),
                      2 * count);
        kernel_check(test, launch_join_master, &count);
    }
}

static const kernel_case cases[] = {KERNEL_CASE(grad_factor),
                                    KERNEL_CASE(adamw),
                                    KERNEL_CASE(sgd),
                                    KERNEL_CASE(cast_many),
                                    KERNEL_CASE(adamw_many),
                                    KERNEL_CASE(split_master),
                                    KERNEL_CASE(join_master),
                                    KERNEL_CASE(sum_squares_many),
                                    KERNEL_CASE(adamw_beside),
                                    KERNEL_CASE(sgd_beside)};
const kernel_family kernel_family_optim = {cases, sizeof cases / sizeof *cases};
