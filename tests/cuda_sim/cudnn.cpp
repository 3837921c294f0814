// The stand-in of cuDNN: descriptors that remember what they were told, and graphs that are computed operation by
// operation, in fp32, each result rounded to its tensor's type. It knows the operations that attention is made of
// (kernels/cuda/attention_graph.c) and refuses others. Of two engines that its heuristic names the first is not
// deterministic, and fails when it runs.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cudnn_graph.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/cuda_sim/machine.h"

namespace {

struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool is_final = false;
    std::map<int, std::vector<unsigned char>> values;
};

size_t bytes_of(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
        return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_DOUBLE:
        return 8;
    default:
        return 4;
    }
}

template <typename T> std::vector<T> list_of(const descriptor &of, int name) {
    const auto found = of.values.find(name);
    if (found == of.values.end()) return {};
    std::vector<T> list(found->second.size() / sizeof(T));
    memcpy(list.data(), found->second.data(), list.size() * sizeof(T));
    return list;
}

template <typename T> T value_of(const descriptor &of, int name, T fallback) {
    const std::vector<T> list = list_of<T>(of, name);
    return list.empty() ? fallback : list[0];
}

descriptor *child_of(const descriptor &of, int name) {
    return value_of<descriptor *>(of, name, nullptr);
}

// ---- tensors

struct tensor {
    int64_t id = 0;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    std::vector<int64_t> dims, strides;
    bool is_virtual = false, is_number = false;

    int64_t count() const {
        int64_t all = 1;
        for (int64_t dim : dims) all *= dim;
        return all;
    }
    // Of element `index`, counted row by row.
    std::vector<int64_t> place(int64_t index) const {
        std::vector<int64_t> at(dims.size());
        for (size_t i = dims.size(); i-- > 0; index /= dims[i]) at[i] = index % dims[i];
        return at;
    }
    int64_t offset(int64_t index) const {
        const std::vector<int64_t> at = place(index);
        int64_t sum = 0;
        for (size_t i = 0; i < at.size(); i++) sum += at[i] * strides[i];
        return sum;
    }
    // Of the element that meets element `index` of a tensor with these or larger dimensions.
    int64_t meeting(const std::vector<int64_t> &at) const {
        int64_t sum = 0;
        for (size_t i = 0; i < dims.size(); i++) sum = sum * dims[i] + (dims[i] == 1 ? 0 : at[i]);
        return sum;
    }
};

tensor read_tensor(const descriptor &of) {
    tensor t;
    t.id = value_of<int64_t>(of, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
    t.type = value_of(of, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT);
    t.dims = list_of<int64_t>(of, CUDNN_ATTR_TENSOR_DIMENSIONS);
    t.strides = list_of<int64_t>(of, CUDNN_ATTR_TENSOR_STRIDES);
    t.is_virtual = value_of<unsigned char>(of, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0) != 0;
    t.is_number = value_of<unsigned char>(of, CUDNN_ATTR_TENSOR_IS_BY_VALUE, 0) != 0;
    return t;
}

float round_to(cudnnDataType_t type, float value) {
    if (type == CUDNN_DATA_BFLOAT16) return __bfloat162float(__float2bfloat16_rn(value));
    return type == CUDNN_DATA_HALF ? __half2float(__float2half_rn(value)) : value;
}

float load(const void *data, cudnnDataType_t type, int64_t at) {
    if (type == CUDNN_DATA_FLOAT) return static_cast<const float *>(data)[at];
    if (type == CUDNN_DATA_BFLOAT16)
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(data)[at]);
    return __half2float(static_cast<const __half *>(data)[at]);
}

void store(void *data, cudnnDataType_t type, int64_t at, float value) {
    if (type == CUDNN_DATA_FLOAT)
        static_cast<float *>(data)[at] = value;
    else if (type == CUDNN_DATA_BFLOAT16)
        static_cast<__nv_bfloat16 *>(data)[at] = __float2bfloat16_rn(value);
    else
        static_cast<__half *>(data)[at] = __float2half_rn(value);
}

// ---- a graph in work

struct run {
    std::vector<descriptor> operations;  // copies, with the copies of their tensors and settings
    std::map<descriptor *, descriptor> parts;
    std::map<int64_t, void *> pointers;
    std::map<int64_t, float> numbers;
    void *workspace = nullptr;
    size_t workspace_bytes = 0;
    bool is_deterministic = true;

    std::map<int64_t, std::vector<float>> made;
    std::string why;

    tensor part(const descriptor &operation, int name) {
        descriptor *of = child_of(operation, name);
        return of ? read_tensor(parts.at(of)) : tensor();
    }
    const descriptor &setting(const descriptor &operation, int name) {
        return parts.at(child_of(operation, name));
    }

    bool is_mine(const tensor &t) {
        size_t width = t.type == CUDNN_DATA_FLOAT ? 4 : 2;
        int64_t last = t.offset(t.count() - 1);
        const auto found = pointers.find(t.id);
        if (found != pointers.end() && reinterpret_cast<uintptr_t>(found->second) % 16 == 0 &&
            gs_sim_is_device_memory(found->second, static_cast<size_t>(last + 1) * width))
            return true;
        why = "tensor " + std::to_string(t.id) + " is not all device memory on 16 bytes";
        return false;
    }

    const std::vector<float> &take(const tensor &t) {
        auto found = made.find(t.id);
        if (found != made.end()) return found->second;
        std::vector<float> values(static_cast<size_t>(t.count()), NAN);
        if (t.is_number)
            values[0] = numbers.count(t.id) ? numbers[t.id] : NAN;
        else if (t.is_virtual)
            why = "a virtual tensor is read before it is made";
        else if (is_mine(t))
            for (int64_t i = 0; i < t.count(); i++)
                values[static_cast<size_t>(i)] = load(pointers[t.id], t.type, t.offset(i));
        return made[t.id] = values;
    }

    void give(const tensor &t, std::vector<float> values) {
        for (float &value : values) value = round_to(t.type, value);
        made[t.id] = values;
        if (t.is_virtual || !is_mine(t)) return;
        for (int64_t i = 0; i < t.count(); i++)
            store(pointers[t.id], t.type, t.offset(i), values[static_cast<size_t>(i)]);
    }

    void multiply(const descriptor &operation) {
        tensor a = part(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
        tensor b = part(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
        tensor c = part(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
        const std::vector<float> x = take(a), y = take(b);
        const int64_t m = a.dims[2], k = a.dims[3], n = b.dims[3];
        if (b.dims[2] != k || c.dims[2] != m || c.dims[3] != n) {
            why = "matrices that do not fit each other";
            return;
        }
        std::vector<float> sums(static_cast<size_t>(c.count()), 0.0f);
        for (int64_t group = 0; group < a.dims[0] * a.dims[1]; group++)
            for (int64_t i = 0; i < m; i++)
                for (int64_t l = 0; l < k; l++)
                    for (int64_t j = 0; j < n; j++)
                        sums[static_cast<size_t>((group * m + i) * n + j)] +=
                            x[static_cast<size_t>((group * m + i) * k + l)] *
                            y[static_cast<size_t>((group * k + l) * n + j)];
        give(c, sums);
    }

    float point(cudnnPointwiseMode_t mode, float x, float b, float t) {
        switch (mode) {
        case CUDNN_POINTWISE_ADD:
            return x + b;
        case CUDNN_POINTWISE_SUB:
            return x - b;
        case CUDNN_POINTWISE_MUL:
            return x * b;
        case CUDNN_POINTWISE_DIV:
            return x / b;
        case CUDNN_POINTWISE_EXP:
            return std::exp(x);
        case CUDNN_POINTWISE_LOG:
            return std::log(x);
        case CUDNN_POINTWISE_CMP_GE:
            return x >= b ? 1.0f : 0.0f;
        case CUDNN_POINTWISE_BINARY_SELECT:
            return t != 0.0f ? x : b;
        default:
            why = "a pointwise operation that the stand-in does not know";
            return NAN;
        }
    }

    void point_all(const descriptor &operation) {
        const descriptor &how = setting(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        const auto mode = value_of(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
        const int64_t axis = value_of<int64_t>(how, CUDNN_ATTR_POINTWISE_AXIS, -1);
        tensor x = part(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
        tensor b = part(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        tensor t = part(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
        tensor y = part(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
        std::vector<float> none, out(static_cast<size_t>(y.count()));
        const std::vector<float> xs = take(x), bs = b.id ? take(b) : none, ts = t.id ? take(t) : none;
        for (int64_t i = 0; i < y.count(); i++) {
            const std::vector<int64_t> at = y.place(i);
            const auto value = [&](const tensor &of, const std::vector<float> &from) {
                return from.empty() ? 0.0f : from[static_cast<size_t>(of.meeting(at))];
            };
            out[static_cast<size_t>(i)] =
                mode == CUDNN_POINTWISE_GEN_INDEX && axis >= 0
                    ? static_cast<float>(at[static_cast<size_t>(axis)])
                    : point(mode, value(x, xs), value(b, bs), value(t, ts));
        }
        give(y, out);
    }

    void reduce(const descriptor &operation) {
        const descriptor &how = setting(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
        const bool adds = value_of(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_REDUCE_TENSOR_ADD) ==
                          CUDNN_REDUCE_TENSOR_ADD;
        tensor x = part(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
        tensor y = part(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
        const std::vector<float> xs = take(x);
        std::vector<float> out(static_cast<size_t>(y.count()), adds ? 0.0f : -INFINITY);
        for (int64_t i = 0; i < x.count(); i++) {
            float &to = out[static_cast<size_t>(y.meeting(x.place(i)))];
            const float value = xs[static_cast<size_t>(i)];
            to = adds ? to + value : std::fmax(to, value);
        }
        give(y, out);
    }

    // The same elements of memory under other dimensions.
    void reshape(const descriptor &operation) {
        tensor x = part(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
        tensor y = part(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
        const std::vector<float> xs = take(x);
        std::map<int64_t, float> memory;
        for (int64_t i = 0; i < x.count(); i++) memory[x.offset(i)] = xs[static_cast<size_t>(i)];
        std::vector<float> out(static_cast<size_t>(y.count()));
        for (int64_t i = 0; i < y.count(); i++) {
            if (!memory.count(y.offset(i))) why = "a reshape beyond its input";
            out[static_cast<size_t>(i)] = memory[y.offset(i)];
        }
        give(y, out);
    }

    void compute() {
        if (!is_deterministic) why = "an engine that is not deterministic was chosen";
        if (workspace_bytes && !gs_sim_is_device_memory(workspace, workspace_bytes))
            why = "the workspace is not device memory";
        else if (workspace_bytes)
            memset(workspace, 0xff, workspace_bytes);
        for (const descriptor &operation : operations) {
            if (!why.empty()) return;
            if (operation.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
                multiply(operation);
            else if (operation.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
                point_all(operation);
            else if (operation.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
                reduce(operation);
            else if (operation.type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
                reshape(operation);
            else
                why = "an operation that the stand-in does not know";
        }
    }
};

gs_sim_progress poll_run(void *ctx) {
    run work = *static_cast<run *>(ctx);
    work.compute();
    if (work.why.empty()) return GS_SIM_DONE;
    fprintf(stderr, "cudnn_sim: %s\n", work.why.c_str());
    return GS_SIM_FAILED;
}

void drop_run(void *ctx) {
    delete static_cast<run *>(ctx);
}

void copy_parts(run *work, const descriptor &of) {
    for (const auto &each : of.values) {
        if (each.first == CUDNN_ATTR_OPERATIONGRAPH_HANDLE) continue;
        descriptor *part = nullptr;
        if (each.second.size() != sizeof part) continue;
        memcpy(&part, each.second.data(), sizeof part);
        const bool is_part = each.first / 10 == CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR / 10 ||
                             each.first / 10 == CUDNN_ATTR_OPERATION_MATMUL_ADESC / 10 ||
                             each.first / 10 == CUDNN_ATTR_OPERATION_REDUCTION_XDESC / 10 ||
                             each.first / 10 == CUDNN_ATTR_OPERATION_RESHAPE_XDESC / 10;
        if (is_part) work->parts[part] = *part;
    }
}

cudnnStatus_t copy_out(const void *from, size_t width, int64_t count, int64_t wanted, int64_t *got,
                       void *to) {
    *got = count;
    if (wanted > 0) memcpy(to, from, static_cast<size_t>(count < wanted ? count : wanted) * width);
    return CUDNN_STATUS_SUCCESS;
}

const int64_t workspace_bytes = 4096;

// Handles are numbers of no further meaning but for their stream.
struct context {
    cudaStream_t stream = nullptr;
};

descriptor *of_opaque(cudnnBackendDescriptor_t opaque) {
    return static_cast<descriptor *>(opaque);
}

const cudnnBackendNumericalNote_t notes[] = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                                             CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};

}  // namespace

extern "C" {

size_t cudnnGetVersion(void) {
    return CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_BAD_PARAM";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out) {
    *out = reinterpret_cast<cudnnHandle_t>(new context());
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    delete reinterpret_cast<context *>(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    reinterpret_cast<context *>(handle)->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out) {
    descriptor *made = new descriptor();
    made->type = type;
    *out = made;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t of) {
    delete of_opaque(of);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values) {
    if (!of || !values || count < 1 || of_opaque(of)->is_final) return CUDNN_STATUS_BAD_PARAM;
    const unsigned char *bytes = static_cast<const unsigned char *>(values);
    of_opaque(of)->values[name].assign(bytes, bytes + static_cast<size_t>(count) * bytes_of(type));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t opaque) {
    descriptor *of = of_opaque(opaque);
    if (!of || of->is_final) return CUDNN_STATUS_BAD_PARAM;
    if (of->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
        const tensor t = read_tensor(*of);
        if (!t.id || t.dims.size() != 4 || t.strides.size() != 4) return CUDNN_STATUS_BAD_PARAM;
    }
    for (const auto &each : of->values) {
        if (each.first != CUDNN_ATTR_OPERATIONGRAPH_OPS) continue;
        for (descriptor *operation : list_of<descriptor *>(*of, each.first))
            if (!operation->is_final) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    }
    of->is_final = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const opaque,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted,
                                       int64_t *got, void *values) {
    const descriptor *of = of_opaque(opaque);
    (void)type;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        *got = 2;
        for (int64_t i = 0; i < 2 && i < wanted; i++) {
            descriptor *config = of_opaque(static_cast<cudnnBackendDescriptor_t *>(values)[i]);
            config->values = of->values;
            config->values[CUDNN_ATTR_ENGINECFG_ENGINE] = {static_cast<unsigned char>(i)};
            config->is_final = true;
        }
        return CUDNN_STATUS_SUCCESS;
    }
    if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
        *got = 1;
        *of_opaque(*static_cast<cudnnBackendDescriptor_t *>(values)) = *of;
        return CUDNN_STATUS_SUCCESS;
    }
    if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
        const bool first = of->values.at(CUDNN_ATTR_ENGINECFG_ENGINE)[0] == 0;
        return copy_out(notes, sizeof *notes, first ? 2 : 1, wanted, got, values);
    }
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)
        return copy_out(&workspace_bytes, sizeof workspace_bytes, 1, wanted, got, values);
    return CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant) {
    const descriptor *config = child_of(*of_opaque(plan), CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const descriptor *graph = child_of(*config, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    const descriptor &given = *of_opaque(variant);
    const auto ids = list_of<int64_t>(given, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto pointers = list_of<void *>(given, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    if (!given.is_final || ids.size() != pointers.size()) return CUDNN_STATUS_BAD_PARAM;
    run *work = new run();
    for (descriptor *operation : list_of<descriptor *>(*graph, CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
        work->operations.push_back(*operation);
        copy_parts(work, *operation);
    }
    for (size_t i = 0; i < ids.size(); i++) work->pointers[ids[i]] = pointers[i];
    // Numbers are read now, as the host gives them.
    for (const auto &each : work->parts) {
        if (each.second.type != CUDNN_BACKEND_TENSOR_DESCRIPTOR) continue;
        const tensor t = read_tensor(each.second);
        if (t.is_number && work->pointers.count(t.id))
            work->numbers[t.id] = *static_cast<const float *>(work->pointers[t.id]);
    }
    work->workspace = value_of<void *>(given, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
    work->workspace_bytes = static_cast<size_t>(workspace_bytes);
    work->is_deterministic = config->values.at(CUDNN_ATTR_ENGINECFG_ENGINE)[0] != 0;
    gs_sim_work item = {"cudnnBackendExecute", poll_run, drop_run, work, true};
    return gs_sim_enqueue(reinterpret_cast<context *>(handle)->stream, &item)
               ? CUDNN_STATUS_EXECUTION_FAILED
               : CUDNN_STATUS_SUCCESS;
}
}
