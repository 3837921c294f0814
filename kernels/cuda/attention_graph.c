#include "kernels/cuda/attention_graph.h"

#include <string.h>

#define RANK 4
#define MOST_OPERATIONS 24
#define ALIGNMENT 16

typedef cudnnBackendDescriptor_t descriptor;

// Dimensions and strides in elements: (batch, heads, rows, columns).
typedef struct extent {
    int64_t dims[RANK], strides[RANK];
} extent;

// The first error stays, and what follows does nothing.
typedef struct builder {
    gs_attention_graph *out;
    const gs_cudnn *dnn;
    gs_status status;
    descriptor operations[MOST_OPERATIONS];
    int64_t num_operations;
    int64_t num_virtual;
    cudnnDataType_t type;  // of qkv
    int64_t batch, heads, positions, channels;  // channels of a head
} builder;

static void note(builder *b, cudnnStatus_t error, const char *call) {
    if (!b->status.code) b->status = gs_cudnn_check(b->dnn, error, call);
}

static descriptor make(builder *b, cudnnBackendDescriptorType_t type) {
    descriptor made = NULL;
    if (b->status.code) return NULL;
    if (b->out->num_made == GS_ATTENTION_MAX_DESCRIPTORS) {
        b->status = gs_error(GS_INTERNAL, "attention: a graph of more than %d descriptors",
                             GS_ATTENTION_MAX_DESCRIPTORS);
        return NULL;
    }
    note(b, b->dnn->cudnnBackendCreateDescriptor(type, &made), "cudnnBackendCreateDescriptor");
    if (!b->status.code) b->out->made[b->out->num_made++] = made;
    return made;
}

static void set(builder *b, descriptor to, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    if (b->status.code) return;
    note(b, b->dnn->cudnnBackendSetAttribute(to, name, type, count, values),
         "cudnnBackendSetAttribute");
}

static void set_descriptor(builder *b, descriptor to, cudnnBackendAttributeName_t name,
                           descriptor value) {
    set(b, to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(builder *b, descriptor of) {
    if (!b->status.code) note(b, b->dnn->cudnnBackendFinalize(of), "cudnnBackendFinalize");
}

static void add_operation(builder *b, descriptor operation) {
    finish(b, operation);
    if (b->status.code) return;
    if (b->num_operations == MOST_OPERATIONS)
        b->status = gs_error(GS_INTERNAL, "attention: a graph of more than %d operations",
                             MOST_OPERATIONS);
    else
        b->operations[b->num_operations++] = operation;
}

// ---- tensors

static descriptor make_tensor(builder *b, int64_t id, cudnnDataType_t type, const extent *of,
                              bool is_number) {
    const int64_t alignment = ALIGNMENT;
    const bool is_virtual = id >= GS_ATTENTION_VIRTUAL;
    descriptor tensor = make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(b, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(b, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, RANK, of->dims);
    set(b, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, RANK, of->strides);
    set(b, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(b, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(b, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(b, tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_number);
    finish(b, tensor);
    return tensor;
}

static extent packed(int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
    return (extent){{batch, heads, rows, columns},
                    {heads * rows * columns, rows * columns, columns, 1}};
}

static extent turned(extent of) {
    extent back = of;
    back.dims[2] = of.dims[3];
    back.dims[3] = of.dims[2];
    back.strides[2] = of.strides[3];
    back.strides[3] = of.strides[2];
    return back;
}

static descriptor make_between(builder *b, cudnnDataType_t type, extent of) {
    return make_tensor(b, GS_ATTENTION_VIRTUAL + b->num_virtual++, type, &of, false);
}

static descriptor make_number(builder *b, gs_attention_tensor id) {
    const extent one = packed(1, 1, 1, 1);
    return make_tensor(b, id, CUDNN_DATA_FLOAT, &one, true);
}

// One head's rows of a (B, T, parts · C) tensor.
static extent extent_of_heads(const builder *b, int64_t parts) {
    const int64_t row = parts * b->heads * b->channels;
    return (extent){{b->batch, b->heads, b->positions, b->channels},
                    {b->positions * row, b->channels, row, 1}};
}

static descriptor make_heads(builder *b, gs_attention_tensor id, int64_t parts) {
    const extent of = extent_of_heads(b, parts);
    return make_tensor(b, id, b->type, &of, false);
}

static descriptor make_turned_heads(builder *b, gs_attention_tensor id, int64_t parts) {
    const extent of = turned(extent_of_heads(b, parts));
    return make_tensor(b, id, b->type, &of, false);
}

static extent extent_of_scores(const builder *b) {
    return packed(b->batch, b->heads, b->positions, b->positions);
}

static extent extent_of_rows(const builder *b) {
    return packed(b->batch, b->heads, b->positions, 1);
}

static descriptor make_scores(builder *b) {
    return make_between(b, CUDNN_DATA_FLOAT, extent_of_scores(b));
}

static descriptor make_rows(builder *b, gs_attention_tensor id) {
    const extent of = extent_of_rows(b);
    return make_tensor(b, id, CUDNN_DATA_FLOAT, &of, false);
}

// ---- operations

// `with` and `where` may be NULL; axis < 0: none.
typedef struct pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t compute;
    descriptor x, with, where;
    int64_t axis;
} pointwise;

static void add_pointwise(builder *b, descriptor y, const pointwise *of) {
    descriptor how = make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &of->mode);
    set(b, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &of->compute);
    if (of->axis >= 0)
        set(b, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &of->axis);
    finish(b, how);
    descriptor operation = make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, of->x);
    if (of->with) set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, of->with);
    if (of->where) set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, of->where);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_operation(b, operation);
}

static void combine_into(builder *b, descriptor y, cudnnPointwiseMode_t mode, descriptor x,
                         descriptor with) {
    add_pointwise(b, y,
                  &(pointwise){.mode = mode,
                               .compute = CUDNN_DATA_FLOAT,
                               .x = x,
                               .with = with,
                               .axis = -1});
}

// Of scores.
static descriptor combine(builder *b, cudnnPointwiseMode_t mode, descriptor x, descriptor with) {
    descriptor y = make_scores(b);
    combine_into(b, y, mode, x, with);
    return y;
}

static void add_product(builder *b, descriptor c, descriptor first, descriptor second) {
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor how = make(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finish(b, how);
    descriptor operation = make(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, first);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, second);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    add_operation(b, operation);
}

static descriptor reduce(builder *b, cudnnReduceTensorOp_t op, descriptor x) {
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor y = make_between(b, CUDNN_DATA_FLOAT, extent_of_rows(b));
    descriptor how = make(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    set(b, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finish(b, how);
    descriptor operation = make(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    add_operation(b, operation);
    return y;
}

// The same numbers with rows and columns exchanged.
static descriptor turn(builder *b, descriptor x, extent to) {
    descriptor y = make_between(b, b->type, to);
    descriptor operation = make(b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_operation(b, operation);
    return y;
}

static descriptor make_index(builder *b, descriptor like, int64_t axis) {
    descriptor y = make_between(b, CUDNN_DATA_INT32, extent_of_scores(b));
    add_pointwise(b, y,
                  &(pointwise){.mode = CUDNN_POINTWISE_GEN_INDEX,
                               .compute = CUDNN_DATA_FLOAT,
                               .x = like,
                               .axis = axis});
    return y;
}

// A query sees the keys up to its own position.
static descriptor hide_later_keys(builder *b, descriptor scores) {
    descriptor query = make_index(b, scores, 2), key = make_index(b, scores, 3);
    descriptor is_seen = make_between(b, CUDNN_DATA_BOOLEAN, extent_of_scores(b));
    add_pointwise(b, is_seen,
                  &(pointwise){.mode = CUDNN_POINTWISE_CMP_GE,
                               .compute = CUDNN_DATA_BOOLEAN,
                               .x = query,
                               .with = key,
                               .axis = -1});
    descriptor y = make_scores(b);
    add_pointwise(b, y,
                  &(pointwise){.mode = CUDNN_POINTWISE_BINARY_SELECT,
                               .compute = CUDNN_DATA_FLOAT,
                               .x = scores,
                               .with = make_number(b, GS_ATTENTION_HIDDEN),
                               .where = is_seen,
                               .axis = -1});
    return y;
}

// ---- the two graphs

static void describe_forward(builder *b) {
    descriptor q = make_heads(b, GS_ATTENTION_Q, 3);
    descriptor k = make_turned_heads(b, GS_ATTENTION_K, 3), v = make_heads(b, GS_ATTENTION_V, 3);
    descriptor products = make_scores(b);
    add_product(b, products, q, k);
    descriptor scores = combine(b, CUDNN_POINTWISE_MUL, products, make_number(b, GS_ATTENTION_SCALE));
    scores = hide_later_keys(b, scores);

    descriptor largest = reduce(b, CUDNN_REDUCE_TENSOR_MAX, scores);
    descriptor distance = combine(b, CUDNN_POINTWISE_SUB, scores, largest);
    descriptor exponential = combine(b, CUDNN_POINTWISE_EXP, distance, NULL);
    descriptor sum = reduce(b, CUDNN_REDUCE_TENSOR_ADD, exponential);
    descriptor logarithm = make_between(b, CUDNN_DATA_FLOAT, extent_of_rows(b));
    combine_into(b, logarithm, CUDNN_POINTWISE_LOG, sum, NULL);
    combine_into(b, make_rows(b, GS_ATTENTION_LOGSUMEXP), CUDNN_POINTWISE_ADD, largest, logarithm);
    descriptor weights = make_between(b, b->type, extent_of_scores(b));
    combine_into(b, weights, CUDNN_POINTWISE_DIV, exponential, sum);
    add_product(b, make_heads(b, GS_ATTENTION_OUT, 1), weights, v);
}

static void describe_backward(builder *b) {
    const extent head = extent_of_heads(b, 3), turned_scores = turned(extent_of_scores(b));
    descriptor q = make_heads(b, GS_ATTENTION_Q, 3);
    descriptor k = make_turned_heads(b, GS_ATTENTION_K, 3);
    descriptor v = make_turned_heads(b, GS_ATTENTION_V, 3);
    descriptor out = make_heads(b, GS_ATTENTION_OUT, 1), dout = make_heads(b, GS_ATTENTION_DOUT, 1);
    descriptor scale = make_number(b, GS_ATTENTION_SCALE);

    descriptor slopes =
        make_between(b, CUDNN_DATA_FLOAT, packed(b->batch, b->heads, b->positions, b->channels));
    combine_into(b, slopes, CUDNN_POINTWISE_MUL, dout, out);
    descriptor weighted = make_rows(b, GS_ATTENTION_WEIGHTED);
    combine_into(b, weighted, CUDNN_POINTWISE_MUL, reduce(b, CUDNN_REDUCE_TENSOR_ADD, slopes),
                 make_number(b, GS_ATTENTION_ONE));

    descriptor products = make_scores(b);
    add_product(b, products, q, k);
    descriptor scores = combine(b, CUDNN_POINTWISE_MUL, products, scale);
    scores = combine(b, CUDNN_POINTWISE_SUB, scores, make_rows(b, GS_ATTENTION_LOGSUMEXP));
    scores = hide_later_keys(b, scores);
    descriptor weights = combine(b, CUDNN_POINTWISE_EXP, scores, NULL);
    add_product(b, make_heads(b, GS_ATTENTION_DV, 3), turn(b, weights, turned_scores), dout);

    descriptor dweights = make_scores(b);
    add_product(b, dweights, dout, v);
    descriptor dscores = combine(b, CUDNN_POINTWISE_SUB, dweights, weighted);
    dscores = combine(b, CUDNN_POINTWISE_MUL, dscores, weights);
    dscores = combine(b, CUDNN_POINTWISE_MUL, dscores, scale);
    add_product(b, make_heads(b, GS_ATTENTION_DK, 3), turn(b, dscores, turned_scores), q);
    add_product(b, make_heads(b, GS_ATTENTION_DQ, 3), dscores, turn(b, k, head));
    b->out->weighted_count = (size_t)(b->batch * b->heads * b->positions);
}

static void make_graph(builder *b, cudnnHandle_t handle) {
    descriptor graph = make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b->num_operations,
        b->operations);
    if (handle)
        set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finish(b, graph);
    b->out->graph = graph;
}

gs_status gs_attention_graph_init(gs_attention_graph *out, const gs_cudnn *dnn, cudnnHandle_t handle,
                                  const gs_attention *shape, gs_dtype dtype, bool backward) {
    *out = (gs_attention_graph){.dnn = dnn};
    builder b = {.out = out,
                 .dnn = dnn,
                 .type = dtype == GS_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
                 .batch = (int64_t)shape->batch,
                 .heads = (int64_t)shape->heads,
                 .positions = (int64_t)shape->positions,
                 .channels = (int64_t)shape->head_channels};
    if (backward) describe_backward(&b);
    else describe_forward(&b);
    make_graph(&b, handle);
    return b.status;
}

void gs_attention_graph_release(gs_attention_graph *graph) {
    for (int i = graph->num_made; i-- > 0;)
        (void)graph->dnn->cudnnBackendDestroyDescriptor(graph->made[i]);
    *graph = (gs_attention_graph){0};
}
