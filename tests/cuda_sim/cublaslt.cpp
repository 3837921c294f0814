// The stand-in of cuBLASLt: which products it takes, by the rules of the library's documentation,
// and the call that puts one on a stream. It takes no product that the documentation does not
// promise.
#include <cstdio>
#include <cstring>

#include "tests/cuda_sim/cublaslt.h"
#include "tests/cuda_sim/machine.h"

using namespace sim;

namespace {

const uint32_t algo_magic = 0x51a17c00;
const uint32_t parts_of_algo[] = {1, 2, 4};

bool known_order(const lt_layout &layout) {
    return layout.order == CUBLASLT_ORDER_COL || layout.order == CUBLASLT_ORDER_ROW;
}

cublasStatus_t check_layout(const lt_layout &layout) {
    if (!known_order(layout) || !lt_type_bytes(layout.type)) {
        return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                         "an order or a type that the stand-in does not know");
    }
    uint64_t length = layout.order == CUBLASLT_ORDER_ROW ? layout.cols : layout.rows;
    if (!layout.rows || !layout.cols || layout.batch_count < 1) {
        return lt_refuse(CUBLAS_STATUS_INVALID_VALUE, "an empty matrix");
    }
    if (layout.stride < 0 || static_cast<uint64_t>(layout.stride) < length) {
        return lt_refuse(CUBLAS_STATUS_INVALID_VALUE,
                         "a leading dimension that is less than the length of a line");
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_types(const lt_product &p) {
    bool tf32 = p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if ((p.desc.compute != CUBLAS_COMPUTE_32F && !tf32) || p.desc.scale != CUDA_R_32F) {
        return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                         "a compute type that the stand-in does not know");
    }
    bool same = p.a.type == p.b.type && p.c.type == p.d.type;
    bool single = p.a.type == CUDA_R_32F && p.d.type == CUDA_R_32F;
    bool half = p.a.type != CUDA_R_32F && (p.d.type == p.a.type || p.d.type == CUDA_R_32F) && !tf32;
    if (!same || (!single && !half))
        return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a combination of types");
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_shapes(lt_product *p) {
    for (const lt_layout *each : {&p->a, &p->b, &p->c, &p->d}) {
        cublasStatus_t status = check_layout(*each);
        if (status) return status;
        if (each->batch_count != p->d.batch_count) {
            return lt_refuse(CUBLAS_STATUS_INVALID_VALUE,
                             "matrices with different numbers of batches");
        }
    }
    if (p->desc.trans[2] != CUBLAS_OP_N)
        return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED, "C is transposed");
    bool a_turned = p->desc.trans[0] != CUBLAS_OP_N, b_turned = p->desc.trans[1] != CUBLAS_OP_N;
    p->m = a_turned ? p->a.cols : p->a.rows;
    p->k = a_turned ? p->a.rows : p->a.cols;
    p->n = b_turned ? p->b.rows : p->b.cols;
    bool fit = (b_turned ? p->b.cols : p->b.rows) == p->k && p->d.rows == p->m &&
               p->d.cols == p->n && p->c.rows == p->m && p->c.cols == p->n;
    return fit ? CUBLAS_STATUS_SUCCESS
               : lt_refuse(CUBLAS_STATUS_INVALID_VALUE, "matrices that do not fit each other");
}

bool is_aligned(const void *pointer, uint32_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

cublasStatus_t check_epilogue(const lt_product &p) {
    const lt_desc &desc = p.desc;
    uint32_t known = CUBLASLT_EPILOGUE_GELU_AUX_BIAS | CUBLASLT_EPILOGUE_DGELU_BGRAD |
                     CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB |
                     CUBLASLT_EPILOGUE_DEFAULT;
    if (desc.epilogue & ~known)
        return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                         "an epilogue that the stand-in does not know");
    if (desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
    if (p.d.order != CUBLASLT_ORDER_COL)
        return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an epilogue on rows");
    bool with_bias = desc.epilogue & (CUBLASLT_EPILOGUE_BIAS | 16 | CUBLASLT_EPILOGUE_BGRADA |
                                      CUBLASLT_EPILOGUE_BGRADB);
    cudaDataType_t bias_type =
        desc.bias_type < 0 ? p.d.type : static_cast<cudaDataType_t>(desc.bias_type);
    cudaDataType_t aux_type =
        desc.aux_type < 0 ? p.d.type : static_cast<cudaDataType_t>(desc.aux_type);
    if (bias_type != p.d.type || aux_type != p.d.type) {
        return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                         "a bias or auxiliary matrix of another type than D");
    }
    if (with_bias && !desc.bias)
        return lt_refuse(CUBLAS_STATUS_INVALID_VALUE, "an epilogue without its bias pointer");
    if (with_bias && !is_aligned(desc.bias, 16)) {
        return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a bias that is not aligned to 16 bytes");
    }
    if (!(desc.epilogue & 128)) return CUBLAS_STATUS_SUCCESS;
    if (!desc.aux)
        return lt_refuse(CUBLAS_STATUS_INVALID_VALUE, "an epilogue without its auxiliary pointer");
    if (desc.aux_stride < 0 || static_cast<uint64_t>(desc.aux_stride) < p.d.rows ||
        desc.aux_stride % 8) {
        return lt_refuse(CUBLAS_STATUS_INVALID_VALUE,
                         "the auxiliary leading dimension is too small or not a multiple of 8");
    }
    // 16-byte accesses to all that the epilogue walks over.
    size_t line = static_cast<size_t>(p.d.stride) * lt_type_bytes(p.d.type);
    if (!is_aligned(desc.aux, 16) || line % 16) {
        return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                         "an epilogue with an auxiliary matrix off 16 bytes");
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_product(lt_product *p) {
    cublasStatus_t status = check_shapes(p);
    if (!status) status = check_types(*p);
    if (!status) status = check_epilogue(*p);
    return status;
}

// The library chooses kernels by the alignment that pointers and lines have in common.
uint32_t usable_alignment(const lt_layout &layout, uint32_t promised) {
    uint64_t line = static_cast<uint64_t>(layout.stride) * lt_type_bytes(layout.type);
    uint32_t alignment = 16;
    while (alignment > promised || line % alignment) alignment /= 2;
    return alignment;
}

lt_algo make_algo(const lt_product &p, uint32_t id, const lt_preference &preference) {
    lt_algo algo = {};
    algo.magic = algo_magic;
    algo.id = id;
    algo.parts = parts_of_algo[id];
    algo.epilogue = p.desc.epilogue;
    const lt_layout *layouts[] = {&p.a, &p.b, &p.c, &p.d};
    for (int i = 0; i < 4; i++)
        algo.alignment[i] = usable_alignment(*layouts[i], preference.alignment[i]);
    algo.m = p.m;
    algo.n = p.n;
    algo.k = p.k;
    algo.workspace_bytes = algo.parts > 1 ? algo.parts * p.m * p.n * 4 : 0;
    return algo;
}

cublasStatus_t check_pointers(const lt_product &p, size_t workspace_bytes) {
    const void *data[] = {p.a_data, p.b_data, p.c_data, p.d_data};
    const lt_layout *layouts[] = {&p.a, &p.b, &p.c, &p.d};
    for (int i = 0; i < 4; i++) {
        if (!data[i] && !(i == 2 && p.beta == 0))
            return lt_refuse(CUBLAS_STATUS_INVALID_VALUE, "a matrix is NULL");
        if (!is_aligned(data[i], p.algo.alignment[i]) || static_cast<uint64_t>(layouts[i]->stride) *
                                                             lt_type_bytes(layouts[i]->type) %
                                                             p.algo.alignment[i]) {
            return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                             "a matrix with less alignment than the algorithm was chosen for");
        }
    }
    if (p.c_data == p.d_data && (p.c.stride != p.d.stride || p.c.order != p.d.order)) {
        return lt_refuse(CUBLAS_STATUS_INVALID_VALUE, "C and D are one, their layouts are not");
    }
    if (p.algo.workspace_bytes > workspace_bytes || (workspace_bytes && !p.workspace)) {
        return lt_refuse(CUBLAS_STATUS_INVALID_VALUE,
                         "a workspace that is too small for the algorithm");
    }
    if (!is_aligned(p.workspace, 16))
        return lt_refuse(CUBLAS_STATUS_INVALID_VALUE, "a workspace off 16 bytes");
    return CUBLAS_STATUS_SUCCESS;
}

gs_sim_progress run_product(void *ctx) {
    std::string why = lt_compute(*static_cast<lt_product *>(ctx));
    if (why.empty()) return GS_SIM_DONE;
    fprintf(stderr, "cublaslt_sim: %s\n", why.c_str());
    return GS_SIM_FAILED;
}

void drop_product(void *ctx) {
    delete static_cast<lt_product *>(ctx);
}

cublasStatus_t enqueue(const lt_product &product, cudaStream_t stream) {
    gs_sim_work work = {"cublasLtMatmul", run_product, drop_product, new lt_product(product), true};
    return gs_sim_enqueue(stream, &work) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

void fill_layouts(lt_product *p, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                  cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
    p->a = *reinterpret_cast<const lt_layout *>(a);
    p->b = *reinterpret_cast<const lt_layout *>(b);
    p->c = *reinterpret_cast<const lt_layout *>(c);
    p->d = *reinterpret_cast<const lt_layout *>(d);
}

// An algorithm belongs to the problem that it was found for.
bool belongs(const lt_algo &algo, const lt_product &p) {
    return algo.magic == algo_magic && algo.m == p.m && algo.n == p.n && algo.k == p.k &&
           algo.epilogue == p.desc.epilogue;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    int device;
    if (!out) return CUBLAS_STATUS_INVALID_VALUE;
    if (cudaGetDevice(&device)) return CUBLAS_STATUS_NOT_INITIALIZED;
    *out = new cublasLtContext{device};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t opaque, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *found) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!desc || !a || !b || !c || !d || !opaque || wanted <= 0 || !results || !found)
        return CUBLAS_STATUS_INVALID_VALUE;
    const lt_preference &preference = *reinterpret_cast<const lt_preference *>(opaque);
    lt_product product = {};
    product.desc = *reinterpret_cast<const lt_desc *>(desc);
    fill_layouts(&product, a, b, c, d);
    *found = 0;
    cublasStatus_t status = check_product(&product);
    if (status) return status;
    for (int i = 0; i < 4; i++) {
        uint32_t least = static_cast<uint32_t>(lt_type_bytes((&product.a)[i].type));
        if (preference.alignment[i] < least)
            return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED, "elements off their own size");
    }
    for (uint32_t id = 0; id < 3 && *found < wanted; id++) {
        lt_algo algo = make_algo(product, id, preference);
        if (algo.parts > 1 && !(preference.schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE))
            continue;
        if (algo.parts > product.k || algo.workspace_bytes > preference.workspace_bytes) continue;
        cublasLtMatmulHeuristicResult_t *result = &results[(*found)++];
        memset(result, 0, sizeof *result);
        memcpy(&result->algo, &algo, sizeof algo);
        result->workspaceSize = algo.workspace_bytes;
        result->state = CUBLAS_STATUS_SUCCESS;
        result->wavesCount = 1.0f;
    }
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!desc || !alpha || !beta || !a_layout || !b_layout || !c_layout || !d_layout)
        return CUBLAS_STATUS_INVALID_VALUE;
    lt_product product = {};
    product.desc = *reinterpret_cast<const lt_desc *>(desc);
    fill_layouts(&product, a_layout, b_layout, c_layout, d_layout);
    if (product.desc.pointer_mode != CUBLASLT_POINTER_MODE_HOST) {
        return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED, "alpha and beta on the device");
    }
    memcpy(&product.alpha, alpha, sizeof product.alpha);
    memcpy(&product.beta, beta, sizeof product.beta);
    product.a_data = a;
    product.b_data = b;
    product.c_data = c;
    product.d_data = d;
    product.workspace = workspace;
    cublasStatus_t status = check_product(&product);
    if (status) return status;
    lt_preference anything;
    for (uint32_t &each : anything.alignment) each = 1;
    if (algo)
        memcpy(&product.algo, algo, sizeof product.algo);
    else
        product.algo = make_algo(product, 0, anything);
    if (!belongs(product.algo, product)) {
        return lt_refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                         "an algorithm that was found for another problem");
    }
    status = check_pointers(product, workspace_bytes);
    return status ? status : enqueue(product, stream);
}
}
