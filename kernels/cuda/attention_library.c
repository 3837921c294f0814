#include "kernels/cuda/attention_library.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/stream.h"

#ifdef GRADSYNC_CUDNN
#include "kernels/cuda/attention_graph.h"

#define MAX_PLANS 32
#define MAX_CONFIGS 16
#define MAX_NOTES 16
#define MAX_TENSORS 13
#define MEMORY_ALIGNMENT 256
// What scores of keys behind the query become: far below any score, and finite.
#define HIDDEN_SCORE (-1073741824.0f)

typedef struct plan {
    gs_attention shape;
    gs_dtype dtype;
    bool backward;
    bool refused;              // nothing below is set
    gs_attention_graph graph;  // owns, as all descriptors
    cudnnBackendDescriptor_t config, execution;
    size_t weighted_bytes, workspace_bytes;
    float scale, hidden, one;
} plan;

struct gs_cudnn_attention {
    gs_cuda_stream *stream;  // borrows
    gs_cudnn dnn;
    cudnnHandle_t handle;
    plan plans[MAX_PLANS];
    int num_plans;
    void *memory;  // the largest so far
    size_t memory_bytes;
    void *older[MAX_PLANS];  // blocks that it took the place of
    int num_older;
};

// ---- plans

static gs_status create(const gs_cudnn *dnn, cudnnBackendDescriptor_t *out,
                        cudnnBackendDescriptorType_t type) {
    return gs_cudnn_check(dnn, dnn->cudnnBackendCreateDescriptor(type, out),
                          "cudnnBackendCreateDescriptor");
}

static void destroy(const gs_cudnn *dnn, cudnnBackendDescriptor_t *of) {
    if (*of) (void)dnn->cudnnBackendDestroyDescriptor(*of);
    *of = NULL;
}

static gs_status set(const gs_cudnn *dnn, cudnnBackendDescriptor_t of,
                     cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t count, const void *values) {
    return gs_cudnn_check(dnn, dnn->cudnnBackendSetAttribute(of, name, type, count, values),
                          "cudnnBackendSetAttribute");
}

static gs_status finalize(const gs_cudnn *dnn, cudnnBackendDescriptor_t of) {
    return gs_cudnn_check(dnn, dnn->cudnnBackendFinalize(of), "cudnnBackendFinalize");
}

static gs_status make_heuristic(const gs_cudnn *dnn, cudnnBackendDescriptor_t *out,
                                cudnnBackendDescriptor_t graph) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    GS_TRY(create(dnn, out, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
    GS_TRY(set(dnn, *out, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
               &graph));
    GS_TRY(set(dnn, *out, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    return finalize(dnn, *out);
}

// Whether the same inputs give the same bits.
static bool is_deterministic(const gs_cudnn *dnn, cudnnBackendDescriptor_t config) {
    cudnnBackendDescriptor_t engine = NULL;
    cudnnBackendNumericalNote_t notes[MAX_NOTES];
    int64_t count = 0;
    bool known = create(dnn, &engine, CUDNN_BACKEND_ENGINE_DESCRIPTOR).code == GS_OK &&
                 !dnn->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine) &&
                 !dnn->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                CUDNN_TYPE_NUMERICAL_NOTE, MAX_NOTES, &count, notes);
    for (int64_t i = 0; i < count && i < MAX_NOTES && known; i++)
        known = notes[i] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    destroy(dnn, &engine);
    return known;
}

// Compiles, where the library does that.
static gs_status make_execution(gs_cudnn_attention *attention, plan *at,
                                cudnnBackendDescriptor_t config) {
    const gs_cudnn *dnn = &attention->dnn;
    int64_t count = 0, bytes = 0;
    GS_TRY(create(dnn, &at->execution, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
    GS_TRY(set(dnn, at->execution, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
               &attention->handle));
    GS_TRY(set(dnn, at->execution, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config));
    GS_TRY(finalize(dnn, at->execution));
    GS_TRY(gs_cudnn_check(dnn,
                          dnn->cudnnBackendGetAttribute(at->execution,
                                                        CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                        CUDNN_TYPE_INT64, 1, &count, &bytes),
                          "cudnnBackendGetAttribute"));
    at->workspace_bytes = bytes > 0 ? (size_t)bytes : 0;
    return gs_ok();
}

// The first configuration, in the library's order, that is deterministic and runs.
static gs_status choose_config(gs_cudnn_attention *attention, plan *at,
                               cudnnBackendDescriptor_t heuristic,
                               cudnnBackendDescriptor_t configs[MAX_CONFIGS]) {
    const gs_cudnn *dnn = &attention->dnn;
    int64_t count = 0;
    for (int i = 0; i < MAX_CONFIGS; i++)
        GS_TRY(create(dnn, &configs[i], CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    GS_TRY(gs_cudnn_check(dnn,
                          dnn->cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS,
                                                        &count, configs),
                          "cudnnBackendGetAttribute"));
    gs_status status = gs_error(GS_UNIMPLEMENTED, "no deterministic engine among %lld",
                                (long long)count);
    for (int64_t i = 0; i < count && i < MAX_CONFIGS && status.code; i++) {
        if (!is_deterministic(dnn, configs[i])) continue;
        status = make_execution(attention, at, configs[i]);
        if (status.code) {
            destroy(dnn, &at->execution);
        } else {
            at->config = configs[i];
            configs[i] = NULL;
        }
    }
    return status;
}

static gs_status find_engine(gs_cudnn_attention *attention, plan *at) {
    const gs_cudnn *dnn = &attention->dnn;
    cudnnBackendDescriptor_t heuristic = NULL, configs[MAX_CONFIGS] = {NULL};
    gs_status status = make_heuristic(dnn, &heuristic, at->graph.graph);
    if (!status.code) status = choose_config(attention, at, heuristic, configs);
    for (int i = 0; i < MAX_CONFIGS; i++) destroy(dnn, &configs[i]);
    destroy(dnn, &heuristic);
    return status;
}

static size_t memory_of(const plan *at) {
    return at->weighted_bytes + at->workspace_bytes;
}

static gs_status make_room(gs_cudnn_attention *attention, size_t bytes) {
    gs_cuda_device *device = attention->stream->device;
    void *memory;
    if (bytes <= attention->memory_bytes) return gs_ok();
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return gs_error(GS_RESOURCE_EXHAUSTED, "no memory for %zu bytes of workspace", bytes);
    }
    GS_TRY(gs_cuda_check(device, error, "cudaMalloc"));
    if (attention->memory) attention->older[attention->num_older++] = attention->memory;
    attention->memory = memory;
    attention->memory_bytes = bytes;
    return gs_ok();
}

static void release_plan(const gs_cudnn *dnn, plan *at) {
    destroy(dnn, &at->execution);
    destroy(dnn, &at->config);
    if (at->graph.dnn) gs_attention_graph_release(&at->graph);
}

static gs_status make_plan(gs_cudnn_attention *attention, plan *at) {
    GS_TRY(gs_attention_graph_init(&at->graph, &attention->dnn, attention->handle, &at->shape,
                                   at->dtype, at->backward));
    GS_TRY(find_engine(attention, at));
    at->weighted_bytes = gs_round_up(at->graph.weighted_count * sizeof(float), MEMORY_ALIGNMENT);
    return make_room(attention, memory_of(at));
}

static bool is_plan_of(const plan *at, const gs_cudnn_attention_job *job) {
    const gs_attention *a = &at->shape, *b = job->shape;
    return a->batch == b->batch && a->positions == b->positions && a->heads == b->heads &&
           a->head_channels == b->head_channels && at->dtype == job->dtype &&
           at->backward == (job->dqkv != NULL);
}

static plan *find_plan(gs_cudnn_attention *attention, const gs_cudnn_attention_job *job) {
    for (int i = 0; i < attention->num_plans; i++)
        if (is_plan_of(&attention->plans[i], job)) return &attention->plans[i];
    return NULL;
}

// NULL where there is none and none can be made now.
static plan *take_plan(gs_cudnn_attention *attention, const gs_cudnn_attention_job *job) {
    bool capturing = true;
    plan *at = find_plan(attention, job);
    if (at || attention->num_plans == MAX_PLANS) return at;
    if (gs_cuda_is_capturing(&capturing, attention->stream).code || capturing) return NULL;
    if (gs_cuda_refuse_capture(attention->stream->device, "attention is planned").code) return NULL;
    at = &attention->plans[attention->num_plans++];
    *at = (plan){.shape = *job->shape,
                 .dtype = job->dtype,
                 .backward = job->dqkv != NULL,
                 .scale = 1.0f / sqrtf((float)job->shape->head_channels),
                 .hidden = HIDDEN_SCORE,
                 .one = 1.0f};
    gs_status status = make_plan(attention, at);
    if (status.code) {
        char reason[sizeof status.message + 8];
        release_plan(&attention->dnn, at);
        at->refused = true;
        gs_log_warn("cuDNN does not take an attention, own kernels do",
                    "batch=%zu positions=%zu heads=%zu head_channels=%zu backward=%d reason=%s",
                    at->shape.batch, at->shape.positions, at->shape.heads, at->shape.head_channels,
                    at->backward, gs_log_quote(reason, sizeof reason, status.message));
    }
    return at;
}

// ---- running

typedef struct pack {
    int64_t ids[MAX_TENSORS];
    void *pointers[MAX_TENSORS];
    int64_t count;
} pack;

static void put(pack *to, gs_attention_tensor id, const void *pointer) {
    to->ids[to->count] = id;
    to->pointers[to->count++] = (void *)pointer;
}

static void put_parts(pack *to, const gs_cudnn_attention_job *job, const void *qkv,
                      const gs_attention_tensor ids[3]) {
    const size_t bytes = job->shape->heads * job->shape->head_channels * sizeof(uint16_t);
    for (size_t i = 0; i < 3; i++) put(to, ids[i], (const char *)qkv + i * bytes);
}

static pack pack_tensors(const gs_cudnn_attention *attention, const plan *at,
                         const gs_cudnn_attention_job *job) {
    static const gs_attention_tensor inputs[] = {GS_ATTENTION_Q, GS_ATTENTION_K, GS_ATTENTION_V};
    static const gs_attention_tensor slopes[] = {GS_ATTENTION_DQ, GS_ATTENTION_DK, GS_ATTENTION_DV};
    pack tensors = {.count = 0};
    put_parts(&tensors, job, job->qkv, inputs);
    put(&tensors, GS_ATTENTION_OUT, job->out);
    put(&tensors, GS_ATTENTION_LOGSUMEXP, job->logsumexp);
    put(&tensors, GS_ATTENTION_SCALE, &at->scale);
    put(&tensors, GS_ATTENTION_HIDDEN, &at->hidden);
    if (!at->backward) return tensors;
    put_parts(&tensors, job, job->dqkv, slopes);
    put(&tensors, GS_ATTENTION_DOUT, job->dout);
    put(&tensors, GS_ATTENTION_WEIGHTED, attention->memory);
    put(&tensors, GS_ATTENTION_ONE, &at->one);
    return tensors;
}

static gs_status execute_pack(const gs_cudnn_attention *attention, const plan *at,
                              cudnnBackendDescriptor_t variant, const pack *tensors) {
    const gs_cudnn *dnn = &attention->dnn;
    void *workspace = at->workspace_bytes ? (char *)attention->memory + at->weighted_bytes : NULL;
    GS_TRY(set(dnn, variant, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, tensors->count,
               tensors->ids));
    GS_TRY(set(dnn, variant, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
               tensors->count, tensors->pointers));
    GS_TRY(set(dnn, variant, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
    GS_TRY(finalize(dnn, variant));
    return gs_cudnn_check(dnn, dnn->cudnnBackendExecute(attention->handle, at->execution, variant),
                          "cudnnBackendExecute");
}

static gs_status execute(const gs_cudnn_attention *attention, const plan *at,
                         const gs_cudnn_attention_job *job) {
    const pack tensors = pack_tensors(attention, at, job);
    cudnnBackendDescriptor_t variant = NULL;
    gs_status status = create(&attention->dnn, &variant, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    if (!status.code) status = execute_pack(attention, at, variant, &tensors);
    destroy(&attention->dnn, &variant);
    return status;
}

// Whole 16-byte pieces, as the graphs promise; what has no kernel is not asked for.
static bool suits(const gs_cudnn_attention_job *job) {
    const gs_attention *s = job->shape;
    const uintptr_t addresses = (uintptr_t)job->out | (uintptr_t)job->qkv | (uintptr_t)job->dqkv |
                                (uintptr_t)job->dout | (uintptr_t)job->logsumexp;
    return s->batch && s->positions && s->heads && s->head_channels && addresses % 16 == 0 &&
           s->head_channels % 8 == 0 && s->head_channels <= 128;
}

bool gs_cudnn_attention_run(gs_stream *stream, const gs_cudnn_attention_job *job) {
    gs_cuda_stream *cuda = gs_cuda_stream_of(stream);
    gs_cudnn_attention *attention = cuda->device->attention;
    if (!attention || attention->stream != cuda || !suits(job)) return false;
    gs_status status = gs_cuda_make_current(cuda->device);
    plan *at = status.code ? NULL : take_plan(attention, job);
    if (!status.code && (!at || at->refused)) return false;
    if (!status.code) status = execute(attention, at, job);
    gs_stream_fail(stream, gs_status_prefix(status, "attention %s, %zu×%zu×%zu×%zu",
                                            gs_dtype_name(job->dtype), job->shape->batch,
                                            job->shape->positions, job->shape->heads,
                                            job->shape->head_channels));
    return true;
}

// ---- opening and closing

static void say_missing(const gs_cuda_stream *stream, gs_status status) {
    char reason[sizeof status.message + 8];
    gs_log_warn("no cuDNN: attention runs on own kernels", "device=cuda:%d reason=%s",
                stream->device->ordinal, gs_log_quote(reason, sizeof reason, status.message));
}

static gs_status open_handle(gs_cudnn_attention *attention) {
    const gs_cudnn *dnn = &attention->dnn;
    GS_TRY(gs_cuda_make_current(attention->stream->device));
    GS_TRY(gs_cudnn_check(dnn, dnn->cudnnCreate(&attention->handle), "cudnnCreate"));
    return gs_cudnn_check(dnn, dnn->cudnnSetStream(attention->handle, attention->stream->native),
                          "cudnnSetStream");
}

gs_status gs_cudnn_attention_open(gs_cudnn_attention **out, gs_cuda_stream *stream) {
    *out = NULL;
    gs_cudnn_attention *attention = calloc(1, sizeof *attention);
    if (!attention) return gs_error(GS_RESOURCE_EXHAUSTED, "attention: out of memory");
    attention->stream = stream;
    gs_status status = gs_cudnn_open(&attention->dnn);
    if (!status.code) status = open_handle(attention);
    if (status.code) {
        say_missing(stream, status);
        gs_cudnn_attention_close(attention, true);
        return gs_ok();
    }
    *out = attention;
    return gs_ok();
}

void gs_cudnn_attention_close(gs_cudnn_attention *attention, bool idle) {
    if (!attention) return;
    for (int i = 0; i < attention->num_plans; i++)
        release_plan(&attention->dnn, &attention->plans[i]);
    if (idle) {
        for (int i = 0; i < attention->num_older; i++) (void)cudaFree(attention->older[i]);
        if (attention->memory) (void)cudaFree(attention->memory);
        if (attention->handle) (void)attention->dnn.cudnnDestroy(attention->handle);
    }
    gs_cudnn_close(&attention->dnn);
    free(attention);
}

void gs_cudnn_attention_describe(const gs_cudnn_attention *attention, char *text, size_t text_bytes) {
    if (!attention) snprintf(text, text_bytes, "%s", "");
    else snprintf(text, text_bytes, " cudnn=%zu", attention->dnn.cudnnGetVersion());
}

#else

gs_status gs_cudnn_attention_open(gs_cudnn_attention **out, gs_cuda_stream *stream) {
    *out = NULL;
    gs_log_warn("this build has no cuDNN's headers: attention runs on own kernels", "device=cuda:%d",
                stream->device->ordinal);
    return gs_ok();
}

void gs_cudnn_attention_close(gs_cudnn_attention *attention, bool idle) {
    (void)attention, (void)idle;
}

void gs_cudnn_attention_describe(const gs_cudnn_attention *attention, char *text, size_t text_bytes) {
    (void)attention;
    snprintf(text, text_bytes, "%s", "");
}

bool gs_cudnn_attention_run(gs_stream *stream, const gs_cudnn_attention_job *job) {
    (void)stream, (void)job;
    return false;
}

#endif
