// Which gradients low-rank compression replaces by two thin factors, and how much then travels. By
// shapes alone: coordinator and ranks come to the same.
//
// PowerSGD (Vogels et al. 2019) as PyTorch has it: a gradient of shape (s0, s1, …) is a matrix of n
// = s0 rows and m = s1·s2·… columns; a vector or a scalar has one column. It is compressed with
// rank r = min(n, m, wanted) when
//
//   (n + m) · r · min_compression_rate  <  n · m
#ifndef CORE_LOW_RANK_H
#define CORE_LOW_RANK_H

#include <stddef.h>

#include "core/param_spec.h"

typedef struct gs_low_rank {
    size_t rows, cols;
    int rank;  // 0: it travels as it is
} gs_low_rank;

// The parameter's spec was checked. A sparse one, whose rows travel apart, is not compressed.
gs_low_rank gs_low_rank_of(const gs_param_spec *spec, int wanted_rank, double min_compression_rate);

// Elements of one rank's gradient, and what is sent in their place.
static inline size_t gs_low_rank_elements(gs_low_rank shape) {
    return shape.rows * shape.cols;
}
static inline size_t gs_low_rank_sent(gs_low_rank shape) {
    return shape.rank ? (shape.rows + shape.cols) * (size_t)shape.rank : shape.rows * shape.cols;
}

// The side of the square that a whole bucket makes: the least whose square has room for `count`.
size_t gs_low_rank_side(size_t count);

#endif
