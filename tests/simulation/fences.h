// What lies in the checkpoint directory of a job beside its checkpoints: who may write there, and that ranks whom no coordinator
// hears live. Agents and the coordinator share it.
#ifndef TESTS_SIMULATION_FENCES_H
#define TESTS_SIMULATION_FENCES_H

#include "coordinator/model/checkpoint.h"
#include "coordinator/model/cluster.h"
#include "tests/simulation/world.h"

typedef struct job_fence {
    uint64_t job;
    char cluster[GS_CLUSTER_NAME_LEN];
    uint32_t generation;
    uint32_t signed_by;  // the generation of the last sign of life
    int64_t number;
    int64_t raised_ns;  // to this generation
    bool is_closed;     // a coordinator has closed it to those before: there may be none of that generation
    struct job_fence *next;
} job_fence;

void fences_destroy(sim_world *world);
void fences_raise(sim_world *world, uint64_t job, const char *cluster, uint32_t generation);
bool fences_are_above(const sim_world *world, uint64_t job, const char *cluster, uint32_t generation);
uint32_t fences_left_by(const sim_world *world, uint64_t job, const char *cluster);  // as rpc/checkpoint/fence reads it; 0: nobody
int64_t fences_raised_ns(const sim_world *world, uint64_t job);  // last
void fences_sign(sim_world *world, uint64_t job, uint32_t generation);
// As coordinator/store/file_work does it.
void fences_look(sim_world *world, uint64_t job, const char *cluster, gs_life_look *life);

#endif
