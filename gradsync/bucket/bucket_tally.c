#include "gradsync/bucket/bucket_tally.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "gradsync/bucket/grad_norm.h"
#include "gradsync/bucket/grad_squares.h"
#include "gradsync/bucket/tally_apart.h"
#include "kernels/event_wait.h"

static gs_bucket *bucket_at(const gs_bucket_tally *tally, size_t index) {
    return &tally->layout->buckets[index];
}

static size_t num_buckets(const gs_bucket_tally *tally) {
    return tally->layout->plan.num_buckets;
}

static void write_share(const gs_bucket_tally *tally, size_t index, void *reserved) {
    gs_bucket_write_reserved(bucket_at(tally, index), reserved,
                             &(gs_bucket_share){.used = tally->used,
                                                .samples = tally->samples,
                                                .active = tally->step.active});
}

static gs_status read_sums(gs_bucket_tally *tally, size_t index, const void *reserved) {
    gs_bucket_reserved sums;
    char where[32];
    gs_bucket_read_reserved(&sums, tally->used_anywhere, bucket_at(tally, index), reserved,
                            tally->step.scale);
    snprintf(where, sizeof where, "bucket %zu", index);
    return gs_tally_take_sums(tally,
                              &(gs_tally_sums){.samples = sums.samples,
                                               .num_ranks = sums.num_ranks,
                                               .num_active = sums.num_active},
                              where);
}

static void *reserved_at(const gs_bucket_tally *tally, size_t index) {
    return gs_bucket_reserved_at(bucket_at(tally, index), gs_grad_layout_slot(tally->layout, 0));
}

static void write_in_place(const gs_bucket_tally *tally, size_t index, gs_work_stream on) {
    (void)on;
    write_share(tally, index, reserved_at(tally, index));
}

static bool measures(const gs_bucket_tally *tally, size_t param) {
    const int *measured_by = tally->dealt.measured_by;
    return !measured_by ||
           measured_by[param] % tally->step.num_ranks == gs_comm_rank(tally->step.comm);
}

static void measure_in_place(gs_bucket_tally *tally, size_t param) {
    const gs_grad_layout *layout = tally->layout;
    if (!measures(tally, param)) return;
    gs_grad_squares_main(&tally->squares[param], gs_grad_layout_results(layout)[param],
                         layout->dtypes[param], layout->counts[param], tally->device);
}

static gs_status take_in_place(gs_bucket_tally *tally, size_t index) {
    const gs_bucket *bucket = bucket_at(tally, index);
    if (bucket->travels) {
        GS_TRY(read_sums(tally, index, reserved_at(tally, index)));
        if (tally->sample_mean) gs_tally_divide(tally, index);
    }
    for (size_t i = 0; i < bucket->num_params; i++) {
        size_t param = bucket->params[i];
        if (bucket->rests)
            tally->squares[param] = 0;
        else
            measure_in_place(tally, param);
    }
    return gs_ok();
}

static gs_status close_in_place(gs_bucket_tally *tally, gs_deadline deadline) {
    (void)tally, (void)deadline;
    return gs_ok();
}

static gs_status sum_doubles(const gs_bucket_tally *tally, double *sums, const double *said,
                             size_t count, gs_deadline deadline) {
    return gs_comm_run(tally->step.comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = said,
                                        .recv = sums,
                                        .count = count,
                                        .dtype = GS_FP64,
                                        .op = GS_OP_SUM,
                                        .step = tally->step.step,
                                        .num_active = tally->step.num_active,
                                        .bucket = -1},
                       deadline);
}

// Zeros and one rank's squares are those squares, to the bit; NaN stays NaN.
static gs_status tell_squares(gs_bucket_tally *tally, gs_deadline deadline) {
    const gs_dealt_squares *dealt = &tally->dealt;
    size_t num_params = tally->layout->num_params;
    for (size_t i = 0; i < num_params; i++) {
        dealt->said[i] = measures(tally, i) ? tally->squares[i] : 0;
        dealt->said[num_params + i] = measures(tally, i) ? 1 : 0;
    }
    GS_FAILPOINT("reducer.squares");
    GS_TRY(sum_doubles(tally, dealt->sums, dealt->said, 2 * num_params, deadline));
    for (size_t i = 0; i < num_params; i++) {
        tally->squares[i] = dealt->sums[i];
        if (dealt->sums[num_params + i] != 1)
            return gs_error(GS_FAILED_PRECONDITION,
                            "step %lld: %.0f ranks took the squares of parameter %zu \"%.80s\", "
                            "must be one",
                            (long long)tally->step.step, dealt->sums[num_params + i], i,
                            tally->layout->params[i].name);
    }
    return gs_ok();
}

static gs_status read_in_place(gs_bucket_tally *tally, gs_deadline deadline) {
    GS_TRY(gs_stream_wait(gs_device_stream(tally->device), deadline));
    return tally->dealt.measured_by ? tell_squares(tally, deadline) : gs_ok();
}

static const gs_tally_world in_place = {
    .name = "in place",
    .write = write_in_place,
    .take = take_in_place,
    .close = close_in_place,
    .measure = measure_in_place,
    .read = read_in_place,
};

static void write_mirrored(const gs_bucket_tally *tally, size_t index, gs_work_stream on) {
    write_share(tally, index, tally->mirror.out + tally->mirror.offset_bytes[index]);
    gs_bucket_mirror_send(&tally->mirror, index, on);
}

// Only asked for: the answer is read when all buckets have been asked.
static gs_status take_mirrored(gs_bucket_tally *tally, size_t index) {
    if (bucket_at(tally, index)->travels) gs_bucket_mirror_fetch(&tally->mirror, index);
    if (!tally->sample_mean) gs_bucket_mirror_measure(&tally->mirror, index);
    return gs_ok();
}

static gs_status read_answers(gs_bucket_tally *tally) {
    const gs_bucket_mirror *mirror = &tally->mirror;
    for (size_t b = 0; b < num_buckets(tally); b++) {
        if (bucket_at(tally, b)->travels)
            GS_TRY(read_sums(tally, b, mirror->in + mirror->offset_bytes[b]));
    }
    tally->has_read = true;
    return gs_ok();
}

static gs_status close_mirrored(gs_bucket_tally *tally, gs_deadline deadline) {
    if (!tally->sample_mean) return gs_ok();
    GS_TRY(gs_stream_wait(gs_device_stream(tally->device), deadline));
    GS_TRY(read_answers(tally));
    for (size_t b = 0; b < num_buckets(tally); b++) {
        if (bucket_at(tally, b)->travels) gs_tally_divide(tally, b);
        gs_bucket_mirror_measure(&tally->mirror, b);
    }
    return gs_ok();
}

static void measure_mirrored(gs_bucket_tally *tally, size_t param) {
    gs_bucket_mirror_measure_param(&tally->mirror, param);
}

static gs_status read_mirrored(gs_bucket_tally *tally, gs_deadline deadline) {
    gs_stream *stream = gs_device_stream(tally->device);
    GS_TRY(tally->is_marked
               ? gs_stream_wait_until(stream, tally->measured, "norms of reduced gradients", deadline)
               : gs_stream_wait(stream, deadline));
    if (!tally->has_read) GS_TRY(read_answers(tally));
    return gs_bucket_mirror_settle(&tally->mirror, deadline);
}

static const gs_tally_world mirrored = {
    .name = "mirrored",
    .write = write_mirrored,
    .take = take_mirrored,
    .close = close_mirrored,
    .measure = measure_mirrored,
    .read = read_mirrored,
};

static bool alloc_apart(gs_bucket_tally *tally) {
    size_t num_params = tally->layout->num_params, words = gs_tally_apart_words(num_params);
    tally->apart.parts = calloc(num_params, sizeof *tally->apart.parts);
    tally->apart.said = calloc(words, sizeof *tally->apart.said);
    tally->apart.sums = calloc(words, sizeof *tally->apart.sums);
    return tally->apart.parts && tally->apart.said && tally->apart.sums;
}

const uint8_t *gs_bucket_tally_used(const gs_bucket_tally *tally) {
    if (tally->world == &gs_tally_apart) return NULL;
    // What a rank used itself some rank has used.
    return tally->world == &in_place ? tally->used_anywhere : tally->used;
}

static const gs_tally_world *world_for(const gs_grad_layout *layout) {
    if (!layout->has_reserved) return &gs_tally_apart;
    return layout->device ? &mirrored : &in_place;
}

gs_status gs_bucket_tally_init(gs_bucket_tally *tally, const gs_grad_layout *layout,
                               gs_device *device, bool sample_mean) {
    size_t num_params = layout->num_params;
    *tally = (gs_bucket_tally){
        .world = world_for(layout), .layout = layout, .device = device, .sample_mean = sample_mean};
    GS_TRY(gs_bucket_mirror_init(&tally->mirror, layout));
    if (layout->device) GS_TRY(gs_event_create(&tally->measured, device, false));
    tally->used = calloc(num_params, sizeof *tally->used);
    tally->used_anywhere = calloc(num_params, sizeof *tally->used_anywhere);
    tally->squares =
        layout->device ? tally->mirror.squares : calloc(num_params, sizeof *tally->squares);
    if (tally->used && tally->used_anywhere && tally->squares &&
        (tally->world != &gs_tally_apart || alloc_apart(tally)))
        return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "bucket tally: out of memory");
}

static gs_status check_measured_by(const gs_grad_layout *layout, const int *measured_by) {
    for (size_t i = 0; i < layout->num_params; i++) {
        if (measured_by[i] < 0)
            return gs_error(GS_INVALID_ARGUMENT, "measured_by: parameter %zu \"%.80s\": rank %d", i,
                            layout->params[i].name, measured_by[i]);
    }
    return gs_ok();
}

gs_status gs_bucket_tally_deal(gs_bucket_tally *tally, const int *measured_by) {
    gs_dealt_squares *dealt = &tally->dealt;
    size_t num_params = tally->layout->num_params;
    GS_TRY(check_measured_by(tally->layout, measured_by));
    if (tally->world != &in_place) return gs_ok();
    dealt->said = calloc(2 * num_params, sizeof *dealt->said);
    dealt->sums = calloc(2 * num_params, sizeof *dealt->sums);
    dealt->measured_by = calloc(num_params, sizeof *dealt->measured_by);
    if (!dealt->said || !dealt->sums || !dealt->measured_by)
        return gs_error(GS_RESOURCE_EXHAUSTED, "bucket tally: out of memory");
    memcpy(dealt->measured_by, measured_by, num_params * sizeof *measured_by);
    return gs_ok();
}

void gs_bucket_tally_release(gs_bucket_tally *tally) {
    if (!tally->world) return;
    if (!tally->mirror.device) free(tally->squares);
    gs_bucket_mirror_release(&tally->mirror);
    gs_event_destroy(tally->measured);
    free(tally->used);
    free(tally->used_anywhere);
    free(tally->apart.parts);
    free(tally->apart.said);
    free(tally->apart.sums);
    free(tally->dealt.measured_by);
    free(tally->dealt.said);
    free(tally->dealt.sums);
    *tally = (gs_bucket_tally){0};
}

void gs_bucket_tally_place(gs_bucket_tally *tally) {
    gs_bucket_mirror_place(&tally->mirror);
}

void gs_bucket_tally_begin(gs_bucket_tally *tally, const gs_bucket_step *step) {
    size_t num_params = tally->layout->num_params;
    tally->step = *step;
    tally->samples = 0;
    tally->total_samples = -1;
    tally->has_read = tally->is_marked = tally->holds_own = tally->nonfinite = false;
    memset(tally->used, 0, num_params);
    memset(tally->used_anywhere, 0, num_params);
    if (tally->world != &gs_tally_apart) return;
    memset(tally->apart.parts, 0, num_params * sizeof *tally->apart.parts);
    memset(tally->apart.said, 0, gs_tally_apart_words(num_params) * sizeof *tally->apart.said);
    memset(tally->squares, 0, num_params * sizeof *tally->squares);
}

// A GPU's table has one entry for each parameter.
static gs_status check_segment(const gs_bucket_tally *tally, size_t index, const gs_segment *one,
                               const gs_segment *before) {
    const gs_grad_layout *layout = tally->layout;
    size_t param = one->tensor;
    if (param >= layout->num_params || layout->bucket_of[param] != index ||
        one->first > layout->counts[param] || one->count > layout->counts[param] - one->first)
        return gs_error(GS_INVALID_ARGUMENT,
                        "elements %zu to %zu of parameter %zu are not of bucket %zu", one->first,
                        one->first + one->count, param, index);
    if (before && before->tensor == param && one->first < before->first + before->count)
        return gs_error(GS_INVALID_ARGUMENT, "element %zu of parameter %zu is in two segments",
                        one->first, param);
    if (one->count && !gs_grad_layout_keeps(layout, one))
        return gs_error(GS_FAILED_PRECONDITION,
                        "elements %zu to %zu of parameter %zu are not of the part of bucket %zu "
                        "that stays, and others take its window",
                        one->first, one->first + one->count, param, index);
    if (before && before->tensor == param && layout->device)
        return gs_error(GS_UNIMPLEMENTED, "several segments of parameter %zu on a GPU", param);
    return gs_ok();
}

gs_status gs_bucket_tally_hold(gs_bucket_tally *tally, size_t index, const gs_segment *segments,
                               size_t num_segments) {
    if (tally->world != &gs_tally_apart)
        return gs_error(GS_UNIMPLEMENTED,
                        "leaves parts of the bucket without a result, which a tally in buckets is "
                        "read from; GS_TALLY_APART is for that");
    for (size_t i = 0; i < num_segments; i++)
        GS_TRY(check_segment(tally, index, &segments[i], i ? &segments[i - 1] : NULL));
    tally->apart.parts[index] = (gs_bucket_part){true, segments, num_segments};
    return gs_ok();
}

gs_status gs_bucket_tally_own(gs_bucket_tally *tally) {
    if (tally->world == &gs_tally_apart)
        return gs_error(GS_UNIMPLEMENTED,
                        "has a result of this rank's own, of which a tally apart cannot tell; "
                        "GS_TALLY_IN_BUCKETS is for that");
    if (tally->dealt.measured_by)
        return gs_error(GS_UNIMPLEMENTED, "has a result of this rank's own, of which no other rank "
                                          "takes the squares (measured_by)");
    if (tally->sample_mean)
        return gs_error(GS_UNIMPLEMENTED, "has a result of this rank's own, but a sample mean is "
                                          "divided by the samples of all ranks");
    tally->holds_own = true;
    return gs_ok();
}

bool gs_bucket_tally_is_partial(const gs_bucket_tally *tally) {
    for (size_t b = 0; b < num_buckets(tally) && tally->apart.parts; b++) {
        if (tally->apart.parts[b].is_partial) return true;
    }
    return false;
}

void gs_bucket_tally_write(const gs_bucket_tally *tally, size_t index, gs_work_stream on) {
    tally->world->write(tally, index, on);
}

gs_status gs_bucket_tally_take(gs_bucket_tally *tally, size_t index) {
    return tally->world->take(tally, index);
}

gs_status gs_bucket_tally_close(gs_bucket_tally *tally, gs_deadline deadline) {
    return tally->world->close(tally, deadline);
}

void gs_bucket_tally_measure(gs_bucket_tally *tally, size_t param) {
    tally->world->measure(tally, param);
}

gs_status gs_bucket_tally_mark(gs_bucket_tally *tally, const double **squares) {
    const gs_grad_layout *layout = tally->layout;
    if (tally->world != &mirrored)
        return gs_error(GS_UNIMPLEMENTED, "squares that a device adds up: of a GPU's buckets, with the tally in them");
    for (size_t i = 0; i < layout->num_params; i++) {
        if (layout->dtypes[i] != GS_FP32)
            return gs_error(GS_UNIMPLEMENTED, "squares that a device adds up: parameter %zu \"%.80s\" is %s", i,
                            layout->params[i].name, gs_dtype_name(layout->dtypes[i]));
    }
    gs_event_record(tally->measured, gs_device_stream(tally->device));
    tally->is_marked = true;
    *squares = tally->squares;
    return gs_ok();
}

// Whoever left out an update that others make would be another replica for good.
static gs_status agree_finite(gs_bucket_tally *tally, gs_deadline deadline) {
    double mine = tally->nonfinite ? 1 : 0, all = 0;
    GS_TRY(sum_doubles(tally, &all, &mine, 1, deadline));
    tally->nonfinite = all > 0;
    return gs_ok();
}

gs_status gs_bucket_tally_read(gs_bucket_tally *tally, gs_deadline deadline) {
    GS_TRY(tally->world->read(tally, deadline));
    tally->nonfinite = isnan(gs_grad_norm(tally->squares, tally->layout->num_params));
    return tally->holds_own ? agree_finite(tally, deadline) : gs_ok();
}
