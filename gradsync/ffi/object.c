#include "gradsync/ffi/object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"

int gs_ffi_keep(void *handle, gs_status status) {
    gs_ffi_object *object = handle;
    if (object) object->last = status;
    return (int)status.code;
}

gs_status gs_ffi_given(const void *what, const char *name) {
    return what ? gs_ok() : gs_error(GS_INVALID_ARGUMENT, "%s: none given", name);
}

gs_status gs_ffi_expect(bool is_so, const char *what) {
    return is_so ? gs_ok() : gs_error(GS_FAILED_PRECONDITION, "%s", what);
}

gs_deadline gs_ffi_deadline(int64_t within_ns) {
    return gs_deadline_in_ns(within_ns);
}

gs_status gs_ffi_tell_others(gs_comm *comm, gs_status status) {
    if (!status.code || !comm) return status;
    status = gs_status_prefix(status, "rank %d", gs_comm_rank(comm));
    gs_comm_abort(comm, status.message);
    return status;
}

gs_status gs_ffi_returned(int code, const char *what) {
    if (code == 0) return gs_ok();
    bool is_known = code > 0 && code < (int)GS_NUM_CODES;
    return gs_error(is_known ? (gs_code)code : GS_UNKNOWN, "%s returned %d", what, code);
}

gs_status gs_ffi_numbers_copy(gs_ffi_numbers *numbers, const int *list, size_t count) {
    GS_TRY(gs_ffi_given(list, "list of numbers"));
    int *copy = calloc(count + 1, sizeof *copy);
    if (!copy) return gs_error(GS_RESOURCE_EXHAUSTED, "list of numbers: out of memory");
    memcpy(copy, list, count * sizeof *copy);
    free(numbers->list);
    *numbers = (gs_ffi_numbers){copy, count};
    return gs_ok();
}

gs_status gs_ffi_numbers_check(const gs_ffi_numbers *numbers, size_t num_params, const char *what) {
    if (!numbers->list || numbers->count == num_params) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "%s: %zu of them, there are %zu parameters", what,
                    numbers->count, num_params);
}

int gs_ffi_error(const void *handle, char *text, size_t text_bytes) {
    const gs_ffi_object *object = handle;
    const gs_status last = object ? object->last : gs_ffi_given(NULL, "handle");
    if (text && text_bytes) snprintf(text, text_bytes, "%s", last.message);
    return (int)last.code;
}

const char *gs_ffi_code_name(int code) {
    return gs_code_name((gs_code)code);
}

// The level of the library's sink is an enum, which an interface for other languages has no
// business with. There is one sink in a process (core/log.h), so there is one of this.
static void (*log_sink)(void *ctx, int level, const char *line);

static void pass_line(void *ctx, gs_log_level level, const char *line) {
    log_sink(ctx, (int)level, line);
}

void gs_ffi_log_to(void (*sink)(void *ctx, int level, const char *line), void *ctx) {
    gs_log_set_sink(NULL, NULL);
    log_sink = sink;
    if (sink) gs_log_set_sink(pass_line, ctx);
}

void gs_ffi_log_from(int level) {
    gs_log_set_level((gs_log_level)level);
}
