// A CUDA device: what it is, its memory, and the table that kernels/device.c calls.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/choice.h"
#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/event.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/staging.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/table.h"

// Counts up when a kernel's order of operations, and so its bits, change.
#define ARITHMETIC_VERSION 1
#define LEAST_CAPABILITY 80
#define ZERO_SECONDS 60.0
#define FREE_SECONDS 10.0

// ---- which devices there are

static void say_version(char *text, size_t text_bytes, int version) {
    snprintf(text, text_bytes, "%d.%d", version / 1000, version % 1000 / 10);
}

static void explain_absence(char *why, size_t why_bytes, cudaError_t error) {
    int driver = 0, runtime = 0;
    char driver_text[16], runtime_text[16];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    say_version(driver_text, sizeof driver_text, driver);
    say_version(runtime_text, sizeof runtime_text, runtime);
    if (driver == 0) {
        snprintf(why, why_bytes, "no NVIDIA driver on this machine");
    } else if (error == cudaErrorInsufficientDriver) {
        snprintf(why, why_bytes, "the NVIDIA driver is for CUDA %s, this build needs %s", driver_text,
                 runtime_text);
    } else if (error == cudaErrorNoDevice || error == cudaSuccess) {
        snprintf(why, why_bytes, "no CUDA device%s%s", visible ? " in CUDA_VISIBLE_DEVICES=" : "",
                 visible ? visible : "");
    } else {
        snprintf(why, why_bytes, "cudaGetDeviceCount: %s (%s)", cudaGetErrorString(error),
                 cudaGetErrorName(error));
    }
    (void)cudaGetLastError();
}

int gs_cuda_device_count(char *why, size_t why_bytes) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) {
        if (why_bytes) why[0] = '\0';
        return count;
    }
    explain_absence(why, why_bytes, error);
    return 0;
}

static gs_status check_ordinal(int ordinal) {
    char why[200];
    int count = gs_cuda_device_count(why, sizeof why);
    if (count == 0) return gs_error(GS_UNAVAILABLE, "device cuda:%d: %s", ordinal, why);
    if (ordinal >= 0 && ordinal < count) return gs_ok();
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return gs_error(GS_UNAVAILABLE, "device cuda:%d: this process sees %d device%s%s%s", ordinal, count,
                    count == 1 ? "" : "s", visible ? ", CUDA_VISIBLE_DEVICES=" : "",
                    visible ? visible : "");
}

static void format_uuid(char *text, size_t text_bytes, const unsigned char bytes[16]) {
    size_t at = (size_t)snprintf(text, text_bytes, "GPU");
    for (int i = 0; i < 16; i++) {
        bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        at += (size_t)snprintf(text + at, text_bytes - at, "%s%02x", dash ? "-" : "", bytes[i]);
    }
}

gs_status gs_cuda_device_facts(gs_device_facts *facts, int ordinal) {
    *facts = (gs_device_facts){0};
    GS_TRY(check_ordinal(ordinal));
    struct cudaDeviceProp properties;
    GS_TRY(gs_cuda_error(ordinal, cudaGetDeviceProperties(&properties, ordinal),
                         "cudaGetDeviceProperties"));
    snprintf(facts->name, sizeof facts->name, "%s", properties.name);
    format_uuid(facts->uuid, sizeof facts->uuid, (const unsigned char *)properties.uuid.bytes);
    facts->capability_major = properties.major;
    facts->capability_minor = properties.minor;
    facts->num_multiprocessors = properties.multiProcessorCount;
    GS_TRY(gs_cuda_error(ordinal, cudaDriverGetVersion(&facts->driver_version),
                         "cudaDriverGetVersion"));
    GS_TRY(gs_cuda_error(ordinal, cudaRuntimeGetVersion(&facts->runtime_version),
                         "cudaRuntimeGetVersion"));
    GS_TRY(gs_cuda_error(ordinal, cudaSetDevice(ordinal), "cudaSetDevice"));
    size_t free_bytes, memory_bytes;
    GS_TRY(gs_cuda_error(ordinal, cudaMemGetInfo(&free_bytes, &memory_bytes), "cudaMemGetInfo"));
    facts->free_bytes = free_bytes;
    facts->memory_bytes = memory_bytes;
    return gs_ok();
}

// ---- opening and closing

static gs_status read_attribute(int *value, gs_cuda_device *device, enum cudaDeviceAttr attribute) {
    return gs_cuda_check(device, cudaDeviceGetAttribute(value, attribute, device->ordinal),
                         "cudaDeviceGetAttribute");
}

static gs_status read_facts(gs_cuda_device *device) {
    int major = 0, minor = 0;
    GS_TRY(read_attribute(&major, device, cudaDevAttrComputeCapabilityMajor));
    GS_TRY(read_attribute(&minor, device, cudaDevAttrComputeCapabilityMinor));
    GS_TRY(read_attribute(&device->num_sms, device, cudaDevAttrMultiProcessorCount));
    GS_TRY(read_attribute(&device->max_block_shared_bytes, device,
                          cudaDevAttrMaxSharedMemoryPerBlockOptin));
    device->capability = 10 * major + minor;
    if (device->capability < LEAST_CAPABILITY)
        return gs_error(GS_UNAVAILABLE, "device cuda:%d: its sm_%d is older than sm_%d",
                        device->ordinal, device->capability, LEAST_CAPABILITY);
    return gs_cuda_check(
        device,
        cudaDeviceGetStreamPriorityRange(&device->least_priority, &device->greatest_priority),
        "cudaDeviceGetStreamPriorityRange");
}

static gs_status make_parts(gs_cuda_device *device, bool same_bits) {
    GS_TRY(gs_cuda_check(device, cudaSetDevice(device->ordinal), "cudaSetDevice"));
    GS_TRY(read_facts(device));
    GS_TRY(gs_cuda_check(device, cudaStreamCreateWithFlags(&device->service, cudaStreamNonBlocking),
                         "cudaStreamCreateWithFlags"));
    GS_TRY(gs_cuda_staging_create(&device->staging, device));
    GS_TRY(gs_cuda_stream_create(&device->base.stream, &device->base, GS_STREAM_NORMAL));
    device->compute = gs_cuda_stream_of(device->base.stream);
    GS_TRY(gs_cuda_products_open(&device->compute->products, device->compute, same_bits));
    if (same_bits || !gs_device_chooses(&device->base, GS_CHOICE_CUDNN_ATTENTION)) return gs_ok();
    return gs_cudnn_attention_open(&device->attention, device->compute);
}

// Behind work that never ends the device's memory stays: freeing it would wait for that work.
static void close_cuda(gs_device *base) {
    gs_cuda_device *device = (gs_cuda_device *)base;
    bool idle = gs_cuda_make_current(device).code == GS_OK &&
                gs_cuda_streams_idle(device, gs_deadline_in_seconds(FREE_SECONDS));
    gs_cuda_staging_destroy(device->staging, idle);
    gs_cudnn_attention_close(device->attention, idle);
    if (device->compute) gs_cuda_products_close(device->compute->products, idle);
    if (base->stream) gs_cuda_stream_destroy(base->stream);
    if (device->service) (void)cudaStreamDestroy(device->service);
    (void)cudaGetLastError();
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static gs_status open_cuda(gs_device **out, int ordinal, const gs_device_options *options) {
    GS_TRY(check_ordinal(ordinal));
    gs_cuda_device *device = calloc(1, sizeof *device);
    if (!device) return gs_error(GS_RESOURCE_EXHAUSTED, "device cuda:%d: out of memory", ordinal);
    pthread_mutex_init(&device->lock, NULL);
    device->ordinal = ordinal;
    device->tf32 = options->tf32;
    device->base.backend = &gs_cuda_backend;
    device->base.num_threads = 1;
    device->base.choices = gs_choices_from_environment();
    device->base.kernels = &gs_cuda_table;
    device->base.half_kernels[0] = &gs_cuda_bf16_table;
    device->base.half_kernels[1] = &gs_cuda_fp16_table;
    gs_status status = make_parts(device, options->same_bits);
    if (status.code) {
        close_cuda(&device->base);
        return status;
    }
    *out = &device->base;
    return gs_ok();
}

// ---- memory

static gs_status say_exhausted(gs_cuda_device *device, size_t bytes, const char *kind) {
    size_t free_bytes = 0, memory_bytes = 0;
    (void)cudaGetLastError();
    if (cudaMemGetInfo(&free_bytes, &memory_bytes) != cudaSuccess) (void)cudaGetLastError();
    return gs_error(GS_RESOURCE_EXHAUSTED, "device cuda:%d: no %s for %zu bytes, %zu of %zu free",
                    device->ordinal, kind, bytes, free_bytes, memory_bytes);
}

static gs_status zero_memory(gs_cuda_device *device, void *memory, size_t bytes) {
    GS_TRY(gs_cuda_check(device, cudaMemsetAsync(memory, 0, bytes, device->service),
                         "cudaMemsetAsync"));
    gs_deadline deadline = gs_deadline_in_seconds(ZERO_SECONDS);
    gs_cuda_pause pause = {0};
    cudaError_t error;
    while ((error = cudaStreamQuery(device->service)) == cudaErrorNotReady) {
        (void)cudaGetLastError();
        if (gs_deadline_passed(deadline))
            return gs_error(GS_DEADLINE_EXCEEDED,
                            "device cuda:%d: %zu new bytes were not zeroed within %g s",
                            device->ordinal, bytes, ZERO_SECONDS);
        gs_cuda_pause_once(&pause);
    }
    return gs_cuda_check(device, error, "cudaMemsetAsync");
}

static gs_status alloc_cuda(gs_device *base, void **memory, size_t bytes) {
    gs_cuda_device *device = (gs_cuda_device *)base;
    GS_TRY(gs_cuda_make_current(device));
    GS_TRY(gs_cuda_refuse_capture(device, "memory is allocated"));
    void *allocated = NULL;
    cudaError_t error = cudaMalloc(&allocated, bytes ? bytes : 1);
    if (error == cudaErrorMemoryAllocation) return say_exhausted(device, bytes, "memory");
    GS_TRY(gs_cuda_check(device, error, "cudaMalloc"));
    gs_status status = zero_memory(device, allocated, bytes ? bytes : 1);
    if (status.code) {
        if (status.code != GS_DEADLINE_EXCEEDED) (void)cudaFree(allocated);
        (void)cudaGetLastError();
        return status;
    }
    *memory = allocated;
    return gs_ok();
}

// cudaFree waits for the device. With work that does not end the memory is left to the process's end.
static void free_with(gs_cuda_device *device, void *memory, cudaError_t (*release)(void *)) {
    gs_status status = gs_cuda_refuse_capture(device, "memory is freed");
    if (status.code) {
        gs_stream_fail(device->base.stream, status);
        return;
    }
    if (gs_cuda_make_current(device).code != GS_OK) return;
    if (!gs_cuda_streams_idle(device, gs_deadline_in_seconds(FREE_SECONDS))) return;
    gs_cuda_stream_check(device->base.stream, release(memory), "cudaFree");
}

static void free_cuda(gs_device *device, void *memory) {
    free_with((gs_cuda_device *)device, memory, cudaFree);
}

static gs_status alloc_pinned_cuda(gs_device *base, void **memory, size_t bytes) {
    gs_cuda_device *device = (gs_cuda_device *)base;
    GS_TRY(gs_cuda_make_current(device));
    GS_TRY(gs_cuda_refuse_capture(device, "memory is pinned"));
    void *allocated = NULL;
    size_t size = bytes ? bytes : 1;
    // Portable and mapped: one address for the host and, with unified addressing, for every device.
    cudaError_t error =
        cudaHostAlloc(&allocated, size, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaErrorMemoryAllocation) return say_exhausted(device, bytes, "pinned memory");
    GS_TRY(gs_cuda_check(device, error, "cudaHostAlloc"));
    memset(allocated, 0, size);
    *memory = allocated;
    return gs_ok();
}

static void free_pinned_cuda(gs_device *device, void *memory) {
    free_with((gs_cuda_device *)device, memory, cudaFreeHost);
}

static bool is_device_memory(gs_device *base, const void *memory) {
    gs_cuda_device *device = (gs_cuda_device *)base;
    if (gs_cuda_make_current(device).code != GS_OK) return false;
    struct cudaPointerAttributes attributes;
    cudaError_t error = cudaPointerGetAttributes(&attributes, memory);
    // A device that is lost says of no memory that it is its own: is_lost tells that apart.
    if (gs_cuda_check(device, error, "cudaPointerGetAttributes").code) return false;
    return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

static bool is_lost(gs_device *base) {
    gs_cuda_device *device = (gs_cuda_device *)base;
    pthread_mutex_lock(&device->lock);
    bool lost = device->broken.code != GS_OK;
    pthread_mutex_unlock(&device->lock);
    return lost;
}

static void describe_cuda(const gs_device *base, char *text, size_t text_bytes) {
    const gs_cuda_device *device = (const gs_cuda_device *)base;
    char products[64], choices[128], attention[32];
    gs_cuda_products_describe(device->compute->products, products, sizeof products);
    gs_choices_describe(base->choices, choices, sizeof choices);
    gs_cudnn_attention_describe(device->attention, attention, sizeof attention);
    snprintf(text, text_bytes, "cuda sm_%d kernels=%d tf32=%d %s%s%s", device->capability,
             ARITHMETIC_VERSION, device->tf32, products, choices, attention);
}

static void describe_limit(const gs_device *device, char *text, size_t text_bytes) {
    (void)device;
    snprintf(text, text_bytes, "%s", "");
}

const gs_device_backend gs_cuda_backend = {
    .name = "cuda",
    .open = open_cuda,
    .close = close_cuda,
    .alloc = alloc_cuda,
    .free = free_cuda,
    .copy = gs_cuda_transfer,
    .wait = gs_cuda_stream_wait,
    .arithmetic = describe_cuda,
    .limit = describe_limit,
    .take_reports = gs_cuda_stream_take_reports,
    .is_device_memory = is_device_memory,
    .is_lost = is_lost,
    .alloc_pinned = alloc_pinned_cuda,
    .free_pinned = free_pinned_cuda,
    .stream_create = gs_cuda_stream_create,
    .stream_destroy = gs_cuda_stream_destroy,
    .stream_native = gs_cuda_stream_native,
    .follow = gs_cuda_stream_follow,
    .event_create = gs_cuda_event_create,
    .event_destroy = gs_cuda_event_destroy,
    .event_record = gs_cuda_event_record,
    .event_query = gs_cuda_event_query,
    .event_elapsed = gs_cuda_event_elapsed,
    .wait_event = gs_cuda_event_wait,
    .graph_begin = gs_cuda_graph_begin,
    .graph_end = gs_cuda_graph_end,
    .graph_launch = gs_cuda_graph_launch,
    .graph_destroy = gs_cuda_graph_destroy,
};
