// Who ask for jobs, stop, plan anew and delete them, and remember what they were told.
#ifndef TESTS_SIMULATION_PEOPLE_H
#define TESTS_SIMULATION_PEOPLE_H

#include "tests/simulation/peer.h"

#define MAX_WISHES 4

typedef struct sim_wish {
    char key[24], name[24], fingerprint[24];
    char job_text[GS_JOB_ID_LEN];
    uint64_t job;  // as it was answered; 0: not yet
    int64_t target, save_every, min, max;
    bool wants_stop, stop_is_sure, wants_delete, is_deleted;
    uint64_t create_request, other_request;
    int64_t asked_ns;
} sim_wish;

struct sim_people {
    sim_peer peer;
    sim_line line;
    sim_wish wishes[MAX_WISHES];
    int num_wishes;
};

void people_create(sim_world *world);
void people_destroy(sim_world *world);
void people_stop(sim_world *world, int wish, bool now);  // as they please
const sim_wish *people_wish_of(const sim_world *world, uint64_t job);  // NULL: of nobody that was answered
void people_replan(sim_world *world, int wish);

#endif
