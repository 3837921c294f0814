// Chance of a history: all of it comes from one seed.
#ifndef TESTS_SIMULATION_DICE_H
#define TESTS_SIMULATION_DICE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sim_dice {
    uint64_t state;
} sim_dice;

sim_dice dice_of_seed(uint64_t seed);  // dice of neighbouring seeds have nothing in common
uint64_t dice_roll(sim_dice *dice);                              // 64 bits
int64_t dice_between(sim_dice *dice, int64_t least, int64_t most);  // both may come
bool dice_chance(sim_dice *dice, double probability);
// Of the middle of a long-tailed spread: mostly near `typical`, now and then many times that.
int64_t dice_delay_ns(sim_dice *dice, int64_t typical_ns);

#endif
