// The numbers of the stand-in of cuBLASLt: everything is widened to fp32, multiplied by OpenBLAS,
// and rounded once at the end. Algorithms differ in how many parts they sum over k, so in the last
// bits.
#include <cblas.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/cuda_sim/cublaslt.h"
#include "tests/cuda_sim/machine.h"

namespace sim {

static float load(const void *data, cudaDataType_t type, size_t index) {
    if (type == CUDA_R_32F) return static_cast<const float *>(data)[index];
    if (type == CUDA_R_16BF)
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(data)[index]);
    return __half2float(static_cast<const __half *>(data)[index]);
}

static void store(void *data, cudaDataType_t type, size_t index, float value) {
    if (type == CUDA_R_32F)
        static_cast<float *>(data)[index] = value;
    else if (type == CUDA_R_16BF)
        static_cast<__nv_bfloat16 *>(data)[index] = __float2bfloat16_rn(value);
    else
        static_cast<__half *>(data)[index] = __float2half_rn(value);
}

static size_t place(const lt_layout &layout, uint64_t row, uint64_t col, int batch) {
    uint64_t line = layout.order == CUBLASLT_ORDER_ROW ? row : col;
    uint64_t within = layout.order == CUBLASLT_ORDER_ROW ? col : row;
    return static_cast<uint64_t>(batch) * static_cast<uint64_t>(layout.batch_stride) +
           line * static_cast<uint64_t>(layout.stride) + within;
}

// To nearest even with 10 bits behind the point, as tensor cores take fp32.
static float round_to_tf32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u) bits += 0xfffu + (bits >> 13 & 1u);
    bits &= ~0x1fffu;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

// op(X) as fp32, column after column.
static std::vector<float> gather(const lt_layout &layout, const void *data, bool turned, int batch,
                                 bool tf32) {
    uint64_t rows = turned ? layout.cols : layout.rows, cols = turned ? layout.rows : layout.cols;
    std::vector<float> out(rows * cols);
    for (uint64_t col = 0; col < cols; col++) {
        for (uint64_t row = 0; row < rows; row++) {
            float value =
                load(data, layout.type,
                     turned ? place(layout, col, row, batch) : place(layout, row, col, batch));
            out[col * rows + row] = tf32 ? round_to_tf32(value) : value;
        }
    }
    return out;
}

static void multiply(float *out, const float *a, const float *b, uint64_t m, uint64_t n,
                     uint64_t first, uint64_t last, uint64_t k) {
    if (m * n * k < 32 * 32 * 32) {
        for (uint64_t j = 0; j < n; j++) {
            for (uint64_t i = 0; i < m; i++) {
                float sum = 0;
                for (uint64_t l = first; l < last; l++) sum += a[l * m + i] * b[j * k + l];
                out[j * m + i] = sum;
            }
        }
        return;
    }
    cblas_sgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(m), static_cast<int>(n),
                static_cast<int>(last - first), 1.0f, a + first * m, static_cast<int>(m), b + first,
                static_cast<int>(k), 0.0f, out, static_cast<int>(m));
}

static float gelu(float x) {
    return 0.5f * x * (1.0f + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x) {
    float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
}

struct epilogue_place {
    const lt_product &p;
    int batch;
    size_t aux(uint64_t row, uint64_t col) const {
        return static_cast<size_t>(batch) * static_cast<size_t>(p.desc.aux_batch_stride) +
               col * static_cast<size_t>(p.desc.aux_stride) + row;
    }
    size_t bias(uint64_t index) const {
        return static_cast<size_t>(batch) * static_cast<size_t>(p.desc.bias_batch_stride) + index;
    }
};

static void finish(const lt_product &p, const float *sums, int batch) {
    epilogue_place where = {p, batch};
    uint32_t epilogue = p.desc.epilogue;
    bool backward = (epilogue & CUBLASLT_EPILOGUE_DGELU) == CUBLASLT_EPILOGUE_DGELU;
    for (uint64_t i = 0; i < p.m; i++) {
        float bias_grad = 0;
        for (uint64_t j = 0; j < p.n; j++) {
            float value = p.alpha * sums[j * p.m + i];
            if (p.beta != 0) value += p.beta * load(p.c_data, p.c.type, place(p.c, i, j, batch));
            if (backward) value *= gelu_slope(load(p.desc.aux, p.d.type, where.aux(i, j)));
            if (epilogue & CUBLASLT_EPILOGUE_BIAS)
                value += load(p.desc.bias, p.d.type, where.bias(i));
            if (!backward && (epilogue & 128)) store(p.desc.aux, p.d.type, where.aux(i, j), value);
            if (epilogue & CUBLASLT_EPILOGUE_GELU) value = gelu(value);
            bias_grad += value;
            store(p.d_data, p.d.type, place(p.d, i, j, batch), value);
        }
        if (backward && (epilogue & 16)) store(p.desc.bias, p.d.type, where.bias(i), bias_grad);
    }
}

static void sum_bias_grads(const lt_product &p, const float *a, const float *b, int batch) {
    epilogue_place where = {p, batch};
    bool of_a = p.desc.epilogue & CUBLASLT_EPILOGUE_BGRADA;
    uint64_t count = of_a ? p.m : p.n;
    for (uint64_t i = 0; i < count; i++) {
        float sum = 0;
        for (uint64_t l = 0; l < p.k; l++) sum += of_a ? a[l * p.m + i] : b[i * p.k + l];
        store(p.desc.bias, p.d.type, where.bias(i), sum);
    }
}

static void compute_batch(const lt_product &p, int batch) {
    bool tf32 = p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    std::vector<float> a = gather(p.a, p.a_data, p.desc.trans[0] != CUBLAS_OP_N, batch, tf32);
    std::vector<float> b = gather(p.b, p.b_data, p.desc.trans[1] != CUBLAS_OP_N, batch, tf32);
    std::vector<float> sums(p.m * p.n), part(p.algo.parts > 1 ? p.m * p.n : 0);
    for (uint64_t i = 0; i < p.algo.parts; i++) {
        uint64_t first = p.k * i / p.algo.parts, last = p.k * (i + 1) / p.algo.parts;
        multiply(i ? part.data() : sums.data(), a.data(), b.data(), p.m, p.n, first, last, p.k);
        for (size_t at = 0; i && at < sums.size(); at++) sums[at] += part[at];
    }
    finish(p, sums.data(), batch);
    if (p.desc.epilogue & (CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)) {
        sum_bias_grads(p, a.data(), b.data(), batch);
    }
}

// cuBLASLt reads and writes what it is told; a pointer to something else is an illegal access.
static std::string check_memory(const lt_product &p) {
    struct part {
        const char *name;
        const void *data;
        size_t bytes;
    };
    size_t item = lt_type_bytes(p.d.type);
    bool uses_bias = p.desc.epilogue & (CUBLASLT_EPILOGUE_BIAS | 16 | CUBLASLT_EPILOGUE_BGRADA |
                                        CUBLASLT_EPILOGUE_BGRADB);
    bool by_columns = p.desc.epilogue & CUBLASLT_EPILOGUE_BGRADB;
    size_t aux_bytes = ((p.n - 1) * static_cast<size_t>(p.desc.aux_stride) + p.m) * item;
    const part parts[] = {
        {"A", p.a_data, lt_extent_bytes(p.a)},
        {"B", p.b_data, lt_extent_bytes(p.b)},
        {"C", p.c_data, p.beta == 0 ? 0 : lt_extent_bytes(p.c)},
        {"D", p.d_data, lt_extent_bytes(p.d)},
        {"the bias", p.desc.bias, uses_bias ? (by_columns ? p.n : p.m) * item : 0},
        {"the auxiliary matrix", p.desc.aux, p.desc.epilogue & 128 ? aux_bytes : 0},
        {"the workspace", p.workspace, p.algo.workspace_bytes},
    };
    for (const part &each : parts) {
        if (!each.bytes || gs_sim_is_device_memory(each.data, each.bytes)) continue;
        return std::string("cublasLtMatmul: ") + each.name + ", " + std::to_string(each.bytes) +
               " bytes, is not all device memory";
    }
    return "";
}

std::string lt_compute(const lt_product &p) {
    std::string why = check_memory(p);
    if (!why.empty()) return why;
    // Whatever else somebody keeps there is gone.
    if (p.algo.workspace_bytes) memset(p.workspace, 0xff, p.algo.workspace_bytes);
    for (int batch = 0; batch < p.d.batch_count; batch++) compute_batch(p, batch);
    return "";
}

}  // namespace sim
