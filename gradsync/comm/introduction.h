// What ranks tell each other first when they make a communicator, and whether they mean the same one.
#ifndef GRADSYNC_COMM_INTRODUCTION_H
#define GRADSYNC_COMM_INTRODUCTION_H

#include "core/status.h"
#include "gradsync/comm/comm_options.h"
#include "gradsync/comm/stages.h"

// The backend that the options ask for, by name; "auto" when they don't.
const char *gs_introduction_backend(const gs_comm_options *options);

// What it takes to meet at all: a world, an exchange, a list of ranks, a group's name. Who lacks that cannot
// tell the others.
GS_NODISCARD gs_status gs_introduction_check(const gs_comm_options *options);

// The first stage. `mine` is how this rank fares so far.
// FAILED_PRECONDITION names the first rank that differs from rank 0, and in what.
GS_NODISCARD gs_status gs_introduce(gs_stages *stages, const gs_comm_options *options, gs_status mine);

#endif
