// What programs that serve the API do at their start, whatever else they are.
#ifndef API_STARTUP_H
#define API_STARTUP_H

#include "core/status.h"

// Connections are files, and the soft limit of most systems is meant for other programs: raised as far
// as it may be, with a warning below `num_wanted`.
void gs_startup_raise_file_limit(unsigned num_wanted);

// The addresses really used, as JSON. Whole or not at all: readers wait for the file to appear.
//   readonly, control  NULL: there is none
GS_NODISCARD gs_status gs_startup_write_port_file(const char *path, const char *http, const char *readonly,
                                                  const char *control);

#endif
