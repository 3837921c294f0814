// A request that waits for its answer, as a number: who holds the line to its caller is coordinator/serve.
#ifndef COORDINATOR_MODEL_CALL_H
#define COORDINATOR_MODEL_CALL_H

#include <stdint.h>

// Grows with each request and is never used again. 0: none, nobody waits.
typedef uint64_t gs_call;

// What a call is kept for. When its caller goes away, whoever keeps it is found by the number.
typedef enum gs_call_use {
    GS_CALL_FREE = 0,
    GS_CALL_AGENT_STREAM,   // of a gs_agent
    GS_CALL_MEMBER_STREAM,  // of a gs_member
    GS_CALL_SETTLE,         // of a gs_member
    GS_CALL_BYE,            // of a gs_member: waits for the store
    GS_CALL_EXCHANGE,       // of a gs_exchange_entry
    GS_CALL_ANSWER          // of a gs_late_answer: waits for the store
} gs_call_use;

// Lives in the keeper's struct, which does not move while the call is kept.
typedef struct gs_kept_call {
    gs_call call;
    gs_call_use use;
    void *keeper;
} gs_kept_call;

#endif
