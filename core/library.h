// A shared library that is looked up while the program runs, so that one binary works with and without it.
//
// Stays loaded until the process ends, whoever closes it: the libraries that are looked up this way keep
// threads and handlers of their own.
#ifndef CORE_LIBRARY_H
#define CORE_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

typedef struct gs_library gs_library;

typedef struct gs_library_options {
    const char *what;              // "NCCL", for messages
    const char *variable;          // environment: the file to load instead, for unusual places; or NULL
    const char *const *file_names;  // tried in order, the last is NULL
} gs_library_options;

typedef struct gs_library_symbol {
    const char *name;
    void *pointer;  // to the pointer to a function that is set
    bool optional;  // NULL where the library has none
} gs_library_symbol;

// UNAVAILABLE with the loader's words where there is none. The file that the variable names is the only
// one tried.
GS_NODISCARD gs_status gs_library_open(gs_library **out, const gs_library_options *options);
void gs_library_close(gs_library *library);

// Sets all pointers. UNIMPLEMENTED names the first that the library lacks; all are NULL then.
GS_NODISCARD gs_status gs_library_load(const gs_library *library, const gs_library_symbol *symbols,
                                       size_t num_symbols);
const char *gs_library_file(const gs_library *library);  // as it was asked for

#endif
