#include "worker/telemetry/timeline_message.h"

gs_timeline_pages gs_timeline_pages_begin(gs_timeline *timeline,
                                          const gs_timeline_range_asked *asked) {
    gs_timeline_pages pages = {.timeline = timeline, .next_step = 0, .last_step = -1};
    int64_t oldest, newest, from_step = asked->from_step, to_step = asked->to_step;
    if (!timeline || !gs_timeline_range(timeline, &oldest, &newest)) return pages;
    if (asked->last > 0) {
        from_step = asked->last > newest ? 0 : newest - asked->last + 1;
        to_step = newest;
    }
    if (from_step < oldest) from_step = oldest;
    pages.last_step = to_step < newest ? to_step : newest;
    if (from_step > pages.last_step) from_step = pages.last_step + 1;
    else from_step = gs_timeline_fit(timeline, from_step, pages.last_step, asked->max_rows);
    pages.next_step = from_step;
    return pages;
}

static int64_t since(int64_t at_ns, int64_t begin_ns) {
    return at_ns ? at_ns - begin_ns : -1;
}

static void push_int(gs_json *array, int64_t value) {
    gs_json_push(array, gs_json_new_int(value));
}

static gs_json *encode_spans(const gs_timeline_step *step) {
    gs_json *out = gs_json_new_array();
    for (int i = 0; i < step->num_spans; i++) {
        const gs_span *span = &step->spans[i];
        gs_json *row = gs_json_new_array();
        gs_json_push(row, gs_json_new_string(gs_span_kind_name(span->kind)));
        push_int(row, span->begin_ns - step->begin_ns);
        push_int(row, span->end_ns - step->begin_ns);
        gs_json_push(out, row);
    }
    return out;
}

// Three moments for each phase that there was.
static gs_json *encode_phases(const gs_timeline_step *step, size_t index) {
    gs_json *out = gs_json_new_array();
    for (int p = 0; p < step->max_phases; p++) {
        const gs_phase_times *phase = &step->phases[index * (size_t)step->max_phases + (size_t)p];
        if (!phase->posted_ns) break;
        push_int(out, since(phase->posted_ns, step->begin_ns));
        push_int(out, since(phase->started_ns, step->begin_ns));
        push_int(out, since(phase->finished_ns, step->begin_ns));
    }
    return out;
}

// Rows of numbers: with hundreds of buckets and ranks the names of members would be most of the message.
static gs_json *encode_bucket(const gs_timeline_step *step, size_t index) {
    const gs_bucket_times *bucket = &step->buckets[index];
    gs_json *row = gs_json_new_array();
    push_int(row, (int64_t)index);
    push_int(row, (int64_t)bucket->bytes);
    push_int(row, (int64_t)bucket->wire_bytes);
    push_int(row, since(bucket->ready_ns, step->begin_ns));
    push_int(row, since(bucket->posted_ns, step->begin_ns));
    push_int(row, since(bucket->all_arrived_ns, step->begin_ns));
    push_int(row, since(bucket->started_ns, step->begin_ns));
    push_int(row, since(bucket->finished_ns, step->begin_ns));
    push_int(row, bucket->copy_in_ns);
    push_int(row, bucket->copy_out_ns);
    gs_json_push(row, gs_json_new_string(bucket->algorithm ? bucket->algorithm : "none"));
    if (step->max_phases) gs_json_push(row, encode_phases(step, index));
    return row;
}

static gs_json *encode_step(const gs_timeline_step *step) {
    gs_json *out = gs_json_new_object(), *buckets = gs_json_new_array();
    gs_json_set_int(out, "step", step->step);
    gs_json_set_int(out, "generation", step->generation);
    if (step->plan_revision) gs_json_set_int(out, "plan_revision", step->plan_revision);
    gs_json_set_u64(out, "plan_digest", step->plan_digest);
    gs_json_set_int(out, "begin_ns", step->begin_ns);
    gs_json_set_int(out, "duration_ns", step->end_ns - step->begin_ns);
    gs_json_set_int(out, "backward_begin_ns", since(step->backward_begin_ns, step->begin_ns));
    gs_json_set_int(out, "backward_end_ns", since(step->backward_end_ns, step->begin_ns));
    gs_json_set_int(out, "samples", step->samples);
    gs_json_set_bool(out, "applied", step->applied);
    gs_json_set_int(out, "unused_parameters", (int64_t)step->num_unused);
    gs_json_set_int(out, "unused_bytes", (int64_t)step->unused_bytes);
    gs_json_set(out, "spans", encode_spans(step));
    for (size_t i = 0; i < step->num_buckets; i++) gs_json_push(buckets, encode_bucket(step, i));
    gs_json_set(out, "buckets", buckets);
    int64_t left_out = step->num_spans_dropped + (int64_t)step->num_buckets_dropped;
    if (left_out) gs_json_set_int(out, "left_out", left_out);
    return out;
}

gs_json *gs_timeline_pages_next(gs_timeline_pages *pages) {
    if (pages->ended) return NULL;
    gs_json *page = gs_json_new_object(), *steps = gs_json_new_array();
    size_t page_rows = 0;
    while (pages->next_step <= pages->last_step && page_rows < GS_TIMELINE_PAGE_ROWS) {
        gs_timeline_step step;
        gs_status status = gs_timeline_copy(&step, pages->timeline, pages->next_step);
        size_t rows = status.code ? 0 : gs_timeline_step_rows(&step);
        // A step is at most 2,144 rows, so a page stays far below what a call may carry.
        if (page_rows > 0 && page_rows + rows > GS_TIMELINE_PAGE_ROWS) {
            gs_timeline_step_release(&step);
            break;
        }
        pages->next_step++;
        if (status.code) continue;  // overwritten meanwhile, or never filed
        gs_json_push(steps, encode_step(&step));
        gs_timeline_step_release(&step);
        page_rows += rows;
    }
    pages->ended = pages->next_step > pages->last_step;
    gs_json_set(page, "steps", steps);
    gs_json_set_bool(page, "more", !pages->ended);
    return page;
}
