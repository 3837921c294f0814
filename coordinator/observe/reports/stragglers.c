#include "coordinator/observe/reports/stragglers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PENDING_BITS 7  // of steps that some ranks have told and others not yet
#define PENDING_STEPS (1 << PENDING_BITS)
#define JUDGE_EVERY 8  // compared steps
#define FLAG_LAG 0.10
#define FLAG_SHARE 0.70
#define ROBUST_Z 4.0
#define MOST_SECONDS 1e9  // of a sample: no float of it, and no sum or difference, is more than a float holds
#define MOST_STEPS_BLAMED 1024  // by one that was compared: trainers tell no fewer

// What is kept of a sample: seconds to seven digits.
typedef struct kept_sample {
    float compute, wait, transfer, data, step_seconds;
} kept_sample;

typedef struct told_sample {
    kept_sample sample;
    bool told;
} told_sample;

typedef struct pending_step {
    int64_t step;  // −1: free
    int num_told;
    told_sample *of;  // owned; of each rank; NULL: free, or it could not be had
} pending_step;

// The last numbers of one kind, as they came and in order: their median costs a look, a new one costs a move.
typedef struct sorted_window {
    float ring[GS_STRAGGLER_WINDOW], sorted[GS_STRAGGLER_WINDOW];
} sorted_window;

typedef enum window_kind { DATA = 0, COMPUTE, TRANSFER, STEP_SECONDS, LAG, NUM_WINDOWS } window_kind;

typedef struct rank_window {
    sorted_window windows[NUM_WINDOWS];
    uint64_t last;  // bits of the compared steps, by slot, in which it was last
    int64_t held;  // compared steps for which the condition has held
} rank_window;
_Static_assert(GS_STRAGGLER_WINDOW == 64, "a bit for each");

// Of one kind: what is usual among the medians of ranks.
typedef struct quantity {
    window_kind kind;
    double usual, spread;
} quantity;

struct gs_stragglers {
    int num_ranks;
    pending_step pending[PENDING_STEPS];
    int64_t num_compared, newest, num_spikes;
    double step_seconds, whatif_seconds;
    rank_window *ranks;        // owned; NULL: of a copy, which takes no steps
    gs_straggler_view *views;  // owned; of each rank
    double *scratch;     // num_ranks
    quantity data, compute, transfer;  // as last judged
};

gs_stragglers *gs_stragglers_create(int num_ranks) {
    gs_stragglers *stragglers = calloc(1, sizeof *stragglers);
    if (!stragglers) return NULL;
    size_t ranks = (size_t)num_ranks;
    stragglers->num_ranks = num_ranks;
    stragglers->newest = -1;
    stragglers->data.kind = DATA;
    stragglers->compute.kind = COMPUTE;
    stragglers->transfer.kind = TRANSFER;
    stragglers->ranks = calloc(ranks, sizeof *stragglers->ranks);
    stragglers->scratch = calloc(ranks, sizeof *stragglers->scratch);
    stragglers->views = calloc(ranks, sizeof *stragglers->views);
    bool made = stragglers->ranks && stragglers->scratch && stragglers->views;
    for (int i = 0; i < PENDING_STEPS; i++) stragglers->pending[i].step = -1;
    if (made) return stragglers;
    gs_stragglers_destroy(stragglers);
    return NULL;
}

void gs_stragglers_destroy(gs_stragglers *stragglers) {
    if (!stragglers) return;
    for (int i = 0; i < PENDING_STEPS; i++) free(stragglers->pending[i].of);
    free(stragglers->ranks);
    free(stragglers->views);
    free(stragglers->scratch);
    free(stragglers);
}

gs_stragglers *gs_stragglers_copy_views(const gs_stragglers *from) {
    gs_stragglers *copy = from ? calloc(1, sizeof *copy) : NULL;
    if (!copy) return NULL;
    size_t bytes = (size_t)from->num_ranks * sizeof *copy->views;
    copy->views = malloc(bytes ? bytes : 1);
    if (!copy->views) {
        free(copy);
        return NULL;
    }
    memcpy(copy->views, from->views, bytes);
    copy->num_ranks = from->num_ranks;
    copy->num_compared = from->num_compared;
    copy->num_spikes = from->num_spikes;
    copy->step_seconds = from->step_seconds;
    copy->whatif_seconds = from->whatif_seconds;
    return copy;
}

// Before the new one came: how many are in the windows.
static size_t window_count(const gs_stragglers *stragglers) {
    return stragglers->num_compared < GS_STRAGGLER_WINDOW ? (size_t)stragglers->num_compared
                                                          : GS_STRAGGLER_WINDOW;
}

// How many of `count` in order are below `value`.
static size_t count_below(const float *sorted, size_t count, float value) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (sorted[middle] < value) low = middle + 1;
        else high = middle;
    }
    return low;
}

// In the place of the one in `slot`, where the window is full.
static void put_in_window(sorted_window *window, size_t count, size_t slot, float value) {
    if (count == GS_STRAGGLER_WINDOW) {
        size_t gone = count_below(window->sorted, count, window->ring[slot]);
        count--;
        if (gone > count) gone = count;  // never of numbers in order; a move of less than nothing has no end
        memmove(window->sorted + gone, window->sorted + gone + 1, (count - gone) * sizeof(float));
    }
    size_t at = count_below(window->sorted, count, value);
    memmove(window->sorted + at + 1, window->sorted + at, (count - at) * sizeof(float));
    window->sorted[at] = value;
    window->ring[slot] = value;
}

static double window_median(const gs_stragglers *stragglers, int rank, window_kind kind) {
    size_t count = window_count(stragglers);
    const float *sorted = stragglers->ranks[rank].windows[kind].sorted;
    return count ? ((double)sorted[(count - 1) / 2] + (double)sorted[count / 2]) / 2 : 0;
}

// The one that is at `index` when they are in order; puts them in order so far as that takes.
static double select_nth(double *values, size_t count, size_t index) {
    size_t low = 0, high = count - 1;
    while (low < high) {
        double pivot = values[low + (high - low) / 2];
        size_t i = low, k = high;
        for (;;) {
            while (values[i] < pivot) i++;
            while (values[k] > pivot) k--;
            if (i >= k) break;
            double other = values[i];
            values[i++] = values[k];
            values[k--] = other;
        }
        if (index <= k) high = k;
        else low = k + 1;
    }
    return values[index];
}

static double median(double *values, size_t count) {
    double upper = select_nth(values, count, count / 2);
    return count % 2 ? upper : (upper + select_nth(values, count, count / 2 - 1)) / 2;
}

static void judge_quantity(gs_stragglers *stragglers, quantity *of) {
    size_t num_ranks = (size_t)stragglers->num_ranks;
    double *scratch = stragglers->scratch, least = INFINITY;
    for (size_t i = 0; i < num_ranks; i++) {
        scratch[i] = window_median(stragglers, (int)i, of->kind);
        least = fmin(least, scratch[i]);
    }
    // Of two or three ranks the middle says little: the fastest is the measure.
    of->usual = num_ranks < 4 ? least : median(scratch, num_ranks);
    for (size_t i = 0; i < num_ranks; i++) scratch[i] = fabs(scratch[i] - of->usual);
    of->spread = 1.4826 * median(scratch, num_ranks);
}

static double excess_of(const gs_stragglers *stragglers, const quantity *of, int rank) {
    return window_median(stragglers, rank, of->kind) - of->usual;
}

static bool is_outlier(const gs_stragglers *stragglers, const quantity *of, int rank) {
    return excess_of(stragglers, of, rank) > ROBUST_Z * of->spread;
}

static const char *classify(const gs_stragglers *stragglers, int rank) {
    double worth = FLAG_LAG / 2 * stragglers->step_seconds;
    double late = excess_of(stragglers, &stragglers->compute, rank), data = excess_of(stragglers, &stragglers->data, rank);
    // Waiting for data is a part of the time until the last bucket is ready.
    if (data > worth && data >= late / 2) return "data";
    if (late > worth) return "compute";
    return excess_of(stragglers, &stragglers->transfer, rank) > worth ? "network" : "compute";
}

static bool stands_out(const gs_stragglers *stragglers, int rank) {
    return stragglers->num_ranks < 4 || is_outlier(stragglers, &stragglers->compute, rank) ||
           is_outlier(stragglers, &stragglers->transfer, rank);
}

static void judge_rank(gs_stragglers *stragglers, int rank) {
    rank_window *window = &stragglers->ranks[rank];
    gs_straggler_view *view = &stragglers->views[rank];
    size_t count = window_count(stragglers);
    view->median_lag_seconds = window_median(stragglers, rank, LAG);
    view->share_last = (double)__builtin_popcountll(window->last) / (double)count;
    double usual = stragglers->compute.usual;
    view->compute_ratio = usual > 0 ? window_median(stragglers, rank, COMPUTE) / usual : 1;

    double part = view->flagged ? 0.5 : 1;  // what is flagged stays so down to half
    bool holds = view->median_lag_seconds > part * FLAG_LAG * stragglers->step_seconds &&
                 view->share_last > part * FLAG_SHARE &&
                 (view->flagged || stands_out(stragglers, rank));
    window->held = holds ? window->held + JUDGE_EVERY : 0;
    if (view->flagged && !holds) view->flagged = false;
    if (!view->flagged && holds && window->held >= GS_STRAGGLER_WINDOW) view->flagged = true;
    view->phase = view->flagged ? classify(stragglers, rank) : "";
}

// The step without what flagged ranks need longer than usual.
static void judge_whatif(gs_stragglers *stragglers) {
    double excess = 0;
    for (int i = 0; i < stragglers->num_ranks; i++) {
        if (!stragglers->views[i].flagged) continue;
        double own = stragglers->views[i].median_lag_seconds;
        if (own > excess) excess = own;
    }
    double rest = stragglers->step_seconds - excess;
    stragglers->whatif_seconds = rest > 0 ? rest : 0;
}

static void judge(gs_stragglers *stragglers) {
    // The step of who waits: what the late one measures is shorter.
    stragglers->step_seconds = 0;
    for (int i = 0; i < stragglers->num_ranks; i++) {
        double own = window_median(stragglers, i, STEP_SECONDS);
        if (own > stragglers->step_seconds) stragglers->step_seconds = own;
    }
    judge_quantity(stragglers, &stragglers->data);
    judge_quantity(stragglers, &stragglers->compute);
    judge_quantity(stragglers, &stragglers->transfer);
    for (int i = 0; i < stragglers->num_ranks; i++) judge_rank(stragglers, i);
    judge_whatif(stragglers);
}

// Blames a rank that was last, for the steps that passed since the one that was compared before, too: of
// many short steps trainers tell a few.
static void blame(gs_straggler_view *view, double lag, int64_t num_steps) {
    view->last_arrivals++;
    view->blame_seconds += lag * (double)num_steps;
    if (view->flagged) view->lost_seconds += lag * (double)num_steps;
}

static void compare_step(gs_stragglers *stragglers, const pending_step *pending, int64_t num_steps) {
    double largest = 0;
    int least = 0;
    for (int i = 0; i < stragglers->num_ranks; i++) {
        float wait = pending->of[i].sample.wait;
        if ((double)wait > largest) largest = (double)wait;
        if (wait < pending->of[least].sample.wait) least = i;
    }
    size_t slot = (size_t)(stragglers->num_compared % GS_STRAGGLER_WINDOW), count = window_count(stragglers);
    for (int i = 0; i < stragglers->num_ranks; i++) {
        rank_window *window = &stragglers->ranks[i];
        gs_straggler_view *view = &stragglers->views[i];
        const kept_sample *sample = &pending->of[i].sample;
        double lag = largest - (double)sample->wait;
        const float numbers[NUM_WINDOWS] = {sample->data, sample->compute, sample->transfer, sample->step_seconds,
                                            (float)lag};
        for (int k = 0; k < NUM_WINDOWS; k++) put_in_window(&window->windows[k], count, slot, numbers[k]);
        // Nobody is last in a step without a difference.
        bool is_last = i == least && stragglers->num_ranks > 1 && lag > 0;
        window->last = (window->last & ~(UINT64_C(1) << slot)) | (uint64_t)is_last << slot;
        view->lag_seconds += 0.2 * (lag - view->lag_seconds);
        if (is_last) blame(view, lag, num_steps);
        bool spike = is_last && !view->flagged &&
                     stragglers->step_seconds > 0 && lag > stragglers->step_seconds;
        stragglers->num_spikes += spike;
    }
    stragglers->num_compared++;
    if (stragglers->num_compared % JUDGE_EVERY == 0) judge(stragglers);
}

// Of many short steps ranks tell every 2nd, 4th … 1024th: the product spreads them over all places.
static pending_step *place_of(gs_stragglers *stragglers, int64_t step) {
    return &stragglers->pending[(uint64_t)step * UINT64_C(0x9e3779b97f4a7c15) >> (64 - PENDING_BITS)];
}

static bool is_plausible(double seconds) { return seconds >= 0 && seconds <= MOST_SECONDS; }

static bool are_plausible(const gs_straggler_sample *sample) {
    return is_plausible(sample->compute) && is_plausible(sample->wait) && is_plausible(sample->transfer) &&
           is_plausible(sample->data) && is_plausible(sample->step_seconds);
}

// In place of an older one that is there and will not be compared.
static void begin_step(const gs_stragglers *stragglers, pending_step *pending, int64_t step) {
    size_t bytes = (size_t)stragglers->num_ranks * sizeof *pending->of;
    if (!pending->of) pending->of = malloc(bytes);
    if (pending->of) memset(pending->of, 0, bytes);
    pending->step = step;
    pending->num_told = 0;
}

// The one that was compared, and those that were passed over: a rank costs what is under way.
static void end_steps(gs_stragglers *stragglers) {
    for (int i = 0; i < PENDING_STEPS; i++) {
        pending_step *pending = &stragglers->pending[i];
        if (pending->step > stragglers->newest || !pending->of) continue;
        free(pending->of);
        *pending = (pending_step){.step = -1};
    }
}

void gs_stragglers_add(gs_stragglers *stragglers, int rank, int64_t step,
                       const gs_straggler_sample *sample) {
    if (!stragglers || rank < 0 || rank >= stragglers->num_ranks || step < 0) return;
    if (!are_plausible(sample)) return;
    if (step <= stragglers->newest) return;  // compared already, or passed over
    pending_step *pending = place_of(stragglers, step);
    if (pending->step > step) return;
    if (pending->step != step) begin_step(stragglers, pending, step);
    if (!pending->of || pending->of[rank].told) return;
    pending->of[rank].told = true;
    pending->of[rank].sample = (kept_sample){(float)sample->compute, (float)sample->wait, (float)sample->transfer,
                                             (float)sample->data, (float)sample->step_seconds};
    if (++pending->num_told < stragglers->num_ranks) return;
    int64_t num_steps = stragglers->newest < 0 ? 1 : step - stragglers->newest;
    stragglers->newest = step;
    compare_step(stragglers, pending, num_steps < MOST_STEPS_BLAMED ? num_steps : MOST_STEPS_BLAMED);
    end_steps(stragglers);
}

int64_t gs_stragglers_num_compared(const gs_stragglers *stragglers) {
    return stragglers ? stragglers->num_compared : 0;
}

gs_straggler_view gs_stragglers_view(const gs_stragglers *stragglers, int rank) {
    if (!stragglers || rank < 0 || rank >= stragglers->num_ranks)
        return (gs_straggler_view){.phase = ""};
    gs_straggler_view view = stragglers->views[rank];
    if (!view.phase) view.phase = "";
    return view;
}

double gs_stragglers_step_seconds(const gs_stragglers *stragglers) {
    return stragglers ? stragglers->step_seconds : 0;
}

double gs_stragglers_whatif_step_seconds(const gs_stragglers *stragglers) {
    return stragglers ? stragglers->whatif_seconds : 0;
}

int64_t gs_stragglers_num_spikes(const gs_stragglers *stragglers) {
    return stragglers ? stragglers->num_spikes : 0;
}
