// Stream capture: what becomes a graph, what its launches do, and what a capture forbids.
#include <csetjmp>
#include <cstdarg>
#include <thread>

extern "C" {
#include <cmocka.h>
}

#include "tests/cuda_sim/machine.h"
#include "tests/cuda_sim/test_device.h"

__global__ void multiply_add(int *out, int factor, int term) {
    if (threadIdx.x == 0) *out = *out * factor + term;
}
__global__ void sum_of(int *out, const int *a, const int *b) {
    if (threadIdx.x == 0) *out = *a + *b;
}

static cudaStream_t make_stream(unsigned flags = cudaStreamNonBlocking) {
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, flags), "cudaStreamCreateWithFlags");
    return stream;
}
static cudaEvent_t make_event() {
    cudaEvent_t event;
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return event;
}
static void step(cudaStream_t stream, int *out, int factor, int term) {
    must(gs_sim_start("multiply_add", multiply_add, 1, 32, 0, stream, out, factor, term),
         "multiply_add");
}
static void begin(cudaStream_t stream,
                  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    must(cudaStreamBeginCapture(stream, mode), "cudaStreamBeginCapture");
}
static cudaGraphExec_t finish(cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    must(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    must(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return exec;
}
static void add_ten(void *ctx) {
    *static_cast<int *>(ctx) += 10;
}

static void a_graph_does_its_work_at_each_launch(void **) {
    cudaStream_t stream = make_stream();
    device_array<int> data(1);
    int *host;
    must(cudaHostAlloc(reinterpret_cast<void **>(&host), 2 * sizeof *host, 0), "cudaHostAlloc");
    host[0] = 100;
    begin(stream);
    must(cudaMemsetAsync(data.data, 0, sizeof(int), stream), "cudaMemsetAsync");
    step(stream, data.data, 1, 3);
    must(cudaMemcpyAsync(host + 1, data.data, sizeof(int), cudaMemcpyDeviceToHost, stream), "copy");
    must(cudaLaunchHostFunc(stream, add_ten, host), "cudaLaunchHostFunc");
    step(stream, data.data, 2, 1);
    cudaStreamCaptureStatus status;
    must(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    cudaGraphExec_t exec = finish(stream);
    assert_int_equal(host[0], 100);  // nothing has run
    for (int i = 1; i <= 3; i++) {
        must(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
        must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        assert_int_equal(host[0], 100 + 10 * i);
        assert_int_equal(host[1], 3);
        assert_int_equal(data.download()[0], 7);
    }
    must(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    cudaFreeHost(host);
    cudaStreamDestroy(stream);
}

// The host launches a whole graph and hands out its parts by events that were recorded inside.
static void external_events_order_other_streams_at_each_launch(void **) {
    cudaStream_t stream = make_stream(), other = make_stream();
    cudaEvent_t half_way = make_event(), consumed = make_event();
    device_array<int> data(std::vector<int>(1, 0)), copy(std::vector<int>(1, 0)), twice(1);
    begin(stream);
    must(cudaStreamWaitEvent(stream, consumed, cudaEventWaitExternal), "cudaStreamWaitEvent");
    step(stream, data.data, 1, 5);
    must(cudaEventRecordWithFlags(half_way, stream, cudaEventRecordExternal),
         "cudaEventRecordWithFlags");
    for (int i = 0; i < 20; i++) step(stream, twice.data, 1, 1);
    cudaGraphExec_t exec = finish(stream);
    for (int i = 1; i <= 30; i++) {
        must(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
        must(cudaStreamWaitEvent(other, half_way, 0), "cudaStreamWaitEvent");
        must(cudaMemcpyAsync(copy.data, data.data, sizeof(int), cudaMemcpyDeviceToDevice, other),
             "copy");
        must(cudaEventRecord(consumed, other), "cudaEventRecord");
        must(cudaEventSynchronize(consumed), "cudaEventSynchronize");
        assert_int_equal(copy.download()[0], 5 * i);
    }
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    assert_int_equal(cudaEventQuery(half_way), cudaSuccess);
    must(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    cudaEventDestroy(half_way);
    cudaEventDestroy(consumed);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
}

static void branches_of_a_graph_keep_to_their_joins(void **) {
    cudaStream_t stream = make_stream(), side = make_stream();
    cudaEvent_t fork = make_event(), join = make_event();
    device_array<int> a(std::vector<int>(1, 1)), b(std::vector<int>(1, 1)), sum(1);
    begin(stream);
    step(stream, a.data, 1, 1);
    must(cudaEventRecord(fork, stream), "cudaEventRecord");
    must(cudaStreamWaitEvent(side, fork, 0), "cudaStreamWaitEvent");
    for (int i = 0; i < 3; i++) {
        step(stream, a.data, 2, 1);
        step(side, b.data, 2, 1);
    }
    must(cudaEventRecord(join, side), "cudaEventRecord");
    must(cudaStreamWaitEvent(stream, join, 0), "cudaStreamWaitEvent");
    must(gs_sim_start("sum_of", sum_of, 1, 32, 0, stream, sum.data, a.data, b.data), "sum_of");
    cudaGraphExec_t exec = finish(stream);
    int wanted_a = 1, wanted_b = 1;
    for (int i = 0; i < 20; i++) {
        must(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
        must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        wanted_a = (((wanted_a + 1) * 2 + 1) * 2 + 1) * 2 + 1;
        wanted_b = ((wanted_b * 2 + 1) * 2 + 1) * 2 + 1;
        assert_int_equal(sum.download()[0], wanted_a + wanted_b);
        if (wanted_a > 100000000) break;
    }
    must(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    // Outside of its capture such an event says nothing.
    assert_int_equal(cudaEventQuery(fork), cudaErrorCapturedEvent);
    cudaGetLastError();
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(side);
}

static void work_that_is_not_joined_is_refused(void **) {
    cudaStream_t stream = make_stream(), side = make_stream();
    cudaEvent_t fork = make_event();
    device_array<int> data(1);
    begin(stream);
    must(cudaEventRecord(fork, stream), "cudaEventRecord");
    must(cudaStreamWaitEvent(side, fork, 0), "cudaStreamWaitEvent");
    step(side, data.data, 1, 1);
    cudaGraph_t graph;
    assert_int_equal(cudaStreamEndCapture(side, &graph), cudaErrorStreamCaptureUnmatched);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    begin(stream);
    must(cudaEventRecord(fork, stream), "cudaEventRecord");
    must(cudaStreamWaitEvent(side, fork, 0), "cudaStreamWaitEvent");
    step(side, data.data, 1, 1);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
    assert_null(graph);
    cudaGetLastError();
    step(side, data.data, 1, 1);  // both are free again
    must(cudaStreamSynchronize(side), "cudaStreamSynchronize");
    cudaEventDestroy(fork);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(side);
}

struct violation {
    const char *what;
    cudaError_t wanted;
    cudaError_t (*call)(cudaStream_t stream, cudaEvent_t event);
};

static const violation violations[] = {
    {"cudaStreamSynchronize", cudaErrorStreamCaptureUnsupported,
     [](cudaStream_t stream, cudaEvent_t) { return cudaStreamSynchronize(stream); }},
    {"cudaStreamQuery", cudaErrorStreamCaptureUnsupported,
     [](cudaStream_t stream, cudaEvent_t) { return cudaStreamQuery(stream); }},
    {"cudaDeviceSynchronize", cudaErrorStreamCaptureUnsupported,
     [](cudaStream_t, cudaEvent_t) { return cudaDeviceSynchronize(); }},
    {"cudaMalloc", cudaErrorStreamCaptureUnsupported,
     [](cudaStream_t, cudaEvent_t) {
         void *memory;
         return cudaMalloc(&memory, 16);
     }},
    {"cudaHostAlloc", cudaErrorStreamCaptureUnsupported,
     [](cudaStream_t, cudaEvent_t) {
         void *memory;
         return cudaHostAlloc(&memory, 16, 0);
     }},
    {"cudaEventQuery", cudaErrorStreamCaptureUnsupported,
     [](cudaStream_t, cudaEvent_t event) { return cudaEventQuery(event); }},
    {"waiting for work outside", cudaErrorStreamCaptureIsolation,
     [](cudaStream_t stream, cudaEvent_t event) { return cudaStreamWaitEvent(stream, event, 0); }},
    {"asking for an event of the capture", cudaErrorCapturedEvent,
     [](cudaStream_t stream, cudaEvent_t event) {
         must(cudaEventRecord(event, stream), "cudaEventRecord");
         return cudaEventQuery(event);
     }},
};

static void calls_that_a_capture_forbids_spoil_it(void **) {
    cudaStream_t stream = make_stream(), other = make_stream();
    cudaEvent_t event = make_event();
    device_array<int> data(1);
    for (const violation &each : violations) {
        must(cudaEventRecord(event, other), "cudaEventRecord");
        begin(stream, cudaStreamCaptureModeGlobal);
        step(stream, data.data, 1, 1);
        cudaError_t error = each.call(stream, event);
        if (error != each.wanted) fail_msg("%s: %s", each.what, cudaGetErrorName(error));
        cudaGraph_t graph;
        error = cudaStreamEndCapture(stream, &graph);
        if (error != cudaErrorStreamCaptureInvalidated)
            fail_msg("%s: ended with %s", each.what, cudaGetErrorName(error));
        cudaGetLastError();
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    }
    cudaEventDestroy(event);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
}

static cudaError_t allocate_elsewhere() {
    cudaError_t error = cudaSuccess;
    std::thread([&error] {
        void *memory = nullptr;
        error = cudaMalloc(&memory, 16);
        cudaFree(memory);
    }).join();
    return error;
}

static void the_mode_says_whom_a_capture_hinders(void **) {
    cudaStream_t stream = make_stream();
    cudaGraph_t graph;
    void *memory;
    begin(stream, cudaStreamCaptureModeGlobal);
    assert_int_equal(allocate_elsewhere(), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    begin(stream, cudaStreamCaptureModeThreadLocal);
    assert_int_equal(allocate_elsewhere(), cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    must(cudaGraphDestroy(graph), "cudaGraphDestroy");
    begin(stream, cudaStreamCaptureModeRelaxed);
    assert_int_equal(cudaMalloc(&memory, 16), cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    must(cudaGraphDestroy(graph), "cudaGraphDestroy");
    must(cudaFree(memory), "cudaFree");
    cudaGetLastError();
    cudaStreamDestroy(stream);
}

static void the_legacy_stream_may_not_wait_for_a_capture(void **) {
    cudaStream_t stream = make_stream(cudaStreamDefault);
    device_array<int> data(1);
    begin(stream);
    assert_int_equal(cudaMemsetAsync(data.data, 0, 4, nullptr), cudaErrorStreamCaptureImplicit);
    cudaGraph_t graph;
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
    cudaStreamDestroy(stream);
}

static void a_stream_that_goes_takes_its_capture_along(void **) {
    cudaStream_t stream = make_stream(cudaStreamDefault), side = make_stream(cudaStreamDefault);
    cudaEvent_t fork = make_event();
    device_array<int> data(1);
    begin(stream);
    must(cudaEventRecord(fork, stream), "cudaEventRecord");
    must(cudaStreamWaitEvent(side, fork, 0), "cudaStreamWaitEvent");
    must(cudaStreamDestroy(side), "cudaStreamDestroy");
    cudaGraph_t graph;
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    begin(stream);
    must(cudaStreamDestroy(stream), "cudaStreamDestroy");
    assert_int_equal(cudaMemset(data.data, 0, 4), cudaSuccess);  // hindered by nobody
    cudaGetLastError();
    cudaEventDestroy(fork);
}

static void external_flags_mean_nothing_outside_of_a_capture(void **) {
    cudaStream_t stream = make_stream();
    cudaEvent_t event = make_event();
    assert_int_equal(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaStreamWaitEvent(stream, event, cudaEventWaitExternal),
                     cudaErrorInvalidValue);
    cudaGetLastError();
    cudaEventDestroy(event);
    cudaStreamDestroy(stream);
}

static void work_that_cannot_be_repeated_is_not_captured(void **) {
    cudaStream_t stream = make_stream();
    int dropped = 0;
    gs_sim_work work = {"once", [](void *) { return GS_SIM_DONE; },
                        [](void *ctx) { ++*static_cast<int *>(ctx); }, &dropped, false};
    begin(stream);
    assert_int_equal(gs_sim_enqueue(stream, &work), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(dropped, 1);
    cudaGraph_t graph;
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
    cudaStreamDestroy(stream);
}

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_does_its_work_at_each_launch),
        cmocka_unit_test(external_events_order_other_streams_at_each_launch),
        cmocka_unit_test(branches_of_a_graph_keep_to_their_joins),
        cmocka_unit_test(work_that_is_not_joined_is_refused),
        cmocka_unit_test(calls_that_a_capture_forbids_spoil_it),
        cmocka_unit_test(the_mode_says_whom_a_capture_hinders),
        cmocka_unit_test(the_legacy_stream_may_not_wait_for_a_capture),
        cmocka_unit_test(a_stream_that_goes_takes_its_capture_along),
        cmocka_unit_test(external_flags_mean_nothing_outside_of_a_capture),
        cmocka_unit_test(work_that_cannot_be_repeated_is_not_captured),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
