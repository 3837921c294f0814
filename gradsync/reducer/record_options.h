// What a reducer says about itself and its steps: how much goes to the log, and what can be read of it.
//
// Kept always; said only when asked: `info` logs the construction, the record after 10, 20, 50, 100, 500,
// 800 and 1000 sampled steps, and the first error; `detail` adds a line for each sampled step with the
// parameters that this rank did not use. Sampled are the first 10 steps, then every k-th. Times of single
// parameters are taken in sampled steps from `info` on. Lines go to the host's log sink.
//
// Threads: the record is the reducer's: it is read where the reducer may be called.
#ifndef GRADSYNC_REDUCER_RECORD_OPTIONS_H
#define GRADSYNC_REDUCER_RECORD_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/strbuf.h"

GS_BEGIN_DECLS

typedef enum gs_record_level {
    GS_RECORD_UNSET = 0,  // what GRADSYNC_REDUCER_LOG says: off, info or detail; without it off
    GS_RECORD_OFF,
    GS_RECORD_INFO,
    GS_RECORD_DETAIL
} gs_record_level;
const char *gs_record_level_name(gs_record_level level);
// False when there is no such level.
bool gs_record_level_from_name(gs_record_level *level, const char *name);

#define GS_RECORD_SAMPLE_EVERY 100
#define GS_RECORD_FIRST_SAMPLES 10

typedef struct gs_record_options {
    gs_record_level level;
    int64_t sample_every;  // k ≥ 1; 0: GS_RECORD_SAMPLE_EVERY
    const char *job, *model;  // for the lines; copied; NULL: none
    // What else the host does with this reducer, which the reducer does not know; constant text. NULL: not said.
    const char *buffers, *uneven_inputs, *batch_norm;
    int num_replicas;  // that it reduces for; 0: not said
    int reserved;      // 0
} gs_record_options;

// The reducer's (gs_reducer_get_record).
typedef struct gs_reducer_record gs_reducer_record;

// While this rank has used the same parameters in all steps so far: a static graph might be promised.
bool gs_reducer_record_could_be_static(const gs_reducer_record *record);
// key=value text, for log lines and for hosts: who it is, where it runs, how steps went. Lists are cut
// after some entries and end in "…" then.
void gs_reducer_record_write_construction(gs_strbuf *out, const gs_reducer_record *record);
void gs_reducer_record_write_environment(gs_strbuf *out, const gs_reducer_record *record);
void gs_reducer_record_write_times(gs_strbuf *out, const gs_reducer_record *record);
void gs_reducer_record_write_error(gs_strbuf *out, const gs_reducer_record *record);

GS_END_DECLS

#endif
