// The CPU as a device: memory of the host, a stream that is the calling thread with its helpers,
// and the choice of the instruction set.
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "kernels/backend.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/table.h"

#define BOUNDARY_BYTES 64
#define MAX_THREADS 1024
// Counts up when a kernel's order of operations, and so its bits, change.
#define ARITHMETIC_VERSION 1

typedef struct cpu_stream {
    gs_stream base;
    gs_cpu_pool *pool; // owns
} cpu_stream;

typedef struct cpu_device {
    gs_device base;
    cpu_stream stream;
} cpu_device;

typedef struct isa {
    const char *name;
    const gs_kernels *kernels;
    const gs_half_kernels *half;  // of bf16, of fp16
    bool available;
} isa;

#define MAX_ISAS 3

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows it by name.
static bool has_f16c(void) {
    unsigned eax, ebx, ecx = 0, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif

// Worst first.
static int list_isas(isa isas[MAX_ISAS]) {
    int count = 0;
    isas[count++] = (isa){"baseline", &gs_cpu_table_baseline, gs_cpu_half_tables_baseline, true};
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && has_f16c();
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    isas[count++] = (isa){"avx2", &gs_cpu_table_avx2, gs_cpu_half_tables_avx2, avx2};
    isas[count++] = (isa){"avx512", &gs_cpu_table_avx512, gs_cpu_half_tables_avx512, avx512};
#endif
    return count;
}

static gs_status choose_kernels(isa *out, const char *name) {
    isa isas[MAX_ISAS];
    int count = list_isas(isas);
    for (int i = count - 1; i >= 0; i--) {
        if (name && strcmp(name, isas[i].name) != 0) continue;
        if (isas[i].available) {
            *out = isas[i];
            return gs_ok();
        }
        if (name) {
            return gs_error(GS_INVALID_ARGUMENT, "isa '%s': this machine does not have it", name);
        }
    }
    return gs_error(GS_INVALID_ARGUMENT, "isa '%s': this build knows baseline%s", name,
                    count == MAX_ISAS ? ", avx2 and avx512" : "");
}

static void close_cpu(gs_device *device) {
    cpu_device *cpu = (cpu_device *)device;
    gs_cpu_pool_destroy(cpu->stream.pool);
    gs_stream_release(&cpu->stream.base);
    free(cpu);
}

static gs_status open_cpu(gs_device **out, int ordinal, const gs_device_options *options) {
    (void)ordinal;
    int num_threads = options->num_threads ? options->num_threads : 1;
    if (num_threads < 0 || num_threads > MAX_THREADS) {
        return gs_error(GS_INVALID_ARGUMENT, "num_threads %d is not in [0, %d]",
                        options->num_threads, MAX_THREADS);
    }
    isa chosen = {0};
    GS_TRY(choose_kernels(&chosen, options->isa));
    cpu_device *cpu = calloc(1, sizeof *cpu);
    if (!cpu) return gs_error(GS_RESOURCE_EXHAUSTED, "device cpu: out of memory");
    gs_stream_init(&cpu->stream.base, &gs_cpu_backend);
    gs_status status = gs_cpu_pool_create(&cpu->stream.pool, num_threads);
    if (status.code) {
        close_cpu(&cpu->base);
        return status;
    }
    cpu->base.num_threads = num_threads;
    cpu->base.kernels = chosen.kernels;
    cpu->base.half_kernels[0] = &chosen.half[0];
    cpu->base.half_kernels[1] = &chosen.half[1];
    cpu->base.is_host = true;
    cpu->base.stream = &cpu->stream.base;
    *out = &cpu->base;
    return gs_ok();
}

static gs_status alloc_cpu(gs_device *device, void **memory, size_t bytes) {
    void *allocated = gs_alloc_aligned(bytes, BOUNDARY_BYTES);
    if (!allocated) {
        return gs_error(GS_RESOURCE_EXHAUSTED, "device %s: no memory for %zu bytes", device->name,
                        bytes);
    }
    *memory = allocated;
    return gs_ok();
}

static void free_cpu(gs_device *device, void *memory) {
    (void)device;
    free(memory);
}

static gs_status copy_cpu(gs_device *device, void *to, const void *from, size_t bytes,
                          gs_copy_direction direction) {
    (void)device;
    (void)direction;
    memmove(to, from, bytes);
    return gs_ok();
}

// Streams beside the compute stream have no helper threads: what they are given is small.
static gs_status create_stream(gs_stream **out, gs_device *device, gs_stream_priority priority) {
    (void)priority;
    cpu_stream *stream = calloc(1, sizeof *stream);
    if (!stream) return gs_error(GS_RESOURCE_EXHAUSTED, "device %s: out of memory", device->name);
    gs_status status = gs_cpu_pool_create(&stream->pool, 1);
    if (status.code) {
        free(stream);
        return status;
    }
    gs_stream_init(&stream->base, &gs_cpu_backend);
    *out = &stream->base;
    return gs_ok();
}

static void destroy_stream(gs_stream *stream) {
    cpu_stream *cpu = (cpu_stream *)stream;
    gs_cpu_pool_destroy(cpu->pool);
    gs_stream_release(stream);
    free(cpu);
}

typedef struct cpu_event {
    gs_event base;
    int64_t recorded_ns;
} cpu_event;

static gs_status create_event(gs_event **out, gs_device *device, bool timed) {
    (void)timed;
    cpu_event *event = calloc(1, sizeof *event);
    if (!event) return gs_error(GS_RESOURCE_EXHAUSTED, "device %s: out of memory", device->name);
    event->base.backend = &gs_cpu_backend;
    *out = &event->base;
    return gs_ok();
}

static void destroy_event(gs_event *event) {
    free(event);
}

static void record_event(gs_event *event, gs_stream *stream) {
    (void)stream;
    ((cpu_event *)event)->recorded_ns = gs_now_ns();
}

static gs_status elapsed_between(const gs_event *from, const gs_event *to, int64_t *ns) {
    *ns = ((const cpu_event *)to)->recorded_ns - ((const cpu_event *)from)->recorded_ns;
    return gs_ok();
}

static gs_status wait_cpu(gs_stream *stream, gs_deadline deadline) {
    (void)stream;
    (void)deadline;
    return gs_ok(); // launchers return when their work is done
}

// Neither the instruction set nor the number of threads is in it: they do not change a bit.
static void describe_cpu(const gs_device *device, char *text, size_t text_bytes) {
    (void)device;
    char blas[64];
    gs_blas_describe(blas, sizeof blas);
    snprintf(text, text_bytes, "cpu kernels=%d openblas=%s", ARITHMETIC_VERSION, blas);
}

static void describe_limit(const gs_device *device, char *text, size_t text_bytes) {
    (void)device;
    gs_blas_describe_limit(text, text_bytes);
}

static void run_for_each(gs_stream *stream, size_t num_items, void (*body)(void *ctx, size_t item),
                         void *ctx) {
    gs_cpu_pool_run(((cpu_stream *)stream)->pool, num_items, body, ctx);
}

const gs_device_backend gs_cpu_backend = {
    .name = "cpu",
    .open = open_cpu,
    .close = close_cpu,
    .alloc = alloc_cpu,
    .free = free_cpu,
    .copy = copy_cpu,
    .wait = wait_cpu,
    .arithmetic = describe_cpu,
    .limit = describe_limit,
    .stream_create = create_stream,
    .stream_destroy = destroy_stream,
    .event_create = create_event,
    .event_destroy = destroy_event,
    .event_record = record_event,
    .event_elapsed = elapsed_between,
    .for_each = run_for_each,
};
