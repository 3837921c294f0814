// The kernel tables of this build, worst first, and the choice between them.
#ifndef KERNELS_CPU_TABLE_H
#define KERNELS_CPU_TABLE_H

#include "core/status.h"
#include "kernels/kernels.h"

extern const gs_kernels gs_cpu_table_baseline;
#if defined(__x86_64__)
extern const gs_kernels gs_cpu_table_avx2;
extern const gs_kernels gs_cpu_table_avx512;
#endif

#endif
