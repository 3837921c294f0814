#include "gradsync/comm/nccl/library.h"

#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/library.h"
#include "core/log.h"
#include "core/strbuf.h"
#include "gradsync/comm/comm.h"

#define OLDEST_VERSION 21400  // the first with non-blocking communicators

_Static_assert(sizeof(ncclUniqueId) == sizeof(gs_nccl_id), "the id is the library's");

extern char **environ;

// Types are those of nccl.h: what is called is what was declared.
#define REQUIRED_CALLS(X)                                                                          \
    X(ncclGetVersion)                                                                              \
    X(ncclGetErrorString)                                                                          \
    X(ncclGetLastError)                                                                            \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitRankConfig)                                                                      \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclCommFinalize)                                                                            \
    X(ncclCommDestroy)                                                                             \
    X(ncclCommAbort)                                                                               \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)                                                                                \
    X(ncclAllReduce)                                                                               \
    X(ncclReduce)                                                                                  \
    X(ncclReduceScatter)                                                                           \
    X(ncclAllGather)                                                                               \
    X(ncclBroadcast)                                                                               \
    X(ncclSend)                                                                                    \
    X(ncclRecv)
#define OPTIONAL_CALLS(X)                                                                          \
    X(ncclMemAlloc)                                                                                \
    X(ncclMemFree)                                                                                 \
    X(ncclCommRegister)                                                                            \
    X(ncclCommDeregister)                                                                          \
    X(ncclCommWindowRegister)                                                                      \
    X(ncclCommWindowDeregister)                                                                    \
    X(ncclCommRevoke)                                                                              \
    X(ncclCommSplit)                                                                               \
    X(ncclCommShrink)

struct gs_nccl_library {
    gs_library *object;
    int version;
#define DECLARE_CALL(name) __typeof__(&(name)) name;
    REQUIRED_CALLS(DECLARE_CALL) OPTIONAL_CALLS(DECLARE_CALL)
#undef DECLARE_CALL
};

// A caller may wish other values: what is set stays.
static const struct {
    const char *name, *value;
} defaults[] = {
    // An attempt to reach a peer that is gone ends within about 3 s instead of a minute.
    {"NCCL_SOCKET_RETRY_CNT", "10"},
    {"NCCL_SOCKET_RETRY_SLEEP_MSEC", "50"},
    {"NCCL_SOCKET_POLL_TIMEOUT_MSEC", "1"},  // no busy waiting while ranks meet
    {"NCCL_IB_TIMEOUT", "18"},               // 7.5 s instead of 30 s
    {"NCCL_IB_RETRY_CNT", "7"},
    {"NCCL_DEBUG", "WARN"},  // warnings name the culprit
};

static gs_status prepare_environment(void) {
    // The one would make every call block whatever the configuration says, the other replace the id.
    static const char *const refused[] = {"NCCL_COMM_BLOCKING", "NCCL_COMM_ID"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (getenv(refused[i]))
            return gs_error(GS_FAILED_PRECONDITION, "the variable %s is set and must not be",
                            refused[i]);
    }
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        setenv(defaults[i].name, defaults[i].value, 0);
    return gs_ok();
}

static gs_status check_version(gs_nccl_library *library) {
    const gs_library_symbol version = {"ncclGetVersion", &library->ncclGetVersion, false};
    GS_TRY(gs_library_load(library->object, &version, 1));
    ncclResult_t result = library->ncclGetVersion(&library->version);
    if (result != ncclSuccess)
        return gs_error(GS_UNAVAILABLE, "ncclGetVersion: error %d", (int)result);
    if (library->version < OLDEST_VERSION)
        return gs_error(GS_UNAVAILABLE, "version %d.%d, at least 2.14 is needed",
                        library->version / (library->version < 10000 ? 1000 : 10000),
                        library->version / 100 % (library->version < 10000 ? 10 : 100));
    return gs_ok();
}

static gs_status find_calls(gs_nccl_library *library) {
#define REQUIRE_CALL(name) {#name, &library->name, false},
#define ALLOW_CALL(name) {#name, &library->name, true},
    const gs_library_symbol calls[] = {REQUIRED_CALLS(REQUIRE_CALL) OPTIONAL_CALLS(ALLOW_CALL)};
#undef REQUIRE_CALL
#undef ALLOW_CALL
    GS_TRY(check_version(library));
    return gs_library_load(library->object, calls, sizeof calls / sizeof *calls);
}

gs_status gs_nccl_library_open(gs_nccl_library **out) {
    static const char *const file_names[] = {
#ifdef GRADSYNC_NCCL_SIM
        GRADSYNC_NCCL_SIM,  // the real one would look for a driver
#else
        "libnccl.so.2",
#endif
        NULL};
    const gs_library_options options = {
        .what = "NCCL", .variable = "GRADSYNC_NCCL", .file_names = file_names};
    GS_TRY(prepare_environment());
    gs_nccl_library *library = calloc(1, sizeof *library);
    if (!library) return gs_error(GS_RESOURCE_EXHAUSTED, "NCCL: out of memory");
    gs_status status = gs_library_open(&library->object, &options);
    if (!status.code) {
        status = gs_status_prefix(find_calls(library), "%s", gs_library_file(library->object));
        if (status.code) status.code = GS_UNAVAILABLE;
    }
    if (status.code) {
        gs_nccl_library_close(library);
        return status;
    }
    *out = library;
    return gs_ok();
}

void gs_nccl_library_close(gs_nccl_library *library) {
    if (!library) return;
    gs_library_close(library->object);
    free(library);
}

int gs_nccl_library_version(const gs_nccl_library *library) {
    return library->version;
}

static void format_version(char *text, size_t text_bytes, int version) {
    snprintf(text, text_bytes, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

bool gs_nccl_version(char *text, size_t text_bytes) {
    gs_nccl_library *library = NULL;
    gs_status status = gs_nccl_library_open(&library);
    if (status.code)
        snprintf(text, text_bytes, "%s", status.message);
    else
        format_version(text, text_bytes, library->version);
    gs_nccl_library_close(library);
    return !status.code;
}

void gs_nccl_library_log(const gs_nccl_library *library) {
    char version[24], quoted[1024];
    gs_strbuf set = {0};
    format_version(version, sizeof version, library->version);
    for (char **variable = environ; *variable; variable++) {
        if (strncmp(*variable, "NCCL_", 5) == 0)
            gs_strbuf_printf(&set, "%s%s", set.len ? " " : "", *variable);
    }
    gs_log_info("NCCL", "version=%s memory=%s registration=%s windows=%s split=%s shrink=%s revoke=%s "
                "environment=%s",
                version, library->ncclMemAlloc ? "yes" : "no",
                library->ncclCommRegister ? "yes" : "no",
                library->ncclCommWindowRegister ? "yes" : "no",
                library->ncclCommSplit ? "yes" : "no",
                library->ncclCommShrink ? "yes" : "no", library->ncclCommRevoke ? "yes" : "no",
                gs_log_quote(quoted, sizeof quoted, set.len ? set.text : ""));
    gs_strbuf_release(&set);
}

static gs_code code_of(ncclResult_t result) {
    switch (result) {
    case ncclSystemError:
        return GS_UNAVAILABLE;
    case ncclInvalidUsage:
        return GS_FAILED_PRECONDITION;
    case ncclRemoteError:
        return GS_ABORTED;
    default:
        return GS_INTERNAL;  // a broken device, or arguments that are ours
    }
}

static gs_status check(const gs_nccl_library *library, gs_nccl_handle *handle, ncclResult_t result,
                       const char *call) {
    if (result == ncclSuccess || result == ncclInProgress) return gs_ok();
    const char *last = library->ncclGetLastError(handle);
    return gs_error(code_of(result), "%s: %s%s%s", call, library->ncclGetErrorString(result),
                    last && *last ? ": " : "", last && *last ? last : "");
}

static gs_status lacks(const gs_nccl_library *library, const char *call) {
    char version[24];
    format_version(version, sizeof version, library->version);
    return gs_error(GS_UNIMPLEMENTED, "NCCL %s has no %s", version, call);
}

gs_status gs_nccl_alloc(const gs_nccl_library *library, void **memory, size_t bytes) {
    if (!library->ncclMemAlloc || !library->ncclMemFree) return lacks(library, "ncclMemAlloc");
    return check(library, NULL, library->ncclMemAlloc(memory, bytes), "ncclMemAlloc");
}

void gs_nccl_free(const gs_nccl_library *library, void *memory) {
    gs_status status = check(library, NULL, library->ncclMemFree(memory), "ncclMemFree");
    if (status.code) gs_log_warn("memory of NCCL was not freed", "error=\"%s\"", status.message);
}

gs_status gs_nccl_make_id(const gs_nccl_library *library, gs_nccl_id *id) {
    ncclUniqueId unique;
    gs_status status = check(library, NULL, library->ncclGetUniqueId(&unique), "ncclGetUniqueId");
    memcpy(id->bytes, unique.internal, sizeof id->bytes);
    return status;
}

static ncclConfig_t config_of(gs_nccl_ctas ctas) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (ctas.least) config.minCTAs = ctas.least;
    if (ctas.most) config.maxCTAs = ctas.most;
    return config;
}

gs_status gs_nccl_begin_init(const gs_nccl_library *library, gs_nccl_handle **handle,
                             const gs_nccl_id *id, int rank, int world_size,
                             gs_nccl_ctas ctas) {
    ncclConfig_t config = config_of(ctas);
    ncclUniqueId unique;
    memcpy(unique.internal, id->bytes, sizeof unique.internal);
    return check(library, NULL,
                 library->ncclCommInitRankConfig(handle, world_size, unique, rank, &config),
                 "ncclCommInitRankConfig");
}

bool gs_nccl_has_split(const gs_nccl_library *library) {
    return library->ncclCommSplit != NULL;
}

gs_status gs_nccl_begin_split(const gs_nccl_library *library, gs_nccl_handle *parent,
                              gs_nccl_handle **handle, int rank, gs_nccl_ctas ctas) {
    if (!library->ncclCommSplit) return lacks(library, "ncclCommSplit");
    ncclConfig_t config = config_of(ctas);
    return check(library, parent, library->ncclCommSplit(parent, 0, rank, handle, &config),
                 "ncclCommSplit");
}

gs_status gs_nccl_query(const gs_nccl_library *library, gs_nccl_handle *handle, bool *in_progress) {
    ncclResult_t behind = ncclSuccess;
    *in_progress = false;
    GS_TRY(check(library, handle, library->ncclCommGetAsyncError(handle, &behind),
                 "ncclCommGetAsyncError"));
    *in_progress = behind == ncclInProgress;
    return check(library, handle, behind, "NCCL");
}

gs_status gs_nccl_finalize(const gs_nccl_library *library, gs_nccl_handle *handle) {
    return check(library, handle, library->ncclCommFinalize(handle), "ncclCommFinalize");
}

// The handle is gone behind these two, so that it is not asked for the error.
gs_status gs_nccl_destroy(const gs_nccl_library *library, gs_nccl_handle *handle) {
    return check(library, NULL, library->ncclCommDestroy(handle), "ncclCommDestroy");
}

gs_status gs_nccl_abort(const gs_nccl_library *library, gs_nccl_handle *handle) {
    return check(library, NULL, library->ncclCommAbort(handle), "ncclCommAbort");
}

bool gs_nccl_has_windows(const gs_nccl_library *library) {
    return library->ncclCommWindowRegister && library->ncclCommWindowDeregister;
}

gs_status gs_nccl_register_window(const gs_nccl_library *library, gs_nccl_handle *handle,
                                  void *memory, size_t bytes, void **window) {
    if (!gs_nccl_has_windows(library)) return lacks(library, "ncclCommWindowRegister");
    return check(library, handle,
                 library->ncclCommWindowRegister(handle, memory, bytes, (ncclWindow_t *)window,
                                                 NCCL_WIN_COLL_SYMMETRIC),
                 "ncclCommWindowRegister");
}

gs_status gs_nccl_deregister_window(const gs_nccl_library *library, gs_nccl_handle *handle,
                                    void *window) {
    return check(library, handle, library->ncclCommWindowDeregister(handle, window),
                 "ncclCommWindowDeregister");
}

bool gs_nccl_has_registration(const gs_nccl_library *library) {
    return library->ncclCommRegister && library->ncclCommDeregister;
}

gs_status gs_nccl_register(const gs_nccl_library *library, gs_nccl_handle *handle, void *memory,
                           size_t bytes, void **registration) {
    if (!gs_nccl_has_registration(library)) return lacks(library, "ncclCommRegister");
    return check(library, handle, library->ncclCommRegister(handle, memory, bytes, registration),
                 "ncclCommRegister");
}

gs_status gs_nccl_deregister(const gs_nccl_library *library, gs_nccl_handle *handle,
                             void *registration) {
    return check(library, handle, library->ncclCommDeregister(handle, registration),
                 "ncclCommDeregister");
}

static ncclDataType_t type_of(gs_dtype dtype) {
    switch (dtype) {
    case GS_FP64:
        return ncclFloat64;
    case GS_FP32:
        return ncclFloat32;
    case GS_FP16:
        return ncclFloat16;
    case GS_BF16:
        return ncclBfloat16;
    case GS_I64:
        return ncclInt64;
    case GS_I32:
        return ncclInt32;
    default:
        return ncclUint8;
    }
}

static ncclRedOp_t op_of(gs_reduce_op op) {
    return op == GS_OP_MAX ? ncclMax : op == GS_OP_MIN ? ncclMin : ncclSum;
}

gs_status gs_nccl_group_begin(const gs_nccl_target *target) {
    return check(target->library, target->handle, target->library->ncclGroupStart(),
                 "ncclGroupStart");
}

gs_status gs_nccl_group_end(const gs_nccl_target *target) {
    return check(target->library, target->handle, target->library->ncclGroupEnd(), "ncclGroupEnd");
}

gs_status gs_nccl_allreduce(const gs_nccl_target *target, void *recv, const void *send,
                            size_t count, gs_dtype dtype, gs_reduce_op op) {
    return check(target->library, target->handle,
                 target->library->ncclAllReduce(send, recv, count, type_of(dtype), op_of(op),
                                                target->handle, target->stream),
                 "ncclAllReduce");
}

gs_status gs_nccl_reduce(const gs_nccl_target *target, void *recv, const void *send, size_t count,
                         gs_dtype dtype, gs_reduce_op op, int root) {
    return check(target->library, target->handle,
                 target->library->ncclReduce(send, recv, count, type_of(dtype), op_of(op), root,
                                             target->handle, target->stream),
                 "ncclReduce");
}

gs_status gs_nccl_reduce_scatter(const gs_nccl_target *target, void *recv, const void *send,
                                 size_t count, gs_dtype dtype, gs_reduce_op op) {
    return check(target->library, target->handle,
                 target->library->ncclReduceScatter(send, recv, count, type_of(dtype), op_of(op),
                                                    target->handle, target->stream),
                 "ncclReduceScatter");
}

gs_status gs_nccl_allgather(const gs_nccl_target *target, void *recv, const void *send,
                            size_t count, gs_dtype dtype) {
    return check(target->library, target->handle,
                 target->library->ncclAllGather(send, recv, count, type_of(dtype), target->handle,
                                                target->stream),
                 "ncclAllGather");
}

gs_status gs_nccl_broadcast(const gs_nccl_target *target, void *recv, const void *send,
                            size_t count, gs_dtype dtype, int root) {
    return check(target->library, target->handle,
                 target->library->ncclBroadcast(send, recv, count, type_of(dtype), root,
                                                target->handle, target->stream),
                 "ncclBroadcast");
}

gs_status gs_nccl_send(const gs_nccl_target *target, const void *send, size_t count, gs_dtype dtype,
                       int peer) {
    return check(target->library, target->handle,
                 target->library->ncclSend(send, count, type_of(dtype), peer, target->handle,
                                           target->stream),
                 "ncclSend");
}

gs_status gs_nccl_recv(const gs_nccl_target *target, void *recv, size_t count, gs_dtype dtype,
                       int peer) {
    return check(target->library, target->handle,
                 target->library->ncclRecv(recv, count, type_of(dtype), peer, target->handle,
                                           target->stream),
                 "ncclRecv");
}
