// The part of a large grid of cases that a run takes: all of it, or with GRADSYNC_SAMPLE=N one case in N, which
// GRADSYNC_SEED draws. Who draws says so once, with both numbers: with them the same cases run again.
//
// tests/run.sh samples what tests/long.sh runs whole. Every process of a test draws the same.
#ifndef TESTS_SUPPORT_SAMPLE_H
#define TESTS_SUPPORT_SAMPLE_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/random.h"

typedef struct sample {
    uint64_t share, seed;  // one case in `share`; 0 or 1: every case
} sample;

static inline uint64_t sample_number(const char *name, uint64_t fallback) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : fallback;
}

static inline sample sample_from_environment(void) {
    return (sample){sample_number("GRADSYNC_SAMPLE", 1), sample_number("GRADSYNC_SEED", 1)};
}

static inline void sample_say(const sample *drawn, const char *of) {
    if (drawn->share > 1)
        printf("one in %" PRIu64 " of %s: GRADSYNC_SAMPLE=%" PRIu64 " GRADSYNC_SEED=%" PRIu64 "\n",
               drawn->share, of, drawn->share, drawn->seed);
}

// Where a test draws what it does, and has no grid: as GRADSYNC_SEED says, so that a run can be repeated, else anew.
static inline uint64_t sample_seed(const char *what) {
    uint64_t seed = sample_number("GRADSYNC_SEED", 0);
    if (!seed) seed = gs_random_from_system() >> 32;
    printf("%s: GRADSYNC_SEED=%" PRIu64 "\n", what, seed);
    return seed;
}

// Whether case `item` of `grid`, a number of the caller's, belongs to it.
static inline bool sample_takes(const sample *drawn, uint64_t grid, uint64_t item) {
    if (drawn->share <= 1) return true;
    gs_random_key key = {drawn->seed, gs_random_stream(grid, drawn->share, 0x5a3b1e)};
    return gs_random_u64(key, item) % drawn->share == 0;
}

// Whether the one case of a grid belongs to it: for what takes a device long. Says so if it does not.
static inline bool sample_takes_all_of(const char *what) {
    sample drawn = sample_from_environment();
    uint64_t grid = 0;
    for (const char *at = what; *at; at++) grid = grid * 31 + (unsigned char)*at;
    if (sample_takes(&drawn, grid, 0)) return true;
    printf("not drawn: %s (GRADSYNC_SAMPLE=%" PRIu64 " GRADSYNC_SEED=%" PRIu64 ")\n", what,
           drawn.share, drawn.seed);
    return false;
}

#endif
