// What counts as UTF-8: RFC 3629, so no overlong forms, no surrogates, nothing above U+10FFFF.
#ifndef RPC_JSON_UTF8_H
#define RPC_JSON_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Bytes of the character at `text`, of which `bytes` are there; 0 when it is not UTF-8.
static inline size_t gs_utf8_char_bytes(const char *text, size_t bytes) {
    const unsigned char *c = (const unsigned char *)text;
    if (bytes == 0) return 0;
    if (c[0] < 0x80) return 1;
    size_t wanted = c[0] >= 0xf0 ? 4 : c[0] >= 0xe0 ? 3 : 2;
    if (c[0] < 0xc2 || c[0] > 0xf4 || bytes < wanted) return 0;
    for (size_t i = 1; i < wanted; i++) {
        if ((c[i] & 0xc0) != 0x80) return 0;
    }
    if (c[0] == 0xe0 && c[1] < 0xa0) return 0;
    if (c[0] == 0xed && c[1] > 0x9f) return 0;
    if (c[0] == 0xf0 && c[1] < 0x90) return 0;
    if (c[0] == 0xf4 && c[1] > 0x8f) return 0;
    return wanted;
}

// How many bytes from `text` on are certainly ASCII other than NUL: whole words of eight, so that long texts are not read
// one character at a time.
static inline size_t gs_ascii_bytes(const char *text, size_t bytes) {
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
    size_t good = 0;
    for (uint64_t word; bytes - good >= sizeof word; good += sizeof word) {
        memcpy(&word, text + good, sizeof word);
        if ((word | (word - ones)) & tops) break;  // a byte of 0x80 and more, or one of 0 (or behind one)
    }
    return good;
}

#endif
