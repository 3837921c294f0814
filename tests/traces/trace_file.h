// A record of a coordinator (coordinator/store/trace.h), read whole.
#ifndef TESTS_TRACES_TRACE_FILE_H
#define TESTS_TRACES_TRACE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "rpc/json/json.h"

typedef enum trace_kind {
    TRACE_OTHER = 0,
    TRACE_START,
    TRACE_ROW,  // of the store, before the start
    TRACE_TURN,
    TRACE_REQUEST,
    TRACE_GONE,
    TRACE_TICK,
    TRACE_DRAIN,
    TRACE_CLOSE,
    TRACE_WRITTEN,
    TRACE_FOUND,
    TRACE_MISSING,
    TRACE_DRAWN,
    TRACE_OUT
} trace_kind;

typedef struct trace_line {
    trace_kind kind;
    int turn;  // from 1; 0 is before the first
    bool used;
    gs_json *json;  // owned
} trace_line;

typedef struct trace_file {
    trace_line *lines;  // owned
    size_t count, reserved;
    int num_turns;
} trace_file;

// Life number `life` of a coordinator, from 0: a file may hold several, one behind the other. gzip may have packed it.
// `data_dir` stands where the record has its own directory. NOT_FOUND: there are fewer.
GS_NODISCARD gs_status trace_file_read(trace_file *file, const char *path, int life,
                                       const char *data_dir);
void trace_file_release(trace_file *file);

#endif
