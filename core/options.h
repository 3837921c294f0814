// Options of programs that were compiled with older or newer headers than the library.
//
// An option struct grows at its end alone, and zero is the default. A public function that takes
// one is inline: it passes the size that its header knew to NAME_sized, which takes what both know.
// So a program goes on with a newer library, and with an older one as long as it asks for nothing
// that is not there. A struct that ended with padding would hide a new field from this: such
// padding has a name (tests/headers.cmake).
#ifndef CORE_OPTIONS_H
#define CORE_OPTIONS_H

#include <stddef.h>

#include "core/status.h"

// *mine = what of *theirs is known here, zeros behind it. INVALID_ARGUMENT, with this library's
// version, when something is set that is not known. `name` of the struct.
GS_NODISCARD gs_status gs_options_take(void *mine, size_t mine_bytes, const void *theirs,
                                       size_t theirs_bytes, const char *name);

#endif
