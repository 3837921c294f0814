#include "core/siphash.h"

typedef struct sip_state {
    uint64_t v0, v1, v2, v3;
} sip_state;

static uint64_t rotate(uint64_t value, int bits) {
    return value << bits | value >> (64 - bits);
}

static void sip_rounds(sip_state *s, int count) {
    for (int i = 0; i < count; i++) {
        s->v0 += s->v1;
        s->v1 = rotate(s->v1, 13) ^ s->v0;
        s->v0 = rotate(s->v0, 32);
        s->v2 += s->v3;
        s->v3 = rotate(s->v3, 16) ^ s->v2;
        s->v0 += s->v3;
        s->v3 = rotate(s->v3, 21) ^ s->v0;
        s->v2 += s->v1;
        s->v1 = rotate(s->v1, 17) ^ s->v2;
        s->v2 = rotate(s->v2, 32);
    }
}

// Little endian, `bytes` at most 8.
static uint64_t read_word(const uint8_t *from, size_t bytes) {
    uint64_t word = 0;
    for (size_t i = 0; i < bytes; i++) word |= (uint64_t)from[i] << 8 * i;
    return word;
}

static void write_word(uint8_t *to, uint64_t word) {
    for (size_t i = 0; i < 8; i++) to[i] = (uint8_t)(word >> 8 * i);
}

static void absorb(sip_state *s, uint64_t word) {
    s->v3 ^= word;
    sip_rounds(s, 2);
    s->v0 ^= word;
}

void gs_siphash(uint8_t out[GS_SIPHASH_BYTES], const uint8_t key[GS_SIPHASH_BYTES], const void *data, size_t bytes) {
    const uint8_t *from = data;
    uint64_t k0 = read_word(key, 8), k1 = read_word(key + 8, 8);
    sip_state s = {k0 ^ UINT64_C(0x736f6d6570736575), k1 ^ UINT64_C(0x646f72616e646f6d) ^ 0xee,
                   k0 ^ UINT64_C(0x6c7967656e657261), k1 ^ UINT64_C(0x7465646279746573)};
    size_t whole = bytes / 8 * 8;
    for (size_t at = 0; at < whole; at += 8) absorb(&s, read_word(from + at, 8));
    absorb(&s, (uint64_t)bytes << 56 | read_word(from + whole, bytes - whole));
    s.v2 ^= 0xee;
    sip_rounds(&s, 4);
    write_word(out, s.v0 ^ s.v1 ^ s.v2 ^ s.v3);
    s.v1 ^= 0xdd;
    sip_rounds(&s, 4);
    write_word(out + 8, s.v0 ^ s.v1 ^ s.v2 ^ s.v3);
}
