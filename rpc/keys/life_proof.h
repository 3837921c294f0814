// What a coordinator gives out with what it says of its life, and gets back with it: that a coordinator with this key has said so.
// A copy of its data directory has the same key, and so can tell what was said from what somebody makes up.
#ifndef RPC_KEYS_LIFE_PROOF_H
#define RPC_KEYS_LIFE_PROOF_H

#include <stdbool.h>
#include <stdint.h>

#include "rpc/keys/curve_key.h"

#define GS_LIFE_PROOF_BYTES 33  // hexadecimal, with NUL

typedef struct gs_told_life {
    const char *cluster;
    int64_t epoch;
    uint64_t life;
    int64_t generations_end;  // it had reserved the numbers of generations below; 0: nothing is said of them
} gs_told_life;

void gs_life_proof_make(char text[GS_LIFE_PROOF_BYTES], const gs_curve_key *secret, const gs_told_life *told);
// "" proves nothing.
bool gs_life_proof_holds(const char *text, const gs_curve_key *secret, const gs_told_life *told);

#endif
