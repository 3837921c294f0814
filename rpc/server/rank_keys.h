// Keys of ranks: each that an agent has started has one of its own, by which it is that rank and nothing else. Kept in memory
// alone: the agent tells them again to each life of the coordinator. Plain; no lock, no clock.
#ifndef RPC_SERVER_RANK_KEYS_H
#define RPC_SERVER_RANK_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/u64_map.h"
#include "rpc/keys/key_list.h"

typedef struct gs_rank_key {
    gs_curve_key shown;
    uint64_t incarnation;             // of the rank
    char worker[GS_KEY_NAME_BYTES];   // that has started it
    char owner[GS_KEY_ID_BYTES];      // the key of that worker, as long as which this one counts
    char id[GS_KEY_ID_BYTES];         // "r-" and a number; never another's
    size_t at;                        // of the table: where it is
} gs_rank_key;

typedef struct gs_rank_keys {
    uint64_t seed;  // of by_key
    gs_rank_key **items;  // owned; in no order
    size_t count, reserved;
    size_t swept;  // how many there were behind the last sweep
    uint64_t last_id;
    gs_u64_map by_key, by_id, by_incarnation;
} gs_rank_keys;

void gs_rank_keys_init(gs_rank_keys *keys, uint64_t seed);
void gs_rank_keys_release(gs_rank_keys *keys);

const gs_rank_key *gs_rank_keys_find(const gs_rank_keys *keys, const gs_curve_key *shown);  // NULL: nobody's
const gs_rank_key *gs_rank_keys_find_rank(const gs_rank_keys *keys, uint64_t incarnation);
const gs_rank_key *gs_rank_keys_find_id(const gs_rank_keys *keys, const char *id);
// Takes the place of the one that its incarnation had; the same again keeps its id. `key` has all but that. False: out of memory,
// or another rank shows it.
GS_NODISCARD bool gs_rank_keys_add(gs_rank_keys *keys, const gs_rank_key *key);
void gs_rank_keys_drop(gs_rank_keys *keys, uint64_t incarnation);
// There may be many of agents that have gone without a word: who is not there any more is dropped. False: it is not time.
bool gs_rank_keys_are_many(const gs_rank_keys *keys);
void gs_rank_keys_sweep(gs_rank_keys *keys, bool (*is_there)(void *ctx, uint64_t incarnation), void *ctx);

#endif
