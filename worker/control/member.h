// A trainer's line to the coordinator: join, exchange, heartbeat, control, settle, leave.
//
// What the compute thread says and asks; line.h is the thread that listens meanwhile. Reports of
// checkpoints and orders wait in an outbox until they are acknowledged.
#ifndef WORKER_CONTROL_MEMBER_H
#define WORKER_CONTROL_MEMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "rpc/client/rpc_client.h"
#include "rpc/json/json.h"
#include "worker/control/control.h"
#include "worker/control/member_messages.h"
#include "worker/control/outcome.h"
#include "worker/control/rendezvous.h"
#include "worker/launch.h"

typedef struct gs_member gs_member;

// Fits gs_control: ctx is the member.
extern const gs_control_ops gs_member_control_ops;

// Opens the line; nothing is said yet. Borrows launch and control until destroy.
GS_NODISCARD gs_status gs_member_create(gs_member **out, const gs_launch *launch,
                                        gs_control *control);
// Says Hello with the facts of a trainer that has booted, and goes on in a thread.
GS_NODISCARD gs_status gs_member_join(gs_member *member, const gs_trainer_facts *facts);
// Ends the threads.
void gs_member_destroy(gs_member *member);

// The next of prepare, start, go (the caller's). DEADLINE_EXCEEDED: none yet. ABORTED, and what the
// coordinator refused Hello with, are final; UNAVAILABLE: no coordinator for too long.
GS_NODISCARD gs_status gs_member_next_event(gs_member *member, gs_json **event,
                                            gs_deadline deadline);
void gs_member_set_state(gs_member *member, gs_member_state state, uint32_t generation);
// Prepared for a place in a generation, where it exchanges from now on.
void gs_member_take_place(gs_member *member, const gs_place *place);

GS_NODISCARD gs_status gs_member_send_ready(gs_member *member, const char *plan_hash,
                                            gs_digest state_digest);
GS_NODISCARD gs_status gs_member_send_comm_up(gs_member *member, const gs_comm_facts *facts);
// Waits for a coordinator that is away, and a short while for the right one where another is there;
// not when this trainer has not joined, was refused or is asked to leave. True: it is there and
// knows this trainer.
bool gs_member_wait_for_welcome(gs_member *member, gs_deadline deadline);
// Last words; the outbox first. To the next coordinator, too, where the one that took them is gone without an answer. Also
// for a trainer that could not boot (it has not joined then).
void gs_member_say_bye(gs_member *member, const gs_trainer_outcome *outcome, int rank);

#endif
