// Named threads that start ready and stop joined, and the bounded queue between them.
#ifndef CORE_THREAD_H
#define CORE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stddef.h>

#include "core/clock.h"
#include "core/status.h"

typedef struct gs_thread gs_thread;

// Returns once the thread runs. The thread sees `*stopping` turn true when gs_thread_stop is called
// and then returns; whoever makes it wait must also wake it. Signals are blocked in it.
//   name  at most 15 characters; shown by ps and debuggers
GS_NODISCARD gs_status gs_thread_start(gs_thread **out, const char *name,
                                       void (*run)(void *ctx, const atomic_bool *stopping),
                                       void *ctx);
void gs_thread_ask_to_stop(gs_thread *thread);  // sets *stopping, does not wait; NULL is fine
void gs_thread_stop(gs_thread *thread);         // asks, joins, frees; NULL is fine

// A bounded queue of pointers between any threads. Full and empty wait up to a deadline.
typedef struct gs_queue gs_queue;
gs_queue *gs_queue_create(size_t max_items);  // NULL: out of memory
void gs_queue_destroy(gs_queue *queue);       // items left inside are the caller's
bool gs_queue_push(gs_queue *queue, void *item, gs_deadline deadline);  // false: full or closed
bool gs_queue_pop(gs_queue *queue, void **item, gs_deadline deadline);  // false: empty
void gs_queue_close(gs_queue *queue);  // push fails from now on; pop drains, then fails at once

// A condition variable whose timed waits are on the monotonic clock.
void gs_cond_init(pthread_cond_t *cond);
// False when the deadline passed first.
bool gs_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, gs_deadline deadline);

// Cores this process may really use: affinity mask and cgroup quota, at least 1.
int gs_usable_cores(void);

#endif
