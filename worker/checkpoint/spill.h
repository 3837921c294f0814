// Bytes that wait on the disk until they are written where they belong: a file beside the checkpoints that has no name, so that
// nothing of it is left whatever ends this process. Room is claimed when it is opened, and never memory.
#ifndef WORKER_CHECKPOINT_SPILL_H
#define WORKER_CHECKPOINT_SPILL_H

#include <stddef.h>

#include "core/directory.h"
#include "core/status.h"

typedef struct gs_spill gs_spill;

// RESOURCE_EXHAUSTED: the disk has no room for so many bytes.
GS_NODISCARD gs_status gs_spill_open(gs_spill **out, const gs_directory *directory, size_t bytes);
void gs_spill_close(gs_spill *spill);  // NULL is fine

// Of its bytes [first, first + bytes).
GS_NODISCARD gs_status gs_spill_write(gs_spill *spill, size_t first, const void *data, size_t bytes);
// DATA_LOSS: they are not there.
GS_NODISCARD gs_status gs_spill_read(const gs_spill *spill, size_t first, void *to, size_t bytes);

#endif
