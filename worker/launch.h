// What an agent hands to a trainer it starts: a document in an anonymous file, so that nothing secret is
// in arguments or environment; and a page that both see, on which the trainer says where it is.
#ifndef WORKER_LAUNCH_H
#define WORKER_LAUNCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/json/json.h"
#include "rpc/schema/job_spec.h"

// How far a trainer is, as its heartbeats and its agent say it.
typedef enum gs_member_state {
    GS_MEMBER_BOOTING = 0,  // nobody has been told anything
    GS_MEMBER_WAITING,
    GS_MEMBER_PREPARED,
    GS_MEMBER_CONNECTING,
    GS_MEMBER_CONNECTED,  // in its communicator, and waits for go
    GS_MEMBER_RUNNING,
    GS_MEMBER_ABORTING,
    GS_MEMBER_LEAVING
} gs_member_state;

const char *gs_member_state_name(gs_member_state state);

// Written by the trainer, read by its agent: the agent must name rank and generation when it reports an
// exit, also one that came without a word, and when a coordinator asks that has never heard of this trainer.
typedef struct gs_launch_page {
    atomic_int rank;  // as given at start (the hint) until the trainer has a place
    atomic_uint generation;
    atomic_int world_size;  // of that generation; 0 before
    _Atomic int64_t applied_step;
    atomic_int state;  // gs_member_state
} gs_launch_page;

typedef struct gs_launch {
    char *job, *job_name, *launch_token, *coordinator, *worker, *host, *boot_id, *data_root,
        *data_address, *checkpoints_dir, *resume, *log_level, *cluster;  // owned; "" when absent
    bool is_apart;  // checkpoints_dir is not the coordinator's
    char *device;      // owned; "cpu" or "cuda"
    int num_devices;   // cuda: how many this trainer sees, cuda:0 and on
    int slot, rank_hint, threads;
    uint64_t incarnation;
    uint64_t job_number;  // of the frame header
    gs_job_spec spec;
    gs_launch_page *page;  // mapped, shared
} gs_launch;

// Agent: makes the file. `document` has the members above by name (spec as an object); *fd and *page
// are the caller's (close, gs_launch_unmap).
GS_NODISCARD gs_status gs_launch_write(int *fd, gs_launch_page **page, const gs_json *document);
// Trainer: reads and validates it; the descriptor is taken.
GS_NODISCARD gs_status gs_launch_read(gs_launch *launch, int fd);
void gs_launch_release(gs_launch *launch);
void gs_launch_unmap(gs_launch_page *page);

// "j-…" → the 64-bit number behind it; false when it is no job id.
bool gs_job_number(uint64_t *number, const char *job);

#endif
