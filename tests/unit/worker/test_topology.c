#include "worker/agent/host/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void this_host_has_cores(void **state) {
    (void)state;
    gs_topology topology = gs_topology_read();
    assert_true(topology.usable_cores >= 1);
    assert_in_range(topology.physical_cores, 1, topology.usable_cores);
}

static void slots_share_physical_cores_evenly(void **state) {
    (void)state;
    gs_topology topology = {.usable_cores = 16, .physical_cores = 8};
    assert_int_equal(gs_topology_threads_per_slot(&topology, 1), 8);
    assert_int_equal(gs_topology_threads_per_slot(&topology, 3), 2);
    assert_int_equal(gs_topology_threads_per_slot(&topology, 100), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_host_has_cores),
        cmocka_unit_test(slots_share_physical_cores_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
