// What a serial reference keeps from step to step: numbers by a key of its own, zeros at first.
#ifndef TESTS_SUPPORT_CARRIED_H
#define TESTS_SUPPORT_CARRIED_H

#include <stddef.h>
#include <stdint.h>

typedef struct carried_row {
    uint64_t key;
    double *values;
} carried_row;

typedef struct carried {
    carried_row *rows;
    size_t num_rows;
} carried;

double *carried_find(const carried *self, uint64_t key);  // NULL: none yet
double *carried_at(carried *self, uint64_t key,
                   size_t count);  // `count` is always the same for a key
void carried_release(carried *self);
// Of a rank's share of a parameter.
static inline uint64_t carried_key(size_t param, int rank) {
    return (uint64_t)param << 8 | (uint64_t)rank;
}

#endif
