// The stand-in of cuBLASLt: its products against sums in fp64, and what it must refuse.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <csetjmp>
#include <cstdarg>
#include <random>

extern "C" {
#include <cmocka.h>
}

#include "tests/cuda_sim/machine.h"
#include "tests/cuda_sim/test_device.h"

static const size_t workspace_bytes = 1 << 20;

struct matrix {  // columns first, on the device, with the numbers that it really holds
    size_t rows, cols, stride;
    cudaDataType_t type;
    std::vector<double> numbers;  // rows · cols
    void *data = nullptr;

    matrix(size_t num_rows, size_t num_cols, cudaDataType_t of, unsigned seed)
        : rows(num_rows), cols(num_cols), stride(num_rows + (16 - num_rows % 16) % 16 + 16),
          type(of), numbers(num_rows * num_cols) {
        std::mt19937 random(seed);
        std::uniform_real_distribution<float> uniform(-1, 1);
        std::vector<float> wide(stride * cols, 0);
        std::vector<uint16_t> narrow(stride * cols, 0);
        for (size_t i = 0; i < rows * cols; i++) {
            float value = uniform(random);
            size_t at = i / rows * stride + i % rows;
            if (type == CUDA_R_16BF) {
                narrow[at] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
                value = __bfloat162float(__float2bfloat16_rn(value));
            } else if (type == CUDA_R_16F) {
                narrow[at] = __half_as_ushort(__float2half_rn(value));
                value = __half2float(__float2half_rn(value));
            }
            wide[at] = value;
            numbers[i] = double(value);
        }
        const void *from =
            type == CUDA_R_32F ? static_cast<const void *>(wide.data()) : narrow.data();
        must(cudaMalloc(&data, bytes()), "cudaMalloc");
        must(cudaMemcpy(data, from, bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    matrix(const matrix &) = delete;
    matrix &operator=(const matrix &) = delete;
    ~matrix() { cudaFree(data); }

    size_t bytes() const { return stride * cols * (type == CUDA_R_32F ? 4 : 2); }
    double at(size_t row, size_t col) const { return numbers[col * rows + row]; }
    // What is there now.
    std::vector<double> download() const {
        std::vector<char> raw(bytes());
        must(cudaMemcpy(raw.data(), data, bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
        std::vector<double> out(rows * cols);
        for (size_t i = 0; i < out.size(); i++) {
            size_t place = i / rows * stride + i % rows;
            uint16_t bits;
            float value;
            memcpy(&bits, &raw[place * 2], 2);
            if (type == CUDA_R_32F)
                memcpy(&value, &raw[place * 4], 4);
            else
                value = type == CUDA_R_16BF ? __bfloat162float(__ushort_as_bfloat16(bits))
                                            : __half2float(__ushort_as_half(bits));
            out[i] = double(value);
        }
        return out;
    }
};

struct product {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t preference;
    void *workspace;

    explicit product(cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
        check(cublasLtCreate(&handle));
        check(cublasLtMatmulDescCreate(&desc, compute, CUDA_R_32F));
        check(cublasLtMatmulPreferenceCreate(&preference));
        uint64_t most = workspace_bytes;
        check(cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most));
        must(cudaMalloc(&workspace, workspace_bytes), "cudaMalloc");
    }
    product(const product &) = delete;
    product &operator=(const product &) = delete;
    ~product() {
        cublasLtMatmulPreferenceDestroy(preference);
        cublasLtMatmulDescDestroy(desc);
        cublasLtDestroy(handle);
        cudaFree(workspace);
    }
    static void check(cublasStatus_t status) {
        if (status) fail_msg("%s", cublasLtGetStatusName(status));
    }
    template <typename T> void set(cublasLtMatmulDescAttributes_t attribute, T value) {
        check(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value));
    }

    struct layouts {
        cublasLtMatrixLayout_t a, b, d;
        layouts(const matrix &first, const matrix &second, const matrix &out) {
            check(cublasLtMatrixLayoutCreate(&a, first.type, first.rows, first.cols,
                                             int64_t(first.stride)));
            check(cublasLtMatrixLayoutCreate(&b, second.type, second.rows, second.cols,
                                             int64_t(second.stride)));
            check(
                cublasLtMatrixLayoutCreate(&d, out.type, out.rows, out.cols, int64_t(out.stride)));
        }
        ~layouts() {
            for (cublasLtMatrixLayout_t each : {a, b, d}) cublasLtMatrixLayoutDestroy(each);
        }
    };

    cublasStatus_t find(std::vector<cublasLtMatmulHeuristicResult_t> *found, const matrix &a,
                        const matrix &b, const matrix &d) {
        layouts with(a, b, d);
        int count = 0;
        found->resize(8);
        cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
            handle, desc, with.a, with.b, with.d, with.d, preference, 8, found->data(), &count);
        found->resize(size_t(count));
        return status;
    }
    cublasStatus_t run(const matrix &a, const matrix &b, const matrix &d, float alpha, float beta,
                       const cublasLtMatmulAlgo_t *algo, size_t space = workspace_bytes) {
        layouts with(a, b, d);
        return cublasLtMatmul(handle, desc, &alpha, a.data, with.a, b.data, with.b, &beta, d.data,
                              with.d, d.data, with.d, algo, workspace, space, nullptr);
    }
};

static double multiply(const matrix &a, const matrix &b, bool turn_a, bool turn_b, size_t row,
                       size_t col) {
    double sum = 0;
    size_t k = turn_a ? a.rows : a.cols;
    for (size_t i = 0; i < k; i++)
        sum += (turn_a ? a.at(i, row) : a.at(row, i)) * (turn_b ? b.at(col, i) : b.at(i, col));
    return sum;
}

static void check_near(double got, double wanted, double tolerance) {
    if (!(std::fabs(got - wanted) <= tolerance))
        fail_msg("%g instead of %g (tolerance %g)", got, wanted, tolerance);
}

// 1 ulp of the output type at the size of such sums, and what fp32 sums lose.
static double tolerance_of(cudaDataType_t type, bool tf32) {
    if (tf32) return 2e-2;
    return type == CUDA_R_32F ? 2e-5 : type == CUDA_R_16F ? 8e-3 : 6e-2;
}

static void check_product(cudaDataType_t in, cudaDataType_t out, bool turn_a, bool turn_b,
                          bool tf32, size_t k) {
    const size_t m = 24, n = 40;
    matrix a(turn_a ? k : m, turn_a ? m : k, in, 1), b(turn_b ? n : k, turn_b ? k : n, in, 2),
        d(m, n, out, 3);
    product by(tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
    by.set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t(turn_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    by.set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t(turn_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    product::check(by.find(&found, a, b, d));
    assert_true(found.size() >= 2);
    std::vector<double> before = d.download();
    for (const auto &each : found) {
        product::check(by.run(a, b, d, 0.5f, 2.0f, &each.algo));
        std::vector<double> after = d.download();
        for (size_t i = 0; i < m * n; i++) {
            double wanted = 0.5 * multiply(a, b, turn_a, turn_b, i % m, i / m) + 2 * before[i];
            check_near(after[i], wanted, tolerance_of(out, tf32) * (1 + std::fabs(wanted)));
        }
        before = after;
    }
}

static void products_are_right_in_all_types_and_turns(void **) {
    const cudaDataType_t types[][2] = {{CUDA_R_32F, CUDA_R_32F},
                                       {CUDA_R_16BF, CUDA_R_16BF},
                                       {CUDA_R_16BF, CUDA_R_32F},
                                       {CUDA_R_16F, CUDA_R_16F},
                                       {CUDA_R_16F, CUDA_R_32F}};
    for (const auto &type : types) {
        for (int turn = 0; turn < 4; turn++)
            check_product(type[0], type[1], turn & 1, turn & 2, false, 16);
    }
    check_product(CUDA_R_32F, CUDA_R_32F, false, false, true, 16);
    check_product(CUDA_R_32F, CUDA_R_32F, true, false, false, 128);  // large enough for OpenBLAS
}

static double gelu(double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void epilogues_add_bias_and_keep_what_gelu_saw(void **) {
    const size_t m = 16, n = 8, k = 8;
    matrix a(m, k, CUDA_R_32F, 1), b(k, n, CUDA_R_32F, 2), d(m, n, CUDA_R_32F, 3),
        aux(m, n, CUDA_R_32F, 4), bias(m, 1, CUDA_R_32F, 5);
    product by;
    by.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_GELU_AUX_BIAS));
    by.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data);
    by.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.data);
    by.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(aux.stride));
    product::check(by.run(a, b, d, 1, 0, nullptr));
    std::vector<double> out = d.download(), kept = aux.download();
    for (size_t i = 0; i < m * n; i++) {
        double before = multiply(a, b, false, false, i % m, i / m) + bias.at(i % m, 0);
        check_near(kept[i], before, 1e-5);
        check_near(out[i], gelu(before), 1e-5);
    }
    // And back: the slope at what was kept.
    by.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_DGELU));
    product::check(by.run(a, b, d, 1, 0, nullptr));
    out = d.download();
    for (size_t i = 0; i < m * n; i++) {
        double slope = (gelu(kept[i] + 1e-5) - gelu(kept[i] - 1e-5)) / 2e-5;
        check_near(out[i], multiply(a, b, false, false, i % m, i / m) * slope, 1e-4);
    }
    std::vector<double> same = aux.download();
    for (size_t i = 0; i < m * n; i++) assert_true(same[i] == kept[i]);
}

static void bias_gradients_are_sums_over_k(void **) {
    matrix a(16, 8, CUDA_R_32F, 1), b(8, 24, CUDA_R_32F, 2), d(16, 24, CUDA_R_32F, 3),
        grad(24, 1, CUDA_R_32F, 4);
    product by;
    by.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_BGRADB));
    by.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, grad.data);
    product::check(by.run(a, b, d, 1, 0, nullptr));
    std::vector<double> got = grad.download();
    for (size_t col = 0; col < 24; col++) {
        double wanted = 0;
        for (size_t i = 0; i < 8; i++) wanted += b.at(i, col);
        check_near(got[col], wanted, 1e-5);
    }
}

static void the_workspace_belongs_to_the_product_that_runs(void **) {
    matrix a(64, 64, CUDA_R_32F, 1), b(64, 64, CUDA_R_32F, 2), d(64, 64, CUDA_R_32F, 3);
    product by;
    must(cudaMemset(by.workspace, 0, workspace_bytes), "cudaMemset");
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    product::check(by.find(&found, a, b, d));
    const cublasLtMatmulHeuristicResult_t &split = found.back();
    assert_true(split.workspaceSize > 0);
    assert_int_equal(by.run(a, b, d, 1, 0, &split.algo, split.workspaceSize - 1),
                     CUBLAS_STATUS_INVALID_VALUE);
    product::check(by.run(a, b, d, 1, 0, &split.algo));
    unsigned char first;
    must(cudaMemcpy(&first, by.workspace, 1, cudaMemcpyDeviceToHost), "cudaMemcpy");
    assert_int_equal(first, 0xff);
    // Without room, or without leave to sum in parts, there is the plain one alone.
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    product::check(cublasLtMatmulPreferenceSetAttribute(
        by.preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
    product::check(by.find(&found, a, b, d));
    assert_int_equal(found.size(), 1);
    assert_int_equal(found[0].workspaceSize, 0);
}

static void what_the_library_does_not_take_is_refused(void **) {
    matrix a(16, 8, CUDA_R_32F, 1), b(8, 24, CUDA_R_32F, 2), d(16, 24, CUDA_R_32F, 3),
        narrow(16, 24, CUDA_R_16BF, 4);
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    product by;
    assert_int_equal(by.find(&found, b, a, d), CUBLAS_STATUS_INVALID_VALUE);       // shapes
    assert_int_equal(by.find(&found, a, b, narrow), CUBLAS_STATUS_NOT_SUPPORTED);  // fp32 to bf16
    assert_int_equal(by.run(a, b, narrow, 1, 0, nullptr), CUBLAS_STATUS_NOT_SUPPORTED);
    size_t stride = d.stride;
    d.stride = 15;
    assert_int_equal(by.find(&found, a, b, d), CUBLAS_STATUS_INVALID_VALUE);  // less than the rows
    d.stride = stride;
    int32_t short_value = 1;
    assert_int_equal(cublasLtMatmulDescSetAttribute(by.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                    &short_value, sizeof short_value),
                     CUBLAS_STATUS_INVALID_VALUE);
    by.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_GELU_AUX));
    assert_int_equal(by.run(a, b, d, 1, 0, nullptr),
                     CUBLAS_STATUS_INVALID_VALUE);  // no auxiliary pointer
    by.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, d.data);
    by.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(20));
    assert_int_equal(by.run(a, b, d, 1, 0, nullptr),
                     CUBLAS_STATUS_INVALID_VALUE);  // not a multiple of 8
    by.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(24));
    by.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
           static_cast<void *>(static_cast<char *>(d.data) + 4));
    assert_int_equal(by.run(a, b, d, 1, 0, nullptr), CUBLAS_STATUS_NOT_SUPPORTED);  // off 16 bytes
    by.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(CUBLASLT_EPILOGUE_DRELU));
    assert_int_equal(by.find(&found, a, b, d), CUBLAS_STATUS_NOT_SUPPORTED);
}

static void an_algorithm_is_for_the_alignment_it_was_found_for(void **) {
    matrix a(16, 8, CUDA_R_32F, 1), b(8, 24, CUDA_R_32F, 2), d(16, 24, CUDA_R_32F, 3);
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    product by;
    product::check(by.find(&found, a, b, d));
    void *start = a.data;
    a.data = static_cast<float *>(a.data) + 1;
    assert_int_equal(by.run(a, b, d, 1, 0, &found[0].algo), CUBLAS_STATUS_NOT_SUPPORTED);
    uint32_t four = 4;
    product::check(cublasLtMatmulPreferenceSetAttribute(
        by.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &four, sizeof four));
    product::check(by.find(&found, a, b, d));
    assert_int_equal(by.run(a, b, d, 1, 0, &found[0].algo), CUBLAS_STATUS_SUCCESS);
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    a.data = start;
    matrix other(16, 16, CUDA_R_32F, 3), wide(8, 16, CUDA_R_32F, 2);
    assert_int_equal(by.run(a, wide, other, 1, 0, &found[0].algo), CUBLAS_STATUS_NOT_SUPPORTED);
}

static int child_host_matrix() {
    matrix a(16, 8, CUDA_R_32F, 1), b(8, 24, CUDA_R_32F, 2), d(16, 24, CUDA_R_32F, 3);
    std::vector<float> host(1024);
    product by;
    void *start = b.data;
    b.data = host.data();
    if (by.run(a, b, d, 1, 0, nullptr)) return 1;
    bool failed = cudaDeviceSynchronize() == cudaErrorLaunchFailure;
    b.data = start;
    return failed ? 0 : 2;
}

static void a_matrix_in_host_memory_ends_the_device_s_life(void **) {
    child_end end = run_child("host_matrix");
    assert_int_equal(end.code, 0);
    assert_non_null(strstr(end.said.c_str(), "B, "));
}

static void products_are_captured(void **) {
    matrix a(16, 8, CUDA_R_32F, 1), b(8, 24, CUDA_R_32F, 2), d(16, 24, CUDA_R_32F, 3);
    product by;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
         "cudaStreamBeginCapture");
    {
        product::layouts with(a, b, d);
        float one = 1;
        product::check(cublasLtMatmul(by.handle, by.desc, &one, a.data, with.a, b.data, with.b,
                                      &one, d.data, with.d, d.data, with.d, nullptr, by.workspace,
                                      workspace_bytes, stream));
    }
    must(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    must(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    for (int i = 0; i < 3; i++) must(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    std::vector<double> out = d.download();
    for (size_t i = 0; i < out.size(); i++) {
        check_near(out[i], 3 * multiply(a, b, false, false, i % 16, i / 16) + d.numbers[i], 1e-4);
    }
    must(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    must(cudaGraphDestroy(graph), "cudaGraphDestroy");
    cudaStreamDestroy(stream);
}

static const child_case children[] = {{"host_matrix", child_host_matrix}};

int main(int argc, char **argv) {
    int code;
    if (is_child(argc, argv, children, sizeof children / sizeof *children, &code)) return code;
    const CMUnitTest tests[] = {
        cmocka_unit_test(products_are_right_in_all_types_and_turns),
        cmocka_unit_test(epilogues_add_bias_and_keep_what_gelu_saw),
        cmocka_unit_test(bias_gradients_are_sums_over_k),
        cmocka_unit_test(the_workspace_belongs_to_the_product_that_runs),
        cmocka_unit_test(what_the_library_does_not_take_is_refused),
        cmocka_unit_test(an_algorithm_is_for_the_alignment_it_was_found_for),
        cmocka_unit_test(a_matrix_in_host_memory_ends_the_device_s_life),
        cmocka_unit_test(products_are_captured),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
