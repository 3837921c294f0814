// The control thread of a trainer, which owns its line to the coordinator: says Hello and hears
// what comes back, for as long as the trainer lives, and tells how it is in heartbeats.
//
// It reads the trainer's progress and puts requests into its mailbox; what the compute thread must act
// upon is an event. The coordinator's death disturbs nobody: the thread
// says Hello again until somebody answers.
#ifndef WORKER_CONTROL_LINE_H
#define WORKER_CONTROL_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "rpc/client/rpc_client.h"
#include "rpc/json/json.h"
#include "worker/control/control.h"
#include "worker/control/member_messages.h"
#include "worker/control/outbox.h"

typedef struct gs_line gs_line;

// Nothing is said yet. Borrows all until destroy. `page` shows the agent the step that is applied.
GS_NODISCARD gs_status gs_line_create(gs_line **out, gs_rpc_client *client, gs_outbox *outbox,
                                      gs_control *control, gs_launch_page *page);
// Ends the thread.
void gs_line_destroy(gs_line *line);

// Says Hello from now on. Takes `hello`, copies the parameters' specifications.
GS_NODISCARD gs_status gs_line_start(gs_line *line, gs_json *hello, uint64_t incarnation,
                                     const gs_param_spec *params, size_t num_params);
bool gs_line_started(const gs_line *line);

// Any thread, as all below. What heartbeats tell.
void gs_line_set_state(gs_line *line, gs_member_state state, uint32_t generation);
uint32_t gs_line_generation(const gs_line *line);

// The next of prepare, start, go (the caller's); false: none before the deadline.
bool gs_line_next_event(gs_line *line, gs_json **event, gs_deadline deadline);
// What the coordinator refused Hello with; final.
gs_status gs_line_refusal(gs_line *line);
// The coordinator of now has answered Hello.
bool gs_line_welcomed(const gs_line *line);
// It takes flat records of steps; one of before takes JSON.
bool gs_line_reads_records(const gs_line *line);
// It has, and does not know this trainer, which trains on.
bool gs_line_unknown(const gs_line *line);
// How long a coordinator that is gone is waited for by who has a last word for it: the limit of orphans, as it told.
double gs_line_wait_seconds(const gs_line *line);
int64_t gs_line_heard_ns(const gs_line *line);  // when a coordinator was there last

// What this generation reduces over, which Hello says from now on, for another life of the coordinator. Takes it; NULL: nothing.
void gs_line_keep_communicator(gs_line *line, gs_json *communicator);
// Keeps the last ReadyOrder, which another life of the coordinator is told again. Takes it.
void gs_line_keep_order(gs_line *line, gs_json *order);

#endif
