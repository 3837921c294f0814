#include "bench/control_curve.h"

#include <sodium.h>
#include <string.h>

#define MESSAGE "\7MESSAGE"
enum { MAC = crypto_box_MACBYTES, NAME = 8, SHORT = 8, MORE = 1, COMMAND = 2 };

// A nonce is what it is for, and a number.
static void make_nonce(uint8_t out[crypto_box_NONCEBYTES], const char *prefix, const uint8_t *tail) {
    size_t prefix_bytes = strlen(prefix);
    memcpy(out, prefix, prefix_bytes);
    memcpy(out + prefix_bytes, tail, crypto_box_NONCEBYTES - prefix_bytes);
}

static void next_short(control_curve *curve, uint8_t out[SHORT]) {
    curve->nonce++;
    for (int i = 0; i < SHORT; i++) out[i] = (uint8_t)(curve->nonce >> (56 - 8 * i));
}

void control_curve_begin(control_curve *curve, const gs_key_file *key) {
    *curve = (control_curve){.key = key};
    crypto_box_keypair(curve->shown, curve->secret);
}

void control_curve_hello(control_curve *curve, uint8_t out[CONTROL_CURVE_HELLO_BYTES]) {
    static const uint8_t zeros[64];
    uint8_t nonce[crypto_box_NONCEBYTES];
    memset(out, 0, CONTROL_CURVE_HELLO_BYTES);
    memcpy(out, "\5HELLO\1", 7);  // version 1.0
    memcpy(out + 80, curve->shown, 32);
    next_short(curve, out + 112);
    make_nonce(nonce, "CurveZMQHELLO---", out + 112);
    if (crypto_box_easy(out + 120, zeros, sizeof zeros, nonce, curve->key->server.bytes, curve->secret) != 0) memset(out, 0, 7);
}

size_t control_curve_initiate(control_curve *curve, uint8_t out[CONTROL_CURVE_INITIATE_ROOM], const void *welcome, size_t welcome_bytes,
                              const void *metadata, size_t metadata_bytes) {
    enum { COOKIE = 96, VOUCH = 64, AT = 9 + COOKIE + SHORT };
    uint8_t nonce[crypto_box_NONCEBYTES], opened[32 + COOKIE], vouched[VOUCH], plain[CONTROL_CURVE_INITIATE_ROOM];
    const uint8_t *in = welcome;
    size_t plain_bytes = 32 + 16 + VOUCH + MAC + metadata_bytes;
    if (welcome_bytes != NAME + 16 + sizeof opened + MAC || memcmp(in, "\7WELCOME", NAME) != 0 ||
        AT + plain_bytes + MAC > CONTROL_CURVE_INITIATE_ROOM)
        return 0;
    make_nonce(nonce, "WELCOME-", in + NAME);
    if (crypto_box_open_easy(opened, in + NAME + 16, sizeof opened + MAC, nonce, curve->key->server.bytes, curve->secret) != 0) return 0;
    // That this connection's key is of who holds the lasting one.
    memcpy(vouched, curve->shown, 32);
    memcpy(vouched + 32, curve->key->server.bytes, 32);
    memcpy(plain, curve->key->pair.shown.bytes, 32);
    randombytes_buf(plain + 32, 16);
    make_nonce(nonce, "VOUCH---", plain + 32);
    if (crypto_box_easy(plain + 48, vouched, VOUCH, nonce, opened, curve->key->pair.secret.bytes) != 0) return 0;
    memcpy(plain + 48 + VOUCH + MAC, metadata, metadata_bytes);
    if (crypto_box_beforenm(curve->shared, opened, curve->secret) != 0) return 0;
    memcpy(out, "\10INITIATE", 9);
    memcpy(out + 9, opened + 32, COOKIE);
    next_short(curve, out + 9 + COOKIE);
    make_nonce(nonce, "CurveZMQINITIATE", out + 9 + COOKIE);
    if (crypto_box_easy_afternm(out + AT, plain, plain_bytes, nonce, curve->shared) != 0) return 0;
    return AT + plain_bytes + MAC;
}

size_t control_curve_seal(control_curve *curve, uint8_t *out, bool has_more, bool is_command, const void *frame, size_t bytes) {
    uint8_t nonce[crypto_box_NONCEBYTES], *box = out + NAME + SHORT;
    memcpy(out, MESSAGE, NAME);
    next_short(curve, out + NAME);
    make_nonce(nonce, "CurveZMQMESSAGEC", out + NAME);
    box[MAC] = (uint8_t)((has_more ? MORE : 0) | (is_command ? COMMAND : 0));
    if (bytes) memcpy(box + MAC + 1, frame, bytes);
    crypto_box_easy_afternm(box, box + MAC, bytes + 1, nonce, curve->shared);
    return NAME + SHORT + MAC + 1 + bytes;
}

bool control_curve_open(const control_curve *curve, uint8_t *sealed, size_t sealed_bytes, bool *has_more, bool *is_command,
                        const char **frame, size_t *bytes) {
    uint8_t nonce[crypto_box_NONCEBYTES], *box = sealed + NAME + SHORT;
    if (sealed_bytes < CONTROL_CURVE_MORE_BYTES || memcmp(sealed, MESSAGE, NAME) != 0) return false;
    make_nonce(nonce, "CurveZMQMESSAGES", sealed + NAME);
    if (crypto_box_open_easy_afternm(box, box, sealed_bytes - NAME - SHORT, nonce, curve->shared) != 0) return false;
    *has_more = box[0] & MORE;
    *is_command = box[0] & COMMAND;
    *frame = (const char *)box + 1;
    *bytes = sealed_bytes - CONTROL_CURVE_MORE_BYTES;
    return true;
}
