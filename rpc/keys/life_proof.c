#include "rpc/keys/life_proof.h"

#include <stdio.h>
#include <string.h>

#include "core/siphash.h"

// Of both halves of the secret, and for nothing else.
static void derive_key(uint8_t key[GS_SIPHASH_BYTES], const gs_curve_key *secret) {
    static const char use[] = "gradsync told life";
    uint8_t data[GS_SIPHASH_BYTES + sizeof use];
    memcpy(data, secret->bytes + GS_SIPHASH_BYTES, GS_SIPHASH_BYTES);
    memcpy(data + GS_SIPHASH_BYTES, use, sizeof use);
    gs_siphash(key, secret->bytes, data, sizeof data);
    explicit_bzero(data, sizeof data);
}

void gs_life_proof_make(char text[GS_LIFE_PROOF_BYTES], const gs_curve_key *secret, const gs_told_life *told) {
    char said[160];
    uint8_t key[GS_SIPHASH_BYTES], proof[GS_SIPHASH_BYTES];
    // The numbers first: a name has whatever characters it likes.
    int bytes = snprintf(said, sizeof said, "%lld %llu %lld %.64s", (long long)told->epoch, (unsigned long long)told->life,
                         (long long)told->generations_end, told->cluster);
    derive_key(key, secret);
    gs_siphash(proof, key, said, (size_t)bytes);
    explicit_bzero(key, sizeof key);
    for (int i = 0; i < GS_SIPHASH_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", (unsigned)proof[i]);
}

// In a time that does not tell how much of it was right.
bool gs_life_proof_holds(const char *text, const gs_curve_key *secret, const gs_told_life *told) {
    char right[GS_LIFE_PROOF_BYTES];
    unsigned difference = 0;
    if (strlen(text) != GS_LIFE_PROOF_BYTES - 1) return false;
    gs_life_proof_make(right, secret, told);
    for (int i = 0; i < GS_LIFE_PROOF_BYTES - 1; i++) difference |= (unsigned)(text[i] ^ right[i]);
    return difference == 0;
}
