#include "gradsync/optim/mixed_precision.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "gradsync/optim/optimizer.h"
#include "tests/support/device_memory.h"

#define NUM_PARAMS 3
#define MOST 700

static const int64_t counts[NUM_PARAMS] = {MOST, 1, 33};

typedef struct fixture {
    gs_device *device;
    gs_param_spec specs[NUM_PARAMS];
    float *masters[NUM_PARAMS];
    void *grads[NUM_PARAMS];
    gs_mixed_precision *mixed;
    gs_dtype dtype;
} fixture;

static size_t bytes_of(size_t param) {
    return (size_t)counts[param] * sizeof(float);
}

static void read_floats(const fixture *f, float *out, const float *from, size_t param) {
    device_memory_read(f->device, out, from, bytes_of(param));
}

static void write_floats(const fixture *f, float *to, const float *values, size_t param) {
    device_memory_write(f->device, to, values, bytes_of(param));
}

static void draw(float out[MOST], size_t param) {
    gs_random_fill_normal(out, (size_t)counts[param], (gs_random_key){.seed = param}, 0, 0, 1);
}

static void open_tensors(fixture *f, gs_dtype dtype) {
    *f = (fixture){.dtype = dtype, .device = test_device_open(1)};
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        float drawn[MOST];
        f->specs[p] = gs_param_spec_make(dtype, counts[p], 0, "p%zu", p);
        f->masters[p] = device_memory_alloc(f->device, bytes_of(p));
        f->grads[p] = device_memory_alloc(f->device, bytes_of(p));
        draw(drawn, p);
        write_floats(f, f->masters[p], drawn, p);
    }
}

static void open_fixture(fixture *f, gs_dtype dtype, bool adds_passes) {
    open_tensors(f, dtype);
    gs_status status = gs_mixed_precision_create(
        &f->mixed, &(gs_mixed_precision_options){.dtype = dtype,
                                                 .params = f->specs,
                                                 .num_params = NUM_PARAMS,
                                                 .masters = f->masters,
                                                 .keeps_params = true,
                                                 .keeps_values = true,
                                                 .adds_passes = adds_passes,
                                                 .device = f->device});
    assert_string_equal(status.message, "");
}

static void open_split(fixture *f) {
    open_tensors(f, GS_BF16);
    gs_status status =
        gs_mixed_precision_create(&f->mixed, &(gs_mixed_precision_options){.dtype = GS_BF16,
                                                                           .params = f->specs,
                                                                           .num_params = NUM_PARAMS,
                                                                           .splits_masters = true,
                                                                           .device = f->device});
    assert_string_equal(status.message, "");
}

static void close_fixture(fixture *f) {
    gs_mixed_precision_destroy(f->mixed);
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        device_memory_free(f->device, f->masters[p]);
        device_memory_free(f->device, f->grads[p]);
    }
    test_device_close(f->device);
}

static uint16_t narrow(gs_dtype dtype, float value) {
    return dtype == GS_FP16 ? gs_fp32_to_fp16(value) : gs_fp32_to_bf16(value);
}

static float rounded(gs_dtype dtype, float value) {
    uint16_t bits = narrow(dtype, value);
    return dtype == GS_FP16 ? gs_fp16_to_fp32(bits) : gs_bf16_to_fp32(bits);
}

static void params_and_values_are_the_rounded_masters(void **state) {
    (void)state;
    const gs_dtype dtypes[] = {GS_FP16, GS_BF16};
    for (int d = 0; d < 2; d++) {
        fixture f;
        open_fixture(&f, dtypes[d], false);
        gs_mixed_precision_write_back(f.mixed);
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            float masters[MOST], values[MOST];
            uint16_t params[MOST];
            read_floats(&f, masters, f.masters[p], p);
            read_floats(&f, values, gs_mixed_precision_values(f.mixed)[p], p);
            device_memory_read(f.device, params, gs_mixed_precision_params(f.mixed)[p],
                               bytes_of(p) / 2);
            for (int64_t i = 0; i < counts[p]; i++) {
                assert_int_equal(params[i], narrow(f.dtype, masters[i]));
                float wanted = rounded(f.dtype, masters[i]);
                assert_memory_equal(&values[i], &wanted, sizeof wanted);
            }
        }
        close_fixture(&f);
    }
}

// An update below half a unit of the 16-bit parameter is lost there, and not in the master.
static void masters_keep_updates_that_params_cannot_hold(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BF16, false);
    for (size_t p = 0; p < NUM_PARAMS; p++) f.specs[p].dtype = GS_FP32;
    gs_optimizer *optimizer;
    gs_status status = gs_optimizer_create(&optimizer, &(gs_optimizer_options){.kind = "sgd"},
                                           f.specs, NULL, NUM_PARAMS, f.device);
    assert_string_equal(status.message, "");
    float master = 1, grad = -1, value;
    write_floats(&f, f.masters[1], &master, 1);
    write_floats(&f, f.grads[1], &grad, 1);
    gs_mixed_precision_write_back(f.mixed);
    for (int step = 1; step <= 8; step++) {
        status = gs_mixed_precision_step(f.mixed, optimizer, f.grads, NULL, 0x1p-9f, 1);
        assert_string_equal(status.message, "");
        read_floats(&f, &master, f.masters[1], 1);
        read_floats(&f, &value, gs_mixed_precision_values(f.mixed)[1], 1);
        assert_true(master == 1 + (float)step * 0x1p-9f);
        assert_true(value == rounded(GS_BF16, master));
    }
    assert_true(value == 1 + 0x1p-6f);  // the ninth bit alone would never have moved it
    gs_optimizer_destroy(optimizer);
    close_fixture(&f);
}

// 400 passes of 1 + 1/512: bf16 sums stop growing at 256, the main gradient does not.
static void passes_are_rounded_and_their_sum_is_not(void **state) {
    (void)state;
    fixture f;
    float ones[MOST], sums[MOST];
    for (int i = 0; i < MOST; i++) ones[i] = 1 + 0x1p-9f;
    open_fixture(&f, GS_BF16, true);
    for (int pass = 0; pass < 400; pass++) {
        bool accumulate = pass > 0;
        void *const *grads = gs_mixed_precision_pass_grads(f.mixed, f.grads, accumulate);
        assert_true((grads == f.grads) == !accumulate);
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            write_floats(&f, grads[p], ones, p);
            gs_mixed_precision_finish_grad(f.mixed, f.grads, accumulate, p);
        }
    }
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        read_floats(&f, sums, f.grads[p], p);
        for (int64_t i = 0; i < counts[p]; i++) assert_true(sums[i] == 400);
    }
    close_fixture(&f);
}

static void gradient_beyond_fp16_becomes_infinite(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_FP16, true);
    for (int pass = 0; pass < 2; pass++) {
        void *const *grads = gs_mixed_precision_pass_grads(f.mixed, f.grads, pass > 0);
        float written[MOST];
        for (int64_t i = 0; i < counts[0]; i++) written[i] = 65504;
        written[40] = pass ? -65520 : 1;
        write_floats(&f, grads[0], written, 0);
        gs_mixed_precision_finish_grad(f.mixed, f.grads, pass > 0, 0);
    }
    float sums[MOST];
    read_floats(&f, sums, f.grads[0], 0);
    assert_true(isinf(sums[40]));
    assert_true(sums[41] == 2 * 65504.0f);  // the sum is fp32: no overflow
    close_fixture(&f);
}

// What is written comes back to the bit, in any pieces; params are the upper halves, rounded with
// ties upwards in magnitude.
static void split_masters_hold_every_bit(void **state) {
    (void)state;
    fixture f;
    open_split(&f);
    assert_null(gs_mixed_precision_values(f.mixed));
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        float drawn[MOST], read[MOST];
        uint16_t params[MOST];
        size_t count = (size_t)counts[p], first = count / 3;
        draw(drawn, p);
        gs_status status = gs_mixed_precision_write(f.mixed, p, 0, drawn, count);
        assert_string_equal(status.message, "");
        status = gs_mixed_precision_read(f.mixed, read, p, first, count - first);
        assert_string_equal(status.message, "");
        assert_memory_equal(read, drawn + first, (count - first) * sizeof *read);
        device_memory_read(f.device, params, gs_mixed_precision_params(f.mixed)[p],
                           count * sizeof *params);
        for (size_t i = 0; i < count; i++) {
            float value = gs_bf16_to_fp32(params[i]);
            assert_true(fabsf(value - drawn[i]) <= fabsf(drawn[i]) * 0x1p-8f);
        }
    }
    float none;
    assert_int_equal(gs_mixed_precision_read(f.mixed, &none, 1, 1, 1).code, GS_INVALID_ARGUMENT);
    assert_int_equal(gs_mixed_precision_write(f.mixed, NUM_PARAMS, 0, &none, 0).code,
                     GS_INVALID_ARGUMENT);
    close_fixture(&f);
}

static void split_masters_train_like_whole_ones(void **state) {
    (void)state;
    const gs_optimizer_options options = {
        .kind = "adamw", .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
    fixture whole, split;
    gs_optimizer *optimizers[2];
    gs_param_spec specs[NUM_PARAMS];
    for (size_t p = 0; p < NUM_PARAMS; p++)
        specs[p] = gs_param_spec_make(GS_FP32, counts[p], 0, "p%zu", p);
    open_fixture(&whole, GS_BF16, false);
    open_split(&split);
    for (int i = 0; i < 2; i++) {
        gs_status status = gs_optimizer_create(&optimizers[i], &options, specs, NULL, NUM_PARAMS,
                                               i ? split.device : whole.device);
        assert_string_equal(status.message, "");
    }
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        float drawn[MOST];
        draw(drawn, p);
        gs_status status = gs_mixed_precision_write(split.mixed, p, 0, drawn, (size_t)counts[p]);
        assert_string_equal(status.message, "");
    }
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < 2; i++) {
            fixture *f = i ? &split : &whole;
            for (size_t p = 0; p < NUM_PARAMS; p++) {
                float grad[MOST];
                gs_random_fill_normal(grad, (size_t)counts[p],
                                      (gs_random_key){.seed = 9, .stream = (uint64_t)step}, p, 0,
                                      1);
                write_floats(f, f->grads[p], grad, p);
            }
            gs_status status =
                gs_mixed_precision_step(f->mixed, optimizers[i], f->grads, NULL, 0.01f, 0.5f);
            assert_string_equal(status.message, "");
        }
    }
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        float a[MOST], b[MOST];
        read_floats(&whole, a, whole.masters[p], p);
        gs_status status = gs_mixed_precision_read(split.mixed, b, p, 0, (size_t)counts[p]);
        assert_string_equal(status.message, "");
        assert_memory_equal(a, b, bytes_of(p));
    }
    size_t bytes;
    assert_non_null(gs_mixed_precision_halves(split.mixed, &bytes));
    assert_null(gs_mixed_precision_halves(whole.mixed, &bytes));
    gs_optimizer_destroy(optimizers[0]);
    gs_optimizer_destroy(optimizers[1]);
    close_fixture(&whole);
    close_fixture(&split);
}

// Two ranks that have masters of a part each, cut inside parameters, against one that has all; each
// rank's params are whole, and what belongs to the other is left alone.
static void expect_parts_train_like_a_whole(bool splits) {
    const gs_optimizer_options kind = {
        .kind = "adamw", .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
    fixture whole;
    if (splits)
        open_split(&whole);
    else
        open_fixture(&whole, GS_BF16, false);
    gs_param_spec specs[NUM_PARAMS];
    gs_segment_tensor tensors[NUM_PARAMS];
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        float drawn[MOST];
        draw(drawn, p);
        gs_status status = gs_mixed_precision_write(whole.mixed, p, 0, drawn, (size_t)counts[p]);
        assert_string_equal(status.message, "");
        write_floats(&whole, whole.grads[p], drawn, p);
        specs[p] = gs_param_spec_make(GS_FP32, counts[p], 0, "p%zu", p);
        tensors[p] = (gs_segment_tensor){specs[p].name, (size_t)counts[p], sizeof(float)};
    }
    gs_optimizer *one;
    gs_status status = gs_optimizer_create(&one, &kind, specs, NULL, NUM_PARAMS, whole.device);
    assert_string_equal(status.message, "");
    for (int step = 0; step < 3 && !status.code; step++)
        status = gs_mixed_precision_step(whole.mixed, one, whole.grads, NULL, 0.01f, 1);
    assert_string_equal(status.message, "");

    for (size_t rank = 0; rank < 2; rank++) {
        gs_segment segments[NUM_PARAMS];
        size_t n = gs_segments_of_part(segments, tensors, NUM_PARAMS, rank, 2, 1);
        gs_optimizer_options part_kind = kind;
        part_kind.segments = segments;
        part_kind.num_segments = n;
        gs_mixed_precision_options options = {.dtype = GS_BF16,
                                              .params = whole.specs,
                                              .num_params = NUM_PARAMS,
                                              .splits_masters = splits,
                                              .keeps_params = true,
                                              .device = whole.device,
                                              .segments = segments,
                                              .num_segments = n};
        void *grads[NUM_PARAMS];
        float *masters[NUM_PARAMS], drawn[MOST], wanted[MOST], found[MOST];
        for (size_t i = 0; i < n; i++) {
            masters[i] = device_memory_alloc(whole.device, MOST * sizeof(float));
            grads[i] = (float *)whole.grads[segments[i].tensor] + segments[i].first;
        }
        if (!splits) options.masters = masters;
        gs_mixed_precision *part;
        gs_optimizer *optimizer;
        status = gs_mixed_precision_create(&part, &options);
        assert_string_equal(status.message, "");
        status = gs_optimizer_create(&optimizer, &part_kind, specs, NULL, NUM_PARAMS, whole.device);
        for (size_t i = 0; i < n && !status.code; i++) {
            draw(drawn, segments[i].tensor);
            status = gs_mixed_precision_write(part, segments[i].tensor, segments[i].first,
                                              drawn + segments[i].first, segments[i].count);
        }
        assert_string_equal(status.message, "");
        for (int step = 0; step < 3 && !status.code; step++)
            status = gs_mixed_precision_step(part, optimizer, grads, NULL, 0.01f, 1);
        assert_string_equal(status.message, "");
        for (size_t i = 0; i < n; i++) {
            const gs_segment *s = &segments[i];
            status = gs_mixed_precision_read(whole.mixed, wanted, s->tensor, s->first, s->count);
            assert_string_equal(status.message, "");
            status = gs_mixed_precision_read(part, found, s->tensor, s->first, s->count);
            assert_string_equal(status.message, "");
            assert_memory_equal(wanted, found, s->count * sizeof *found);
        }
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            uint16_t all[MOST], ours[MOST];
            device_memory_read(whole.device, all, gs_mixed_precision_params(whole.mixed)[p],
                               (size_t)counts[p] * sizeof *all);
            device_memory_read(whole.device, ours, gs_mixed_precision_params(part)[p],
                               (size_t)counts[p] * sizeof *ours);
            for (size_t e = 0; e < (size_t)counts[p]; e++) {
                bool is_ours = false;
                for (size_t i = 0; i < n; i++)
                    is_ours =
                        is_ours || gs_segment_intersect((gs_segment){p, e, 1}, segments[i]).count;
                assert_int_equal(ours[e], is_ours ? all[e] : 0);
            }
        }
        size_t last = NUM_PARAMS - 1;  // the other rank has an end of it, or the first parameter
        status = gs_mixed_precision_read(part, found, rank ? 0 : last, 0,
                                         (size_t)counts[rank ? 0 : last]);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        gs_optimizer_destroy(optimizer);
        gs_mixed_precision_destroy(part);
        for (size_t i = 0; i < n; i++) device_memory_free(whole.device, masters[i]);
    }
    gs_optimizer_destroy(one);
    close_fixture(&whole);
}

static void parts_of_masters_train_like_the_whole(void **state) {
    (void)state;
    expect_parts_train_like_a_whole(false);
    expect_parts_train_like_a_whole(true);
}

// Masters in a file are enough for params of others: they have the bits that owners give them, ties included.
static void params_of_others_are_rounded_as_by_their_owners(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        bool splits = kind == 2;
        gs_dtype dtype = kind ? GS_BF16 : GS_FP16;
        fixture f;
        float drawn[MOST];
        void *places[NUM_PARAMS];
        uint16_t wanted[MOST], found[MOST];
        gs_mixed_precision *other;
        const gs_segment nothing = {0};
        open_tensors(&f, dtype);
        for (size_t p = 0; p < NUM_PARAMS; p++)
            places[p] = device_memory_alloc(f.device, bytes_of(p) / 2);
        gs_mixed_precision_options options = {.dtype = dtype,
                                              .params = f.specs,
                                              .num_params = NUM_PARAMS,
                                              .masters = splits ? NULL : f.masters,
                                              .splits_masters = splits,
                                              .keeps_params = true,
                                              .device = f.device};
        gs_status status = gs_mixed_precision_create(&f.mixed, &options);
        assert_string_equal(status.message, "");
        options.segments = &nothing;
        options.num_segments = 0;
        options.places = places;
        status = gs_mixed_precision_create(&other, &options);
        assert_string_equal(status.message, "");
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            size_t count = (size_t)counts[p], half = count / 2;
            draw(drawn, p);
            for (size_t i = 0; i < count; i += 3) drawn[i] = 1 + (float)(2 * i + 1) / 256;
            status = gs_mixed_precision_write(f.mixed, p, 0, drawn, count);
            assert_string_equal(status.message, "");
            gs_mixed_precision_write_back(f.mixed);
            status = gs_mixed_precision_put_param(other, p, 0, drawn, half);
            assert_string_equal(status.message, "");
            status = gs_mixed_precision_put_param(other, p, half, drawn + half, count - half);
            assert_string_equal(status.message, "");
            device_memory_read(f.device, wanted, gs_mixed_precision_params(f.mixed)[p],
                               count * sizeof *wanted);
            device_memory_read(f.device, found, places[p], count * sizeof *found);
            assert_memory_equal(found, wanted, count * sizeof *found);
            status = gs_mixed_precision_put_param(other, p, 1, drawn, count);
            assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        }
        gs_mixed_precision_destroy(other);
        for (size_t p = 0; p < NUM_PARAMS; p++) device_memory_free(f.device, places[p]);
        close_fixture(&f);
    }
}

// What others own comes into its place, and values follow when told.
static void params_lie_in_places_of_the_callers(void **state) {
    (void)state;
    for (int splits = 0; splits < 2; splits++) {
        fixture f;
        void *places[NUM_PARAMS];
        open_tensors(&f, GS_BF16);
        for (size_t p = 0; p < NUM_PARAMS; p++)
            places[p] = device_memory_alloc(f.device, bytes_of(p) / 2);
        // Elements [0, 10) of parameter 0 alone have their masters here.
        const gs_segment own = {0, 0, 10};
        gs_mixed_precision_options options = {.dtype = GS_BF16,
                                              .params = f.specs,
                                              .num_params = NUM_PARAMS,
                                              .masters = splits ? NULL : f.masters,
                                              .splits_masters = splits,
                                              .keeps_params = true,
                                              .keeps_values = !splits,
                                              .device = f.device,
                                              .segments = &own,
                                              .num_segments = 1,
                                              .places = places};
        gs_status status = gs_mixed_precision_create(&f.mixed, &options);
        assert_string_equal(status.message, "");
        float drawn[MOST], values[MOST];
        draw(drawn, 0);
        status = gs_mixed_precision_write(f.mixed, 0, 0, drawn, 10);
        assert_string_equal(status.message, "");
        gs_mixed_precision_write_back(f.mixed);
        size_t bytes;
        assert_null(gs_mixed_precision_halves(f.mixed, &bytes));
        for (size_t p = 0; p < NUM_PARAMS; p++)
            assert_ptr_equal(gs_mixed_precision_params(f.mixed)[p], places[p]);
        uint16_t params[MOST];
        device_memory_read(f.device, params, places[0], sizeof params);
        for (size_t i = 0; i < 11; i++)
            if (i >= 10 || !splits)
                assert_int_equal(params[i], i < 10 ? narrow(GS_BF16, drawn[i]) : 0);
        for (size_t i = 10; i < MOST; i++) params[i] = narrow(GS_BF16, (float)i);
        device_memory_write(f.device, places[0], params, sizeof params);
        gs_mixed_precision_take_param(f.mixed, 0);
        if (!splits) {
            read_floats(&f, values, gs_mixed_precision_values(f.mixed)[0], 0);
            for (size_t i = 0; i < MOST; i++) assert_true(values[i] == gs_bf16_to_fp32(params[i]));
        }
        gs_mixed_precision_destroy(f.mixed);
        options.keeps_params = options.splits_masters = false;
        options.masters = f.masters;
        status = gs_mixed_precision_create(&f.mixed, &options);
        assert_string_equal(status.message, "mixed precision: places for params that are not kept");
        for (size_t p = 0; p < NUM_PARAMS; p++) device_memory_free(f.device, places[p]);
        close_fixture(&f);
    }
}

static void halves_are_refused_where_they_make_no_sense(void **state) {
    (void)state;
    gs_mixed_precision *mixed;
    gs_param_spec spec = gs_param_spec_make(GS_FP16, 4, 0, "p");
    gs_mixed_precision_options options = {
        .dtype = GS_FP16, .params = &spec, .num_params = 1, .splits_masters = true};
    gs_status status = gs_mixed_precision_create(&mixed, &options);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    options.dtype = GS_BF16;
    options.keeps_values = true;
    status = gs_mixed_precision_create(&mixed, &options);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    options.splits_masters = false;  // and without them somebody else has to have masters
    status = gs_mixed_precision_create(&mixed, &options);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_null(mixed);
}

static void memory_that_was_not_asked_for_is_not_there(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_FP16, false);
    assert_null(gs_mixed_precision_pass_grads(f.mixed, f.grads, true));
    assert_int_equal(gs_mixed_precision_dtype(f.mixed), GS_FP16);
    close_fixture(&f);
}

static void other_types_are_refused(void **state) {
    (void)state;
    gs_mixed_precision *mixed;
    gs_param_spec spec = gs_param_spec_make(GS_FP32, 4, 0, "p");
    gs_status status = gs_mixed_precision_create(
        &mixed, &(gs_mixed_precision_options){.dtype = GS_FP32, .params = &spec, .num_params = 1});
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_null(mixed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(params_and_values_are_the_rounded_masters),
        cmocka_unit_test(masters_keep_updates_that_params_cannot_hold),
        cmocka_unit_test(passes_are_rounded_and_their_sum_is_not),
        cmocka_unit_test(gradient_beyond_fp16_becomes_infinite),
        cmocka_unit_test(split_masters_hold_every_bit),
        cmocka_unit_test(split_masters_train_like_whole_ones),
        cmocka_unit_test(parts_of_masters_train_like_the_whole),
        cmocka_unit_test(params_of_others_are_rounded_as_by_their_owners),
        cmocka_unit_test(params_lie_in_places_of_the_callers),
        cmocka_unit_test(halves_are_refused_where_they_make_no_sense),
        cmocka_unit_test(memory_that_was_not_asked_for_is_not_there),
        cmocka_unit_test(other_types_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
