// A run: one attempt of a job with the trainers that belong to it; at most one generation lives in it. Plain:
// what drives it is coordinator/engine/runs, rendezvous.h from launch to go, reports.h and run_life.h from then to its end.
#ifndef COORDINATOR_MODEL_RUN_H
#define COORDINATOR_MODEL_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/model/call.h"
#include "coordinator/model/exchange.h"
#include "coordinator/model/fault.h"
#include "coordinator/model/job.h"
#include "coordinator/rules/restart_policy.h"
#include "coordinator/rules/timing.h"
#include "core/bucket_plan.h"
#include "core/param_spec.h"
#include "rpc/plan/param_page.h"

typedef enum gs_run_phase {
    GS_RUN_LAUNCHING = 0,  // start_rank sent, Hellos come in
    GS_RUN_PREPARING,      // prepare sent, Readys come in
    GS_RUN_CONNECTING,     // start sent, exchanges and CommUps come in
    GS_RUN_TRAINING,       // go sent
    GS_RUN_RELOADING,      // trained before the coordinator restarted; members check in
    GS_RUN_SETTLING,       // abort sent, Settles come in
    GS_RUN_ENDING,         // everybody is on the way out
    GS_NUM_RUN_PHASES
} gs_run_phase;

const char *gs_run_phase_name(gs_run_phase phase);
const char *gs_device_word(bool is_gpu);  // "cuda", "cpu"
bool gs_run_phase_from_name(gs_run_phase *phase, const char *name);

// How far a member is. It goes down this list only.
typedef enum gs_member_stage {
    GS_MEMBER_LAUNCHED = 0,  // its agent was told to start it
    GS_MEMBER_HERE,          // said hello
    GS_MEMBER_READY,         // agreed to the plan
    GS_MEMBER_UP,            // is in the communicator
    GS_MEMBER_SETTLING,      // its generation is over for it; it asks what to do with the step in flight
    GS_MEMBER_SETTLED,       // has been told
    GS_MEMBER_LEAVING,       // said bye
    GS_MEMBER_EXITED,        // its process is gone
    GS_NUM_MEMBER_STAGES
} gs_member_stage;

const char *gs_member_stage_name(gs_member_stage stage);

// What a trainer does, as far as it decides; its heartbeat's own word is for people.
typedef enum gs_activity {
    GS_ACTIVITY_OTHER = 0,
    GS_ACTIVITY_WAITS,      // reduce, commit: for others
    GS_ACTIVITY_LONG_WORK,  // evaluate, checkpoint: longer than a step
} gs_activity;

// Where a trainer says that it stands to its generation.
typedef enum gs_membership {
    GS_MEMBERSHIP_UNTOLD = 0,
    GS_MEMBERSHIP_FORMS,   // it is not in its communicator yet
    GS_MEMBERSHIP_WAITS,   // it is, and has not been told to go
    GS_MEMBERSHIP_TRAINS,
    GS_MEMBERSHIP_LEAVES,  // it takes no step of it any more
} gs_membership;

gs_membership gs_membership_of(const char *state);  // by the word of a trainer; NULL, or another: UNTOLD

typedef enum gs_bye_reason {
    GS_BYE_NONE = 0,
    GS_BYE_TARGET_REACHED,
    GS_BYE_DATA_ENDED,
    GS_BYE_DRAINED,
    GS_BYE_ERROR,
    GS_BYE_ORPHANED,  // nobody directed it: it saved and stopped
    GS_BYE_OTHER,  // a word that decides nothing: "aborted" …
    GS_NUM_BYE_REASONS
} gs_bye_reason;

const char *gs_bye_reason_name(gs_bye_reason reason);
gs_bye_reason gs_bye_reason_of(const char *name);  // OTHER: none of those

// The last word of a trainer.
typedef struct gs_farewell {
    gs_bye_reason reason;  // NONE: it has not said it
    int exit_code;
    int64_t at_ns;    // said; once it is answered, that moment
    uint64_t ticket;  // of the write that has it
    char class[24], error[256], hint[256];
} gs_farewell;

// A plan that waits until all ranks have it.
typedef struct gs_next_plan {
    uint64_t digest;  // folded; 0: none waits
    gs_bucket_plan plan;
    gs_plan_facts facts;
} gs_next_plan;

// A step that one rank alone has told of, or nobody in this life of the coordinator.
typedef struct gs_claim {
    int member;  // its index; −1: nobody's
    int64_t step, since_ns;  // 0: there is none; since when it is told and the others are not away
} gs_claim;

// That it is not heard while its generation steps.
typedef struct gs_member_control {
    int64_t since_ms, at_step;  // since its last word, by the wall; 0: it is heard. The step at which it was heard then
} gs_member_control;

typedef struct gs_member {
    gs_job *job;
    // What each tick looks at in ten thousand of them comes first, and lies together.
    gs_member_stage stage;
    gs_activity activity;
    int slot, rank;  // rank −1: none yet
    gs_kept_call stream;  // Hello; 0 while not connected
    int64_t applied_step, heard_ns, heard_at_step, stream_lost_ns, heartbeat_ns;
    int64_t told_step, told_step_ns;  // which step it last said that it has applied, the same one or another; and when
    gs_member_control control;
    gs_cadence told;      // how often it was told to be heard; heartbeat_ns: how often it does, as far as we know
    bool takes_cadence;   // it hears of another one than its welcome said
    bool shows_token;     // with each message: what does not is not its own
    bool list_asked;      // it was asked for its parameters
    bool was_up;          // it has been in the communicator
    bool stream_closed;   // at its end, as the end of its process does; not by silence
    bool kill_sent;       // by us: its exit code says nothing
    bool complete;        // it holds the whole gradients of the step in flight; as its Settle said
    bool apart;           // its parameters are its own (local updates)
    bool was_elsewhere;   // its worker has said, since it was launched, that its checkpoint directory is another one
    bool is_on_gpu;
    int64_t idle_since_ns, idle_told_ns;  // from when on, and last, it says that it has not begun though its run trains; 0: never
    uint64_t incarnation, launch_token;
    gs_kept_call goodbye;  // its Bye, until that is durable
    gs_farewell bye;

    gs_kept_call settle;  // 0: it does not ask just now
    char worker[64], host[128], boot_id[64];
    int64_t pid;
    char device_uuid[100];  // the first uuids of its slot; "": it is on a CPU
    int64_t resume_step;  // of the checkpoint that it was told to go on from; 0: none
    char params_digest[64], data_digest[64], state_digest[64];
    uint64_t arithmetic;   // a hash of what it told; 0: nothing
    gs_param_spec *params;  // owned; NULL: not sent
    size_t num_params;
    gs_param_list listed;  // what has come of it

    int64_t rss_bytes;
    uint64_t plan_digest, next_plan_digest;  // folded; as its last heartbeat said
    int64_t replan_sent_ns;
    char phase[32];  // for people

    int exit_code, signal;  // of an exit; exit_code −1: nobody saw it
    int64_t exited_ns;
    char *log_tail;  // owned; of its end, for people: opaque here; NULL: none
} gs_member;

// By their ranks: who could not go on for whom.
typedef struct gs_rank_complaint {
    int by, about;
} gs_rank_complaint;

#define GS_RUN_MAX_COMPLAINTS 32

// Why a generation ended: what came first wins.
typedef struct gs_run_cause {
    bool set;
    gs_failure_kind kind;
    int member;  // index of the culprit; −1: not known yet
    char reason[48], message[256], class[24], hint[256];
    int64_t at_ms, step;
    gs_fault_facts fault;
} gs_run_cause;

// What is known of ranks that are gone with their agents.
typedef struct gs_absence {
    int64_t number;       // of the last sign of life where their checkpoints lie; 0: none
    int quiet_looks;      // answers since that was another
    int mute_looks;       // without an answer, in a row
    bool has_looked, is_asked, has_raised;  // has_raised: asked to, whatever came of it
    int64_t next_look_ns, gone_ns;  // since when nobody of them is connected
    int64_t fenced_ns;    // since when they cannot save any more; 0: they can
    int num_doubts;       // looks left at whether they can, since nobody remembers
    bool was_recalled;    // that was asked for the coordinator's restart
    int64_t pace_ns;      // the longest that their connections may have been told, since they are gone
} gs_absence;

// Of its ranks that are not heard while it steps.
typedef struct gs_control_path {
    int num_degraded;      // of them, now
    int num_marked;        // how often one became so, since it began
    int64_t since_ns;      // the last word of the first of them; 0: all are heard
    int64_t clear_ns;      // since when they are, again
    int64_t next_look_ns;
} gs_control_path;

struct gs_run {
    gs_job *job;
    gs_run_phase phase;
    uint32_t generation;  // 0 before prepare
    int num_members;
    gs_member *members;  // owned; in order of (worker, slot), which is the order of ranks
    int64_t base_step;   // at start
    int64_t step_before;  // largest of all runs before this one
    int64_t step;        // largest applied step reported in this generation
    int64_t begun_ns, phase_since_ns;
    int64_t phase_deadline_ns;  // 0: none
    int64_t drain_deadline_ns;  // 0: nobody drains it
    int64_t progress_ns;        // when step grew last
    double longest_step_seconds;
    int64_t orphan_ns;       // that its ranks may go on alone: the longest limit that any life of the coordinator has had for them
    int64_t told_orphan_ns;  // that they are told: of it, what a row on the disk has
    bool has_trained, first_step_seen, draining, saving;
    bool suspicious;  // state is not to be trusted: no apply, no save
    gs_bucket_plan plan;
    char plan_hash[GS_DIGEST_TEXT_LEN];
    gs_next_plan next;
    int64_t plan_step;  // from which the plan in use holds, as ranks said; −1: they have not changed
    bool was_reloaded;  // its ranks may have changed plans while nobody looked
    bool was_settling;  // in an earlier life of the coordinator, which may have told its ranks what to do
    bool unheard;       // of most of its ranks there is no word: verdicts wait
    bool most_away;     // the same, as far as they are out of reach
    gs_exchange_round *exchanges;  // owned
    uint64_t bye_ticket;   // of a write on its way that has Byes; 0: none is
    int64_t bye_again_ns;  // the next, when one has failed
    gs_claim claim;
    gs_absence absence;
    gs_control_path control;
    gs_run_cause cause;
    gs_rank_complaint complaints[GS_RUN_MAX_COMPLAINTS];  // the first that came
    int num_complaints;
    bool no_restart;  // the same again would end the same way
    bool told_apart;  // people, that a worker of it does not see the checkpoints here
    char backend[32], backend_reason[192];  // what its ranks reduce over, and why, as rank 0 says, to each life of the coordinator; "": not told
};

// Members are zeroed but for their job and rank −1.
gs_run *gs_run_create(gs_job *job, int num_members, int64_t now_ns);
void gs_run_destroy(gs_run *run);  // NULL is fine

gs_member *gs_run_member_of_rank(gs_run *run, int rank);  // NULL: no such rank
int gs_member_index(const gs_member *member);             // its rank, or the one that it is going to have
bool gs_member_is_here(const gs_member *member);          // said hello and is not gone
// Whether a message that shows this launch token, 0: none, may be its own.
bool gs_member_is_shown(const gs_member *member, uint64_t shown_token);
bool gs_run_all_exited(const gs_run *run);
// Some rank has left it for certain: none of the others can take another step, whatever has become of them.
bool gs_run_is_broken(const gs_run *run);
// Its ranks hold the step that they go on from.
bool gs_run_has_begun(const gs_run *run);
// It has trained: a later life of the coordinator goes on with it, or waits for its end.
bool gs_run_is_kept(const gs_run *run);
int64_t gs_run_heard_ns(const gs_run *run);  // the last word of any of its ranks
bool gs_run_all_said(const gs_run *run, gs_bye_reason reason);

#endif
