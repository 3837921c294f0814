#include "coordinator/observe/hosts/rank_keyring.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/observer.h"

static bool read_key(gs_rank_key *key, int64_t *slot, const gs_json *entry) {
    *key = (gs_rank_key){0};
    if (gs_json_read_u64(&key->incarnation, entry, "incarnation").code || !key->incarnation) return false;
    *slot = gs_json_int_or(entry, "slot", -1);
    return gs_curve_key_parse(&key->shown, gs_json_string_or(entry, "public", ""));
}

static bool is_in_a_slot(void *ctx, uint64_t incarnation) {
    return gs_u64_map_get(ctx, incarnation) != NULL;
}

// The slots of all agents are looked at once in as many keys as there are.
static void sweep(gs_key_gate *gate, const gs_state *state) {
    gs_u64_map there = {0};
    for (size_t i = 0; i < state->agents.count; i++) {
        gs_agent *agent = state->agents.items[i];
        for (int k = 0; k < agent->num_slots; k++)
            if (agent->slots[k].incarnation && !gs_u64_map_set(&there, agent->slots[k].incarnation, agent)) abort();
    }
    gs_key_gate_sweep_ranks(gate, is_in_a_slot, &there);
    gs_u64_map_release(&there);
}

void gs_rank_keyring_take(gs_key_gate *gate, const gs_state *state, const gs_rpc_peer *peer, const gs_json *told) {
    const gs_rpc_caller *caller = &peer->caller;
    gs_identity who = gs_identity_of_peer(peer);
    const gs_agent *agent = gs_identity_find_agent(state, &who);
    if (!gate || !agent || !caller->is_known) return;
    const gs_json *keys = gs_json_get(told, "keys");
    for (size_t i = 0; i < gs_json_count(keys); i++) {
        gs_rank_key key;
        int64_t slot;
        if (!read_key(&key, &slot, gs_json_at(keys, i)) || slot < 0 || slot >= agent->num_slots) continue;
        if (agent->slots[slot].incarnation != key.incarnation) continue;
        memcpy(key.worker, agent->name, sizeof key.worker);
        memcpy(key.owner, caller->id, sizeof key.owner);
        if (!gs_key_gate_add_rank(gate, &key)) continue;
    }
    if (gs_key_gate_ranks_are_many(gate)) sweep(gate, state);
}
