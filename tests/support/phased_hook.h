// A hook that wraps another and sends tokens before it: a phase for each, in which every rank adds what it
// was told by the phase before. So a phase that ran too early, or with another bucket's token, is found out.
// The inner hook is handed a copy of the bucket, except in exact mode, whose parts lie in the slots.
#ifndef TESTS_SUPPORT_PHASED_HOOK_H
#define TESTS_SUPPORT_PHASED_HOOK_H

#include "gradsync/hooks/comm_hook.h"

// Option "tokens": 0 to 6, phases before those of the inner hook.
extern const gs_comm_hook phased_hook;

#endif
