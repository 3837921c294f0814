#include "gradsync/reducer/reducer_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"

static void log_text(gs_log_level level, const char *event,
                     void (*write)(gs_strbuf *, const gs_reducer_record *),
                     const gs_reducer_record *record) {
    gs_strbuf text = {0};
    write(&text, record);
    gs_log(level, event, "%s", gs_strbuf_text(&text));
    gs_strbuf_release(&text);
}

// "fp32" or "fp32,bf16": each dtype once, in order of appearance.
static void list_dtypes(char *text, size_t text_bytes, const gs_record_facts *facts) {
    bool seen[32] = {false};
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < facts->num_params && used < text_bytes; i++) {
        unsigned dtype = (unsigned)facts->params[i].dtype;
        if (dtype >= 32 || seen[dtype]) continue;
        seen[dtype] = true;
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used ? "," : "",
                                 gs_dtype_name(facts->params[i].dtype));
    }
}

static gs_record_level level_of(const gs_record_options *options) {
    gs_record_level level = GS_RECORD_OFF;
    if (options->level != GS_RECORD_UNSET) return options->level;
    const char *name = getenv("GRADSYNC_REDUCER_LOG");
    if (name && *name && !gs_record_level_from_name(&level, name))
        gs_log_warn("unknown level", "GRADSYNC_REDUCER_LOG=%.40s known=off,info,detail", name);
    return level;
}

static uint64_t *copy_bucket_bytes(const gs_bucket_plan *plan) {
    uint64_t *bytes = calloc(plan->num_buckets + 1, sizeof *bytes);
    for (size_t b = 0; bytes && b < plan->num_buckets; b++) bytes[b] = plan->buckets[b].bytes;
    return bytes;
}

static uint64_t largest_limit(const gs_bucket_plan *plan) {
    uint64_t largest = 0;
    for (size_t b = 0; b < plan->num_buckets; b++) {
        if (plan->buckets[b].limit_bytes > largest) largest = plan->buckets[b].limit_bytes;
    }
    return largest;
}

// The device's, and what the environment keeps it from.
static void read_arithmetic(gs_reducer_record *record) {
    char limit[128];
    gs_device_arithmetic(record->facts.device, record->arithmetic, sizeof record->arithmetic);
    gs_device_limit(record->facts.device, limit, sizeof limit);
    size_t used = strlen(record->arithmetic);
    if (*limit)
        snprintf(record->arithmetic + used, sizeof record->arithmetic - used, "; %s", limit);
}

static void read_environment(gs_reducer_record *record) {
    const gs_record_facts *facts = &record->facts;
    record->pid = getpid();
    if (gethostname(record->host, sizeof record->host - 1) != 0) record->host[0] = '\0';
    record->num_threads = gs_device_num_threads(facts->device);
    read_arithmetic(record);
    snprintf(record->device, sizeof record->device, "%s", gs_device_name(facts->device));
    list_dtypes(record->dtypes, sizeof record->dtypes, facts);
    for (size_t i = 0; i < facts->num_params; i++)
        record->total_param_bytes += gs_param_spec_bytes(&facts->params[i]);
}

gs_status gs_reducer_record_init(gs_reducer_record *record, const gs_record_facts *facts,
                                 const gs_record_options *options) {
    static const gs_record_time unknown = {.last_ns = -1};
    *record = (gs_reducer_record){.facts = *facts,
                                  .level = level_of(options),
                                  .sample_every = options->sample_every,
                                  .told = *options,
                                  .could_be_static = true,
                                  .forward = unknown,
                                  .backward = unknown,
                                  .comm = unknown,
                                  .overlap = unknown};
    record->facts.plan = NULL;
    record->told.job = record->told.model = NULL;
    if (options->sample_every < 0)
        return gs_error(GS_INVALID_ARGUMENT, "record.sample_every: %lld, not 1 or more",
                        (long long)options->sample_every);
    if (!record->sample_every) record->sample_every = GS_RECORD_SAMPLE_EVERY;
    snprintf(record->job, sizeof record->job, "%s", options->job ? options->job : "");
    snprintf(record->model, sizeof record->model, "%s", options->model ? options->model : "");
    size_t num_params = facts->num_params ? facts->num_params : 1;
    record->bucket_bytes = copy_bucket_bytes(facts->plan);
    record->first_used = calloc(num_params, sizeof *record->first_used);
    record->last_ready_order = calloc(num_params, sizeof *record->last_ready_order);
    record->param_ready_ns = calloc(num_params, sizeof *record->param_ready_ns);
    if (!record->bucket_bytes || !record->first_used || !record->last_ready_order ||
        !record->param_ready_ns)
        return gs_error(GS_RESOURCE_EXHAUSTED, "reducer record: out of memory");
    record->num_buckets = facts->plan->num_buckets;
    record->bucket_cap_bytes = largest_limit(facts->plan);
    read_environment(record);
    if (record->level >= GS_RECORD_INFO) {
        log_text(GS_LOG_INFO, "reducer", gs_reducer_record_write_construction, record);
        log_text(GS_LOG_INFO, "reducer environment", gs_reducer_record_write_environment, record);
    }
    return gs_ok();
}

void gs_reducer_record_release(gs_reducer_record *record) {
    if (!record) return;
    free(record->bucket_bytes);
    free(record->rebuilt_bucket_bytes);
    free(record->rebuilt_params);
    free(record->first_used);
    free(record->last_ready_order);
    free(record->param_ready_ns);
    *record = (gs_reducer_record){0};
}

void gs_reducer_record_set_plan(gs_reducer_record *record, const gs_bucket_plan *plan) {
    free(record->rebuilt_bucket_bytes);
    free(record->rebuilt_params);
    record->rebuilt_bucket_bytes = copy_bucket_bytes(plan);
    record->rebuilt_params = calloc(plan->num_params + 1, sizeof *record->rebuilt_params);
    if (record->rebuilt_params && plan->num_params)
        memcpy(record->rebuilt_params, plan->params, plan->num_params * sizeof *plan->params);
    record->num_rebuilt_buckets = record->rebuilt_bucket_bytes ? plan->num_buckets : 0;
    record->bucket_cap_bytes = largest_limit(plan);
    record->num_rebuilds++;
    if (record->level >= GS_RECORD_INFO)
        log_text(GS_LOG_INFO, "reducer rebuilt", gs_reducer_record_write_construction, record);
}

void gs_reducer_record_begin(gs_reducer_record *record, int64_t step) {
    record->step = step;
    record->num_steps++;
    record->sampled = record->num_steps <= GS_RECORD_FIRST_SAMPLES ||
                      record->num_steps % record->sample_every == 0;
    record->times_params = record->sampled && record->level >= GS_RECORD_INFO;
    if (!record->times_params) return;
    for (size_t i = 0; i < record->facts.num_params; i++) record->param_ready_ns[i] = -1;
}

void gs_reducer_record_mark(gs_reducer_record *record, size_t param, int64_t backward_begin_ns) {
    record->param_ready_ns[param] = gs_now_ns() - backward_begin_ns;
}

// An end that was not recorded, or one before its begin, says nothing: left out.
static void add_time(gs_record_time *time, int64_t begin_ns, int64_t end_ns) {
    time->last_ns = -1;
    if (begin_ns <= 0 || end_ns <= 0 || end_ns < begin_ns) return;
    time->last_ns = end_ns - begin_ns;
    time->num_samples++;
    time->mean_ns += ((double)time->last_ns - time->mean_ns) / (double)time->num_samples;
}

static void note_use(gs_reducer_record *record, const uint8_t *used) {
    size_t num_params = record->facts.num_params;
    record->num_locally_unused = 0;
    for (size_t i = 0; i < num_params; i++) record->num_locally_unused += !used[i];
    if (record->num_steps == 1) memcpy(record->first_used, used, num_params);
    else if (memcmp(record->first_used, used, num_params) != 0) record->could_be_static = false;
}

static bool is_milestone(int64_t num_samples) {
    static const int64_t milestones[] = {10, 20, 50, 100, 500, 800, 1000};
    for (size_t i = 0; i < sizeof milestones / sizeof *milestones; i++) {
        if (milestones[i] == num_samples) return true;
    }
    return false;
}

static void log_sample(const gs_reducer_record *record, const uint8_t *used) {
    gs_strbuf text = {0};
    gs_reducer_record_write_times(&text, record);
    gs_strbuf_puts(&text, " locally_unused=\"");
    size_t named = 0;
    for (size_t i = 0; i < record->facts.num_params && named < 16; i++) {
        if (used[i]) continue;
        gs_strbuf_printf(&text, "%s%.60s", named++ ? "," : "", record->facts.params[i].name);
    }
    gs_strbuf_puts(&text, named < record->num_locally_unused ? ",…\"" : "\"");
    gs_log_info("reducer sample", "%s", gs_strbuf_text(&text));
    gs_strbuf_release(&text);
}

void gs_reducer_record_finish(gs_reducer_record *record, const gs_reduce_stats *stats,
                              const uint8_t *used, const size_t *order) {
    size_t num_params = record->facts.num_params;
    record->num_unused = stats->num_unused;
    record->unused_bytes = stats->unused_bytes;
    note_use(record, used);
    if (!record->sampled) return;
    if (num_params) memcpy(record->last_ready_order, order, num_params * sizeof *order);
    record->num_samples++;
    record->last = *stats;
    record->last.buckets = NULL;
    record->last.param_ready_ns = NULL;
    add_time(&record->forward, stats->forward_begin_ns, stats->backward_begin_ns);
    add_time(&record->backward, stats->backward_begin_ns, stats->backward_end_ns);
    add_time(&record->comm, stats->first_launch_ns, stats->end_ns);
    add_time(&record->overlap, stats->first_launch_ns, stats->backward_end_ns);
    if (record->level >= GS_RECORD_INFO && is_milestone(record->num_samples))
        log_text(GS_LOG_INFO, "reducer times", gs_reducer_record_write_times, record);
    if (record->level == GS_RECORD_DETAIL) log_sample(record, used);
}

void gs_reducer_record_fail(gs_reducer_record *record, int64_t step, gs_status error) {
    if (record->has_error) return;
    record->has_error = true;
    record->error_step = step;
    record->error = error;
    if (record->level >= GS_RECORD_INFO)
        log_text(GS_LOG_WARN, "reducer failed", gs_reducer_record_write_error, record);
}

bool gs_reducer_record_could_be_static(const gs_reducer_record *record) {
    return record->could_be_static;
}
