// How the ranks of a host find each other's memory, and agree whether they could.
//
// Same host does not imply shared memory: containers have their own mounts, networks and C libraries. So the
// ranks compare the kernel's boot id and how they lay out what they are to share, pass descriptors over an
// abstract Unix socket, map them, and read back what each peer wrote. Each is a stage of the creation
// (stages.h), so that all come to one verdict, with the reason in words.
#ifndef GRADSYNC_COMM_SHM_HANDSHAKE_H
#define GRADSYNC_COMM_SHM_HANDSHAKE_H

#include <stddef.h>

#include "core/clock.h"
#include "gradsync/comm/comm_options.h"
#include "gradsync/comm/shm/segment.h"
#include "gradsync/comm/stages.h"

// Fills `segment` (release with gs_shm_unmap, also after an error). UNAVAILABLE when some rank cannot share memory;
// FAILED_PRECONDITION when ranks of one host would take the same memory for different things: it names
// them and the first difference. The last step, reading what the peers wrote, is for the caller's stage.
GS_NODISCARD gs_status gs_shm_handshake(gs_shm_segment *segment, const gs_comm_options *options,
                                        gs_stages *stages, gs_deadline deadline);

#endif
