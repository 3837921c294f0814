// Descriptors, layouts and preferences of the stand-in of cuBLASLt.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cuda_sim/cublaslt.h"

namespace sim {

size_t lt_type_bytes(cudaDataType_t type) {
    switch (type) {
    case CUDA_R_32F:
        return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
        return 2;
    default:
        return 0;
    }
}

size_t lt_extent_bytes(const lt_layout &layout) {
    uint64_t lines = layout.order == CUBLASLT_ORDER_ROW ? layout.rows : layout.cols;
    uint64_t length = layout.order == CUBLASLT_ORDER_ROW ? layout.cols : layout.rows;
    if (!lines || !length) return 0;
    uint64_t last =
        static_cast<uint64_t>(layout.batch_count - 1) * static_cast<uint64_t>(layout.batch_stride) +
        (lines - 1) * static_cast<uint64_t>(layout.stride) + length;
    return last * lt_type_bytes(layout.type);
}

cublasStatus_t lt_refuse(cublasStatus_t status, const char *why) {
    static const bool talks = getenv("CUDA_SIM_LOG") != nullptr;
    if (talks) fprintf(stderr, "cublaslt_sim: %s\n", why);
    return status;
}

template <typename T> static cublasStatus_t set_value(T *value, const void *buffer, size_t bytes) {
    if (!buffer || bytes != sizeof *value) {
        return lt_refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of another size");
    }
    memcpy(value, buffer, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
static cublasStatus_t get_value(const T &value, void *buffer, size_t bytes, size_t *written) {
    if (written) *written = sizeof value;
    if (!bytes) return written ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    if (!buffer || bytes != sizeof value) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(buffer, &value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

// Calls `use` with the field that an attribute names.
template <typename F>
static cublasStatus_t with_field(lt_desc *desc, cublasLtMatmulDescAttributes_t attribute, F use) {
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
        return use(&desc->compute);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        return use(&desc->scale);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        return use(&desc->pointer_mode);
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return use(&desc->trans[0]);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return use(&desc->trans[1]);
    case CUBLASLT_MATMUL_DESC_TRANSC:
        return use(&desc->trans[2]);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return use(&desc->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return use(&desc->bias);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
        return use(&desc->bias_batch_stride);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return use(&desc->aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return use(&desc->aux_stride);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
        return use(&desc->aux_batch_stride);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return use(&desc->sm_count);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        return use(&desc->aux_type);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return use(&desc->bias_type);
    default:
        return lt_refuse(CUBLAS_STATUS_INVALID_VALUE,
                         "an attribute of a product that the stand-in does not know");
    }
}

template <typename F>
static cublasStatus_t with_field(lt_layout *layout, cublasLtMatrixLayoutAttribute_t attribute,
                                 F use) {
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        return use(&layout->type);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        return use(&layout->order);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return use(&layout->rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return use(&layout->cols);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return use(&layout->stride);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return use(&layout->batch_count);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return use(&layout->batch_stride);
    default:
        return lt_refuse(CUBLAS_STATUS_INVALID_VALUE,
                         "an attribute of a layout that the stand-in does not know");
    }
}

}  // namespace sim

using namespace sim;

extern "C" {

size_t cublasLtGetVersion(void) {
    return CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion(void) {
    return CUDART_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
#define NAME(status)                                                                               \
    case status:                                                                                   \
        return #status
        NAME(CUBLAS_STATUS_SUCCESS);
        NAME(CUBLAS_STATUS_NOT_INITIALIZED);
        NAME(CUBLAS_STATUS_ALLOC_FAILED);
        NAME(CUBLAS_STATUS_INVALID_VALUE);
        NAME(CUBLAS_STATUS_ARCH_MISMATCH);
        NAME(CUBLAS_STATUS_MAPPING_ERROR);
        NAME(CUBLAS_STATUS_EXECUTION_FAILED);
        NAME(CUBLAS_STATUS_INTERNAL_ERROR);
        NAME(CUBLAS_STATUS_NOT_SUPPORTED);
        NAME(CUBLAS_STATUS_LICENSE_ERROR);
#undef NAME
    }
    return "CUBLAS_STATUS_UNKNOWN";
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    default:
        return "an error of the library";
    }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    if (!out) return CUBLAS_STATUS_INVALID_VALUE;
    lt_desc *desc = new lt_desc();
    desc->compute = compute;
    desc->scale = scale;
    *out = reinterpret_cast<cublasLtMatmulDesc_t>(desc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    delete reinterpret_cast<lt_desc *>(desc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *buffer, size_t bytes) {
    if (!desc) return CUBLAS_STATUS_INVALID_VALUE;
    return with_field(reinterpret_cast<lt_desc *>(desc), attribute,
                      [&](auto *field) { return set_value(field, buffer, bytes); });
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              void *buffer, size_t bytes, size_t *written) {
    if (!desc) return CUBLAS_STATUS_INVALID_VALUE;
    return with_field(reinterpret_cast<lt_desc *>(desc), attribute,
                      [&](auto *field) { return get_value(*field, buffer, bytes, written); });
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t stride) {
    if (!out) return CUBLAS_STATUS_INVALID_VALUE;
    lt_layout *layout = new lt_layout();
    layout->type = type;
    layout->rows = rows;
    layout->cols = cols;
    layout->stride = stride;
    *out = reinterpret_cast<cublasLtMatrixLayout_t>(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete reinterpret_cast<lt_layout *>(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *buffer, size_t bytes) {
    if (!layout) return CUBLAS_STATUS_INVALID_VALUE;
    return with_field(reinterpret_cast<lt_layout *>(layout), attribute,
                      [&](auto *field) { return set_value(field, buffer, bytes); });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    if (!out) return CUBLAS_STATUS_INVALID_VALUE;
    *out = reinterpret_cast<cublasLtMatmulPreference_t>(new lt_preference());
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    delete reinterpret_cast<lt_preference *>(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t opaque,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *buffer, size_t bytes) {
    lt_preference *preference = reinterpret_cast<lt_preference *>(opaque);
    if (!preference) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set_value(&preference->workspace_bytes, buffer, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set_value(&preference->schemes, buffer, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return set_value(&preference->alignment[0], buffer, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return set_value(&preference->alignment[1], buffer, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return set_value(&preference->alignment[2], buffer, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set_value(&preference->alignment[3], buffer, bytes);
    default:
        return lt_refuse(CUBLAS_STATUS_INVALID_VALUE,
                         "a preference that the stand-in does not know");
    }
}
}
