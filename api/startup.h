// What programs that serve the API do at their start, whatever else they are.
#ifndef API_STARTUP_H
#define API_STARTUP_H

#include "core/status.h"

// Connections are files, and the soft limit of most systems is meant for other programs: raised as far
// as it may be, with a warning below `num_wanted`.
void gs_startup_raise_file_limit(unsigned num_wanted);

// Keys and tokens of others are in this process: it leaves no core file, and no other process of its user may trace it or read its
// memory. Before the first of them is read.
void gs_startup_guard_memory(void);

// The addresses really used, as JSON. Whole or not at all: readers wait for the file to appear.
//   readonly, control  NULL: there is none
GS_NODISCARD gs_status gs_startup_write_port_file(const char *path, const char *http, const char *readonly,
                                                  const char *control);

#endif
