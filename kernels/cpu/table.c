// The table of one instruction set; compiled once for each.
#include "kernels/cpu/table.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/matmul.h"

#define FILL_SLOT(slot) .slot = GS_CPU(slot),

const gs_kernels GS_CPU(table) = {
    .name = "cpu/" GS_ISA_NAME, .matmul = gs_cpu_matmul, GS_CPU_LAUNCHERS(FILL_SLOT)};
