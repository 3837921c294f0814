#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/metrics/metrics_page.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/held.h"
#include "coordinator/observe/metrics/metric_families.h"
#include "core/clock.h"
#include "core/metrics_text.h"

#define MAX_JOBS 50  // with series; running ones first, then the newest
#define MAX_FAMILIES 192
#define SLICE_NS (2 * GS_NS_PER_MS)
#define SERIES_AT_ONCE 64
#define PIECE_BYTES (64 << 10)

typedef struct gs_metrics_asker {
    gs_metrics_page *page;
    gs_rpc_call_handle *call;
    gs_held held;
    bool served;  // gets what is being sent; else it waits for the next round
    struct gs_metrics_asker *next;
} gs_metrics_asker;

typedef struct gs_page_family {
    const gs_metric_family *family;
    gs_strbuf text;  // owned
} gs_page_family;

// A round looks at all jobs, then sends all series to whoever asked before the sending began.
struct gs_metrics_page {
    gs_metrics_asker *askers;  // owned
    bool begun, sending;
    uint64_t jobs[MAX_JOBS];  // to look at; ids, for jobs come and go between turns
    size_t num_jobs, job_index;
    int slice;        // of that job
    uint64_t cursor;  // series sent so far
    gs_page_family families[MAX_FAMILIES];  // of the piece that is being put together
    size_t num_families, bytes;
};

static void remove_asker(gs_metrics_asker *asker) {
    gs_metrics_asker **link = &asker->page->askers;
    while (*link != asker) link = &(*link)->next;
    *link = asker->next;
    free(asker);
}

static void forget_asker(void *owner, gs_rpc_call_handle *call) {
    (void)call;
    remove_asker(owner);
}

static bool is_chosen(const gs_metrics_page *page, const gs_job *job) {
    for (size_t i = 0; i < page->num_jobs; i++) {
        if (page->jobs[i] == job->id) return true;
    }
    return false;
}

static void choose_jobs(gs_observer *observer, gs_metrics_page *page) {
    page->num_jobs = page->job_index = 0;
    for (int ended = 0; ended < 2; ended++) {
        for (size_t i = observer->state->jobs.count; i-- > 0 && page->num_jobs < MAX_JOBS;) {
            const gs_job *job = observer->state->jobs.items[i];
            if (gs_job_state_terminal(job->state) != (ended == 1)) continue;
            if (job->started_ms == 0 || gs_metrics_expired(observer, job)) continue;
            page->jobs[page->num_jobs++] = job->id;
        }
    }
    for (size_t i = 0; i < observer->state->jobs.count; i++) {
        gs_job *job = observer->state->jobs.items[i];
        if (!job->sight->on_page || is_chosen(page, job)) continue;
        gs_metrics_forget(observer->metrics, "job_id", job->id_text);
        job->sight->on_page = false;
        job->sight->ranks_shown = 0;
    }
    page->slice = 0;
    page->begun = true;
}

static void begin_sending(gs_observer *observer, gs_metrics_page *page) {
    gs_metrics_refresh(observer);
    for (gs_metrics_asker *asker = page->askers; asker; asker = asker->next) asker->served = true;
    page->sending = true;
    page->cursor = 0;
}

static void look_at_jobs(gs_observer *observer, gs_metrics_page *page) {
    if (page->job_index == page->num_jobs) {
        begin_sending(observer, page);
        return;
    }
    gs_job *job = gs_job_table_get(&observer->state->jobs, page->jobs[page->job_index]);
    if (job) job->sight->on_page = true;
    if (job && gs_metrics_refresh_job_slice(observer, job, page->slice)) {
        page->slice++;
        return;
    }
    page->job_index++;
    page->slice = 0;
}

static void add_sample(void *ctx, const gs_metric_sample *sample) {
    gs_metrics_page *page = ctx;
    size_t index = 0;
    while (index < page->num_families && page->families[index].family != sample->family) index++;
    if (index == MAX_FAMILIES) return;
    if (index == page->num_families) page->families[page->num_families++].family = sample->family;
    gs_strbuf *text = &page->families[index].text;
    size_t before = text->len;
    gs_metric_sample_write(text, sample);
    page->bytes += text->len - before;
}

static gs_json *piece_to_json(gs_metrics_page *page) {
    static const char *const types[] = {"counter", "gauge", "histogram"};
    gs_json *families = gs_json_new_array(), *item = gs_json_new_object();
    for (size_t i = 0; i < page->num_families; i++) {
        gs_page_family *part = &page->families[i];
        gs_json *object = gs_json_new_object();
        gs_json_set_string(object, "name", part->family->name);
        gs_json_set_string(object, "type", types[part->family->type]);
        gs_json_set_string(object, "help", part->family->help);
        gs_json_set_string(object, "text", gs_strbuf_text(&part->text));
        gs_json_push(families, object);
        gs_strbuf_clear(&part->text);
    }
    gs_json_set(item, "families", families);
    page->num_families = page->bytes = 0;
    return item;
}

static void send_piece(gs_metrics_page *page) {
    if (page->num_families == 0) return;
    gs_json *item = piece_to_json(page);
    gs_metrics_asker *next;
    for (gs_metrics_asker *asker = page->askers; asker; asker = next) {
        next = asker->next;
        gs_status status = asker->served ? gs_rpc_item(asker->call, gs_json_retain(item)) : gs_ok();
        if (!status.code) continue;
        gs_rpc_end(asker->call, status);
        remove_asker(asker);
    }
    gs_json_release(item);
}

static void end_round(gs_metrics_page *page) {
    gs_metrics_asker *next;
    for (gs_metrics_asker *asker = page->askers; asker; asker = next) {
        next = asker->next;
        if (!asker->served) continue;
        gs_rpc_end(asker->call, gs_ok());
        remove_asker(asker);
    }
    page->begun = page->sending = false;
}

static void send_series(gs_observer *observer, gs_metrics_page *page) {
    bool left = gs_metrics_visit_some(observer->metrics, &page->cursor, SERIES_AT_ONCE, add_sample,
                                      page);
    if (!left || page->bytes >= PIECE_BYTES) send_piece(page);
    if (!left) end_round(page);
}

void gs_metrics_page_turn(gs_observer *observer) {
    gs_metrics_page *page = observer->page;
    gs_deadline deadline = gs_deadline_in_ns(SLICE_NS);
    while (page && page->askers && !gs_deadline_passed(deadline)) {
        if (!page->begun) choose_jobs(observer, page);
        else if (!page->sending) look_at_jobs(observer, page);
        else send_series(observer, page);
    }
    if (page && !page->askers) gs_metrics_page_destroy(observer);
}

void gs_metrics_page_destroy(gs_observer *observer) {
    gs_metrics_page *page = observer->page;
    if (!page) return;
    while (page->askers) {
        gs_rpc_end(page->askers->call, gs_error(GS_UNAVAILABLE, "the coordinator stops"));
        remove_asker(page->askers);
    }
    for (size_t i = 0; i < MAX_FAMILIES; i++) gs_strbuf_release(&page->families[i].text);
    free(page);
    observer->page = NULL;
}

void gs_get_metrics(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request) {
    (void)peer;
    (void)request;
    gs_observer *observer = ctx;
    if (!observer->page) observer->page = calloc(1, sizeof *observer->page);
    gs_metrics_asker *asker = observer->page ? calloc(1, sizeof *asker) : NULL;
    if (!asker) {
        gs_rpc_end(call, gs_error(GS_RESOURCE_EXHAUSTED, "metrics: out of memory"));
        return;
    }
    *asker = (gs_metrics_asker){.page = observer->page, .call = call};
    gs_metrics_asker **link = &observer->page->askers;
    while (*link) link = &(*link)->next;
    *link = asker;
    gs_held_keep(&asker->held, call, forget_asker, asker);
}
