// Inside the stand-in of cuBLASLt: what descriptors hold, and a product ready to be computed.
#ifndef TESTS_CUDA_SIM_CUBLASLT_H
#define TESTS_CUDA_SIM_CUBLASLT_H

#include <cublasLt.h>

#include <cstdint>
#include <string>

namespace sim {

struct lt_desc {
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cudaDataType_t scale = CUDA_R_32F;
    int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
    int32_t trans[3] = {CUBLAS_OP_N, CUBLAS_OP_N, CUBLAS_OP_N};
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t bias_batch_stride = 0, aux_stride = 0, aux_batch_stride = 0;
    int32_t sm_count = 0, bias_type = -1, aux_type = -1;
};

struct lt_layout {
    cudaDataType_t type = CUDA_R_32F;
    int32_t order = CUBLASLT_ORDER_COL, batch_count = 1;
    uint64_t rows = 0, cols = 0;
    int64_t stride = 0, batch_stride = 0;
};

struct lt_preference {
    uint64_t workspace_bytes = 0;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t alignment[4] = {256, 256, 256, 256};
};

// What an algorithm's opaque words say.
struct lt_algo {
    uint32_t magic, id, parts;  // the sum over k in so many parts
    uint32_t epilogue;
    uint32_t alignment[4];  // of A, B, C, D that it needs
    uint64_t m, n, k, workspace_bytes;
};
static_assert(sizeof(lt_algo) <= sizeof(cublasLtMatmulAlgo_t),
              "an algorithm fits in its opaque words");

struct lt_product {
    lt_desc desc;
    lt_layout a, b, c, d;
    uint64_t m, n, k;
    float alpha, beta;
    const void *a_data, *b_data, *c_data;
    void *d_data, *workspace;
    lt_algo algo;
};

size_t lt_type_bytes(cudaDataType_t type);  // 0: not one that we know
// The distance of the first element from the one behind the last.
size_t lt_extent_bytes(const lt_layout &layout);

// "" or what a device would have stumbled over. Device memory is open.
std::string lt_compute(const lt_product &product);

// Returns the status; with CUDA_SIM_LOG set, says why: cuBLASLt keeps its reasons to itself.
cublasStatus_t lt_refuse(cublasStatus_t status, const char *why);

}  // namespace sim

// The library's own names for its opaque types.
struct cublasLtContext {
    int device;
};

#endif
