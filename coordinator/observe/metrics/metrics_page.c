#include "coordinator/observe/metrics/metrics_page.h"

#include <stdlib.h>
#include <unistd.h>

#include "coordinator/observe/counters.h"
#include "coordinator/observe/held.h"
#include "coordinator/observe/job_sight.h"
#include "coordinator/observe/metrics/job_families.h"
#include "coordinator/observe/metrics/metric_families.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/thread.h"

#define MAX_JOBS 50    // with series; running ones first, then the newest
#define MAX_RANKS 64   // of a job whose ranks have series of their own
#define PAGE_RANKS 512  // of all jobs together
#define SLICE_NS (1 * GS_NS_PER_MS)
#define SERIES_AT_ONCE 64
#define RANKS_AT_ONCE 512  // copied by the loop before it looks at its clock

typedef struct gs_metrics_asker {
    gs_metrics_page *page;
    gs_rpc_call_handle *call;
    gs_held held;
    bool served;  // gets the page that is being made; else it waits for the next one
    struct gs_metrics_asker *next;
} gs_metrics_asker;

typedef enum page_stage {
    PAGE_IDLE = 0,
    PAGE_SHOOTING,  // pictures of jobs are taken
    PAGE_WRITING,   // by the thread, whose is what the picture holds
    PAGE_SENDING
} page_stage;

struct gs_metrics_page {
    gs_metrics_asker *askers;  // owned
    page_stage stage;
    uint64_t jobs[MAX_JOBS];  // to look at; ids, for jobs come and go between turns
    size_t num_jobs, job_index;
    int ranks_left;  // that may have series of their own
    gs_job_shot *shots, **shots_end;  // owned
    gs_job_shot *shot;                // owned; of jobs[job_index], while its ranks are copied
    gs_metrics *metrics;  // borrowed; of the coordinator
    int wake_fd;
    gs_thread *thread;    // while it writes
    atomic_bool written;
    gs_page_item *items, *next_item;  // owned
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
    page->ranks_left = PAGE_RANKS;
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
    for (gs_metrics_asker *asker = page->askers; asker; asker = asker->next) asker->served = true;
    page->shots_end = &page->shots;
    page->stage = PAGE_SHOOTING;
}

static void write_page(void *ctx, const atomic_bool *stopping) {
    gs_metrics_page *page = ctx;
    gs_page_text text = {0};
    uint64_t cursor = 0, one = 1;
    gs_metrics_refresh_process(page->metrics);
    for (const gs_job_shot *shot = page->shots; shot && !atomic_load(stopping); shot = shot->next)
        gs_job_families_write(&text, shot);
    while (gs_metrics_visit_some(page->metrics, &cursor, SERIES_AT_ONCE, gs_page_text_add, &text)) continue;
    page->items = gs_page_text_to_items(&text);
    gs_page_text_release(&text);
    atomic_store(&page->written, true);
    ssize_t woken = write(page->wake_fd, &one, sizeof one);
    (void)woken;
}

static void begin_writing(gs_observer *observer, gs_metrics_page *page) {
    gs_metrics_refresh(observer);
    atomic_store(&page->written, false);
    page->stage = PAGE_WRITING;
    gs_status status = gs_thread_start(&page->thread, "metrics-page", write_page, page);
    if (!status.code) return;
    gs_log_warn("no metrics page", "reason=\"%s\"", status.message);
    page->thread = NULL;
    atomic_store(&page->written, true);  // of nothing
}

// Jobs with few ranks show each of them, as long as the page has room.
static void keep_shot(gs_metrics_page *page, const gs_job *job) {
    gs_job_shot *shot = page->shot;
    page->shot = NULL;
    int ranks = gs_job_families_ranks(shot);
    shot->shows_ranks = ranks <= MAX_RANKS && ranks <= page->ranks_left;
    if (shot->shows_ranks) page->ranks_left -= ranks;
    if (shot->shows_ranks && shot->num_members > job->sight->ranks_shown) job->sight->ranks_shown = shot->num_members;
    *page->shots_end = shot;
    page->shots_end = &shot->next;
}

static void look_at_jobs(gs_observer *observer, gs_metrics_page *page) {
    if (page->job_index == page->num_jobs) {
        begin_writing(observer, page);
        return;
    }
    gs_job *job = gs_job_table_get(&observer->state->jobs, page->jobs[page->job_index]);
    if (job && !page->shot) {
        job->sight->on_page = true;
        gs_counters_declare_job(observer, job);
        page->shot = gs_job_shot_begin(job);
    }
    if (job && page->shot && !gs_job_shot_take_ranks(page->shot, job, RANKS_AT_ONCE)) return;
    if (job && page->shot) keep_shot(page, job);
    gs_job_shots_release(page->shot);  // of one that is gone
    page->shot = NULL;
    page->job_index++;
}

// Joins the thread, which has written.
static void take_page(gs_metrics_page *page) {
    gs_thread_stop(page->thread);
    page->thread = NULL;
    gs_job_shots_release(page->shots);
    page->shots = NULL;
    page->next_item = page->items;
    page->stage = PAGE_SENDING;
}

static void send_item(gs_metrics_page *page, const gs_page_item *item) {
    gs_metrics_asker *next;
    for (gs_metrics_asker *asker = page->askers; asker; asker = next) {
        next = asker->next;
        gs_status status = asker->served ? gs_rpc_item_text(asker->call, item->text, item->bytes) : gs_ok();
        if (!status.code) continue;
        gs_rpc_end(asker->call, status);
        remove_asker(asker);
    }
}

static void end_round(gs_metrics_page *page) {
    gs_status status = page->items ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "metrics: out of memory");
    gs_metrics_asker *next;
    for (gs_metrics_asker *asker = page->askers; asker; asker = next) {
        next = asker->next;
        if (!asker->served) continue;
        gs_rpc_end(asker->call, status);
        remove_asker(asker);
    }
    gs_page_items_release(page->items);
    page->items = NULL;
    page->stage = PAGE_IDLE;
}

static void send_page(gs_metrics_page *page) {
    if (!page->next_item) {
        end_round(page);
        return;
    }
    send_item(page, page->next_item);
    page->next_item = page->next_item->next;
}

bool gs_metrics_page_hurries(const gs_observer *observer) {
    const gs_metrics_page *page = observer->page;
    return page && (page->stage != PAGE_WRITING || atomic_load(&page->written));
}

void gs_metrics_page_turn(gs_observer *observer) {
    gs_metrics_page *page = observer->page;
    gs_deadline deadline = gs_deadline_in_ns(SLICE_NS);
    while (gs_metrics_page_hurries(observer) && !gs_deadline_passed(deadline)) {
        switch (page->stage) {
        case PAGE_IDLE:
            if (!page->askers) {
                gs_metrics_page_destroy(observer);
                return;
            }
            choose_jobs(observer, page);
            break;
        case PAGE_SHOOTING: look_at_jobs(observer, page); break;
        case PAGE_WRITING: take_page(page); break;
        case PAGE_SENDING: send_page(page); break;
        }
    }
}

void gs_metrics_page_destroy(gs_observer *observer) {
    gs_metrics_page *page = observer->page;
    if (!page) return;
    while (page->askers) {
        gs_rpc_end(page->askers->call, gs_error(GS_UNAVAILABLE, "the coordinator stops"));
        remove_asker(page->askers);
    }
    gs_thread_stop(page->thread);
    gs_job_shots_release(page->shots);
    gs_job_shots_release(page->shot);
    gs_page_items_release(page->items);
    free(page);
    observer->page = NULL;
}

// What the thread reads does not change any more. NULL: out of memory.
static gs_metrics_page *create_page(const gs_observer *observer) {
    gs_metrics_page *page = calloc(1, sizeof *page);
    if (!page) return NULL;
    page->metrics = observer->metrics;
    page->wake_fd = observer->wake_fd;
    return page;
}

void gs_get_metrics(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request) {
    (void)peer;
    (void)request;
    gs_observer *observer = ctx;
    if (!observer->page) observer->page = create_page(observer);
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
