// Linked into programs whose BLAS is the library's, as a trainer's is: with one thread and with kernels that fit the
// processor results and times do not depend on the machine's environment.
#include "kernels/host_blas.h"

__attribute__((constructor)) static void own_blas(void) {
    gs_host_blas_own();
}
