#include "gradsync/bucket/tally_apart.h"

#include <string.h>

#include "core/failpoint.h"
#include "gradsync/bucket/grad_squares.h"

enum { SAID_SAMPLES, SAID_RANKS, SAID_ACTIVE, NUM_SAID };

static const gs_bucket *bucket_at(const gs_bucket_tally *tally, size_t index) {
    return &tally->layout->buckets[index];
}

// This rank's words, in the order of the collective.
static double *said_used(const gs_bucket_tally *tally) {
    return tally->apart.said + NUM_SAID;
}

static double *said_squares(const gs_bucket_tally *tally) {
    return said_used(tally) + tally->layout->num_params;
}

static double *said_elements(const gs_bucket_tally *tally) {
    return said_squares(tally) + tally->layout->num_params;
}

static double *said_edges(const gs_bucket_tally *tally) {
    return said_elements(tally) + tally->layout->num_params;
}

size_t gs_tally_apart_words(size_t num_params) {
    return NUM_SAID + 4 * num_params;
}

// A number drawn for the place before `element`, the same everywhere, of so few bits that sums stay
// exact.
static double draw_edge(size_t element) {
    uint64_t drawn = ((uint64_t)element + 1) * UINT64_C(0x9e3779b97f4a7c15);
    drawn = (drawn ^ (drawn >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    drawn = (drawn ^ (drawn >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)(drawn >> 40);
}

// Whether this rank speaks for the whole of a bucket.
static bool is_speaker(const gs_bucket_tally *tally, size_t index) {
    return index % (size_t)tally->step.num_ranks == (size_t)gs_comm_rank(tally->step.comm);
}

static void write_nothing(const gs_bucket_tally *tally, size_t index, gs_work_stream on) {
    (void)tally, (void)index, (void)on;
}

static void measure_segment(const gs_bucket_tally *tally, const gs_segment *held) {
    const gs_grad_layout *layout = tally->layout;
    size_t param = held->tensor;
    const char *grad = gs_grad_layout_results(layout)[param];
    double squares = 0;
    if (!held->count) return;
    gs_grad_squares_main(&squares, grad + held->first * gs_dtype_bytes(layout->dtypes[param]),
                         layout->dtypes[param], held->count, tally->device);
    tally->squares[param] += squares;
}

// Segments that this rank speaks for; of all parameters of a bucket, or of one.
typedef void (*segment_fn)(const gs_bucket_tally *tally, const gs_segment *held);

static void for_each_said(const gs_bucket_tally *tally, size_t index, segment_fn function) {
    const gs_bucket *bucket = bucket_at(tally, index);
    const gs_bucket_part *part = &tally->apart.parts[index];
    for (size_t i = 0; i < part->num_segments; i++) function(tally, &part->segments[i]);
    if (part->is_partial || !is_speaker(tally, index)) return;
    for (size_t i = 0; i < bucket->num_params; i++)
        function(tally, &(gs_segment){.tensor = bucket->params[i],
                                      .count = tally->layout->counts[bucket->params[i]]});
}

static void count_elements(const gs_bucket_tally *tally, const gs_segment *held) {
    said_elements(tally)[held->tensor] += (double)held->count;
    said_edges(tally)[held->tensor] +=
        draw_edge(held->first + held->count) - draw_edge(held->first);
}

// What no rank used was not reduced, and is zero; where it lies, parts of it are others'.
static bool is_zero(const gs_bucket_tally *tally, size_t index) {
    return !bucket_at(tally, index)->travels;
}

// A GPU's squares are enqueued, and read with all others.
static void measure_on_device(const gs_bucket_tally *tally, size_t index) {
    const gs_bucket_part *part = &tally->apart.parts[index];
    bool holds_part = part->is_partial || !is_speaker(tally, index) || is_zero(tally, index);
    if (holds_part)
        gs_bucket_mirror_hold(&tally->mirror, index, part->segments, part->num_segments);
    else
        gs_bucket_mirror_hold_all(&tally->mirror, index);
    gs_bucket_mirror_measure(&tally->mirror, index);
}

static void measure_bucket(const gs_bucket_tally *tally, size_t index) {
    for_each_said(tally, index, count_elements);
    if (tally->mirror.device)
        measure_on_device(tally, index);
    else if (!is_zero(tally, index))
        for_each_said(tally, index, measure_segment);
}

static gs_status take(gs_bucket_tally *tally, size_t index) {
    if (!tally->sample_mean) measure_bucket(tally, index);
    return gs_ok();
}

// Of a gradient that a tail has changed.
static void measure_again(gs_bucket_tally *tally, size_t param) {
    size_t index = tally->layout->bucket_of[param];
    const gs_bucket_part *part = &tally->apart.parts[index];
    if (tally->mirror.device) {
        gs_bucket_mirror_measure_param(&tally->mirror, param);
        return;
    }
    tally->squares[param] = 0;
    for (size_t i = 0; i < part->num_segments; i++) {
        if (part->segments[i].tensor == param) measure_segment(tally, &part->segments[i]);
    }
    if (!part->is_partial && is_speaker(tally, index))
        measure_segment(tally,
                        &(gs_segment){.tensor = param, .count = tally->layout->counts[param]});
}

static gs_status sum_words(const gs_bucket_tally *tally, size_t count, gs_deadline deadline) {
    return gs_comm_run(tally->step.comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = tally->apart.said,
                                        .recv = tally->apart.sums,
                                        .count = count,
                                        .dtype = GS_FP64,
                                        .op = GS_OP_SUM,
                                        .step = tally->step.step,
                                        .num_active = tally->step.num_active,
                                        .bucket = -1},
                       deadline);
}

static void say_counts(const gs_bucket_tally *tally) {
    double *said = tally->apart.said;
    said[SAID_SAMPLES] = (double)tally->samples;
    said[SAID_RANKS] = 1;
    said[SAID_ACTIVE] = tally->step.active;
    for (size_t i = 0; i < tally->layout->num_params; i++)
        said_used(tally)[i] = tally->used[i] ? 1 : 0;
}

static gs_status hear_counts(gs_bucket_tally *tally) {
    const double *sums = tally->apart.sums;
    return gs_tally_take_sums(tally,
                              &(gs_tally_sums){.samples = (int64_t)sums[SAID_SAMPLES],
                                               .num_ranks = (int64_t)sums[SAID_RANKS],
                                               .num_active = (int64_t)sums[SAID_ACTIVE]},
                              "tally");
}

// A sample mean has to know its samples before anything is measured: they are summed alone first.
static gs_status close(gs_bucket_tally *tally, gs_deadline deadline) {
    if (!tally->sample_mean) return gs_ok();
    say_counts(tally);
    GS_TRY(sum_words(tally, NUM_SAID, deadline));
    GS_TRY(hear_counts(tally));
    for (size_t b = 0; b < tally->layout->plan.num_buckets; b++) {
        if (bucket_at(tally, b)->travels) gs_tally_divide(tally, b);
        measure_bucket(tally, b);
    }
    return gs_ok();
}

// Every element of a gradient is held by one rank: then each edge between two segments is one's end
// and another's beginning, and what was drawn for it cancels.
static gs_status check_elements(const gs_bucket_tally *tally) {
    const gs_grad_layout *layout = tally->layout;
    const double *elements = tally->apart.sums + NUM_SAID + 2 * layout->num_params;
    const double *edges = elements + layout->num_params;
    for (size_t i = 0; i < layout->num_params; i++) {
        if (elements[i] != (double)layout->counts[i])
            return gs_error(GS_FAILED_PRECONDITION,
                            "step %lld: bucket %zu: ranks hold %.0f elements of the result of "
                            "parameter %zu \"%.80s\", which has %zu",
                            (long long)tally->step.step, layout->bucket_of[i], elements[i], i,
                            layout->params[i].name, layout->counts[i]);
        if (edges[i] != draw_edge(layout->counts[i]) - draw_edge(0))
            return gs_error(GS_FAILED_PRECONDITION,
                            "step %lld: bucket %zu: of the result of parameter %zu \"%.80s\" ranks "
                            "hold some elements twice and others not at all",
                            (long long)tally->step.step, layout->bucket_of[i], i,
                            layout->params[i].name);
    }
    return gs_ok();
}

static gs_status read_apart(gs_bucket_tally *tally, gs_deadline deadline) {
    size_t num_params = tally->layout->num_params;
    GS_TRY(gs_stream_wait(gs_device_stream(tally->device), deadline));
    if (tally->mirror.device) GS_TRY(gs_bucket_mirror_settle(&tally->mirror, deadline));
    say_counts(tally);
    memcpy(said_squares(tally), tally->squares, num_params * sizeof *tally->squares);
    GS_FAILPOINT("reducer.tally");
    GS_TRY(sum_words(tally, gs_tally_apart_words(num_params), deadline));
    GS_TRY(hear_counts(tally));
    GS_TRY(check_elements(tally));
    for (size_t i = 0; i < num_params; i++) {
        tally->used_anywhere[i] = tally->apart.sums[NUM_SAID + i] > 0;
        tally->squares[i] = tally->apart.sums[NUM_SAID + num_params + i];
    }
    return gs_ok();
}

const gs_tally_world gs_tally_apart = {
    .name = "apart",
    .write = write_nothing,
    .take = take,
    .close = close,
    .measure = measure_again,
    .read = read_apart,
};
