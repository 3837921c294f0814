#include "tests/simulation/dice.h"

#include <math.h>

uint64_t dice_roll(sim_dice *dice) {  // splitmix64
    uint64_t z = dice->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

// Streams are one sequence, entered at places far apart: with the seed itself as the place, seed s + 1 would be seed s one roll later,
// and many of the two would live the same history.
sim_dice dice_of_seed(uint64_t seed) {
    sim_dice dice = {seed};
    dice.state = dice_roll(&dice);
    return dice;
}

int64_t dice_between(sim_dice *dice, int64_t least, int64_t most) {
    return least + (int64_t)(dice_roll(dice) % (uint64_t)(most - least + 1));
}

bool dice_chance(sim_dice *dice, double probability) {
    return (double)(dice_roll(dice) >> 11) * 0x1p-53 < probability;
}

int64_t dice_delay_ns(sim_dice *dice, int64_t typical_ns) {
    double u = (double)(dice_roll(dice) >> 11) * 0x1p-53;
    double spread = dice_chance(dice, 0.02) ? 30 : 2;
    return (int64_t)((double)typical_ns * (0.2 + spread * u * u));
}
