// Whatever ranks tell of their steps: the document that is made of it is JSON, and so is the trace; both name no rank that is not
// there, and all times are numbers. And which steps are asked for is read by the API as by the coordinator.
// The input: {"steps": …, "about": …, "pages": […]}.
#include <stdlib.h>
#include <string.h>

#include "api/render/timeline_view.h"
#include "api/render/trace_events.h"
#include "coordinator/observe/timelines.h"
#include "tests/fuzz/fuzz.h"

static void require(bool holds) {
    if (!holds) abort();
}

static gs_timeline_pick read_pick(const char *steps) {
    gs_timeline_pick pick;
    gs_timeline_range range;
    bool is_read = gs_timeline_pick_parse(&pick, steps);
    require(is_read == !gs_timeline_range_parse(&range, steps).code);
    if (!is_read) return (gs_timeline_pick){.last = 3};
    require(pick.last == range.last && pick.from_step == range.from_step && pick.to_step == range.to_step);
    return pick;
}

static void require_json(const char *text, size_t bytes) {
    gs_json *again = NULL;
    require(!gs_json_parse(&again, text, bytes).code);
    gs_json_release(again);
}

static void check_view(const gs_json *timeline, const gs_timeline_pick *pick) {
    const gs_json *ranks = gs_json_get(timeline, "ranks");
    for (size_t i = 0; i < gs_json_count(ranks); i++) {
        const gs_json *steps = gs_json_get(gs_json_at(ranks, i), "steps");
        require(gs_json_int_or(gs_json_at(ranks, i), "rank", -1) >= 0);
        for (size_t k = 0; k < gs_json_count(steps); k++) {
            int64_t step = gs_json_int_or(gs_json_at(steps, k), "step", -1);
            require(pick->last > 0 || (step >= pick->from_step && step <= pick->to_step));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    gs_json *input = NULL;
    if (gs_json_parse_foreign(&input, (const char *)data, bytes).code) return 0;
    const gs_json *list = gs_json_get(input, "pages");
    size_t num_pages = gs_json_count(list), text_bytes = 0;
    const gs_json **pages = calloc(num_pages + 1, sizeof *pages);
    require(pages != NULL);
    for (size_t i = 0; i < num_pages; i++) pages[i] = gs_json_at(list, i);
    gs_timeline_pick pick = read_pick(gs_json_string_or(input, "steps", "last:3"));
    gs_json *timeline = gs_timeline_view(pages, num_pages, gs_json_get(input, "about"), &pick);
    char *text = NULL;
    gs_strbuf trace = {0};
    require(timeline && !gs_json_encode(&text, &text_bytes, timeline, false).code);
    check_view(timeline, &pick);
    require_json(text, text_bytes);
    gs_trace_events_write(&trace, timeline);
    require(!gs_strbuf_failed(&trace));
    require_json(gs_strbuf_text(&trace), trace.len);
    gs_strbuf_release(&trace);
    gs_json_release(timeline);
    gs_json_release(input);
    free(text);
    free(pages);
    return 0;
}
