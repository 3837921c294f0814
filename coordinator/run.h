// A run: one attempt of a job with the trainers that belong to it; at most one generation lives in it.
// Loop thread.
//
// What drives it: rendezvous.h from launch to go, membership.h from then to its end.
#ifndef COORDINATOR_RUN_H
#define COORDINATOR_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/exchange.h"
#include "coordinator/fault.h"
#include "coordinator/held.h"
#include "coordinator/job.h"
#include "coordinator/restart_policy.h"
#include "core/bucket_plan.h"
#include "core/param_spec.h"
#include "core/u64_map.h"
#include "rpc/schema/param_page.h"
#include "rpc/server/rpc_server.h"

typedef enum gs_run_phase {
    GS_RUN_LAUNCHING = 0,  // start_rank sent, Hellos come in
    GS_RUN_PREPARING,      // prepare sent, Readys come in
    GS_RUN_CONNECTING,     // start sent, exchanges and CommUps come in
    GS_RUN_TRAINING,       // go sent
    GS_RUN_RELOADING,      // trained before the coordinator restarted; members check in
    GS_RUN_SETTLING,       // abort sent, Settles come in
    GS_RUN_ENDING          // everybody is on the way out
} gs_run_phase;

const char *gs_run_phase_name(gs_run_phase phase);

// A plan that waits until all ranks have it.
typedef struct gs_next_plan {
    uint64_t digest;   // folded; 0: none waits
    gs_json *message;  // owned; as in replan
    gs_json *view;     // owned; the job's plan to be
} gs_next_plan;

typedef struct gs_member {
    gs_job *job;
    char worker[64], host[128], boot_id[64];
    int slot, rank;  // rank −1: none yet
    int64_t pid;
    uint64_t incarnation, launch_token;
    char device[8], device_uuid[100];  // "cpu", or "cuda" and the first uuids of its slot

    gs_rpc_call_handle *stream;  // Hello; NULL while not connected
    gs_held stream_held;
    gs_rpc_call_handle *settle;  // held
    gs_held settle_held;

    bool said_hello, list_asked, ready, comm_up, settled, complete, apart, said_bye, exited;
    bool stream_closed;  // at its end, as the end of its process does; not by silence
    bool kill_sent;  // by us: its exit code says nothing
    char params_digest[64], data_digest[64];
    char arithmetic[512];
    gs_param_spec *params;  // owned; NULL: not sent
    size_t num_params;
    gs_param_list listed;  // what has come of it

    int64_t applied_step, heard_ns, heard_at_step, stream_lost_ns, heartbeat_ns, rss_bytes;
    uint64_t plan_digest, next_plan_digest;  // folded; as its last heartbeat said
    int64_t replan_sent_ns;
    char phase[32];
    char state_digest[64];

    int exit_code, signal;  // of an exit
    int64_t exited_ns, bye_ns;
    char bye_reason[24], bye_class[24], bye_error[256], bye_hint[256];
    int bye_exit_code;
    gs_json *log_tail;  // owned
} gs_member;

// Why a generation ended: what came first wins.
typedef struct gs_run_cause {
    bool set;
    gs_failure_kind kind;
    int member;  // index of the culprit; −1: not known yet
    char reason[48], message[256], class[24], hint[256];
    int64_t at_ms, step;
    gs_fault_facts fault;
} gs_run_cause;

struct gs_run {
    gs_job *job;
    gs_run_phase phase;
    uint32_t generation;  // 0 before prepare
    int num_members;
    gs_member *members;  // owned; in order of (worker, slot), which is the order of ranks
    int64_t base_step;   // at start
    int64_t step_before;  // largest of all runs before this one
    int64_t step;        // largest applied step reported in this generation
    int64_t begun_ns, phase_since_ns, phase_deadline_ns;  // 0: none
    int64_t progress_ns;        // when step grew last
    double longest_step_seconds;
    bool has_trained, first_step_seen, draining, saving;
    bool suspicious;  // state is not to be trusted: no apply, no save
    gs_bucket_plan plan;
    gs_json *plan_message;  // owned; as in prepare
    char plan_hash[40];
    gs_next_plan next;
    int64_t plan_step;  // from which the plan in use holds, as ranks said; −1: they have not changed
    bool was_reloaded;  // its ranks may have changed plans while nobody looked
    bool has_left_behind;  // ranks that may have saved what nobody was told of
    bool unheard;       // of most of its ranks there is no word: verdicts wait
    gs_exchange_round *exchanges;  // owned
    gs_run_cause cause;
    bool no_restart;  // the same again would end the same way
    char backend[32];
    gs_u64_map *index;  // borrowed; where its members are found by incarnation
};

// NULL: out of memory. Members are zeroed but for their index of job and rank −1.
gs_run *gs_run_create(gs_job *job, int num_members);
// Ends streams and held calls that are left: the generation is over.
void gs_run_destroy(gs_run *run);
// The coordinator stops and the generation goes on: streams end so that trainers look for its next life, and
// calls that are held stay without an answer, so that they are asked again there. NULL is fine.
void gs_run_part(gs_run *run);

gs_member *gs_run_member_of_rank(gs_run *run, int rank);  // NULL: no such rank
// Its rank, or the one that it is going to have.
int gs_member_rank_hint(const gs_member *member);
// Makes the members known in `index` until the run is destroyed.
void gs_run_index_members(gs_run *run, gs_u64_map *index);
// Some rank has left it for certain: none of the others can take another step, whatever has become of them.
bool gs_run_is_broken(const gs_run *run);
int64_t gs_run_heard_ns(const gs_run *run);  // the last word of any of its ranks
void gs_run_enter(gs_run *run, gs_run_phase phase, int64_t deadline_ns);  // 0: no deadline
// The stream is told; false when it is not connected or too slow.
bool gs_member_send(gs_member *member, gs_json *item);  // takes item

// Of the members, for the database: enough to know them again after a restart.
gs_json *gs_run_to_record(const gs_run *run);
gs_run *gs_run_from_record(gs_job *job, const gs_json *record);  // NULL: not one that trained

#endif
