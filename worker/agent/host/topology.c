#include "worker/agent/host/topology.h"

#include <hwloc.h>

#include "core/thread.h"

// Physical cores in the mask of this process; 0 when that cannot be found out.
static int count_physical_cores(void) {
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) < 0) return 0;
    int count = 0;
    hwloc_bitmap_t mask = hwloc_bitmap_alloc();
    if (mask && hwloc_topology_load(topology) == 0 &&
        hwloc_get_cpubind(topology, mask, HWLOC_CPUBIND_PROCESS) == 0) {
        hwloc_obj_t core = NULL;
        while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core))) {
            count += hwloc_bitmap_intersects(core->cpuset, mask) ? 1 : 0;
        }
    }
    hwloc_bitmap_free(mask);
    hwloc_topology_destroy(topology);
    return count;
}

gs_topology gs_topology_read(void) {
    gs_topology topology = {.usable_cores = gs_usable_cores(),
                            .physical_cores = count_physical_cores()};
    if (topology.physical_cores < 1 || topology.physical_cores > topology.usable_cores) {
        topology.physical_cores = topology.usable_cores;
    }
    return topology;
}

int gs_topology_threads_per_slot(const gs_topology *topology, int slots) {
    int threads = topology->physical_cores / (slots > 0 ? slots : 1);
    return threads > 0 ? threads : 1;
}
