// A backend made of communicators, as a program of one's own may bring it: two groups of ranks, joined by a
// third between their first ranks. It sees the library through what is installed, and nothing else.
#ifndef TESTS_EMBEDDED_COMPOSITE_H
#define TESTS_EMBEDDED_COMPOSITE_H

#include "gradsync/extras.h"
#include "gradsync/gradsync.h"

// For own_backend_ctx of the options.
typedef struct composite_options {
    int split;  // the first rank of the second group
    gs_helper_thread helper;
    struct composite_options *inside;  // NULL: the groups are not made of groups
} composite_options;

extern const gs_comm_backend composite_backend;

#endif
