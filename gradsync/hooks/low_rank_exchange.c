#include "gradsync/hooks/low_rank_exchange.h"

#include <string.h>

#include "core/memory.h"
#include "gradsync/comm/work_stream.h"
#include "gradsync/hooks/hook_calls.h"

static gs_status alloc_table(void **table, gs_device *device, size_t num_items, size_t item_bytes) {
    size_t bytes;
    if (!gs_bytes_of(&bytes, num_items + 1, item_bytes))
        return gs_error(GS_RESOURCE_EXHAUSTED, "tables of %zu matrices do not fit", num_items);
    return gs_device_alloc_pinned(device, table, bytes);
}

gs_status gs_low_rank_tables_init(gs_low_rank_tables *tables, size_t num_items, size_t num_rows,
                                  gs_device *device) {
    *tables = (gs_low_rank_tables){.device = device, .num_items = num_items, .num_rows = num_rows};
    void *table;
    GS_TRY(alloc_table(&table, device, num_items, sizeof *tables->items));
    tables->items = table;
    GS_TRY(alloc_table(&table, device, num_items, sizeof *tables->p_items));
    tables->p_items = table;
    GS_TRY(alloc_table(&table, device, num_items, sizeof *tables->q_items));
    tables->q_items = table;
    GS_TRY(alloc_table(&table, device, num_rows, sizeof *tables->row_squares));
    tables->row_squares = table;
    return gs_ok();
}

void gs_low_rank_tables_clear(gs_low_rank_tables *tables) {
    tables->items_taken = tables->rows_taken = 0;
}

void gs_low_rank_tables_release(gs_low_rank_tables *tables) {
    if (!tables->device) return;
    gs_device_free_pinned(tables->device, tables->items);
    gs_device_free_pinned(tables->device, tables->p_items);
    gs_device_free_pinned(tables->device, tables->q_items);
    gs_device_free_pinned(tables->device, tables->row_squares);
    *tables = (gs_low_rank_tables){0};
}

gs_low_rank_wire gs_low_rank_wire_of(const gs_hook_setup *setup) {
    bool on_host = setup->device && gs_device_is_host(setup->device);
    return (gs_low_rank_wire){.dtype = setup->wire_dtype,
                              .needs_memory = setup->wire_dtype && !on_host};
}

gs_status gs_low_rank_wire_place(void **memory, gs_low_rank_wire wire, const gs_hook_plan *plan,
                                 size_t count) {
    *memory = NULL;
    if (!wire.needs_memory || !count) return gs_ok();
    return gs_hook_place(memory, plan, count * gs_dtype_bytes(wire.dtype));
}

gs_status gs_low_rank_wire_sum(gs_low_rank_wire wire, void *memory, void *data, size_t count,
                               double scale, const gs_hook_bucket *bucket, gs_hook_work *work) {
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = count,
                         .dtype = bucket->dtype,
                         .op = GS_OP_SUM,
                         .scale = scale};
    if (!count) return gs_ok();
    if (wire.dtype) {
        sum.scale = 0;
        sum.wire_dtype = wire.dtype;
        sum.wire_scale = (float)scale;
        sum.wire = memory;
    }
    return gs_hook_post(work, bucket, &sum);
}

gs_status gs_low_rank_send_reserved(const gs_hook_bucket *bucket, gs_hook_work *work) {
    char *reserved = (char *)bucket->data + bucket->count * gs_dtype_bytes(bucket->dtype);
    return gs_low_rank_wire_sum((gs_low_rank_wire){0}, NULL, reserved, bucket->reserved_count,
                                bucket->scale, bucket, work);
}

gs_status gs_low_rank_send_plain(gs_low_rank_wire wire, void *memory, const gs_hook_bucket *bucket,
                                 gs_hook_work *work) {
    size_t count = bucket->count;
    if (wire.dtype)
        GS_TRY(gs_low_rank_send_reserved(bucket, work));
    else
        count += bucket->reserved_count;
    return gs_low_rank_wire_sum(wire, memory, bucket->data, count, bucket->scale, bucket, work);
}

static size_t rank_of(gs_low_rank shape) {
    return (size_t)shape.rank;
}

size_t gs_low_rank_exchange_bytes(gs_low_rank shape, gs_dtype dtype, gs_low_rank_wire wire) {
    const size_t element_bytes = gs_dtype_bytes(dtype);
    const size_t p_count = shape.rows * rank_of(shape), q_count = shape.cols * rank_of(shape);
    size_t bytes = gs_round_up(p_count * element_bytes, GS_HOOK_PLACE_BYTES) +
                   2 * gs_round_up(q_count * element_bytes, GS_HOOK_PLACE_BYTES);
    if (wire.needs_memory)
        bytes += gs_round_up(p_count * gs_dtype_bytes(wire.dtype), GS_HOOK_PLACE_BYTES) +
                 gs_round_up(q_count * gs_dtype_bytes(wire.dtype), GS_HOOK_PLACE_BYTES);
    return bytes;
}

static gs_status place_factors(gs_low_rank_exchange *exchange, const gs_hook_plan *plan,
                               gs_dtype dtype) {
    const size_t element_bytes = gs_dtype_bytes(dtype);
    GS_TRY(gs_hook_place(&exchange->p, plan, exchange->p_count * element_bytes));
    GS_TRY(gs_hook_place(&exchange->q, plan, exchange->q_count * element_bytes));
    GS_TRY(gs_hook_place(&exchange->local_q, plan, exchange->q_count * element_bytes));
    GS_TRY(gs_low_rank_wire_place(&exchange->p_wire, exchange->wire, plan, exchange->p_count));
    return gs_low_rank_wire_place(&exchange->q_wire, exchange->wire, plan, exchange->q_count);
}

gs_status gs_low_rank_exchange_add(gs_low_rank_exchange *exchange, gs_low_rank_tables *tables,
                                   gs_low_rank shape) {
    const size_t taken = tables->items_taken;
    if (taken == tables->num_items || shape.rows > tables->num_rows - tables->rows_taken)
        return gs_error(GS_INTERNAL, "more matrices than its tables have room for");
    double *row_squares = tables->row_squares + tables->rows_taken;
    tables->items_taken++;
    tables->rows_taken += shape.rows;
    memset(row_squares, 0, shape.rows * sizeof *row_squares);
    if (!exchange->num_items) {
        exchange->items = tables->items + taken;
        exchange->p_items = tables->p_items + taken;
        exchange->q_items = tables->q_items + taken;
    }
    exchange->items[exchange->num_items++] = (gs_low_rank_item){
        .rows = shape.rows, .cols = shape.cols, .rank = shape.rank, .row_squares = row_squares};
    exchange->p_count += shape.rows * rank_of(shape);
    exchange->q_count += shape.cols * rank_of(shape);
    return gs_ok();
}

gs_status gs_low_rank_exchange_place(gs_low_rank_exchange *exchange, const gs_hook_plan *plan,
                                     gs_dtype dtype) {
    if (!exchange->num_items) return gs_ok();
    GS_TRY(place_factors(exchange, plan, dtype));
    char *p = exchange->p, *q = exchange->q, *local_q = exchange->local_q;
    for (size_t i = 0; i < exchange->num_items; i++) {
        gs_low_rank_item *item = &exchange->items[i];
        const size_t line_bytes = (size_t)item->rank * gs_dtype_bytes(dtype);
        item->p = p;
        item->q = q;
        item->local_q = local_q;
        exchange->p_items[i] =
            (gs_orthogonal_item){.matrix = p, .rows = item->rows, .rank = item->rank};
        exchange->q_items[i] =
            (gs_orthogonal_item){.matrix = q, .rows = item->cols, .rank = item->rank};
        p += item->rows * line_bytes;
        q += item->cols * line_bytes;
        local_q += item->cols * line_bytes;
    }
    return gs_ok();
}

// The stream is that on which the hook made q. With an epsilon P has the scale of gradients as they
// came, which it is measured against.
gs_status gs_low_rank_send_p(const gs_low_rank_exchange *exchange,
                             const gs_low_rank_options *options, const gs_hook_bucket *bucket,
                             gs_hook_work *work) {
    if (!exchange->num_items) return gs_ok();
    gs_stream *stream = gs_work_stream_beside_compute(bucket->comm).stream;
    const gs_kernels *kernels = gs_device_kernels(bucket->device);
    kernels->orthogonalize_many(stream, exchange->q_items, exchange->num_items, bucket->dtype,
                                options->epsilon);
    kernels->low_rank_project(stream, exchange->items, exchange->num_items, bucket->dtype,
                              bucket->scale, bucket->grad_unit);
    return gs_low_rank_wire_sum(exchange->wire, exchange->p_wire, exchange->p, exchange->p_count,
                                options->epsilon != 0 ? 1 / bucket->scale : 1, bucket, work);
}

// What came is behind the communicator's stream, and nothing on the compute stream touches it.
gs_status gs_low_rank_send_q(const gs_low_rank_exchange *exchange,
                             const gs_low_rank_options *options, const gs_hook_bucket *bucket,
                             gs_hook_work *work) {
    if (!exchange->num_items) return gs_ok();
    gs_stream *stream = gs_work_stream_beside_compute(bucket->comm).stream;
    const gs_kernels *kernels = gs_device_kernels(bucket->device);
    kernels->orthogonalize_many(stream, exchange->p_items, exchange->num_items, bucket->dtype,
                                options->epsilon);
    kernels->low_rank_back_project(stream, exchange->items, exchange->num_items, bucket->dtype);
    if (options->error_feedback)
        kernels->copy(stream, exchange->local_q, exchange->q,
                      exchange->q_count * gs_dtype_bytes(bucket->dtype));
    return gs_low_rank_wire_sum(exchange->wire, exchange->q_wire, exchange->q, exchange->q_count, 1,
                                bucket, work);
}

void gs_low_rank_rebuild(const gs_low_rank_exchange *exchange, const gs_hook_bucket *bucket) {
    if (!exchange->num_items) return;
    gs_device_kernels(bucket->device)
        ->low_rank_rebuild(gs_device_stream(bucket->device), exchange->items, exchange->num_items,
                           bucket->dtype, 1 / bucket->grad_unit);
}

double gs_low_rank_residual_squares(const gs_low_rank_exchange *exchange) {
    double sum = 0;
    for (size_t i = 0; i < exchange->num_items; i++)
        for (size_t r = 0; r < exchange->items[i].rows; r++)
            sum += exchange->items[i].row_squares[r];
    return sum;
}
