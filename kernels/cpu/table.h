// The kernel tables of this build, worst first, and the choice between them.
#ifndef KERNELS_CPU_TABLE_H
#define KERNELS_CPU_TABLE_H

#include "core/status.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

// The half tables are bf16, fp16.
extern const gs_kernels gs_cpu_table_baseline;
extern const gs_half_kernels gs_cpu_half_tables_baseline[2];
#if defined(__x86_64__)
extern const gs_kernels gs_cpu_table_avx2;
extern const gs_half_kernels gs_cpu_half_tables_avx2[2];
extern const gs_kernels gs_cpu_table_avx512;
extern const gs_half_kernels gs_cpu_half_tables_avx512[2];
#endif

#endif
