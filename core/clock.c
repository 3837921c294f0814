#include "core/clock.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <time.h>

int64_t gs_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * GS_NS_PER_SEC + now.tv_nsec + 1;
}

double gs_seconds_of(int64_t ns) {
    return (double)ns / (double)GS_NS_PER_SEC;
}

double gs_seconds_since(int64_t begin_ns) {
    return gs_seconds_of(gs_now_ns() - begin_ns);
}

gs_deadline gs_deadline_in_ns(int64_t ns) {
    if (ns < 0) ns = 0;
    if (ns > GS_DEADLINE_MAX_NS) ns = GS_DEADLINE_MAX_NS;
    return (gs_deadline){gs_now_ns() + ns};
}

gs_deadline gs_deadline_in_ms(int64_t ms) {
    if (ms > GS_DEADLINE_MAX_NS / GS_NS_PER_MS) return gs_deadline_in_ns(GS_DEADLINE_MAX_NS);
    return gs_deadline_in_ns(ms * GS_NS_PER_MS);
}

gs_deadline gs_deadline_in_seconds(double seconds) {
    if (!(seconds > 0)) return gs_deadline_in_ns(0);
    if (seconds > (double)(GS_DEADLINE_MAX_NS / GS_NS_PER_SEC))
        return gs_deadline_in_ns(GS_DEADLINE_MAX_NS);
    return gs_deadline_in_ns((int64_t)(seconds * 1e9));
}

gs_deadline gs_deadline_min(gs_deadline a, gs_deadline b) {
    return a.at_ns < b.at_ns ? a : b;
}

bool gs_deadline_passed(gs_deadline deadline) {
    return gs_now_ns() >= deadline.at_ns;
}

int64_t gs_deadline_left_ns(gs_deadline deadline) {
    int64_t left_ns = deadline.at_ns - gs_now_ns();
    return left_ns > 0 ? left_ns : 0;
}

int gs_deadline_left_ms(gs_deadline deadline) {
    int64_t left_ms = (gs_deadline_left_ns(deadline) + GS_NS_PER_MS - 1) / GS_NS_PER_MS;
    return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

void gs_sleep_ns(int64_t ns) {
    if (ns <= 0) return;
    struct timespec left = {.tv_sec = (time_t)(ns / GS_NS_PER_SEC),
                            .tv_nsec = (long)(ns % GS_NS_PER_SEC)};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) continue;
}

int64_t gs_wall_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / GS_NS_PER_MS;
}

void gs_timestamp_format(char text[GS_TIMESTAMP_LEN], int64_t wall_ms) {
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm utc;
    char whole[GS_TIMESTAMP_LEN];
    gmtime_r(&seconds, &utc);
    strftime(whole, sizeof whole, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text, GS_TIMESTAMP_LEN, "%.19s.%03uZ", whole, (unsigned)(wall_ms % 1000) % 1000u);
}
