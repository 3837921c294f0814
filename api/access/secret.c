#include "api/access/secret.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#define PREFIX "gs_"
enum { PREFIX_LEN = 3, RANDOM_BYTES = 32, LETTERS = 43 };

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

gs_status gs_secret_draw(char text[GS_SECRET_TEXT_BYTES]) {
    uint8_t random[RANDOM_BYTES + 1] = {0};  // the last letter has four bits of it
    int failed = gnutls_rnd(GNUTLS_RND_KEY, random, RANDOM_BYTES);
    if (failed) return gs_error(GS_UNAVAILABLE, "token: no random numbers: %s", gnutls_strerror(failed));
    memcpy(text, PREFIX, PREFIX_LEN);
    for (size_t i = 0; i < LETTERS; i++) {
        size_t bit = i * 6;
        unsigned two = (unsigned)random[bit / 8] << 8 | random[bit / 8 + 1];
        text[PREFIX_LEN + i] = alphabet[two >> (10 - bit % 8) & 63];
    }
    text[PREFIX_LEN + LETTERS] = '\0';
    gnutls_memset(random, 0, sizeof random);
    return gs_ok();
}

bool gs_secret_hash_of(gs_secret_hash *out, const char *text, size_t len) {
    if (len != PREFIX_LEN + LETTERS || memcmp(text, PREFIX, PREFIX_LEN) != 0) return false;
    for (size_t i = PREFIX_LEN; i < len; i++)
        if (!memchr(alphabet, text[i], sizeof alphabet - 1)) return false;
    return gnutls_hash_fast(GNUTLS_DIG_SHA256, text, len, out->bytes) == 0;
}

bool gs_secret_hash_of_header(gs_secret_hash *out, const char *header) {
    static const char scheme[] = "Bearer ";
    if (strncasecmp(header, scheme, sizeof scheme - 1) != 0) return false;
    const char *text = header + strcspn(header, " ");
    text += strspn(text, " ");
    return gs_secret_hash_of(out, text, strlen(text));
}

void gs_secret_mask(char *text) {
    for (char *at = text; (at = strstr(at, PREFIX));) {
        at += PREFIX_LEN;
        size_t len = strspn(at, alphabet);
        if (len >= LETTERS / 2) memset(at, '*', len);
        at += len;
    }
}

bool gs_secret_hash_equal(const gs_secret_hash *a, const gs_secret_hash *b) {
    return gnutls_memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

void gs_secret_hash_format(char text[GS_SECRET_HASH_TEXT_BYTES], const gs_secret_hash *hash) {
    for (size_t i = 0; i < sizeof hash->bytes; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned)hash->bytes[i]);
}

bool gs_secret_hash_parse(gs_secret_hash *out, const char *text) {
    static const char digits[] = "0123456789abcdef";
    if (strlen(text) != 2 * sizeof out->bytes || strspn(text, digits) != 2 * sizeof out->bytes) return false;
    for (size_t i = 0; i < sizeof out->bytes; i++)
        out->bytes[i] = (uint8_t)((strchr(digits, text[2 * i]) - digits) << 4 | (strchr(digits, text[2 * i + 1]) - digits));
    return true;
}
