#include "gradsync/bucket/tally_state.h"

#include "gradsync/bucket/main_grad.h"

static gs_status check_sums(const gs_bucket_tally *tally, const gs_tally_sums *sums,
                            const char *where) {
    long long step = (long long)tally->step.step;
    if (sums->samples < 0)
        return gs_error(GS_DATA_LOSS, "step %lld: %s: its samples are no count", step, where);
    if (sums->samples > GS_MAX_STEP_SAMPLES)
        return gs_error(GS_FAILED_PRECONDITION,
                        "step %lld: %lld samples of all ranks, of a step at most %lld", step,
                        (long long)sums->samples, (long long)GS_MAX_STEP_SAMPLES);
    if (sums->num_ranks != tally->step.num_ranks)
        return gs_error(GS_DATA_LOSS, "step %lld: %s: %lld ranks are in the sum of %d", step, where,
                        (long long)sums->num_ranks, tally->step.num_ranks);
    if (sums->num_active != tally->step.num_active)
        return gs_error(GS_FAILED_PRECONDITION,
                        "step %lld: %s: %lld ranks had data, %d were announced", step, where,
                        (long long)sums->num_active, tally->step.num_active);
    if (tally->total_samples >= 0 && sums->samples != tally->total_samples)
        return gs_error(GS_DATA_LOSS, "step %lld: %s: carries %lld samples, earlier ones %lld",
                        step, where, (long long)sums->samples, (long long)tally->total_samples);
    if (tally->sample_mean && !sums->samples)
        return gs_error(GS_FAILED_PRECONDITION,
                        "step %lld: no rank has samples, there is no mean over them", step);
    return gs_ok();
}

gs_status gs_tally_take_sums(gs_bucket_tally *tally, const gs_tally_sums *sums, const char *where) {
    GS_TRY(check_sums(tally, sums, where));
    tally->total_samples = sums->samples;
    return gs_ok();
}

void gs_tally_divide(const gs_bucket_tally *tally, size_t index) {
    const gs_bucket *bucket = &tally->layout->buckets[index];
    gs_main_grad_scale(gs_grad_layout_result(tally->layout, bucket),
                       1.0 / ((double)tally->total_samples * tally->step.scale), bucket->dtype,
                       bucket->result.count, gs_work_stream_of(tally->device));
}
