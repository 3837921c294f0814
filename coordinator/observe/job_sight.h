// What can be seen of a job besides its state: what people are told of it, what its ranks reported, its log. Hung on
// the job by whoever observes it; the engine never looks.
#ifndef COORDINATOR_OBSERVE_JOB_SIGHT_H
#define COORDINATOR_OBSERVE_JOB_SIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/model/job.h"
#include "coordinator/observe/reports/job_metrics.h"
#include "coordinator/store/record/job_documents.h"
#include "core/metrics.h"

typedef struct gs_job_log gs_job_log;                // job_log.h
typedef struct gs_left_timelines gs_left_timelines;  // timelines.c

// Of checkpoints, for the metrics page.
typedef struct gs_save_facts {
    int64_t last_success_ms, last_success_step, last_bytes, last_verified_ms;
    uint64_t failures_space, failures_io, failures_digest, failures_deadline, failures_residuals;
    gs_histogram save_seconds;
} gs_save_facts;

struct gs_job_sight {
    gs_job_documents documents;  // owned
    gs_job_metrics *metrics;     // owned
    gs_job_log *log;             // owned
    gs_left_timelines *left;     // owned; NULL: none
    gs_save_facts saves;
    int ranks_shown;  // most ranks that the metrics page has shown
    bool on_page;     // its series are on the metrics page
};

#endif
