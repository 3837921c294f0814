// Whether cuDNN itself takes the graphs of attention: without a device, of which it is told the properties. Descriptors are
// finished, and its heuristic names engines for sm_90. What the engines compute is shown on a device alone, and on the
// software machine by its stand-in.
//
// Exit code 77 where there is no cuDNN.
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/attention_graph.h"

#define SKIPPED 77

// An H100, as the library writes devices down.
static const char device[] =
    "{\"deviceId\":0,\"cudaDeviceId\":0,\"deviceVer\":900,\"driverVer\":13000,\"maxGridSize\":[2147483647,65535,65535],"
    "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,"
    "\"maxRegistersPerSM\":65536,\"maxSharedMemoryPerSM\":233472,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,"
    "\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"smClockRateKHz\":1980000,"
    "\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800,\"deviceName\":\"H100\",\"totalGlobalMem\":85000000000}";

typedef struct asked {
    const gs_cudnn *dnn;
    cudnnBackendDescriptor_t device, heuristic;
} asked;

static gs_status set(const gs_cudnn *dnn, cudnnBackendDescriptor_t of,
                     cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t count, const void *values) {
    return gs_cudnn_check(dnn, dnn->cudnnBackendSetAttribute(of, name, type, count, values),
                          "cudnnBackendSetAttribute");
}

static gs_status make(const gs_cudnn *dnn, cudnnBackendDescriptor_t *out,
                      cudnnBackendDescriptorType_t type) {
    return gs_cudnn_check(dnn, dnn->cudnnBackendCreateDescriptor(type, out),
                          "cudnnBackendCreateDescriptor");
}

static gs_status ask(asked *of, cudnnBackendDescriptor_t graph, int64_t *num_engines) {
    const gs_cudnn *dnn = of->dnn;
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    GS_TRY(make(dnn, &of->device, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
    GS_TRY(set(dnn, of->device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
               (int64_t)strlen(device), device));
    GS_TRY(gs_cudnn_check(dnn, dnn->cudnnBackendFinalize(of->device), "device"));
    GS_TRY(make(dnn, &of->heuristic, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
    GS_TRY(set(dnn, of->heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph));
    GS_TRY(set(dnn, of->heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    GS_TRY(set(dnn, of->heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR,
               1, &of->device));
    GS_TRY(gs_cudnn_check(dnn, dnn->cudnnBackendFinalize(of->heuristic), "heuristic"));
    return gs_cudnn_check(dnn,
                          dnn->cudnnBackendGetAttribute(of->heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                                                        num_engines, NULL),
                          "results");
}

static gs_status describe(const gs_cudnn *dnn, const gs_attention *shape, gs_dtype dtype,
                          bool backward) {
    gs_attention_graph graph;
    asked of = {.dnn = dnn};
    int64_t num_engines = 0;
    gs_status status = gs_attention_graph_init(&graph, dnn, NULL, shape, dtype, backward);
    if (!status.code) status = ask(&of, graph.graph, &num_engines);
    if (!status.code && num_engines < 1) status = gs_error(GS_UNIMPLEMENTED, "no engine for sm_90");
    if (of.heuristic) (void)dnn->cudnnBackendDestroyDescriptor(of.heuristic);
    if (of.device) (void)dnn->cudnnBackendDestroyDescriptor(of.device);
    gs_attention_graph_release(&graph);
    printf("%s %s, %zu×%zu×%zu×%zu, backward %d: %lld engines %s\n", status.code ? "FAIL" : "ok",
           gs_dtype_name(dtype), shape->batch, shape->positions, shape->heads, shape->head_channels,
           backward, (long long)num_engines, status.message);
    return status;
}

int main(void) {
    static const gs_attention shapes[] = {{64, 1024, 12, 64}, {4, 1024, 20, 64}, {3, 77, 2, 128}};
    gs_cudnn dnn;
    gs_status status = gs_cudnn_open(&dnn);
    if (status.code) {
        printf("skipped: %s\n", status.message);
        return SKIPPED;
    }
    int num_failed = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int backward = 0; backward < 2; backward++) {
            num_failed += describe(&dnn, &shapes[i], GS_BF16, backward).code != GS_OK;
            num_failed += describe(&dnn, &shapes[i], GS_FP16, backward).code != GS_OK;
        }
    }
    gs_cudnn_close(&dnn);
    return num_failed > 0;
}
