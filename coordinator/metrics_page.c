#include "coordinator/metrics_page.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/held.h"
#include "coordinator/metric_families.h"

#define MAX_JOBS 50
#define CHUNK_BYTES (200 << 10)

struct gs_metrics_page {
    gs_coordinator *coordinator;
    gs_rpc_call_handle *call;
    gs_held held;
    size_t jobs_left;  // not refreshed yet, counted from the oldest
    struct gs_metrics_page *next;
};

typedef struct gs_page_builder {
    gs_rpc_call_handle *call;
    const gs_metric_family *family;
    gs_json *families, *series;  // being built
    size_t bytes;
    bool failed;
} gs_page_builder;

static void send_chunk(gs_page_builder *page) {
    if (gs_json_count(page->families) == 0) return;
    gs_json *item = gs_json_new_object();
    gs_json_set(item, "families", page->families);
    if (!page->failed && !gs_rpc_item(page->call, item)) page->failed = true;
    else if (page->failed) gs_json_release(item);
    page->families = gs_json_new_array();
    page->bytes = 0;
}

static void begin_family(gs_page_builder *page, const gs_metric_family *family) {
    static const char *const types[] = {"counter", "gauge", "histogram"};
    // A family stays in one piece: readers print its help once.
    if (page->bytes > CHUNK_BYTES) send_chunk(page);
    gs_json *object = gs_json_new_object();
    gs_json_set_string(object, "name", family->name);
    gs_json_set_string(object, "type", types[family->type]);
    gs_json_set_string(object, "help", family->help);
    page->series = gs_json_new_array();
    gs_json_set(object, "series", page->series);
    gs_json_push(page->families, object);
    page->family = family;
    page->bytes += 128;
}

static void add_histogram(gs_json *entry, const gs_metric_sample *sample) {
    gs_json *bounds = gs_json_new_array(), *counts = gs_json_new_array();
    for (size_t i = 0; i < sample->family->num_bounds; i++) {
        gs_json_push(bounds, gs_json_new_double(sample->family->bounds[i]));
    }
    for (size_t i = 0; i <= sample->family->num_bounds; i++) {
        gs_json_push(counts, gs_json_new_int((int64_t)sample->histogram.counts[i]));
    }
    gs_json_set(entry, "bounds", bounds);
    gs_json_set(entry, "counts", counts);
    gs_json_set_double(entry, "sum", sample->histogram.sum);
}

static void add_sample(void *ctx, const gs_metric_sample *sample) {
    gs_page_builder *page = ctx;
    if (page->family != sample->family) begin_family(page, sample->family);
    gs_json *entry = gs_json_new_object();
    gs_json *labels = gs_json_new_array();
    for (int i = 0; i < GS_METRIC_MAX_LABELS && sample->family->labels[i]; i++) {
        gs_json *pair = gs_json_new_array();
        gs_json_push(pair, gs_json_new_string(sample->family->labels[i]));
        gs_json_push(pair, gs_json_new_string(sample->label_values[i]));
        gs_json_push(labels, pair);
        page->bytes += strlen(sample->label_values[i]) + 24;
    }
    gs_json_set(entry, "labels", labels);
    if (sample->family->type == GS_HISTOGRAM) add_histogram(entry, sample);
    else gs_json_set_double(entry, "value", sample->value);
    gs_json_push(page->series, entry);
    page->bytes += sample->family->type == GS_HISTOGRAM ? 400 : 40;
}

static void remove_page(gs_metrics_page *page) {
    gs_metrics_page **link = &page->coordinator->pages;
    while (*link != page) link = &(*link)->next;
    *link = page->next;
    free(page);
}

static void forget_page(void *owner, gs_rpc_call_handle *call) {
    (void)call;
    remove_page(owner);
}

static void send_page(gs_coordinator *coordinator, gs_rpc_call_handle *call) {
    gs_metrics_refresh(coordinator);
    gs_page_builder builder = {.call = call, .families = gs_json_new_array()};
    gs_metrics_visit(coordinator->metrics, add_sample, &builder);
    send_chunk(&builder);
    gs_json_release(builder.families);
    gs_rpc_end(call, builder.failed ? gs_error(GS_UNAVAILABLE, "the reader is too slow") : gs_ok());
}

void gs_metrics_pages_turn(gs_coordinator *coordinator) {
    gs_metrics_page *page = coordinator->pages;
    if (!page) return;
    // Jobs may have gone since the page was asked for.
    if (page->jobs_left > coordinator->num_jobs) page->jobs_left = coordinator->num_jobs;
    if (page->jobs_left > 0 && coordinator->num_jobs - page->jobs_left < MAX_JOBS) {
        gs_metrics_refresh_job(coordinator, coordinator->jobs[--page->jobs_left]);
        return;
    }
    // Everybody who asked meanwhile gets the same.
    while (coordinator->pages) {
        gs_rpc_call_handle *call = coordinator->pages->call;
        remove_page(coordinator->pages);
        send_page(coordinator, call);
    }
}

void gs_metrics_pages_destroy(gs_coordinator *coordinator) {
    while (coordinator->pages) {
        gs_rpc_end(coordinator->pages->call, gs_error(GS_UNAVAILABLE, "the coordinator stops"));
        remove_page(coordinator->pages);
    }
}

void gs_get_metrics(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request) {
    (void)peer;
    (void)request;
    gs_coordinator *coordinator = ctx;
    gs_metrics_page *page = calloc(1, sizeof *page);
    if (!page) {
        gs_rpc_end(call, gs_error(GS_RESOURCE_EXHAUSTED, "metrics: out of memory"));
        return;
    }
    *page = (gs_metrics_page){.coordinator = coordinator, .call = call,
                              .jobs_left = coordinator->num_jobs};
    gs_metrics_page **link = &coordinator->pages;
    while (*link) link = &(*link)->next;
    *link = page;
    gs_held_keep(&page->held, call, forget_page, page);
}
