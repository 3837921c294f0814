#include "coordinator/engine/runs/complaints.h"

#include <string.h>

#include "core/digest.h"

#define MOST_OF_A_REPORT 4  // a rank that hears nobody may name thousands

// What a place may be to blame for. Wrong data and wrong programs are the same wherever they run.
static bool is_of_a_place(gs_fault_kind kind) {
    return kind == GS_FAULT_TIMEOUT || kind == GS_FAULT_PEER_LOST || kind == GS_FAULT_DAMAGED || kind == GS_FAULT_DEVICE;
}

static void add(gs_run *run, int by, int about) {
    for (int i = 0; i < run->num_complaints; i++)
        if (run->complaints[i].by == by && run->complaints[i].about == about) return;
    if (run->num_complaints == GS_RUN_MAX_COMPLAINTS) return;
    run->complaints[run->num_complaints++] = (gs_rank_complaint){.by = by, .about = about};
}

// Its words are those of whom they say: the ranks of a communicator pass on what one of them saw.
void gs_complaints_take(gs_run *run, const gs_fault_facts *seen) {
    if (!is_of_a_place(seen->kind)) return;
    int taken = 0;
    for (int rank = gs_fault_first_accused(seen); rank >= 0 && rank < run->num_members && taken < MOST_OF_A_REPORT; rank++) {
        if (!gs_fault_accuses(seen, rank)) continue;
        add(run, seen->reporter, rank);
        taken++;
    }
}

// It was not heard because it was dead, or its worker was: that is no trouble between places. Who was ended for what others said
// of it, or has said goodbye, was there.
static bool has_died(const gs_member *member) { return member->bye.reason == GS_BYE_NONE && !member->kill_sent; }

static gs_seat seat_of(const gs_engine *engine, const gs_member *member) {
    const gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
    return (gs_seat){.worker = gs_hash64(member->worker, strlen(member->worker), 0),
                     .slot = member->slot,
                     .joined_ns = agent ? agent->connected_ns : 0};
}

void gs_complaints_keep(const gs_engine *engine, const gs_run *run) {
    for (int i = 0; i < run->num_complaints; i++) {
        const gs_rank_complaint *told = &run->complaints[i];
        const gs_member *by = &run->members[told->by], *about = &run->members[told->about];
        if (told->by != told->about && has_died(about)) continue;
        gs_complaint complaint = {.by = seat_of(engine, by),
                                  .about = seat_of(engine, about),
                                  .generation = run->generation,
                                  .is_early = run->step - run->base_step < GS_EARLY_STEPS,
                                  .at_ns = engine->state.now_ns};
        gs_complaints_add(&run->job->complaints, &complaint);
    }
}
