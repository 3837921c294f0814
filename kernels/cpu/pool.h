// Helper threads of one CPU device: they take items of one job at a time beside the calling thread.
//
// A helper joins a job when it is awake in time; the caller never waits for one that has not
// joined, so more threads than cores cost little. Helpers spin briefly between jobs, then sleep.
#ifndef KERNELS_CPU_POOL_H
#define KERNELS_CPU_POOL_H

#include <stddef.h>

#include "core/status.h"

typedef struct gs_cpu_pool gs_cpu_pool;

//   num_threads  with the caller; 1 starts none
GS_NODISCARD gs_status gs_cpu_pool_create(gs_cpu_pool **out, int num_threads);
void gs_cpu_pool_destroy(gs_cpu_pool *pool); // NULL is fine; not during a job

// Runs body(ctx, i) for every i in [0, num_items) and returns when all are done. From a thread that
// finds the pool busy (another thread's job, or a body that calls it again) it runs them itself.
void gs_cpu_pool_run(gs_cpu_pool *pool, size_t num_items, void (*body)(void *ctx, size_t item),
                     void *ctx);

#endif
