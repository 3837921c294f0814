#include "api/render/timeline_view.h"

#include <stdlib.h>
#include <string.h>

// One step of one rank, where it lies in the pages.
typedef struct rank_step {
    const gs_json *json;  // borrowed
    int64_t step, begin_ns, commit_ns;
} rank_step;

typedef struct rank_steps {
    int rank;
    const gs_json *about;  // borrowed; NULL: not described
    rank_step *steps;      // owned
    size_t num_steps, max_steps;
    int64_t offset_ns;  // added to its clock
} rank_steps;

typedef struct view_builder {
    rank_steps *ranks;  // owned; in order of rank
    size_t num_ranks;
    bool shared_clock, failed;
} view_builder;

// What ranks say may be anything; sums and differences of what is let through stay in range.
#define MOST_NS ((int64_t)1000000000000000000)  // 31 years; step numbers too
#define MOST_BYTES ((int64_t)100000000000000)
#define MOST_HOOK_PHASES 8
#define MOST_RANK 65535

static int64_t within(int64_t value, int64_t most) {
    return value > most ? most : value < -most ? -most : value;
}

static int64_t whole_at(const gs_json *row, size_t index) {
    int64_t value = 0;
    return gs_json_int(&value, gs_json_at(row, index)) ? within(value, MOST_NS) : 0;
}

static int64_t whole_of(const gs_json *object, const char *key, int64_t fallback) {
    return within(gs_json_int_or(object, key, fallback), MOST_NS);
}

// When the step's commit ended here; without one, when the step did.
static int64_t commit_end_ns(const gs_json *step, int64_t begin_ns) {
    const gs_json *spans = gs_json_get(step, "spans");
    for (size_t i = 0; i < gs_json_count(spans); i++) {
        const gs_json *span = gs_json_at(spans, i);
        const char *kind = gs_json_string(gs_json_at(span, 0));
        if (kind && strcmp(kind, "commit") == 0) return begin_ns + whole_at(span, 2);
    }
    return begin_ns + whole_of(step, "duration_ns", 0);
}

static rank_steps *find_rank(view_builder *view, int64_t rank) {
    for (size_t i = 0; i < view->num_ranks; i++) {
        if (view->ranks[i].rank == rank) return &view->ranks[i];
    }
    return NULL;
}

static bool add_step(rank_steps *of_rank, const gs_json *step) {
    if (of_rank->num_steps == of_rank->max_steps) {
        size_t room = of_rank->max_steps ? 2 * of_rank->max_steps : 16;
        rank_step *steps = realloc(of_rank->steps, room * sizeof *steps);
        if (!steps) return false;
        of_rank->steps = steps;
        of_rank->max_steps = room;
    }
    int64_t begin_ns = whole_of(step, "begin_ns", 0);
    of_rank->steps[of_rank->num_steps++] =
        (rank_step){.json = step,
                    .step = whole_of(step, "step", 0),
                    .begin_ns = begin_ns,
                    .commit_ns = commit_end_ns(step, begin_ns)};
    return true;
}

static void collect(view_builder *view, const gs_json *const *pages, size_t num_pages,
                    const gs_json *about) {
    const gs_json *list = gs_json_get(about, "ranks");
    view->ranks = calloc(gs_json_count(list) + 1, sizeof *view->ranks);
    view->failed = !view->ranks;
    for (size_t i = 0; !view->failed && i < gs_json_count(list); i++) {
        int64_t rank = gs_json_int_or(gs_json_at(list, i), "rank", -1);
        if (rank < 0 || rank > MOST_RANK) continue;  // whoever has no number is none
        view->ranks[view->num_ranks++] = (rank_steps){.about = gs_json_at(list, i), .rank = (int)rank};
    }
    for (size_t i = 0; !view->failed && i < num_pages; i++) {
        rank_steps *of_rank = find_rank(view, gs_json_int_or(pages[i], "rank", -1));
        const gs_json *steps = gs_json_get(pages[i], "steps");
        for (size_t k = 0; of_rank && k < gs_json_count(steps); k++) {
            if (!add_step(of_rank, gs_json_at(steps, k))) view->failed = true;
        }
    }
}

static const rank_step *find_step(const rank_steps *of_rank, int64_t step) {
    for (size_t i = of_rank->num_steps; i-- > 0;) {
        if (of_rank->steps[i].step == step) return &of_rank->steps[i];
    }
    return NULL;
}

static bool all_have(const view_builder *view, int64_t step) {
    for (size_t i = 0; i < view->num_ranks; i++) {
        if (view->ranks[i].num_steps > 0 && !find_step(&view->ranks[i], step)) return false;
    }
    return true;
}

static void keep_range(rank_steps *of_rank, int64_t from_step, int64_t to_step) {
    size_t kept = 0;
    for (size_t i = 0; i < of_rank->num_steps; i++) {
        int64_t step = of_rank->steps[i].step;
        if (step >= from_step && step <= to_step) of_rank->steps[kept++] = of_rank->steps[i];
    }
    of_rank->num_steps = kept;
}

// The newest `last` steps up to the newest one that all ranks have; of ranks that have none in common,
// each one's own newest.
static void pick_last(view_builder *view, int64_t last) {
    int64_t newest = -1;
    for (size_t i = 0; i < view->num_ranks; i++) {
        const rank_steps *of_rank = &view->ranks[i];
        for (size_t k = 0; k < of_rank->num_steps; k++) {
            int64_t step = of_rank->steps[k].step;
            if (step > newest && all_have(view, step)) newest = step;
        }
    }
    for (size_t i = 0; i < view->num_ranks; i++) {
        rank_steps *of_rank = &view->ranks[i];
        if (of_rank->num_steps == 0) continue;
        int64_t to = newest >= 0 ? newest : of_rank->steps[of_rank->num_steps - 1].step;
        keep_range(of_rank, to - last + 1, to);
    }
}

static void pick_steps(view_builder *view, const gs_timeline_pick *pick) {
    if (pick->last > 0) {
        pick_last(view, pick->last);
        return;
    }
    for (size_t i = 0; i < view->num_ranks; i++)
        keep_range(&view->ranks[i], pick->from_step, pick->to_step);
}

// Boot ids tell machines apart; of ranks that have ended only the host's name is left.
static bool same_clock(const rank_steps *a, const rank_steps *b) {
    const char *key = gs_json_get(a->about, "boot_id") && gs_json_get(b->about, "boot_id") ? "boot_id"
                                                                                            : "host";
    return strcmp(gs_json_string_or(a->about, key, ""), gs_json_string_or(b->about, key, "")) == 0;
}

static int compare_whole(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

// The median distance of commits that are one moment.
static int64_t estimate_offset(const rank_steps *reference, const rank_steps *of_rank) {
    int64_t *distances = calloc(of_rank->num_steps + 1, sizeof *distances);
    size_t count = 0;
    if (!distances) return 0;
    for (size_t i = 0; i < of_rank->num_steps; i++) {
        const rank_step *same = find_step(reference, of_rank->steps[i].step);
        if (same) distances[count++] = same->commit_ns - of_rank->steps[i].commit_ns;
    }
    qsort(distances, count, sizeof *distances, compare_whole);
    int64_t offset_ns = count ? distances[count / 2] : 0;
    free(distances);
    return offset_ns;
}

static void align(view_builder *view) {
    const rank_steps *reference = NULL;
    view->shared_clock = true;
    for (size_t i = 0; i < view->num_ranks; i++) {
        rank_steps *of_rank = &view->ranks[i];
        if (of_rank->num_steps == 0) continue;
        if (!reference) reference = of_rank;
        if (same_clock(reference, of_rank)) continue;
        view->shared_clock = false;
        of_rank->offset_ns = estimate_offset(reference, of_rank);
    }
}

static int64_t find_origin(const view_builder *view) {
    int64_t origin_ns = INT64_MAX;
    for (size_t i = 0; i < view->num_ranks; i++) {
        for (size_t k = 0; k < view->ranks[i].num_steps; k++) {
            int64_t begin_ns = view->ranks[i].steps[k].begin_ns + view->ranks[i].offset_ns;
            if (begin_ns < origin_ns) origin_ns = begin_ns;
        }
    }
    return origin_ns;
}

static void set_seconds(gs_json *out, const char *key, int64_t ns) {
    gs_json_set_double(out, key, (double)ns / 1e9);
}

// A moment within the step; −1 is "never".
static void set_moment(gs_json *out, const char *key, int64_t ns) {
    if (ns >= 0) set_seconds(out, key, ns);
}

static gs_json *view_phases(const gs_json *spans) {
    gs_json *out = gs_json_new_array();
    for (size_t i = 0; i < gs_json_count(spans); i++) {
        const gs_json *span = gs_json_at(spans, i);
        gs_json *phase = gs_json_new_object();
        gs_json_set_string(phase, "phase", gs_json_string(gs_json_at(span, 0)));
        set_seconds(phase, "begin_seconds", whole_at(span, 1));
        set_seconds(phase, "end_seconds", whole_at(span, 2));
        gs_json_push(out, phase);
    }
    return out;
}

// Of a hook of several: three moments each, at most as many as there are lanes.
static gs_json *view_hook_phases(const gs_json *moments) {
    static const char *const names[] = {"launched_seconds", "started_seconds", "finished_seconds"};
    gs_json *out = gs_json_new_array();
    for (size_t i = 0; i + 3 <= gs_json_count(moments) && i < 3 * MOST_HOOK_PHASES; i += 3) {
        gs_json *phase = gs_json_new_object();
        for (size_t k = 0; k < 3; k++) set_moment(phase, names[k], whole_at(moments, i + k));
        gs_json_push(out, phase);
    }
    return out;
}

static gs_json *view_bucket(const gs_json *row) {
    static const char *const moments[] = {"ready_seconds", "launched_seconds", "arrived_seconds",
                                          "started_seconds", "finished_seconds"};
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "index", whole_at(row, 0));
    gs_json_set_int(out, "bytes", within(whole_at(row, 1), MOST_BYTES));
    gs_json_set_int(out, "wire_bytes", within(whole_at(row, 2), MOST_BYTES));
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++)
        set_moment(out, moments[i], whole_at(row, 3 + i));
    if (whole_at(row, 8)) set_seconds(out, "copy_in_seconds", whole_at(row, 8));
    if (whole_at(row, 9)) set_seconds(out, "copy_out_seconds", whole_at(row, 9));
    gs_json_set_string(out, "algorithm", gs_json_string(gs_json_at(row, 10)));
    const gs_json *phases = gs_json_at(row, 11);
    if (gs_json_count(phases)) gs_json_set(out, "phases", view_hook_phases(phases));
    return out;
}

static gs_json *view_step(const rank_step *step, int64_t begin_ns, const gs_json *plan) {
    const gs_json *json = step->json, *rows = gs_json_get(json, "buckets");
    gs_json *out = gs_json_new_object(), *buckets = gs_json_new_array();
    gs_json_set_int(out, "step", step->step);
    gs_json_set_int(out, "generation", gs_json_int_or(json, "generation", 0));
    set_seconds(out, "begin_seconds", begin_ns);
    set_seconds(out, "duration_seconds", whole_of(json, "duration_ns", 0));
    set_moment(out, "backward_begin_seconds", whole_of(json, "backward_begin_ns", -1));
    set_moment(out, "backward_end_seconds", whole_of(json, "backward_end_ns", -1));
    const char *digest = gs_json_string_or(json, "plan_digest", "");
    gs_json_set_string(out, "plan_digest", digest);
    if (strcmp(digest, gs_json_string_or(plan, "digest", "?")) == 0)
        gs_json_set_string(out, "plan_hash", gs_json_string_or(plan, "hash", NULL));
    if (gs_json_get(json, "plan_revision"))
        gs_json_set_int(out, "plan_revision", gs_json_int_or(json, "plan_revision", 0));
    gs_json_set_int(out, "samples", gs_json_int_or(json, "samples", 0));
    gs_json_set_bool(out, "applied", gs_json_bool_or(json, "applied", true));
    gs_json_set_int(out, "unused_parameters", gs_json_int_or(json, "unused_parameters", 0));
    gs_json_set_int(out, "unused_bytes", gs_json_int_or(json, "unused_bytes", 0));
    gs_json_set(out, "phases", view_phases(gs_json_get(json, "spans")));
    for (size_t i = 0; i < gs_json_count(rows); i++)
        gs_json_push(buckets, view_bucket(gs_json_at(rows, i)));
    gs_json_set(out, "buckets", buckets);
    if (gs_json_get(json, "left_out"))
        gs_json_set_int(out, "left_out", gs_json_int_or(json, "left_out", 0));
    return out;
}

static gs_json *view_rank(const rank_steps *of_rank, int64_t origin_ns, const gs_json *plan) {
    gs_json *out = gs_json_new_object(), *steps = gs_json_new_array();
    gs_json_set_int(out, "rank", of_rank->rank);
    gs_json_set_string(out, "worker", gs_json_string_or(of_rank->about, "worker", ""));
    gs_json_set_string(out, "host", gs_json_string_or(of_rank->about, "host", ""));
    set_seconds(out, "clock_offset_seconds", of_rank->offset_ns);
    for (size_t i = 0; i < of_rank->num_steps; i++) {
        int64_t begin_ns = of_rank->steps[i].begin_ns + of_rank->offset_ns - origin_ns;
        gs_json_push(steps, view_step(&of_rank->steps[i], begin_ns, plan));
    }
    gs_json_set(out, "steps", steps);
    return out;
}

static gs_json *view_missing(const view_builder *view) {
    gs_json *out = gs_json_new_array();
    for (size_t i = 0; i < view->num_ranks; i++) {
        const gs_json *about = view->ranks[i].about;
        if (gs_json_bool_or(about, "answered", false)) continue;
        gs_json *rank = gs_json_new_object();
        gs_json_set_int(rank, "rank", view->ranks[i].rank);
        gs_json_set_string(rank, "worker", gs_json_string_or(about, "worker", ""));
        gs_json_set_string(rank, "reason", gs_json_string_or(about, "reason", "no answer"));
        gs_json_push(out, rank);
    }
    return out;
}

// As many digits as a step number has at most.
static bool read_step(int64_t *step, const char **text) {
    size_t digits = strspn(*text, "0123456789");
    if (digits == 0 || digits > 15) return false;
    *step = strtoll(*text, NULL, 10);
    *text += digits;
    return true;
}

bool gs_timeline_pick_parse(gs_timeline_pick *pick, const char *steps) {
    *pick = (gs_timeline_pick){0};
    if (strncmp(steps, "last:", 5) == 0) {
        steps += 5;
        return read_step(&pick->last, &steps) && !*steps && pick->last >= 1 && pick->last <= GS_TIMELINE_MOST_STEPS;
    }
    if (!read_step(&pick->from_step, &steps)) return false;
    pick->to_step = pick->from_step;
    if (*steps == '-' && (++steps, !read_step(&pick->to_step, &steps))) return false;
    return !*steps && pick->to_step >= pick->from_step;
}

gs_json *gs_timeline_view(const gs_json *const *pages, size_t num_pages, const gs_json *about,
                          const gs_timeline_pick *pick) {
    view_builder view = {0};
    collect(&view, pages, num_pages, about);
    gs_json *out = NULL;
    if (!view.failed) {
        pick_steps(&view, pick);
        align(&view);
        int64_t origin_ns = find_origin(&view);
        const gs_json *plan = gs_json_get(about, "plan");
        out = gs_json_new_object();
        gs_json *ranks = gs_json_new_array();
        gs_json_set_string(out, "job", gs_json_string_or(about, "job", ""));
        gs_json_set_string(out, "state", gs_json_string_or(about, "state", ""));
        gs_json_set_int(out, "generation", gs_json_int_or(about, "generation", 0));
        gs_json_set_int(out, "step", gs_json_int_or(about, "step", 0));
        if (plan) gs_json_set(out, "plan", gs_json_copy(plan));
        gs_json_set_string(out, "clock", view.shared_clock ? "shared" : "estimated");
        for (size_t i = 0; i < view.num_ranks; i++) {
            if (view.ranks[i].num_steps > 0)
                gs_json_push(ranks, view_rank(&view.ranks[i], origin_ns, plan));
        }
        gs_json_set(out, "ranks", ranks);
        gs_json_set(out, "missing", view_missing(&view));
    }
    for (size_t i = 0; i < view.num_ranks && view.ranks; i++) free(view.ranks[i].steps);
    free(view.ranks);
    return out;
}
