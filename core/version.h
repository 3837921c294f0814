// Which library this is. The numbers stand here alone: CMake reads them for the package, the shared library's
// name and everything that says a version.
#ifndef CORE_VERSION_H
#define CORE_VERSION_H

#include "core/abi.h"

GS_BEGIN_DECLS

// Of the headers that a program was compiled with.
#define GS_VERSION_MAJOR 0
#define GS_VERSION_MINOR 1
#define GS_VERSION_PATCH 0
// Raised when a program that was linked with the shared library would not run with the next one; the number in
// libgradsync.so.N (docs/embedding.md, "Versions").
#define GS_ABI_VERSION 1

// Of the library that runs: "0.1.0", and its GS_ABI_VERSION.
const char *gs_version(void);
int gs_abi_version(void);

GS_END_DECLS

#endif
