// Batch norm over the rows, for each channel, in one piece and in parts.
//
// Sums: a block has 8 channels, 32 bytes of each row, and 64 threads for each of them go down the
// rows in fp64; their sums are folded as a tree. What is made of given statistics is to the bit
// like the CPU's, so nothing here is fused to multiply-adds (kernels/CMakeLists.txt).
#include "kernels/cuda/launch.cuh"

#define SUM_COLS 8
#define SUM_LANES 64
#define SUM_BLOCK (SUM_COLS * SUM_LANES)
#define APPLY_COLS 32
#define APPLY_LANES 8
#define APPLY_BLOCK (APPLY_COLS * APPLY_LANES)
#define APPLY_BLOCKS_PER_SM 8
#define APPLY_ROWS 16  // of a thread, at least: they pay for the statistics

struct batchnorm_args {
    float *out, *save_mean, *save_rstd, *next_mean, *next_var;
    float *dx, *dweight, *dbias;
    const float *x, *dy, *weight, *bias, *running_mean, *running_var;
    const float *saved_mean, *saved_rstd;
    double *mean_part, *m2_part, *sum_part, *dot_part;  // outputs of a part
    const double *mean, *m2, *sum, *dot;                // of all parts
    double total_rows;
    gs_batchnorm shape;
    bool accumulate;
};

// The thread's place: one column, and every `step`-th row from `first` on.
struct tile_place {
    size_t col, first, step;
    bool has_col;
};

template <int COLS, int LANES> __device__ static inline tile_place find_place(size_t channels) {
    tile_place place;
    place.col = (size_t)blockIdx.x * COLS + threadIdx.x % COLS;
    place.first = (size_t)blockIdx.y * LANES + threadIdx.x / COLS;
    place.step = (size_t)gridDim.y * LANES;
    place.has_col = place.col < channels;
    return place;
}

// ---- sums over rows

// The sum over the threads of a column, in all of them; all threads of the block call it.
__device__ static inline double fold_lanes(double mine, double (&shared)[SUM_LANES][SUM_COLS]) {
    const unsigned col = threadIdx.x % SUM_COLS, lane = threadIdx.x / SUM_COLS;
    __syncthreads();
    shared[lane][col] = mine;
    __syncthreads();
    for (unsigned distance = SUM_LANES / 2; distance; distance /= 2) {
        if (lane < distance) shared[lane][col] += shared[lane + distance][col];
        __syncthreads();
    }
    return shared[0][col];
}

struct moments {
    double mean, squares;
};

__device__ static inline moments measure_col(const batchnorm_args &args, const tile_place &place,
                                             double (&shared)[SUM_LANES][SUM_COLS]) {
    const size_t rows = args.shape.rows, channels = args.shape.channels;
    const size_t end = place.has_col ? rows : 0;
    double sum = 0.0, squares = 0.0;
#pragma unroll 8
    for (size_t row = place.first; row < end; row += SUM_LANES)
        sum += (double)args.x[row * channels + place.col];
    const double mean = rows ? fold_lanes(sum, shared) / (double)rows : 0.0;
#pragma unroll 8
    for (size_t row = place.first; row < end; row += SUM_LANES) {
        const double distance = (double)args.x[row * channels + place.col] - mean;
        squares += distance * distance;
    }
    return {mean, fold_lanes(squares, shared)};
}

__device__ static inline void sum_col(double &sum, double &dot, const batchnorm_args &args,
                                      const tile_place &place,
                                      double (&shared)[SUM_LANES][SUM_COLS]) {
    const size_t channels = args.shape.channels, end = place.has_col ? args.shape.rows : 0;
    const float mean = place.has_col ? args.saved_mean[place.col] : 0.0f;
    const float rstd = place.has_col ? args.saved_rstd[place.col] : 0.0f;
    sum = dot = 0.0;
#pragma unroll 4
    for (size_t row = place.first; row < end; row += SUM_LANES) {
        const float dy = args.dy[row * channels + place.col],
                    x = args.x[row * channels + place.col];
        sum += (double)dy;
        dot += (double)dy * (double)((x - mean) * rstd);
    }
    sum = fold_lanes(sum, shared);
    dot = fold_lanes(dot, shared);
    if (!place.has_col || threadIdx.x >= SUM_COLS) return;
    const size_t c = place.col;
    args.dweight[c] = args.accumulate ? args.dweight[c] + (float)dot : (float)dot;
    args.dbias[c] = args.accumulate ? args.dbias[c] + (float)sum : (float)sum;
}

// ---- what is made of them

// out = (x − mean)·rstd·weight + bias
__device__ static inline void normalise_col(const batchnorm_args &args, const tile_place &place,
                                            float mean, float rstd) {
    const float weight = args.weight[place.col], bias = args.bias[place.col];
#pragma unroll 4
    for (size_t row = place.first; row < args.shape.rows; row += place.step) {
        const size_t at = row * args.shape.channels + place.col;
        args.out[at] = (args.x[at] - mean) * rstd * weight + bias;
    }
}

// Running and saved statistics of a column by its first thread, and the result by all.
__device__ static inline void apply_col(const batchnorm_args &args, const tile_place &place,
                                        double mean, double squares, double rows) {
    const size_t c = place.col;
    const double momentum = (double)args.shape.momentum;
    const float mean_fp32 = (float)mean;
    const float rstd = (float)(1.0 / sqrt(squares / rows + (double)args.shape.eps));
    if (place.first == 0) {
        args.save_mean[c] = mean_fp32;
        args.save_rstd[c] = rstd;
        args.next_mean[c] =
            (float)((1.0 - momentum) * (double)args.running_mean[c] + momentum * mean);
        args.next_var[c] = (float)((1.0 - momentum) * (double)args.running_var[c] +
                                   momentum * (squares / (rows - 1.0)));
    }
    normalise_col(args, place, mean_fp32, rstd);
}

// dx = weight·rstd·(dy − mean(dy) − x̂·mean(dy·x̂))
__device__ static inline void spread_col(const batchnorm_args &args, const tile_place &place,
                                         double sum, double dot, double rows) {
    const float mean = args.saved_mean[place.col], rstd = args.saved_rstd[place.col];
    const float factor = args.weight[place.col] * rstd;
    const float mean_dy = (float)(sum / rows), mean_dot = (float)(dot / rows);
#pragma unroll 4
    for (size_t row = place.first; row < args.shape.rows; row += place.step) {
        const size_t at = row * args.shape.channels + place.col;
        const float normal = (args.x[at] - mean) * rstd;
        args.dx[at] = factor * (args.dy[at] - mean_dy - normal * mean_dot);
    }
}

// ---- kernels

__global__ static void __launch_bounds__(SUM_BLOCK) batchnorm_kernel(batchnorm_args args) {
    __shared__ double shared[SUM_LANES][SUM_COLS];
    const tile_place place = find_place<SUM_COLS, SUM_LANES>(args.shape.channels);
    const moments found = measure_col(args, place, shared);
    if (place.has_col) apply_col(args, place, found.mean, found.squares, (double)args.shape.rows);
}

__global__ static void __launch_bounds__(SUM_BLOCK) measure_kernel(batchnorm_args args) {
    __shared__ double shared[SUM_LANES][SUM_COLS];
    const tile_place place = find_place<SUM_COLS, SUM_LANES>(args.shape.channels);
    const moments found = measure_col(args, place, shared);
    if (!place.has_col || threadIdx.x >= SUM_COLS) return;
    args.mean_part[place.col] = found.mean;
    args.m2_part[place.col] = found.squares;
}

__global__ static void __launch_bounds__(SUM_BLOCK, 2)
    batchnorm_backward_kernel(batchnorm_args args) {
    __shared__ double shared[SUM_LANES][SUM_COLS];
    const tile_place place = find_place<SUM_COLS, SUM_LANES>(args.shape.channels);
    double sum, dot;
    sum_col(sum, dot, args, place, shared);
    if (place.has_col) spread_col(args, place, sum, dot, (double)args.shape.rows);
}

__global__ static void __launch_bounds__(SUM_BLOCK) sums_kernel(batchnorm_args args) {
    __shared__ double shared[SUM_LANES][SUM_COLS];
    const tile_place place = find_place<SUM_COLS, SUM_LANES>(args.shape.channels);
    double sum, dot;
    sum_col(sum, dot, args, place, shared);
    if (!place.has_col || threadIdx.x >= SUM_COLS) return;
    args.sum_part[place.col] = sum;
    args.dot_part[place.col] = dot;
}

__global__ static void __launch_bounds__(APPLY_BLOCK) apply_kernel(batchnorm_args args) {
    const tile_place place = find_place<APPLY_COLS, APPLY_LANES>(args.shape.channels);
    if (place.has_col)
        apply_col(args, place, args.mean[place.col], args.m2[place.col], args.total_rows);
}

__global__ static void __launch_bounds__(APPLY_BLOCK) eval_kernel(batchnorm_args args) {
    const tile_place place = find_place<APPLY_COLS, APPLY_LANES>(args.shape.channels);
    if (!place.has_col) return;
    const float rstd = 1.0f / sqrtf(args.running_var[place.col] + args.shape.eps);
    normalise_col(args, place, args.running_mean[place.col], rstd);
}

__global__ static void __launch_bounds__(APPLY_BLOCK) spread_kernel(batchnorm_args args) {
    const tile_place place = find_place<APPLY_COLS, APPLY_LANES>(args.shape.channels);
    if (place.has_col)
        spread_col(args, place, args.sum[place.col], args.dot[place.col], args.total_rows);
}

// ---- launchers

// A kernel of sums has all rows of its columns in one block.
static unsigned sum_grid(const gs_batchnorm *shape) {
    return gs_num_blocks(shape->channels, SUM_COLS, SIZE_MAX);
}

static dim3 apply_grid(gs_stream *stream, const gs_batchnorm *shape) {
    dim3 grid(gs_num_blocks(shape->channels, APPLY_COLS, SIZE_MAX));
    const size_t most =
        (size_t)gs_num_sms(stream) * APPLY_BLOCKS_PER_SM / (grid.x ? grid.x : 1) + 1;
    grid.y = gs_num_blocks(shape->rows, APPLY_LANES * APPLY_ROWS, most < 65535 ? most : 65535);
    if (grid.y == 0) grid.y = 1;  // statistics are written without rows, too
    return grid;
}

static void fail_few_rows(gs_stream *stream, double rows) {
    gs_stream_fail(stream, gs_error(GS_INVALID_ARGUMENT,
                                    "batchnorm: training needs at least 2 rows, got %.0f: the "
                                    "unbiased variance divides by rows - 1",
                                    rows));
}

extern "C" void gs_cuda_batchnorm(gs_stream *stream, float *out, float *save_mean, float *save_rstd,
                                  float *next_running_mean, float *next_running_var, const float *x,
                                  const float *weight, const float *bias, const float *running_mean,
                                  const float *running_var, const gs_batchnorm *shape) {
    if (shape->rows < 2) {
        fail_few_rows(stream, (double)shape->rows);
        return;
    }
    batchnorm_args args = {};
    args.out = out;
    args.save_mean = save_mean;
    args.save_rstd = save_rstd;
    args.next_mean = next_running_mean;
    args.next_var = next_running_var;
    args.x = x;
    args.weight = weight;
    args.bias = bias;
    args.running_mean = running_mean;
    args.running_var = running_var;
    args.shape = *shape;
    GS_LAUNCH(stream, sum_grid(shape), SUM_BLOCK, 0, batchnorm_kernel, args);
}

extern "C" void gs_cuda_batchnorm_eval(gs_stream *stream, float *out, const float *x,
                                       const float *weight, const float *bias,
                                       const float *running_mean, const float *running_var,
                                       const gs_batchnorm *shape) {
    batchnorm_args args = {};
    args.out = out;
    args.x = x;
    args.weight = weight;
    args.bias = bias;
    args.running_mean = running_mean;
    args.running_var = running_var;
    args.shape = *shape;
    GS_LAUNCH(stream, apply_grid(stream, shape), APPLY_BLOCK, 0, eval_kernel, args);
}

extern "C" void gs_cuda_batchnorm_backward(gs_stream *stream, float *dx, float *dweight,
                                           float *dbias, const float *dy, const float *x,
                                           const float *weight, const float *save_mean,
                                           const float *save_rstd, const gs_batchnorm *shape,
                                           bool accumulate) {
    batchnorm_args args = {};
    args.dx = dx;
    args.dweight = dweight;
    args.dbias = dbias;
    args.dy = dy;
    args.x = x;
    args.weight = weight;
    args.saved_mean = save_mean;
    args.saved_rstd = save_rstd;
    args.shape = *shape;
    args.accumulate = accumulate;
    GS_LAUNCH(stream, sum_grid(shape), SUM_BLOCK, 0, batchnorm_backward_kernel, args);
}

extern "C" void gs_cuda_batchnorm_measure(gs_stream *stream, double *mean, double *m2,
                                          const float *x, const gs_batchnorm *shape) {
    batchnorm_args args = {};
    args.mean_part = mean;
    args.m2_part = m2;
    args.x = x;
    args.shape = *shape;
    GS_LAUNCH(stream, sum_grid(shape), SUM_BLOCK, 0, measure_kernel, args);
}

extern "C" void gs_cuda_batchnorm_apply(gs_stream *stream, float *out, float *save_mean,
                                        float *save_rstd, float *next_running_mean,
                                        float *next_running_var, const float *x,
                                        const float *weight, const float *bias,
                                        const float *running_mean, const float *running_var,
                                        const double *mean, const double *m2, double total_rows,
                                        const gs_batchnorm *shape) {
    if (total_rows < 2.0) {
        fail_few_rows(stream, total_rows);
        return;
    }
    batchnorm_args args = {};
    args.out = out;
    args.save_mean = save_mean;
    args.save_rstd = save_rstd;
    args.next_mean = next_running_mean;
    args.next_var = next_running_var;
    args.x = x;
    args.weight = weight;
    args.bias = bias;
    args.running_mean = running_mean;
    args.running_var = running_var;
    args.mean = mean;
    args.m2 = m2;
    args.total_rows = total_rows;
    args.shape = *shape;
    GS_LAUNCH(stream, apply_grid(stream, shape), APPLY_BLOCK, 0, apply_kernel, args);
}

extern "C" void gs_cuda_batchnorm_sums(gs_stream *stream, double *sum, double *dot, float *dweight,
                                       float *dbias, const float *dy, const float *x,
                                       const float *save_mean, const float *save_rstd,
                                       const gs_batchnorm *shape, bool accumulate) {
    batchnorm_args args = {};
    args.sum_part = sum;
    args.dot_part = dot;
    args.dweight = dweight;
    args.dbias = dbias;
    args.dy = dy;
    args.x = x;
    args.saved_mean = save_mean;
    args.saved_rstd = save_rstd;
    args.shape = *shape;
    args.accumulate = accumulate;
    GS_LAUNCH(stream, sum_grid(shape), SUM_BLOCK, 0, sums_kernel, args);
}

extern "C" void gs_cuda_batchnorm_backward_apply(gs_stream *stream, float *dx, const float *dy,
                                                 const float *x, const float *weight,
                                                 const float *save_mean, const float *save_rstd,
                                                 const double *sum, const double *dot,
                                                 double total_rows, const gs_batchnorm *shape) {
    batchnorm_args args = {};
    args.dx = dx;
    args.dy = dy;
    args.x = x;
    args.weight = weight;
    args.saved_mean = save_mean;
    args.saved_rstd = save_rstd;
    args.sum = sum;
    args.dot = dot;
    args.total_rows = total_rows;
    args.shape = *shape;
    GS_LAUNCH(stream, apply_grid(stream, shape), APPLY_BLOCK, 0, spread_kernel, args);
}
