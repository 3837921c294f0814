// The Step reports of simulated trainers: made by the product's telemetry once, so that they have its members and
// its size, then told again with other numbers, which costs little.
#ifndef BENCH_CONTROL_REPORTS_H
#define BENCH_CONTROL_REPORTS_H

#include <stddef.h>
#include <stdint.h>

typedef struct control_reports control_reports;

// Where a rank stands.
typedef struct control_place {
    int64_t generation, rank, step;
    int64_t told_step;  // its last report told of; the history goes on from there
} control_place;

control_reports *control_reports_create(void);  // NULL: out of memory
void control_reports_destroy(control_reports *reports);  // NULL is fine
// The record; there until the next one is made.
const void *control_reports_make(control_reports *reports, size_t *bytes, const control_place *place);

#endif
