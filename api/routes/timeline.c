// GET …/timeline: collects the stream of a job's ranks, and answers with a document or a trace file.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/problem.h"
#include "api/render/timeline_view.h"
#include "api/render/trace_events.h"
#include "api/routes/handlers.h"

// The coordinator ends the stream after two seconds of waiting for ranks.
enum { STREAM_MS = 8000, DISCONNECTED_MS = 1000, MAX_PAGES = 4096, SLACK = 32 };

typedef struct page_list {
    gs_json **items;  // owned, with what is in it
    size_t count, room;
} page_list;

static void release_pages(page_list *pages) {
    for (size_t i = 0; i < pages->count; i++) gs_json_release(pages->items[i]);
    free(pages->items);
}

static bool push_page(page_list *pages, gs_json *page) {
    if (pages->count == pages->room) {
        size_t room = pages->room ? 2 * pages->room : 32;
        gs_json **items = room <= MAX_PAGES ? realloc(pages->items, room * sizeof *items) : NULL;
        if (!items) return false;
        pages->items = items;
        pages->room = room;
    }
    pages->items[pages->count++] = page;
    return true;
}

// The last page is the one that says what the others are about.
static gs_status collect_pages(gs_rpc_client *client, const gs_json *request, page_list *pages) {
    gs_rpc_stream *stream = NULL;
    GS_TRY(gs_rpc_stream_open(&stream, client, GS_GET_JOB_TIMELINE, request));
    bool connected = gs_rpc_client_connected(client);
    gs_deadline deadline = gs_deadline_in_ms(connected ? STREAM_MS : DISCONNECTED_MS);
    gs_status status = gs_ok();
    for (;;) {
        gs_json *page = NULL;
        status = gs_rpc_stream_next(stream, &page, deadline);
        if (status.code || !page) break;
        if (push_page(pages, page)) continue;
        gs_json_release(page);
        status = gs_error(GS_RESOURCE_EXHAUSTED, "timeline: too many pages");
        break;
    }
    gs_rpc_stream_close(stream);
    bool whole = pages->count > 0 &&
                 gs_json_bool_or(pages->items[pages->count - 1], "end", false);
    if (!status.code && !whole)
        return gs_error(GS_UNAVAILABLE, "the coordinator did not finish its answer");
    return status;
}

// What is asked of the ranks: of the last steps some more, because ranks hear of it one after the other and
// go on meanwhile. The view takes the newest that all have.
static gs_timeline_pick widen(gs_json *args) {
    gs_timeline_pick pick;
    char text[32];
    // What is no range goes on as it is: the coordinator says what is wrong with it.
    if (!gs_timeline_pick_parse(&pick, gs_json_string_or(args, "steps", "last:3")) || !pick.last) return pick;
    int64_t wider = pick.last + SLACK < GS_TIMELINE_MOST_STEPS ? pick.last + SLACK : GS_TIMELINE_MOST_STEPS;
    snprintf(text, sizeof text, "last:%lld", (long long)wider);
    gs_json_set_string(args, "steps", text);
    return pick;
}

static void answer_trace(gs_route_call *call, const gs_json *timeline) {
    char disposition[160];
    snprintf(disposition, sizeof disposition, "attachment; filename=\"%.60s-timeline.json\"",
             gs_json_string_or(timeline, "job", "job"));
    call->response->status = 200;
    gs_http_set_header(call->response, "Content-Type", "application/json");
    gs_http_set_header(call->response, "Content-Disposition", disposition);
    gs_http_set_header(call->response, "Cache-Control", "no-store");
    gs_trace_events_write(&call->response->body, timeline);
}

static void answer_pages(gs_route_call *call, const page_list *pages, const gs_timeline_pick *pick) {
    size_t num_pages = pages->count - 1;
    gs_json *timeline = gs_timeline_view((const gs_json *const *)pages->items, num_pages,
                                         pages->items[num_pages], pick);
    const char *format = gs_http_query(call->request, "format");
    if (!timeline) {
        gs_problem_answer_code(call->response, call->request->id, "internal", "out of memory");
    } else if (format && strcmp(format, "trace") == 0) {
        answer_trace(call, timeline);
        gs_json_release(timeline);
    } else {
        gs_route_call_answer(call, timeline);
    }
}

// Names and prefixes become the id, and what is wrong with them is answered before a stream begins: the
// end of a stream has no room for candidates.
static bool name_job(gs_route_call *call) {
    gs_json *request = gs_json_new_object(), *job = NULL;
    gs_json_set_string(request, "job", gs_route_param(call->match, "job"));
    bool found = gs_route_call_rpc(call, GS_GET_JOB, request, &job);
    if (found) gs_json_set_string(call->args, "job", gs_json_string_or(job, "id", ""));
    gs_json_release(request);
    gs_json_release(job);
    return found;
}

void gs_handle_timeline(gs_route_call *call) {
    page_list pages = {0};
    if (!name_job(call)) return;
    gs_timeline_pick pick = widen(call->args);
    gs_rpc_client *client = call->services->client;
    gs_status status = collect_pages(client, call->args, &pages);
    if (status.code == GS_DEADLINE_EXCEEDED && !gs_rpc_client_connected(client))
        status = gs_error(GS_UNAVAILABLE, "no connection to the coordinator");
    if (!status.code)
        answer_pages(call, &pages, &pick);
    else if (status.code == GS_INVALID_ARGUMENT)
        gs_problem_answer(call->response, call->request->id, gs_problem_find("bad_parameter"),
                          status.message, NULL);
    else
        gs_problem_answer_status(call->response, call->request->id, status, NULL);
    release_pages(&pages);
}
