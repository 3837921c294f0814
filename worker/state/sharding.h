// What a session adds for a sharded state (reducer.sharding): who owns what in this generation,
// gradients to their owners, and updated parameters from them.
//
// A step is as ever until the update: each rank updates what it owns, and sends it. Parameters of
// others arrive while the next step begins, and are waited for before anybody reads them. So the
// update is behind the commit and not a part of it: who loses a rank goes back to a checkpoint.
//
// Ranks of a host have parameters in one memory, where each updates what it owns (gradsync/sharded/common_params.h):
// nothing is sent then. Not where an update comes before its commit, nor where the host's memory is of several nodes,
// of which each rank reads its own fastest; GRADSYNC_COMMON_PARAMS in the environment: 0 never, 1 on several nodes, too.
//
// With reducer.zero_overlap gradients are reduced for all, as without shards, and each bucket's
// owner updates it while others are reduced (worker/pass/backward_update.h), in a way that can be
// taken back; what the commit has confirmed is sent as ever.
//
// All functions take one that is empty, which is a job without it, and do nothing. Compute thread.
#ifndef WORKER_STATE_SHARDING_H
#define WORKER_STATE_SHARDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/sharded/param_gather.h"
#include "worker/state/trainer_state.h"

typedef struct gs_sharding {
    gs_trainer_state *state;     // borrowed
    gs_state_shards *waiting;    // owned; of this generation, until the state is laid out
    const gs_shards *partition;  // borrowed; NULL: the state is not sharded
    // Gradients that others own do not stay (reducer.sharding gradients); none: they do.
    gs_window_options windows;
    bool *opens_early;  // owned; the windows'
    bool overlaps;      // reducer.zero_overlap
    gs_param_gather *gather;
    bool has_common_params;  // of all ranks
    void **grads;            // owned; where each own segment's gradient begins
    bool is_on_way;          // of the last update, what others own may not be here yet
    bool *is_taken;          // owned; of each parameter, since then: values are those that came (16 bits)
    double timeout_seconds;  // of a wait for it
    int64_t waited_ns;       // for it, since take_waited
} gs_sharding;               // {0} is empty

// Before the arena is measured and given. Borrows the state until release, which is none until it is laid out; leaves an
// unsharded one alone.
GS_NODISCARD gs_status gs_sharding_init(gs_sharding *sharding, gs_trainer_state *state,
                                        const gs_state_shards_options *options);
void gs_sharding_release(gs_sharding *sharding);

// What the reducer does instead of the sums that a job asks for, of the same type on their way, if
// it does: a rank then has the result of what it owns alone.
bool gs_sharding_reduces_to_owners(const gs_sharding *sharding);
void gs_sharding_reduce(const gs_sharding *sharding, gs_hook_choice *choice, gs_dtype *wire_dtype);
// Who takes the squares of a gradient that all ranks have (gs_reducer_options): who owns its parameter.
const int *gs_sharding_measured_by(const gs_sharding *sharding);
size_t gs_sharding_bytes(const gs_sharding *sharding);  // of the arena
// The state of this generation, in `memory` of that many bytes.
GS_NODISCARD gs_status gs_sharding_lay_out(gs_sharding *sharding, const gs_job_spec *spec,
                                           void *memory);
typedef struct gs_sharding_options {
    const gs_reducer *reducer;  // borrowed until release, as is the communicator
    gs_comm *comm;
    int lane;             // of parameters alone; they are waited for as long as a job says
    bool updates_early;   // before a step is committed (worker/pass/backward_update.h)
} gs_sharding_options;

// Collective. From here on parameters lie where they will.
GS_NODISCARD gs_status gs_sharding_connect(gs_sharding *sharding,
                                           const gs_sharding_options *options,
                                           gs_deadline deadline);

// Parameters that change from the next update on (gs_param_gather_set_trainable), when nothing is on its way.
GS_NODISCARD gs_status gs_sharding_set_trainable(gs_sharding *sharding, const bool *trainable);
// The update of what this rank owns.
GS_NODISCARD gs_status gs_sharding_step(gs_sharding *sharding, const uint8_t *used, float lr,
                                        float grad_scale);
// What this rank owns has been updated: it is on its way to the others when this returns.
GS_NODISCARD gs_status gs_sharding_send(gs_sharding *sharding, int64_t step);
// What others own of one parameter is here, too: gs_model_pass.reads, of a gs_sharding.
GS_NODISCARD gs_status gs_sharding_reads(void *sharding, size_t param);
// Of all of them.
GS_NODISCARD gs_status gs_sharding_await(gs_sharding *sharding);
// Seconds of waits since the last call.
double gs_sharding_take_waited(gs_sharding *sharding);

#endif
