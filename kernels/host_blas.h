// Who decides about the BLAS of this process: it has one for everybody in it, the host's own
// products too.
//
// Left alone, it keeps the number of threads and the kernels that it chose when it was loaded.
// Products of a device then run on BLAS's own threads, inside the device's, so that their bits may
// depend on both numbers (gs_device_arithmetic says them).
#ifndef KERNELS_HOST_BLAS_H
#define KERNELS_HOST_BLAS_H

#include "core/abi.h"

GS_BEGIN_DECLS

// For a process that is the library's own, before its other threads begin: BLAS gets one thread, so
// that a device's threads are all there are; and where an OpenBLAS older than the processor fell
// back to kernels four times slower, it chooses again, for which OPENBLAS_CORETYPE is set in the
// environment. Warns when the environment asks for lesser kernels. Again: nothing. Never called by
// the library itself.
void gs_host_blas_own(void);

GS_END_DECLS

#endif
