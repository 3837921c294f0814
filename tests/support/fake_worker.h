// A worker that trains nothing: an agent and its trainers as threads that speak the control protocol.
//
// Tests of the coordinator see every message that a real worker would send, in milliseconds.
#ifndef TESTS_SUPPORT_FAKE_WORKER_H
#define TESTS_SUPPORT_FAKE_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/client/rpc_client.h"
#include "rpc/keys/key_file.h"

typedef struct gs_fake_worker gs_fake_worker;

// What is to go wrong; each happens once, to the trainer in `slot` of `worker`.
typedef struct gs_fake_faults {
    atomic_int slot;
    const char *_Atomic worker;  // its name; NULL: of each
    atomic_int crash_at_step;    // 0: never; ends like kill -9 would end it
    atomic_int freeze_at_step;   // 0: never; no more heartbeats, steps or answers
    atomic_bool other_shape;     // its second parameter differs
    atomic_int exit_code_at_start;  // 0: none; says Bye with an error and exits so
    atomic_bool lingers;            // after that Bye it does not end before it is killed
    atomic_bool loses_replan;       // its next replan item is lost on the way
    atomic_bool silent;          // does not answer send_timeline
    atomic_bool late;            // the others wait for it in every step
    const char *_Atomic report;  // NULL: none; the members of a Fault that it sends after its first step
    const char *_Atomic late_report;  // of the trainer in `late_slot`, when it hears that all is over
    atomic_int late_slot;
} gs_fake_faults;

// What a test tells its trainers about plans. A real one changes its plan when all ranks hold the next one; a
// fake one when it is told so.
typedef struct gs_fake_plans {
    atomic_int tells_order;  // rank 0: 0 nothing, 1 backwards, 2 forwards, 3 backwards but not settled
    atomic_bool switches;
    atomic_bool lags;  // heartbeats of the others than rank 0 still speak of the plan before
    atomic_int num_params;  // of the model; 0: 2
    atomic_bool has_two_types;  // the second parameter is fp64
} gs_fake_plans;

typedef struct gs_fake_worker_options {
    const char *name, *control;
    int slots;
    int gpus;     // devices that it offers, one for each of its first slots
    const char *gpus_of;  // NULL: its own; else it sees those of the worker of this name
    bool has_no_nccl;
    bool is_of_before;  // its trainers show their launch tokens in Hello alone
    int step_ms;  // how long a step takes
    const gs_key_file *key;  // of the worker, whose trainers draw keys of their own; NULL: nobody is asked for one
    gs_fake_faults *faults;  // borrowed; may be NULL
    gs_fake_plans *plans;    // borrowed; may be NULL
} gs_fake_worker_options;

GS_NODISCARD gs_status gs_fake_worker_start(gs_fake_worker **out, gs_rpc_context *context,
                                            const gs_fake_worker_options *options);
// Largest distance between two steps of any trainer so far.
int64_t gs_fake_worker_longest_gap_ns(const gs_fake_worker *worker);
int64_t gs_fake_worker_num_steps(const gs_fake_worker *worker);  // of all its trainers so far
// Its agent's channel, for what else an agent would send.
gs_rpc_client *gs_fake_worker_client(const gs_fake_worker *worker);

// What a trainer shows of itself.
typedef struct gs_fake_rank {
    gs_rpc_client *client;  // its own; borrowed as long as it runs
    uint64_t job, incarnation, launch_token;
    gs_key_file key;  // where its worker has one
} gs_fake_rank;
bool gs_fake_worker_rank(gs_fake_worker *worker, int slot, gs_fake_rank *rank);  // false: none was started there
void gs_fake_worker_stop(gs_fake_worker *worker);  // NULL is fine

#endif
