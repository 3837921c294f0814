#include "core/param_spec.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

gs_param_spec gs_param_spec_make(gs_dtype dtype, int64_t rows, int64_t cols, const char *name,
                                 ...) {
    gs_param_spec spec = {.dtype = dtype};
    if (rows) spec.shape[spec.num_dims++] = rows;
    if (cols) spec.shape[spec.num_dims++] = cols;
    va_list args;
    va_start(args, name);
    vsnprintf(spec.name, sizeof spec.name, name, args);
    va_end(args);
    return spec;
}

// False when a dimension is negative or the product does not fit.
static bool multiply_shape(size_t *count, const gs_param_spec *spec) {
    *count = 1;
    bool fits = true, empty = false;
    for (int d = 0; d < spec->num_dims; d++) {
        if (spec->shape[d] < 0) return false;
        if (spec->shape[d] == 0) empty = true;
        else if (!gs_bytes_of(count, *count, (size_t)spec->shape[d])) fits = false;
    }
    if (empty) *count = 0;
    return fits || empty;
}

size_t gs_param_spec_count(const gs_param_spec *spec) {
    size_t count;
    return multiply_shape(&count, spec) ? count : SIZE_MAX;
}

static size_t bytes_of_spec(const gs_param_spec *spec, size_t element_bytes) {
    size_t bytes;
    return gs_bytes_of(&bytes, gs_param_spec_count(spec), element_bytes) ? bytes : SIZE_MAX;
}

size_t gs_param_spec_bytes(const gs_param_spec *spec) {
    return bytes_of_spec(spec, gs_dtype_bytes(spec->dtype));
}

size_t gs_param_spec_grad_bytes(const gs_param_spec *spec) {
    return bytes_of_spec(spec, gs_dtype_grad_bytes(spec->dtype));
}

static gs_status check_spec(const gs_param_spec *spec, size_t index) {
    if (!memchr(spec->name, '\0', sizeof spec->name))
        return gs_error(GS_INVALID_ARGUMENT, "parameter %zu: name has no end", index);
    if (!spec->name[0]) return gs_error(GS_INVALID_ARGUMENT, "parameter %zu: empty name", index);
    if (!gs_dtype_bytes(spec->dtype))
        return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%s\": dtype unset", index,
                        spec->name);
    if (spec->num_dims < 0 || spec->num_dims > GS_MAX_DIMS)
        return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%s\": %d dimensions, at most %d",
                        index, spec->name, spec->num_dims, GS_MAX_DIMS);
    for (int d = 0; d < spec->num_dims; d++) {
        if (spec->shape[d] < 0)
            return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%s\": dimension %d is %lld",
                            index, spec->name, d, (long long)spec->shape[d]);
    }
    if (spec->sparse && spec->num_dims < 1)
        return gs_error(GS_INVALID_ARGUMENT,
                        "parameter %zu \"%s\": a sparse gradient needs rows, it is a scalar", index,
                        spec->name);
    size_t count, bytes;
    if (!multiply_shape(&count, spec) || !gs_bytes_of(&bytes, count, gs_dtype_bytes(spec->dtype)))
        return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%s\": more bytes than memory has",
                        index, spec->name);
    return gs_ok();
}

static int compare_names(const void *a, const void *b) {
    const gs_param_spec *left = *(const gs_param_spec *const *)a;
    const gs_param_spec *right = *(const gs_param_spec *const *)b;
    int order = strcmp(left->name, right->name);
    if (order) return order;
    return left < right ? -1 : left > right;
}

gs_status gs_param_specs_check(const gs_param_spec *specs, size_t num_specs) {
    for (size_t i = 0; i < num_specs; i++) GS_TRY(check_spec(&specs[i], i));
    if (num_specs < 2) return gs_ok();

    const gs_param_spec **sorted = calloc(num_specs, sizeof *sorted);
    if (!sorted) return gs_error(GS_RESOURCE_EXHAUSTED, "parameter list: out of memory");
    for (size_t i = 0; i < num_specs; i++) sorted[i] = &specs[i];
    qsort(sorted, num_specs, sizeof *sorted, compare_names);
    gs_status status = gs_ok();
    for (size_t i = 1; i < num_specs && !status.code; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            status = gs_error(GS_INVALID_ARGUMENT, "parameters %td and %td are both named \"%s\"",
                              sorted[i - 1] - specs, sorted[i] - specs, sorted[i]->name);
    }
    free(sorted);
    return status;
}

// Beside the dtype; a list without sparse parameters has the digest that it always had.
#define SPARSE_FLAG (1 << 16)

// One record of a chain of digests, little-endian: what went before, then the spec.
typedef struct spec_record {
    uint64_t before[2];
    int64_t shape[GS_MAX_DIMS];
    int32_t dtype, num_dims;
    char name[GS_PARAM_NAME_LEN];
} spec_record;

gs_digest gs_param_specs_digest(const gs_param_spec *specs, size_t num_specs) {
    uint64_t count = num_specs;
    gs_digest digest = gs_digest_of(&count, sizeof count);
    for (size_t i = 0; i < num_specs; i++) {
        spec_record record;
        memset(&record, 0, sizeof record);
        record.before[0] = digest.high;
        record.before[1] = digest.low;
        record.dtype = (int32_t)specs[i].dtype | (specs[i].sparse ? SPARSE_FLAG : 0);
        record.num_dims = specs[i].num_dims;
        for (int d = 0; d < specs[i].num_dims; d++) record.shape[d] = specs[i].shape[d];
        memcpy(record.name, specs[i].name, strnlen(specs[i].name, sizeof record.name));
        digest = gs_digest_of(&record, sizeof record);
    }
    return digest;
}

#define SHAPE_TEXT_LEN 96

static const char *format_shape(char text[SHAPE_TEXT_LEN], const gs_param_spec *spec) {
    int used = snprintf(text, SHAPE_TEXT_LEN, "[");
    for (int d = 0; d < spec->num_dims && used < SHAPE_TEXT_LEN - 24; d++)
        used += snprintf(text + used, SHAPE_TEXT_LEN - (size_t)used, d ? ",%lld" : "%lld",
                         (long long)spec->shape[d]);
    snprintf(text + used, SHAPE_TEXT_LEN - (size_t)used, "]");
    return text;
}

static bool shapes_equal(const gs_param_spec *a, const gs_param_spec *b) {
    return a->num_dims == b->num_dims &&
           memcmp(a->shape, b->shape, (size_t)a->num_dims * sizeof a->shape[0]) == 0;
}

static gs_status compare_specs(const gs_param_spec *ours, const gs_param_spec *theirs,
                               size_t index) {
    if (strcmp(ours->name, theirs->name) != 0)
        return gs_error(GS_FAILED_PRECONDITION, "parameter %zu: name \"%.60s\" against \"%.60s\"",
                        index, ours->name, theirs->name);
    if (!shapes_equal(ours, theirs)) {
        char our_shape[SHAPE_TEXT_LEN], their_shape[SHAPE_TEXT_LEN];
        return gs_error(GS_FAILED_PRECONDITION, "parameter %zu \"%.60s\": shape %s against %s",
                        index, ours->name, format_shape(our_shape, ours),
                        format_shape(their_shape, theirs));
    }
    if (ours->dtype != theirs->dtype)
        return gs_error(GS_FAILED_PRECONDITION, "parameter %zu \"%.60s\": dtype %s against %s",
                        index, ours->name, gs_dtype_name(ours->dtype),
                        gs_dtype_name(theirs->dtype));
    if (ours->sparse != theirs->sparse)
        return gs_error(GS_FAILED_PRECONDITION, "parameter %zu \"%.60s\": gradient %s against %s",
                        index, ours->name, ours->sparse ? "sparse" : "dense",
                        theirs->sparse ? "sparse" : "dense");
    return gs_ok();
}

gs_status gs_param_specs_compare(const gs_param_spec *ours, size_t num_ours,
                                 const gs_param_spec *theirs, size_t num_theirs) {
    size_t num_common = num_ours < num_theirs ? num_ours : num_theirs;
    for (size_t i = 0; i < num_common; i++) GS_TRY(compare_specs(&ours[i], &theirs[i], i));
    if (num_ours == num_theirs) return gs_ok();
    const gs_param_spec *extra = num_ours > num_theirs ? &ours[num_common] : &theirs[num_common];
    return gs_error(GS_FAILED_PRECONDITION,
                    "%zu parameters against %zu: parameter %zu \"%.60s\" has no counterpart",
                    num_ours, num_theirs, num_common, extra->name);
}
