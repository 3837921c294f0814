// The deadline of whatever a test waits for and expects to come: far beyond what it takes, so that
// a loaded machine under a sanitizer still makes it.
#ifndef TESTS_SUPPORT_SOON_H
#define TESTS_SUPPORT_SOON_H

#include "core/clock.h"

static inline gs_deadline soon(void) {
    return gs_deadline_in_seconds(90);
}

#endif
