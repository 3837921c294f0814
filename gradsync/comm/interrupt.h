// What lets a host end a wait: a callback that waits ask now and then (gs_comm_options.interrupt).
#ifndef GRADSYNC_COMM_INTERRUPT_H
#define GRADSYNC_COMM_INTERRUPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/clock.h"

GS_BEGIN_DECLS

#define GS_INTERRUPT_NS (INT64_C(100) * GS_NS_PER_MS)

typedef struct gs_interrupt {
    int (*ask)(void *ctx);  // NULL: nobody is asked
    void *ctx;
    int64_t asked_ns;  // last, in whichever wait
} gs_interrupt;

// Where a wait looks at its deadline: whether it is to end with CANCELLED. Asks when the last time
// is GS_INTERRUPT_NS ago.
static inline bool gs_interrupt_check(gs_interrupt *interrupt, int64_t now_ns) {
    if (!interrupt->ask || now_ns - interrupt->asked_ns < GS_INTERRUPT_NS) return false;
    interrupt->asked_ns = now_ns;
    return interrupt->ask(interrupt->ctx) != 0;
}

GS_END_DECLS

#endif
