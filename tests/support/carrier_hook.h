// A hook that sends coarse multiples of what a rank has, and carries the rest to the next step: residuals in two
// copies, as compression with error feedback has them. In two phases, of which the second sends. fp32 on CPUs.
#ifndef TESTS_SUPPORT_CARRIER_HOOK_H
#define TESTS_SUPPORT_CARRIER_HOOK_H

#include "gradsync/hooks/comm_hook.h"

#define CARRIER_QUANTUM (1.0f / 64)

extern const gs_comm_hook carrier_hook;

#endif
