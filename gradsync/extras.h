// What libgradsync has besides the core of gradsync/gradsync.h. Each of these stands alone as well.
#ifndef GRADSYNC_EXTRAS_H
#define GRADSYNC_EXTRAS_H

#include "core/plan_policy.h"                // plans as a job may ask for them
#include "gradsync/bucket/grad_norm.h"       // norms and clipping of gradients of one's own
#include "gradsync/bucket/grad_squares.h"    // what norms are made of
#include "gradsync/bucket/reduce_stats.h"    // when each bucket moved in a step
#include "gradsync/comm/comm_backend.h"      // a communicator's backend of one's own
#include "gradsync/ffi/ffi.h"                // for other languages: no structs
#include "gradsync/hooks/comm_hook.h"        // what is done with a full bucket
#include "gradsync/hooks/hook_calls.h"       // what a hook of one's own calls
#include "gradsync/local/local_coalesce.h"   // broadcasts and sums among devices of one process
#include "gradsync/local/model_copies.h"     // a model on several devices of one process
#include "gradsync/local/scatter.h"          // a batch over devices, outputs back
#include "gradsync/local/sparse_tensor.h"    // tensors that are a few rows
#include "gradsync/optim/early_step.h"       // updates while other buckets are on their way
#include "gradsync/optim/grad_scaler.h"      // loss scale
#include "gradsync/optim/mixed_precision.h"  // 16-bit parameters with fp32 masters
#include "gradsync/reducer/order_watch.h"    // whether a plan still fits
#include "gradsync/reducer/ready_order.h"  // plans along the order of gradients, without a coordinator
#include "gradsync/replicas/replicas.h"     // several replicas in one process
#include "gradsync/sharded/common_params.h"  // parameters in one memory for the ranks of a host
#include "gradsync/sharded/param_gather.h"   // updated parameters from their owners
#include "gradsync/sharded/reshard.h"        // what ranks own, to other owners
#include "gradsync/sharded/shard_norm.h"     // norms and clipping of gradients that ranks own in pieces
#include "gradsync/sharded/shard_reduce.h"   // gradients for their owners alone
#include "gradsync/sharded/shards.h"         // who owns which elements
#include "gradsync/sparse/sparse_rows.h"    // rows of an embedding between ranks
#include "gradsync/step/averager.h"         // averages of parameters that ranks change by themselves
#include "gradsync/step/batch_sync.h"       // batch norm over all ranks
#include "gradsync/step/buffers.h"          // what is no parameter, but equal on all ranks
#include "gradsync/step/commit.h"           // a step that counts on all ranks or on none
#include "gradsync/step/join.h"             // ranks that run out of data at different times
#include "gradsync/step/logical_shards.h"   // exact mode: the same bits for every world
#include "gradsync/step/model.h"            // the contract of models that the worker runs
#include "gradsync/step/state_sync.h"       // who has less gets the state of who has more
#include "gradsync/tensor/device_tensor.h"  // tensors of a device, and lists of them
#include "gradsync/tensor/flatten.h"        // several tensors in one buffer
#include "kernels/host_blas.h"              // a process whose BLAS is the library's

#endif
