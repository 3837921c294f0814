#include "worker/telemetry/timeline.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

// Phases of a kind that follow each other closer than this are shown as one.
#define JOIN_NS 2000

struct gs_timeline {
    int64_t ring_steps;
    atomic_bool on;

    // Compute thread.
    gs_timeline_plan plan;
    bool open;
    gs_timeline_step *current;  // not in the ring

    pthread_mutex_t lock;  // of what follows
    size_t num_slots, num_filed, next, max_buckets;
    int max_phases;  // 0: phases are not kept
    gs_timeline_step **slots;  // num_slots; the last num_filed before `next` are filed
};

const char *gs_span_kind_name(gs_span_kind kind) {
    static const char *const names[GS_NUM_SPAN_KINDS] = {"unset",      "data",      "forward",
                                                         "backward",   "reduction", "commit",
                                                         "optimizer",  "checkpoint", "evaluate",
                                                         "opening"};
    return (unsigned)kind < GS_NUM_SPAN_KINDS ? names[kind] : "unset";
}

// Of one bucket.
static size_t bucket_bytes(int max_phases) {
    return sizeof(gs_bucket_times) + (size_t)max_phases * sizeof(gs_phase_times);
}

static gs_timeline_step *make_step(size_t max_buckets, int max_phases) {
    gs_timeline_step *step =
        calloc(1, sizeof(gs_timeline_step) + max_buckets * bucket_bytes(max_phases));
    if (!step) return NULL;
    step->buckets = (gs_bucket_times *)(step + 1);
    step->phases = (gs_phase_times *)(step->buckets + max_buckets);
    return step;
}

static size_t slots_for(const gs_timeline *timeline, size_t max_buckets, int max_phases) {
    size_t step_bytes = sizeof(gs_timeline_step) + max_buckets * bucket_bytes(max_phases);
    size_t most = GS_TIMELINE_BYTES / step_bytes;
    size_t wanted = (size_t)timeline->ring_steps;
    return wanted < most ? wanted : most ? most : 1;
}

static void release_slots(gs_timeline_step **slots, size_t num_slots) {
    for (size_t i = 0; slots && i < num_slots; i++) free(slots[i]);
    free(slots);
}

static gs_timeline_step **make_slots(size_t num_slots, size_t max_buckets, int max_phases) {
    gs_timeline_step **slots = calloc(num_slots, sizeof *slots);
    for (size_t i = 0; slots && i < num_slots; i++) {
        slots[i] = make_step(max_buckets, max_phases);
        if (slots[i]) continue;
        release_slots(slots, num_slots);
        return NULL;
    }
    return slots;
}

gs_status gs_timeline_create(gs_timeline **out, int64_t ring_steps) {
    if (ring_steps < 1) return gs_error(GS_INVALID_ARGUMENT, "timeline: %lld steps", (long long)ring_steps);
    gs_timeline *timeline = calloc(1, sizeof *timeline);
    if (!timeline) return gs_error(GS_RESOURCE_EXHAUSTED, "timeline: out of memory");
    timeline->ring_steps = ring_steps;
    atomic_store(&timeline->on, true);
    pthread_mutex_init(&timeline->lock, NULL);
    *out = timeline;
    return gs_ok();
}

void gs_timeline_destroy(gs_timeline *timeline) {
    if (!timeline) return;
    release_slots(timeline->slots, timeline->num_slots);
    free(timeline->current);
    pthread_mutex_destroy(&timeline->lock);
    free(timeline);
}

static void copy_step(gs_timeline_step *to, const gs_timeline_step *from) {
    gs_bucket_times *buckets = to->buckets;
    gs_phase_times *phases = to->phases;
    size_t num_phases = from->num_buckets * (size_t)from->max_phases;
    *to = *from;
    to->buckets = buckets;
    to->phases = phases;
    if (from->num_buckets) memcpy(buckets, from->buckets, from->num_buckets * sizeof *buckets);
    if (num_phases) memcpy(phases, from->phases, num_phases * sizeof *phases);
}

static gs_timeline_step *filed_at(const gs_timeline *timeline, size_t age) {
    return timeline->slots[(timeline->next + timeline->num_slots - 1 - age) % timeline->num_slots];
}

// The newest steps move to the new slots; under the lock.
static void adopt_slots(gs_timeline *timeline, gs_timeline_step **slots, size_t num_slots,
                        size_t max_buckets, int max_phases) {
    size_t kept = timeline->num_filed < num_slots ? timeline->num_filed : num_slots;
    for (size_t i = 0; i < kept; i++) copy_step(slots[i], filed_at(timeline, kept - 1 - i));
    release_slots(timeline->slots, timeline->num_slots);
    timeline->slots = slots;
    timeline->num_slots = num_slots;
    timeline->num_filed = kept;
    timeline->next = kept % num_slots;
    timeline->max_buckets = max_buckets;
    timeline->max_phases = max_phases;
}

gs_status gs_timeline_prepare(gs_timeline *timeline, const gs_timeline_plan *plan) {
    if (!timeline) return gs_ok();
    timeline->plan = *plan;
    timeline->open = false;
    size_t max_buckets = plan->num_buckets < GS_TIMELINE_BUCKETS ? plan->num_buckets : GS_TIMELINE_BUCKETS;
    int max_phases = plan->num_phases > 1 ? plan->num_phases : 0;
    if (timeline->slots && max_buckets <= timeline->max_buckets &&
        max_phases <= timeline->max_phases)
        return gs_ok();
    // What is filed keeps its room.
    if (max_buckets < timeline->max_buckets) max_buckets = timeline->max_buckets;
    if (max_phases < timeline->max_phases) max_phases = timeline->max_phases;
    size_t num_slots = slots_for(timeline, max_buckets, max_phases);
    gs_timeline_step *current = make_step(max_buckets, max_phases);
    gs_timeline_step **slots = current ? make_slots(num_slots, max_buckets, max_phases) : NULL;
    if (!slots) {
        free(current);
        return gs_error(GS_RESOURCE_EXHAUSTED, "timeline: no memory for %zu steps of %zu buckets",
                        num_slots, max_buckets);
    }
    free(timeline->current);
    timeline->current = current;
    pthread_mutex_lock(&timeline->lock);
    adopt_slots(timeline, slots, num_slots, max_buckets, max_phases);
    pthread_mutex_unlock(&timeline->lock);
    return gs_ok();
}

void gs_timeline_begin(gs_timeline *timeline, int64_t step) {
    if (!timeline || !timeline->current) return;
    timeline->open = atomic_load_explicit(&timeline->on, memory_order_relaxed);
    if (!timeline->open) return;
    gs_timeline_step *current = timeline->current;
    current->step = step;
    current->begin_ns = gs_now_ns();
    current->end_ns = current->backward_begin_ns = current->backward_end_ns = 0;
    current->generation = timeline->plan.generation;
    current->plan_revision = timeline->plan.revision;
    current->plan_digest = timeline->plan.digest;
    current->num_spans = current->num_spans_dropped = 0;
    current->num_buckets = current->num_buckets_dropped = current->num_unused = 0;
    current->max_phases = 0;
    current->unused_bytes = 0;
}

static void add_span(gs_timeline_step *current, const gs_span *span) {
    gs_span *last = current->num_spans ? &current->spans[current->num_spans - 1] : NULL;
    bool joins = last && last->kind == span->kind && span->begin_ns - last->end_ns < JOIN_NS;
    if (joins && !current->num_spans_dropped) {
        last->end_ns = span->end_ns;
    } else if (current->num_spans < GS_TIMELINE_SPANS) {
        current->spans[current->num_spans++] = *span;
    } else {
        current->num_spans_dropped++;
    }
}

void gs_timeline_add(gs_timeline *timeline, gs_span_kind kind, int64_t begin_ns) {
    if (!timeline || !timeline->open) return;
    add_span(timeline->current, &(gs_span){kind, begin_ns, gs_now_ns()});
}

void gs_timeline_add_span(gs_timeline *timeline, const gs_span *span) {
    if (!timeline || !timeline->open) return;
    gs_span inside = *span;
    if (inside.begin_ns < timeline->current->begin_ns)
        inside.begin_ns = timeline->current->begin_ns;
    if (inside.end_ns > inside.begin_ns) add_span(timeline->current, &inside);
}

void gs_timeline_reduced(gs_timeline *timeline, const gs_reduce_stats *stats) {
    if (!timeline || !timeline->open || !stats) return;
    gs_timeline_step *current = timeline->current;
    size_t kept = stats->num_buckets;
    if (kept > timeline->max_buckets) kept = timeline->max_buckets;
    memcpy(current->buckets, stats->buckets, kept * sizeof *current->buckets);
    if (stats->phases && stats->max_phases <= timeline->max_phases) {
        current->max_phases = stats->max_phases;
        memcpy(current->phases, stats->phases,
               kept * (size_t)stats->max_phases * sizeof *current->phases);
    }
    current->num_buckets = kept;
    current->num_buckets_dropped = stats->num_buckets - kept;
    current->num_unused = stats->num_unused;
    current->unused_bytes = stats->unused_bytes;
    current->backward_begin_ns = stats->backward_begin_ns;
    current->backward_end_ns = stats->backward_end_ns;
}

void gs_timeline_finish(gs_timeline *timeline, int64_t samples, bool applied) {
    if (!timeline || !timeline->open) return;
    timeline->open = false;
    gs_timeline_step *current = timeline->current;
    current->samples = samples;
    current->applied = applied;
    current->end_ns = gs_now_ns();
    // The filed step and the oldest one change places: nothing is copied.
    pthread_mutex_lock(&timeline->lock);
    timeline->current = timeline->slots[timeline->next];
    timeline->slots[timeline->next] = current;
    timeline->next = (timeline->next + 1) % timeline->num_slots;
    if (timeline->num_filed < timeline->num_slots) timeline->num_filed++;
    pthread_mutex_unlock(&timeline->lock);
}

void gs_timeline_switch(gs_timeline *timeline, bool on) {
    atomic_store_explicit(&timeline->on, on, memory_order_relaxed);
}

bool gs_timeline_range(gs_timeline *timeline, int64_t *oldest, int64_t *newest) {
    pthread_mutex_lock(&timeline->lock);
    bool any = timeline->num_filed > 0;
    if (any) {
        *newest = filed_at(timeline, 0)->step;
        *oldest = filed_at(timeline, timeline->num_filed - 1)->step;
    }
    pthread_mutex_unlock(&timeline->lock);
    return any;
}

int64_t gs_timeline_fit(gs_timeline *timeline, int64_t from_step, int64_t to_step, size_t max_rows) {
    int64_t first = to_step;
    size_t rows = 0;
    pthread_mutex_lock(&timeline->lock);
    for (size_t age = 0; age < timeline->num_filed; age++) {
        const gs_timeline_step *step = filed_at(timeline, age);
        if (step->step > to_step || step->step < from_step) continue;
        rows += gs_timeline_step_rows(step);
        if (rows > max_rows && step->step != to_step) break;
        if (step->step < first) first = step->step;
    }
    pthread_mutex_unlock(&timeline->lock);
    return first;
}

gs_status gs_timeline_copy(gs_timeline_step *out, gs_timeline *timeline, int64_t step) {
    *out = (gs_timeline_step){0};
    gs_bucket_times *buckets = NULL;
    size_t room = 0;
    for (;;) {
        gs_status status = gs_error(GS_NOT_FOUND, "step %lld is not in the ring", (long long)step);
        pthread_mutex_lock(&timeline->lock);
        const gs_timeline_step *found = NULL;
        // The newest of that number: a step that was redone is there twice.
        for (size_t age = 0; age < timeline->num_filed && !found; age++) {
            if (filed_at(timeline, age)->step == step) found = filed_at(timeline, age);
        }
        size_t needed = found ? found->num_buckets * bucket_bytes(found->max_phases) : 0;
        if (found && (buckets || needed == 0) && needed <= room) {
            out->buckets = buckets;
            if (buckets) out->phases = (gs_phase_times *)(buckets + found->num_buckets);
            copy_step(out, found);
            status = gs_ok();
        }
        pthread_mutex_unlock(&timeline->lock);
        if (!found) free(buckets);
        if (!status.code || !found) return status;
        // Memory is made outside the lock; by then the step may have gone.
        free(buckets);
        room = needed;
        buckets = malloc(room);
        if (!buckets) return gs_error(GS_RESOURCE_EXHAUSTED, "timeline: out of memory");
    }
}

void gs_timeline_step_release(gs_timeline_step *step) {
    free(step->buckets);
    *step = (gs_timeline_step){0};
}
