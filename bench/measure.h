// What every communication benchmark here does alike, ours and the peers': the owner writes its
// whole input, the collective runs, the owner reads its whole result. Without both, no byte would
// ever cross between cores. The time of one collective is that of the rank that came last: the
// least over ranks.
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#define MEASURE_MAX_ITERATIONS 2000

static const size_t measure_sizes[] = {1u << 10, 8u << 10, 64u << 10, 256u << 10,
                                       1u << 20, 4u << 20, 25u << 20, 100u << 20};
#define MEASURE_NUM_SIZES (sizeof measure_sizes / sizeof *measure_sizes)

static inline int64_t measure_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int measure_iterations(size_t bytes) {
    size_t iterations = ((size_t)64 << 20) / bytes;
    if (iterations < 4) iterations = 4;
    return (int)(iterations > MEASURE_MAX_ITERATIONS ? MEASURE_MAX_ITERATIONS : iterations);
}

// Ordinary stores of numbers near 1 in fp32 and in bf16; memset may bypass the cache.
static inline void measure_produce(void *data, size_t bytes, int iteration) {
    volatile uint32_t seed = 0x3f803f80u + (uint32_t)(iteration & 7);
    uint32_t value = seed, *words = (uint32_t *)data;
    for (size_t i = 0; i < bytes / sizeof *words; i++) words[i] = value;
    __asm__ volatile("" : : "r"(data) : "memory");
}

static inline uint64_t measure_consume(const void *data, size_t bytes) {
    const uint64_t *words = (const uint64_t *)data;
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / sizeof *words; i++) sum += words[i];
    __asm__ volatile("" : : "r"(sum));
    return sum;
}

static inline long measure_preemptions(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nivcsw;
}

static inline void measure_pin(int rank) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    int wanted = rank % CPU_COUNT(&allowed);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || wanted-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
}

static inline int measure_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Sorts `values`; q in [0, 1].
static inline double measure_quantile(double *values, int count, double q) {
    if (count == 0) return 0;
    qsort(values, (size_t)count, sizeof *values, measure_compare);
    return values[(int)(q * (count - 1) + 0.5)];
}

#endif
