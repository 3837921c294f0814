// Time: monotonic nanoseconds for every decision, wall-clock only for people.
//
// A gs_deadline is an absolute point, so nested calls share one budget. There is no infinite one:
// the furthest is GS_DEADLINE_MAX_NS away.
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"

GS_BEGIN_DECLS

#define GS_NS_PER_SEC INT64_C(1000000000)
#define GS_NS_PER_MS INT64_C(1000000)
#define GS_DEADLINE_MAX_NS (INT64_C(86400) * 365 * GS_NS_PER_SEC)

typedef struct gs_deadline {
    int64_t at_ns;  // on the clock of gs_now_ns; {0} has passed
} gs_deadline;

int64_t gs_now_ns(void);  // monotonic, never 0
double gs_seconds_of(int64_t ns);
double gs_seconds_since(int64_t begin_ns);

gs_deadline gs_deadline_in_ns(int64_t ns);
gs_deadline gs_deadline_in_ms(int64_t ms);
gs_deadline gs_deadline_in_seconds(double seconds);
gs_deadline gs_deadline_min(gs_deadline a, gs_deadline b);
bool gs_deadline_passed(gs_deadline deadline);
int64_t gs_deadline_left_ns(gs_deadline deadline);  // 0 when passed
// What is left, rounded up to whole milliseconds and cut to INT_MAX: for poll and its like.
int gs_deadline_left_ms(gs_deadline deadline);

void gs_sleep_ns(int64_t ns);

// Wall clock, milliseconds since 1970: for display and file names, compared with nothing.
int64_t gs_wall_ms(void);

#define GS_TIMESTAMP_LEN 25  // "2026-03-01T12:00:00.000Z" and its NUL
void gs_timestamp_format(char text[GS_TIMESTAMP_LEN], int64_t wall_ms);

GS_END_DECLS

#endif
