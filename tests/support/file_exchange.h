// An exchange through files of a directory, for ranks that come and go: a process that was not
// there when the others were started takes part like any other.
#ifndef TESTS_SUPPORT_FILE_EXCHANGE_H
#define TESTS_SUPPORT_FILE_EXCHANGE_H

#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"

typedef struct file_exchange {
    const char *dir;
    uint32_t generation;
    int rank;
} file_exchange;

// Fits gs_comm_options.exchange; ctx is a file_exchange.
gs_status file_exchange_run(void *ctx, const char *tag, const int *ranks, int num_ranks,
                            const void *mine, size_t bytes, void *all, gs_deadline deadline);

#endif
