// What an all-reduce between hosts takes: a communicator of one rank for each worker that is asked, sums of some sizes, each compared
// with what has to come out, then timed.
#ifndef WORKER_PROBES_SUM_PROBE_H
#define WORKER_PROBES_SUM_PROBE_H

#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm_options.h"

#define GS_SUM_NUM_SIZES 8
extern const size_t gs_sum_sizes[GS_SUM_NUM_SIZES];  // bytes of each rank, ascending

typedef struct gs_sum_options {  // borrowed for the call
    int rank, world_size;
    uint32_t generation;
    gs_exchange exchange;
    void *exchange_ctx;
    const char *data_address;
    const char *backend;  // as gs_comm_options; NULL: what a job's ranks would take
    int (*interrupt)(void *ctx);  // as gs_comm_options
    void *interrupt_ctx;
} gs_sum_options;

typedef struct gs_sum_size {
    size_t bytes;
    double seconds;      // of one all-reduce, on the rank that took longest
    uint64_t num_wrong;  // elements, of all ranks
} gs_sum_size;

typedef struct gs_sum_facts {
    char backend[16], reason[200];
    int num_sizes;  // those that would have taken too long are left out
    gs_sum_size sizes[GS_SUM_NUM_SIZES];
} gs_sum_facts;

// On all ranks at once; the same facts on all, but for the reason. Takes most_seconds at most where the link keeps what it gave for the
// size before.
GS_NODISCARD gs_status gs_sum_probe_run(gs_sum_facts *out, const gs_sum_options *options, double most_seconds, gs_deadline deadline);

#endif
