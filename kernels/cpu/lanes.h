// Sums and maxima over a row in a fixed order: element i goes to lane i mod GS_LANES, the lanes are
// folded as a tree. 32 lanes are two AVX-512, four AVX2 or eight SSE registers; gcc keeps them
// there and the result is the same for all three, and for any alignment.
#ifndef KERNELS_CPU_LANES_H
#define KERNELS_CPU_LANES_H

#include <math.h>
#include <stddef.h>

#define GS_LANES 32

// total = Σ term, where term is an expression of the index i in [0, count).
#define GS_LANE_SUM(type, total, i, count, term)                                                   \
    do {                                                                                           \
        type lane_[GS_LANES] = {0};                                                                \
        const size_t whole_ = (count) - (count) % GS_LANES;                                        \
        for (size_t at_ = 0; at_ < whole_; at_ += GS_LANES) {                                      \
            for (size_t j_ = 0; j_ < GS_LANES; j_++) {                                             \
                const size_t i = at_ + j_;                                                         \
                lane_[j_] += (term);                                                               \
            }                                                                                      \
        }                                                                                          \
        for (size_t i = whole_; i < (count); i++) lane_[i - whole_] += (term);                     \
        for (size_t half_ = GS_LANES / 2; half_; half_ /= 2) {                                     \
            for (size_t j_ = 0; j_ < half_; j_++) lane_[j_] += lane_[j_ + half_];                  \
        }                                                                                          \
        (total) = lane_[0];                                                                        \
    } while (0)

// largest = max of term; -infinity when count is 0. A NaN is passed over.
#define GS_LANE_MAX(largest, i, count, term)                                                       \
    do {                                                                                           \
        float lane_[GS_LANES];                                                                     \
        for (size_t j_ = 0; j_ < GS_LANES; j_++) lane_[j_] = -INFINITY;                            \
        const size_t whole_ = (count) - (count) % GS_LANES;                                        \
        for (size_t at_ = 0; at_ < whole_; at_ += GS_LANES) {                                      \
            for (size_t j_ = 0; j_ < GS_LANES; j_++) {                                             \
                const size_t i = at_ + j_;                                                         \
                const float term_ = (term);                                                        \
                lane_[j_] = term_ > lane_[j_] ? term_ : lane_[j_];                                 \
            }                                                                                      \
        }                                                                                          \
        for (size_t i = whole_; i < (count); i++) {                                                \
            const float term_ = (term);                                                            \
            lane_[i - whole_] = term_ > lane_[i - whole_] ? term_ : lane_[i - whole_];             \
        }                                                                                          \
        for (size_t half_ = GS_LANES / 2; half_; half_ /= 2) {                                     \
            for (size_t j_ = 0; j_ < half_; j_++) {                                                \
                lane_[j_] = lane_[j_ + half_] > lane_[j_] ? lane_[j_ + half_] : lane_[j_];         \
            }                                                                                      \
        }                                                                                          \
        (largest) = lane_[0];                                                                      \
    } while (0)

#endif
