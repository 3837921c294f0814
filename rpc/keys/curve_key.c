#include "rpc/keys/curve_key.h"

#include <stdio.h>
#include <string.h>

#include <zmq.h>

enum { ENCODED_BYTES = 41 };  // of ZeroMQ's own form

static gs_status without_curve(void) {
    return gs_error(GS_UNAVAILABLE, "keys: %s", zmq_strerror(zmq_errno()));
}

gs_status gs_curve_pair_draw(gs_curve_pair *pair) {
    char shown[ENCODED_BYTES], secret[ENCODED_BYTES];
    if (zmq_curve_keypair(shown, secret) != 0) return without_curve();
    bool decoded = zmq_z85_decode(pair->shown.bytes, shown) && zmq_z85_decode(pair->secret.bytes, secret);
    explicit_bzero(secret, sizeof secret);
    return decoded ? gs_ok() : gs_error(GS_INTERNAL, "keys: ZeroMQ has made one that it cannot read");
}

gs_status gs_curve_pair_complete(gs_curve_pair *pair) {
    char shown[ENCODED_BYTES], secret[ENCODED_BYTES];
    bool done = zmq_z85_encode(secret, pair->secret.bytes, sizeof pair->secret.bytes) &&
                zmq_curve_public(shown, secret) == 0 && zmq_z85_decode(pair->shown.bytes, shown);
    explicit_bzero(secret, sizeof secret);
    return done ? gs_ok() : without_curve();
}

// Of public keys: what is compared is known to everybody.
bool gs_curve_key_equal(const gs_curve_key *a, const gs_curve_key *b) {
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

void gs_curve_key_format(char text[GS_CURVE_KEY_TEXT_BYTES], const gs_curve_key *key) {
    for (size_t i = 0; i < sizeof key->bytes; i++) snprintf(text + 2 * i, 3, "%02x", (unsigned)key->bytes[i]);
}

bool gs_curve_key_parse(gs_curve_key *key, const char *text) {
    static const char digits[] = "0123456789abcdef";
    if (strlen(text) != 2 * sizeof key->bytes || strspn(text, digits) != 2 * sizeof key->bytes) return false;
    for (size_t i = 0; i < sizeof key->bytes; i++)
        key->bytes[i] = (uint8_t)((strchr(digits, text[2 * i]) - digits) << 4 | (strchr(digits, text[2 * i + 1]) - digits));
    return true;
}
