// Runs ranks that use several lanes, and says how they have to end.
#ifndef TESTS_MULTIPROCESS_LANE_RANKS_H
#define TESTS_MULTIPROCESS_LANE_RANKS_H

#include "core/clock.h"
#include "tests/support/ranks.h"

#define LANE_RANKS_MOST 4

gs_deadline lane_ranks_soon(void);
void lane_ranks_run(const char *name, int world_size, const char *arg, gs_status *statuses);
void lane_ranks_expect_ok(const char *name, int world_size, const char *arg);
// All ranks but `except` end alike.
void lane_ranks_expect_end(const char *name, int world_size, const char *arg, int except,
                           gs_code code, const char *text);

#endif
