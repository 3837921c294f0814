// The files of checkpoints, on a disk that ranks and the coordinator share. A directory names a job's checkpoint; one is
// complete at once. Its tensors may rot: its manifest is there, and who reads all of it finds out.
#ifndef TESTS_SIMULATION_FILES_H
#define TESTS_SIMULATION_FILES_H

#include "coordinator/model/checkpoint.h"
#include "coordinator/model/cluster.h"
#include "tests/simulation/world.h"

typedef struct saved_file {
    uint64_t job;
    char directory[GS_CHECKPOINT_NAME_LEN];
    int64_t step, saved_ns;
    uint32_t generation;
    char cluster[GS_CLUSTER_NAME_LEN];  // that has numbered it
    bool is_damaged;
    bool is_retired;  // its removal has been asked for, and waits for its turn
    struct saved_file *next;
} saved_file;

void files_destroy(sim_world *world);
void files_save(sim_world *world, uint64_t job, const char *directory, int64_t step, uint32_t generation, const char *cluster);
const saved_file *files_find(const sim_world *world, uint64_t job, const char *directory);  // NULL: not there
void files_remove(sim_world *world, uint64_t job, const char *directory);                   // NULL: all of the job
void files_retire(sim_world *world, uint64_t job, const char *directory);
void files_lose(sim_world *world, const saved_file *file);                                  // somebody has removed it
const saved_file *files_any(const sim_world *world, sim_dice *dice);                        // one of the newest; NULL: there is none
void files_damage(sim_world *world);                                                        // one of the newest
// By a trainer that starts from it: false when it cannot be read. What is damaged is put aside for the others.
bool files_read(sim_world *world, uint64_t job, const char *directory);

#endif
