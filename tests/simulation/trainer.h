// A trainer, as the product's is: it says hello, prepares, connects, trains with the others of its generation, settles when
// the generation ends, says bye and exits. Without a coordinator it trains on, for as long as its world says.
//
// Ranks of a generation step together (a group): none applies step s + 1 before all have entered its commit.
#ifndef TESTS_SIMULATION_TRAINER_H
#define TESTS_SIMULATION_TRAINER_H

#include "tests/simulation/agent.h"

#define MAX_SAVES 80

typedef enum trainer_state {
    TRAINER_BOOTING = 0,
    TRAINER_WAITING,    // said hello, or tries to
    TRAINER_PREPARED,
    TRAINER_CONNECTING,
    TRAINER_ARMED,      // in the communicator
    TRAINER_RUNNING,
    TRAINER_SETTLING,
    TRAINER_LEAVING,    // says bye
    TRAINER_GONE
} trainer_state;

// In which it differs from the others of its job, as after a mistake in what is installed where.
typedef enum trainer_oddity { ODDITY_NONE = 0, ODDITY_DATA, ODDITY_ARITHMETIC, ODDITY_STATE, ODDITY_PLAN, NUM_ODDITIES } trainer_oddity;

struct sim_trainer {
    sim_peer peer;
    sim_agent *agent;
    sim_trainer *next;
    sim_group *group;
    trainer_state state;
    uint64_t launch_token;
    uint32_t last_generation;  // that its coordinator had given out when it started this trainer
    char cluster[GS_CLUSTER_NAME_LEN];  // that it belongs to
    char launch_cluster[GS_CLUSTER_NAME_LEN];  // that has started it: in whose name it writes
    int number, rank, world_size;
    char job_text[GS_JOB_ID_LEN];
    gs_fault_facts fault;  // that it reported
    uint32_t generation;
    int64_t applied_step, target, save_every;
    bool has_lied;
    bool is_complete;  // holds the whole gradients of applied_step + 1
    bool is_welcome, has_exchanged;
    int64_t turned_ns, answered_ns;  // its last turn; when a coordinator had it last
    uint64_t exchanged_life;  // of the coordinator that has answered its exchange, and answers it again
    char plan_hash[GS_DIGEST_TEXT_LEN], next_plan_hash[GS_DIGEST_TEXT_LEN];  // in use; offered, "": none
    int64_t plan_step;  // since when; −1: since the start
    int order_shift;    // of its gradients
    trainer_oddity oddity;
    bool order_is_told;
    char resumes_from[GS_CHECKPOINT_NAME_LEN];  // "": from the beginning
    uint64_t ready_request, exchange_request, comm_up_request, settle_request, bye_request, save_request;
    int64_t settle_since_ns, bye_since_ns;
    gs_bye_reason bye_reason;
    int exit_code;
    // Saves, each told until it is acknowledged. Events point at their names.
    struct {
        char name[64];
        int64_t step;
        bool failed;
    } saves[MAX_SAVES];
    int num_saves, num_told;
};

sim_trainer *trainer_find(const sim_world *world, uint64_t id);  // of its peer
sim_trainer *trainer_start(sim_world *world, sim_agent *agent, const sim_item *item);
void trainer_stop(sim_world *world, sim_trainer *trainer, int64_t grace_ns);  // by its agent: killed behind that
void trainer_kill(sim_world *world, sim_trainer *trainer, int signal);
void trainer_lie(sim_world *world, sim_trainer *trainer);  // of steps that nobody has taken
void trainer_repeat_itself(sim_world *world, sim_trainer *trainer);  // what is of an earlier generation
void trainer_forge_hello(sim_world *world, sim_trainer *trainer);  // as somebody who does not know what it was launched with
void trainer_err(sim_world *world, sim_trainer *trainer);  // an error of its own
void trainer_accuse(sim_world *world, sim_trainer *trainer, gs_fault_kind kind, int rank);
void trainer_switch_plan(sim_trainer *trainer);
void trainer_suspend(sim_world *world, sim_trainer *trainer, int64_t ns);
void trainers_destroy(sim_world *world);
// Of the group: everybody applies, or leaves.
void trainer_applied(sim_world *world, sim_trainer *trainer);
void trainer_save(sim_world *world, sim_trainer *trainer, const char *reason);
void trainer_leave(sim_world *world, sim_trainer *trainer, gs_bye_reason reason, int exit_code);
void trainer_settle(sim_world *world, sim_trainer *trainer);
bool trainer_lives(const sim_trainer *trainer);
gs_membership trainer_membership(const sim_trainer *trainer);
// Not dead and not suspended.
bool trainer_moves(const sim_world *world, const sim_trainer *trainer);
// Its agent, or the coordinator, would know that others have taken its place. Else it takes no step.
bool trainer_is_led(const sim_world *world, const sim_trainer *trainer);

#endif
