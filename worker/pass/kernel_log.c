#include "worker/pass/kernel_log.h"

#include "core/log.h"
#include "kernels/kernel_times.h"

#define WAIT_SECONDS 120.0

gs_status gs_kernel_log_begin(gs_device *device, int64_t step) {
    return gs_kernel_times_step_of(device) == step ? gs_kernel_times_begin(device) : gs_ok();
}

static void log_row(const gs_kernel_time *row, const gs_kernel_table *table, const gs_kernel_log_place *place) {
    char shape[2 * sizeof row->shape + 3];
    double ns = row->ns > 0 ? (double)row->ns : 1;
    gs_log_info("kernel time",
                "job=%s rank=%d step=%lld kernel=%s dtype=%s calls=%lld ms=%.3f share=%.4f gb_per_s=%.2f gflop_per_s=%.1f shape=%s",
                place->job, place->rank, (long long)place->step, row->kernel, gs_dtype_name(row->dtype),
                (long long)row->calls, (double)row->ns / 1e6, (double)row->ns / (double)(table->ns ? table->ns : 1),
                row->bytes / ns, row->flops / ns, gs_log_quote(shape, sizeof shape, row->shape));
}

gs_status gs_kernel_log_end(gs_device *device, const gs_kernel_log_place *place) {
    gs_kernel_table table;
    if (!gs_kernel_times_running(device)) return gs_ok();
    GS_TRY(gs_kernel_times_end(&table, device, gs_deadline_in_seconds(WAIT_SECONDS)));
    gs_log_info("kernel times", "job=%s rank=%d step=%lld device=%s rows=%zu ms=%.3f span_ms=%.3f", place->job,
                place->rank, (long long)place->step, gs_device_name(device), table.num_rows, (double)table.ns / 1e6,
                (double)table.span_ns / 1e6);
    for (size_t i = 0; i < table.num_rows; i++) log_row(&table.rows[i], &table, place);
    gs_kernel_table_release(&table);
    return gs_ok();
}
