// What an agent has to tell and must not lose: exits of trainers at once, their log lines in
// batches.
//
// One thread makes the calls and repeats them until they are acknowledged. While the coordinator is
// away lines are kept up to a bound; what had to be dropped is said in their place.
#ifndef WORKER_AGENT_AGENT_REPORTS_H
#define WORKER_AGENT_AGENT_REPORTS_H

#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "rpc/client/rpc_client.h"
#include "rpc/json/json.h"

typedef struct gs_agent_reports gs_agent_reports;

// A line as it was read; `text` is copied.
typedef struct gs_log_record {
    const char *job;
    int rank;
    uint32_t generation;
    const char *stream;  // "stdout", "stderr"; constant text
    const char *text;
    size_t bytes;
    int64_t at_ms, position;  // position: in the output of this trainer, from 1
} gs_log_record;

// Borrows the client until destroy. max_log_bytes: of memory for lines; 0: 8 MiB.
GS_NODISCARD gs_status gs_agent_reports_create(gs_agent_reports **out, gs_rpc_client *client,
                                               size_t max_log_bytes);
void gs_agent_reports_destroy(gs_agent_reports *reports);  // what was not sent is gone

void gs_agent_reports_add_line(gs_agent_reports *reports, const gs_log_record *record);
void gs_agent_reports_add_exit(gs_agent_reports *reports, gs_json *exited);  // takes it
// Waits until everything is acknowledged, or the deadline.
void gs_agent_reports_flush(gs_agent_reports *reports, gs_deadline deadline);

#endif
