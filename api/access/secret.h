// What a token is to its bearer: "gs_" and 43 characters, which are 256 random bits; and what is kept of it,
// its SHA-256. Nobody can try 2^256 of them, so a slow hash, which guards words that people choose, would guard
// nothing here and cost every request.
#ifndef API_ACCESS_SECRET_H
#define API_ACCESS_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define GS_SECRET_TEXT_BYTES 47  // with NUL
#define GS_SECRET_HASH_TEXT_BYTES 65

typedef struct gs_secret_hash {
    uint8_t bytes[32];
} gs_secret_hash;

// A new one, from the system's source of keys.
GS_NODISCARD gs_status gs_secret_draw(char text[GS_SECRET_TEXT_BYTES]);
// False: `text` is not of the form, so nobody was ever given it.
GS_NODISCARD bool gs_secret_hash_of(gs_secret_hash *out, const char *text, size_t len);
// The same of the value of an Authorization header, "Bearer gs_…".
GS_NODISCARD bool gs_secret_hash_of_header(gs_secret_hash *out, const char *header);
// Writes stars over what in `text` could be a secret, as where somebody put his token into an address.
void gs_secret_mask(char *text);
// Takes as long whatever they are.
bool gs_secret_hash_equal(const gs_secret_hash *a, const gs_secret_hash *b);
void gs_secret_hash_format(char text[GS_SECRET_HASH_TEXT_BYTES], const gs_secret_hash *hash);
GS_NODISCARD bool gs_secret_hash_parse(gs_secret_hash *out, const char *text);  // 64 hexadecimal digits, lower case

#endif
