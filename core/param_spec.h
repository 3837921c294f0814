// A parameter as all ranks know it: name, dtype, shape; and the digest of a list of them.
#ifndef CORE_PARAM_SPEC_H
#define CORE_PARAM_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/digest.h"
#include "core/dtype.h"
#include "core/status.h"

GS_BEGIN_DECLS

#define GS_MAX_DIMS 8
#define GS_PARAM_NAME_LEN 128

typedef struct gs_param_spec {
    char name[GS_PARAM_NAME_LEN];
    gs_dtype dtype;
    int num_dims;  // 0 is a scalar
    int64_t shape[GS_MAX_DIMS];
    bool sparse;  // its gradient comes as rows of the first dimension; a bucket of its own
} gs_param_spec;

// A spec from a printf-like name and up to two dimensions (0 means there is none).
gs_param_spec gs_param_spec_make(gs_dtype dtype, int64_t rows, int64_t cols, const char *name, ...)
    GS_PRINTF(4, 5);

size_t gs_param_spec_count(const gs_param_spec *spec);  // elements
size_t gs_param_spec_bytes(const gs_param_spec *spec);
size_t gs_param_spec_grad_bytes(const gs_param_spec *spec);

// INVALID_ARGUMENT for an empty or doubled name, a dtype unset, a negative or overflowing shape, a
// sparse gradient without a dimension.
GS_NODISCARD gs_status gs_param_specs_check(const gs_param_spec *specs, size_t num_specs);

// Equal for equal lists, whatever lies in the bytes behind names and dimensions.
gs_digest gs_param_specs_digest(const gs_param_spec *specs, size_t num_specs);

// The first difference of two lists in words, e.g. `parameter 17 "fc3.weight": shape [10,64]
// against [64,10]`; an ok status when there is none.
GS_NODISCARD gs_status gs_param_specs_compare(const gs_param_spec *ours, size_t num_ours,
                                              const gs_param_spec *theirs, size_t num_theirs);

GS_END_DECLS

#endif
