// The fp32 multiply-add peak of the processor: what a core does when nothing but FMAs keeps it
// busy. The loops are assembly with more independent chains than latency × ports can hide; in C the
// compiler merges chains that start from equal values, and the "peak" is then anything.
#ifndef BENCH_FMA_PEAK_H
#define BENCH_FMA_PEAK_H

#include <stdint.h>

// "AVX-512", "AVX2"; NULL where no loop is known, which measures 0 flops.
const char *fma_peak_name(void);

// Runs for less than a millisecond or two in the calling thread; returns the floating-point
// operations done, two for each multiply-add.
double fma_peak_run(void);

#endif
