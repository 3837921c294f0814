// Instructions of the GPU that CUDA C++ has no words for: matrix products of 16 x 8 x 16, matrix
// loads from shared memory, copies that run beside arithmetic. sm_80 and later.
//
// Each has a twin in plain C++ for the simulator (GRADSYNC_CUDA_SIM), where the 32 lanes of a warp
// show one another what they hold. All lanes of the warp must come to a call, as on the device.
//
// Who holds what, g = lane / 4, t = lane % 4 (PTX ISA, "matrix fragments for mma.m16n8k16"):
//
//   A (16 x 16): a[0] is row g, columns 2t and 2t+1; a[1] row g+8, the same columns; a[2] and a[3]
//   the same rows, columns 2t+8 and 2t+9
//
//   B (16 x 8): b[0] is rows 2t and 2t+1 of column g; b[1] rows 2t+8 and 2t+9
//
//   C (16 x 8): c[0] and c[1] are row g, columns 2t and 2t+1; c[2] and c[3] row g+8
//
// Two numbers of 16 bits share a register, the first in the lower half.
#ifndef KERNELS_CUDA_PTX_CUH
#define KERNELS_CUDA_PTX_CUH

#include <stdint.h>

#include "core/dtype.h"
#include "kernels/cuda/launch.cuh"

#ifdef GRADSYNC_CUDA_SIM
#include <string.h>

#include <deque>
#include <vector>
#endif

// TYPE is GS_BF16 or GS_FP16 everywhere.
#ifdef GRADSYNC_CUDA_SIM

template <gs_dtype TYPE> static inline uint32_t gs_half_bits(float number) {
    if (TYPE == GS_FP16) return __half_as_ushort(__float2half_rn(number));
    return __bfloat16_as_ushort(__float2bfloat16_rn(number));
}

template <gs_dtype TYPE> static inline float gs_half_value(uint16_t bits) {
    if (TYPE == GS_FP16) return __half2float(__ushort_as_half(bits));
    return __bfloat162float(__ushort_as_bfloat16(bits));
}

template <gs_dtype TYPE> static inline uint32_t gs_pack(float first, float second) {
    return gs_half_bits<TYPE>(first) | gs_half_bits<TYPE>(second) << 16;
}

// Column `k` of a row that starts in `words`.
template <gs_dtype TYPE> static inline float gs_sim_half_of(const uint32_t *words, int k) {
    return gs_half_value<TYPE>((uint16_t)(words[k / 2] >> 16 * (k % 2)));
}

template <gs_dtype TYPE>
static inline void gs_mma(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    struct held {
        uint32_t a[4], b[2];
    } mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, all[32];
    gs_sim_exchange(GS_FULL_WARP, mine, all, "mma.sync");
    const int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    for (int element = 0; element < 4; element++) {
        const int row = element / 2, column = 2 * t + element % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++) {
            const held &of_a = all[4 * g + k % 8 / 2], &of_b = all[4 * column + k % 8 / 2];
            sum += gs_sim_half_of<TYPE>(&of_a.a[row + 2 * (k / 8)], k % 2) *
                   gs_sim_half_of<TYPE>(&of_b.b[k / 8], k % 2);
        }
        c[element] += sum;
    }
}

static inline void gs_sim_load_matrices(uint32_t to[4], const void *row, bool transposed) {
    if ((uintptr_t)row % 16) {
        gs_sim_refuse("a row that is not on a 16-byte boundary", {"ldmatrix", __FILE__, __LINE__});
    }
    const uint16_t *mine = (const uint16_t *)row, *rows[32];
    gs_sim_exchange(GS_FULL_WARP, mine, rows, "ldmatrix");
    const int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) {
        const uint16_t *const *matrix = rows + 8 * i;
        uint32_t first = transposed ? matrix[2 * t][g] : matrix[g][2 * t];
        uint32_t second = transposed ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
        to[i] = first | second << 16;
    }
    // Nobody overwrites what another lane has yet to read.
    __syncwarp();
}

static inline void gs_load_matrices_x4(uint32_t to[4], const void *row) {
    gs_sim_load_matrices(to, row, false);
}

static inline void gs_load_matrices_x4_transposed(uint32_t to[4], const void *row) {
    gs_sim_load_matrices(to, row, true);
}

static inline float gs_exp2(float x) {
    return exp2f(x);
}

// Copies happen as late as the hardware may let them, when they are waited for: a forgotten wait
// reads what was there before.
class gs_async_copies {
  public:
    void copy_16_bytes(void *to, const void *from, bool valid) {
        if ((uintptr_t)to % 16 || (valid && (uintptr_t)from % 16)) {
            gs_sim_refuse("an address that is not on a 16-byte boundary",
                          {"cp.async", __FILE__, __LINE__});
        }
        open_.push_back({to, from, valid});
    }

    void commit() {
        groups_.push_back(open_);
        open_.clear();
    }

    template <int NEWEST> void wait() {
        while (groups_.size() > NEWEST) {
            for (const copy &c : groups_.front()) {
                if (c.valid)
                    memcpy(c.to, c.from, 16);
                else
                    memset(c.to, 0, 16);
            }
            groups_.pop_front();
        }
    }

  private:
    struct copy {
        void *to;
        const void *from;
        bool valid;
    };
    std::vector<copy> open_;
    std::deque<std::vector<copy>> groups_;
};

#else

__device__ __forceinline__ uint32_t gs_shared_address(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

// Both rounded to nearest even, `first` in the lower half.
template <gs_dtype TYPE> __device__ __forceinline__ uint32_t gs_pack(float first, float second) {
    uint32_t both;
    if (TYPE == GS_FP16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

template <gs_dtype TYPE> __device__ __forceinline__ float gs_half_value(uint16_t bits) {
    if (TYPE == GS_BF16) return __uint_as_float((uint32_t)bits << 16);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// c += A · B
template <gs_dtype TYPE>
__device__ __forceinline__ void gs_mma(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    if (TYPE == GS_FP16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
            "%7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

// Matrices of 8 x 8 in shared memory: lanes 8i to 8i+7 say where the rows of matrix i start, each
// on a 16-byte boundary. to[i] is row g, columns 2t and 2t+1 of it; transposed: rows 2t and 2t+1 of
// column g.
__device__ __forceinline__ void gs_load_matrices_x4(uint32_t to[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(gs_shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void gs_load_matrices_x4_transposed(uint32_t to[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(gs_shared_address(row))
                 : "memory");
}

// 2^x with the error of the hardware's table, 2 ulp; denormal results are 0.
__device__ __forceinline__ float gs_exp2(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// One thread's copies from global to shared memory, in groups. What was copied is there for the
// thread when it has waited, for the block behind a barrier after that.
class gs_async_copies {
  public:
    // Both addresses on 16-byte boundaries. Not `valid`: zeros, and `from` is not read.
    __device__ __forceinline__ void copy_16_bytes(void *to, const void *from, bool valid) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(gs_shared_address(to)), "l"(__cvta_generic_to_global(from)),
                       "r"(valid ? 16 : 0)
                     : "memory");
    }

    __device__ __forceinline__ void commit() {
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // All but the NEWEST groups are done.
    template <int NEWEST> __device__ __forceinline__ void wait() {
        asm volatile("cp.async.wait_group %0;" : : "n"(NEWEST) : "memory");
    }
};

#endif
#endif
