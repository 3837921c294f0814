#include "core/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gs_thread {
    pthread_t handle;
    atomic_bool stopping;
    char name[16];
    void (*run)(void *ctx, const atomic_bool *stopping);
    void *ctx;
};

static void *enter_thread(void *arg) {
    gs_thread *thread = arg;
    pthread_setname_np(pthread_self(), thread->name);
    thread->run(thread->ctx, &thread->stopping);
    return NULL;
}

static const int of_crashes[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

gs_status gs_thread_start(gs_thread **out, const char *name,
                          void (*run)(void *ctx, const atomic_bool *stopping), void *ctx) {
    gs_thread *thread = calloc(1, sizeof *thread);
    if (!thread) return gs_error(GS_RESOURCE_EXHAUSTED, "thread %s: out of memory", name);
    snprintf(thread->name, sizeof thread->name, "%s", name);
    thread->run = run;
    thread->ctx = ctx;
    atomic_init(&thread->stopping, false);
    // Signals belong to the main thread: a new thread inherits the mask of the moment it is made. But for those of its own crash: where
    // they are blocked, the kernel ends the process without asking who watches for them.
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof of_crashes / sizeof *of_crashes; i++) sigdelset(&all, of_crashes[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread->handle, NULL, enter_thread, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        free(thread);
        return gs_error_from_errno(error, "thread %s", name);
    }
    *out = thread;
    return gs_ok();
}

void gs_thread_ask_to_stop(gs_thread *thread) {
    if (thread) atomic_store(&thread->stopping, true);
}

void gs_thread_stop(gs_thread *thread) {
    if (!thread) return;
    gs_thread_ask_to_stop(thread);
    pthread_join(thread->handle, NULL);
    free(thread);
}

void gs_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool gs_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, gs_deadline deadline) {
    struct timespec until = {.tv_sec = (time_t)(deadline.at_ns / GS_NS_PER_SEC),
                             .tv_nsec = (long)(deadline.at_ns % GS_NS_PER_SEC)};
    return pthread_cond_timedwait(cond, lock, &until) == 0;
}

struct gs_queue {
    pthread_mutex_t lock;
    pthread_cond_t not_full, not_empty;
    size_t max_items, count, first;
    bool closed;
    void *items[];
};

gs_queue *gs_queue_create(size_t max_items) {
    gs_queue *queue = calloc(1, sizeof *queue + max_items * sizeof queue->items[0]);
    if (!queue) return NULL;
    pthread_mutex_init(&queue->lock, NULL);
    gs_cond_init(&queue->not_full);
    gs_cond_init(&queue->not_empty);
    queue->max_items = max_items;
    return queue;
}

void gs_queue_destroy(gs_queue *queue) {
    if (!queue) return;
    pthread_mutex_destroy(&queue->lock);
    pthread_cond_destroy(&queue->not_full);
    pthread_cond_destroy(&queue->not_empty);
    free(queue);
}

bool gs_queue_push(gs_queue *queue, void *item, gs_deadline deadline) {
    pthread_mutex_lock(&queue->lock);
    while (queue->count == queue->max_items && !queue->closed) {
        if (!gs_cond_wait(&queue->not_full, &queue->lock, deadline)) break;
    }
    bool pushed = queue->count < queue->max_items && !queue->closed;
    if (pushed) {
        queue->items[(queue->first + queue->count++) % queue->max_items] = item;
        pthread_cond_signal(&queue->not_empty);
    }
    pthread_mutex_unlock(&queue->lock);
    return pushed;
}

bool gs_queue_pop(gs_queue *queue, void **item, gs_deadline deadline) {
    pthread_mutex_lock(&queue->lock);
    while (queue->count == 0 && !queue->closed) {
        if (!gs_cond_wait(&queue->not_empty, &queue->lock, deadline)) break;
    }
    bool popped = queue->count > 0;
    if (popped) {
        *item = queue->items[queue->first];
        queue->first = (queue->first + 1) % queue->max_items;
        queue->count--;
        pthread_cond_signal(&queue->not_full);
    }
    pthread_mutex_unlock(&queue->lock);
    return popped;
}

void gs_queue_close(gs_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->closed = true;
    pthread_cond_broadcast(&queue->not_empty);
    pthread_cond_broadcast(&queue->not_full);
    pthread_mutex_unlock(&queue->lock);
}

// cgroup v2 "max 100000" or "150000 100000"; v1 keeps quota and period in two files.
static double cgroup_quota_cores(void) {
    char text[64];
    double quota = 0, period = 0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file) {
        if (fgets(text, sizeof text, file) && sscanf(text, "%lf %lf", &quota, &period) != 2)
            quota = 0;
        fclose(file);
    } else if ((file = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re"))) {
        if (!fgets(text, sizeof text, file) || sscanf(text, "%lf", &quota) != 1) quota = 0;
        fclose(file);
        if ((file = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re"))) {
            if (!fgets(text, sizeof text, file) || sscanf(text, "%lf", &period) != 1) period = 0;
            fclose(file);
        }
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

int gs_usable_cores(void) {
    cpu_set_t mask;
    int cores = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
    double quota = cgroup_quota_cores();
    if (quota > 0 && quota < cores) cores = (int)(quota + 0.5);
    return cores > 0 ? cores : 1;
}
