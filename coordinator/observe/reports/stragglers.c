#include "coordinator/observe/reports/stragglers.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define PENDING_STEPS 128  // that some ranks have told and others not yet
#define JUDGE_EVERY 8      // compared steps; judging sorts windows
#define FLAG_LAG 0.10
#define FLAG_SHARE 0.70
#define ROBUST_Z 4.0
#define MOST_STEPS_BLAMED 1024  // by one that was compared: trainers tell no fewer

typedef struct pending_step {
    int64_t step;  // −1: free
    int num_told;
    gs_straggler_sample *samples;  // num_ranks
    bool *told;                    // num_ranks
} pending_step;

typedef struct rank_window {
    gs_straggler_sample samples[GS_STRAGGLER_WINDOW];
    double lags[GS_STRAGGLER_WINDOW];
    bool last[GS_STRAGGLER_WINDOW];
    gs_straggler_view view;
    int64_t held;  // compared steps for which the condition has held
} rank_window;

// Of one number of a sample: each rank's median over the window, and what is usual among ranks.
typedef struct quantity {
    double *medians;  // num_ranks; owned
    double usual, spread;
} quantity;

struct gs_stragglers {
    int num_ranks;
    pending_step pending[PENDING_STEPS];  // by step modulo
    int64_t num_compared, newest, num_spikes;
    double step_seconds, whatif_seconds;
    rank_window *ranks;  // owned
    double *scratch;     // num_ranks or a window, what is more
    quantity data, compute, transfer;  // as last judged
};

gs_stragglers *gs_stragglers_create(int num_ranks) {
    gs_stragglers *stragglers = calloc(1, sizeof *stragglers);
    if (!stragglers) return NULL;
    size_t ranks = (size_t)num_ranks;
    size_t scratch = ranks > GS_STRAGGLER_WINDOW ? ranks : GS_STRAGGLER_WINDOW;
    stragglers->num_ranks = num_ranks;
    stragglers->newest = -1;
    stragglers->ranks = calloc(ranks, sizeof *stragglers->ranks);
    stragglers->scratch = calloc(scratch, sizeof *stragglers->scratch);
    stragglers->data.medians = calloc(3 * ranks, sizeof(double));
    stragglers->compute.medians = stragglers->data.medians + ranks;
    stragglers->transfer.medians = stragglers->data.medians + 2 * ranks;
    bool made = stragglers->ranks && stragglers->scratch && stragglers->data.medians;
    for (int i = 0; i < PENDING_STEPS && made; i++) {
        pending_step *pending = &stragglers->pending[i];
        pending->step = -1;
        pending->samples = calloc(ranks, sizeof *pending->samples);
        pending->told = calloc(ranks, sizeof *pending->told);
        made = pending->samples && pending->told;
    }
    if (made) return stragglers;
    gs_stragglers_destroy(stragglers);
    return NULL;
}

void gs_stragglers_destroy(gs_stragglers *stragglers) {
    if (!stragglers) return;
    for (int i = 0; i < PENDING_STEPS; i++) {
        free(stragglers->pending[i].samples);
        free(stragglers->pending[i].told);
    }
    free(stragglers->ranks);
    free(stragglers->scratch);
    free(stragglers->data.medians);
    free(stragglers);
}

static int compare_doubles(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *values, size_t count) {
    if (count == 0) return 0;
    qsort(values, count, sizeof *values, compare_doubles);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static size_t window_count(const gs_stragglers *stragglers) {
    return stragglers->num_compared < GS_STRAGGLER_WINDOW ? (size_t)stragglers->num_compared
                                                          : GS_STRAGGLER_WINDOW;
}

// Median over the window of one number of a rank; `at` is where it lies in a sample.
static double window_median(gs_stragglers *stragglers, int rank, size_t at) {
    size_t count = window_count(stragglers);
    for (size_t i = 0; i < count; i++) {
        const char *sample = (const char *)&stragglers->ranks[rank].samples[i];
        memcpy(&stragglers->scratch[i], sample + at, sizeof(double));
    }
    return median(stragglers->scratch, count);
}

static void judge_quantity(gs_stragglers *stragglers, quantity *of, size_t at) {
    size_t num_ranks = (size_t)stragglers->num_ranks;
    double *scratch = stragglers->scratch;
    for (size_t i = 0; i < num_ranks; i++) of->medians[i] = window_median(stragglers, (int)i, at);
    memcpy(scratch, of->medians, num_ranks * sizeof *scratch);
    // Of two or three ranks the middle says little: the fastest is the measure.
    of->usual = median(scratch, num_ranks);
    if (num_ranks < 4) of->usual = scratch[0];
    for (size_t i = 0; i < num_ranks; i++) scratch[i] = fabs(of->medians[i] - of->usual);
    of->spread = 1.4826 * median(scratch, num_ranks);
}

static double excess_of(const quantity *of, int rank) {
    return of->medians[rank] - of->usual;
}

static bool is_outlier(const quantity *of, int rank) {
    return excess_of(of, rank) > ROBUST_Z * of->spread;
}

static const char *classify(const gs_stragglers *stragglers, int rank) {
    double worth = FLAG_LAG / 2 * stragglers->step_seconds;
    double late = excess_of(&stragglers->compute, rank), data = excess_of(&stragglers->data, rank);
    // Waiting for data is a part of the time until the last bucket is ready.
    if (data > worth && data >= late / 2) return "data";
    if (late > worth) return "compute";
    return excess_of(&stragglers->transfer, rank) > worth ? "network" : "compute";
}

static bool stands_out(const gs_stragglers *stragglers, int rank) {
    return stragglers->num_ranks < 4 || is_outlier(&stragglers->compute, rank) ||
           is_outlier(&stragglers->transfer, rank);
}

static void judge_rank(gs_stragglers *stragglers, int rank) {
    rank_window *window = &stragglers->ranks[rank];
    gs_straggler_view *view = &window->view;
    size_t count = window_count(stragglers), num_last = 0;
    for (size_t i = 0; i < count; i++) {
        stragglers->scratch[i] = window->lags[i];
        num_last += window->last[i];
    }
    view->median_lag_seconds = median(stragglers->scratch, count);
    view->share_last = (double)num_last / (double)count;
    double usual = stragglers->compute.usual;
    view->compute_ratio = usual > 0 ? stragglers->compute.medians[rank] / usual : 1;

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
        if (!stragglers->ranks[i].view.flagged) continue;
        double own = stragglers->ranks[i].view.median_lag_seconds;
        if (own > excess) excess = own;
    }
    double rest = stragglers->step_seconds - excess;
    stragglers->whatif_seconds = rest > 0 ? rest : 0;
}

static void judge(gs_stragglers *stragglers) {
#define AT(member) offsetof(gs_straggler_sample, member)
    // The step of who waits: what the late one measures is shorter.
    stragglers->step_seconds = 0;
    for (int i = 0; i < stragglers->num_ranks; i++) {
        double own = window_median(stragglers, i, AT(step_seconds));
        if (own > stragglers->step_seconds) stragglers->step_seconds = own;
    }
    judge_quantity(stragglers, &stragglers->data, AT(data));
    judge_quantity(stragglers, &stragglers->compute, AT(compute));
    judge_quantity(stragglers, &stragglers->transfer, AT(transfer));
#undef AT
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
        if (pending->samples[i].wait > largest) largest = pending->samples[i].wait;
        if (pending->samples[i].wait < pending->samples[least].wait) least = i;
    }
    size_t slot = (size_t)(stragglers->num_compared % GS_STRAGGLER_WINDOW);
    for (int i = 0; i < stragglers->num_ranks; i++) {
        rank_window *window = &stragglers->ranks[i];
        double lag = largest - pending->samples[i].wait;
        window->samples[slot] = pending->samples[i];
        window->lags[slot] = lag;
        // Nobody is last in a step without a difference.
        window->last[slot] = i == least && stragglers->num_ranks > 1 && lag > 0;
        window->view.lag_seconds += 0.2 * (lag - window->view.lag_seconds);
        if (window->last[slot]) blame(&window->view, lag, num_steps);
        bool spike = window->last[slot] && !window->view.flagged &&
                     stragglers->step_seconds > 0 && lag > stragglers->step_seconds;
        stragglers->num_spikes += spike;
    }
    stragglers->num_compared++;
    if (stragglers->num_compared % JUDGE_EVERY == 0) judge(stragglers);
}

void gs_stragglers_add(gs_stragglers *stragglers, int rank, int64_t step,
                       const gs_straggler_sample *sample) {
    if (!stragglers || rank < 0 || rank >= stragglers->num_ranks || step < 0) return;
    if (step <= stragglers->newest) return;  // compared already, or passed over
    pending_step *pending = &stragglers->pending[step % PENDING_STEPS];
    if (pending->step > step) return;
    if (pending->step != step) {
        pending->step = step;
        pending->num_told = 0;
        memset(pending->told, 0, (size_t)stragglers->num_ranks * sizeof *pending->told);
    }
    if (pending->told[rank]) return;
    pending->told[rank] = true;
    pending->samples[rank] = *sample;
    if (++pending->num_told < stragglers->num_ranks) return;
    int64_t num_steps = stragglers->newest < 0 ? 1 : step - stragglers->newest;
    pending->step = -1;
    stragglers->newest = step;
    compare_step(stragglers, pending, num_steps < MOST_STEPS_BLAMED ? num_steps : MOST_STEPS_BLAMED);
}

int64_t gs_stragglers_num_compared(const gs_stragglers *stragglers) {
    return stragglers ? stragglers->num_compared : 0;
}

gs_straggler_view gs_stragglers_view(const gs_stragglers *stragglers, int rank) {
    if (!stragglers || rank < 0 || rank >= stragglers->num_ranks)
        return (gs_straggler_view){.phase = ""};
    gs_straggler_view view = stragglers->ranks[rank].view;
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
