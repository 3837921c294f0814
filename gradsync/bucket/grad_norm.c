#include "gradsync/bucket/grad_norm.h"

#include <math.h>
#include <stdlib.h>

#include "gradsync/bucket/grad_squares.h"

double gs_grad_norm(const double *squares, size_t num_tensors) {
    double sum = 0;
    for (size_t i = 0; i < num_tensors; i++) sum += squares[i];
    return sqrt(sum);
}

float gs_grad_clip_coefficient(double norm, double max_norm) {
    double factor = max_norm / (norm + 1e-6);
    return factor > 1 ? 1.0f : (float)factor;  // NaN stays NaN: such a step is not applied
}

float gs_grad_clip_factor(double norm, double max_norm) {
    return max_norm <= 0 ? 1.0f : gs_grad_clip_coefficient(norm, max_norm);
}

// The larger one; NaN when one of them is.
static double larger(double a, double b) {
    return a > b || isnan(a) ? a : b;
}

static double largest_of(const gs_grad_list *list) {
    double largest = 0;
    for (size_t i = 0; i < list->num_grads; i++) {
        const float *grad = list->grads[i];
        for (size_t j = 0; j < list->counts[i]; j++)
            largest = larger(largest, fabs((double)grad[j]));
    }
    return largest;
}

static double sum_squares(const gs_grad_list *list, gs_device *device) {
    double sum = 0, squares;
    for (size_t i = 0; i < list->num_grads; i++) {
        if (!gs_grad_squares(&squares, list->grads[i], list->counts[i], device))
            squares = gs_grad_squares_wide(list->grads[i], list->counts[i]);  // infinite or NaN
        sum += squares;
    }
    return sum;
}

// Powers are of shares of the largest: no p takes them out of the range of fp64.
static double add_share(double sum, double size, double largest, double p) {
    double share = size / largest;
    return sum + (p == 1 ? share : pow(share, p));
}

static double norm_of_shares(double sum, double largest, double p) {
    return largest * (p == 1 ? sum : pow(sum, 1 / p));
}

static bool decides_alone(double largest, double p) {
    return isinf(p) || !isfinite(largest) || largest == 0;
}

static double norm_of_host(const gs_grad_list *list, double p) {
    double largest = largest_of(list), sum = 0;
    if (decides_alone(largest, p)) return largest;
    for (size_t i = 0; i < list->num_grads; i++) {
        const float *grad = list->grads[i];
        for (size_t j = 0; j < list->counts[i]; j++)
            sum = add_share(sum, fabs((double)grad[j]), largest, p);
    }
    return norm_of_shares(sum, largest, p);
}

static double wide_norm(const gs_grad_list *list) {
    double sum = 0;
    for (size_t i = 0; i < list->num_grads; i++)
        sum += gs_grad_squares_wide(list->grads[i], list->counts[i]);
    return sqrt(sum);
}

// All other norms, and that of gradients beyond fp32, of a copy.
static double norm_of_copy(const gs_grad_list *list, double p, gs_device *device) {
    size_t count = 0, at = 0;
    for (size_t i = 0; i < list->num_grads; i++) count += list->counts[i];
    float *memory = malloc(count * sizeof *memory + 1);
    void **grads = calloc(list->num_grads + 1, sizeof *grads);
    gs_status status = gs_ok();
    if (!memory || !grads) status = gs_error(GS_RESOURCE_EXHAUSTED, "norm: out of memory");
    for (size_t i = 0; i < list->num_grads && !status.code; i++) {
        grads[i] = memory + at;
        status =
            gs_device_download(device, grads[i], list->grads[i], list->counts[i] * sizeof *memory);
        at += list->counts[i];
    }
    const gs_grad_list copy = {grads, list->counts, list->num_grads};
    double norm = (double)NAN;
    if (!status.code) norm = p == 2 ? wide_norm(&copy) : norm_of_host(&copy, p);
    free(grads);
    free(memory);
    return norm;
}

double gs_grad_list_norm(const gs_grad_list *list, double p, gs_device *device) {
    double squares;
    if (gs_device_is_host(device))
        return p == 2 ? sqrt(sum_squares(list, device)) : norm_of_host(list, p);
    if (p == 2 &&
        gs_grad_squares_launch(&squares, list->grads, list->counts, list->num_grads, device))
        return sqrt(squares);
    return norm_of_copy(list, p, device);
}

static gs_status reduce(double *result, double value, gs_reduce_op op, gs_comm *comm,
                        gs_deadline deadline) {
    const gs_collective collective = {.kind = GS_ALLREDUCE,
                                      .send = &value,
                                      .recv = result,
                                      .count = 1,
                                      .dtype = GS_FP64,
                                      .op = op,
                                      .step = -1,
                                      .bucket = -1};
    return gs_comm_run(comm, &collective, deadline);
}

gs_status gs_grad_norm_across(double *norm, double own_norm, double p, gs_comm *comm,
                              gs_deadline deadline) {
    double largest = 0, sum = 0;
    GS_TRY(reduce(&largest, own_norm, GS_OP_MAX, comm, deadline));
    *norm = largest;
    if (decides_alone(largest, p)) return gs_ok();
    GS_TRY(reduce(&sum, add_share(0, own_norm, largest, p), GS_OP_SUM, comm, deadline));
    *norm = norm_of_shares(sum, largest, p);
    return gs_ok();
}

void gs_grad_list_clip(const gs_grad_list *list, double norm, double max_norm, gs_device *device) {
    const gs_kernels *kernels = gs_device_kernels(device);
    float factor = gs_grad_clip_coefficient(norm, max_norm);
    if (factor == 1) return;
    for (size_t i = 0; i < list->num_grads; i++)
        kernels->scale(gs_device_stream(device), list->grads[i], list->grads[i], factor,
                       list->counts[i]);
}
