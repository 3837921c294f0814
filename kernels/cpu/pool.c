#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/thread.h"

// How often a helper looks for the next job before it sleeps: some 20 µs, about the time between
// two kernels of a step.
#define SPINS 400
#define SPINS_BEFORE_YIELD 1000

// The gate is one word: jobs counted in the high half, OPEN while helpers may join, and the number
// of helpers inside. Opening publishes the job's fields, leaving publishes the helper's results.
#define OPEN UINT64_C(0x80000000)
#define INSIDE UINT64_C(0x7fffffff)
#define ONE_JOB UINT64_C(0x100000000)

struct gs_cpu_pool {
    int num_helpers;
    gs_thread **helpers; // owns
    atomic_flag busy;
    _Alignas(64) atomic_uint_fast64_t gate;
    // The job: written by the caller while the gate is closed and empty.
    void (*body)(void *ctx, size_t item);
    void *ctx;
    size_t num_items;
    _Alignas(64) atomic_size_t next_item;
    _Alignas(64) atomic_int num_asleep;
    atomic_bool stopping;
    pthread_mutex_t lock; // of going to sleep and waking
    pthread_cond_t opened;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void take_items(gs_cpu_pool *pool) {
    for (;;) {
        size_t item = atomic_fetch_add_explicit(&pool->next_item, 1, memory_order_relaxed);
        if (item >= pool->num_items) return;
        pool->body(pool->ctx, item);
    }
}

static bool join_job(gs_cpu_pool *pool, uint64_t gate) {
    return atomic_compare_exchange_strong_explicit(&pool->gate, &gate, gate + 1,
                                                   memory_order_acq_rel, memory_order_relaxed);
}

// Until a job is open that this helper has not been in, or the pool stops.
static uint64_t await_job(gs_cpu_pool *pool, uint64_t last_job) {
    uint64_t gate = 0;
    for (int spin = 0; spin < SPINS; spin++) {
        gate = atomic_load(&pool->gate);
        if (((gate & OPEN) && gate / ONE_JOB != last_job) || atomic_load(&pool->stopping)) {
            return gate;
        }
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->num_asleep, 1);
    for (;;) {
        gate = atomic_load(&pool->gate);
        if (((gate & OPEN) && gate / ONE_JOB != last_job) || atomic_load(&pool->stopping)) break;
        // Without a deadline: the owner wakes it for each job and for the end.
        pthread_cond_wait(&pool->opened, &pool->lock);
    }
    atomic_fetch_sub(&pool->num_asleep, 1);
    pthread_mutex_unlock(&pool->lock);
    return gate;
}

static void help(void *arg, const atomic_bool *stopping) {
    gs_cpu_pool *pool = arg;
    uint64_t last_job = 0;
    while (!atomic_load(stopping)) {
        uint64_t gate = await_job(pool, last_job);
        if (!(gate & OPEN) || gate / ONE_JOB == last_job || !join_job(pool, gate)) continue;
        last_job = gate / ONE_JOB;
        take_items(pool);
        atomic_fetch_sub_explicit(&pool->gate, 1, memory_order_release);
    }
}

gs_status gs_cpu_pool_create(gs_cpu_pool **out, int num_threads) {
    size_t bytes = (sizeof(gs_cpu_pool) + 63) / 64 * 64;
    gs_cpu_pool *pool = aligned_alloc(64, bytes);
    if (!pool) return gs_error(GS_RESOURCE_EXHAUSTED, "compute threads: out of memory");
    *pool = (gs_cpu_pool){.busy = ATOMIC_FLAG_INIT};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->opened, NULL);
    gs_status status = gs_ok();
    pool->helpers = calloc((size_t)num_threads, sizeof *pool->helpers);
    if (!pool->helpers) status = gs_error(GS_RESOURCE_EXHAUSTED, "compute threads: out of memory");
    for (int i = 0; i < num_threads - 1 && !status.code; i++) {
        char name[32];
        snprintf(name, sizeof name, "gs-compute-%d", i + 1);
        status = gs_thread_start(&pool->helpers[i], name, help, pool);
        if (!status.code) pool->num_helpers++;
    }
    if (status.code) {
        gs_cpu_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return gs_ok();
}

void gs_cpu_pool_destroy(gs_cpu_pool *pool) {
    if (!pool) return;
    for (int i = 0; i < pool->num_helpers; i++) gs_thread_ask_to_stop(pool->helpers[i]);
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stopping, true);
    pthread_cond_broadcast(&pool->opened);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->num_helpers; i++) gs_thread_stop(pool->helpers[i]);
    free(pool->helpers);
    pthread_cond_destroy(&pool->opened);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static void open_job(gs_cpu_pool *pool) {
    uint64_t jobs = atomic_load_explicit(&pool->gate, memory_order_relaxed) / ONE_JOB + 1;
    // Sequentially consistent against num_asleep: a helper that goes to sleep sees the job or is
    // seen.
    atomic_store(&pool->gate, jobs * ONE_JOB | OPEN);
    if (atomic_load(&pool->num_asleep) == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->opened);
    pthread_mutex_unlock(&pool->lock);
}

// Helpers inside are in the middle of an item, so this lasts no longer than one item.
static void close_job(gs_cpu_pool *pool) {
    atomic_fetch_and(&pool->gate, ~OPEN);
    for (int spin = 0; atomic_load_explicit(&pool->gate, memory_order_acquire) & INSIDE; spin++) {
        if (spin < SPINS_BEFORE_YIELD) {
            relax();
        } else {
            sched_yield();
        }
    }
}

void gs_cpu_pool_run(gs_cpu_pool *pool, size_t num_items, void (*body)(void *ctx, size_t item),
                     void *ctx) {
    if (num_items < 2 || pool->num_helpers == 0 || atomic_flag_test_and_set(&pool->busy)) {
        for (size_t item = 0; item < num_items; item++) body(ctx, item);
        return;
    }
    pool->body = body;
    pool->ctx = ctx;
    pool->num_items = num_items;
    atomic_store_explicit(&pool->next_item, 0, memory_order_relaxed);
    open_job(pool);
    take_items(pool);
    close_job(pool);
    atomic_flag_clear(&pool->busy);
}
