#include "core/low_rank.h"

#include <math.h>

// Products beyond 2^53 are rounded; no shape comes so near to the limit there that it would matter.
static bool pays(size_t rows, size_t cols, size_t rank, double min_compression_rate) {
    double sent = ((double)rows + (double)cols) * (double)rank;
    return sent * min_compression_rate < (double)rows * (double)cols;
}

gs_low_rank gs_low_rank_of(const gs_param_spec *spec, int wanted_rank,
                           double min_compression_rate) {
    gs_low_rank shape = {.rows = 1, .cols = 1};
    if (spec->sparse) return (gs_low_rank){0};
    if (spec->num_dims) shape.rows = (size_t)spec->shape[0];
    size_t count = gs_param_spec_count(spec);
    if (!count) return (gs_low_rank){0};
    shape.cols = count / shape.rows;
    size_t rank = (size_t)wanted_rank;
    if (rank > shape.rows) rank = shape.rows;
    if (rank > shape.cols) rank = shape.cols;
    if (pays(shape.rows, shape.cols, rank, min_compression_rate)) shape.rank = (int)rank;
    return shape;
}

// The root is right to one, whatever it was rounded to.
size_t gs_low_rank_side(size_t count) {
    size_t side = (size_t)sqrt((double)count);
    while (side * side < count) side++;
    while (side && (side - 1) * (side - 1) >= count) side--;
    return side;
}
