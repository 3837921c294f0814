// What cuBLASLt is told of a product once for each shape: descriptor, layouts, and an algorithm.
//
// cuBLASLt counts columns first: a row-major matrix is to it the transposed one, and C = A · B is asked for
// as Cᵀ = Bᵀ · Aᵀ, so that B comes first and m and n change places.
//
// The algorithm is the first that the library's heuristic names, until the product comes outside of a
// capture with beta 0: then the first few are run on the product itself, which is the same each time, and
// the fastest is kept. They take turns, and the least time of each counts: one behind the other the first
// would be measured while clocks still rise. That waits, once for each shape. A product with beta is not run twice; it has the
// algorithm of the same shape without (the heuristic does not see beta).
//
// Two processes may keep different algorithms, whose sums differ in their order: the gradients of two ranks
// are then rounded differently, each its own. What ranks must agree on does not come from there: reduced
// gradients are the same bits everywhere, and parameters are updated from those. Where a pass must have the
// same bits whoever computes it (exact jobs), the device is opened with same_bits, and nothing is timed.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/event.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/table.h"

// Where they are all taken the oldest knowledge goes; a model has some 20, prediction one for each length.
#define MAX_PLANS 1024
#define NUM_SLOTS (2 * MAX_PLANS)
#define MAX_CANDIDATES 32
#define USUAL_CANDIDATES 6
#define ROUNDS_OF_TIMING 3
#define TIMING_SECONDS 60.0
// Below that all that shows is the launch.
#define LEAST_TIMED_FLOPS 1e8
#define MAX_ALIGNMENT 16
#define MOST_WORKSPACE_MIB 1024
#define MOST_BIAS_GRADS ((size_t)64 << 10)

// All of a product that a plan depends on. Compared as bytes: no padding, or zero.
typedef struct plan_key {
    size_t m, n, k, stride_a, stride_b, stride_c;
    uint32_t in, out, epilogue, alignment;
    uint32_t transpose_a, transpose_b, has_residual, has_bias_grad;
} plan_key;

typedef struct plan {
    plan_key key;
    bool used;
    bool refused;  // nothing below is set
    bool timed;
    bool declined;     // with a gradient of biases: an own kernel behind the product takes less
    int64_t least_ns;  // once timed
    cublasLtMatmulDesc_t desc;                // owns
    cublasLtMatrixLayout_t first, second, c;  // own; first is B
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
} plan;

typedef enum timing { TIME_NEVER = 0, TIME_LARGE, TIME_ALL } timing;

struct gs_cuda_products {
    gs_cuda_stream *stream;  // borrows
    gs_cublaslt lt;
    bool has_library;
    cublasLtHandle_t handle;
    timing timing;
    bool same_bits;
    int32_t num_sms;    // multiprocessors that algorithms are chosen for; 0: all
    float *bias_grads;  // owned, MOST_BIAS_GRADS; NULL: not chosen
    int num_candidates;  // at most this many are asked for
    void *workspace;     // the stream's scratch, or owned
    size_t workspace_bytes;
    plan *plans;  // owns; NUM_SLOTS, open addressing
    size_t num_plans;
    gs_event *begins[ROUNDS_OF_TIMING][MAX_CANDIDATES],
        *ends[ROUNDS_OF_TIMING][MAX_CANDIDATES];  // own
    size_t version;
};

// ---- one plan

static cudaDataType_t cuda_type_of(gs_dtype dtype) {
    if (dtype == GS_BF16) return CUDA_R_16BF;
    return dtype == GS_FP16 ? CUDA_R_16F : CUDA_R_32F;
}

// The gradient of biases is a sum over the library's B, which is our A.
static cublasLtEpilogue_t lt_epilogue_of(const gs_cuda_product *product) {
    if (product->bias_grad) return CUBLASLT_EPILOGUE_BGRADB;
    switch (product->epilogue) {
    case GS_EPILOGUE_BIAS:
        return CUBLASLT_EPILOGUE_BIAS;
    case GS_EPILOGUE_BIAS_GELU:
        return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GS_EPILOGUE_DGELU:
        return CUBLASLT_EPILOGUE_DGELU;
    default:
        return CUBLASLT_EPILOGUE_DEFAULT;
    }
}

static uint32_t alignment_of(const gs_cuda_product *product) {
    uintptr_t bits = (uintptr_t)product->a | (uintptr_t)product->b | (uintptr_t)product->c;
    if (product->epilogue != GS_EPILOGUE_NONE)
        bits |= (uintptr_t)product->bias | (uintptr_t)product->aux | (uintptr_t)product->residual;
    if (product->bias_grad) bits |= (uintptr_t)product->bias_grad;
    uint32_t alignment = 1;
    while (alignment < MAX_ALIGNMENT && bits % (2 * alignment) == 0) alignment *= 2;
    return alignment;
}

static plan_key key_of(const gs_cuda_product *product) {
    const gs_matmul *shape = &product->shape;
    plan_key key;
    memset(&key, 0, sizeof key);
    key.m = shape->m;
    key.n = shape->n;
    key.k = shape->k;
    key.stride_a = shape->stride_a;
    key.stride_b = shape->stride_b;
    key.stride_c = shape->stride_c;
    key.in = (uint32_t)product->in;
    key.out = (uint32_t)product->out;
    key.epilogue = (uint32_t)product->epilogue;
    key.alignment = alignment_of(product);
    key.transpose_a = shape->transpose_a;
    key.transpose_b = shape->transpose_b;
    key.has_residual = product->residual != NULL;
    key.has_bias_grad = product->bias_grad != NULL;
    return key;
}

static void release_plan(const gs_cublaslt *lt, plan *at) {
    if (at->desc) (void)lt->cublasLtMatmulDescDestroy(at->desc);
    if (at->first) (void)lt->cublasLtMatrixLayoutDestroy(at->first);
    if (at->second) (void)lt->cublasLtMatrixLayoutDestroy(at->second);
    if (at->c) (void)lt->cublasLtMatrixLayoutDestroy(at->c);
    memset(at, 0, sizeof *at);
}

#define SET(lt, desc, attribute, value)                                                            \
    (lt)->cublasLtMatmulDescSetAttribute((desc), (attribute), &(value), sizeof(value))

// The tensors of the epilogue, which change from call to call.
static cublasStatus_t point_desc(const gs_cublaslt *lt, const plan *at,
                                 const gs_cuda_product *product) {
    cublasStatus_t error = CUBLAS_STATUS_SUCCESS;
    if (product->epilogue == GS_EPILOGUE_BIAS || product->epilogue == GS_EPILOGUE_BIAS_GELU)
        error = SET(lt, at->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product->bias);
    if (product->bias_grad)
        error = SET(lt, at->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product->bias_grad);
    if (!error &&
        (product->epilogue == GS_EPILOGUE_BIAS_GELU || product->epilogue == GS_EPILOGUE_DGELU))
        error = SET(lt, at->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product->aux);
    return error;
}

static cublasStatus_t make_desc(const gs_cuda_products *products, plan *at,
                                const gs_cuda_product *product) {
    const gs_cublaslt *lt = &products->lt;
    const gs_matmul *shape = &product->shape;
    bool tf32 = product->in == GS_FP32 && products->stream->device->tf32;
    cublasStatus_t error = lt->cublasLtMatmulDescCreate(
        &at->desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    int32_t first = shape->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t second = shape->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = (uint32_t)lt_epilogue_of(product);
    int32_t num_sms = products->num_sms;
    int64_t aux_stride = (int64_t)shape->stride_c;
    if (!error) error = SET(lt, at->desc, CUBLASLT_MATMUL_DESC_TRANSA, first);
    if (!error) error = SET(lt, at->desc, CUBLASLT_MATMUL_DESC_TRANSB, second);
    if (!error) error = SET(lt, at->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (!error && num_sms) error = SET(lt, at->desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, num_sms);
    if (!error &&
        (product->epilogue == GS_EPILOGUE_BIAS_GELU || product->epilogue == GS_EPILOGUE_DGELU))
        error = SET(lt, at->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_stride);
    // The heuristic looks at their alignment.
    return error ? error : point_desc(lt, at, product);
}

// A matrix that is stored (rows, cols), row-major.
static cublasStatus_t make_layout(const gs_cublaslt *lt, cublasLtMatrixLayout_t *out,
                                  gs_dtype dtype, size_t rows, size_t cols, size_t stride) {
    return lt->cublasLtMatrixLayoutCreate(out, cuda_type_of(dtype), cols, rows, (int64_t)stride);
}

static cublasStatus_t make_layouts(const gs_cublaslt *lt, plan *at,
                                   const gs_cuda_product *product) {
    const gs_matmul *s = &product->shape;
    cublasStatus_t error = make_layout(lt, &at->first, product->in, s->transpose_b ? s->n : s->k,
                                       s->transpose_b ? s->k : s->n, s->stride_b);
    if (!error)
        error = make_layout(lt, &at->second, product->in, s->transpose_a ? s->k : s->m,
                            s->transpose_a ? s->m : s->k, s->stride_a);
    if (!error) error = make_layout(lt, &at->c, product->out, s->m, s->n, s->stride_c);
    return error;
}

// Sums in parts are put together in fp32: a scheme that adds up in C's type would round in between.
static cublasStatus_t make_preference(const gs_cuda_products *products,
                                      cublasLtMatmulPreference_t *out, uint32_t alignment) {
    const gs_cublaslt *lt = &products->lt;
    static const cublasLtMatmulPreferenceAttributes_t places[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace_bytes = products->workspace_bytes;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t error = lt->cublasLtMatmulPreferenceCreate(out);
    if (!error)
        error = lt->cublasLtMatmulPreferenceSetAttribute(
            *out, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
            sizeof workspace_bytes);
    if (!error)
        error = lt->cublasLtMatmulPreferenceSetAttribute(
            *out, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    for (size_t i = 0; i < sizeof places / sizeof *places && !error; i++)
        error = lt->cublasLtMatmulPreferenceSetAttribute(*out, places[i], &alignment,
                                                         sizeof alignment);
    return error;
}

typedef struct candidates {
    cublasLtMatmulHeuristicResult_t results[MAX_CANDIDATES];
    int count;  // those that may run, best guess first
} candidates;

static cublasStatus_t find_candidates(const gs_cuda_products *products, const plan *at,
                                      candidates *found) {
    const gs_cublaslt *lt = &products->lt;
    cublasLtMatmulPreference_t preference = NULL;
    int returned = 0;
    found->count = 0;
    cublasStatus_t error = make_preference(products, &preference, at->key.alignment);
    if (!error)
        error = lt->cublasLtMatmulAlgoGetHeuristic(
            products->handle, at->desc, at->first, at->second, at->c, at->c, preference,
            products->num_candidates, found->results, &returned);
    for (int i = 0; i < returned && !error; i++)
        if (found->results[i].state == CUBLAS_STATUS_SUCCESS &&
            found->results[i].workspaceSize <= products->workspace_bytes)
            found->results[found->count++] = found->results[i];
    if (preference) (void)lt->cublasLtMatmulPreferenceDestroy(preference);
    return error;
}

static void take_candidate(plan *at, const cublasLtMatmulHeuristicResult_t *candidate) {
    at->algo = candidate->algo;
    at->workspace_bytes = candidate->workspaceSize;
}

static bool is_refusal(cublasStatus_t error) {
    return error == CUBLAS_STATUS_NOT_SUPPORTED || error == CUBLAS_STATUS_INVALID_VALUE;
}

// What is slow now should be seen: without the epilogue's own product nothing is left but tiles.
static void log_refusal(const gs_cublaslt *lt, const gs_cuda_product *product,
                        cublasStatus_t error) {
    const gs_matmul *s = &product->shape;
    bool matters = product->epilogue == GS_EPILOGUE_NONE && !product->bias_grad &&
                   2.0 * (double)s->m * (double)s->n * (double)s->k >= LEAST_TIMED_FLOPS;
    gs_log(matters ? GS_LOG_WARN : GS_LOG_DEBUG, "cuBLASLt does not take a matrix product",
           "in=%s out=%s m=%zu n=%zu k=%zu epilogue=%d status=%s", gs_dtype_name(product->in),
           gs_dtype_name(product->out), s->m, s->n, s->k, (int)product->epilogue,
           error ? lt->cublasLtGetStatusName(error) : "no algorithm");
}

// `at` has its key. What the library does not take is remembered as refused.
static gs_status make_plan(gs_cuda_products *products, plan *at, const gs_cuda_product *product) {
    candidates found = {.count = 0};
    cublasStatus_t error = make_desc(products, at, product);
    if (!error) error = make_layouts(&products->lt, at, product);
    if (!error) error = find_candidates(products, at, &found);
    if (!error && found.count > 0) {
        take_candidate(at, &found.results[0]);
        return gs_ok();
    }
    plan_key key = at->key;
    release_plan(&products->lt, at);
    at->key = key;
    at->used = true;
    at->refused = true;
    if (error && !is_refusal(error))
        return gs_cublaslt_check(&products->lt, error, "cublasLtMatmulAlgoGetHeuristic");
    log_refusal(&products->lt, product, error);
    return gs_ok();
}

// ---- all plans

static size_t hash_key(const plan_key *key) {
    const unsigned char *bytes = (const unsigned char *)key;
    uint64_t hash = UINT64_C(14695981039346656037);  // FNV-1a
    for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return (size_t)(hash % NUM_SLOTS);
}

static void forget_plans(gs_cuda_products *products) {
    for (size_t i = 0; i < NUM_SLOTS; i++) release_plan(&products->lt, &products->plans[i]);
    products->num_plans = 0;
}

static gs_status find_plan(plan **out, gs_cuda_products *products, const gs_cuda_product *product) {
    const plan_key key = key_of(product);
    if (products->num_plans == MAX_PLANS) forget_plans(products);
    size_t slot = hash_key(&key);
    while (products->plans[slot].used && memcmp(&products->plans[slot].key, &key, sizeof key) != 0)
        slot = (slot + 1) % NUM_SLOTS;
    plan *at = *out = &products->plans[slot];
    if (at->used) return gs_ok();
    at->key = key;
    at->used = true;
    products->num_plans++;
    return make_plan(products, at, product);
}

// ---- running

static cublasStatus_t run_algorithm(const gs_cuda_products *products, const plan *at,
                                    const cublasLtMatmulAlgo_t *algo, size_t workspace_bytes,
                                    const gs_cuda_product *product) {
    const gs_cuda_stream *stream = products->stream;
    // A residual is the library's C, and its D is ours.
    const void *added = product->residual ? product->residual : product->c;
    const float beta = product->residual ? 1.0f : product->shape.beta;
    return products->lt.cublasLtMatmul(
        products->handle, at->desc, &product->shape.alpha, product->b, at->first, product->a,
        at->second, &beta, added, at->c, product->c, at->c, algo, products->workspace,
        workspace_bytes, stream->native);
}

// Running it again must change nothing: C is written, not added to, and is no input.
static bool may_time(const gs_cuda_products *products, const plan *at,
                     const gs_cuda_product *product) {
    const gs_matmul *s = &product->shape;
    if (at->timed || products->timing == TIME_NEVER) return false;
    bool capturing = true;
    if (gs_cuda_is_capturing(&capturing, products->stream).code || capturing) return false;
    if (s->beta != 0.0f || product->c == product->aux || product->c == product->residual)
        return false;
    return products->timing == TIME_ALL ||
           2.0 * (double)s->m * (double)s->n * (double)s->k >= LEAST_TIMED_FLOPS;
}

static gs_status wait_for(gs_event *event) {
    gs_deadline deadline = gs_deadline_in_seconds(TIMING_SECONDS);
    gs_cuda_pause pause = {0};
    for (bool done = false;;) {
        GS_TRY(gs_event_query(event, &done));
        if (done) return gs_ok();
        if (gs_deadline_passed(deadline))
            return gs_error(GS_DEADLINE_EXCEEDED, "matmul: algorithms were not timed within %g s",
                            TIMING_SECONDS);
        gs_cuda_pause_once(&pause);
    }
}

static bool run_candidate(const gs_cuda_products *products, const plan *at,
                          const cublasLtMatmulHeuristicResult_t *candidate,
                          const gs_cuda_product *product) {
    return !run_algorithm(products, at, &candidate->algo, candidate->workspaceSize, product);
}

// The first run of each, which no round counts, shows whether the algorithm takes these pointers.
static void run_rounds(gs_cuda_products *products, const plan *at, const candidates *found,
                       const gs_cuda_product *product, bool *runs) {
    gs_stream *stream = &products->stream->base;
    for (int i = 0; i < found->count; i++)
        runs[i] = run_candidate(products, at, &found->results[i], product);
    for (int round = 0; round < ROUNDS_OF_TIMING; round++) {
        for (int i = 0; i < found->count; i++) {
            gs_event_record(products->begins[round][i], stream);
            if (runs[i]) runs[i] = run_candidate(products, at, &found->results[i], product);
            gs_event_record(products->ends[round][i], stream);
        }
    }
}

static gs_status read_least(int64_t *least_ns, gs_cuda_products *products, int candidate) {
    *least_ns = INT64_MAX;
    for (int round = 0; round < ROUNDS_OF_TIMING; round++) {
        int64_t ns;
        GS_TRY(gs_event_elapsed(products->begins[round][candidate],
                                products->ends[round][candidate], &ns));
        if (ns < *least_ns) *least_ns = ns;
    }
    return gs_ok();
}

static gs_status time_candidates(gs_cuda_products *products, plan *at,
                                 const gs_cuda_product *product) {
    candidates found;
    bool runs[MAX_CANDIDATES] = {false};
    at->timed = true;
    GS_TRY(gs_cublaslt_check(&products->lt, find_candidates(products, at, &found),
                             "cublasLtMatmulAlgoGetHeuristic"));
    if (found.count == 0 || (found.count < 2 && !products->bias_grads)) return gs_ok();
    run_rounds(products, at, &found, product, runs);
    GS_TRY(wait_for(products->ends[ROUNDS_OF_TIMING - 1][found.count - 1]));
    int64_t best_ns = INT64_MAX;
    int best = 0;
    for (int i = 0; i < found.count; i++) {
        int64_t ns;
        if (!runs[i]) continue;
        GS_TRY(read_least(&ns, products, i));
        if (ns >= best_ns) continue;
        best_ns = ns;
        best = i;
    }
    if (best_ns < INT64_MAX) take_candidate(at, &found.results[best]);
    at->least_ns = best_ns;
    gs_log_debug("matrix product timed", "m=%zu n=%zu k=%zu candidates=%d taken=%d ns=%lld",
                 at->key.m, at->key.n, at->key.k, found.count, best, (long long)best_ns);
    return gs_ok();
}

// ---- gradients of biases

static void sum_rows(gs_cuda_products *products, const gs_cuda_product *product) {
    gs_stream *stream = &products->stream->base;
    const size_t rows = product->shape.k, cols = product->shape.m;
    if (product->in == GS_BF16)
        gs_cuda_bf16_bias_backward(stream, products->bias_grads, product->a, rows, cols, false);
    else
        gs_cuda_fp16_bias_backward(stream, products->bias_grads, product->a, rows, cols, false);
}

// Of our own kernel, which would follow the product.
static gs_status time_sum(int64_t *least_ns, gs_cuda_products *products,
                          const gs_cuda_product *product) {
    gs_stream *stream = &products->stream->base;
    sum_rows(products, product);
    for (int round = 0; round < ROUNDS_OF_TIMING; round++) {
        gs_event_record(products->begins[round][0], stream);
        sum_rows(products, product);
        gs_event_record(products->ends[round][0], stream);
    }
    GS_TRY(wait_for(products->ends[ROUNDS_OF_TIMING - 1][0]));
    return read_least(least_ns, products, 0);
}

static gs_status time_plain(int64_t *least_ns, gs_cuda_products *products,
                            const gs_cuda_product *product) {
    gs_cuda_product plain = *product;
    plan *at;
    plain.bias_grad = NULL;
    GS_TRY(find_plan(&at, products, &plain));
    *least_ns = 0;  // whoever was not timed wins
    if (at->refused) return gs_ok();
    if (may_time(products, at, &plain)) GS_TRY(time_candidates(products, at, &plain));
    *least_ns = at->least_ns;
    return gs_ok();
}

// Whether the library sums while it multiplies: an order of its own, which exact jobs do not take.
static gs_status choose_sum(bool *by_library, gs_cuda_products *products, plan **at,
                            const gs_cuda_product *product) {
    int64_t plain_ns, sum_ns;
    *by_library = false;
    if (products->same_bits || (*at)->refused || (*at)->declined) return gs_ok();
    *by_library = products->timing == TIME_NEVER || (*at)->timed;
    if (*by_library || !may_time(products, *at, product)) return gs_ok();
    GS_TRY(time_plain(&plain_ns, products, product));
    GS_TRY(time_sum(&sum_ns, products, product));
    GS_TRY(find_plan(at, products, product));  // plans may have been forgotten
    GS_TRY(gs_cublaslt_check(&products->lt, point_desc(&products->lt, *at, product),
                             "cublasLtMatmulDescSetAttribute"));
    GS_TRY(time_candidates(products, *at, product));
    (*at)->declined = (*at)->least_ns == 0 || (*at)->least_ns > plain_ns + sum_ns;
    *by_library = !(*at)->declined;
    gs_log_debug("sum of a bias's gradient timed", "m=%zu n=%zu k=%zu ns=%lld apart_ns=%lld",
                 (*at)->key.m, (*at)->key.n, (*at)->key.k, (long long)(*at)->least_ns,
                 (long long)(plain_ns + sum_ns));
    return gs_ok();
}

static gs_status run_plan(gs_cuda_taken *taken, gs_cuda_products *products,
                          const gs_cuda_product *product) {
    plan *at;
    GS_TRY(gs_cuda_make_current(products->stream->device));
    GS_TRY(find_plan(&at, products, product));
    *taken = GS_CUDA_REFUSED;
    if (product->bias_grad) {
        bool by_library;
        GS_TRY(choose_sum(&by_library, products, &at, product));
        if (!by_library) return gs_ok();
    }
    if (at->refused) return gs_ok();
    GS_TRY(gs_cublaslt_check(&products->lt, point_desc(&products->lt, at, product),
                             "cublasLtMatmulDescSetAttribute"));
    if (may_time(products, at, product)) GS_TRY(time_candidates(products, at, product));
    cublasStatus_t error = run_algorithm(products, at, &at->algo, at->workspace_bytes, product);
    if (is_refusal(error)) {
        at->refused = true;
        log_refusal(&products->lt, product, error);
        return gs_ok();
    }
    *taken = GS_CUDA_TAKEN;
    return gs_cublaslt_check(&products->lt, error, "cublasLtMatmul");
}

static const char *name_of_type(const gs_cuda_product *product) {
    return gs_dtype_name(product->in);
}

gs_cuda_taken gs_cuda_products_run(gs_cuda_products *products, const gs_cuda_product *product) {
    if (!products->has_library) return GS_CUDA_REFUSED;
    gs_cuda_taken taken = GS_CUDA_TAKEN;
    gs_status status = run_plan(&taken, products, product);
    if (!status.code) return taken;
    const gs_matmul *s = &product->shape;
    gs_stream_fail(&products->stream->base,
                   gs_status_prefix(status, "matmul %s %zu×%zu×%zu", name_of_type(product), s->m,
                                    s->n, s->k));
    return GS_CUDA_TAKEN;
}

// ---- opening and closing

// "0": never; "all": small products too, which tests want; else those that are worth it.
static timing read_timing(bool same_bits) {
    const char *value = getenv("GRADSYNC_MATMUL_TIMING");
    if (same_bits || (value && strcmp(value, "0") == 0)) return TIME_NEVER;
    return value && strcmp(value, "all") == 0 ? TIME_ALL : TIME_LARGE;
}

// How many multiprocessors the library may count on: GRADSYNC_MATMUL_SMS, fewer than there are. The rest is for
// collectives that run beside products.
static int32_t read_num_sms(const gs_cuda_device *device) {
    const char *value = getenv("GRADSYNC_MATMUL_SMS");
    long count = value ? strtol(value, NULL, 10) : 0;
    return count >= 1 && count < device->num_sms ? (int32_t)count : 0;
}

// How many algorithms take part: GRADSYNC_MATMUL_CANDIDATES, 1 to 32.
static int read_num_candidates(void) {
    const char *value = getenv("GRADSYNC_MATMUL_CANDIDATES");
    long count = value ? strtol(value, NULL, 10) : USUAL_CANDIDATES;
    return count < 1 ? 1 : count > MAX_CANDIDATES ? MAX_CANDIDATES : (int)count;
}

// GRADSYNC_MATMUL_WORKSPACE_MIB: up to 1024; more than the stream's scratch is memory of its own.
static gs_status make_workspace(gs_cuda_products *products) {
    const char *value = getenv("GRADSYNC_MATMUL_WORKSPACE_MIB");
    const long mib = value ? strtol(value, NULL, 10) : 0;
    const size_t bytes = mib > 0 && mib <= MOST_WORKSPACE_MIB ? (size_t)mib << 20 : 0;
    products->workspace = products->stream->scratch;
    products->workspace_bytes = GS_CUDA_SCRATCH_BYTES;
    if (bytes <= GS_CUDA_SCRATCH_BYTES) return gs_ok();
    GS_TRY(gs_cuda_check(products->stream->device, cudaMalloc(&products->workspace, bytes),
                         "cudaMalloc"));
    products->workspace_bytes = bytes;
    return gs_ok();
}

// Without it the device works, if slowly.
static gs_status open_library(gs_cuda_products *products) {
    gs_cuda_device *device = products->stream->device;
    gs_status status = gs_cublaslt_open(&products->lt);
    if (status.code) {
        char reason[sizeof status.message + 8];
        gs_log_warn("no cuBLASLt: matrix products run on slow kernels of our own",
                    "device=cuda:%d reason=%s", device->ordinal,
                    gs_log_quote(reason, sizeof reason, status.message));
        return gs_ok();
    }
    GS_TRY(gs_cuda_make_current(device));
    GS_TRY(gs_cublaslt_check(&products->lt, products->lt.cublasLtCreate(&products->handle),
                             "cublasLtCreate"));
    products->version = products->lt.cublasLtGetVersion();
    products->has_library = true;
    return make_workspace(products);
}

static gs_status make_bias_room(gs_cuda_products *products) {
    gs_cuda_device *device = products->stream->device;
    void *memory;
    if (!gs_device_chooses(&device->base, GS_CHOICE_BIAS_GRAD_IN_PRODUCT)) return gs_ok();
    GS_TRY(gs_cuda_check(device, cudaMalloc(&memory, MOST_BIAS_GRADS * sizeof(float)),
                         "cudaMalloc"));
    products->bias_grads = memory;
    return gs_ok();
}

float *gs_cuda_products_bias_room(const gs_cuda_products *products, size_t m) {
    return m <= MOST_BIAS_GRADS ? products->bias_grads : NULL;
}

static gs_status make_events(gs_cuda_products *products) {
    gs_device *device = &products->stream->device->base;
    for (int round = 0; round < ROUNDS_OF_TIMING; round++) {
        for (int i = 0; i < products->num_candidates; i++) {
            GS_TRY(gs_cuda_event_create(&products->begins[round][i], device, true));
            GS_TRY(gs_cuda_event_create(&products->ends[round][i], device, true));
        }
    }
    return gs_ok();
}

gs_status gs_cuda_products_open(gs_cuda_products **out, gs_cuda_stream *stream, bool same_bits) {
    gs_cuda_products *products = calloc(1, sizeof *products);
    if (!products) return gs_error(GS_RESOURCE_EXHAUSTED, "matmul: out of memory");
    products->stream = stream;
    products->timing = read_timing(same_bits);
    products->same_bits = same_bits;
    products->num_sms = read_num_sms(stream->device);
    products->num_candidates = read_num_candidates();
    products->plans = calloc(NUM_SLOTS, sizeof *products->plans);
    gs_status status = gs_ok();
    if (!products->plans) status = gs_error(GS_RESOURCE_EXHAUSTED, "matmul: out of memory");
    if (!status.code) status = open_library(products);
    if (!status.code && products->has_library) status = make_events(products);
    if (!status.code && products->has_library) status = make_bias_room(products);
    if (status.code) {
        gs_cuda_products_close(products, true);
        return status;
    }
    *out = products;
    return gs_ok();
}

void gs_cuda_products_close(gs_cuda_products *products, bool idle) {
    if (!products) return;
    for (int round = 0; round < ROUNDS_OF_TIMING; round++) {
        for (int i = 0; i < MAX_CANDIDATES; i++) {
            if (products->begins[round][i]) gs_cuda_event_destroy(products->begins[round][i]);
            if (products->ends[round][i]) gs_cuda_event_destroy(products->ends[round][i]);
        }
    }
    if (products->plans && products->has_library) forget_plans(products);
    if (products->handle && idle) (void)products->lt.cublasLtDestroy(products->handle);
    if (products->workspace_bytes > GS_CUDA_SCRATCH_BYTES && idle)
        (void)cudaFree(products->workspace);
    if (products->bias_grads && idle) (void)cudaFree(products->bias_grads);
    gs_cublaslt_close(&products->lt);
    free(products->plans);
    free(products);
}

void gs_cuda_products_describe(const gs_cuda_products *products, char *text, size_t text_bytes) {
    if (!products || !products->has_library) {
        snprintf(text, text_bytes, "matmul=own");
        return;
    }
    int used = snprintf(text, text_bytes, "cublaslt=%zu choice=%s", products->version,
                        products->timing == TIME_NEVER ? "first" : "timed");
    if (products->num_sms && used > 0 && (size_t)used < text_bytes)
        snprintf(text + used, text_bytes - (size_t)used, " sms=%d", (int)products->num_sms);
}
