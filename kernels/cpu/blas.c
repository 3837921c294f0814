#include "kernels/cpu/blas.h"

#include <cblas.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/log.h"
#include "kernels/host_blas.h"

// OpenBLAS selects its kernels when it is loaded. A release older than the processor does not know
// the model and falls back to SSE3, four times slower; these two let it choose again. Weak: they
// are not part of its interface, and other builds may lack them.
extern void gotoblas_dynamic_init(void) __attribute__((weak));
extern void gotoblas_dynamic_quit(void) __attribute__((weak));

// What a core of OpenBLAS computes with, and what a processor has.
typedef enum simd { SIMD_LESS = 0, SIMD_AVX2, SIMD_AVX512 } simd;

static const char *const simd_names[] = {"less than AVX2", "AVX2", "AVX-512"};

static simd core_simd(const char *core) {
    static const struct {
        const char *core;
        simd simd;
    } known[] = {{"Haswell", SIMD_AVX2},
                 {"Zen", SIMD_AVX2},
                 {"SkylakeX", SIMD_AVX512},
                 {"Cooperlake", SIMD_AVX512},
                 {"SapphireRapids", SIMD_AVX512}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcasecmp(core, known[i].core) == 0) return known[i].simd;
    }
    return SIMD_LESS;
}

static simd processor_simd(void) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return SIMD_LESS;
    bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? SIMD_AVX512 : SIMD_AVX2;
#else
    return SIMD_LESS;  // nothing is known, so nothing is chosen and nothing is said
#endif
}

static void select_core(void) {
    static const char *const fitting[] = {NULL, "Haswell", "SkylakeX"};
    const char *core = fitting[processor_simd()];
    if (!core || getenv("OPENBLAS_CORETYPE") || core_simd(openblas_get_corename()) != SIMD_LESS)
        return;
    if (!gotoblas_dynamic_init || !gotoblas_dynamic_quit) return;
    setenv("OPENBLAS_CORETYPE", core, 1);
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
}

// The core that the environment asks for, when it uses less than the processor has. A name that
// OpenBLAS does not know is no such thing: it chooses by itself then, and well.
static const char *limiting_core(void) {
    const char *asked = getenv("OPENBLAS_CORETYPE");
    return asked && core_simd(openblas_get_corename()) < processor_simd() ? asked : NULL;
}

static void own_once(void) {
    openblas_set_num_threads(1);
    select_core();
    const char *asked = limiting_core();
    if (!asked) return;
    char quoted[64];
    gs_log_warn("OpenBLAS is held below what the processor has",
                "OPENBLAS_CORETYPE=%s core=%s core_has=\"%s\" processor_has=\"%s\"",
                gs_log_quote(quoted, sizeof quoted, asked), openblas_get_corename(),
                simd_names[core_simd(openblas_get_corename())], simd_names[processor_simd()]);
}

void gs_host_blas_own(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, own_once);
}

void gs_blas_describe(char *text, size_t text_bytes) {
    char version[32] = "unknown";
    // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH …"
    if (sscanf(openblas_get_config(), "%*s %31s", version) != 1) strcpy(version, "unknown");
    int num_threads = openblas_get_num_threads();
    snprintf(text, text_bytes, "%s/%s", version, openblas_get_corename());
    size_t used = strlen(text);
    if (num_threads != 1 && used < text_bytes)
        snprintf(text + used, text_bytes - used, "/%d-threads", num_threads);
}

void gs_blas_describe_limit(char *text, size_t text_bytes) {
    const char *asked = limiting_core();
    text[0] = '\0';
    if (!asked) return;
    snprintf(text, text_bytes, "openblas held below %s by OPENBLAS_CORETYPE=%s",
             simd_names[processor_simd()], asked);
}

void gs_blas_multiply(float *c, const float *a, const float *b, const gs_matmul *shape) {
    cblas_sgemm(CblasRowMajor, shape->transpose_a ? CblasTrans : CblasNoTrans,
                shape->transpose_b ? CblasTrans : CblasNoTrans, (int)shape->m, (int)shape->n,
                (int)shape->k, shape->alpha, a, (int)shape->stride_a, b, (int)shape->stride_b,
                shape->beta, c, (int)shape->stride_c);
}
