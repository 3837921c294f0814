// What kernels can do on the software machine, and what ends a launch.
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "tests/cuda_sim/machine.h"
#include "tests/cuda_sim/test_device.h"

static const size_t many = 10000;

__global__ void add_one(float *__restrict__ out, const float *__restrict__ in, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count;
         i += size_t(gridDim.x) * blockDim.x) {
        out[i] = in[i] + 1.0f;
    }
}

static void every_thread_of_every_block_runs_once(void **) {
    std::vector<float> host(many);
    for (size_t i = 0; i < many; i++) host[i] = float(i);
    device_array<float> in(host), out(many);
    start("add_one", add_one, 7, 96, 0, out.data, in.data, many);
    host = out.download();
    for (size_t i = 0; i < many; i++) assert_true(host[i] == float(i) + 1.0f);
}

__global__ void say_place(unsigned *out) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * 24 + thread] = blockIdx.z << 20 | blockIdx.y << 16 | blockIdx.x << 12 |
                               threadIdx.z << 8 | threadIdx.y << 4 | threadIdx.x;
}

static void threads_know_their_place_in_three_dimensions(void **) {
    device_array<unsigned> out(6 * 24);
    start("say_place", say_place, dim3(3, 2, 1), dim3(4, 3, 2), 0, out.data);
    std::vector<unsigned> host = out.download();
    for (unsigned i = 0; i < host.size(); i++) {
        unsigned block = i / 24, thread = i % 24;
        unsigned wanted = (block / 3) << 16 | (block % 3) << 12 | (thread / 12) << 8 |
                          (thread / 4 % 3) << 4 | thread % 4;
        assert_int_equal(host[i], wanted);
    }
}

// Each thread reads what all others wrote, over and over: wrong with any barrier missing.
template <typename T> __global__ void turn_round(T *out, int rounds) {
    __shared__ T held[256];
    unsigned self = threadIdx.x, count = blockDim.x;
    held[self] = T(self);
    for (int i = 0; i < rounds; i++) {
        __syncthreads();
        T next = held[(self + 1) % count];
        __syncthreads();
        held[self] = next;
    }
    out[blockIdx.x * count + self] = held[self];
}

static void barriers_order_shared_memory(void **) {
    device_array<double> out(3 * 256);
    start("turn_round", turn_round<double>, 3, 256, 0, out.data, 50);
    std::vector<double> host = out.download();
    for (unsigned i = 0; i < host.size(); i++) assert_true(host[i] == double((i % 256 + 50) % 256));
}

__global__ void turn_without_barrier(int *out) {
    __shared__ int held[64];
    held[threadIdx.x] = int(blockIdx.x * 64 + threadIdx.x);
    out[blockIdx.x * 64 + threadIdx.x] = held[(threadIdx.x + 1) % 64];
}

static void a_forgotten_barrier_shows(void **) {
    device_array<int> out(16 * 64);
    start("turn_without_barrier", turn_without_barrier, 16, 64, 0, out.data);
    std::vector<int> host = out.download();
    int wrong = 0;
    for (int i = 0; i < 16 * 64; i++) wrong += host[size_t(i)] != i / 64 * 64 + (i % 64 + 1) % 64;
    assert_true(wrong > 0);
}

__global__ void count_votes(int *out) {
    int self = int(threadIdx.x);
    int count = __syncthreads_count(self % 3 == 0);
    int all = __syncthreads_and(self < 96), some = __syncthreads_or(self == 77),
        none = __syncthreads_or(self > 96);
    out[self] = count * 1000 + all * 100 + some * 10 + none;
}

static void barriers_count_votes(void **) {
    device_array<int> out(96);
    start("count_votes", count_votes, 1, 96, 0, out.data);
    for (int each : out.download()) assert_int_equal(each, 32 * 1000 + 100 + 10);
}

__global__ void reverse_by_dynamic_shared(int *out) {
    int *held = static_cast<int *>(gs_sim_dynamic_shared());
    held[threadIdx.x] = int(threadIdx.x);
    __syncthreads();
    out[threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}

static void dynamic_shared_memory_beyond_48_KiB_must_be_allowed(void **) {
    device_array<int> out(64);
    size_t bytes = 100 << 10;
    auto kernel = reverse_by_dynamic_shared;
    assert_int_equal(gs_sim_start("reverse", kernel, 1, 64, bytes, nullptr, out.data),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)),
                     cudaSuccess);
    start("reverse", kernel, 1, 64, bytes, out.data);
    std::vector<int> host = out.download();
    for (int i = 0; i < 64; i++) assert_int_equal(host[size_t(i)], 63 - i);
}

__global__ void shuffle_all_ways(double *out) {
    unsigned self = threadIdx.x;
    double mine = self;
    double *row = out + self * 8;
    row[0] = __shfl_sync(0xffffffffu, mine, 5);
    row[1] = __shfl_sync(0xffffffffu, mine, 5, 8);
    row[2] = __shfl_up_sync(0xffffffffu, mine, 3);
    row[3] = __shfl_down_sync(0xffffffffu, mine, 3);
    row[4] = __shfl_down_sync(0xffffffffu, mine, 3, 16);
    row[5] = __shfl_xor_sync(0xffffffffu, mine, 9);
    row[6] = __ballot_sync(0xffffffffu, self % 2);
    row[7] = __any_sync(0xffffffffu, self == 40) * 10 + __all_sync(0xffffffffu, self < 64);
}

static void shuffles_and_votes_are_the_hardware_s(void **) {
    device_array<double> out(64 * 8);
    start("shuffle_all_ways", shuffle_all_ways, 1, 64, 0, out.data);
    std::vector<double> host = out.download();
    for (unsigned self = 0; self < 64; self++) {
        const double *row = &host[self * 8];
        unsigned base = self / 32 * 32, lane = self % 32;
        assert_true(row[0] == base + 5);
        assert_true(row[1] == base + lane / 8 * 8 + 5);
        assert_true(row[2] == (lane < 3 ? self : self - 3));
        assert_true(row[3] == (lane > 28 ? self : self + 3));
        assert_true(row[4] == (lane % 16 > 12 ? self : self + 3));
        assert_true(row[5] == (base + (lane ^ 9u)));
        assert_true(row[6] == 0xaaaaaaaau);
        assert_true(row[7] == (self >= 32 ? 10 : 0) + 1);
    }
}

__global__ void meet_in_halves(int *out) {
    unsigned lane = threadIdx.x, half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    int sum = int(lane);
    for (int distance = 8; distance; distance /= 2) {
        if (lane < 16)
            sum += __shfl_xor_sync(half, sum, distance);
        else
            sum += 2 * __shfl_xor_sync(half, sum, distance) - __shfl_xor_sync(half, sum, distance);
    }
    __syncwarp();
    int all[32];
    gs_sim_exchange(0xffffffffu, sum, all);
    out[lane] = all[0] * 1000 + all[31];
}

static void halves_of_a_warp_go_their_own_ways(void **) {
    device_array<int> out(32);
    start("meet_in_halves", meet_in_halves, 1, 32, 0, out.data);
    for (int each : out.download()) assert_int_equal(each, 120 * 1000 + 376);
}

__global__ void count_up(unsigned *counter, unsigned long long *most, unsigned *order) {
    unsigned mine = atomicAdd(counter, 1u);
    order[mine] = blockIdx.x * blockDim.x + threadIdx.x;
    atomicMax(most, 1ull * order[mine]);
    atomicCAS(counter + 1, 0u, mine + 1);
}

static void integer_atomics_return_what_was_there(void **) {
    device_array<unsigned> counter(std::vector<unsigned>(2, 0)), order(128);
    device_array<unsigned long long> most(std::vector<unsigned long long>(1, 0));
    start("count_up", count_up, 2, 64, 0, counter.data, most.data, order.data);
    std::vector<unsigned> seen(128, 0);
    for (unsigned each : order.download()) seen.at(each)++;
    for (unsigned each : seen) assert_int_equal(each, 1);
    assert_int_equal(counter.download()[0], 128);
    assert_int_equal(counter.download()[1], 1);
    assert_true(most.download()[0] == 127);
}

// ---- what ends a launch; each in a process of its own, since the error sticks

__global__ void half_a_barrier(int *out) {
    if (threadIdx.x < 32) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}
__global__ void two_barriers(int *out) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}
__global__ void shuffle_with_the_gone(int *out) {
    if (threadIdx.x == 7) return;
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}
__global__ void shuffle_of_others(int *out) {
    out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 1);
}
__global__ void warp_and_barrier(int *out) {
    if (threadIdx.x == 0)
        __syncthreads();
    else
        __syncwarp();
    out[threadIdx.x] = 1;
}
__global__ void read_it(int *out, const int *in) {
    out[threadIdx.x] = in[threadIdx.x];
}
__global__ void write_behind(int *out, int where) {
    if (threadIdx.x == 0) out[where] = 1;
}

static int fails(const char *wanted) {
    cudaError_t error = cudaStreamSynchronize(nullptr);
    const char *said = gs_sim_last_failure();
    bool sticks = cudaGetLastError() == error && cudaDeviceSynchronize() == error;
    if (error == cudaErrorLaunchFailure && sticks && strstr(said, wanted)) return 0;
    fprintf(stderr, "wanted '%s', got %s: '%s'\n", wanted, cudaGetErrorName(error), said);
    return 1;
}

static int fail_half_a_barrier() {
    device_array<int> out(64);
    gs_sim_start("half_a_barrier", half_a_barrier, 1, 64, 0, nullptr, out.data);
    return fails("kernel half_a_barrier<<<(1, 1, 1), (64, 1, 1)>>>, block (0, 0, 0): 32 of 64 "
                 "threads wait at __syncthreads");
}
static int fail_two_barriers() {
    device_array<int> out(64);
    gs_sim_start("two_barriers", two_barriers, 1, 64, 0, nullptr, out.data);
    return fails("other threads of the block wait at __syncthreads");
}
static int fail_shuffle_with_the_gone() {
    device_array<int> out(32);
    gs_sim_start("shuffle_with_the_gone", shuffle_with_the_gone, 1, 32, 0, nullptr, out.data);
    return fails("00000080");
}
static int fail_shuffle_of_others() {
    device_array<int> out(32);
    gs_sim_start("shuffle_of_others", shuffle_of_others, 1, 32, 0, nullptr, out.data);
    return fails("does not name the lane that calls");
}
static int fail_warp_and_barrier() {
    device_array<int> out(32);
    gs_sim_start("warp_and_barrier", warp_and_barrier, 1, 32, 0, nullptr, out.data);
    return fails("lanes fffffffe of mask ffffffff wait at __syncwarp");
}
static int fail_host_pointer() {
    device_array<int> out(32);
    std::vector<int> host(32);
    gs_sim_start("read_it", read_it, 1, 32, 0, nullptr, out.data, host.data());
    return fails("pointer argument 1");
}
static int fail_freed_pointer() {
    device_array<int> out(32);
    int *gone;
    if (cudaMalloc(reinterpret_cast<void **>(&gone), 128) || cudaFree(gone)) return 1;
    gs_sim_start("read_it", read_it, 1, 32, 0, nullptr, out.data, gone);
    return fails("is device memory that is not allocated");
}
#ifndef __SANITIZE_ADDRESS__
static int fail_write_behind() {
    device_array<int> out(33);
    gs_sim_start("write_behind", write_behind, 1, 32, 0, nullptr, out.data, 33);
    return fails("kernel write_behind: bytes behind an allocation of 132 bytes");
}
#else
static int fail_write_behind() {  // the sanitizer ends the process
    device_array<int> out(33);
    gs_sim_start("write_behind", write_behind, 1, 32, 0, nullptr, out.data, 33);
    cudaStreamSynchronize(nullptr);
    return 0;
}
#endif

static const child_case children[] = {
    {"half_a_barrier", fail_half_a_barrier},
    {"two_barriers", fail_two_barriers},
    {"shuffle_with_the_gone", fail_shuffle_with_the_gone},
    {"shuffle_of_others", fail_shuffle_of_others},
    {"warp_and_barrier", fail_warp_and_barrier},
    {"host_pointer", fail_host_pointer},
    {"freed_pointer", fail_freed_pointer},
    {"write_behind", fail_write_behind},
};

static void a_barrier_that_some_never_reach_ends_the_launch(void **) {
    assert_int_equal(run_child("half_a_barrier").code, 0);
}
static void threads_at_two_barriers_do_not_meet(void **) {
    assert_int_equal(run_child("two_barriers").code, 0);
}
static void a_shuffle_with_a_lane_that_ended_ends_the_launch(void **) {
    assert_int_equal(run_child("shuffle_with_the_gone").code, 0);
}
static void a_mask_must_name_the_caller(void **) {
    assert_int_equal(run_child("shuffle_of_others").code, 0);
}
static void lanes_that_wait_for_different_things_end_the_launch(void **) {
    assert_int_equal(run_child("warp_and_barrier").code, 0);
}
static void kernels_cannot_follow_host_pointers(void **) {
    assert_int_equal(run_child("host_pointer").code, 0);
}
static void kernels_cannot_follow_freed_pointers(void **) {
    assert_int_equal(run_child("freed_pointer").code, 0);
}
static void a_write_behind_an_allocation_is_noticed(void **) {
    child_end end = run_child("write_behind");
#ifdef __SANITIZE_ADDRESS__
    assert_non_null(strstr(end.said.c_str(), "AddressSanitizer: use-after-poison"));
#else
    assert_int_equal(end.code, 0);
#endif
}

static void launches_out_of_range_are_refused(void **) {
    device_array<int> out(1);
    const dim3 bad[][2] = {
        {0, 32}, {1, 0}, {1, 1025}, {dim3(1, 65536), 32}, {1, dim3(1, 1, 65)}, {1, dim3(64, 32)}};
    for (const auto &shape : bad) {
        cudaError_t error =
            gs_sim_start("half", half_a_barrier, shape[0], shape[1], 0, nullptr, out.data);
        assert_int_equal(error, cudaErrorInvalidConfiguration);
    }
    cudaGetLastError();
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

int main(int argc, char **argv) {
    int code;
    if (is_child(argc, argv, children, sizeof children / sizeof *children, &code)) return code;
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_of_every_block_runs_once),
        cmocka_unit_test(threads_know_their_place_in_three_dimensions),
        cmocka_unit_test(barriers_order_shared_memory),
        cmocka_unit_test(a_forgotten_barrier_shows),
        cmocka_unit_test(barriers_count_votes),
        cmocka_unit_test(dynamic_shared_memory_beyond_48_KiB_must_be_allowed),
        cmocka_unit_test(shuffles_and_votes_are_the_hardware_s),
        cmocka_unit_test(halves_of_a_warp_go_their_own_ways),
        cmocka_unit_test(integer_atomics_return_what_was_there),
        cmocka_unit_test(a_barrier_that_some_never_reach_ends_the_launch),
        cmocka_unit_test(threads_at_two_barriers_do_not_meet),
        cmocka_unit_test(a_shuffle_with_a_lane_that_ended_ends_the_launch),
        cmocka_unit_test(a_mask_must_name_the_caller),
        cmocka_unit_test(lanes_that_wait_for_different_things_end_the_launch),
        cmocka_unit_test(kernels_cannot_follow_host_pointers),
        cmocka_unit_test(kernels_cannot_follow_freed_pointers),
        cmocka_unit_test(a_write_behind_an_allocation_is_noticed),
        cmocka_unit_test(launches_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
