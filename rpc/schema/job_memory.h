// What a rank of a job holds in memory, before it runs: formulas of specification, plan and world.
// Pure.
//
// A formula is what the trainer allocates and touches, padding included, at its peak: from the
// first checkpoint on. In no formula are the process itself with its libraries and the data it
// reads, what a GPU's libraries keep, and what `not_counted` names.
#ifndef RPC_SCHEMA_JOB_MEMORY_H
#define RPC_SCHEMA_JOB_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bucket_plan.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "rpc/json/json.h"
#include "rpc/schema/job_spec.h"

// Of one rank. On a GPU's job all but `host_bytes` is memory of the device.
typedef struct gs_job_memory {
    uint64_t params_bytes;       // what passes read
    uint64_t masters_bytes;      // what the optimizer updates, where that is not what passes read
    uint64_t gradients_bytes;    // what stays of them, and partial sums
    uint64_t windows_bytes;      // in which buckets of gradients take turns
    uint64_t optimizer_bytes;    // its state
    uint64_t undo_bytes;         // what updates of buckets replace, until the step counts; at most:
                                 // nothing where ranks on CPUs have no core to spare
    uint64_t activations_bytes;  // of the largest pass
    uint64_t exchange_bytes;     // through which ranks of a host talk
    uint64_t snapshot_bytes;     // what a checkpoint is written from
    uint64_t staging_bytes;      // between a GPU and the host
    uint64_t total_bytes;        // of all of these
    uint64_t host_bytes;         // of them, in the host's memory
} gs_job_memory;

typedef struct gs_job_memory_request {
    const gs_job_spec *spec;
    const gs_bucket_plan *plan;   // for this world
    const gs_param_spec *params;  // of the model, in the precision's type
    size_t num_params;
    int world_size;
    bool on_gpu;
} gs_job_memory_request;

// Of each rank; the list, of world_size, is the caller's (free()).
GS_NODISCARD gs_status gs_job_memory_foresee(gs_job_memory **out,
                                             const gs_job_memory_request *request);
// What a model keeps of its largest pass.
uint64_t gs_job_memory_activations(const gs_job_spec *spec, bool on_gpu);
// {"device", "ranks": [{"first_rank", "last_rank", "params_bytes" …}…], "not_counted": [names]}:
// neighbours that hold as much are one entry, and so are all behind the 255th, of the rank that
// holds most.
GS_NODISCARD gs_status gs_job_memory_to_json(gs_json **out, const gs_job_memory_request *request);

#endif
