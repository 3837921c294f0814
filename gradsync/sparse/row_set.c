#include "gradsync/sparse/row_set.h"

#include <stdlib.h>
#include <string.h>

gs_status gs_row_set_init(gs_row_set *set, size_t num_rows, size_t capacity) {
    *set = (gs_row_set){.num_rows = num_rows, .capacity = capacity};
    set->rows = calloc(capacity ? capacity : 1, sizeof *set->rows);
    set->place_of = malloc((num_rows ? num_rows : 1) * sizeof *set->place_of);
    set->bits = calloc(num_rows / 64 + 1, sizeof *set->bits);
    if (!set->rows || !set->place_of || !set->bits) {
        gs_row_set_release(set);
        return gs_error(GS_RESOURCE_EXHAUSTED, "row set: out of memory");
    }
    memset(set->place_of, 0xff, num_rows * sizeof *set->place_of);
    return gs_ok();
}

void gs_row_set_release(gs_row_set *set) {
    if (!set) return;
    free(set->rows);
    free(set->place_of);
    free(set->bits);
    *set = (gs_row_set){0};
}

int32_t gs_row_set_add(gs_row_set *set, int32_t row) {
    int32_t place = set->place_of[row];
    if (place >= 0) return place;
    if (set->count == set->capacity) return -1;
    place = (int32_t)set->count++;
    set->rows[place] = row;
    set->place_of[row] = place;
    return place;
}

void gs_row_set_clear(gs_row_set *set) {
    for (size_t i = 0; i < set->count; i++) set->place_of[set->rows[i]] = -1;
    set->count = 0;
}

void gs_row_set_sort(gs_row_set *set) {
    for (size_t i = 0; i < set->count; i++)
        set->bits[set->rows[i] / 64] |= UINT64_C(1) << (set->rows[i] % 64);
    size_t place = 0;
    for (size_t word = 0; place < set->count; word++) {
        for (uint64_t left = set->bits[word]; left; left &= left - 1) {
            int32_t row = (int32_t)(word * 64) + __builtin_ctzll(left);
            set->rows[place] = row;
            set->place_of[row] = (int32_t)place++;
        }
        set->bits[word] = 0;
    }
}

size_t gs_row_set_lower_bound(const gs_row_set *set, int64_t row) {
    size_t first = 0, end = set->count;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        if (set->rows[middle] < row)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}
