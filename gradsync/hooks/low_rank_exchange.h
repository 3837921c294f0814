// PowerSGD's exchange of the matrices of one bucket (Vogels et al. 2019, algorithm 1):
//
//   M ≈ P·Qᵀ     phase 0: P = M·Q       ─▶ sum over ranks
//                phase 1: P orthonormal, Q = Mᵀ·P  ─▶ sum over ranks
//                finish:  M' = P·Qᵀ, the same on every rank
//
// M carries the scale of the result, so that sums are means already; that of P falls out with its
// norms. What is owed to the next step is M - P·(Mᵀ·P) with this rank's own product: over ranks it
// adds up to what the result lacks, and it is bounded, where the difference from the mean would
// grow without end.
//
// What lies here is launch tables, and where P and Q lie; which matrices there are, and what is
// kept of them, is the hook's.
#ifndef GRADSYNC_HOOKS_LOW_RANK_EXCHANGE_H
#define GRADSYNC_HOOKS_LOW_RANK_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/low_rank.h"
#include "core/status.h"
#include "gradsync/hooks/comm_hook.h"
#include "gradsync/hooks/low_rank_options.h"

// Tables for all buckets of any plan, in pinned memory. Each bucket takes a piece of them.
typedef struct gs_low_rank_tables {
    gs_device *device;  // borrowed
    gs_low_rank_item *items;
    gs_orthogonal_item *p_items, *q_items;
    double *row_squares;  // of errors
    size_t num_items, num_rows, items_taken, rows_taken;
} gs_low_rank_tables;

// Room for so many matrices with so many rows together.
GS_NODISCARD gs_status gs_low_rank_tables_init(gs_low_rank_tables *tables, size_t num_items,
                                               size_t num_rows, gs_device *device);
// For another plan.
void gs_low_rank_tables_clear(gs_low_rank_tables *tables);
void gs_low_rank_tables_release(gs_low_rank_tables *tables);

// Floating point on its way, for both hooks: in the wire dtype where the setup has one.
typedef struct gs_low_rank_wire {
    gs_dtype dtype;
    bool needs_memory;  // a GPU's library sends a copy of so many bits
} gs_low_rank_wire;
gs_low_rank_wire gs_low_rank_wire_of(const gs_hook_setup *setup);
// For elements on their way in the wire dtype; NULL where none is needed.
GS_NODISCARD gs_status gs_low_rank_wire_place(void **memory, gs_low_rank_wire wire,
                                              const gs_hook_plan *plan, size_t count);
// Sums `count` elements of the bucket's dtype in place, each times scale; nothing where there are
// none.
GS_NODISCARD gs_status gs_low_rank_wire_sum(gs_low_rank_wire wire, void *memory, void *data,
                                            size_t count, double scale,
                                            const gs_hook_bucket *bucket, gs_hook_work *work);

// A bucket that is not compressed, in place and in one phase. `memory`: for its gradients.
GS_NODISCARD gs_status gs_low_rank_send_plain(gs_low_rank_wire wire, void *memory,
                                              const gs_hook_bucket *bucket, gs_hook_work *work);
// Its reserved elements alone, in the bucket's dtype: counts are no gradients.
GS_NODISCARD gs_status gs_low_rank_send_reserved(const gs_hook_bucket *bucket, gs_hook_work *work);

typedef struct gs_low_rank_exchange {
    gs_low_rank_wire wire;  // the hook's to say
    // Of each matrix. The hook says where `grad`, `held` and `error` lie before phase 0, and fills
    // q with what it starts from.
    gs_low_rank_item *items;
    gs_orthogonal_item *p_items, *q_items;
    size_t num_items, p_count, q_count;
    void *p, *q, *local_q;  // of all of them, behind each other
    void *p_wire, *q_wire;
} gs_low_rank_exchange;

// Bucket memory for one matrix, whatever shares its bucket.
size_t gs_low_rank_exchange_bytes(gs_low_rank shape, gs_dtype dtype, gs_low_rank_wire wire);
// For a bucket of the plan: one matrix after the other, then memory for all of them.
GS_NODISCARD gs_status gs_low_rank_exchange_add(gs_low_rank_exchange *exchange,
                                                gs_low_rank_tables *tables, gs_low_rank shape);
GS_NODISCARD gs_status gs_low_rank_exchange_place(gs_low_rank_exchange *exchange,
                                                  const gs_hook_plan *plan, gs_dtype dtype);

// Phase 0, 1 and the end. Without matrices they do nothing.
GS_NODISCARD gs_status gs_low_rank_send_p(const gs_low_rank_exchange *exchange,
                                          const gs_low_rank_options *options,
                                          const gs_hook_bucket *bucket, gs_hook_work *work);
GS_NODISCARD gs_status gs_low_rank_send_q(const gs_low_rank_exchange *exchange,
                                          const gs_low_rank_options *options,
                                          const gs_hook_bucket *bucket, gs_hook_work *work);
// Of the errors that the last rebuild left, behind a wait for its stream; 0 before the first one of
// a plan.
double gs_low_rank_residual_squares(const gs_low_rank_exchange *exchange);
void gs_low_rank_rebuild(const gs_low_rank_exchange *exchange, const gs_hook_bucket *bucket);

#endif
