#include "core/random.h"

#include <math.h>
#include <stdbool.h>
#include <sys/random.h>

#include "core/clock.h"
#include "core/digest.h"

uint64_t gs_random_stream(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t words[3] = {a, b, c};
    return gs_hash64(words, sizeof words, 0);
}

void gs_random_block(uint32_t out[4], gs_random_key key, uint64_t index) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)key.stream, c3 = (uint32_t)(key.stream >> 32);
    uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t gs_random_u64(gs_random_key key, uint64_t index) {
    uint32_t block[4];
    gs_random_block(block, key, index);
    return (uint64_t)block[1] << 32 | block[0];
}

double gs_random_uniform(gs_random_key key, uint64_t index) {
    return (double)(gs_random_u64(key, index) >> 11) * 0x1p-53;
}

void gs_random_fill_uniform(float *out, size_t count, gs_random_key key, uint64_t first, float low,
                            float high) {
    for (size_t i = 0; i < count; i++) {
        uint32_t block[4];
        gs_random_block(block, key, first + i);
        out[i] = low + (high - low) * ((float)(block[0] >> 8) * 0x1p-24f);
    }
}

// Box-Muller on one block for each number: costs a block, buys independence of position.
void gs_random_fill_normal(float *out, size_t count, gs_random_key key, uint64_t first, float mean,
                           float deviation) {
    for (size_t i = 0; i < count; i++) {
        uint32_t block[4];
        gs_random_block(block, key, first + i);
        double u = ((double)block[0] + 1.0) * 0x1p-32;  // (0, 1]
        double v = (double)block[1] * 0x1p-32;
        double normal = sqrt(-2.0 * log(u)) * cos(6.283185307179586476925 * v);
        out[i] = mean + deviation * (float)normal;
    }
}

uint64_t gs_random_permute(gs_random_key key, uint64_t count, uint64_t index) {
    if (count < 2) return index;
    unsigned half_bits = 1;
    while (half_bits < 32 && ((uint64_t)1 << (2 * half_bits)) < count) half_bits++;
    uint64_t half_mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t value = index;
    do {
        uint64_t left = value >> half_bits, right = value & half_mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t next = left ^ (gs_random_u64(key, round << 32 | right) & half_mask);
            left = right;
            right = next;
        }
        value = left << half_bits | right;
    } while (value >= count);  // walks the cycle until it is back inside
    return value;
}

uint64_t gs_random_from_system(void) {
    uint64_t value = 0;
    if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value || value == 0) {
        // Only an ancient kernel early in its boot comes here.
        value = (uint64_t)gs_now_ns() * 0x9E3779B97F4A7C15u;
    }
    return value;
}

uint64_t gs_random_bag_draw(gs_random_bag *bag) {
    bool is_full = bag->num_left > 0 || getrandom(bag->numbers, sizeof bag->numbers, 0) == (ssize_t)sizeof bag->numbers;
    if (!is_full) return gs_random_from_system();
    if (bag->num_left == 0) bag->num_left = GS_RANDOM_BAG_NUMBERS;
    uint64_t drawn = bag->numbers[--bag->num_left];
    bag->numbers[bag->num_left] = 0;
    return drawn ? drawn : gs_random_from_system();
}
