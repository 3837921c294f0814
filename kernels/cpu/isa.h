// One source, three instruction sets: CMake compiles kernels/cpu/*.c once for each, with GS_ISA set
// to baseline, avx2 or avx512, and GS_CPU(name) gives every launcher its own symbol.
//
// What makes the three agree to the bit: plain C on fixed lanes (lanes.h), elementwise loops
// without reassociation, -ffp-contract=off, and our own exp and log (math.h); never libm in a loop.
#ifndef KERNELS_CPU_ISA_H
#define KERNELS_CPU_ISA_H

#include "kernels/kernels.h"
#include "kernels/slots.h"

#define GS_CPU_PASTE_AGAIN(name, isa) gs_cpu_##name##_##isa
#define GS_CPU_PASTE(name, isa) GS_CPU_PASTE_AGAIN(name, isa)
#define GS_CPU(name) GS_CPU_PASTE(name, GS_ISA)

#define GS_CPU_QUOTE_AGAIN(isa) #isa
#define GS_CPU_QUOTE(isa) GS_CPU_QUOTE_AGAIN(isa)
#define GS_ISA_NAME GS_CPU_QUOTE(GS_ISA)

// Every slot of gs_kernels that is compiled for each instruction set: all but matmul, which is
// BLAS.
#define GS_CPU_LAUNCHERS(X) GS_KERNEL_SLOTS(X)

// A prototype with exactly the type of the slot, so that the two cannot drift apart.
#define GS_CPU_DECLARE(slot) __typeof__(*((gs_kernels *)0)->slot) GS_CPU(slot);
GS_CPU_LAUNCHERS(GS_CPU_DECLARE)

// For loops over elements whose output may be exactly one of the inputs, but never a shifted one.
#ifdef __clang__
#define GS_ELEMENTWISE  // it asks at run time
#else
#define GS_ELEMENTWISE _Pragma("GCC ivdep")
#endif

#define GS_INLINE static inline __attribute__((always_inline))

#endif
