// What a gs_reduction must keep to, the same for every device. Internal to kernels/.
#ifndef KERNELS_REDUCTION_H
#define KERNELS_REDUCTION_H

#include "core/status.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// INVALID_ARGUMENT says what is wrong. *depth: how many values the merges keep at once, at most.
GS_NODISCARD gs_status gs_reduction_check(int *depth, const gs_reduction *reduction);

#ifdef __cplusplus
}
#endif

#endif
