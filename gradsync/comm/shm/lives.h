// Whether the ranks of a segment have ended, each by its life: until then they may still store into
// the arenas that they have mapped, whatever was aborted.
#ifndef GRADSYNC_COMM_SHM_LIVES_H
#define GRADSYNC_COMM_SHM_LIVES_H

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm_failure.h"
#include "gradsync/comm/interrupt.h"
#include "gradsync/comm/shm/segment.h"

// Waits until all other ranks have left or died. The own life has ended, and this thread alone
// looks at lives from then on. DEADLINE_EXCEEDED names who has not, and adds them to `lingering`; CANCELLED
// when the interrupt says so.
GS_NODISCARD gs_status gs_shm_wait_lives_ended(gs_shm_segment *segment, gs_comm_failure *lingering,
                                               gs_interrupt *interrupt, gs_deadline deadline);

#endif
