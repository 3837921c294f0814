// The check: launches on both devices, and what must be the same afterwards.
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/kernel_case.h"
#include "tests/gpu/kernel_test.h"

#define GUARD_BYTES ((size_t)1024)
#define GUARD 0xff  // NaN in every type, -1 in integers: reading it shows as well
#define WAIT_SECONDS 120.0

void kernel_fail(kernel_test *test, const char *format, ...) {
    if (test->failed) return;
    test->failed = true;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(test->failure, sizeof test->failure, format, arguments);
    va_end(arguments);
    if (test->quiet) return;
    printf("FAIL %s: %s (seed %llu): %s\n", test->case_name, test->shape,
           (unsigned long long)test->seed, test->failure);
}

// ---- one device's copies of the tensors

typedef struct tensor_block {
    unsigned char *memory;  // on the device: guard, offset, tensor, guard
    unsigned char *image;   // of the host
    size_t bytes;
} tensor_block;

typedef struct kernel_side {
    kernel_test *test;
    gs_device *device;
    kernel_run run;
    tensor_block blocks[KERNEL_MAX_TENSORS];
} kernel_side;

static bool take(kernel_side *side, gs_status status) {
    if (status.code)
        kernel_fail(side->test, "%s: %s", gs_device_name(side->device), status.message);
    return !status.code;
}

static void close_side(kernel_side *side) {
    for (int i = 0; i < side->test->num_tensors; i++) {
        tensor_block *block = &side->blocks[i];
        free(block->image);
        if (!block->memory) continue;
        if (side->test->tensors[i].pinned) {
            gs_device_free_pinned(side->device, block->memory);
        } else {
            gs_device_free(side->device, block->memory);
        }
    }
}

static bool open_side(kernel_side *side, kernel_test *test, gs_device *device, const void *shape) {
    *side = (kernel_side){.test = test, .device = device};
    side->run.kernels = gs_device_kernels(device);
    if (test->half_dtype) side->run.half = gs_device_half_kernels(device, test->half_dtype);
    side->run.stream = gs_device_stream(device);
    side->run.shape = shape;
    for (int i = 0; i < test->num_tensors; i++) {
        const kernel_tensor *tensor = &test->tensors[i];
        tensor_block *block = &side->blocks[i];
        block->bytes = 2 * GUARD_BYTES + tensor->offset_bytes + tensor->bytes;
        block->image = malloc(block->bytes);
        void *memory = NULL;
        gs_status status = tensor->pinned ? gs_device_alloc_pinned(device, &memory, block->bytes)
                                          : gs_device_alloc(device, &memory, block->bytes);
        if (!block->image || !take(side, status)) return false;
        block->memory = memory;
        side->run.at[i] = block->memory + GUARD_BYTES + tensor->offset_bytes;
    }
    return true;
}

// What the tensor holds before a launch.
static void fill_tensor(const kernel_tensor *tensor, unsigned char *data, unsigned char poison) {
    if (tensor->role == KERNEL_OUTPUT || tensor->role == KERNEL_SCRATCH) {
        memset(data, poison, tensor->bytes);
    } else {
        memcpy(data, tensor->initial, tensor->bytes);
    }
}

static bool upload_tensors(kernel_side *side, unsigned char poison) {
    for (int i = 0; i < side->test->num_tensors; i++) {
        const kernel_tensor *tensor = &side->test->tensors[i];
        tensor_block *block = &side->blocks[i];
        memset(block->image, GUARD, block->bytes);
        fill_tensor(tensor, block->image + GUARD_BYTES + tensor->offset_bytes, poison);
        if (tensor->pinned) {
            memcpy(block->memory, block->image, block->bytes);
        } else if (!take(side, gs_device_upload(side->device, block->memory, block->image,
                                                block->bytes))) {
            return false;
        }
    }
    return true;
}

static bool download_tensors(kernel_side *side) {
    for (int i = 0; i < side->test->num_tensors; i++) {
        tensor_block *block = &side->blocks[i];
        if (side->test->tensors[i].pinned) {
            memcpy(block->image, block->memory, block->bytes);
        } else if (!take(side, gs_device_download(side->device, block->image, block->memory,
                                                  block->bytes))) {
            return false;
        }
    }
    return true;
}

static const unsigned char *result_of(const kernel_side *side, int i) {
    return side->blocks[i].image + GUARD_BYTES + side->test->tensors[i].offset_bytes;
}

static gs_status wait_side(kernel_side *side) {
    return gs_stream_wait(side->run.stream, gs_deadline_in_seconds(WAIT_SECONDS));
}

static bool launch_direct(kernel_side *side, kernel_launch launch, unsigned char poison) {
    if (!upload_tensors(side, poison)) return false;
    launch(&side->run);
    return take(side, wait_side(side)) && download_tensors(side);
}

static bool launch_graph(kernel_side *side, kernel_launch launch, unsigned char poison) {
    gs_graph *graph = NULL;
    if (!upload_tensors(side, poison) || !take(side, gs_graph_begin(side->run.stream)))
        return false;
    launch(&side->run);
    bool is_fine = take(side, gs_graph_end(&graph, side->run.stream)) &&
                   take(side, gs_graph_launch(graph, side->run.stream)) &&
                   take(side, wait_side(side)) && download_tensors(side);
    gs_graph_destroy(graph);
    return is_fine;
}

// ---- comparisons

static double number_at(const void *data, size_t i, gs_dtype dtype) {
    const unsigned char *at = (const unsigned char *)data + i * gs_dtype_bytes(dtype);
    float fp32;
    double fp64;
    uint16_t bits;
    int64_t i64;
    int32_t i32;
    switch (dtype) {
    case GS_FP32:
        memcpy(&fp32, at, sizeof fp32);
        return (double)fp32;
    case GS_FP64:
        memcpy(&fp64, at, sizeof fp64);
        return fp64;
    case GS_FP16:
        memcpy(&bits, at, sizeof bits);
        return (double)gs_fp16_to_fp32(bits);
    case GS_BF16:
        memcpy(&bits, at, sizeof bits);
        return (double)gs_bf16_to_fp32(bits);
    case GS_I64:
        memcpy(&i64, at, sizeof i64);
        return (double)i64;
    case GS_I32:
        memcpy(&i32, at, sizeof i32);
        return (double)i32;
    default:
        return (double)*at;
    }
}

static void fail_element(kernel_test *test, const kernel_tensor *tensor, size_t i, double got,
                         double want, const char *what) {
    kernel_fail(test, "%s: element %zu of %zu: got %.9g, want %.9g: %s", tensor->name, i,
                tensor->count, got, want, what);
}

static void check_bits(kernel_test *test, const kernel_tensor *tensor, const unsigned char *got) {
    const size_t width = gs_dtype_bytes(tensor->dtype);
    if (memcmp(got, tensor->want, tensor->bytes) == 0) return;
    for (size_t i = 0; i < tensor->count; i++) {
        if (memcmp(got + i * width, tensor->want + i * width, width) == 0) continue;
        const double g = number_at(got, i, tensor->dtype);
        const double w = number_at(tensor->want, i, tensor->dtype);
        if (isnan(g) && isnan(w)) continue;
        fail_element(test, tensor, i, g, w, "must be the same bits");
        return;
    }
}

typedef struct error_norms {
    double error, want;  // squares, of elements that are finite in both
    size_t num_finite;
} error_norms;

// Element `i` of a part of the tensor (kernel_split).
static size_t find_in_part(const kernel_tensor *tensor, int part, size_t i) {
    const size_t width = tensor->row / (size_t)tensor->num_parts;
    return i / width * tensor->row + (size_t)part * width + i % width;
}

// False when they are not finite in the same places.
static bool measure(kernel_test *test, error_norms *out, const kernel_tensor *tensor, int part,
                    const unsigned char *got) {
    *out = (error_norms){0};
    for (size_t k = 0; k < tensor->count / (size_t)tensor->num_parts; k++) {
        const size_t i = find_in_part(tensor, part, k);
        const double g = number_at(got, i, tensor->dtype);
        const double w = number_at(tensor->want, i, tensor->dtype);
        if (isfinite(g) && isfinite(w)) {
            out->error += (g - w) * (g - w);
            out->want += w * w;
            out->num_finite++;
        } else if (!(isnan(g) && isnan(w)) && !(g == w)) {
            fail_element(test, tensor, i, g, w, "not finite in the same places");
            return false;
        }
    }
    return true;
}

static void check_elements(kernel_test *test, const kernel_tensor *tensor, double rms,
                           const unsigned char *got) {
    const kernel_bound bound = tensor->bound;
    const double worst = bound.worst > 0.0 ? bound.worst : 32.0 * bound.norm;
    for (size_t i = 0; i < tensor->count; i++) {
        const double g = number_at(got, i, tensor->dtype);
        const double w = number_at(tensor->want, i, tensor->dtype);
        if (!isfinite(w) || fabs(g - w) <= worst * (fabs(w) + rms)) continue;
        fail_element(test, tensor, i, g, w, "farther than the bound of an element");
        return;
    }
}

static void check_relative(kernel_test *test, const char *name, const char *part,
                           const error_norms *norms, double most, const char *why) {
    if (sqrt(norms->error) <= most * sqrt(norms->want)) return;
    kernel_fail(test, "%s%s: relative norm of the error is %.3g, more than %.3g (%s)", name, part,
                sqrt(norms->error / norms->want), most, why);
}

static void check_norm(kernel_test *test, const kernel_tensor *tensor, const unsigned char *got) {
    const kernel_bound bound = tensor->bound;
    error_norms whole = {0}, norms;
    for (int part = 0; part < tensor->num_parts; part++) {
        if (!measure(test, &norms, tensor, part, got)) return;
        char name[32];
        snprintf(name, sizeof name, ", part %d", part);
        if (tensor->num_parts > 1)
            check_relative(test, tensor->name, name, &norms, 2.0 * bound.norm, bound.why);
        whole.error += norms.error;
        whole.want += norms.want;
        whole.num_finite += norms.num_finite;
    }
    check_relative(test, tensor->name, "", &whole, bound.norm, bound.why);
    const double rms = whole.num_finite ? sqrt(whole.want / (double)whole.num_finite) : 0.0;
    check_elements(test, tensor, rms, got);
}

static bool is_written(const kernel_tensor *tensor) {
    return tensor->role == KERNEL_OUTPUT || tensor->role == KERNEL_INOUT;
}

static void check_outputs(const kernel_side *side) {
    for (int i = 0; i < side->test->num_tensors; i++) {
        const kernel_tensor *tensor = &side->test->tensors[i];
        if (!is_written(tensor)) continue;
        if (tensor->bound.norm > 0.0) {
            check_norm(side->test, tensor, result_of(side, i));
        } else {
            check_bits(side->test, tensor, result_of(side, i));
        }
    }
}

// Guards, and what a launch must not write: inputs; with `all`, everything.
static void check_untouched(const kernel_side *side, unsigned char poison, bool all) {
    for (int i = 0; i < side->test->num_tensors; i++) {
        const kernel_tensor *tensor = &side->test->tensors[i];
        const tensor_block *block = &side->blocks[i];
        const size_t first = GUARD_BYTES + tensor->offset_bytes, end = first + tensor->bytes;
        for (size_t at = 0; at < block->bytes; at++) {
            if (at == first) at = end;
            if (block->image[at] == GUARD) continue;
            kernel_fail(side->test, "%s: wrote %lld bytes %s it", tensor->name,
                        at < first ? (long long)(first - at) : (long long)(at - end),
                        at < first ? "before" : "behind");
        }
        if (tensor->role == KERNEL_SCRATCH || tensor->role == KERNEL_TABLE) continue;
        if (is_written(tensor) && !all) continue;
        unsigned char *before = malloc(tensor->bytes + 1);
        if (!before) abort();
        fill_tensor(tensor, before, poison);
        if (memcmp(before, result_of(side, i), tensor->bytes) != 0) {
            kernel_fail(side->test, "%s was changed", tensor->name);
        }
        free(before);
    }
}

static void check_same_again(const kernel_side *side, unsigned char *const first[],
                             const char *what) {
    for (int i = 0; i < side->test->num_tensors; i++) {
        const kernel_tensor *tensor = &side->test->tensors[i];
        if (!is_written(tensor)) continue;
        if (memcmp(first[i], result_of(side, i), tensor->bytes) != 0) {
            kernel_fail(side->test, "%s: other bits %s", tensor->name, what);
        }
    }
}

static void keep_results(const kernel_side *side, unsigned char *kept[]) {
    for (int i = 0; i < side->test->num_tensors; i++) {
        kept[i] = malloc(side->test->tensors[i].bytes + 1);
        if (!kept[i]) abort();
        memcpy(kept[i], result_of(side, i), side->test->tensors[i].bytes);
    }
}

// ---- the two checks

static bool run_twin(kernel_test *test, kernel_launch launch, const void *shape) {
    kernel_side cpu;
    bool is_fine = open_side(&cpu, test, test->cpu, shape) && launch_direct(&cpu, launch, GUARD);
    for (int i = 0; is_fine && i < test->num_tensors; i++) {
        memcpy(test->tensors[i].want, result_of(&cpu, i), test->tensors[i].bytes);
    }
    if (is_fine) check_untouched(&cpu, GUARD, false);
    close_side(&cpu);
    return is_fine && !test->failed;
}

static void run_device(kernel_side *cuda, kernel_launch launch) {
    unsigned char *kept[KERNEL_MAX_TENSORS] = {NULL};
    if (!launch_direct(cuda, launch, GUARD)) return;
    check_untouched(cuda, GUARD, false);
    check_outputs(cuda);
    keep_results(cuda, kept);
    if (!cuda->test->failed && launch_direct(cuda, launch, 0x42)) {
        check_same_again(cuda, kept, "the second time, with other memory below");
    }
    if (!cuda->test->failed && gs_device_has_graphs(cuda->device) &&
        launch_graph(cuda, launch, GUARD)) {
        check_same_again(cuda, kept, "from a graph");
        check_untouched(cuda, GUARD, false);
    }
    for (int i = 0; i < cuda->test->num_tensors; i++) free(kept[i]);
}

void kernel_check(kernel_test *test, kernel_launch launch, const void *shape) {
    if (test->failed) return;
    test->num_checks++;
    // Drawn all the same, so that the others do not change.
    if (test->num_checks > 1 &&
        !sample_takes(&test->sample, test->stream, (uint64_t)test->num_checks)) {
        test->num_left_out++;
        return;
    }
    if (!run_twin(test, launch, shape)) return;
    kernel_side cuda;
    if (open_side(&cuda, test, test->cuda, shape)) run_device(&cuda, launch);
    close_side(&cuda);
}

static void check_failure(kernel_test *test, gs_device *device, kernel_launch launch,
                          const void *shape, const char *text) {
    kernel_side side;
    if (open_side(&side, test, device, shape) && upload_tensors(&side, 0x42)) {
        launch(&side.run);
        gs_status status = wait_side(&side);
        if (status.code != GS_INVALID_ARGUMENT || !strstr(status.message, text)) {
            kernel_fail(test, "%s: the stream does not fail with '%s': '%s'",
                        gs_device_name(device), text, status.code ? status.message : "ok");
        }
        take(&side, wait_side(&side));  // said once
        if (download_tensors(&side)) check_untouched(&side, 0x42, true);
    }
    close_side(&side);
}

void kernel_check_fails(kernel_test *test, kernel_launch launch, const void *shape,
                        const char *text) {
    if (test->failed) return;
    test->num_checks++;
    check_failure(test, test->cpu, launch, shape, text);
    if (!test->failed) check_failure(test, test->cuda, launch, shape, text);
}

void kernel_check_device_fails(kernel_test *test, kernel_launch launch, const void *shape,
                               const char *text) {
    if (test->failed) return;
    test->num_checks++;
    check_failure(test, test->cuda, launch, shape, text);
}
