// Who ask for jobs, stop, plan anew, release, adopt and delete them, and remember what they were told. What they do by themselves comes
// at any time, and above all right behind an effect that changes a job.
#ifndef TESTS_SIMULATION_PEOPLE_H
#define TESTS_SIMULATION_PEOPLE_H

#include "tests/simulation/peer.h"

#define MAX_WISHES 4

typedef struct sim_wish {
    char key[24], name[24], fingerprint[24];
    char job_text[GS_JOB_ID_LEN];
    uint64_t job;  // as it was answered; 0: not yet
    gs_job_spec *spec;  // owned; what is asked for
    int64_t data_steps;  // its data ends there; 0: it does not
    bool wants_stop, wants_delete, is_deleted;
    bool is_forgotten;  // it has ended before anybody was told that it was accepted, and its key has made it
    uint64_t create_request, again_request, stop_request, delete_request, release_request, adopt_request;
    int64_t asked_ns, first_asked_ns;
} sim_wish;

struct sim_people {
    sim_peer peer;
    sim_line line;
    sim_wish wishes[MAX_WISHES];
    int num_wishes;
};

void people_create(sim_world *world);
void people_destroy(sim_world *world);
const sim_wish *people_wish_of(const sim_world *world, uint64_t job);  // NULL: of nobody that was answered
void people_meddle(sim_world *world);
void people_release_soon(sim_world *world);  // who is out of reach of one of them
void people_give_up(sim_world *world);  // one of what they asked for, at once                                  // with any job, as they please
void people_see_effect(sim_world *world, const gs_effect *effect);

#endif
