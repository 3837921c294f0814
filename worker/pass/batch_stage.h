// Batches where the device reads them. The loader's batches are the host's; on a GPU each goes through
// pinned memory to one place on the device, in the order of the compute stream, so that a pass finds every
// batch at the same address and the host waits for no copy: only when it is more than a few passes ahead.
// Where the host's memory is the device's, batches stay where they are.
//
// Owned by the thread of its device.
#ifndef WORKER_PASS_BATCH_STAGE_H
#define WORKER_PASS_BATCH_STAGE_H

#include "core/status.h"
#include "gradsync/step/model.h"
#include "kernels/device.h"
#include "worker/data/data_loader.h"

typedef struct gs_batch_stage gs_batch_stage;

// For batches of at most these rows. *out stays NULL where batches stay where they are; destroy takes it.
GS_NODISCARD gs_status gs_batch_stage_create(gs_batch_stage **out, gs_device *device,
                                             const gs_batch *largest);
void gs_batch_stage_destroy(gs_batch_stage *stage);

// The loader's next batch, for work that the compute stream is given from now on, until the next call.
//   stage  NULL: as the loader has it
GS_NODISCARD gs_status gs_batch_stage_next(gs_batch_stage *stage, gs_batch *batch,
                                           gs_data_loader *loader, gs_deadline deadline);
// The tokens of that batch in host memory.
const int32_t *gs_batch_stage_host_tokens(const gs_batch_stage *stage, const gs_batch *batch);

#endif
