// A job as the API shows it. Loop thread.
#ifndef COORDINATOR_OBSERVE_JOB_VIEW_H
#define COORDINATOR_OBSERVE_JOB_VIEW_H

#include <stdbool.h>

#include "coordinator/model/run.h"
#include "coordinator/observe/observer.h"

// What a disk that takes nothing keeps from its end has a reason of its own: people are told what it waits for.
#define GS_SHOWN_MESSAGE_LEN 400
const char *gs_job_shown_reason(const gs_job *job);
void gs_job_show_message(char *text, size_t text_bytes, const gs_job *job);
gs_json *gs_job_to_view(const gs_job *job, bool with_spec);
// The same without a specification, encoded, for lists: whoever asks again and again gets the same text, whose numbers
// of a job that trains are as old as a tenth of a second.
gs_json *gs_job_to_line(const gs_job *job, int64_t now_ns);
// The items of GetJobWorkers: of the run, or of the last one; their number is the rank.
int gs_job_num_members(const gs_job *job);
gs_json *gs_job_member_to_view(const gs_job *job, int rank);
gs_json *gs_run_members_to_view(const gs_job *job, const gs_run *run);

#endif
