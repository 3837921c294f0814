#include "kernels/cuda/cudnn.h"

#define QUOTE_AGAIN(number) #number
#define QUOTE(number) QUOTE_AGAIN(number)
#define VERSIONS_OF_A_MAJOR 10000

static gs_status check_version(const gs_cudnn *dnn) {
    size_t version = dnn->cudnnGetVersion();
    if (version / VERSIONS_OF_A_MAJOR == CUDNN_MAJOR) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION, "cuDNN: %s is version %zu, this build wants %d.x",
                    gs_library_file(dnn->library), version, CUDNN_MAJOR);
}

gs_status gs_cudnn_open(gs_cudnn *out) {
    static const char *const file_names[] = {
#ifdef GRADSYNC_CUDNN_SIM
        GRADSYNC_CUDNN_SIM,  // the real one would call a driver
#else
        "libcudnn.so." QUOTE(CUDNN_MAJOR), "libcudnn.so",
#endif
        NULL};
    const gs_library_options options = {
        .what = "cuDNN", .variable = "GRADSYNC_CUDNN", .file_names = file_names};
    *out = (gs_cudnn){0};
    GS_TRY(gs_library_open(&out->library, &options));
#define ROW(function) {.name = #function, .pointer = &out->function},
    const gs_library_symbol symbols[] = {GS_CUDNN_FUNCTIONS(ROW)};
#undef ROW
    gs_status status = gs_library_load(out->library, symbols, sizeof symbols / sizeof *symbols);
    if (!status.code) status = check_version(out);
    if (status.code) gs_cudnn_close(out);
    return status;
}

void gs_cudnn_close(gs_cudnn *dnn) {
    gs_library_close(dnn->library);
    *dnn = (gs_cudnn){0};
}

static gs_code code_of(cudnnStatus_t error) {
    switch (CUDNN_STATUS_CATEGORY(error)) {
    case CUDNN_STATUS_NOT_SUPPORTED:
        return GS_UNIMPLEMENTED;
    case CUDNN_STATUS_BAD_PARAM:
        return GS_INVALID_ARGUMENT;
    default:
        return GS_INTERNAL;
    }
}

gs_status gs_cudnn_check(const gs_cudnn *dnn, cudnnStatus_t error, const char *call) {
    if (error == CUDNN_STATUS_SUCCESS) return gs_ok();
    return gs_error(code_of(error), "%s: %s", call, dnn->cudnnGetErrorString(error));
}
