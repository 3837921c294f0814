#include "gradsync/bucket/bucket_tally.h"

#include <stdlib.h>
#include <string.h>

#include "gradsync/bucket/grad_squares.h"
#include "gradsync/bucket/main_grad.h"

// How buckets are written and read where they lie.
struct gs_tally_world {
    const char *name;
    void (*write)(const gs_bucket_tally *tally, size_t index, gs_work_stream on);
    gs_status (*take)(gs_bucket_tally *tally, size_t index);
    gs_status (*close)(gs_bucket_tally *tally, gs_deadline deadline);
    void (*measure)(gs_bucket_tally *tally, size_t param);
    gs_status (*read)(gs_bucket_tally *tally, gs_deadline deadline);
};

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

static gs_status check_sums(const gs_bucket_tally *tally, size_t index,
                            const gs_bucket_reserved *sums) {
    long long step = (long long)tally->step.step;
    if (sums->samples < 0)
        return gs_error(GS_DATA_LOSS, "step %lld: bucket %zu: its samples are no count", step,
                        index);
    if (sums->samples > GS_MAX_STEP_SAMPLES)
        return gs_error(GS_FAILED_PRECONDITION,
                        "step %lld: %lld samples of all ranks, of a step at most %lld", step,
                        (long long)sums->samples, (long long)GS_MAX_STEP_SAMPLES);
    if (sums->num_ranks != tally->step.num_ranks)
        return gs_error(GS_DATA_LOSS, "step %lld: bucket %zu: %lld ranks are in the sum of %d",
                        step, index, (long long)sums->num_ranks, tally->step.num_ranks);
    if (sums->num_active != tally->step.num_active)
        return gs_error(GS_FAILED_PRECONDITION,
                        "step %lld: bucket %zu: %lld ranks had data, %d were announced", step,
                        index, (long long)sums->num_active, tally->step.num_active);
    if (tally->total_samples >= 0 && sums->samples != tally->total_samples)
        return gs_error(GS_DATA_LOSS,
                        "step %lld: bucket %zu: carries %lld samples, earlier ones %lld", step,
                        index, (long long)sums->samples, (long long)tally->total_samples);
    if (tally->sample_mean && !sums->samples)
        return gs_error(GS_FAILED_PRECONDITION,
                        "step %lld: no rank has samples, there is no mean over them", step);
    return gs_ok();
}

static gs_status read_sums(gs_bucket_tally *tally, size_t index, const void *reserved) {
    gs_bucket_reserved sums;
    gs_bucket_read_reserved(&sums, tally->used_anywhere, bucket_at(tally, index), reserved,
                            tally->step.scale);
    GS_TRY(check_sums(tally, index, &sums));
    tally->total_samples = sums.samples;
    return gs_ok();
}

// Divides the sums of a sample mean by what the scale has not yet taken out.
static void divide_bucket(const gs_bucket_tally *tally, size_t index) {
    const gs_bucket *bucket = bucket_at(tally, index);
    gs_main_grad_scale(gs_grad_layout_bucket(tally->layout, 0, bucket),
                       1.0 / ((double)tally->total_samples * tally->step.scale), bucket->dtype,
                       bucket->grad_count, gs_work_stream_of(tally->device));
}

static void *reserved_at(const gs_bucket_tally *tally, size_t index) {
    return gs_bucket_reserved_at(bucket_at(tally, index), gs_grad_layout_slot(tally->layout, 0));
}

static void write_in_place(const gs_bucket_tally *tally, size_t index, gs_work_stream on) {
    (void)on;
    write_share(tally, index, reserved_at(tally, index));
}

static void measure_in_place(gs_bucket_tally *tally, size_t param) {
    const gs_grad_layout *layout = tally->layout;
    gs_grad_squares_main(&tally->squares[param], gs_grad_layout_grads(layout, 0)[param],
                         layout->dtypes[param], layout->counts[param], tally->device);
}

static gs_status take_in_place(gs_bucket_tally *tally, size_t index) {
    const gs_bucket *bucket = bucket_at(tally, index);
    if (bucket->travels) {
        GS_TRY(read_sums(tally, index, reserved_at(tally, index)));
        if (tally->sample_mean) divide_bucket(tally, index);
    }
    for (size_t i = 0; i < bucket->num_params; i++) measure_in_place(tally, bucket->params[i]);
    return gs_ok();
}

static gs_status close_in_place(gs_bucket_tally *tally, gs_deadline deadline) {
    (void)tally, (void)deadline;
    return gs_ok();
}

static gs_status read_in_place(gs_bucket_tally *tally, gs_deadline deadline) {
    return gs_stream_wait(gs_device_stream(tally->device), deadline);
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
        if (bucket_at(tally, b)->travels) divide_bucket(tally, b);
        gs_bucket_mirror_measure(&tally->mirror, b);
    }
    return gs_ok();
}

static void measure_mirrored(gs_bucket_tally *tally, size_t param) {
    gs_bucket_mirror_measure_param(&tally->mirror, param);
}

static gs_status read_mirrored(gs_bucket_tally *tally, gs_deadline deadline) {
    GS_TRY(gs_stream_wait(gs_device_stream(tally->device), deadline));
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

gs_status gs_bucket_tally_init(gs_bucket_tally *tally, const gs_grad_layout *layout,
                               gs_device *device, bool sample_mean) {
    size_t num_params = layout->num_params;
    *tally = (gs_bucket_tally){.world = layout->device ? &mirrored : &in_place,
                               .layout = layout,
                               .device = device,
                               .sample_mean = sample_mean};
    GS_TRY(gs_bucket_mirror_init(&tally->mirror, layout));
    tally->used = calloc(num_params, sizeof *tally->used);
    tally->used_anywhere = calloc(num_params, sizeof *tally->used_anywhere);
    tally->squares =
        layout->device ? tally->mirror.squares : calloc(num_params, sizeof *tally->squares);
    if (tally->used && tally->used_anywhere && tally->squares) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "bucket tally: out of memory");
}

void gs_bucket_tally_release(gs_bucket_tally *tally) {
    if (!tally->world) return;
    if (!tally->mirror.device) free(tally->squares);
    gs_bucket_mirror_release(&tally->mirror);
    free(tally->used);
    free(tally->used_anywhere);
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
    tally->has_read = false;
    memset(tally->used, 0, num_params);
    memset(tally->used_anywhere, 0, num_params);
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

gs_status gs_bucket_tally_read(gs_bucket_tally *tally, gs_deadline deadline) {
    return tally->world->read(tally, deadline);
}
