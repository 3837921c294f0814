// What a trainer starts from, each found sound before anybody waits for this rank: its device, the
// parameters that its job begins with, its data. Local.
#ifndef WORKER_TRAINER_STARTUP_H
#define WORKER_TRAINER_STARTUP_H

#include "core/digest.h"
#include "core/status.h"
#include "kernels/device.h"
#include "rpc/schema/job_spec.h"
#include "worker/state/trainer_state.h"

typedef struct gs_startup_device {
    const char *name;   // "cpu", "cuda:0"; NULL: "cpu"
    const char *place;  // who asks, for the error of a device that is not there; NULL: "here"
    int num_threads;    // of one replica
} gs_startup_device;

// FAILED_PRECONDITION for a GPU that is not there: no passing trouble, the job, or the worker, is
// set up otherwise.
GS_NODISCARD gs_status gs_startup_open_device(gs_device **out, const gs_job_spec *spec,
                                              const gs_startup_device *wanted);
// The checkpoint `resume`, the file that the specification imports, or as the model was made.
GS_NODISCARD gs_status gs_startup_fill_state(gs_trainer_state *state, const gs_job_spec *spec,
                                             const char *data_root, const char *resume);
// Opens the data once as a single rank would: errors show before anybody waits for this rank.
GS_NODISCARD gs_status gs_startup_check_data(gs_digest *digest, const gs_job_spec *spec,
                                             const char *data_root, int64_t consumed);

#endif
