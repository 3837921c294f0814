// libgradsync: N processes take the same optimizer step, as fast as one. The core: device, communicator,
// plan, reducer, optimizer. Everything else is in gradsync/extras.h, header by header.
//
// In each process (errors checked with GS_TRY; `exchange` is how bytes reach all ranks):
//
//     gs_device_open(&device, "cpu", &(gs_device_options){0});
//     gs_bucket_plan_one_host(&plan, specs, num_params, NULL);
//     gs_reducer_options options = {.params = specs, .num_params = num_params, .plan = &plan,
//         .shards = {.num_shards = world_size, .world_size = world_size, .rank = rank}};
//     gs_reducer_arena_bytes(&bytes, &options);
//     gs_arena_create(&arena, bytes);
//     gs_comm_create(&comm, &(gs_comm_options){.rank = rank, .world_size = world_size,
//         .exchange = exchange, .arena = arena, .device = device}, deadline);
//     options.arena = arena, options.device = device;
//     gs_reducer_create(&reducer, &options, comm, deadline);
//     for (int64_t step = 0; step < num_steps; step++) {
//         gs_reducer_begin(reducer, step);
//         gs_reducer_begin_pass(reducer, &pass, num_samples);
//         for (size_t i = num_params; i-- > 0;) {
//             backward_of(i, pass.grads[i]);      // writes the gradient where it is reduced
//             gs_reducer_mark_ready(reducer, i);  // a full bucket is on its way now
//         }
//         gs_reducer_end_pass(reducer);
//         gs_reducer_finish(reducer, &result, gs_deadline_in_seconds(30));
//         if (!result.nonfinite)
//             gs_optimizer_step(optimizer, values, gs_reducer_grads(reducer), result.used, lr, 1);
//     }
//
// Destroy in reverse: reducer, communicator, arena, device.
#ifndef GRADSYNC_GRADSYNC_H
#define GRADSYNC_GRADSYNC_H

#include "core/bucket_plan.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "core/version.h"
#include "gradsync/comm/coalesce.h"
#include "gradsync/comm/comm.h"
#include "gradsync/comm/device_arena.h"
#include "gradsync/optim/optimizer.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/tensor/arena.h"
#include "kernels/device.h"

#endif
