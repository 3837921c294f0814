// The agent of a host: offers slots, starts, watches and stops trainers, forwards their output.
//
// It never touches a device: a child of its own says which there are (device_probe.h). Its one thread
// owns slots and the AgentHello stream; what must arrive is told by agent_reports.h. When it dies its
// trainers die with it.
#ifndef WORKER_AGENT_AGENT_H
#define WORKER_AGENT_AGENT_H

#include "worker/agent/agent_options.h"

// Runs until SIGTERM or SIGINT, or an error that needs a person; returns the exit code.
int gs_agent_run(const gs_agent_options *options);

#endif
