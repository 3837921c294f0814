#include "coordinator/observe/reports/series.h"

#include <math.h>
#include <stdlib.h>

void gs_series_release(gs_series *series) {
    free(series->points);
    *series = (gs_series){0};
}

size_t gs_series_thin(gs_series_point *out, const gs_series_point *points, size_t count,
                      size_t max_points) {
    if (max_points < 2) max_points = 2;
    if (count <= max_points) {
        for (size_t i = 0; i < count; i++) out[i] = points[i];
        return count;
    }
    gs_series_point last = points[count - 1];
    size_t written = 0;
    out[written++] = points[0];
    // Two points for each stretch of the steps between, so that what was thinned before is not thinned again; what is
    // written never overtakes what is read.
    size_t stretches = (max_points - 2) / 2, begin = 1;
    double from = (double)points[0].step, stretch = ((double)last.step - from) / (double)(stretches ? stretches : 1);
    for (size_t i = 0; i < stretches; i++) {
        size_t end = begin, low = begin, high = begin;
        while (end < count - 1 && (i + 1 == stretches || (double)points[end].step < from + (double)(i + 1) * stretch)) end++;
        for (size_t k = begin; k < end; k++) {
            // A value that is no number is a peak: the moment that users look for.
            if (isnan(points[k].value)) high = k;
            else if (!isnan(points[high].value) && points[k].value > points[high].value) high = k;
            if (points[k].value < points[low].value) low = k;
        }
        gs_series_point first = points[low < high ? low : high];
        gs_series_point second = points[low < high ? high : low];
        if (end > begin) out[written++] = first;
        if (end > begin && low != high) out[written++] = second;
        begin = end;
    }
    out[written++] = last;
    return written;
}

void gs_series_add(gs_series *series, int64_t step, double value) {
    while (series->count > 0 && series->points[series->count - 1].step >= step) series->count--;
    if (series->count == series->reserved) {
        size_t reserved = series->reserved ? series->reserved * 2 : 64;
        if (series->reserved >= GS_SERIES_MAX_POINTS) {
            series->count = gs_series_thin(series->points, series->points, series->count,
                                           GS_SERIES_MAX_POINTS / 2);
        } else {
            gs_series_point *points = realloc(series->points, reserved * sizeof *points);
            if (!points) return;
            series->points = points;
            series->reserved = reserved;
        }
    }
    series->points[series->count++] = (gs_series_point){step, value};
}
