// An agent's line to its coordinator: the hello that is said until it is welcome, what comes back, and how it is told that the worker
// lives. Owner's thread; all of it returns at once.
#ifndef WORKER_AGENT_COORDINATOR_LINE_H
#define WORKER_AGENT_COORDINATOR_LINE_H

#include "worker/agent/host_agent.h"

#define GS_FIRST_RETRY_NS (100 * GS_NS_PER_MS)

void gs_coordinator_line_say_hello(gs_host_agent *agent);  // where there is no line, and it is time
void gs_coordinator_line_read(gs_host_agent *agent);       // and does what it is told
void gs_coordinator_line_beat(gs_host_agent *agent);       // when it is time
void gs_coordinator_line_watch(gs_host_agent *agent);      // says that nobody answers, and ends a worker that nobody wants in the end
// It stood still, and its trainers may have, too: what it has from the coordinator may be from before.
void gs_coordinator_line_ask_again(gs_host_agent *agent, int64_t now_ns);
void gs_coordinator_line_give_keys(gs_host_agent *agent);  // its own, or each rank's, to the trainers that run

#endif
