// The product's store asks the process's clock how long coordinators have lived: here it is the world's, or a seed would live another
// history each time. Linked with --wrap=gs_now_ns.
#include "tests/simulation/world.h"

int64_t __real_gs_now_ns(void);  // NOLINT: the linker's name
int64_t __wrap_gs_now_ns(void);  // NOLINT

int64_t __wrap_gs_now_ns(void) { return world_of_clock ? world_of_clock->now_ns : __real_gs_now_ns(); }
