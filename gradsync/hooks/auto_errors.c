#include "gradsync/hooks/auto_errors.h"

#include <math.h>

#include "gradsync/hooks/auto_costs.h"
#include "kernels/kernels.h"

#define BLOCK (8 * GS_AUTO_ROW_COUNT)  // whole rows: the codes are those that would be sent
#define LARGEST_FP16 65504.0
// A sum of all ranks has to fit, and the steps until somebody looks again are not this one.
#define HEADROOM 16.0

typedef struct losses {
    double meant, lost[GS_NUM_OFFERS];  // squares
    double most;                        // magnitude
} losses;

static double lost_between(const float *sent, const float *meant, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        double off = (double)sent[i] - (double)meant[i];
        sum += off * off;
    }
    return sum;
}

static void add_block(losses *all, gs_device *device, const float *data, size_t count, float scale) {
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    float meant[BLOCK], sent[BLOCK], scales[2 * BLOCK / GS_AUTO_ROW_COUNT];
    uint8_t codes[BLOCK];
    const gs_quantized coded = {
        .codes = codes, .scales = scales, .count = count, .segment_count = GS_AUTO_ROW_COUNT, .dtype = GS_FP32};
    for (size_t i = 0; i < count; i++) {
        meant[i] = data[i] * scale;
        double magnitude = fabs((double)meant[i]);
        all->meant += magnitude * magnitude;
        if (magnitude > all->most) all->most = magnitude;
    }
    kernels->round(stream, sent, meant, GS_FP16, count, false);
    all->lost[GS_OFFER_FP16] += lost_between(sent, meant, count);
    kernels->round(stream, sent, meant, GS_BF16, count, false);
    all->lost[GS_OFFER_BF16] += lost_between(sent, meant, count);
    kernels->quantize(stream, &coded, meant, GS_AUTO_LEAST_SCALE);
    kernels->dequantize(stream, sent, &coded, 1, 0, 1);
    all->lost[GS_OFFER_INT8] += lost_between(sent, meant, count);
}

// What is not a number is all lost.
static double share(double lost, double meant) {
    double error = meant > 0 ? sqrt(lost / meant) : meant == 0 ? 0 : 1;
    return error < 1 ? error : 1;
}

void gs_auto_errors_measure(double errors[GS_NUM_OFFERS], gs_device *device, const float *data, size_t count, float scale,
                            int world_size) {
    losses all = {0};
    for (size_t first = 0; first < count; first += BLOCK)
        add_block(&all, device, data + first, count - first < BLOCK ? count - first : BLOCK, scale);
    bool is_finite = all.meant < INFINITY;
    for (int kind = 0; kind < GS_NUM_OFFERS; kind++) errors[kind] = is_finite ? share(all.lost[kind], all.meant) : 1;
    errors[GS_OFFER_ALLREDUCE] = 0;
    if (all.most * HEADROOM * world_size > LARGEST_FP16) errors[GS_OFFER_FP16] = 1;
}
