// Devices as the environment names them, their memory, and copies.
#include <csetjmp>
#include <cstdarg>
#include <set>

extern "C" {
#include <cmocka.h>
}

#include "tests/cuda_sim/machine.h"
#include "tests/cuda_sim/test_device.h"

static std::string uuid_of(int device) {
    cudaDeviceProp facts;
    must(cudaGetDeviceProperties(&facts, device), "cudaGetDeviceProperties");
    std::string text = "GPU-";
    for (int i = 0; i < 16; i++) {
        char digits[4];
        snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(facts.uuid.bytes[i]));
        text += i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        text += digits;
    }
    return text;
}

static int child_print_devices() {
    int count = -1;
    cudaError_t error = cudaGetDeviceCount(&count);
    fprintf(stderr, "%s %d", cudaGetErrorName(error), count);
    for (int i = 0; i < count; i++) fprintf(stderr, " %s", uuid_of(i).c_str());
    void *memory;
    if (!count && cudaMalloc(&memory, 16) != error) return 1;
    return 0;
}

static std::string devices_with(const char *environment) {
    child_end end = run_child("print_devices", environment);
    assert_int_equal(end.code, 0);
    return end.said;
}

static void the_environment_says_which_devices_there_are(void **) {
    std::string all = devices_with("CUDA_SIM_DEVICES=3");
    assert_int_equal(all.find("cudaSuccess 3 GPU-"), 0);
    std::string uuids[3];
    for (int i = 0; i < 3; i++) uuids[i] = all.substr(14 + 41 * size_t(i), 40);
    assert_int_equal(std::set<std::string>(uuids, uuids + 3).size(), 3);
    assert_string_equal(devices_with("CUDA_SIM_DEVICES=3 CUDA_VISIBLE_DEVICES=2,0").c_str(),
                        ("cudaSuccess 2 " + uuids[2] + " " + uuids[0]).c_str());
    std::string by_uuid = "CUDA_SIM_DEVICES=3 CUDA_VISIBLE_DEVICES=" + uuids[1];
    assert_string_equal(devices_with(by_uuid.c_str()).c_str(),
                        ("cudaSuccess 1 " + uuids[1]).c_str());
    assert_string_equal(devices_with("CUDA_SIM_DEVICES=3 CUDA_VISIBLE_DEVICES=1,7,0").c_str(),
                        ("cudaSuccess 1 " + uuids[1]).c_str());
}

static void no_device_and_no_driver_are_told_apart(void **) {
    assert_string_equal(devices_with("CUDA_SIM_DEVICES=0").c_str(), "cudaErrorNoDevice 0");
    assert_string_equal(devices_with("CUDA_VISIBLE_DEVICES=").c_str(), "cudaErrorNoDevice 0");
    assert_string_equal(devices_with("CUDA_SIM_DRIVER=none").c_str(),
                        "cudaErrorInsufficientDriver 0");
}

static int child_run_out() {
    size_t left, total, left_after;
    void *first, *second;
    must(cudaMemGetInfo(&left, &total), "cudaMemGetInfo");
    if (total != 64u << 20 || left != total) return 1;
    must(cudaMalloc(&first, 48u << 20), "cudaMalloc");
    must(cudaMemGetInfo(&left_after, &total), "cudaMemGetInfo");
    if (left - left_after < 48u << 20) return 2;
    if (cudaMalloc(&second, 48u << 20) != cudaErrorMemoryAllocation || second) return 3;
    if (cudaGetLastError() != cudaErrorMemoryAllocation || cudaGetLastError() != cudaSuccess)
        return 4;
    must(cudaFree(first), "cudaFree");  // nothing sticks
    must(cudaMalloc(&second, 48u << 20), "cudaMalloc");
    must(cudaMemset(second, 0, 48u << 20), "cudaMemset");
    return cudaDeviceSynchronize() ? 5 : 0;
}

static void memory_runs_out_and_can_be_had_again(void **) {
    assert_int_equal(run_child("run_out", "CUDA_SIM_MEMORY=64M").code, 0);
}

static void fresh_memory_is_not_zero(void **) {
    device_array<float> data(100);
    for (float each : data.download()) assert_true(each != each);
    float *pinned;
    must(cudaHostAlloc(reinterpret_cast<void **>(&pinned), 400, 0), "cudaHostAlloc");
    for (int i = 0; i < 100; i++) assert_true(pinned[i] != pinned[i]);
    must(cudaFreeHost(pinned), "cudaFreeHost");
}

static void allocations_are_aligned_and_apart(void **) {
    std::vector<char *> all;
    std::vector<size_t> sizes;
    for (size_t bytes = 1; bytes < 5000; bytes += 333) {
        char *memory;
        must(cudaMalloc(reinterpret_cast<void **>(&memory), bytes), "cudaMalloc");
        assert_int_equal(reinterpret_cast<uintptr_t>(memory) % 256, 0);
        for (size_t i = 0; i < all.size(); i++) {
            assert_true(memory >= all[i] + sizes[i] || memory + bytes <= all[i]);
        }
        assert_true(gs_sim_is_device_memory(memory, bytes));
        assert_false(gs_sim_is_device_memory(memory, bytes + 1));
        all.push_back(memory);
        sizes.push_back(bytes);
    }
    for (char *each : all) must(cudaFree(each), "cudaFree");
    assert_false(gs_sim_is_device_memory(all[0], 1));
    assert_int_equal(cudaFree(all[0]), cudaErrorInvalidValue);
    cudaGetLastError();
}

static void a_copy_says_truly_where_memory_is(void **) {
    device_array<int> data(8), more(8);
    int host[9] = {0};
    const struct {
        cudaError_t wanted;
        void *to;
        const void *from;
        size_t bytes;
        cudaMemcpyKind kind;
    } copies[] = {
        {cudaSuccess, data.data, host, 32, cudaMemcpyHostToDevice},
        {cudaSuccess, host, data.data + 4, 16, cudaMemcpyDeviceToHost},
        {cudaSuccess, more.data, data.data, 32, cudaMemcpyDeviceToDevice},
        {cudaSuccess, host, host + 4, 16, cudaMemcpyHostToHost},
        {cudaSuccess, data.data, host, 32, cudaMemcpyDefault},
        {cudaErrorInvalidValue, data.data, host, 36, cudaMemcpyHostToDevice},
        {cudaErrorInvalidValue, host, data.data + 4, 20, cudaMemcpyDeviceToHost},
        {cudaErrorInvalidValue, host, data.data, 32, cudaMemcpyHostToDevice},
        {cudaErrorInvalidValue, more.data, data.data, 32, cudaMemcpyDeviceToHost},
        {cudaErrorInvalidValue, nullptr, data.data, 32, cudaMemcpyDeviceToHost},
        {cudaSuccess, nullptr, nullptr, 0, cudaMemcpyDeviceToHost},
    };
    for (const auto &each : copies) {
        assert_int_equal(cudaMemcpy(each.to, each.from, each.bytes, each.kind), each.wanted);
    }
    cudaGetLastError();
}

static void pointers_know_their_memory(void **) {
    device_array<int> data(8);
    int *pinned, host = 0;
    must(cudaHostAlloc(reinterpret_cast<void **>(&pinned), 32, cudaHostAllocMapped),
         "cudaHostAlloc");
    cudaPointerAttributes facts;
    must(cudaPointerGetAttributes(&facts, data.data + 3), "cudaPointerGetAttributes");
    assert_int_equal(facts.type, cudaMemoryTypeDevice);
    assert_int_equal(facts.device, 0);
    must(cudaPointerGetAttributes(&facts, pinned + 3), "cudaPointerGetAttributes");
    assert_int_equal(facts.type, cudaMemoryTypeHost);
    assert_ptr_equal(facts.devicePointer, pinned + 3);
    must(cudaPointerGetAttributes(&facts, &host), "cudaPointerGetAttributes");
    assert_int_equal(facts.type, cudaMemoryTypeUnregistered);
    must(cudaHostRegister(&host, sizeof host, 0), "cudaHostRegister");
    assert_int_equal(cudaHostRegister(&host, sizeof host, 0), cudaErrorHostMemoryAlreadyRegistered);
    must(cudaPointerGetAttributes(&facts, &host), "cudaPointerGetAttributes");
    assert_int_equal(facts.type, cudaMemoryTypeHost);
    must(cudaHostUnregister(&host), "cudaHostUnregister");
    must(cudaFreeHost(pinned), "cudaFreeHost");
    cudaGetLastError();
}

static void a_pageable_source_may_change_after_the_call(void **) {
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    device_array<int> data(1);
    int host = 5;
    must(cudaMemcpyAsync(data.data, &host, sizeof host, cudaMemcpyHostToDevice, stream),
         "cudaMemcpyAsync");
    host = 6;
    must(cudaMemcpyAsync(&host, data.data, sizeof host, cudaMemcpyDeviceToHost, stream),
         "cudaMemcpyAsync");
    assert_int_equal(host, 5);
    cudaStreamDestroy(stream);
}

static const child_case children[] = {
    {"print_devices", child_print_devices},
    {"run_out", child_run_out},
};

int main(int argc, char **argv) {
    int code;
    if (is_child(argc, argv, children, sizeof children / sizeof *children, &code)) return code;
    const CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_says_which_devices_there_are),
        cmocka_unit_test(no_device_and_no_driver_are_told_apart),
        cmocka_unit_test(memory_runs_out_and_can_be_had_again),
        cmocka_unit_test(fresh_memory_is_not_zero),
        cmocka_unit_test(allocations_are_aligned_and_apart),
        cmocka_unit_test(a_copy_says_truly_where_memory_is),
        cmocka_unit_test(pointers_know_their_memory),
        cmocka_unit_test(a_pageable_source_may_change_after_the_call),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
