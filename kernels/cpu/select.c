// The largest elements of a bucket: what a rank owes is added to its gradients, the largest are found by the digits of
// their magnitude, written down with their places, and added up where they arrive.
//
// Bits of magnitudes are ordered as the magnitudes are, infinity and NaN behind them. Counts of digits are whole numbers:
// threads may add them in any order. What is equal to the last one chosen is taken by place.
#include <math.h>
#include <string.h>

#include "kernels/cpu/cast.h"
#include "kernels/cpu/parts.h"

#define DIGIT_BITS 11
#define NUM_DIGITS ((size_t)1 << DIGIT_BITS)

typedef struct residual_job {
    gs_parts parts;
    gs_dtype dtype;
    double grad_scale, held_scale;
} residual_job;

#define DEFINE_ADD_PIECE(name, type)                                                               \
    static void name(const residual_job *job, const gs_residual_item *item, gs_piece piece) {     \
        const type *grad = (const type *)item->grad + piece.first;                                 \
        type *error = (type *)item->error + piece.first;                                           \
        const type grad_scale = (type)job->grad_scale, held_scale = (type)job->held_scale;         \
        if (!item->held) {                                                                         \
            GS_ELEMENTWISE                                                                         \
            for (size_t i = 0; i < piece.count; i++) error[i] = grad[i] * grad_scale;              \
            return;                                                                                \
        }                                                                                          \
        const type *held = (const type *)item->held + piece.first;                                 \
        GS_ELEMENTWISE                                                                             \
        for (size_t i = 0; i < piece.count; i++)                                                   \
            error[i] = grad[i] * grad_scale + held[i] * held_scale;                                \
    }

DEFINE_ADD_PIECE(add_piece_fp32, float)
DEFINE_ADD_PIECE(add_piece_fp64, double)

static void add_part(void *ctx, size_t part) {
    const residual_job *job = ctx;
    gs_piece piece = gs_first_piece(&job->parts, part);
    for (; piece.count; piece = gs_next_piece(&job->parts, part, piece)) {
        const gs_residual_item *item = &job->parts.items[piece.item];
        if (job->dtype == GS_FP64) add_piece_fp64(job, item, piece);
        else add_piece_fp32(job, item, piece);
    }
}

void GS_CPU(add_residuals)(gs_stream *stream, const gs_residual_item *items, size_t num_items,
                           gs_dtype dtype, double grad_scale, double held_scale) {
    residual_job job = {.parts = gs_cut_parts(items, num_items),
                        .dtype = dtype,
                        .grad_scale = grad_scale,
                        .held_scale = held_scale};
    gs_stream_for_each(stream, job.parts.num_parts, add_part, &job);
}

// ---- the bits of the last one chosen

GS_INLINE uint64_t magnitude_at(const void *data, size_t i, const bool is_wide) {
    if (is_wide) {
        uint64_t bits;
        memcpy(&bits, (const char *)data + i * sizeof bits, sizeof bits);
        return bits & ~(1ull << 63);
    }
    uint32_t bits;
    memcpy(&bits, (const char *)data + i * sizeof bits, sizeof bits);
    return bits & ~(1u << 31);
}

typedef struct selection_job {
    gs_parts parts;
    const gs_selection *selection;
    // While digits are found: those above `shift` are `prefix`.
    int shift;
    uint64_t prefix;
    uint64_t num_of_digit[NUM_DIGITS];
    // Afterwards: all above `least` are chosen, and of those that are equal so many as are left.
    uint64_t least;
    size_t num_equal_chosen;
    size_t num_above[GS_MAX_PARTS], num_equal[GS_MAX_PARTS];
} selection_job;

GS_INLINE void count_digits(const void *data, gs_piece piece, const selection_job *job,
                            uint32_t *num_of_digit, const bool is_wide) {
    const int shift = job->shift;
    const uint64_t prefix = job->prefix;
    for (size_t i = piece.first; i < piece.first + piece.count; i++) {
        uint64_t digits = magnitude_at(data, i, is_wide) >> shift;
        if (digits >> DIGIT_BITS == prefix) num_of_digit[digits % NUM_DIGITS]++;
    }
}

// A part has fewer elements than 2^32, or a bucket more than memory has.
static void count_part(void *ctx, size_t part) {
    selection_job *job = ctx;
    uint32_t num_of_digit[NUM_DIGITS] = {0};
    gs_piece piece = gs_first_piece(&job->parts, part);
    for (; piece.count; piece = gs_next_piece(&job->parts, part, piece)) {
        const void *data = job->parts.items[piece.item].error;
        if (job->selection->dtype == GS_FP64) count_digits(data, piece, job, num_of_digit, true);
        else count_digits(data, piece, job, num_of_digit, false);
    }
    for (size_t d = 0; d < NUM_DIGITS; d++) {
        if (num_of_digit[d])
            __atomic_fetch_add(&job->num_of_digit[d], num_of_digit[d], __ATOMIC_RELAXED);
    }
}

// The digit in which the last of `wanted` largest lies; *wanted: how many of those that have it.
static uint64_t digit_of_last(const selection_job *job, size_t *wanted) {
    size_t digit = NUM_DIGITS;
    while (digit-- > 1) {
        if (job->num_of_digit[digit] >= *wanted) return digit;
        *wanted -= job->num_of_digit[digit];
    }
    return 0;
}

static void find_least(gs_stream *stream, selection_job *job) {
    int num_bits = job->selection->dtype == GS_FP64 ? 63 : 31;
    size_t wanted = job->selection->num_chosen;
    // From the top; the first digit is what the others leave over, so that they end at bit 0.
    for (job->shift = (num_bits - 1) / DIGIT_BITS * DIGIT_BITS; job->shift >= 0;
         job->shift -= DIGIT_BITS) {
        memset(job->num_of_digit, 0, sizeof job->num_of_digit);
        gs_stream_for_each(stream, job->parts.num_parts, count_part, job);
        job->prefix = job->prefix << DIGIT_BITS | digit_of_last(job, &wanted);
    }
    job->least = job->prefix;
    job->num_equal_chosen = wanted;
}

// ---- taking them

GS_INLINE void compare(const void *data, gs_piece piece, uint64_t least, size_t *num_above,
                       size_t *num_equal, const bool is_wide) {
    size_t above = 0, equal = 0;
    for (size_t i = piece.first; i < piece.first + piece.count; i++) {
        uint64_t magnitude = magnitude_at(data, i, is_wide);
        above += magnitude > least;
        equal += magnitude == least;
    }
    *num_above += above;
    *num_equal += equal;
}

static void compare_part(void *ctx, size_t part) {
    selection_job *job = ctx;
    size_t above = 0, equal = 0;
    gs_piece piece = gs_first_piece(&job->parts, part);
    for (; piece.count; piece = gs_next_piece(&job->parts, part, piece)) {
        const void *data = job->parts.items[piece.item].error;
        if (job->selection->dtype == GS_FP64) compare(data, piece, job->least, &above, &equal, true);
        else compare(data, piece, job->least, &above, &equal, false);
    }
    job->num_above[part] = above;
    job->num_equal[part] = equal;
}

static float round_value(gs_dtype wire_dtype, float value) {
    if (wire_dtype == GS_FP16) GS_CPU(round_fp16)(&value, &value, 1, 1, false);
    else if (wire_dtype == GS_BF16) GS_CPU(round_bf16)(&value, &value, 1, 1, false);
    return value;
}

// What 16 bits hold has no more in fp64.
GS_INLINE void take_value(const gs_selection *selection, void *error, size_t i, size_t to,
                          const bool is_wide) {
    if (is_wide) {
        double *from = (double *)error + i, value = *from;
        if (selection->wire_dtype) value = (double)round_value(selection->wire_dtype, (float)value);
        ((double *)selection->values)[to] = value;
        *from -= value;
    } else {
        float *from = (float *)error + i, value = round_value(selection->wire_dtype, *from);
        ((float *)selection->values)[to] = value;
        *from -= value;
    }
}

// Where a part's chosen go, and how many of its equal ones are among them.
typedef struct part_place {
    size_t to, num_equal;
} part_place;

static part_place place_of_part(const selection_job *job, size_t part) {
    part_place place = {0};
    size_t equal_left = job->num_equal_chosen;
    for (size_t p = 0; p <= part; p++) {
        place.num_equal = job->num_equal[p] < equal_left ? job->num_equal[p] : equal_left;
        if (p == part) break;
        equal_left -= place.num_equal;
        place.to += job->num_above[p] + place.num_equal;
    }
    return place;
}

GS_INLINE void take_piece(const selection_job *job, gs_piece piece, part_place *place,
                          const bool is_wide) {
    const gs_residual_item *item = &job->parts.items[piece.item];
    for (size_t i = piece.first; i < piece.first + piece.count; i++) {
        uint64_t magnitude = magnitude_at(item->error, i, is_wide);
        if (magnitude < job->least) continue;
        if (magnitude == job->least) {
            if (!place->num_equal) continue;
            place->num_equal--;
        }
        job->selection->places[place->to] = (uint32_t)(item->first + i);
        take_value(job->selection, item->error, i, place->to, is_wide);
        place->to++;
    }
}

static void take_part(void *ctx, size_t part) {
    const selection_job *job = ctx;
    part_place place = place_of_part(job, part);
    gs_piece piece = gs_first_piece(&job->parts, part);
    for (; piece.count; piece = gs_next_piece(&job->parts, part, piece)) {
        if (job->selection->dtype == GS_FP64) take_piece(job, piece, &place, true);
        else take_piece(job, piece, &place, false);
    }
}

void GS_CPU(select_largest)(gs_stream *stream, const gs_selection *selection) {
    selection_job job = {.parts = gs_cut_parts(selection->items, selection->num_items),
                         .selection = selection};
    if (!selection->num_chosen) return;
    find_least(stream, &job);
    gs_stream_for_each(stream, job.parts.num_parts, compare_part, &job);
    gs_stream_for_each(stream, job.parts.num_parts, take_part, &job);
}

// ---- where they arrive

#define DEFINE_ADD_AT(name, type)                                                                  \
    static void name(type *out, const type *values, const uint32_t *places, size_t count,          \
                     size_t num_places) {                                                          \
        bool is_sound = true;                                                                      \
        for (size_t i = 0; i < count; i++) {                                                       \
            if (places[i] < num_places && (i == 0 || places[i - 1] < places[i]))                   \
                out[places[i]] += values[i];                                                       \
            else                                                                                   \
                is_sound = false;                                                                  \
        }                                                                                          \
        if (!is_sound && num_places) out[0] = (type)NAN;                                           \
    }

DEFINE_ADD_AT(add_at_fp32, float)
DEFINE_ADD_AT(add_at_fp64, double)

void GS_CPU(add_at)(gs_stream *stream, void *out, const void *values, const uint32_t *places,
                    size_t count, size_t num_places, gs_dtype dtype) {
    (void)stream;
    if (dtype == GS_FP64) add_at_fp64(out, values, places, count, num_places);
    else add_at_fp32(out, values, places, count, num_places);
}
