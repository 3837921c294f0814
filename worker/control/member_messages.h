// What a trainer says, as JSON: the bodies of rpc/README.md. Values in, document out; no state is
// kept.
#ifndef WORKER_CONTROL_MEMBER_MESSAGES_H
#define WORKER_CONTROL_MEMBER_MESSAGES_H

#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/param_spec.h"
#include "rpc/json/json.h"
#include "worker/control/control.h"
#include "worker/control/outcome.h"
#include "worker/launch.h"

// What all ranks of a job must have alike. Borrows for the call.
typedef struct gs_trainer_facts {
    const gs_param_spec *params;
    size_t num_params, total_elements;
    const char *arithmetic;
    gs_digest data_digest;
} gs_trainer_facts;

// The communicator that a rank has made. Borrows for the call.
typedef struct gs_comm_facts {
    uint32_t generation;
    double seconds;  // that it took
    const char *backend, *reason, *algorithm;
} gs_comm_facts;

gs_json *gs_member_message_hello(const gs_launch *launch, const gs_trainer_facts *facts);
//   state_digest  NULL: not told
gs_json *gs_member_message_ready(uint32_t generation, const char *plan_hash, int64_t applied_step,
                                 const gs_digest *state_digest);
gs_json *gs_member_message_heartbeat(gs_member_state state, uint32_t generation,
                                     const gs_control *control);
gs_json *gs_member_message_comm_up(const gs_comm_facts *facts);
gs_json *gs_member_message_checkpointed(const gs_checkpoint_result *result);
gs_json *gs_member_message_order(const gs_order_report *report);
gs_json *gs_member_message_fault(const gs_fault *fault);
gs_json *gs_member_message_settle(const gs_settlement *settlement);
gs_json *gs_member_message_bye(const gs_trainer_outcome *outcome, uint32_t generation, int rank,
                               const gs_control *control);
// Into a page of a timeline: which request it answers (0: none), and of which generation it is.
void gs_member_complete_page(gs_json *page, int64_t request, uint32_t generation);

#endif
