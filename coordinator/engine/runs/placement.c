#include "coordinator/engine/runs/placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine/base/moves.h"
#include "coordinator/model/memory.h"
#include "core/digest.h"

// Slots of one agent and one pool.
typedef struct seat_counts {
    int unblamed, blamed;  // free ones
    int taken;             // of both, the unblamed ones first
} seat_counts;

typedef struct placement {
    gs_agent **agents;         // owned; who sees the checkpoints first, then by name
    seat_counts *plain, *gpu;  // owned; of each agent
    size_t count;
    gs_avoidance avoided;
} placement;

static bool is_blamed(const gs_avoidance *avoided, const gs_agent *agent, int slot) {
    return avoided->count && gs_avoidance_has(avoided, gs_hash64(agent->name, strlen(agent->name), 0), slot);
}

static seat_counts count_seats(const gs_avoidance *avoided, const gs_agent *agent, bool has_gpu) {
    gs_slot_pools free = gs_agent_free_slots(agent);
    seat_counts counts = {.unblamed = has_gpu ? free.gpu : free.plain};
    if (!counts.unblamed || !avoided->count) return counts;
    for (int slot = 0; slot < agent->num_slots; slot++) {
        if (!gs_agent_slot_is_free(agent, slot, has_gpu) || !is_blamed(avoided, agent, slot)) continue;
        counts.unblamed--;
        counts.blamed++;
    }
    return counts;
}

gs_slot_pools gs_placement_unblamed(const gs_engine *engine, const gs_job *job) {
    gs_slot_pools pools = {0};
    gs_avoidance avoided;
    gs_avoidance_find(&avoided, &job->complaints, engine->state.now_ns);
    for (size_t i = 0; i < engine->state.agents.count; i++) {
        const gs_agent *agent = engine->state.agents.items[i];
        pools.plain += count_seats(&avoided, agent, false).unblamed;
        pools.gpu += count_seats(&avoided, agent, true).unblamed;
    }
    return pools;
}

// Rank 0 saves: where its checkpoints are seen, if there is such a place. Who has not said it yet may be apart.
static int order_of(gs_agent_place place) {
    return place == GS_PLACE_SAME ? 0 : place == GS_PLACE_UNKNOWN ? 1 : 2;
}

static int compare_agents(const void *a, const void *b) {
    const gs_agent *left = *(gs_agent *const *)a, *right = *(gs_agent *const *)b;
    int differs = order_of(left->place) - order_of(right->place);
    return differs ? differs : strcmp(left->name, right->name);
}

// Where another one has checkpoints of its own: the first with a free slot that has not. Else, or where there is none: `count`.
static size_t find_lead(const placement *at, const int *free_slots) {
    bool is_one_apart = at->count > 0 && at->agents[at->count - 1]->place == GS_PLACE_APART;  // they are the last
    for (size_t i = 0; i < at->count && is_one_apart; i++)
        if (free_slots[i] > 0 && at->agents[i]->place != GS_PLACE_APART) return i;
    return at->count;
}

// Over seats that nobody has complained about, and over others where those do not suffice. To see the checkpoint counts more than
// complaints do: `leads` where no unblamed seat does, one blamed seat that does is taken. Returns whether somebody leads.
static bool spread(const placement *at, seat_counts *seats, int ranks, bool leads) {
    int *unblamed = gs_model_alloc(at->count, sizeof *unblamed), *blamed = gs_model_alloc(at->count, sizeof *blamed);
    int *taken = gs_model_alloc(at->count, sizeof *taken);
    int num_unblamed = 0;
    for (size_t i = 0; i < at->count; i++) {
        unblamed[i] = seats[i].unblamed;
        blamed[i] = seats[i].blamed;
        num_unblamed += unblamed[i];
    }
    size_t lead = leads && ranks > 0 ? find_lead(at, unblamed) : at->count;
    size_t blamed_lead = leads && ranks > 0 && lead == at->count ? find_lead(at, blamed) : at->count;
    int first = ranks < num_unblamed ? ranks : num_unblamed;
    if (blamed_lead < at->count && first == ranks) first--;
    gs_schedule_spread(taken, unblamed, at->count, first, lead);
    for (size_t i = 0; i < at->count; i++) seats[i].taken = taken[i];
    if (first < ranks) gs_schedule_spread(taken, blamed, at->count, ranks - first, blamed_lead);
    for (size_t i = 0; i < at->count && first < ranks; i++) seats[i].taken += taken[i];
    free(unblamed);
    free(blamed);
    free(taken);
    return lead < at->count || blamed_lead < at->count;
}

// One on CPUs has slots without a GPU first. Those that were complained about are the last of all.
static gs_slot_pools choose_pools(const placement *at, const gs_schedule_job *decision, gs_slot_pools free_pools) {
    gs_slot_pools take = gs_schedule_take(decision->needs_gpu, decision->ranks, free_pools);
    if (decision->needs_gpu || !decision->may_take_gpus || !at->avoided.count) return take;
    int blamed = take.plain, spare = -take.gpu;
    for (size_t i = 0; i < at->count; i++) {
        blamed -= at->plain[i].unblamed;
        spare += at->gpu[i].unblamed;
    }
    int moved = blamed < spare ? blamed : spare;
    if (moved > 0) take = (gs_slot_pools){.plain = take.plain - moved, .gpu = take.gpu + moved};
    return take;
}

static placement find_placement(const gs_engine *engine, const gs_job *job, const gs_schedule_job *decision,
                                gs_slot_pools free_pools) {
    size_t count = engine->state.agents.count;
    placement at = {.agents = gs_model_alloc(count, sizeof *at.agents),
                    .plain = gs_model_alloc(count, sizeof *at.plain),
                    .gpu = gs_model_alloc(count, sizeof *at.gpu),
                    .count = count};
    gs_avoidance_find(&at.avoided, &job->complaints, engine->state.now_ns);
    if (count) memcpy(at.agents, engine->state.agents.items, count * sizeof *at.agents);
    qsort(at.agents, count, sizeof *at.agents, compare_agents);
    for (size_t i = 0; i < count; i++) {
        at.plain[i] = count_seats(&at.avoided, at.agents[i], false);
        at.gpu[i] = count_seats(&at.avoided, at.agents[i], true);
    }
    gs_slot_pools take = choose_pools(&at, decision, free_pools);
    bool somebody_leads = spread(&at, at.plain, take.plain, true);
    spread(&at, at.gpu, take.gpu, !somebody_leads);
    return at;
}

static void release_placement(placement *at) {
    free(at->agents);
    free(at->plain);
    free(at->gpu);
}

bool gs_placement_sees_checkpoint(const gs_engine *engine, const gs_job *job, const gs_schedule_job *decision,
                                  gs_slot_pools free) {
    placement at = find_placement(engine, job, decision, free);
    bool sees = false;
    for (size_t i = 0; i < at.count && !sees; i++)
        sees = at.plain[i].taken + at.gpu[i].taken > 0 && at.agents[i]->place != GS_PLACE_APART;
    release_placement(&at);
    return sees;
}

static void place_member(gs_engine *engine, gs_member *member, gs_agent *agent, int slot, bool on_gpu) {
    member->is_on_gpu = on_gpu;
    if (on_gpu)
        gs_agent_devices_uuids(member->device_uuid, sizeof member->device_uuid, &agent->devices, slot);
    snprintf(member->worker, sizeof member->worker, "%s", agent->name);
    snprintf(member->host, sizeof member->host, "%s", agent->host);
    member->slot = slot;
    member->was_elsewhere = agent->place == GS_PLACE_APART;
    member->incarnation = gs_mind_draw(engine);
    member->launch_token = gs_mind_draw(engine);
    member->shows_token = agent->shows_tokens;
    member->heard_ns = engine->state.now_ns;
}

// In the order of slots. Returns how many members there are.
static int place_members(gs_engine *engine, gs_member *members, gs_agent *agent, const seat_counts *seats,
                         const gs_avoidance *avoided, bool slots_have_gpu, bool on_gpu) {
    int blamed_left = seats->taken > seats->unblamed ? seats->taken - seats->unblamed : 0, placed = 0;
    for (int slot = 0; placed < seats->taken; slot++) {
        if (!gs_agent_slot_is_free(agent, slot, slots_have_gpu)) continue;
        if (is_blamed(avoided, agent, slot) && blamed_left-- <= 0) continue;
        place_member(engine, &members[placed++], agent, slot, on_gpu);
    }
    return placed;
}

// Whoever wonders at a slot that stays free, or at ranks that have moved.
static void tell_left_out(gs_engine *engine, gs_job *job, const placement *at) {
    const gs_agent *first = NULL;
    int left_out = 0;
    for (size_t i = 0; i < at->count; i++) {
        const seat_counts *plain = &at->plain[i], *gpu = &at->gpu[i];
        int used = (plain->taken > plain->unblamed ? plain->taken - plain->unblamed : 0) +
                   (gpu->taken > gpu->unblamed ? gpu->taken - gpu->unblamed : 0);
        int here = plain->blamed + gpu->blamed - used;
        if (here > 0 && !first) first = at->agents[i];
        left_out += here;
    }
    if (!first) return;
    gs_note_add(engine, job, NULL, GS_SEVERITY_WARNING, "SlotsAvoided",
                "%d free slots, the first on worker %s, are left to others: again and again ranks there and ranks elsewhere could not "
                "work together",
                left_out, first->name);
}

gs_run *gs_placement_make_run(gs_engine *engine, gs_job *job, const gs_schedule_job *decision, gs_slot_pools free) {
    placement at = find_placement(engine, job, decision, free);
    gs_run *run = gs_run_create(job, decision->ranks, engine->state.now_ns);
    run->orphan_ns = run->told_orphan_ns = engine->state.timing.orphan_ns;
    gs_member *next = run->members;
    for (size_t i = 0; i < at.count; i++) {
        next += place_members(engine, next, at.agents[i], &at.gpu[i], &at.avoided, true, decision->needs_gpu);
        next += place_members(engine, next, at.agents[i], &at.plain[i], &at.avoided, false, false);
    }
    tell_left_out(engine, job, &at);
    release_placement(&at);
    return run;
}
