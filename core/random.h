// Numbers from a counter: the same (seed, stream, index) gives the same number on every rank, in any
// order, on any thread. Nothing to save, nothing to hand over.
//
// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), and a
// keyed permutation of [0, count): a balanced Feistel network with cycle walking.
#ifndef CORE_RANDOM_H
#define CORE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

typedef struct gs_random_key {
    uint64_t seed;    // of the job
    uint64_t stream;  // what for: a hash of a name, or (step, shard, layer) by gs_random_stream
} gs_random_key;

uint64_t gs_random_stream(uint64_t a, uint64_t b, uint64_t c);

void gs_random_block(uint32_t out[4], gs_random_key key, uint64_t index);
uint64_t gs_random_u64(gs_random_key key, uint64_t index);
double gs_random_uniform(gs_random_key key, uint64_t index);  // [0, 1)

// out[i] is a function of (key, first + i) alone.
void gs_random_fill_uniform(float *out, size_t count, gs_random_key key, uint64_t first, float low,
                            float high);
void gs_random_fill_normal(float *out, size_t count, gs_random_key key, uint64_t first, float mean,
                           float deviation);

// The image of `index` under the permutation of [0, count) that `key` names. index < count.
uint64_t gs_random_permute(gs_random_key key, uint64_t count, uint64_t index);

// A number that no other process draws: from the kernel. For incarnations, nonces, job ids.
uint64_t gs_random_from_system(void);

// The same, fetched many at once: for who draws thousands in a second. {0} is empty. One thread; not in a child of fork().
#define GS_RANDOM_BAG_NUMBERS 64
typedef struct gs_random_bag {
    uint64_t numbers[GS_RANDOM_BAG_NUMBERS];  // those that were drawn are zeros
    int num_left;
} gs_random_bag;

uint64_t gs_random_bag_draw(gs_random_bag *bag);

#endif
