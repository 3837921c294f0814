// The record as key=value text.
#include "gradsync/reducer/reducer_record.h"

#include <stdlib.h>

#include "core/log.h"

// A log line takes 2048 bytes: lists are cut so that all keys fit.
#define MOST_ENTRIES 24

static void write_string(gs_strbuf *out, const char *key, const char *value) {
    char text[600];
    gs_strbuf_printf(out, "%s%s=%s", out->len ? " " : "", key,
                     gs_log_quote(text, sizeof text, value));
}

static void write_int(gs_strbuf *out, const char *key, int64_t value) {
    gs_strbuf_printf(out, "%s%s=%lld", out->len ? " " : "", key, (long long)value);
}

static void write_sizes(gs_strbuf *out, const char *key, const uint64_t *bytes, size_t count) {
    gs_strbuf_printf(out, " %s=\"", key);
    for (size_t i = 0; i < count && i < MOST_ENTRIES; i++)
        gs_strbuf_printf(out, "%s%llu", i ? "," : "", (unsigned long long)bytes[i]);
    gs_strbuf_puts(out, count > MOST_ENTRIES ? ",…\"" : "\"");
}

static void write_indices(gs_strbuf *out, const char *key, const size_t *params, size_t count) {
    gs_strbuf_printf(out, " %s=\"", key);
    for (size_t i = 0; i < count && i < MOST_ENTRIES; i++)
        gs_strbuf_printf(out, "%s%zu", i ? "," : "", params[i]);
    gs_strbuf_puts(out, count > MOST_ENTRIES ? ",…\"" : "\"");
}

static void write_identity(gs_strbuf *out, const gs_reducer_record *record) {
    if (record->job[0]) write_string(out, "job", record->job);
    write_int(out, "rank", record->facts.rank);
}

// What is the host's and not the reducer's.
static void write_told(gs_strbuf *out, const gs_record_options *told) {
    if (told->num_replicas) write_int(out, "num_replicas", told->num_replicas);
    if (told->buffers) write_string(out, "buffers", told->buffers);
    if (told->batch_norm) write_string(out, "batch_norm", told->batch_norm);
    if (told->uneven_inputs) write_string(out, "uneven_inputs", told->uneven_inputs);
}

void gs_reducer_record_write_construction(gs_strbuf *out, const gs_reducer_record *record) {
    const gs_record_facts *facts = &record->facts;
    write_identity(out, record);
    write_int(out, "world_size", facts->world_size);
    if (record->model[0]) write_string(out, "model", record->model);
    write_int(out, "num_parameter_tensors", (int64_t)facts->num_params);
    write_int(out, "total_parameter_size_bytes", (int64_t)record->total_param_bytes);
    write_string(out, "dtypes", record->dtypes);
    write_string(out, "device", record->device);
    write_string(out, "backend", facts->backend ? facts->backend : "none");
    write_string(out, "algorithm", facts->algorithm ? facts->algorithm : "none");
    write_string(out, "comm_hook", facts->hook ? facts->hook : "none");
    write_string(out, "op", facts->op ? facts->op : "mean");
    write_string(out, "wire_dtype", facts->wire_dtype ? facts->wire_dtype : "as_bucket");
    write_int(out, "num_shards", facts->num_shards);
    write_int(out, "passes_per_shard", facts->passes_per_shard);
    write_int(out, "exact", facts->exact);
    write_int(out, "unused_is_error", facts->unused_is_error);
    write_int(out, "gradient_as_bucket_view", !facts->separate_grads);
    write_int(out, "static_graph", facts->static_graph);
    write_told(out, &record->told);
    write_int(out, "bucket_cap_bytes", (int64_t)record->bucket_cap_bytes);
    write_int(out, "num_buckets", (int64_t)record->num_buckets);
    write_sizes(out, "bucket_sizes", record->bucket_bytes, record->num_buckets);
    write_int(out, "has_rebuilt_buckets", record->num_rebuilds > 0);
    if (!record->num_rebuilds) return;
    write_int(out, "num_rebuilds", record->num_rebuilds);
    write_sizes(out, "rebuilt_bucket_sizes", record->rebuilt_bucket_bytes,
                record->num_rebuilt_buckets);
    if (record->rebuilt_params)
        write_indices(out, "rebuilt_param_indices", record->rebuilt_params, facts->num_params);
}

void gs_reducer_record_write_environment(gs_strbuf *out, const gs_reducer_record *record) {
    // What changes how ranks find each other, move bytes or compute; those that are set.
    static const char *const variables[] = {
        "GRADSYNC_REDUCER_LOG", "GRADSYNC_FAILPOINTS", "GRADSYNC_STEP_DIGESTS",
        "OMP_NUM_THREADS",      "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE",
        "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME",  "NCCL_DEBUG",
        "NCCL_NTHREADS",        "NCCL_IB_TIMEOUT",     "GLOO_SOCKET_IFNAME"};
    write_identity(out, record);
    write_string(out, "host", record->host);
    write_int(out, "pid", record->pid);
    write_string(out, "backend", record->facts.backend ? record->facts.backend : "none");
    write_string(out, "algorithm", record->facts.algorithm ? record->facts.algorithm : "none");
    write_int(out, "num_threads", record->num_threads);
    write_string(out, "arithmetic", record->arithmetic);
    write_string(out, "level", gs_record_level_name(record->level));
    write_int(out, "sample_every", record->sample_every);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        if (value) write_string(out, variables[i], value);
    }
}

static void write_time(gs_strbuf *out, const char *key, const gs_record_time *time) {
    if (time->last_ns >= 0) gs_strbuf_printf(out, " %s_ns=%lld", key, (long long)time->last_ns);
    if (time->num_samples) gs_strbuf_printf(out, " avg_%s_ns=%.0f", key, time->mean_ns);
}

static void write_slowest_params(gs_strbuf *out, const gs_reducer_record *record) {
    size_t last = record->facts.num_params;
    int64_t last_ns = -1;
    for (size_t i = 0; i < record->facts.num_params; i++) {
        if (record->param_ready_ns[i] <= last_ns) continue;
        last_ns = record->param_ready_ns[i];
        last = i;
    }
    if (last_ns < 0) return;
    write_string(out, "last_ready_parameter", record->facts.params[last].name);
    write_int(out, "last_ready_ns", last_ns);
}

void gs_reducer_record_write_times(gs_strbuf *out, const gs_reducer_record *record) {
    const gs_reduce_stats *last = &record->last;
    write_identity(out, record);
    write_int(out, "step", record->has_error ? record->error_step : record->step);
    write_int(out, "iteration", record->num_steps);
    write_int(out, "samples", record->num_samples);
    write_time(out, "forward_compute_time", &record->forward);
    write_time(out, "backward_compute_time", &record->backward);
    write_time(out, "backward_comm_time", &record->comm);
    write_time(out, "backward_compute_comm_overlap_time", &record->overlap);
    if (record->num_samples) {
        write_int(out, "forward_compute_time_start", last->forward_begin_ns);
        write_int(out, "backward_compute_time_start", last->backward_begin_ns);
        write_int(out, "backward_compute_time_end", last->backward_end_ns);
        write_int(out, "backward_comm_time_start", last->first_launch_ns);
        write_int(out, "backward_comm_time_end", last->end_ns);
        write_int(out, "wait_ns", last->wait_ns);
        write_int(out, "exposed_ns", last->exposed_ns);
        gs_strbuf_printf(out, " overlap_ratio=%.3f", gs_reduce_stats_overlap_ratio(last));
        write_int(out, "order_mismatches", (int64_t)last->ready_order_mismatches);
        write_slowest_params(out, record);
    }
    write_int(out, "unused_parameters", (int64_t)record->num_unused);
    write_int(out, "unused_parameter_size_bytes", (int64_t)record->unused_bytes);
    write_int(out, "can_set_static_graph",
              record->facts.static_graph || (record->num_steps > 1 && record->could_be_static));
    if (record->num_samples)
        write_indices(out, "prev_iteration_grad_ready_order", record->last_ready_order,
                      record->facts.num_params);
    write_int(out, "has_error", record->has_error);
    if (record->has_error) write_string(out, "error", record->error.message);
}

void gs_reducer_record_write_error(gs_strbuf *out, const gs_reducer_record *record) {
    write_identity(out, record);
    write_int(out, "step", record->error_step);
    write_int(out, "iteration", record->num_steps);
    write_string(out, "error", record->error.message);
}
