#include "gradsync/sparse/rows_check.h"

#include <math.h>
#include <string.h>

#include "core/digest.h"
#include "core/memory.h"
#include "gradsync/comm/same_words.h"

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

size_t gs_rows_columns(const gs_param_spec *param) {
    size_t columns = 1;
    for (int d = 1; d < param->num_dims; d++) columns *= (size_t)param->shape[d];
    return columns;
}

static bool gathers(const gs_sparse_rows_options *options) {
    return !options->indices && !options->stay_with_owner && options->mode != GS_ROWS_OWNER;
}

static gs_status check_list(const gs_sparse_rows_options *options) {
    int64_t before = -1;
    for (size_t i = 0; i < options->num_indices; i++) {
        int64_t index = options->indices[i];
        if (index <= before || index >= options->param->shape[0])
            return gs_error(GS_INVALID_ARGUMENT,
                            "indices[%zu] is %lld: wanted ascending numbers below %lld", i,
                            (long long)index, (long long)options->param->shape[0]);
        before = index;
    }
    return gs_ok();
}

gs_status gs_rows_options_check(const gs_sparse_rows_options *options) {
    const gs_param_spec *param = options->param;
    GS_TRY(gs_param_specs_check(param, 1));
    if (param->num_dims < 1)
        return gs_error(GS_INVALID_ARGUMENT, "\"%.60s\" is a scalar, it has no rows", param->name);
    if (param->dtype == GS_FP64 || param->shape[0] > INT32_MAX || options->max_rows > INT32_MAX ||
        options->most_rows > INT32_MAX)
        return gs_error(GS_INVALID_ARGUMENT, "\"%.60s\": rows are fp32, at most 2^31 - 1",
                        param->name);
    if (options->most_rows && options->max_rows > options->most_rows)
        return gs_error(GS_INVALID_ARGUMENT, "max_rows: %zu, most_rows of all ranks: %zu",
                        options->max_rows, options->most_rows);
    if (options->mode < GS_ROWS_AUTO || options->mode > GS_ROWS_OWNER)
        return gs_error(GS_INVALID_ARGUMENT, "mode: %d", (int)options->mode);
    if (options->mode == GS_ROWS_GATHER && (options->stay_with_owner || options->indices))
        return gs_error(GS_INVALID_ARGUMENT, "mode: gather hands every row to every rank, %s",
                        options->indices ? "a list of indices needs none"
                                         : "none stays with its owner");
    if (options->op < GS_MEAN || options->op > GS_SAMPLE_MEAN)
        return gs_error(GS_INVALID_ARGUMENT, "op: %d", (int)options->op);
    if (!isfinite(options->divisor) || options->divisor < 0)
        return gs_error(GS_INVALID_ARGUMENT, "divisor: %g", options->divisor);
    return check_list(options);
}

size_t gs_rows_most(const gs_sparse_rows_options *options) {
    size_t most = options->most_rows ? options->most_rows : options->max_rows;
    return least(most, (size_t)options->param->shape[0]);
}

gs_status gs_rows_options_compare(const gs_sparse_rows_options *options, gs_comm *comm,
                                  gs_deadline deadline) {
    int64_t divisor, list = 0;
    memcpy(&divisor, &options->divisor, sizeof divisor);
    if (options->indices)
        list = (int64_t)gs_hash64(options->indices, options->num_indices * sizeof *options->indices,
                                  1);
    const gs_same_word words[] = {
        {"rows", options->param->shape[0], false},
        {"columns", (int64_t)gs_rows_columns(options->param), false},
        {"most_rows", (int64_t)gs_rows_most(options), false},
        {"mode (auto 0, gather 1, owner 2)", options->mode, false},
        {"stay_with_owner", options->stay_with_owner, false},
        {"op (mean 0, sum 1, sample mean 2)", options->op, false},
        {"divisor", divisor, true},
        {"list of indices", list, true},
    };
    return gs_same_words_check(words, sizeof words / sizeof *words, comm, deadline);
}

size_t gs_rows_union_capacity(const gs_sparse_rows_options *options, int world_size) {
    if (options->indices) return options->num_indices;
    return least(gs_rows_most(options) * (size_t)world_size, (size_t)options->param->shape[0]);
}

static bool bytes_of_rows(size_t *bytes, size_t num_rows, size_t columns) {
    size_t tight;
    *bytes = 0;
    return gs_bytes_of(&tight, num_rows, columns) && gs_bytes_of(&tight, tight, sizeof(float)) &&
           tight <= SIZE_MAX / 4 && gs_add_padded(bytes, tight);
}

gs_status gs_rows_memory_measure(gs_rows_memory *parts, const gs_sparse_rows_options *options,
                                 int world_size) {
    size_t columns = gs_rows_columns(options->param), most = gs_rows_most(options);
    *parts = (gs_rows_memory){0};
    bool fits = bytes_of_rows(&parts->own, most, columns) &&
                bytes_of_rows(&parts->sums, gs_rows_union_capacity(options, world_size), columns);
    if (fits && gathers(options))
        fits = bytes_of_rows(&parts->arrived, most * (size_t)world_size, columns);
    if (!fits || __builtin_add_overflow(parts->own + parts->sums, parts->arrived, &parts->total))
        return gs_error(GS_RESOURCE_EXHAUSTED, "rows of \"%.60s\" do not fit into memory",
                        options->param->name);
    return gs_ok();
}
