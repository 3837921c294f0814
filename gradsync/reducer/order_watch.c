#include "gradsync/reducer/order_watch.h"

#include <stdlib.h>
#include <string.h>

typedef struct order_place {
    uint64_t sum;  // of the places in the window
    size_t place;  // in the estimate
    size_t param;
    bool is_present;  // in the pass that is being added
} order_place;

struct gs_order_watch {
    size_t num_params;
    size_t *told;                    // the order that plans follow; unknown until is_told
    size_t *estimate;                // after the last pass that was looked at
    size_t *averaged;                // over the last whole window
    size_t *sequence, num_sequence;  // the last pass
    size_t *spare, *scratch;
    order_place *places;
    int64_t repeats;  // passes of the window in which the estimate has stood as it does
    int64_t passes, window, in_window, quiet_until, quiet;
    bool is_told, has_averaged;
    bool is_calm;  // what was told has held since the last window
};

static void note_places(gs_order_watch *watch) {
    for (size_t place = 0; place < watch->num_params; place++)
        watch->places[watch->estimate[place]].place = place;
}

gs_status gs_order_watch_create(gs_order_watch **out, const size_t *planned, size_t num_params,
                                bool is_observed, int64_t first_passes) {
    enum { NUM_LISTS = 6 };
    *out = NULL;
    gs_order_watch *watch = calloc(1, sizeof *watch);
    if (!watch) return gs_error(GS_RESOURCE_EXHAUSTED, "order of gradients: out of memory");
    *watch = (gs_order_watch){.num_params = num_params,
                              .is_told = is_observed,
                              .quiet = 2 * GS_ORDER_WINDOW,
                              .window = first_passes < 1 ? 1 : first_passes};
    if (is_observed) watch->window = GS_ORDER_WINDOW;
    watch->told = calloc(NUM_LISTS * num_params + 1, sizeof *watch->told);
    watch->places = calloc(num_params + 1, sizeof *watch->places);
    if (!watch->told || !watch->places) {
        gs_order_watch_destroy(watch);
        return gs_error(GS_RESOURCE_EXHAUSTED, "order of gradients: out of memory");
    }
    watch->estimate = watch->told + num_params;
    watch->averaged = watch->estimate + num_params;
    watch->sequence = watch->averaged + num_params;
    watch->spare = watch->sequence + num_params;
    watch->scratch = watch->spare + num_params;
    for (size_t i = 0; i < num_params; i++) watch->told[i] = watch->estimate[i] = planned[i];
    note_places(watch);
    *out = watch;
    return gs_ok();
}

void gs_order_watch_destroy(gs_order_watch *watch) {
    if (!watch) return;
    free(watch->told);
    free(watch->places);
    free(watch);
}

size_t gs_order_watch_num_params(const gs_order_watch *watch) {
    return watch->num_params;
}

const size_t *gs_order_watch_order(const gs_order_watch *watch) {
    return watch->is_told ? watch->told : watch->averaged;
}

const size_t *gs_order_watch_estimate(const gs_order_watch *watch) {
    return watch->estimate;
}

// The pass says nothing that the estimate does not say: most passes, whatever they left out.
static bool is_expected(const gs_order_watch *watch, const size_t *ready, size_t num_ready) {
    for (size_t i = 1; i < num_ready; i++) {
        if (watch->places[ready[i]].place < watch->places[ready[i - 1]].place) return false;
    }
    return true;
}

// The members of the pass take their own places in its order; the others stay where they are.
static void refill(gs_order_watch *watch, const size_t *ready, size_t num_ready) {
    for (size_t i = 0; i < num_ready; i++) watch->places[ready[i]].is_present = true;
    for (size_t place = 0, next = 0; place < watch->num_params; place++) {
        if (watch->places[watch->estimate[place]].is_present)
            watch->estimate[place] = ready[next++];
    }
    for (size_t i = 0; i < num_ready; i++) watch->places[ready[i]].is_present = false;
    note_places(watch);
}

// The passes in which the estimate has stood as it does.
static void add_up(gs_order_watch *watch) {
    for (size_t i = 0; i < watch->num_params; i++)
        watch->places[i].sum += (uint64_t)watch->repeats * watch->places[i].place;
    watch->repeats = 0;
}

static int compare_places(const void *a, const void *b, void *places) {
    const order_place *left = (const order_place *)places + *(const size_t *)a;
    const order_place *right = (const order_place *)places + *(const size_t *)b;
    if (left->sum != right->sum) return left->sum < right->sum ? -1 : 1;
    return left->place < right->place ? -1 : left->place > right->place;
}

// How many parameters must be moved to make one order of the other: all but the longest run that is
// ascending in both.
static size_t count_displaced(gs_order_watch *watch, const size_t *order, const size_t *base) {
    size_t *tails = watch->scratch, length = 0;
    for (size_t i = 0; i < watch->num_params; i++) watch->places[base[i]].sum = i;
    for (size_t i = 0; i < watch->num_params; i++) {
        size_t place = watch->places[order[i]].sum, low = 0, high = length;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (tails[middle] < place)
                low = middle + 1;
            else
                high = middle;
        }
        tails[low] = place;
        if (low == length) length++;
    }
    return watch->num_params - length;
}

static bool tell(gs_order_watch *watch) {
    memcpy(watch->told, watch->averaged, watch->num_params * sizeof *watch->told);
    watch->is_told = true;
    watch->is_calm = true;
    return true;
}

static void average_window(gs_order_watch *watch) {
    size_t *average = watch->spare;
    add_up(watch);
    for (size_t i = 0; i < watch->num_params; i++) average[i] = i;
    qsort_r(average, watch->num_params, sizeof *average, compare_places, watch->places);
    watch->spare = watch->averaged;
    watch->averaged = average;
}

// True: the order has settled and is another than the one told.
static bool close_window(gs_order_watch *watch) {
    bool had_averaged = watch->has_averaged;
    watch->in_window = 0;
    watch->window = GS_ORDER_WINDOW;
    if (watch->is_calm) {
        watch->repeats = 0;
        return false;
    }
    average_window(watch);
    size_t tolerance = watch->num_params / 16;
    bool agrees =
        had_averaged && count_displaced(watch, watch->averaged, watch->spare) <= tolerance;
    bool differs = count_displaced(watch, watch->averaged, watch->told) > tolerance;
    for (size_t i = 0; i < watch->num_params; i++) watch->places[i].sum = 0;
    watch->has_averaged = true;
    watch->is_calm = !differs;
    if (!watch->is_told) return tell(watch);
    if (!differs || !agrees || watch->passes < watch->quiet_until) return false;
    watch->quiet_until = watch->passes + watch->quiet;
    watch->quiet *= 2;
    return tell(watch);
}

gs_order_verdict gs_order_watch_add(gs_order_watch *watch, const size_t *ready, size_t num_ready) {
    if (!num_ready) return GS_ORDER_SAME;  // a rank without data has seen nothing
    bool same = num_ready == watch->num_sequence &&
                !memcmp(ready, watch->sequence, num_ready * sizeof *ready);
    if (!same) {
        memcpy(watch->sequence, ready, num_ready * sizeof *ready);
        watch->num_sequence = num_ready;
        if (!is_expected(watch, ready, num_ready)) {
            add_up(watch);
            refill(watch, ready, num_ready);
            watch->is_calm = false;
        }
    }
    watch->repeats++;
    watch->passes++;
    bool is_first = watch->passes == 1 && !watch->is_told;
    if (++watch->in_window >= watch->window)
        return close_window(watch) ? GS_ORDER_SETTLED : GS_ORDER_SAME;
    if (!is_first) return GS_ORDER_SAME;
    memcpy(watch->averaged, watch->estimate, watch->num_params * sizeof *watch->averaged);
    return GS_ORDER_SEEN;
}
