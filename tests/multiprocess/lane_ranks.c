#include "tests/multiprocess/lane_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define RUN_SECONDS 60.0

gs_deadline lane_ranks_soon(void) {
    return gs_deadline_in_seconds(RUN_SECONDS);
}

void lane_ranks_run(const char *name, int world_size, const char *arg, gs_status *statuses) {
    gs_ranks *ranks;
    // For those that let themselves be held.
    const char *held[] = {"GRADSYNC_FAILPOINTS=comm.slice#0=sleep:400", NULL};
    const char *const *environment = strcmp(name, "held") == 0 ? held : NULL;
    assert_int_equal(gs_ranks_start(&ranks, name, world_size, arg, environment).code, GS_OK);
    gs_status status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(3 * RUN_SECONDS));
    gs_ranks_destroy(ranks);
    assert_string_equal(status.message, "");
}

void lane_ranks_expect_ok(const char *name, int world_size, const char *arg) {
    gs_status statuses[LANE_RANKS_MOST];
    lane_ranks_run(name, world_size, arg, statuses);
    for (int r = 0; r < world_size; r++) assert_string_equal(statuses[r].message, "");
}

void lane_ranks_expect_end(const char *name, int world_size, const char *arg, int except,
                           gs_code code, const char *text) {
    gs_status statuses[LANE_RANKS_MOST];
    lane_ranks_run(name, world_size, arg, statuses);
    for (int r = 0; r < world_size; r++) {
        if (r == except) continue;
        if (!strstr(statuses[r].message, text))
            print_error("rank %d: %s\n", r, statuses[r].message);
        assert_non_null(strstr(statuses[r].message, text));
        assert_int_equal(statuses[r].code, code);
    }
}
