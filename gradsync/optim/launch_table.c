#include "gradsync/optim/launch_table.h"

#include "core/memory.h"

#define OLD_LAUNCH_SECONDS 60.0  // a launch of two steps ago that has not begun: the device hangs

static gs_status alloc_table(gs_launch_table *table, size_t bytes) {
    void *memory;
    int num_tables = gs_device_is_host(table->device) ? 1 : 2;
    for (int i = 0; i < num_tables; i++) {
        GS_TRY(gs_device_alloc_pinned(table->device, &memory, bytes));
        table->items[i] = memory;
        if (num_tables > 1) GS_TRY(gs_event_create(&table->copied[i], table->device, false));
    }
    if (num_tables == 1) return gs_ok();
    GS_TRY(gs_device_alloc(table->device, &memory, bytes));
    table->resident = memory;
    return gs_ok();
}

gs_status gs_launch_table_init(gs_launch_table *table, size_t max_items, gs_device *device) {
    *table = (gs_launch_table){.device = device, .max_items = max_items};
    size_t bytes;
    if (!gs_bytes_of(&bytes, max_items + 1, sizeof **table->items))
        return gs_error(GS_RESOURCE_EXHAUSTED, "a launch of %zu parameters does not fit", max_items);
    return alloc_table(table, bytes);
}

void gs_launch_table_release(gs_launch_table *table) {
    if (!table->device) return;
    for (int i = 0; i < 2; i++) {
        gs_event_destroy(table->copied[i]);
        gs_device_free_pinned(table->device, table->items[i]);
    }
    gs_device_free(table->device, table->resident);
    *table = (gs_launch_table){0};
}

static gs_status turn_table(gs_launch_table *table) {
    bool copied;
    table->writing ^= 1;
    table->num_taken = 0;
    GS_TRY(gs_event_query(table->copied[table->writing], &copied));
    if (copied) return gs_ok();
    return gs_stream_wait(gs_device_stream(table->device),
                          gs_deadline_in_seconds(OLD_LAUNCH_SECONDS));
}

gs_status gs_launch_table_open(gs_launch_table *table, size_t most_items, gs_adamw_item **items) {
    if (table->resident && most_items > table->max_items - table->num_taken)
        GS_TRY(turn_table(table));
    *items = table->items[table->writing] + table->num_taken;
    return gs_ok();
}

void gs_launch_table_run(gs_launch_table *table, size_t num_items, const gs_adamw *step) {
    const gs_kernels *kernels = gs_device_kernels(table->device);
    gs_stream *stream = gs_device_stream(table->device);
    const gs_adamw_item *items = table->items[table->writing] + table->num_taken;
    if (!num_items) return;
    if (table->resident) {
        kernels->copy(stream, table->resident, items, num_items * sizeof *items);
        gs_event_record(table->copied[table->writing], stream);
        items = table->resident;
        table->num_taken += num_items;
    }
    kernels->adamw_many(stream, items, num_items, step);
}
