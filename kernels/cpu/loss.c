// Softmax and cross-entropy in one pass over each row, with the gradient in place.
#include <inttypes.h>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/math.h"

typedef struct loss_job {
    float *losses, *logits;
    const int32_t *targets;
    size_t rows, classes, stride, rows_per_item;
    float dloss;
    bool gradient;
    int64_t num_correct;
} loss_job;

// The prediction is the first of the largest logits.
static bool is_correct(const float *logits, size_t target, float largest) {
    if (!(logits[target] == largest)) return false;
    for (size_t i = 0; i < target; i++) {
        if (logits[i] == largest) return false;
    }
    return true;
}

static float write_gradient(const loss_job *job, float *logits, size_t target, float largest) {
    const size_t classes = job->classes;
    float sum;
    GS_ELEMENTWISE
    for (size_t i = 0; i < classes; i++) logits[i] = exp_fp32(logits[i] - largest);
    GS_LANE_SUM(float, sum, i, classes, logits[i]);
    const float factor = job->dloss / sum;
    const float at_target = (logits[target] / sum - 1.0f) * job->dloss;
    GS_ELEMENTWISE
    for (size_t i = 0; i < classes; i++) logits[i] *= factor;
    logits[target] = at_target;
    for (size_t i = classes; i < job->stride; i++) logits[i] = 0.0f;
    return sum;
}

static void loss_item(void *ctx, size_t item) {
    loss_job *job = ctx;
    gs_range rows = gs_item_range(item, job->rows_per_item, job->rows);
    int64_t num_correct = 0;
    for (size_t row = rows.first; row < rows.first + rows.count; row++) {
        float *logits = job->logits + row * job->stride;
        const size_t target = (size_t)job->targets[row];
        float largest, sum;
        GS_LANE_MAX(largest, i, job->classes, logits[i]);
        const double distance = (double)largest - (double)logits[target];
        num_correct += is_correct(logits, target, largest);
        if (job->gradient) {
            sum = write_gradient(job, logits, target, largest);
        } else {
            GS_LANE_SUM(float, sum, i, job->classes, exp_fp32(logits[i] - largest));
        }
        job->losses[row] = (float)(log_fp64((double)sum) + distance);
    }
    if (num_correct) __atomic_fetch_add(&job->num_correct, num_correct, __ATOMIC_RELAXED);
}

void GS_CPU(softmax_loss)(gs_stream *stream, float *losses, float *logits, int64_t *num_correct,
                          const int32_t *targets, size_t rows, size_t classes, size_t stride,
                          float dloss, bool gradient) {
    for (size_t row = 0; row < rows; row++) {
        if (targets[row] >= 0 && (size_t)targets[row] < classes) continue;
        gs_stream_fail(stream,
                       gs_error(GS_INVALID_ARGUMENT,
                                "softmax_loss: row %zu: target %" PRId32 " is not in [0, %zu)", row,
                                targets[row], classes));
        return;
    }
    loss_job job = {.losses = losses,
                    .logits = logits,
                    .targets = targets,
                    .rows = rows,
                    .classes = classes,
                    .stride = stride,
                    .dloss = dloss,
                    .gradient = gradient};
    job.rows_per_item = gs_rows_per_item(classes);
    gs_stream_for_each(stream, gs_num_items(rows, job.rows_per_item), loss_item, &job);
    if (num_correct) *num_correct = job.num_correct;
}
