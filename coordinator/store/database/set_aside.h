// A database that was found damaged: it is kept as it was, and nobody begins anew beside it without being told to.
#ifndef COORDINATOR_STORE_DATABASE_SET_ASIDE_H
#define COORDINATOR_STORE_DATABASE_SET_ASIDE_H

#include "core/status.h"

// Renames the database and its log to PATH.damaged-TIME…; `status` with the name, or with what is in the way.
GS_NODISCARD gs_status gs_set_aside(const char *path, gs_status status);
// DATA_LOSS when one was set aside and nothing is in its place: an automatic start would begin with nothing, know no
// job, and hide that there is something to be rescued. So for one of which the log alone was set aside; a log that was
// left in its place is moved behind its database.
GS_NODISCARD gs_status gs_set_aside_check(const char *path);

#endif
