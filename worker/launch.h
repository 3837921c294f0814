// What an agent hands to a trainer it starts: a document in an anonymous file, so that nothing secret is
// in arguments or environment; and a page that both see, on which the trainer says where it is.
#ifndef WORKER_LAUNCH_H
#define WORKER_LAUNCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/checkpoint/life_sign.h"
#include "rpc/json/json.h"
#include "rpc/keys/key_file.h"
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

// Of a number that is no state: "booting".
const char *gs_member_state_name(gs_member_state state);

#define GS_CLUSTER_ID_LEN 24

// Written by the trainer, read by its agent: the agent must name rank and generation when it reports an
// exit, also one that came without a word, and when a coordinator asks that has never heard of this trainer.
// The pulse goes the other way (worker/control/lead.h).
typedef struct gs_launch_page {
    atomic_int rank;  // as given at start (the hint) until the trainer has a place
    atomic_uint generation;
    atomic_int world_size;  // of that generation; 0 before
    _Atomic int64_t applied_step;
    atomic_int state;  // gs_member_state
    _Atomic int64_t pulse_ns;  // when the agent knew last that no others have taken the trainer's place; by gs_boot_ns
    atomic_bool is_guarded;    // it holds a key or secrets, and no other process of its user may look into it
    // Its key for the control port, also one that takes another's place; odd while it is written, 0: there is none.
    atomic_uint key_turn;
    gs_key_file key;
    // The cluster that has adopted this trainer since its start, which may never have come to answer it; turns as of the key.
    atomic_uint cluster_turn;
    char cluster[GS_CLUSTER_ID_LEN];
} gs_launch_page;

// A thread that has not had its turn for so long may have missed everything, others in its place among it. Not for shorter: a
// busy machine has such pauses, and who asks again amid a start costs that one.
#define GS_STOOD_NS GS_LIFE_UNSEEN_NS
// Who stands still cannot stop by itself when nobody leads it for too long, and gets this much more.
#define GS_STAND_MARGIN_SECONDS 30.0

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
// `key` may be NULL.
GS_NODISCARD gs_status gs_launch_write(int *fd, gs_launch_page **page, const gs_json *document, const gs_key_file *key);
// Trainer: reads and validates it; the descriptor is taken.
GS_NODISCARD gs_status gs_launch_read(gs_launch *launch, int fd);
void gs_launch_release(gs_launch *launch);
// The agent's hand, and the trainer's. UNAVAILABLE: there is none, or it is being written.
void gs_launch_page_put_key(gs_launch_page *page, const gs_key_file *key);
GS_NODISCARD gs_status gs_launch_page_get_key(gs_launch_page *page, gs_key_file *key);
void gs_launch_page_put_cluster(gs_launch_page *page, const char *cluster);
// False: none since `turn`, which is then that of this one.
bool gs_launch_page_get_cluster(gs_launch_page *page, char *cluster, size_t cluster_bytes, unsigned *turn);
void gs_launch_unmap(gs_launch_page *page);

// "j-…" → the 64-bit number behind it; false when it is no job id.
bool gs_job_number(uint64_t *number, const char *job);

#endif
