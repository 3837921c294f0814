#include "gradsync/hooks/auto_trial.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

#define WORTH_IT 0.97        // of a step of plain sums
#define CERTAIN 1.05         // plain sums alone take so much longer than a step with compression
#define IS_ANOTHER_LINK 1.25  // steps of plain sums take so much longer than when they were tried

void gs_auto_trial_note_step(gs_auto_trial *trial, int64_t now_ns, bool counts) {
    if (counts && trial->last_ns) trial->steps[trial->num_steps++ % GS_AUTO_RING] = gs_seconds_of(now_ns - trial->last_ns);
    trial->last_ns = counts ? now_ns : 0;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double gs_auto_trial_step_seconds(const gs_auto_trial *trial) {
    int count = trial->num_steps < GS_AUTO_RING ? trial->num_steps : GS_AUTO_RING;
    double sorted[GS_AUTO_RING];
    if (count < GS_AUTO_RING / 2) return 0;
    memcpy(sorted, trial->steps, sizeof sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
    return sorted[count / 2];
}

static void enter(gs_auto_trial *trial, gs_auto_trial_phase phase) {
    trial->phase = phase;
    trial->num_steps = 0;
}

static void open_again(gs_auto_trial *trial) {
    trial->with_seconds = trial->without_seconds = 0;
    enter(trial, GS_TRIAL_OPEN);
}

bool gs_auto_trial_decide(gs_auto_trial *trial, int64_t step, double step_seconds, double plain_seconds, bool was_compressed,
                          bool would_be) {
    switch (trial->phase) {
    case GS_TRIAL_OPEN:
        if (!(step_seconds > 0) || !was_compressed || !would_be) break;
        trial->with_seconds = step_seconds;
        enter(trial, plain_seconds >= CERTAIN * step_seconds ? GS_TRIAL_GAINS : GS_TRIAL_PLAIN);
        trial->look_at = step + GS_AUTO_RING;
        break;
    case GS_TRIAL_PLAIN:
        if (!(step_seconds > 0) || step < trial->look_at) break;
        trial->without_seconds = step_seconds;
        enter(trial, trial->with_seconds < WORTH_IT * step_seconds ? GS_TRIAL_GAINS : GS_TRIAL_IDLE);
        break;
    case GS_TRIAL_IDLE:
        if (step_seconds > IS_ANOTHER_LINK * trial->without_seconds) open_again(trial);
        break;
    case GS_TRIAL_GAINS:
        break;
    }
    return trial->phase == GS_TRIAL_OPEN || trial->phase == GS_TRIAL_GAINS;
}
