// One launch for many tensors, and masters of 32 bits in two halves of 16.
#include "kernels/cuda/adamw.cuh"
#include "kernels/cuda/cast.cuh"
#include "kernels/cuda/item_table.cuh"
#include "kernels/cuda/sums.cuh"

// Elements of a tile here, at least: finding its item costs two reads, one after the other.
#define LEAST_TILE ((size_t)4096)

// ---- tiles of flat.cuh, some in a row

template <class Op>
constexpr size_t tiles_in_a_row =
    gs_tile_elements<Op> < LEAST_TILE ? LEAST_TILE / gs_tile_elements<Op> : 1;
template <class Op>
constexpr size_t row_elements = gs_tile_elements<Op> * tiles_in_a_row<Op>;

template <class Op>
__device__ static inline void run_row(const Op &op, size_t row, size_t count) {
    const size_t head = op.head();
    for (size_t k = 0; k < tiles_in_a_row<Op>; k++)
        gs_run_tile(op, row * tiles_in_a_row<Op> + k, head, count);
}

__device__ static inline size_t num_rows(size_t count, size_t elements) {
    return count / elements + (count % elements != 0);
}

// ---- cast_many

struct make_cast {
    size_t elements;
    __device__ size_t num_tiles(const gs_cast_item &item) const { return num_rows(item.count, elements); }
    __device__ gs_cast_item prepared(const gs_cast_item &item) const { return item; }
};

template <class Op>
struct cast_tile {
    float scale;
    __device__ void operator()(const gs_cast_item &item, size_t tile) const {
        const Op op = {static_cast<typename Op::to_type *>(item.to),
                       static_cast<const typename Op::from_type *>(item.from), scale};
        run_row(op, tile, item.count);
    }
};

template <class Op>
__global__ static void __launch_bounds__(GS_FLAT_BLOCK, GS_BLOCKS_PER_SM)
    cast_many_kernel(const gs_tile_table<gs_cast_item> table, float scale) {
    gs_walk_tiles(table, cast_tile<Op>{scale});
}

struct run_cast_many {
    gs_stream *stream;
    const gs_cast_item *items;
    size_t num_items;
    float scale;

    template <gs_dtype TO, gs_dtype FROM>
    void with() const {
        typedef gs_cast_op<TO, FROM> op;
        gs_tile_table<gs_cast_item> table;
        char *rest;
        const make_cast make = {row_elements<op>};
        if (!gs_prepare_table(stream, &table, &rest, items, num_items, make, "cast_many")) return;
        GS_LAUNCH(stream, gs_persistent_grid(stream), GS_FLAT_BLOCK, 0, (cast_many_kernel<op>), table,
                  scale);
    }
};

extern "C" void gs_cuda_cast_many(gs_stream *stream, const gs_cast_item *items, size_t num_items,
                                  gs_dtype to, gs_dtype from, float scale) {
    if (num_items == 0) return;
    if (!gs_choose_cast(to, from, run_cast_many{stream, items, num_items, scale}))
        gs_refuse_cast(stream, to, from);
}

// ---- sum_squares_many: tiles are the chunks of sums.cuh

struct make_squares {
    __device__ size_t num_tiles(const gs_square_item &item) const {
        return gs_num_sum_chunks(item.count);
    }
    __device__ gs_square_item prepared(const gs_square_item &item) const { return item; }
};

__global__ static void __launch_bounds__(GS_SUM_BLOCK, GS_BLOCKS_PER_SM)
    square_chunks_kernel(const gs_tile_table<gs_square_item> table, double *chunk_sums, size_t most_chunks) {
    const size_t num_chunks = table.first_tiles[table.num_items];
    if (num_chunks > most_chunks) return;  // fold_squares_kernel says so
    for (size_t chunk = blockIdx.x; chunk < num_chunks; chunk += gridDim.x) {
        const size_t i = gs_find_item(table, chunk);
        const double total = gs_sum_chunk<gs_square_term>(
            table.items[i].from, chunk - table.first_tiles[i], table.items[i].count);
        if (threadIdx.x == 0) chunk_sums[chunk] = total;
    }
}

// One block for an item. Where scratch memory was too small for all chunks, the sums are NaN, which no norm
// takes for a number.
__global__ static void __launch_bounds__(GS_SUM_BLOCK)
    fold_squares_kernel(const gs_tile_table<gs_square_item> table, const double *chunk_sums,
                        size_t most_chunks) {
    const bool fits = table.first_tiles[table.num_items] <= most_chunks;
    for (size_t i = blockIdx.x; i < table.num_items; i += gridDim.x) {
        const size_t first = table.first_tiles[i], num_chunks = table.first_tiles[i + 1] - first;
        const double total = gs_fold_chunks(chunk_sums + first, fits ? num_chunks : 0);
        if (threadIdx.x == 0) *table.items[i].sum = fits ? total : NAN;
    }
}

extern "C" void gs_cuda_sum_squares_many(gs_stream *stream, const gs_square_item *items,
                                         size_t num_items) {
    if (num_items == 0) return;
    gs_tile_table<gs_square_item> table;
    char *rest;
    if (!gs_prepare_table(stream, &table, &rest, items, num_items, make_squares{}, "sum_squares_many"))
        return;
    char *end = static_cast<char *>(gs_cuda_stream_of(stream)->scratch) + GS_CUDA_SCRATCH_BYTES;
    const size_t most_chunks = static_cast<size_t>(end - rest) / sizeof(double);
    double *chunk_sums = reinterpret_cast<double *>(rest);
    GS_LAUNCH(stream, gs_persistent_grid(stream), GS_SUM_BLOCK, 0, square_chunks_kernel, table, chunk_sums,
              most_chunks);
    GS_LAUNCH(stream, gs_num_blocks(num_items, 1, 1u << 20), GS_SUM_BLOCK, 0, fold_squares_kernel,
              table, chunk_sums, most_chunks);
}

// ---- adamw_many

struct prepared_adamw {
    float *param;
    uint16_t *value, *remainder;
    float *m, *v;
    const float *grad;
    size_t count;
    gs_adamw_own own;
};

struct make_adamw {
    float lr;
    __device__ size_t num_tiles(const gs_adamw_item &item) const {
        return num_rows(item.count, row_elements<gs_adamw_op<true>>);
    }
    __device__ prepared_adamw prepared(const gs_adamw_item &item) const {
        const gs_adamw_own own =
            gs_adamw_make_own(lr, item.weight_decay, item.correction1, item.correction2);
        return {.param = item.param,
                .value = item.value,
                .remainder = item.remainder,
                .m = item.m,
                .v = item.v,
                .grad = item.grad,
                .count = item.count,
                .own = own};
    }
};

template <bool DECOUPLED>
struct adamw_tile {
    gs_adamw_common common;
    __device__ void operator()(const prepared_adamw &item, size_t tile) const {
        const gs_adamw_op<DECOUPLED> op = {.param = item.param,
                                           .value = item.value,
                                           .remainder = item.remainder,
                                           .m = item.m,
                                           .v = item.v,
                                           .grad = item.grad,
                                           .common = common,
                                           .own = item.own};
        run_row(op, tile, item.count);
    }
};

template <bool DECOUPLED>
__global__ static void __launch_bounds__(GS_FLAT_BLOCK, GS_BLOCKS_PER_SM)
    adamw_many_kernel(const gs_tile_table<prepared_adamw> table, const gs_adamw_common common) {
    gs_walk_tiles(table, adamw_tile<DECOUPLED>{common});
}

extern "C" void gs_cuda_adamw_many(gs_stream *stream, const gs_adamw_item *items, size_t num_items,
                                   const gs_adamw *step) {
    if (num_items == 0) return;
    gs_tile_table<prepared_adamw> table;
    char *rest;
    const make_adamw make = {step->lr};
    if (!gs_prepare_table(stream, &table, &rest, items, num_items, make, "adamw_many")) return;
    const gs_adamw_common common = gs_adamw_make_common(stream, *step);
    if (step->decoupled) {
        GS_LAUNCH(stream, gs_persistent_grid(stream), GS_FLAT_BLOCK, 0, (adamw_many_kernel<true>), table,
                  common);
    } else {
        GS_LAUNCH(stream, gs_persistent_grid(stream), GS_FLAT_BLOCK, 0, (adamw_many_kernel<false>), table,
                  common);
    }
}

// ---- masters in two halves

struct split_op {
    static constexpr int width = 4, unroll = 4;
    uint16_t *value, *remainder;
    const float *master;
    size_t head() const { return gs_common_head<width>(value, remainder, master); }
    template <int W>
    struct inputs {
        gs_elements<float, W> master;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        return {gs_load_elements<W>(master + i)};
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &in) const {
        gs_elements<uint16_t, W> upper, lower;
#pragma unroll
        for (int k = 0; k < W; k++) {
            upper.at[k] = gs_value_half(in.master.at[k]);
            lower.at[k] = gs_remainder_half(in.master.at[k]);
        }
        gs_store_elements<W>(value + i, upper);
        gs_store_elements<W>(remainder + i, lower);
    }
};

extern "C" void gs_cuda_split_master(gs_stream *stream, uint16_t *value, uint16_t *remainder,
                                     const float *master, size_t count) {
    gs_run_flat(stream, split_op{value, remainder, master}, count);
}

struct join_op {
    static constexpr int width = 4, unroll = 4;
    float *master;
    const uint16_t *value, *remainder;
    size_t head() const { return gs_common_head<width>(master, value, remainder); }
    template <int W>
    struct inputs {
        gs_elements<uint16_t, W> value, remainder;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        return {gs_load_elements<W>(value + i), gs_load_elements<W>(remainder + i)};
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &in) const {
        gs_elements<float, W> result;
#pragma unroll
        for (int k = 0; k < W; k++)
            result.at[k] = gs_join_halves(in.value.at[k], in.remainder.at[k]);
        gs_store_elements<W>(master + i, result);
    }
};

extern "C" void gs_cuda_join_master(gs_stream *stream, float *master, const uint16_t *value,
                                    const uint16_t *remainder, size_t count) {
    gs_run_flat(stream, join_op{master, value, remainder}, count);
}
