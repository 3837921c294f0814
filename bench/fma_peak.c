#include "bench/fma_peak.h"

#include <stddef.h>

#if defined(__x86_64__)

// 1·1 + 0 stays 1: no denormals, no overflow. Twelve chains, three registers of sixteen left.
static double run_avx2(int64_t rounds) {
    const float one = 1.0f;
    int64_t left = rounds;
    __asm__ volatile("vbroadcastss %[one], %%ymm0\n\t"
                     "vxorps %%xmm1, %%xmm1, %%xmm1\n\t"
                     ".irp r, 4,5,6,7,8,9,10,11,12,13,14,15\n\t"
                     "vmovaps %%ymm0, %%ymm\\r\n\t"
                     ".endr\n\t"
                     ".p2align 6\n"
                     "1:\n\t"
                     ".irp r, 4,5,6,7,8,9,10,11,12,13,14,15\n\t"
                     "vfmadd213ps %%ymm1, %%ymm0, %%ymm\\r\n\t"
                     ".endr\n\t"
                     "dec %[left]\n\t"
                     "jnz 1b\n\t"
                     "vzeroupper"
                     : [left] "+r"(left)
                     : [one] "m"(one)
                     : "cc", "xmm0", "xmm1", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                       "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    return (double)rounds * 12 * 8 * 2;
}

// Twenty-four chains of thirty-two registers.
__attribute__((target("avx512f"))) static double run_avx512(int64_t rounds) {
    const float one = 1.0f;
    int64_t left = rounds;
    __asm__ volatile(
        "vbroadcastss %[one], %%zmm0\n\t"
        "vpxord %%zmm1, %%zmm1, %%zmm1\n\t"
        ".irp r, 8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n\t"
        "vmovaps %%zmm0, %%zmm\\r\n\t"
        ".endr\n\t"
        ".p2align 6\n"
        "1:\n\t"
        ".irp r, 8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n\t"
        "vfmadd213ps %%zmm1, %%zmm0, %%zmm\\r\n\t"
        ".endr\n\t"
        "dec %[left]\n\t"
        "jnz 1b\n\t"
        "vzeroupper"
        : [left] "+r"(left)
        : [one] "m"(one)
        : "cc", "xmm0", "xmm1", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
          "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24",
          "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31");
    return (double)rounds * 24 * 16 * 2;
}

const char *fma_peak_name(void) {
    if (__builtin_cpu_supports("avx512f")) return "AVX-512";
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "AVX2" : NULL;
}

double fma_peak_run(void) {
    const int64_t rounds = 100000;
    if (__builtin_cpu_supports("avx512f")) return run_avx512(rounds);
    return fma_peak_name() ? run_avx2(2 * rounds) : 0.0;
}

#else

const char *fma_peak_name(void) {
    return NULL;
}

double fma_peak_run(void) {
    return 0.0;
}

#endif
