// What can be seen of a job besides its state: what people are told of it, what its ranks reported, its log. Hung on
// the job by whoever observes it; the engine never looks.
#ifndef COORDINATOR_OBSERVE_JOB_SIGHT_H
#define COORDINATOR_OBSERVE_JOB_SIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/model/job.h"
#include "coordinator/observe/observer.h"
#include "coordinator/observe/reports/job_metrics.h"
#include "coordinator/observe/reports/past_ranks.h"
#include "coordinator/store/record/job_documents.h"
#include "core/clock.h"
#include "core/metrics.h"

typedef struct gs_curves gs_curves;                  // curves.h
typedef struct gs_job_log gs_job_log;                // job_log.h
typedef struct gs_left_timelines gs_left_timelines;  // timelines.c

// Of checkpoints, for the metrics page.
typedef struct gs_save_facts {
    int64_t last_success_ms, last_success_step, last_bytes, last_verified_ms;
    uint64_t failures_space, failures_io, failures_digest, failures_deadline, failures_residuals;
    gs_histogram save_seconds;
} gs_save_facts;

// A job's line in lists, as text that many answers share: made again when the job is another, or it is old.
typedef struct gs_job_line {
    gs_json *text;  // owned; NULL: none
    gs_job_state state;
    uint64_t version;
    int64_t step, made_ns;
} gs_job_line;

struct gs_job_sight {
    gs_job_documents documents;  // owned
    gs_job_metrics *metrics;     // owned, unless it is the observer's no_metrics
    gs_job_log *log;             // owned
    gs_curves *curves;           // owned
    gs_left_timelines *left;     // owned; NULL: none
    gs_past_ranks past;          // owned
    gs_save_facts saves;
    gs_job_line line;
    int ranks_shown;  // most ranks that the metrics page has shown
    bool on_page;     // its series are on the metrics page
    // An ended job rests: what people seldom ask for is let go, and recalled from the disk when they do.
    bool is_resting;
    bool record_is_coming;  // documents.spec NULL: it is on the disk alone
    bool row_failed;        // the last time that it was written
    int rows_on_their_way;  // to the disk: who reads it there does so beside them
    // What people are told is true in the next life, too: there is a job once its first row is stored, and it has ended
    // once the row that says so is.
    bool has_no_row;
    uint64_t end_version;   // of its end, until that is stored; 0: nothing is on its way
    gs_job_state state_before;  // the end
    int64_t before_since_ms;    // the job was in that state
    int64_t ended_ns;       // this life saw it end; 0: it had ended before, or has not
    int64_t used_ns;        // somebody asked for what had to be recalled
    size_t recalled_bytes;  // of the row that was read for that
};

static inline void gs_sight_use(gs_job_sight *sight) {
    sight->used_ns = gs_now_ns();
    sight->is_resting = false;
}

// As people are told.
static inline bool gs_sight_has_ended(const gs_job *job) {
    return gs_job_state_terminal(job->state) && !job->sight->end_version;
}

static inline gs_job_state gs_sight_state(const gs_job *job) {
    return job->sight->end_version ? job->sight->state_before : job->state;
}

static inline int64_t gs_sight_state_since_ms(const gs_job *job) {
    return job->sight->end_version ? job->sight->before_since_ms : job->state_since_ms;
}

// Made when it has none. NULL: out of memory.
gs_job_metrics *gs_sight_own_metrics(gs_observer *observer, gs_job *job);

#endif
