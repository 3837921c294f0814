#include "gradsync/sparse/sparse_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/failpoint.h"
#include "core/memory.h"
#include "core/options.h"
#include "gradsync/sparse/row_messages.h"
#include "gradsync/sparse/row_places.h"
#include "gradsync/sparse/row_set.h"
#include "gradsync/sparse/row_squares.h"
#include "gradsync/sparse/rows_check.h"

// From here on padding to the longest part costs more than a broadcast for each rank.
#define MOST_PADDING 1.25

typedef enum rows_phase {
    PHASE_IDLE = 0,
    PHASE_OPEN,
    PHASE_INDICES_POSTED,
    PHASE_ROWS_POSTED,
} rows_phase;

struct gs_sparse_rows {
    gs_sparse_rows_options options;
    gs_param_spec param;
    gs_comm *comm;
    int rank, world_size;
    size_t num_rows, columns, most_rows;
    bool listed;  // the union is given once for all
    gs_status failed;

    rows_phase phase;
    int64_t step;
    gs_row_set own;  // rows of this rank, in order of first occurrence
    gs_row_set all;  // union over the ranks, sorted
    gs_row_places places;
    gs_row_messages messages;
    float *own_rows;  // (own.capacity, columns)
    float *sums;      // (all.capacity, columns)
    float *arrived;   // (world, most_rows, columns); NULL when no way gathers
    void *memory;     // owned, or NULL
    gs_row_squares squares;
    gs_work indices_work, rows_work;
    bool in_flight;
    gs_rows_mode way;  // of the step
    size_t stride;     // rows from one rank's part of `arrived` to the next; 0: tight
    double scale;
    gs_sparse_rows_result result;
};

const char *gs_rows_mode_name(gs_rows_mode mode) {
    static const char *const names[] = {"auto", "gather", "owner"};
    return names[mode];
}

static gs_status measure_rows(size_t *bytes, const gs_sparse_rows_options *options,
                              int world_size) {
    gs_rows_memory parts;
    GS_TRY(gs_rows_options_check(options));
    GS_TRY(gs_rows_memory_measure(&parts, options, world_size));
    *bytes = parts.total;
    return gs_ok();
}

gs_status gs_sparse_rows_bytes_sized(size_t *bytes, const gs_sparse_rows_options *options,
                                     size_t options_bytes, int world_size) {
    gs_sparse_rows_options known;
    GS_TRY(gs_options_take(&known, sizeof known, options, options_bytes, "gs_sparse_rows_options"));
    return measure_rows(bytes, &known, world_size);
}

// Both ways take at most what ranks · most_rows rows take; half of the dense volume is "well less".
bool gs_sparse_rows_pays(size_t rows, size_t most_rows, int world_size) {
    return most_rows <= rows / ((size_t)world_size * 2);
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

// What came from another rank names that one.
static gs_status keep_error(gs_sparse_rows *rows, gs_status status) {
    if (!status.code || rows->failed.code) return status;
    if (status.code == GS_ABORTED)
        rows->failed = gs_status_prefix(status, "step %lld: rows of \"%.60s\"",
                                        (long long)rows->step, rows->param.name);
    else
        rows->failed = gs_status_prefix(status, "rank %d, step %lld: rows of \"%.60s\"", rows->rank,
                                        (long long)rows->step, rows->param.name);
    gs_comm_abort(rows->comm, rows->failed.message);
    return rows->failed;
}

static bool is_on_host(const gs_sparse_rows *rows) {
    return gs_device_is_host(rows->options.device);
}

static gs_status alloc_memory(gs_sparse_rows *rows, size_t bytes) {
    if (rows->options.memory) return gs_ok();
    if (is_on_host(rows)) {
        rows->memory = gs_alloc_aligned(bytes, GS_LINE_BYTES);
        return rows->memory ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    }
    return gs_device_alloc(rows->options.device, &rows->memory, bytes + 1);
}

static gs_status alloc_rows(gs_sparse_rows *rows) {
    gs_rows_memory parts;
    GS_TRY(gs_rows_memory_measure(&parts, &rows->options, rows->world_size));
    GS_TRY(alloc_memory(rows, parts.total));
    GS_TRY(gs_row_squares_init(&rows->squares, rows->options.device));
    GS_TRY(gs_row_places_init(&rows->places, rows->options.device));
    char *memory = rows->options.memory ? rows->options.memory : rows->memory;
    GS_TRY(gs_row_messages_init(&rows->messages, rows->most_rows, !rows->listed, rows->world_size));
    rows->own_rows = (float *)memory;
    rows->sums = (float *)(memory + parts.own);
    if (parts.arrived) rows->arrived = (float *)(memory + parts.own + parts.sums);
    GS_TRY(
        gs_row_set_init(&rows->own, rows->num_rows, least(rows->options.max_rows, rows->num_rows)));
    return gs_row_set_init(&rows->all, rows->num_rows,
                           gs_rows_union_capacity(&rows->options, rows->world_size));
}

static gs_status build(gs_sparse_rows *rows, gs_deadline deadline) {
    const gs_sparse_rows_options *options = &rows->options;
    GS_TRY(gs_rows_options_check(options));
    rows->num_rows = (size_t)rows->param.shape[0];
    rows->columns = gs_rows_columns(&rows->param);
    rows->most_rows = gs_rows_most(options);
    rows->listed = options->indices != NULL;
    GS_TRY(alloc_rows(rows));
    GS_TRY(gs_rows_options_compare(options, rows->comm, deadline));
    for (size_t i = 0; rows->listed && i < options->num_indices; i++)
        gs_row_set_add(&rows->all, (int32_t)options->indices[i]);
    return gs_ok();
}

// The others wait for this rank.
static gs_status tell_others(gs_comm *comm, gs_status status) {
    status = gs_status_prefix(status, "rank %d", gs_comm_rank(comm));
    gs_comm_abort(comm, status.message);
    return status;
}

static gs_status create_rows(gs_sparse_rows **out, const gs_sparse_rows_options *options,
                             gs_comm *comm, gs_deadline deadline) {
    *out = NULL;
    gs_sparse_rows *rows = calloc(1, sizeof *rows);
    if (!rows) {
        return tell_others(comm, gs_error(GS_RESOURCE_EXHAUSTED, "sparse rows: out of memory"));
    }
    rows->options = *options;
    rows->param = *options->param;
    rows->options.param = &rows->param;
    rows->comm = comm;
    rows->rank = gs_comm_rank(comm);
    rows->world_size = gs_comm_world_size(comm);
    rows->step = -1;
    gs_status status = keep_error(rows, build(rows, deadline));
    if (status.code) {
        gs_sparse_rows_destroy(rows);
        return status;
    }
    // The caller's list has been taken in.
    rows->options.indices = NULL;
    *out = rows;
    return gs_ok();
}

gs_status gs_sparse_rows_create_sized(gs_sparse_rows **out, const gs_sparse_rows_options *options,
                                      size_t options_bytes, gs_comm *comm, gs_deadline deadline) {
    gs_sparse_rows_options known;
    gs_status status =
        gs_options_take(&known, sizeof known, options, options_bytes, "gs_sparse_rows_options");
    if (status.code) {
        *out = NULL;
        return tell_others(comm, status);
    }
    return create_rows(out, &known, comm, deadline);
}

void gs_sparse_rows_destroy(gs_sparse_rows *rows) {
    if (!rows) return;
    if (rows->in_flight) {
        gs_status reason = gs_error(
            GS_ABORTED, "rank %d, step %lld: rows of \"%.60s\" were destroyed within the step",
            rows->rank, (long long)rows->step, rows->param.name);
        gs_comm_let_go(rows->comm, reason.message);
    }
    gs_row_set_release(&rows->own);
    gs_row_set_release(&rows->all);
    gs_device *device = rows->options.device;
    gs_row_places_release(&rows->places);
    gs_row_squares_release(&rows->squares);
    gs_row_messages_release(&rows->messages);
    if (is_on_host(rows))
        free(rows->memory);
    else
        gs_device_free(device, rows->memory);
    free(rows);
}

static gs_kernels const *kernels_of(const gs_sparse_rows *rows) {
    return gs_device_kernels(rows->options.device);
}

static gs_stream *stream_of(const gs_sparse_rows *rows) {
    return gs_device_stream(rows->options.device);
}

gs_status gs_sparse_rows_begin(gs_sparse_rows *rows, int64_t step) {
    if (rows->failed.code) return rows->failed;
    if (rows->phase != PHASE_IDLE)
        return keep_error(rows,
                          gs_error(GS_FAILED_PRECONDITION, "a step is open, finish it first"));
    rows->step = step;
    rows->phase = PHASE_OPEN;
    gs_row_set_clear(&rows->own);
    if (!rows->listed) gs_row_set_clear(&rows->all);
    rows->result = (gs_sparse_rows_result){.columns = rows->columns};
    rows->indices_work = rows->rows_work = (gs_work){0};
    // A GPU clears all rows that may come at once, the host each row when it comes.
    if (!is_on_host(rows))
        kernels_of(rows)->clear(stream_of(rows), rows->own_rows,
                                rows->own.capacity * rows->columns * sizeof(float));
    return gs_ok();
}

static int64_t index_at(const void *indices, gs_dtype dtype, size_t i) {
    return dtype == GS_I64 ? ((const int64_t *)indices)[i] : ((const int32_t *)indices)[i];
}

static gs_status add_new_row(gs_sparse_rows *rows, int32_t *place, int64_t index) {
    if (rows->phase != PHASE_OPEN)
        return gs_error(GS_FAILED_PRECONDITION,
                        "row %lld was not touched before indices were posted", (long long)index);
    if (rows->listed && rows->all.place_of[index] < 0)
        return gs_error(GS_INVALID_ARGUMENT, "row %lld is not in the list of indices",
                        (long long)index);
    *place = gs_row_set_add(&rows->own, (int32_t)index);
    if (*place < 0)
        return gs_error(GS_RESOURCE_EXHAUSTED, "more than max_rows (%zu) rows in a step",
                        rows->options.max_rows);
    if (is_on_host(rows))
        kernels_of(rows)->fill(stream_of(rows), rows->own_rows + (size_t)*place * rows->columns,
                               0.0f, rows->columns);
    return gs_ok();
}

static gs_status place_row(gs_sparse_rows *rows, int32_t *place, const void *indices,
                           gs_dtype dtype, size_t i) {
    int64_t index = index_at(indices, dtype, i);
    if (index < 0 || (uint64_t)index >= rows->num_rows)
        return gs_error(GS_INVALID_ARGUMENT, "index %zu is %lld, not in [0, %zu)", i,
                        (long long)index, rows->num_rows);
    *place = rows->own.place_of[index];
    return *place >= 0 ? gs_ok() : add_new_row(rows, place, index);
}

static gs_status check_adding(const gs_sparse_rows *rows, gs_dtype index_dtype) {
    if (rows->failed.code) return rows->failed;
    if (rows->phase != PHASE_OPEN && rows->phase != PHASE_INDICES_POSTED)
        return gs_error(GS_FAILED_PRECONDITION, "rows are added between begin and post");
    if (index_dtype != GS_I32 && index_dtype != GS_I64)
        return gs_error(GS_INVALID_ARGUMENT, "indices of %s", gs_dtype_name(index_dtype));
    return gs_ok();
}

static gs_status touch_rows(gs_sparse_rows *rows, const void *indices, gs_dtype dtype, size_t num) {
    GS_TRY(check_adding(rows, dtype));
    int32_t place;
    for (size_t i = 0; i < num; i++) GS_TRY(place_row(rows, &place, indices, dtype, i));
    return gs_ok();
}

gs_status gs_sparse_rows_touch(gs_sparse_rows *rows, const void *indices, gs_dtype index_dtype,
                               size_t num) {
    return keep_error(rows, touch_rows(rows, indices, index_dtype, num));
}

static gs_status add_values(gs_sparse_rows *rows, const void *indices, gs_dtype dtype,
                            const float *values, size_t num) {
    GS_TRY(check_adding(rows, dtype));
    int32_t *places;
    for (size_t first = 0; first < num; first += GS_NUM_ROW_PLACES) {
        size_t count = least(num - first, GS_NUM_ROW_PLACES);
        GS_TRY(gs_row_places_take(&rows->places, &places));
        for (size_t i = 0; i < count; i++)
            GS_TRY(place_row(rows, &places[i], indices, dtype, first + i));
        kernels_of(rows)->add_rows(stream_of(rows), rows->own_rows, places,
                                   values + first * rows->columns, count, rows->columns);
    }
    return gs_ok();
}

gs_status gs_sparse_rows_add(gs_sparse_rows *rows, const void *indices, gs_dtype index_dtype,
                             const float *values, size_t num) {
    return keep_error(rows, add_values(rows, indices, index_dtype, values, num));
}

static gs_status post_indices(gs_sparse_rows *rows, int64_t samples) {
    if (rows->failed.code) return rows->failed;
    if (rows->phase != PHASE_OPEN)
        return gs_error(GS_FAILED_PRECONDITION, "indices are posted once, after begin");
    if (samples < 0) return gs_error(GS_INVALID_ARGUMENT, "samples: %lld", (long long)samples);
    GS_TRY(gs_row_messages_post(&rows->messages, &rows->indices_work, &rows->own, samples,
                                rows->comm, rows->step));
    rows->in_flight = true;
    rows->phase = PHASE_INDICES_POSTED;
    rows->result.wire_bytes = gs_row_messages_bytes(&rows->messages);
    rows->result.index_bytes = rows->result.wire_bytes * (size_t)(rows->world_size - 1);
    return gs_ok();
}

gs_status gs_sparse_rows_post_indices(gs_sparse_rows *rows, int64_t samples) {
    return keep_error(rows, post_indices(rows, samples));
}

static size_t count_of(const gs_sparse_rows *rows, int rank) {
    return gs_row_messages_count(&rows->messages, rank);
}

static double scale_of_step(const gs_sparse_rows *rows) {
    const gs_sparse_rows_options *options = &rows->options;
    switch (options->op) {
    case GS_SUM:
        return 1;
    case GS_SAMPLE_MEAN:
        return rows->result.samples > 0 ? 1.0 / (double)rows->result.samples : 1;
    default:
        return 1.0 / (options->divisor > 0 ? options->divisor : rows->world_size);
    }
}

// Bytes that a rank takes from the others: by gathering what they have, by reducing the union
// 2·(N-1)/N of it. A function of what every rank knows.
static gs_rows_mode choose_way(const gs_sparse_rows *rows) {
    if (rows->options.mode != GS_ROWS_AUTO || !rows->arrived)
        return rows->arrived && rows->options.mode != GS_ROWS_OWNER ? GS_ROWS_GATHER
                                                                    : GS_ROWS_OWNER;
    size_t sum = 0;
    for (int r = 0; r < rows->world_size; r++) sum += count_of(rows, r);
    return sum <= 2 * rows->all.count ? GS_ROWS_GATHER : GS_ROWS_OWNER;
}

static gs_status post_part(gs_sparse_rows *rows, gs_collective_kind kind, const float *send,
                           float *recv, size_t num_rows, int root) {
    gs_collective collective = {.kind = kind,
                                .send = send,
                                .recv = recv,
                                .count = num_rows * rows->columns,
                                .dtype = GS_FP32,
                                .root = root,
                                .step = rows->step,
                                .bucket = -1};
    if (kind == GS_ALLREDUCE || kind == GS_REDUCE) {
        collective.op = GS_OP_SUM;
        collective.scale = rows->scale;
    }
    return gs_comm_post(rows->comm, &rows->rows_work, &collective);
}

// Parts of nearly equal length in one all-gather, padded to the longest; else each by itself.
static gs_status post_gather(gs_sparse_rows *rows) {
    size_t sum = 0, longest = 0, num_ranks = (size_t)rows->world_size;
    for (int r = 0; r < rows->world_size; r++) {
        size_t count = count_of(rows, r);
        sum += count;
        if (count > longest) longest = count;
    }
    size_t row_bytes = rows->columns * sizeof(float);
    if ((double)(longest * num_ranks) <= MOST_PADDING * (double)sum) {
        rows->stride = longest;
        rows->result.row_bytes = longest * (num_ranks - 1) * row_bytes;
        rows->result.wire_bytes += longest * row_bytes;
        return post_part(rows, GS_ALLGATHER, rows->own_rows, rows->arrived, longest, 0);
    }
    rows->stride = 0;
    rows->result.row_bytes = (sum - rows->own.count) * row_bytes;
    rows->result.wire_bytes += rows->own.count * row_bytes;
    float *at = rows->arrived;
    for (int r = 0; r < rows->world_size; r++) {
        size_t count = count_of(rows, r);
        const float *send = r == rows->rank ? rows->own_rows : NULL;
        if (count) GS_TRY(post_part(rows, GS_BROADCAST, send, at, count, r));
        at += count * rows->columns;
    }
    return gs_ok();
}

// sums[place of indices[i] in the union] += in[i]
static gs_status add_to_sums(gs_sparse_rows *rows, const int32_t *indices, const float *in,
                             size_t num_rows) {
    int32_t *places;
    for (size_t first = 0; first < num_rows; first += GS_NUM_ROW_PLACES) {
        size_t count = least(num_rows - first, GS_NUM_ROW_PLACES);
        GS_TRY(gs_row_places_take(&rows->places, &places));
        for (size_t i = 0; i < count; i++) places[i] = rows->all.place_of[indices[first + i]];
        kernels_of(rows)->add_rows(stream_of(rows), rows->sums, places, in + first * rows->columns,
                                   count, rows->columns);
    }
    return gs_ok();
}

// Places in the union of the rows that `rank` owns start here.
static size_t first_owned(const gs_sparse_rows *rows, int rank) {
    int64_t row = (int64_t)rows->num_rows * rank / rows->world_size;
    return gs_row_set_lower_bound(&rows->all, row);
}

static gs_status post_owner(gs_sparse_rows *rows) {
    size_t num_rows = rows->all.count, row_bytes = rows->columns * sizeof(float);
    size_t others = (size_t)(rows->world_size - 1);
    kernels_of(rows)->fill(stream_of(rows), rows->sums, 0.0f, num_rows * rows->columns);
    GS_TRY(add_to_sums(rows, rows->own.rows, rows->own_rows, rows->own.count));
    rows->result.wire_bytes += num_rows * row_bytes;
    if (!rows->options.stay_with_owner) {
        rows->result.row_bytes = 2 * num_rows * row_bytes * others / (size_t)rows->world_size;
        return post_part(rows, GS_ALLREDUCE, rows->sums, rows->sums, num_rows, 0);
    }
    for (int owner = 0; owner < rows->world_size; owner++) {
        size_t first = first_owned(rows, owner), end = first_owned(rows, owner + 1);
        float *part = rows->sums + first * rows->columns;
        if (owner == rows->rank) rows->result.row_bytes = (end - first) * row_bytes * others;
        if (end > first)
            GS_TRY(post_part(rows, GS_REDUCE, part, owner == rows->rank ? part : NULL, end - first,
                             owner));
    }
    return gs_ok();
}

// With the rows, by a caller who has not said how many samples there are.
static gs_status post_indices_late(gs_sparse_rows *rows) {
    if (rows->options.op == GS_SAMPLE_MEAN)
        return gs_error(GS_FAILED_PRECONDITION, "a sample mean wants post_indices with samples");
    return post_indices(rows, 0);
}

static gs_status post_rows(gs_sparse_rows *rows, gs_deadline deadline) {
    if (rows->failed.code) return rows->failed;
    if (rows->phase == PHASE_OPEN) GS_TRY(post_indices_late(rows));
    if (rows->phase != PHASE_INDICES_POSTED)
        return gs_error(GS_FAILED_PRECONDITION, "rows are posted once, after begin");
    GS_TRY(gs_comm_wait(rows->comm, rows->indices_work, deadline));
    GS_FAILPOINT("sparse_rows.post");
    GS_TRY(gs_row_messages_read(&rows->messages, &rows->result.samples, &rows->all));
    rows->way = choose_way(rows);
    rows->scale = scale_of_step(rows);
    if (rows->all.count && rows->columns)
        GS_TRY(rows->way == GS_ROWS_GATHER ? post_gather(rows) : post_owner(rows));
    rows->phase = PHASE_ROWS_POSTED;
    return gs_ok();
}

gs_status gs_sparse_rows_post(gs_sparse_rows *rows, gs_deadline deadline) {
    return keep_error(rows, post_rows(rows, deadline));
}

static gs_status add_arrived(gs_sparse_rows *rows) {
    size_t count = rows->all.count * rows->columns;
    kernels_of(rows)->fill(stream_of(rows), rows->sums, 0.0f, count);
    const float *at = rows->arrived;
    for (int r = 0; r < rows->world_size; r++) {
        GS_TRY(
            add_to_sums(rows, gs_row_messages_indices(&rows->messages, r), at, count_of(rows, r)));
        at += (rows->stride ? rows->stride : count_of(rows, r)) * rows->columns;
    }
    if (rows->scale != 1)
        kernels_of(rows)->scale(stream_of(rows), rows->sums, rows->sums, (float)rows->scale, count);
    return gs_ok();
}

static gs_status finish_rows(gs_sparse_rows *rows, gs_deadline deadline) {
    if (rows->failed.code) return rows->failed;
    if (rows->phase == PHASE_OPEN || rows->phase == PHASE_INDICES_POSTED)
        GS_TRY(post_rows(rows, deadline));
    if (rows->phase != PHASE_ROWS_POSTED)
        return gs_error(GS_FAILED_PRECONDITION, "no step is open");
    GS_FAILPOINT("sparse_rows.finish");
    if (rows->rows_work.sequence) GS_TRY(gs_comm_wait(rows->comm, rows->rows_work, deadline));
    rows->in_flight = false;
    if (rows->way == GS_ROWS_GATHER) GS_TRY(add_arrived(rows));
    size_t first = 0, end = rows->all.count;
    if (rows->options.stay_with_owner) {
        first = first_owned(rows, rows->rank);
        end = first_owned(rows, rows->rank + 1);
    }
    gs_sparse_rows_result *result = &rows->result;
    result->indices = rows->all.rows + first;
    result->rows = rows->sums + first * rows->columns;
    result->num_rows = end - first;
    result->num_own = rows->own.count;
    result->mode = rows->way;
    rows->phase = PHASE_IDLE;
    GS_TRY(gs_row_squares_take(&rows->squares, &result->squares, result->rows,
                               result->num_rows * rows->columns, deadline));
    result->nonfinite = isnan(result->squares);
    return gs_ok();
}

gs_status gs_sparse_rows_finish(gs_sparse_rows *rows, gs_sparse_rows_result *result,
                                gs_deadline deadline) {
    gs_status status = keep_error(rows, finish_rows(rows, deadline));
    *result = rows->result;
    return status;
}

gs_status gs_sparse_rows_add_to(gs_sparse_rows *rows, float *dense) {
    const gs_sparse_rows_result *result = &rows->result;
    int32_t *places;
    for (size_t first = 0; first < result->num_rows; first += GS_NUM_ROW_PLACES) {
        size_t count = least(result->num_rows - first, GS_NUM_ROW_PLACES);
        GS_TRY(gs_row_places_take(&rows->places, &places));
        memcpy(places, result->indices + first, count * sizeof *places);
        kernels_of(rows)->add_rows(stream_of(rows), dense, places,
                                   result->rows + first * rows->columns, count, rows->columns);
    }
    return gs_ok();
}
