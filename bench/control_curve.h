// The client's side of CURVE (ZMTP 3.1) for a simulated connection: bytes in, bytes out, no socket. Its commands and frames come without
// their ZMTP headers.
#ifndef BENCH_CONTROL_CURVE_H
#define BENCH_CONTROL_CURVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rpc/keys/key_file.h"

#define CONTROL_CURVE_HELLO_BYTES 200
#define CONTROL_CURVE_INITIATE_ROOM 512
#define CONTROL_CURVE_MORE_BYTES 33  // that a frame has more when it is sealed

typedef struct control_curve {
    const gs_key_file *key;  // borrowed
    uint8_t shown[32], secret[32];  // of this connection
    uint8_t shared[32];             // of both sides of it
    uint64_t nonce;
} control_curve;

void control_curve_begin(control_curve *curve, const gs_key_file *key);
void control_curve_hello(control_curve *curve, uint8_t out[CONTROL_CURVE_HELLO_BYTES]);
// Answers WELCOME with INITIATE, and what it says of the socket in it. 0: it does not open.
size_t control_curve_initiate(control_curve *curve, uint8_t out[CONTROL_CURVE_INITIATE_ROOM], const void *welcome, size_t welcome_bytes,
                              const void *metadata, size_t metadata_bytes);
// `out` has room for the frame and CONTROL_CURVE_MORE_BYTES. What it has then.
size_t control_curve_seal(control_curve *curve, uint8_t *out, bool has_more, bool is_command, const void *frame, size_t bytes);
// In place; *frame is then in `sealed`. False: it does not open.
bool control_curve_open(const control_curve *curve, uint8_t *sealed, size_t sealed_bytes, bool *has_more, bool *is_command,
                        const char **frame, size_t *bytes);

#endif
