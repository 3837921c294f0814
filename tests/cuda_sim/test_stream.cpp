// When work runs, in which order, and what the host may do meanwhile.
#include <chrono>
#include <csetjmp>
#include <cstdarg>
#include <thread>

extern "C" {
#include <cmocka.h>
}

#include "tests/cuda_sim/machine.h"
#include "tests/cuda_sim/test_device.h"

struct streams {
    cudaStream_t a, b;
    streams() {
        must(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        must(cudaStreamCreateWithPriority(&b, cudaStreamNonBlocking, -1),
             "cudaStreamCreateWithPriority");
    }
    ~streams() {
        cudaStreamDestroy(a);
        cudaStreamDestroy(b);
    }
};

template <typename T> struct pinned_array {
    T *data = nullptr;
    explicit pinned_array(size_t count) {
        must(
            cudaHostAlloc(reinterpret_cast<void **>(&data), count * sizeof(T), cudaHostAllocMapped),
            "cudaHostAlloc");
        memset(data, 0, count * sizeof(T));
    }
    pinned_array(const pinned_array &) = delete;
    pinned_array &operator=(const pinned_array &) = delete;
    ~pinned_array() { cudaFreeHost(data); }
};

__global__ void set_all(int *out, int value, size_t count) {
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) out[i] = value;
}
__global__ void add_to_all(int *out, const int *in, size_t count) {
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) out[i] += in[i];
}

static void set(cudaStream_t stream, int *out, int value, size_t count = 1) {
    must(gs_sim_start("set_all", set_all, 1, 32, 0, stream, out, value, count), "set_all");
}
static void add(cudaStream_t stream, int *out, const int *in, size_t count = 1) {
    must(gs_sim_start("add_to_all", add_to_all, 1, 32, 0, stream, out, in, count), "add_to_all");
}

static bool is_strict() {
    const char *mode = getenv("CUDA_SIM_MODE");
    return !mode || strcmp(mode, "async") != 0;
}

static void work_runs_when_somebody_lets_it(void **) {
    if (!is_strict()) skip();
    streams on;
    pinned_array<int> seen(1);
    set(on.a, seen.data, 7);
    assert_int_equal(*seen.data, 0);
    assert_int_equal(cudaStreamSynchronize(on.a), cudaSuccess);
    assert_int_equal(*seen.data, 7);
}

static void a_query_is_answered_not_ready_until_all_is_done(void **) {
    streams on;
    pinned_array<int> seen(1);
    for (int i = 0; i < 200; i++) add(on.a, seen.data, seen.data);
    set(on.a, seen.data, 1);
    cudaGetLastError();
    int not_ready = 0;
    cudaError_t error;
    while ((error = cudaStreamQuery(on.a)) == cudaErrorNotReady) not_ready++;
    assert_int_equal(error, cudaSuccess);
    assert_int_equal(*seen.data, 1);
    assert_true(not_ready > 0);
    // As on the real runtime: the next check of a launch would find it.
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
}

// What the next tests do on purpose, ThreadSanitizer reports by itself in async mode.
static bool is_reported_as_race() {
#ifdef __SANITIZE_THREAD__
    return !is_strict();
#else
    return false;
#endif
}

// Writes and reads through two streams; how many of `rounds` came out wrong.
static int count_wrong(bool ordered, int rounds) {
    const size_t count = 64;
    streams on;
    device_array<int> from(count), to(count);
    pinned_array<int> host(count);
    cudaEvent_t written, read;
    must(cudaEventCreateWithFlags(&written, cudaEventDisableTiming), "cudaEventCreate");
    must(cudaEventCreateWithFlags(&read, cudaEventDisableTiming), "cudaEventCreate");
    int wrong = 0;
    for (int round = 1; round <= rounds; round++) {
        if (ordered) must(cudaStreamWaitEvent(on.a, read, 0), "cudaStreamWaitEvent");
        set(on.a, from.data, round, count);
        if (ordered) must(cudaEventRecord(written, on.a), "cudaEventRecord");
        if (ordered) must(cudaStreamWaitEvent(on.b, written, 0), "cudaStreamWaitEvent");
        must(cudaMemcpyAsync(to.data, from.data, count * sizeof(int), cudaMemcpyDeviceToDevice,
                             on.b),
             "copy");
        must(cudaMemcpyAsync(host.data, to.data, count * sizeof(int), cudaMemcpyDefault, on.b),
             "copy");
        if (ordered) must(cudaEventRecord(read, on.b), "cudaEventRecord");
        must(cudaStreamSynchronize(on.b), "cudaStreamSynchronize");
        wrong += host.data[0] != round;
    }
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    cudaEventDestroy(written);
    cudaEventDestroy(read);
    return wrong;
}

static void events_order_streams(void **) {
    assert_int_equal(count_wrong(true, 100), 0);
}

static void a_forgotten_event_shows(void **) {
    if (is_reported_as_race()) skip();
    assert_true(count_wrong(false, 100) > 0);
}

// The host reads a result without having waited for it.
static void a_forgotten_wait_shows(void **) {
    if (is_reported_as_race()) skip();
    streams on;
    device_array<int> from(std::vector<int>(1, 0));
    pinned_array<int> host(1);
    int wrong = 0;
    for (int round = 1; round <= 100; round++) {
        set(on.a, from.data, round);
        must(cudaMemcpyAsync(host.data, from.data, sizeof(int), cudaMemcpyDeviceToHost, on.a),
             "copy");
        wrong += *static_cast<volatile int *>(host.data) != round;
        must(cudaStreamSynchronize(on.a), "cudaStreamSynchronize");
        assert_int_equal(*host.data, round);
    }
    assert_true(wrong > 0);
}

static void the_legacy_stream_comes_after_all_blocking_streams(void **) {
    cudaStream_t blocking;
    must(cudaStreamCreate(&blocking), "cudaStreamCreate");
    device_array<int> data(1);
    for (int round = 0; round < 50; round++) {
        set(blocking, data.data, round);
        int host = -1;
        must(cudaMemcpy(&host, data.data, sizeof host, cudaMemcpyDeviceToHost), "cudaMemcpy");
        assert_int_equal(host, round);
        set(nullptr, data.data, -round);
        must(cudaMemcpyAsync(&host, data.data, sizeof host, cudaMemcpyDeviceToHost, blocking),
             "copy");
        assert_int_equal(host, -round);
    }
    cudaStreamDestroy(blocking);
}

static void timed_events_measure_in_order(void **) {
    streams on;
    cudaEvent_t begin, end, untimed;
    must(cudaEventCreate(&begin), "cudaEventCreate");
    must(cudaEventCreate(&end), "cudaEventCreate");
    must(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming), "cudaEventCreate");
    pinned_array<int> seen(1);
    float ms = -1;
    assert_int_equal(cudaEventQuery(begin), cudaSuccess);  // never recorded
    assert_int_equal(cudaEventElapsedTime(&ms, begin, end), cudaErrorInvalidResourceHandle);
    must(cudaEventRecord(begin, on.a), "cudaEventRecord");
    set(on.a, seen.data, 1);
    must(cudaEventRecord(end, on.a), "cudaEventRecord");
    must(cudaEventRecord(untimed, on.a), "cudaEventRecord");
    assert_int_equal(cudaEventSynchronize(untimed), cudaSuccess);
    assert_int_equal(cudaEventElapsedTime(&ms, begin, end), cudaSuccess);
    assert_true(ms >= 0);
    assert_int_equal(cudaEventElapsedTime(&ms, begin, untimed), cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    for (cudaEvent_t each : {begin, end, untimed}) cudaEventDestroy(each);
}

struct again {
    int asked = 0, wanted = 0, dropped = 0;
};

static void library_work_may_take_its_time(void **) {
    streams on;
    again state;
    state.wanted = 1000000;
    gs_sim_work work = {"slow",
                        [](void *ctx) {
                            again *self = static_cast<again *>(ctx);
                            return ++self->asked < self->wanted ? GS_SIM_AGAIN : GS_SIM_DONE;
                        },
                        [](void *ctx) { static_cast<again *>(ctx)->dropped++; }, &state, false};
    must(gs_sim_enqueue(on.a, &work), "gs_sim_enqueue");
    pinned_array<int> seen(2);
    set(on.a, seen.data, 1);
    set(on.b, seen.data + 1, 2);
    must(cudaStreamSynchronize(on.b), "cudaStreamSynchronize");  // others go on
    assert_int_equal(seen.data[1], 2);
    assert_int_equal(cudaStreamQuery(on.a), cudaErrorNotReady);
    assert_int_equal(seen.data[0], 0);
    __atomic_store_n(&state.wanted, 0, __ATOMIC_SEQ_CST);
    must(cudaStreamSynchronize(on.a), "cudaStreamSynchronize");
    assert_int_equal(seen.data[0], 1);
    assert_int_equal(state.dropped, 1);
    cudaGetLastError();
}

static void host_functions_run_in_their_turn(void **) {
    streams on;
    pinned_array<int> seen(2);
    set(on.a, seen.data, 5);
    must(cudaLaunchHostFunc(
             on.a,
             [](void *ctx) {
                 int *pair = static_cast<int *>(ctx);
                 pair[1] = pair[0];
             },
             seen.data),
         "cudaLaunchHostFunc");
    set(on.a, seen.data, 6);
    must(cudaStreamSynchronize(on.a), "cudaStreamSynchronize");
    assert_int_equal(seen.data[0], 6);
    assert_int_equal(seen.data[1], 5);
}

static void what_a_program_asks_for_is_counted(void **) {
    streams on;
    gs_sim_counters before = gs_sim_count();
    {
        device_array<int> data(4);
        int host[4];
        must(cudaMemcpyAsync(host, data.data, sizeof host, cudaMemcpyDeviceToHost, on.a), "copy");
        set(on.a, data.data, 1, 4);
    }
    gs_sim_counters after = gs_sim_count();
    assert_int_equal(after.mallocs - before.mallocs, 1);
    assert_int_equal(after.frees - before.frees, 1);
    assert_int_equal(after.pageable_copies - before.pageable_copies, 1);
    assert_int_equal(after.launches - before.launches, 1);
    assert_int_equal(after.host_waits - before.host_waits, 2);  // the pageable copy, cudaFree
}

// ---- in a process of their own

static int child_host_reads() {
    device_array<int> data(std::vector<int>(4, 1));
    return *static_cast<volatile int *>(data.data + 2) ? 3 : 4;
}
static int child_host_function_reads() {
    device_array<int> data(std::vector<int>(4, 1));
    must(cudaLaunchHostFunc(
             nullptr, [](void *ctx) { *static_cast<volatile int *>(ctx) = 2; }, data.data),
         "launch");
    return cudaStreamSynchronize(nullptr) ? 3 : 4;
}

static const child_case children[] = {
    {"host_reads", child_host_reads},
    {"host_function_reads", child_host_function_reads},
};

static void the_host_cannot_read_device_memory(void **) {
    child_end end = run_child("host_reads", "CUDA_SIM_MODE=strict");
    assert_true(end.code != 3 && end.code != 4);
    assert_non_null(strstr(end.said.c_str(), "cuda_sim: host touched device memory at"));
    assert_non_null(strstr(end.said.c_str(), "byte 8 of an allocation of 16"));
}

static void host_functions_cannot_touch_device_memory(void **) {
    child_end end = run_child("host_function_reads", "CUDA_SIM_MODE=strict");
    assert_true(end.code != 3 && end.code != 4);
    assert_non_null(strstr(end.said.c_str(), "cuda_sim: host touched device memory at"));
}

int main(int argc, char **argv) {
    int code;
    if (is_child(argc, argv, children, sizeof children / sizeof *children, &code)) return code;
    const char *seed = getenv("CUDA_SIM_SEED");
    fprintf(stderr, "CUDA_SIM_SEED=%s\n", seed ? seed : "1");
    const CMUnitTest tests[] = {
        cmocka_unit_test(work_runs_when_somebody_lets_it),
        cmocka_unit_test(a_query_is_answered_not_ready_until_all_is_done),
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(a_forgotten_event_shows),
        cmocka_unit_test(a_forgotten_wait_shows),
        cmocka_unit_test(the_legacy_stream_comes_after_all_blocking_streams),
        cmocka_unit_test(timed_events_measure_in_order),
        cmocka_unit_test(library_work_may_take_its_time),
        cmocka_unit_test(host_functions_run_in_their_turn),
        cmocka_unit_test(what_a_program_asks_for_is_counted),
        cmocka_unit_test(the_host_cannot_read_device_memory),
        cmocka_unit_test(host_functions_cannot_touch_device_memory),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
