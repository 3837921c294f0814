// Memory that the library maps into its peers, alike on all ranks: in a window where all may have one, else registered,
// else plain. Calls of one communicator must not mix what is with what is not.
#include <stdlib.h>

#include "gradsync/comm/nccl/state.h"

// Whether all ranks have one; the verdict is common.
static gs_status meet_windows(const gs_nccl_comm *nccl, gs_stages *stages, bool have, bool *all_have) {
    uint8_t mine = have, *all = calloc((size_t)nccl->world_size, 1);
    if (!all) return gs_error(GS_RESOURCE_EXHAUSTED, "NCCL: out of memory");
    gs_status status = gs_stages_meet(stages, "NCCL window", gs_ok(), all, &mine, 1);
    *all_have = true;
    for (int i = 0; i < nccl->world_size; i++) *all_have &= all[i] != 0;
    free(all);
    return status;
}

// All ranks have a window on it, or none keeps one.
static gs_status open_window(gs_nccl_lane *lane, gs_nccl_region *region, gs_stages *stages, bool *opened,
                             gs_deadline deadline) {
    const gs_nccl_comm *nccl = lane->comm;
    gs_status mine = gs_nccl_register_window(nccl->library, lane->handle, region->memory, region->bytes,
                                             &region->window);
    if (!mine.code) mine = gs_nccl_settle(lane, "ncclCommWindowRegister", deadline);
    gs_status status = meet_windows(nccl, stages, !mine.code && region->window, opened);
    if (status.code || *opened) return status;
    if (mine.code == GS_DEADLINE_EXCEEDED) return mine;
    return gs_nccl_deregister_region(lane, region, deadline);
}

gs_status gs_nccl_register_region(gs_nccl_lane *lane, gs_nccl_region *region, gs_stages *stages,
                                  gs_nccl_manner *manner, gs_deadline deadline) {
    const gs_nccl_comm *nccl = lane->comm;
    bool opened = false, registers = manner->registers;
    manner->how = "not registered";
    if (manner->windows)
        GS_TRY(gs_status_prefix(open_window(lane, region, stages, &opened, deadline),
                                "%s (GRADSYNC_NCCL_WINDOWS=0 leaves windows out)", region->name));
    // The library does not say whether it keeps to the symmetry that it was asked for.
    if (opened) manner->how = "in a window";
    if (opened || !registers) return gs_ok();
    gs_status status = gs_nccl_register(nccl->library, lane->handle, region->memory, region->bytes,
                                        &region->registration);
    if (!status.code) status = gs_nccl_settle(lane, "ncclCommRegister", deadline);
    if (!status.code) manner->how = "registered";
    return gs_status_prefix(status, "%s (GRADSYNC_NCCL_REGISTRATION=0 leaves it unregistered)", region->name);
}
