#include "kernels/cuda/cublaslt.h"

#define QUOTE_AGAIN(number) #number
#define QUOTE(number) QUOTE_AGAIN(number)
#define VERSIONS_OF_A_MAJOR 10000

static gs_status check_version(const gs_cublaslt *lt) {
    size_t version = lt->cublasLtGetVersion();
    if (version / VERSIONS_OF_A_MAJOR == CUBLAS_VER_MAJOR) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION, "cuBLASLt: %s is version %zu, this build wants %d.x",
                    gs_library_file(lt->library), version, CUBLAS_VER_MAJOR);
}

gs_status gs_cublaslt_open(gs_cublaslt *out) {
    static const char *const file_names[] = {
#ifdef GRADSYNC_CUBLASLT_SIM
        GRADSYNC_CUBLASLT_SIM,  // the real one would call a driver
#else
        "libcublasLt.so." QUOTE(CUBLAS_VER_MAJOR), "libcublasLt.so",
#endif
        NULL};
    const gs_library_options options = {
        .what = "cuBLASLt", .variable = "GRADSYNC_CUBLASLT", .file_names = file_names};
    *out = (gs_cublaslt){0};
    GS_TRY(gs_library_open(&out->library, &options));
#define ROW(function) {.name = #function, .pointer = &out->function},
    const gs_library_symbol symbols[] = {GS_CUBLASLT_FUNCTIONS(ROW)};
#undef ROW
    gs_status status =
        gs_library_load(out->library, symbols, sizeof symbols / sizeof *symbols);
    if (!status.code) status = check_version(out);
    if (status.code) gs_cublaslt_close(out);
    return status;
}

void gs_cublaslt_close(gs_cublaslt *lt) {
    gs_library_close(lt->library);
    *lt = (gs_cublaslt){0};
}

static gs_code code_of(cublasStatus_t error) {
    switch (error) {
    case CUBLAS_STATUS_ALLOC_FAILED:
        return GS_RESOURCE_EXHAUSTED;
    case CUBLAS_STATUS_NOT_INITIALIZED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return GS_UNAVAILABLE;
    default:
        return GS_INTERNAL;
    }
}

gs_status gs_cublaslt_check(const gs_cublaslt *lt, cublasStatus_t error, const char *call) {
    if (error == CUBLAS_STATUS_SUCCESS) return gs_ok();
    return gs_error(code_of(error), "%s: %s (%s)", call, lt->cublasLtGetStatusName(error),
                    lt->cublasLtGetStatusString(error));
}
