// A curve of bounded size: (step, value) points, thinned so that peaks and valleys stay. Loop thread.
#ifndef COORDINATOR_OBSERVE_REPORTS_SERIES_H
#define COORDINATOR_OBSERVE_REPORTS_SERIES_H

#include <stddef.h>
#include <stdint.h>

#define GS_SERIES_MAX_POINTS 4096

typedef struct gs_series_point {
    int64_t step;
    double value;
} gs_series_point;

typedef struct gs_series {
    gs_series_point *points;  // owned
    size_t count, reserved;
} gs_series;  // {0} is empty

void gs_series_release(gs_series *series);
// Steps at or behind the last one cut the curve back first: redone steps replace what was drawn.
void gs_series_add(gs_series *series, int64_t step, double value);

// At most max_points (at least 2) of `points`, from the smallest and largest of each stretch, in order of steps;
// the first and the last stay. Returns how many were written to `out` (which may be `points`).
size_t gs_series_thin(gs_series_point *out, const gs_series_point *points, size_t count,
                      size_t max_points);

#endif
