// "topk" and "onebit": what is sent hangs on last bits, so each operation is rounded as the
// bucket's dtype has it, and results are right to the last one.
#include <math.h>
#include <stdlib.h>

#include "gradsync/hooks/hook_calls.h"
#include "kernels/cpu/lanes.h"
#include "tests/support/carried.h"
#include "tests/support/hook_reference.h"

typedef struct residuals {
    carried owed;   // by parameter and rank
    carried noise;  // the same: how far each of them may be off, where a device adds up in an order
                    // of its own
} residuals;

static residuals *residuals_of(void **state) {
    if (!*state) *state = calloc(1, sizeof(residuals));
    if (!*state) abort();
    return *state;
}

static void release(void *state) {
    residuals *self = state;
    if (!self) return;
    carried_release(&self->owed);
    carried_release(&self->noise);
    free(self);
}

// M of each member, in the place of its gradient.
static void add_owed(residuals *self, const reference_bucket *bucket, int rank) {
    const double scale = reference_real(bucket->dtype, bucket->scale);
    for (size_t p = 0; p < bucket->num_params; p++) {
        const gs_hook_param *param = &bucket->params[p];
        const double *owed = carried_at(&self->owed, carried_key(param->index, rank), param->count);
        double *values = bucket->in[rank] + param->first;
        for (size_t i = 0; i < param->count; i++)
            values[i] = reference_real(bucket->dtype,
                                       reference_real(bucket->dtype, values[i] * scale) + owed[i]);
    }
}

static void keep_owed(residuals *self, const reference_bucket *bucket, int rank) {
    for (size_t p = 0; p < bucket->num_params; p++) {
        const gs_hook_param *param = &bucket->params[p];
        double *owed = carried_at(&self->owed, carried_key(param->index, rank), param->count);
        for (size_t i = 0; i < param->count; i++) owed[i] = bucket->in[rank][param->first + i];
    }
}

// An element is said to be `value`: what that leaves out is left in M.
static void say(const reference_bucket *bucket, int rank, size_t place, double value) {
    double *owed = &bucket->in[rank][place], *out = &bucket->out[place];
    *owed = reference_real(bucket->dtype, *owed - value);
    *out = reference_real(bucket->dtype, *out + value);
}

typedef void (*say_all)(residuals *self, const gs_hook_choice *choice,
                        const reference_bucket *bucket, int rank);

static void run_residuals(void **state, const gs_hook_choice *choice,
                          const reference_bucket *bucket, say_all say_what) {
    residuals *self = residuals_of(state);
    if (bucket->step < (int64_t)gs_hook_option_value(choice, "start_step")) {
        reference_sum(bucket, bucket->wire_dtype, false);
        return;
    }
    for (int r = 0; r < bucket->world_size; r++) {
        add_owed(self, bucket, r);
        say_what(self, choice, bucket, r);
        if (gs_hook_option_value(choice, "error_feedback") != 0) keep_owed(self, bucket, r);
    }
}

// ---- the largest

typedef struct element {
    double magnitude;
    size_t place;
} element;

static int by_magnitude(const void *left, const void *right) {
    const element *a = left, *b = right;
    if (a->magnitude != b->magnitude) return a->magnitude > b->magnitude ? -1 : 1;
    return a->place < b->place ? -1 : 1;
}

static void say_largest(residuals *self, const gs_hook_choice *choice,
                        const reference_bucket *bucket, int rank) {
    (void)self;
    element *all = calloc(bucket->count + 1, sizeof *all);
    size_t total = 0;
    if (!all) abort();
    for (size_t p = 0; p < bucket->num_params; p++) {
        const gs_hook_param *param = &bucket->params[p];
        for (size_t i = param->first; i < param->first + param->count; i++)
            all[total++] = (element){fabs(bucket->in[rank][i]), i};
    }
    qsort(all, total, sizeof *all, by_magnitude);
    const double wanted = ceil(gs_hook_option_value(choice, "ratio") * (double)total);
    for (size_t i = 0; i < total && (double)i < wanted; i++) {
        double value = bucket->in[rank][all[i].place];
        if (bucket->wire_dtype) value = reference_round(bucket->wire_dtype, value);
        say(bucket, rank, all[i].place, value);
    }
    free(all);
}

static void run_topk(void **state, const gs_hook_choice *choice, const reference_bucket *bucket) {
    run_residuals(state, choice, bucket, say_largest);
}

// ---- signs

static double mean_of(const reference_bucket *bucket, double sum, double number) {
    return number > 0 ? reference_real(bucket->dtype, sum / number) : 0;
}

// What is nearer to zero than it may be off is on either side: from there on it may be anything.
static double noise_behind(const double *values, size_t count, double noise, double rounding) {
    for (size_t i = 0; i < count && noise > 0; i++)
        if (fabs(values[i]) <= noise) return INFINITY;
    return 2 * noise + rounding;
}

// Sums in the order that the CPU's kernel promises for a gradient of one chunk.
static void say_signs(residuals *self, const gs_hook_choice *choice, const reference_bucket *bucket,
                      int rank) {
    for (size_t p = 0; p < bucket->num_params; p++) {
        const gs_hook_param *param = &bucket->params[p];
        const double *values = bucket->in[rank] + param->first;
        double above, below, num_below;
        GS_LANE_SUM(double, above, i, param->count, values[i] < 0 ? 0.0 : values[i]);
        GS_LANE_SUM(double, below, i, param->count, values[i] < 0 ? values[i] : 0.0);
        GS_LANE_SUM(double, num_below, i, param->count, values[i] < 0 ? 1.0 : 0.0);
        const double mean_above = mean_of(bucket, above, (double)param->count - num_below),
                     mean_below = mean_of(bucket, below, num_below);
        double *kept = carried_at(&self->noise, carried_key(param->index, rank), 1);
        const double rounding = 4 * reference_epsilon(bucket->dtype) * (mean_above - mean_below);
        const double noise = noise_behind(values, param->count, *kept, rounding);
        if (gs_hook_option_value(choice, "error_feedback") != 0) *kept = noise;
        for (size_t i = 0; i < param->count; i++) {
            bucket->slack[param->first + i] += noise;
            say(bucket, rank, param->first + i, values[i] < 0 ? mean_below : mean_above);
        }
    }
}

static void run_onebit(void **state, const gs_hook_choice *choice, const reference_bucket *bucket) {
    run_residuals(state, choice, bucket, say_signs);
}

// ---- options

static size_t draw_onebit(gs_hook_number numbers[HOOK_REFERENCE_NUMBERS], uint64_t dice,
                          const reference_limits *limits) {
    const bool feeds_back = dice % 3 && !limits->divides_later;
    numbers[0] = (gs_hook_number){"error_feedback", feeds_back};
    numbers[1] = (gs_hook_number){
        "start_step", dice / 3 % 2 ? 0 : (double)(dice / 6 % (uint64_t)limits->num_steps)};
    return 2;
}

static size_t draw_topk(gs_hook_number numbers[HOOK_REFERENCE_NUMBERS], uint64_t dice,
                        const reference_limits *limits) {
    static const double ratios[] = {0.01, 0.05, 0.3, 1};
    const size_t count = draw_onebit(numbers, dice, limits);
    numbers[count] = (gs_hook_number){"ratio", ratios[dice / 64 % 4]};
    return count + 1;
}

const hook_reference topk_reference = {"topk", false, draw_topk, run_topk, release};
const hook_reference onebit_reference = {"onebit", false, draw_onebit, run_onebit, release};
