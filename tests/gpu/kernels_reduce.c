// Casts, roundings and reductions: the CPU's bits, for every type and every way to write a sum.
#include "tests/gpu/kernel_case.h"

#include <string.h>

#define MOST ((size_t)1 << 21)

// ---- cast and round

typedef struct cast_shape {
    gs_dtype to, from;
    float scale;
    size_t count;
} cast_shape;

static const gs_dtype floats[] = {GS_FP32, GS_FP64, GS_FP16, GS_BF16};

static void launch_cast(const kernel_run *run) {
    const cast_shape *shape = run->shape;
    run->kernels->cast(run->stream, run->at[0], shape->to, run->at[1], shape->from, shape->scale,
                       shape->count);
}

static void launch_cast_in_place(const kernel_run *run) {
    const cast_shape *shape = run->shape;
    run->kernels->cast(run->stream, run->at[0], shape->to, run->at[0], shape->from, shape->scale,
                       shape->count);
}

static void begin_cast(kernel_test *test, const cast_shape *shape, const char *what) {
    kernel_begin(test, "%s %s to %s, scale %g, count %zu", what, gs_dtype_name(shape->from),
                 gs_dtype_name(shape->to), (double)shape->scale, shape->count);
}

static void test_cast(kernel_test *test) {
    for (int pair = 0; pair < 64; pair++) {
        cast_shape shape = {floats[pair % 4], floats[pair / 4 % 4],
                            pair % 3 ? kernel_real(test, -2.0f, 2.0f) : 1.0f,
                            kernel_count(test, MOST)};
        begin_cast(test, &shape, "cast");
        kernel_output(test, "out", shape.to, shape.count, KERNEL_SAME_BITS);
        kernel_input(test, "in", shape.from, shape.count, KERNEL_SPECIAL);
        kernel_check(test, launch_cast, &shape);
        if (shape.to != shape.from) continue;
        begin_cast(test, &shape, "cast in place");
        kernel_inout(test, "out", shape.to, shape.count, KERNEL_SPECIAL, KERNEL_SAME_BITS);
        kernel_check(test, launch_cast_in_place, &shape);
    }
    cast_shape wrong = {GS_BF16, GS_FP32, 1.0f, 100};
    begin_cast(test, &wrong, "cast in place");
    kernel_inout(test, "out", GS_FP32, 100, KERNEL_WIDE, KERNEL_SAME_BITS);
    kernel_check_fails(test, launch_cast_in_place, &wrong, "cannot be done in place");
    wrong.to = GS_I32;
    begin_cast(test, &wrong, "cast");
    kernel_inout(test, "out", GS_I32, 100, KERNEL_UNIT, KERNEL_SAME_BITS);
    kernel_input(test, "in", GS_FP32, 100, KERNEL_UNIT);
    kernel_check_fails(test, launch_cast, &wrong, "not between float types");
}

typedef struct round_shape {
    gs_dtype dtype;
    bool accumulate;
    size_t count;
} round_shape;

static void launch_round(const kernel_run *run) {
    const round_shape *shape = run->shape;
    run->kernels->round(run->stream, run->at[0], run->at[1], shape->dtype, shape->count,
                        shape->accumulate);
}

static void launch_round_in_place(const kernel_run *run) {
    const round_shape *shape = run->shape;
    run->kernels->round(run->stream, run->at[0], run->at[0], shape->dtype, shape->count,
                        shape->accumulate);
}

static void test_round(kernel_test *test) {
    for (int round = 0; round < 32; round++) {
        round_shape shape = {round % 2 ? GS_BF16 : GS_FP16, round / 2 % 2, kernel_count(test, MOST)};
        kernel_begin(test, "round to %s, accumulate %d, count %zu", gs_dtype_name(shape.dtype),
                     shape.accumulate, shape.count);
        if (shape.accumulate) {
            kernel_inout(test, "out", GS_FP32, shape.count, KERNEL_WIDE, KERNEL_SAME_BITS);
        } else {
            kernel_output(test, "out", GS_FP32, shape.count, KERNEL_SAME_BITS);
        }
        kernel_input(test, "in", GS_FP32, shape.count, KERNEL_SPECIAL);
        kernel_check(test, launch_round, &shape);
        kernel_begin(test, "round in place to %s, accumulate %d, count %zu",
                     gs_dtype_name(shape.dtype), shape.accumulate, shape.count);
        kernel_inout(test, "out", GS_FP32, shape.count, KERNEL_SPECIAL, KERNEL_SAME_BITS);
        kernel_check(test, launch_round_in_place, &shape);
    }
}

// ---- reduce

// The first num_outputs tensors are outputs; with `in_place` the last of them is also the first input.
typedef struct reduce_shape {
    gs_reduction reduction;
    uint8_t merges[GS_REDUCE_MAX_INPUTS];
    bool has_merges, in_place;
} reduce_shape;

static void launch_reduce(const kernel_run *run) {
    const reduce_shape *shape = run->shape;
    const void *inputs[GS_REDUCE_MAX_INPUTS];
    gs_reduction reduction = shape->reduction;
    const int first = reduction.num_outputs - (shape->in_place ? 1 : 0);
    // More inputs than tensors are the same ones again.
    const int num_tensors = reduction.num_inputs < 20 ? reduction.num_inputs : 20;
    for (int k = 0; k < reduction.num_inputs; k++) inputs[k] = run->at[first + k % num_tensors];
    reduction.outputs = run->at;
    reduction.inputs = inputs;
    reduction.merges = shape->has_merges ? shape->merges : NULL;
    run->kernels->reduce(run->stream, &reduction);
}

// Any program that leaves one value: merges as many as chance says, and what is left at the end.
static void draw_merges(kernel_test *test, reduce_shape *shape) {
    int depth = 0;
    for (int k = 0; k < shape->reduction.num_inputs; k++) {
        depth++;
        const bool is_last = k == shape->reduction.num_inputs - 1;
        const uint64_t most = (uint64_t)depth;
        shape->merges[k] = (uint8_t)(is_last ? depth - 1 : (int)kernel_random(test, most));
        depth -= shape->merges[k];
    }
    shape->has_merges = true;
}

static reduce_shape draw_reduction(kernel_test *test, int round) {
    static const gs_dtype dtypes[] = {GS_FP32, GS_BF16, GS_FP16, GS_FP64, GS_I64, GS_I32};
    static const int inputs[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 64};
    reduce_shape shape = {0};
    gs_reduction *r = &shape.reduction;
    r->dtype = dtypes[round % 6];
    r->op = (gs_reduce_op)(round / 6 % 2 ? 1 + kernel_random(test, 2) : GS_OP_SUM);
    r->num_inputs = inputs[kernel_random(test, sizeof inputs / sizeof *inputs)];
    r->num_outputs = 1 + (int)kernel_random(test, 3);
    r->count = kernel_count(test, MOST / 8);
    const bool is_integer = r->dtype == GS_I64 || r->dtype == GS_I32;
    r->scale = is_integer || kernel_random(test, 2) ? 1.0 : (double)kernel_real(test, 0.01f, 1.0f);
    shape.in_place = kernel_random(test, 2);
    if (kernel_random(test, 2)) draw_merges(test, &shape);
    return shape;
}

// Plain sums of fp32 and fp64 as if 16 bits had been sent.
static reduce_shape draw_wire_sum(kernel_test *test, int round) {
    reduce_shape shape = draw_reduction(test, round);
    shape.has_merges = false;
    shape.reduction.op = GS_OP_SUM;
    shape.reduction.dtype = round % 2 ? GS_FP64 : GS_FP32;
    shape.reduction.wire_dtype = round / 2 % 2 ? GS_FP16 : GS_BF16;
    shape.reduction.wire_scale = round / 4 % 2 ? kernel_real(test, 0.1f, 1.0f) : 1.0f;
    shape.reduction.wire_scale_after = round / 8 % 2;
    return shape;
}

static void name_reduction(kernel_test *test, const reduce_shape *shape) {
    const gs_reduction *r = &shape->reduction;
    kernel_begin(test, "%s by %s, operation %d, %d inputs, %d outputs%s%s, scale %g, count %zu",
                 gs_dtype_name(r->dtype), gs_dtype_name(r->wire_dtype), (int)r->op, r->num_inputs, r->num_outputs,
                 shape->has_merges ? ", merges" : "", shape->in_place ? ", in place" : "", r->scale,
                 r->count);
    const int num_tensors = r->num_inputs < 20 ? r->num_inputs : 20;
    const kernel_fill fill =
        r->op == GS_OP_SUM && !r->wire_dtype ? KERNEL_WIDE : KERNEL_SPECIAL;
    for (int k = 0; k < r->num_outputs; k++) {
        if (shape->in_place && k == r->num_outputs - 1) {
            kernel_inout(test, "first", r->dtype, r->count, fill, KERNEL_SAME_BITS);
        } else {
            kernel_output(test, "output", r->dtype, r->count, KERNEL_SAME_BITS);
        }
    }
    for (int k = shape->in_place; k < num_tensors; k++)
        kernel_input(test, "input", r->dtype, r->count, fill);
}

static void test_reduce(kernel_test *test) {
    for (int round = 0; round < 96; round++) {
        reduce_shape shape = draw_reduction(test, round);
        name_reduction(test, &shape);
        kernel_check(test, launch_reduce, &shape);
    }
    for (int round = 0; round < 32; round++) {
        reduce_shape shape = draw_wire_sum(test, round);
        name_reduction(test, &shape);
        kernel_check(test, launch_reduce, &shape);
    }
    reduce_shape wrong = draw_reduction(test, 0);
    wrong.reduction.num_inputs = 3;
    wrong.has_merges = true;
    memset(wrong.merges, 0, sizeof wrong.merges);
    wrong.in_place = false;
    name_reduction(test, &wrong);
    kernel_check_fails(test, launch_reduce, &wrong, "do not leave one value");
}

static const kernel_case cases[] = {KERNEL_CASE(cast), KERNEL_CASE(round), KERNEL_CASE(reduce)};
const kernel_family kernel_family_reduce = {cases, sizeof cases / sizeof *cases};
