#include "worker/agent/rank_key.h"

#include <stdio.h>

gs_status gs_rank_key_choose(gs_key_file *key, gs_slot *slot, const gs_key_file *workers, const char *worker, bool own) {
    *key = *workers;
    if (!own) {
        slot->has_pair = false;
        return gs_ok();
    }
    if (!slot->has_pair) GS_TRY(gs_curve_pair_draw(&slot->own_pair));
    slot->has_pair = true;
    key->pair = slot->own_pair;
    key->is_pool = false;
    snprintf(key->name, sizeof key->name, "%s", worker);
    return gs_ok();
}

void gs_rank_key_tell(gs_rpc_client *client, const gs_slot *slots, int num_slots) {
    gs_json *told = gs_json_new_object(), *keys = gs_json_new_array();
    for (int i = 0; i < num_slots; i++) {
        if (!slots[i].has_pair) continue;
        char shown[GS_CURVE_KEY_TEXT_BYTES];
        gs_curve_key_format(shown, &slots[i].own_pair.shown);
        gs_json *key = gs_json_new_object();
        gs_json_set_int(key, "slot", slots[i].index);
        gs_json_set_u64(key, "incarnation", slots[i].incarnation);
        gs_json_set_string(key, "public", shown);
        gs_json_push(keys, key);
    }
    bool has_some = gs_json_count(keys) > 0;
    gs_json_set(told, "keys", keys);
    if (has_some) gs_rpc_send(client, GS_RANK_KEYS, told);
    gs_json_release(told);
}
