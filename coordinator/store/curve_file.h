// The curves of a job on disk: DATA/jobs/ID/metrics.jsonl, an entry a line. Written by the thread of logs, read by that of reads.
//
// It never takes more than GS_CURVE_FILE_BYTES for long: at that size lines go until what is left is half of it, the same
// number of steps apart from each other; evaluations, and values that are no numbers, for themselves. What a death cut off in the middle of a line goes with the next append.
#ifndef COORDINATOR_STORE_CURVE_FILE_H
#define COORDINATOR_STORE_CURVE_FILE_H

#include <stddef.h>

#include "core/status.h"

#define GS_CURVE_FILE_BYTES ((size_t)1 << 20)

// `text`: whole lines. They are there or not: of what does not fit nothing stays. Makes the directory.
GS_NODISCARD gs_status gs_curve_file_append(const char *directory, const char *text, size_t bytes);

// The lines, in order; the text is the caller's (free()). NOT_FOUND: a job that never reported.
GS_NODISCARD gs_status gs_curve_file_read(char **text, size_t *bytes, const char *directory);

#endif
