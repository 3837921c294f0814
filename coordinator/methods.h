// The method table, and the methods that only read.
#ifndef COORDINATOR_METHODS_H
#define COORDINATOR_METHODS_H

#include "rpc/schema/messages.h"
#include "rpc/server/rpc_server.h"

extern const gs_rpc_handler gs_coordinator_methods[GS_NUM_METHODS];

#endif
