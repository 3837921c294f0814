// Compression with residuals: the largest elements, one bit for each element. Against plain references, and the same
// bits for all instruction sets and numbers of threads.
#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"

#define MOST_ITEMS 40
#define MOST_PLACES ((size_t)1 << 16)

// A bucket of some items, with gaps between them as padding leaves.
typedef struct bucket {
    gs_dtype dtype;
    size_t num_items, places, num_elements;
    gs_residual_item items[MOST_ITEMS];
    double *grad, *held, *error;  // places of `dtype` each
} bucket;

static void open_bucket(bucket *self, gs_dtype dtype, const size_t *counts, size_t num_items) {
    *self = (bucket){.dtype = dtype, .num_items = num_items};
    for (size_t i = 0; i < num_items; i++) {
        self->items[i] = (gs_residual_item){.count = counts[i], .first = self->places};
        self->places += (counts[i] + 15) / 16 * 16;
        self->num_elements += counts[i];
    }
    size_t bytes = gs_dtype_bytes(dtype);
    self->grad = calloc(self->places + 1, sizeof(double));
    self->held = calloc(self->places + 1, sizeof(double));
    self->error = calloc(self->places + 1, sizeof(double));
    for (size_t i = 0; i < num_items; i++) {
        gs_residual_item *item = &self->items[i];
        item->grad = (char *)self->grad + item->first * bytes;
        item->held = (char *)self->held + item->first * bytes;
        item->error = (char *)self->error + item->first * bytes;
    }
}

static void close_bucket(bucket *self) {
    free(self->grad);
    free(self->held);
    free(self->error);
}

static double get(const bucket *self, const double *array, size_t place) {
    return self->dtype == GS_FP64 ? array[place] : (double)((const float *)array)[place];
}

static void set(const bucket *self, double *array, size_t place, double value) {
    if (self->dtype == GS_FP64) array[place] = value;
    else ((float *)array)[place] = (float)value;
}

// Few different magnitudes, so that many are equal.
static void fill_coarsely(const bucket *self, double *array, uint64_t seed, unsigned num_values) {
    for (size_t i = 0; i < self->num_items; i++) {
        const gs_residual_item *item = &self->items[i];
        for (size_t k = 0; k < item->count; k++) {
            uint64_t drawn = gs_random_u64((gs_random_key){seed, 3}, item->first + k);
            double value = (double)(drawn % num_values) * 0x1p-5;
            set(self, array, item->first + k, drawn >> 60 & 1 ? -value : value);
        }
    }
}

typedef struct chosen {
    double magnitude;
    size_t place;
} chosen;

static int by_rank(const void *left, const void *right) {
    const chosen *a = left, *b = right;
    if (a->magnitude != b->magnitude) return a->magnitude > b->magnitude ? -1 : 1;
    return a->place < b->place ? -1 : 1;
}

static int by_place(const void *left, const void *right) {
    const chosen *a = left, *b = right;
    return a->place < b->place ? -1 : 1;
}

// All elements sorted, the first ones of them in order of their places.
static chosen *choose(const bucket *self, size_t num_chosen) {
    chosen *all = calloc(self->num_elements + 1, sizeof *all);
    size_t next = 0;
    for (size_t i = 0; i < self->num_items; i++)
        for (size_t k = 0; k < self->items[i].count; k++) {
            size_t place = self->items[i].first + k;
            all[next++] = (chosen){fabs(get(self, self->error, place)), place};
        }
    qsort(all, next, sizeof *all, by_rank);
    qsort(all, num_chosen, sizeof *all, by_place);
    return all;
}

static void check_selection(gs_device *device, bucket *self, size_t num_chosen,
                            gs_dtype wire_dtype) {
    double *values = calloc(num_chosen + 1, sizeof *values);
    uint32_t *places = calloc(num_chosen + 1, sizeof *places);
    chosen *want = choose(self, num_chosen);
    double *before = malloc((self->places + 1) * sizeof *before);
    memcpy(before, self->error, (self->places + 1) * sizeof *before);
    const gs_selection selection = {.items = self->items,
                                    .num_items = self->num_items,
                                    .num_places = self->places,
                                    .dtype = self->dtype,
                                    .wire_dtype = wire_dtype,
                                    .num_chosen = num_chosen,
                                    .values = values,
                                    .places = places};
    gs_device_kernels(device)->select_largest(gs_device_stream(device), &selection);
    for (size_t i = 0; i < num_chosen; i++) {
        assert_int_equal(places[i], want[i].place);
        double value = get(self, before, want[i].place), sent = get(self, values, i);
        double rounded = wire_dtype == GS_BF16
                             ? (double)gs_bf16_to_fp32(gs_fp32_to_bf16((float)value))
                             : value;
        assert_true(sent == rounded);
        assert_true(get(self, self->error, want[i].place) == value - sent);
        set(self, before, want[i].place, value - sent);
    }
    // Nothing else was touched.
    assert_memory_equal(before, self->error, (self->places + 1) * sizeof *before);
    free(values);
    free(places);
    free(want);
    free(before);
}

static const size_t shapes[][MOST_ITEMS] = {
    {1}, {3, 1, 1, 7}, {300, 5, 20000, 17, 1, 1, 33000}, {16384, 16384}, {7, 0, 9}};
#define NUM_SHAPES (sizeof shapes / sizeof *shapes)

static size_t num_items_of(size_t shape) {
    static const size_t nums[NUM_SHAPES] = {1, 4, 7, 2, 3};
    return nums[shape];
}

static void the_largest_are_chosen_and_of_equal_ones_the_first(void **state) {
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP64};
    for (size_t s = 0; s < NUM_SHAPES; s++) {
        for (int d = 0; d < 2; d++) {
            bucket self;
            open_bucket(&self, dtypes[d], shapes[s], num_items_of(s));
            for (unsigned num_values = 1; num_values <= 4096; num_values *= 8) {
                size_t nums[] = {1, self.num_elements / 100 + 1, self.num_elements};
                for (int n = 0; n < 3; n++) {
                    fill_coarsely(&self, self.error, 7 * num_values + s, num_values);
                    check_selection(*state, &self, nums[n], n == 1 ? GS_BF16 : GS_DTYPE_UNSET);
                }
            }
            close_bucket(&self);
        }
    }
}

static void what_is_not_finite_is_chosen_first(void **state) {
    const size_t count = 100;
    bucket self;
    open_bucket(&self, GS_FP32, &count, 1);
    fill_coarsely(&self, self.error, 5, 1000);
    set(&self, self.error, 40, (double)INFINITY);
    set(&self, self.error, 60, (double)NAN);
    float values[2];
    uint32_t places[2];
    const gs_selection selection = {self.items, 1, count, GS_FP32, 0, 2, values, places};
    gs_device_kernels(*state)->select_largest(gs_device_stream(*state), &selection);
    assert_int_equal(places[0], 40);
    assert_int_equal(places[1], 60);
    assert_true(isinf(values[0]) && isnan(values[1]));
    close_bucket(&self);
}

static void residuals_are_added_and_places_filled(void **state) {
    const size_t counts[] = {20000, 3};
    for (int d = 0; d < 2; d++) {
        bucket self;
        open_bucket(&self, d ? GS_FP64 : GS_FP32, counts, 2);
        fill_coarsely(&self, self.grad, 1, 77);
        fill_coarsely(&self, self.held, 2, 55);
        const void *held = self.items[1].held;
        self.items[1].held = NULL;
        gs_device_kernels(*state)->add_residuals(gs_device_stream(*state), self.items, 2, self.dtype,
                                                 0.5, 4);
        for (size_t i = 0; i < 2; i++)
            for (size_t k = 0; k < counts[i]; k++) {
                size_t place = self.items[i].first + k;
                double want = get(&self, self.grad, place) * 0.5 +
                              (i ? 0 : get(&self, self.held, place) * 4);
                assert_true(get(&self, self.error, place) == want);
            }
        self.items[1].held = held;
        uint32_t places[] = {0, 5, 19999, 20002};
        double values[4] = {0};
        for (size_t i = 0; i < 4; i++) set(&self, values, i, 8);
        double was = get(&self, self.grad, 5);
        gs_device_kernels(*state)->add_at(gs_device_stream(*state), self.grad, values, places, 4,
                                          self.places, self.dtype);
        assert_true(get(&self, self.grad, 5) == was + 8);
        close_bucket(&self);
    }
}

static void places_that_are_none_leave_nan_and_write_nothing_outside(void **state) {
    const size_t count = 40;
    static const uint32_t lists[][3] = {{0, 3, 39}, {UINT32_MAX, 3, 5}, {0, 3, 3}, {9, 0, 10}};
    for (size_t n = 0; n < 2 * sizeof lists / sizeof lists[0]; n++) {
        bucket self;
        open_bucket(&self, n % 2 ? GS_FP64 : GS_FP32, &count, 1);
        fill_coarsely(&self, self.grad, 3, 77);
        double values[3] = {0}, before = get(&self, self.grad, 39);
        for (size_t i = 0; i < 3; i++) set(&self, values, i, 8);
        // The bucket is taken for smaller than it is: what lies behind it shows whether it was written.
        gs_device_kernels(*state)->add_at(gs_device_stream(*state), self.grad, values, lists[n / 2], 3,
                                          39, self.dtype);
        assert_true(isnan(get(&self, self.grad, 0)));
        assert_true(get(&self, self.grad, 39) == before);
        close_bucket(&self);
    }
}

// ---- signs

static double mean_of_side(const bucket *self, const gs_residual_item *item, bool below) {
    double sum = 0, num = 0;
    for (size_t k = 0; k < item->count; k++) {
        double value = get(self, self->error, item->first + k);
        if ((value < 0) != below) continue;
        sum += value;
        num++;
    }
    return num > 0 ? sum / num : 0;
}

static void bits_and_means_say_what_is_taken(void **state) {
    for (size_t s = 0; s < NUM_SHAPES; s++) {
        for (int d = 0; d < 2; d++) {
            bucket self;
            open_bucket(&self, d ? GS_FP64 : GS_FP32, shapes[s], num_items_of(s));
            fill_coarsely(&self, self.error, 11 + s, 999);
            double *before = malloc((self.places + 1) * sizeof *before);
            memcpy(before, self.error, (self.places + 1) * sizeof *before);
            double means[2 * MOST_ITEMS] = {0}, want[2 * MOST_ITEMS];
            for (size_t i = 0; i < self.num_items; i++)
                for (int side = 0; side < 2; side++)
                    want[2 * i + (size_t)side] = mean_of_side(&self, &self.items[i], side);
            uint8_t *bits = calloc(self.places / 8 + 1, 1);
            const gs_signs signs = {self.items, self.num_items, self.dtype, means, bits};
            gs_device_kernels(*state)->take_signs(gs_device_stream(*state), &signs);
            for (size_t i = 0; i < 2 * self.num_items; i++)
                assert_true(fabs(get(&self, means, i) - want[i]) <= 1e-6 * (1 + fabs(want[i])));
            gs_device_kernels(*state)->add_signs(gs_device_stream(*state), &signs, 1, 0);
            for (size_t i = 0; i < self.num_items; i++)
                for (size_t k = 0; k < self.items[i].count; k++) {
                    size_t place = self.items[i].first + k;
                    bool is_below = get(&self, before, place) < 0;
                    assert_int_equal(bits[place / 8] >> place % 8 & 1, is_below);
                    double said = get(&self, means, 2 * i + is_below);
                    assert_true(get(&self, self.grad, place) == said);
                    double left = get(&self, before, place) - said;
                    assert_true(get(&self, self.error, place) == (d ? left : (double)(float)left));
                }
            free(before);
            free(bits);
            close_bucket(&self);
        }
    }
}

static void signs_of_zeros_are_zero_and_what_is_not_finite_spreads(void **state) {
    const size_t count = 70;
    bucket self;
    open_bucket(&self, GS_FP32, &count, 1);
    float means[2] = {1, 1};
    uint8_t bits[10];
    const gs_signs signs = {self.items, 1, GS_FP32, means, bits};
    gs_device_kernels(*state)->take_signs(gs_device_stream(*state), &signs);
    assert_true(means[0] == 0 && means[1] == 0);
    for (size_t k = 0; k < count; k++) assert_true(get(&self, self.error, k) == 0);
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 3; b++) {
        fill_coarsely(&self, self.error, 4, 30);
        set(&self, self.error, 33, (double)bad[b]);
        gs_device_kernels(*state)->take_signs(gs_device_stream(*state), &signs);
        gs_device_kernels(*state)->add_signs(gs_device_stream(*state), &signs, 1, 0);
        assert_true(isfinite(get(&self, self.grad, 33)) == 0);
    }
    close_bucket(&self);
}

// Ranks' payloads lie behind each other.
static void what_ranks_say_is_added_in_their_order(void **state) {
    enum { RANKS = 3, STRIDE = 64 };
    const size_t count = 20;
    bucket self;
    open_bucket(&self, GS_FP32, &count, 1);
    _Alignas(64) char payload[RANKS * STRIDE] = {0};
    float want[20];
    for (int r = 0; r < RANKS; r++) {
        float *means = (float *)(payload + r * STRIDE);
        means[0] = 0.1f * (float)(r + 1);
        means[1] = -0.7f * (float)(r + 2);
        for (size_t k = 0; k < count; k++) {
            bool is_below = (k * 7 + (size_t)r * 3) % 5 < 2;
            payload[(size_t)r * STRIDE + 16 + k / 8] |= (char)(is_below << k % 8);
            want[k] = r ? want[k] + means[is_below] : means[is_below];
        }
    }
    const gs_signs signs = {self.items, 1, GS_FP32, payload, (uint8_t *)payload + 16};
    gs_device_kernels(*state)->add_signs(gs_device_stream(*state), &signs, RANKS, STRIDE);
    assert_same_bits(self.grad, want, sizeof want);
    close_bucket(&self);
}

// ---- the same bits

static void run_all(gs_device *device, char *out) {
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    bucket self;
    open_bucket(&self, GS_FP32, shapes[2], num_items_of(2));
    float *values = make_uniform(self.places, 9, -1, 1);
    memcpy(self.grad, values, self.places * sizeof(float));
    kernels->add_residuals(stream, self.items, self.num_items, GS_FP32, 0.3, 1.7);
    const gs_signs signs = {self.items, self.num_items, GS_FP32, out,
                            (uint8_t *)out + 1024};
    kernels->take_signs(stream, &signs);
    const gs_selection selection = {self.items, self.num_items, self.places, GS_FP32, GS_FP16,
                                    500, out + 32768, (uint32_t *)(out + 40000)};
    kernels->select_largest(stream, &selection);
    memcpy(out + 65536, self.error, self.places * sizeof(float));
    free(values);
    close_bucket(&self);
}

static void bits_are_the_same_for_all_instruction_sets_and_threads(void **state) {
    (void)state;
    static const struct {
        const char *isa;
        int num_threads;
    } settings[] = {{"baseline", 1}, {"baseline", 3}, {"avx2", 1}, {"avx2", 3}, {"avx512", 1}, {"avx512", 3}};
    const size_t bytes = 65536 + MOST_PLACES * sizeof(float);
    char *want = calloc(bytes, 1), *got = calloc(bytes, 1);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        gs_device_options options = {.num_threads = settings[i].num_threads, .isa = settings[i].isa};
        gs_device *device;
        if (gs_device_open(&device, "cpu", &options).code) continue;  // not on this machine
        run_all(device, i ? got : want);
        if (i) assert_same_bits(got, want, bytes);
        gs_device_close(device);
    }
    free(want);
    free(got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_are_chosen_and_of_equal_ones_the_first),
        cmocka_unit_test(what_is_not_finite_is_chosen_first),
        cmocka_unit_test(residuals_are_added_and_places_filled),
        cmocka_unit_test(places_that_are_none_leave_nan_and_write_nothing_outside),
        cmocka_unit_test(bits_and_means_say_what_is_taken),
        cmocka_unit_test(signs_of_zeros_are_zero_and_what_is_not_finite_spreads),
        cmocka_unit_test(what_ranks_say_is_added_in_their_order),
        cmocka_unit_test(bits_are_the_same_for_all_instruction_sets_and_threads),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
