// A job as the store keeps it: one JSON text, in which versions of before are read too.
#ifndef COORDINATOR_STORE_RECORD_JOB_RECORD_H
#define COORDINATOR_STORE_RECORD_JOB_RECORD_H

#include <stdint.h>

#include "coordinator/model/job.h"
#include "coordinator/store/record/job_documents.h"
#include "core/status.h"

// The text is the caller's (free()). Ages are as of the monotonic now_ns.
GS_NODISCARD gs_status gs_job_to_record(char **text, const gs_job *job, const gs_job_documents *documents,
                                        int64_t now_ns);
// With its run, where it trained. `now_ns` and `wall_ms` are those of this start: its age goes on from now.
// INVALID_ARGUMENT, DATA_LOSS: not a job that this program can read; nothing is made.
GS_NODISCARD gs_status gs_job_from_record(gs_job **out, gs_job_documents *documents, uint64_t id,
                                          const char *text, int64_t now_ns, int64_t wall_ms);

// What lists show of a job that has ended, and what is decided of it: enough until somebody asks for the rest.
GS_NODISCARD gs_status gs_job_to_card(char **text, const gs_job *job, const gs_job_documents *documents, int64_t now_ns);
// Its specification has a name, labels and a target alone; its documents are a failure in short, and its sample.
GS_NODISCARD gs_status gs_job_from_card(gs_job **out, gs_job_documents *documents, uint64_t id, const char *text,
                                        int64_t now_ns, int64_t wall_ms);
// The rest.
GS_NODISCARD gs_status gs_job_documents_from_record(gs_job_documents *out, gs_job_spec *spec, const char *text);

#endif
