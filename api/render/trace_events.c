#include "api/render/trace_events.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    LANE_FORWARD = 1,
    LANE_BACKWARD,
    LANE_REDUCTION,
    LANE_OPTIMIZER,
    LANE_DATA,
    LANE_EXPOSED,
    LANE_OTHER,
    LANE_STEP,
    FIRST_MORE_LANE = 31,
    MAX_MORE_LANES = 64
};

typedef struct trace_event {
    int64_t at_ns, duration_ns;
    size_t number;  // in the order of making, which decides between equal times
    char phase;     // of the format: X i s f C
    int rank, lane;
    const char *name;         // constant, or borrowed from the document
    const gs_json *step, *bucket;  // borrowed; NULL: none
    int64_t value;            // of counters; id of flows; number of a phase
    bool is_hook_phase;       // of the bucket
} trace_event;

typedef struct trace_builder {
    trace_event *events;  // owned
    size_t num_events, max_events;
    bool failed;
    int64_t num_flows;
    int most_lanes;  // of reductions beside the first
} trace_builder;

static void add_event(trace_builder *trace, const trace_event *event) {
    if (trace->num_events == trace->max_events) {
        size_t room = trace->max_events ? 2 * trace->max_events : 256;
        trace_event *events = realloc(trace->events, room * sizeof *events);
        if (!events) {
            trace->failed = true;
            return;
        }
        trace->events = events;
        trace->max_events = room;
    }
    trace->events[trace->num_events] = *event;
    trace->events[trace->num_events].number = trace->num_events;
    trace->num_events++;
}

static int64_t ns_of(const gs_json *object, const char *key) {
    double seconds = gs_json_double_or(object, key, -1);
    return seconds < 0 ? -1 : (int64_t)llround(seconds * 1e9);
}

static int lane_of(const char *phase) {
    static const struct {
        const char *phase;
        int lane;
    } lanes[] = {{"forward", LANE_FORWARD},     {"backward", LANE_BACKWARD},
                 {"optimizer", LANE_OPTIMIZER}, {"data", LANE_DATA},
                 {"reduction", LANE_EXPOSED},   {"commit", LANE_EXPOSED},
                 {"opening", LANE_EXPOSED}};
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++) {
        if (strcmp(lanes[i].phase, phase) == 0) return lanes[i].lane;
    }
    return LANE_OTHER;
}

static void add_phases(trace_builder *trace, int rank, const gs_json *step, int64_t begin_ns) {
    const gs_json *phases = gs_json_get(step, "phases");
    for (size_t i = 0; i < gs_json_count(phases); i++) {
        const gs_json *phase = gs_json_at(phases, i);
        const char *name = gs_json_string_or(phase, "phase", "");
        int64_t from_ns = ns_of(phase, "begin_seconds"), to_ns = ns_of(phase, "end_seconds");
        if (to_ns < from_ns) continue;
        add_event(trace, &(trace_event){.at_ns = begin_ns + from_ns,
                                        .duration_ns = to_ns - from_ns,
                                        .phase = 'X',
                                        .rank = rank,
                                        .lane = lane_of(name),
                                        // "reduction" is the name of the lane of buckets
                                        .name = strcmp(name, "reduction") ? name : "finish",
                                        .step = step});
    }
}

// The first lane that is free again; the last one takes what is left.
static int take_lane(int64_t free_ns[MAX_MORE_LANES], int64_t from_ns, int64_t to_ns) {
    int lane = 0;
    while (lane < MAX_MORE_LANES - 1 && free_ns[lane] > from_ns) lane++;
    free_ns[lane] = to_ns;
    return lane;
}

// Slices within the bucket's own.
static void add_hook_phases(trace_builder *trace, trace_event event, int64_t begin_ns) {
    const gs_json *phases = gs_json_get(event.bucket, "phases");
    event.is_hook_phase = true;
    for (size_t i = 0; i < gs_json_count(phases); i++) {
        const gs_json *phase = gs_json_at(phases, i);
        int64_t from_ns = ns_of(phase, "started_seconds"), to_ns = ns_of(phase, "finished_seconds");
        if (from_ns < 0 || to_ns < from_ns) continue;
        event.at_ns = begin_ns + from_ns;
        event.duration_ns = to_ns - from_ns;
        event.value = (int64_t)i;
        add_event(trace, &event);
    }
}

static void add_bucket(trace_builder *trace, trace_event event, int64_t begin_ns,
                       int64_t free_ns[MAX_MORE_LANES]) {
    const gs_json *bucket = event.bucket;
    int64_t ready_ns = ns_of(bucket, "ready_seconds"), posted_ns = ns_of(bucket, "launched_seconds");
    int64_t from_ns = ns_of(bucket, "started_seconds"), to_ns = ns_of(bucket, "finished_seconds");
    if (from_ns < 0) from_ns = posted_ns >= 0 ? posted_ns : ready_ns;
    if (from_ns < 0) return;
    if (to_ns < from_ns) to_ns = from_ns;
    int lane = take_lane(free_ns, from_ns, to_ns);
    if (lane > trace->most_lanes) trace->most_lanes = lane;
    event.phase = 'X';
    event.lane = lane ? FIRST_MORE_LANE + lane - 1 : LANE_REDUCTION;
    event.at_ns = begin_ns + from_ns;
    event.duration_ns = to_ns - from_ns;
    add_event(trace, &event);
    add_hook_phases(trace, event, begin_ns);
    if (ready_ns >= 0 && ready_ns <= from_ns) {
        event.phase = 'f';
        event.value = ++trace->num_flows;
        add_event(trace, &event);
        event.at_ns = begin_ns + ready_ns;
        event.lane = LANE_BACKWARD;
        event.phase = 's';
        add_event(trace, &event);
        event.phase = 'i';
        add_event(trace, &event);
    }
    event.phase = 'C';
    event.value = gs_json_int_or(bucket, "bytes", 0);
    event.at_ns = begin_ns + (posted_ns >= 0 ? posted_ns : from_ns);
    add_event(trace, &event);
    event.value = -event.value;
    event.at_ns = begin_ns + to_ns;
    add_event(trace, &event);
}

static void add_step(trace_builder *trace, int rank, const gs_json *step) {
    int64_t begin_ns = ns_of(step, "begin_seconds");
    const gs_json *buckets = gs_json_get(step, "buckets");
    int64_t free_ns[MAX_MORE_LANES] = {0};
    add_event(trace, &(trace_event){.at_ns = begin_ns,
                                    .duration_ns = ns_of(step, "duration_seconds"),
                                    .phase = 'X',
                                    .rank = rank,
                                    .lane = LANE_STEP,
                                    .name = "step",
                                    .step = step});
    add_phases(trace, rank, step, begin_ns);
    for (size_t i = 0; i < gs_json_count(buckets); i++)
        add_bucket(trace,
                   (trace_event){.rank = rank, .step = step, .bucket = gs_json_at(buckets, i)},
                   begin_ns, free_ns);
}

static int compare_events(const void *a, const void *b) {
    const trace_event *left = a, *right = b;
    if (left->at_ns != right->at_ns) return left->at_ns < right->at_ns ? -1 : 1;
    // What begins together: the longer one contains the other.
    if (left->duration_ns != right->duration_ns)
        return left->duration_ns > right->duration_ns ? -1 : 1;
    return left->number < right->number ? -1 : 1;
}

static void write_text(gs_strbuf *out, const char *text) {
    gs_strbuf_putc(out, '"');
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') gs_strbuf_putc(out, '\\');
        gs_strbuf_putc(out, (unsigned char)*c < ' ' ? ' ' : *c);
    }
    gs_strbuf_putc(out, '"');
}

static void write_us(gs_strbuf *out, int64_t ns) {
    if (ns < 0) ns = 0;
    gs_strbuf_printf(out, "%" PRId64 ".%03" PRId64, ns / 1000, ns % 1000);
}

static void write_separator(gs_strbuf *out, bool *first) {
    gs_strbuf_puts(out, *first ? "\n" : ",\n");
    *first = false;
}

static void write_metadata(gs_strbuf *out, bool *first, int rank, int lane, const char *kind,
                           const char *name) {
    write_separator(out, first);
    gs_strbuf_printf(out, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":",
                     rank, lane, kind);
    write_text(out, name);
    gs_strbuf_puts(out, "}}");
}

static void write_names(gs_strbuf *out, bool *first, const gs_json *rank_json, int more_lanes) {
    static const char *const lanes[] = {"",     "forward", "backward", "reduction", "optimizer",
                                        "data", "exposed", "other",    "step"};
    int rank = (int)gs_json_int_or(rank_json, "rank", 0);
    gs_strbuf name = {0};
    gs_strbuf_printf(&name, "rank %d on %s", rank, gs_json_string_or(rank_json, "host", "?"));
    write_metadata(out, first, rank, 0, "process_name", gs_strbuf_text(&name));
    for (int lane = LANE_FORWARD; lane <= LANE_STEP; lane++)
        write_metadata(out, first, rank, lane, "thread_name", lanes[lane]);
    for (int i = 0; i < more_lanes; i++) {
        gs_strbuf_clear(&name);
        gs_strbuf_printf(&name, "reduction %d", i + 2);
        write_metadata(out, first, rank, FIRST_MORE_LANE + i, "thread_name", gs_strbuf_text(&name));
    }
    gs_strbuf_release(&name);
}

static void write_bucket_args(gs_strbuf *out, const gs_json *bucket) {
    static const char *const moments[] = {"launched_seconds", "arrived_seconds"};
    gs_strbuf_printf(out, ",\"bucket\":%" PRId64 ",\"bytes\":%" PRId64 ",\"wire_bytes\":%" PRId64,
                     gs_json_int_or(bucket, "index", 0), gs_json_int_or(bucket, "bytes", 0),
                     gs_json_int_or(bucket, "wire_bytes", 0));
    for (size_t i = 0; i < 2; i++) {
        int64_t ns = ns_of(bucket, moments[i]);
        if (ns < 0) continue;
        gs_strbuf_printf(out, ",\"%s\":%.9f", moments[i], (double)ns / 1e9);
    }
    gs_strbuf_puts(out, ",\"algorithm\":");
    write_text(out, gs_json_string_or(bucket, "algorithm", "none"));
}

static void write_name(gs_strbuf *out, const trace_event *event) {
    if (!event->bucket) write_text(out, event->name);
    else if (event->is_hook_phase)
        gs_strbuf_printf(out, "\"phase %" PRId64 "\"", event->value);
    else if (event->phase == 'X')
        gs_strbuf_printf(out, "\"bucket %" PRId64 "\"", gs_json_int_or(event->bucket, "index", 0));
    else if (event->phase == 'i')
        gs_strbuf_puts(out, "\"bucket ready\"");
    else
        gs_strbuf_puts(out, event->phase == 'C' ? "\"bytes in flight\"" : "\"reduce\"");
}

static void write_event(gs_strbuf *out, const trace_event *event, int64_t in_flight) {
    gs_strbuf_printf(out, "{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d,\"name\":", event->phase, event->rank,
                     event->phase == 'C' ? 0 : event->lane);
    write_name(out, event);
    gs_strbuf_puts(out, ",\"ts\":");
    write_us(out, event->at_ns);
    if (event->phase == 'X') {
        gs_strbuf_puts(out, ",\"dur\":");
        write_us(out, event->duration_ns);
    }
    if (event->phase == 'C') {
        gs_strbuf_printf(out, ",\"args\":{\"bytes\":%" PRId64 "}}", in_flight);
        return;
    }
    gs_strbuf_puts(out, ",\"cat\":\"gradsync\"");
    if (event->phase == 'i') gs_strbuf_puts(out, ",\"s\":\"t\"");
    if (event->phase == 's' || event->phase == 'f')
        gs_strbuf_printf(out, ",\"id\":%" PRId64 "%s", event->value,
                         event->phase == 'f' ? ",\"bp\":\"e\"" : "");
    gs_strbuf_printf(out, ",\"args\":{\"step\":%" PRId64, gs_json_int_or(event->step, "step", 0));
    if (event->bucket && !event->is_hook_phase) write_bucket_args(out, event->bucket);
    gs_strbuf_puts(out, "}}");
}

static void write_about(gs_strbuf *out, const gs_json *timeline) {
    const gs_json *plan = gs_json_get(timeline, "plan"), *ranks = gs_json_get(timeline, "ranks");
    gs_strbuf_puts(out, "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{\"job\":");
    write_text(out, gs_json_string_or(timeline, "job", ""));
    gs_strbuf_puts(out, ",\"plan_hash\":");
    write_text(out, gs_json_string_or(plan, "hash", ""));
    gs_strbuf_puts(out, ",\"hook\":");
    write_text(out, gs_json_string_or(plan, "hook", ""));
    gs_strbuf_printf(out, ",\"plan_revision\":%" PRId64 ",\"generation\":%" PRId64 ",\"clock\":",
                     gs_json_int_or(plan, "revision", 0), gs_json_int_or(timeline, "generation", 0));
    write_text(out, gs_json_string_or(timeline, "clock", ""));
    gs_strbuf_puts(out, ",\"clock_offsets\":{");
    for (size_t i = 0; i < gs_json_count(ranks); i++) {
        const gs_json *rank = gs_json_at(ranks, i);
        gs_strbuf_printf(out, "%s\"%" PRId64 "\":%.9f", i ? "," : "", gs_json_int_or(rank, "rank", 0),
                         gs_json_double_or(rank, "clock_offset_seconds", 0));
    }
    gs_strbuf_puts(out, "}}}\n");
}

static void write_events(gs_strbuf *out, bool *first, const trace_builder *trace, int max_rank) {
    int64_t *in_flight = calloc((size_t)max_rank + 1, sizeof *in_flight);
    for (size_t i = 0; in_flight && i < trace->num_events; i++) {
        const trace_event *event = &trace->events[i];
        if (event->phase == 'C') in_flight[event->rank] += event->value;
        write_separator(out, first);
        write_event(out, event, in_flight[event->rank]);
    }
    free(in_flight);
}

void gs_trace_events_write(gs_strbuf *out, const gs_json *timeline) {
    trace_builder trace = {0};
    const gs_json *ranks = gs_json_get(timeline, "ranks");
    int max_rank = 0;
    for (size_t i = 0; i < gs_json_count(ranks); i++) {
        const gs_json *rank_json = gs_json_at(ranks, i), *steps = gs_json_get(rank_json, "steps");
        int rank = (int)gs_json_int_or(rank_json, "rank", 0);
        if (rank > max_rank) max_rank = rank;
        for (size_t k = 0; k < gs_json_count(steps); k++)
            add_step(&trace, rank, gs_json_at(steps, k));
    }
    if (trace.num_events) qsort(trace.events, trace.num_events, sizeof *trace.events, compare_events);
    bool first = true;
    gs_strbuf_puts(out, "{\"traceEvents\":[");
    for (size_t i = 0; i < gs_json_count(ranks); i++)
        write_names(out, &first, gs_json_at(ranks, i), trace.most_lanes);
    write_events(out, &first, &trace, max_rank);
    write_about(out, timeline);
    if (trace.failed) out->failed = true;
    free(trace.events);
}
