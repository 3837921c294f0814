#include "tests/support/carried.h"

#include <stdlib.h>

double *carried_find(const carried *self, uint64_t key) {
    for (size_t i = 0; i < self->num_rows; i++)
        if (self->rows[i].key == key) return self->rows[i].values;
    return NULL;
}

double *carried_at(carried *self, uint64_t key, size_t count) {
    double *values = carried_find(self, key);
    if (values) return values;
    carried_row *rows = realloc(self->rows, (self->num_rows + 1) * sizeof *rows);
    values = calloc(count + 1, sizeof *values);
    if (!rows || !values) abort();
    rows[self->num_rows++] = (carried_row){key, values};
    self->rows = rows;
    return values;
}

void carried_release(carried *self) {
    for (size_t i = 0; i < self->num_rows; i++) free(self->rows[i].values);
    free(self->rows);
    *self = (carried){0};
}
