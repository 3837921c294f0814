// The methods of the control plane: one row each. What requests, replies and items hold is in
// README.md beside this file, member by member.
#ifndef RPC_SCHEMA_MESSAGES_H
#define RPC_SCHEMA_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "rpc/schema/role.h"

// Versions of the protocol this build speaks. A peer outside gets FAILED_PRECONDITION naming both
// ranges.
// 1: version 0.1. 2: an agent may run trainers of unknown jobs, and a Fault's suspects are not read
// from its text.
#define GS_PROTOCOL_LEAST 2
#define GS_PROTOCOL_MOST 2

// Numbers are wire format: append, never reorder.
typedef enum gs_method {
    GS_METHOD_NONE = 0,
    // agent → coordinator
    GS_AGENT_HELLO = 1,  // server stream: commands to the agent
    GS_AGENT_HEARTBEAT,  // one-way
    GS_EXITED,           // call
    GS_LOG,              // call
    // trainer → coordinator
    GS_HELLO,         // server stream: control of the trainer
    GS_HEARTBEAT,     // one-way
    GS_READY,         // call
    GS_EXCHANGE,      // call, held until all ranks have sent theirs
    GS_COMM_UP,       // call
    GS_STEP,          // one-way, newest wins
    GS_FAULT,         // call
    GS_SETTLE,        // call, held until all survivors have reported
    GS_CHECKPOINTED,  // call
    GS_BYE,           // call
    // API → coordinator
    GS_CREATE_JOB,
    GS_LIST_JOBS,
    GS_GET_JOB,
    GS_STOP_JOB,
    GS_DELETE_JOB,
    GS_GET_JOB_WORKERS,
    GS_GET_JOB_PLAN,
    GS_GET_JOB_METRICS,
    GS_GET_JOB_SERIES,
    GS_LIST_EVENTS,
    GS_READ_LOGS,
    GS_LIST_CHECKPOINTS,
    GS_LIST_WORKERS,
    GS_PREVIEW_PLAN,
    GS_GET_METRICS,  // server stream: families in pieces, then a clean end
    GS_GET_HEALTH,
    GS_GET_SYSTEM,
    GS_WATCH,  // server stream: live events
    GS_READY_ORDER,  // trainer → coordinator; call
    GS_REPLAN_JOB,   // API → coordinator
    GS_TIMELINE,           // trainer → coordinator; call
    GS_GET_JOB_TIMELINE,   // API → coordinator; server stream: pages of ranks, then what they are about
    GS_GET_JOB_DIAGNOSIS,  // API → coordinator
    GS_TRACE_JOB,          // API → coordinator: recording of timelines on or off
    GS_RELEASE_JOB,        // API → coordinator
    GS_ADOPT_JOB,          // API → coordinator
    GS_DESCRIBED,          // agent → coordinator, one-way: a trainer that it asked about
    GS_STEP_RECORD,        // trainer → coordinator, one-way: a Step as a flat record (step_record.h), no JSON
    GS_EXAMINED,           // agent → coordinator, one-way: what it found of itself and of its links
    GS_EXAMINE_WORKERS,    // API → coordinator: held until they have said so
    GS_ENROL,              // worker to be → coordinator: a key for a token
    GS_RANK_KEYS,          // agent → coordinator, one-way: the public keys of ranks that it has started
    GS_NUM_METHODS
} gs_method;

// What the texts of all ranks may be in the answer to an Exchange, each with its quotes and a comma: what is around
// them has room in the message besides.
#define GS_EXCHANGE_ANSWER_BYTES (((size_t)1 << 20) - 64)

typedef enum gs_method_shape { GS_CALL = 0, GS_STREAM, GS_ONE_WAY } gs_method_shape;

typedef struct gs_method_info {
    const char *name;  // "CreateJob"
    gs_method_shape shape;
    bool control;           // served before API methods
    gs_role role;           // who may call it
    size_t max_body_bytes;  // of a request
} gs_method_info;

const gs_method_info *gs_method_info_of(gs_method method);  // NULL: no such method

#endif
