#include "coordinator/model/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/memory.h"
#include "core/digest.h"

bool gs_agent_is_connected(const gs_agent *agent) { return agent->stream.call != 0; }

bool gs_agent_has(const gs_agent *agent, const gs_member *member) {
    return member->stage != GS_MEMBER_EXITED && strcmp(member->worker, agent->name) == 0;
}

bool gs_agent_holds(const gs_agent *agent, const gs_member *member) {
    return member->slot < agent->num_slots &&
           agent->slots[member->slot].incarnation == member->incarnation;
}

bool gs_agent_slot_is_busy(const gs_agent *agent, int slot) {
    return slot < agent->num_slots && agent->slots[slot].incarnation != 0;
}

static bool has_gpu_at(const gs_agent *agent, int slot) {
    return gs_agent_devices_of_slot(&agent->devices, slot) > 0;
}

bool gs_agent_slot_is_free(const gs_agent *agent, int slot, bool has_gpu) {
    return agent->slots[slot].incarnation == 0 && has_gpu_at(agent, slot) == has_gpu;
}

gs_slot_pools gs_agent_free_slots(const gs_agent *agent) {
    gs_slot_pools pools = {0};
    bool takes_more = gs_agent_is_connected(agent) && !agent->is_leaving && !agent->place_due_ns;
    for (int i = 0; takes_more && i < agent->num_slots; i++) {
        if (agent->slots[i].incarnation) continue;
        bool has_gpu = agent->devices.count > 0 && has_gpu_at(agent, i);
        *(has_gpu ? &pools.gpu : &pools.plain) += 1;
    }
    return pools;
}

gs_slot_pools gs_agent_all_slots(const gs_agent *agent) {
    gs_slot_pools pools = {0};
    for (int i = 0; agent->devices.count > 0 && i < agent->num_slots; i++) pools.gpu += has_gpu_at(agent, i);
    pools.plain = agent->num_slots - pools.gpu;
    return pools;
}

static uint64_t name_key(const char *name) { return gs_hash64(name, strlen(name), 1) | 1; }

gs_agent *gs_agent_table_find(const gs_agent_table *table, const char *name) {
    gs_agent *agent = gs_u64_map_get(&table->by_name, name_key(name));
    return agent && !strcmp(agent->name, name) ? agent : NULL;
}

gs_agent *gs_agent_table_of_incarnation(const gs_agent_table *table, uint64_t incarnation) {
    return incarnation ? gs_u64_map_get(&table->by_incarnation, incarnation) : NULL;
}

gs_agent *gs_agent_table_add(gs_agent_table *table, const char *name) {
    gs_agent *agent = calloc(1, sizeof *agent);
    if (!agent) return NULL;
    snprintf(agent->name, sizeof agent->name, "%s", name);
    if (!gs_u64_map_set(&table->by_name, name_key(name), agent)) {
        free(agent);
        return NULL;
    }
    table->items = gs_model_grow(table->items, table->count, &table->reserved, sizeof *table->items);
    table->items[table->count++] = agent;
    return agent;
}

bool gs_agent_table_rename(gs_agent_table *table, gs_agent *agent, uint64_t incarnation) {
    if (agent->incarnation) gs_u64_map_remove(&table->by_incarnation, agent->incarnation);
    agent->incarnation = incarnation;
    return gs_u64_map_set(&table->by_incarnation, incarnation, agent);
}

void gs_agent_table_unlink(gs_agent_table *table, gs_agent *agent) {
    gs_u64_map_remove(&table->by_name, name_key(agent->name));
    if (agent->incarnation) gs_u64_map_remove(&table->by_incarnation, agent->incarnation);
    size_t index = 0;
    while (table->items[index] != agent) index++;
    table->items[index] = table->items[--table->count];
}

void gs_agent_destroy(gs_agent *agent) {
    free(agent->slots);
    gs_agent_devices_release(&agent->devices);
    free(agent);
}

void gs_agent_table_release(gs_agent_table *table) {
    for (size_t i = 0; i < table->count; i++) gs_agent_destroy(table->items[i]);
    free(table->items);
    gs_u64_map_release(&table->by_name);
    gs_u64_map_release(&table->by_incarnation);
    *table = (gs_agent_table){0};
}
