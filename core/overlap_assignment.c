#include "core/overlap_assignment.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank_state {
    size_t elements, params;  // given to it
    size_t bucket;            // one more than the last of which it has a run; 0: none
} rank_state;

typedef struct dealing {
    const gs_bucket_plan *plan;
    const size_t *counts;
    int world_size;
    size_t total;  // elements of all buckets
    rank_state *ranks;
    gs_overlap_assignment *out;
} dealing;

static size_t count_of(const dealing *work, const gs_plan_bucket *bucket, size_t member) {
    return work->counts[work->plan->params[bucket->first + member]];
}

static size_t bucket_elements(const dealing *work, const gs_plan_bucket *bucket) {
    size_t elements = 0;
    for (size_t i = 0; i < bucket->num_params; i++) elements += count_of(work, bucket, i);
    return elements;
}

static void give(dealing *work, gs_overlap_run run, size_t elements) {
    if (!run.num_params) return;
    rank_state *rank = &work->ranks[run.rank];
    run.rank_first = rank->params;
    rank->params += run.num_params;
    rank->elements += elements;
    rank->bucket = run.bucket + 1;
    work->out->runs[work->out->num_runs++] = run;
}

// Of those that have no run of this bucket; of all, when there are none.
static int choose_rank(const dealing *work, size_t bucket) {
    int free_rank = -1, any_rank = 0;
    for (int r = 0; r < work->world_size; r++) {
        const rank_state *rank = &work->ranks[r];
        if (rank->elements < work->ranks[any_rank].elements) any_rank = r;
        if (rank->bucket == bucket + 1) continue;
        if (free_rank < 0 || rank->elements < work->ranks[free_rank].elements) free_rank = r;
    }
    return free_rank < 0 ? any_rank : free_rank;
}

// elements >= total / world, without rounding.
static bool reaches_threshold(const dealing *work, size_t elements) {
    return (unsigned __int128)elements * (unsigned)work->world_size >= work->total;
}

static void split_bucket(dealing *work, size_t bucket_index) {
    const gs_plan_bucket *bucket = &work->plan->buckets[bucket_index];
    gs_overlap_run run = {.bucket = bucket_index};
    size_t elements = 0;
    for (size_t i = 0; i < bucket->num_params; i++) {
        size_t next = count_of(work, bucket, i);
        if (run.num_params && reaches_threshold(work, elements + next)) {
            run.rank = choose_rank(work, bucket_index);
            give(work, run, elements);
            run = (gs_overlap_run){.bucket = bucket_index, .first = i};
            elements = 0;
        }
        run.num_params++;
        elements += next;
    }
    run.rank = choose_rank(work, bucket_index);
    give(work, run, elements);
}

static int compare_elements(const void *a, const void *b, void *ctx) {
    size_t left = *(const size_t *)a, right = *(const size_t *)b;
    const size_t *elements = ctx;
    if (elements[left] != elements[right]) return elements[left] < elements[right] ? -1 : 1;
    return left < right ? -1 : left > right;
}

static gs_status deal_runs(dealing *work) {
    size_t num_buckets = work->plan->num_buckets;
    size_t *order = calloc(2 * num_buckets + 1, sizeof *order), *elements = order + num_buckets;
    if (!order) return gs_error(GS_RESOURCE_EXHAUSTED, "overlap: out of memory");
    for (size_t b = 0; b < num_buckets; b++) {
        order[b] = b;
        elements[b] = bucket_elements(work, &work->plan->buckets[b]);
    }
    qsort_r(order, num_buckets, sizeof *order, compare_elements, elements);
    for (size_t i = 0; i < num_buckets; i++) split_bucket(work, order[i]);
    free(order);
    return gs_ok();
}

static void deal_buckets(dealing *work) {
    for (size_t b = 0; b < work->plan->num_buckets; b++) {
        const gs_plan_bucket *bucket = &work->plan->buckets[b];
        give(work,
             (gs_overlap_run){.bucket = b,
                              .num_params = bucket->num_params,
                              .rank = (int)(b % (size_t)work->world_size)},
             bucket_elements(work, bucket));
    }
}

static int compare_places(const void *a, const void *b) {
    const gs_overlap_run *left = a, *right = b;
    if (left->bucket != right->bucket) return left->bucket < right->bucket ? -1 : 1;
    return left->first < right->first ? -1 : left->first > right->first;
}

static gs_status add_up(dealing *work) {
    for (size_t i = 0; i < work->plan->num_params; i++) {
        if (__builtin_add_overflow(work->total, work->counts[work->plan->params[i]], &work->total))
            return gs_error(GS_INVALID_ARGUMENT, "overlap: more elements than can be counted");
    }
    return gs_ok();
}

gs_status gs_overlap_assign(gs_overlap_assignment *out, const gs_bucket_plan *plan,
                            const size_t *counts, int world_size, bool split_buckets) {
    gs_overlap_assignment assignment = {0};
    dealing work = {.plan = plan, .counts = counts, .world_size = world_size, .out = &assignment};
    if (world_size < 1) return gs_error(GS_INVALID_ARGUMENT, "overlap: %d ranks", world_size);
    GS_TRY(add_up(&work));
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "overlap: out of memory");
    work.ranks = calloc((size_t)world_size, sizeof *work.ranks);
    assignment.runs = calloc(plan->num_params + 1, sizeof *assignment.runs);
    if (work.ranks && assignment.runs) {
        status = gs_ok();
        if (split_buckets)
            status = deal_runs(&work);
        else
            deal_buckets(&work);
    }
    free(work.ranks);
    if (status.code) {
        gs_overlap_assignment_release(&assignment);
        return status;
    }
    qsort(assignment.runs, assignment.num_runs, sizeof *assignment.runs, compare_places);
    *out = assignment;
    return gs_ok();
}

void gs_overlap_assignment_release(gs_overlap_assignment *assignment) {
    if (!assignment) return;
    free(assignment->runs);
    *assignment = (gs_overlap_assignment){0};
}
