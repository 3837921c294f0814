#include "coordinator/engine/base/event.h"

#include <stdlib.h>


static const char *const names[GS_NUM_ENGINE_EVENTS] = {
    [GS_ON_NOTHING] = "nothing",
    [GS_ON_START] = "start",
    [GS_ON_TICK] = "tick",
    [GS_ON_TURN] = "turn",
    [GS_ON_DRAIN] = "drain",
    [GS_ON_AGENT_HELLO] = "agent_hello",
    [GS_ON_AGENT_HEARTBEAT] = "agent_heartbeat",
    [GS_ON_EXITED] = "exited",
    [GS_ON_DESCRIBED] = "described",
    [GS_ON_HELLO] = "hello",
    [GS_ON_PARAMS] = "params",
    [GS_ON_READY] = "ready",
    [GS_ON_EXCHANGE] = "exchange",
    [GS_ON_COMM_UP] = "comm_up",
    [GS_ON_HEARTBEAT] = "heartbeat",
    [GS_ON_STEP] = "step",
    [GS_ON_FAULT] = "fault",
    [GS_ON_SETTLE] = "settle",
    [GS_ON_CHECKPOINTED] = "checkpointed",
    [GS_ON_BYE] = "bye",
    [GS_ON_READY_ORDER] = "ready_order",
    [GS_ON_CREATE_JOB] = "create_job",
    [GS_ON_STOP_JOB] = "stop_job",
    [GS_ON_DELETE_JOB] = "delete_job",
    [GS_ON_REPLAN_JOB] = "replan_job",
    [GS_ON_RELEASE_JOB] = "release_job",
    [GS_ON_ADOPT_JOB] = "adopt_job",
    [GS_ON_CALL_GONE] = "call_gone",
    [GS_ON_TOO_LARGE] = "too_large",
    [GS_ON_STORED] = "stored",
    [GS_ON_VERIFIED] = "verified",
    [GS_ON_PARTS_LOOKED] = "parts_looked",
    [GS_ON_DIRECTORIES_FOUND] = "directories_found",
    [GS_ON_FILES_REMOVED] = "files_removed",
    [GS_ON_CHECKPOINTS_CHECKED] = "checkpoints_checked",
    [GS_ON_LIFE_LOOKED] = "life_looked",
};

const char *gs_engine_event_name(gs_engine_event_kind kind) {
    return (unsigned)kind < GS_NUM_ENGINE_EVENTS ? names[kind] : "unknown";
}

void gs_engine_event_release(gs_engine_event *event) {
    switch (event->kind) {
    case GS_ON_AGENT_HELLO:
        gs_agent_devices_release(&event->agent_hello.devices);
        free(event->agent_hello.running);
        break;
    case GS_ON_EXITED: free(event->exited.log_tail); break;
    case GS_ON_DESCRIBED: free(event->described.spec); break;
    case GS_ON_PARAMS: gs_param_page_release(&event->params.page); break;
    case GS_ON_EXCHANGE:
        free(event->exchange.request.bytes);
        free((void *)(uintptr_t)event->exchange.request.ranks);
        break;
    case GS_ON_CHECKPOINTED: gs_checkpoint_report_release(&event->checkpointed.found); break;
    case GS_ON_READY_ORDER:
        gs_param_order_release(&event->ready_order.order);
        gs_link_report_release(&event->ready_order.link);
        gs_plan_offers_release(&event->ready_order.offers);
        break;
    case GS_ON_CREATE_JOB: free(event->create.spec); break;
    case GS_ON_PARTS_LOOKED: gs_checkpoint_report_release(&event->done.found); break;
    default: break;
    }
    event->kind = GS_ON_NOTHING;
}
