// Keys of the control port: Curve25519, as ZeroMQ's CURVE has them. Values.
#ifndef RPC_KEYS_CURVE_KEY_H
#define RPC_KEYS_CURVE_KEY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#define GS_CURVE_KEY_BYTES 32
#define GS_CURVE_KEY_TEXT_BYTES 65  // hexadecimal, with NUL

typedef struct gs_curve_key {
    uint8_t bytes[GS_CURVE_KEY_BYTES];
} gs_curve_key;

typedef struct gs_curve_pair {
    gs_curve_key shown, secret;  // everybody may know the first
} gs_curve_pair;

// A new one. UNAVAILABLE: this libzmq was built without CURVE.
GS_NODISCARD gs_status gs_curve_pair_draw(gs_curve_pair *pair);
// From its secret.
GS_NODISCARD gs_status gs_curve_pair_complete(gs_curve_pair *pair);
bool gs_curve_key_equal(const gs_curve_key *a, const gs_curve_key *b);
void gs_curve_key_format(char text[GS_CURVE_KEY_TEXT_BYTES], const gs_curve_key *key);
GS_NODISCARD bool gs_curve_key_parse(gs_curve_key *key, const char *text);  // 64 hexadecimal digits, lower case

#endif
