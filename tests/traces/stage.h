// The world of a coordinator that lives through a record once more: its clock, its random numbers, its server, its
// writer and its checkpoints are the record's. They take the place of the real ones when the test is linked
// (CMakeLists.txt), so the coordinator is the one that ships.
//
// The store is a real one, in a transaction that is never committed. Writes are done when they are given, and come back when
// they did in the record.
#ifndef TESTS_TRACES_STAGE_H
#define TESTS_TRACES_STAGE_H

#include "core/status.h"
#include "tests/traces/outputs.h"
#include "tests/traces/trace_file.h"

typedef struct stage_result {
    outputs found;       // what left the coordinator this time
    // For a record that is put in order: what each write did, by the line that says it came back. Owned.
    char **write_names;  // of the record's lines; NULL: that line is of no write
    struct {
        int turn;
        char *name;
    } *new_writes;  // of which the record does not know; owned
    size_t num_new_writes;
    size_t num_unmatched;  // writes that came back in the record and were not given this time
} stage_result;

// Plays `file`, in the empty directory `data_dir`, from its start to its end.
GS_NODISCARD gs_status stage_play(stage_result *result, trace_file *file, const char *data_dir);
void stage_result_release(stage_result *result, const trace_file *file);

#endif
