#include "rpc/schema/fault_kind.h"

#include <stddef.h>
#include <string.h>

static const char *const names[] = {
    [GS_FAULT_INTERNAL] = "internal",
    [GS_FAULT_TIMEOUT] = "timeout",
    [GS_FAULT_PEER_LOST] = "peer_lost",
    [GS_FAULT_MISMATCH] = "mismatch",
    [GS_FAULT_DAMAGED] = "damaged",
    [GS_FAULT_DEVICE] = "device",
    [GS_FAULT_ABORTED] = "aborted",
    [GS_FAULT_ERROR] = "error",
    [GS_FAULT_DATA] = "data",
    [GS_FAULT_NUMERICS] = "numerics",
    [GS_FAULT_DIVERGENCE] = "divergence",
    [GS_FAULT_NO_DEVICE_MEMORY] = "no_device_memory",
    [GS_FAULT_DEVICE_LOST] = "device_lost",
};
_Static_assert(sizeof names / sizeof *names == GS_NUM_FAULT_KINDS, "each kind has a name");

const char *gs_fault_kind_name(gs_fault_kind kind) {
    return (size_t)kind < GS_NUM_FAULT_KINDS ? names[kind] : names[GS_FAULT_INTERNAL];
}

gs_fault_kind gs_fault_kind_of(const char *name) {
    for (int kind = 0; kind < GS_NUM_FAULT_KINDS; kind++) {
        if (strcmp(names[kind], name) == 0) return (gs_fault_kind)kind;
    }
    return GS_FAULT_INTERNAL;
}
