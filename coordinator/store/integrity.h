// Whether the database is sound, found out behind readiness: to read all of it takes seconds when it holds the jobs of
// years.
#ifndef COORDINATOR_STORE_INTEGRITY_H
#define COORDINATOR_STORE_INTEGRITY_H

#include "core/status.h"

typedef struct gs_integrity gs_integrity;

// `wake_fd` (an eventfd, borrowed) is written when it is known. Of a file that was checked when it was opened nothing
// is left to do.
GS_NODISCARD gs_status gs_integrity_start(gs_integrity **out, const char *path, int wake_fd);
// DATA_LOSS: it is damaged. Ok: it is sound, or it is not known yet.
gs_status gs_integrity_found(const gs_integrity *integrity);
void gs_integrity_stop(gs_integrity *integrity);  // NULL is fine

#endif
