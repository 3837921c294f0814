// A set of row numbers and the place of each: what a row-sparse gradient of [0, num_rows) holds.
//
// A table with a place for each row, so that a look-up costs one read whatever the set; that is 4
// bytes beside a parameter's row. Plain data; the owner's thread only.
#ifndef GRADSYNC_SPARSE_ROW_SET_H
#define GRADSYNC_SPARSE_ROW_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct gs_row_set {
    size_t num_rows, capacity;
    size_t count;
    int32_t *rows;      // the members by place; owned
    int32_t *place_of;  // row → place, -1: not in the set; owned
    uint64_t *bits;     // scratch of sort: all zero between calls; owned
} gs_row_set;

// num_rows at most INT32_MAX; capacity at most num_rows.
GS_NODISCARD gs_status gs_row_set_init(gs_row_set *set, size_t num_rows, size_t capacity);
void gs_row_set_release(gs_row_set *set);

// The place of `row` (of [0, num_rows)), which is put last when it is new; -1 when the set is full.
int32_t gs_row_set_add(gs_row_set *set, int32_t row);
void gs_row_set_clear(gs_row_set *set);
// Gives the members places in ascending order.
void gs_row_set_sort(gs_row_set *set);
// The place of the first member that is not below `row`, in a sorted set.
size_t gs_row_set_lower_bound(const gs_row_set *set, int64_t row);

#endif
