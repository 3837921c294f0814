// What the parts of the stage share.
#ifndef TESTS_TRACES_STAGE_WORLD_H
#define TESTS_TRACES_STAGE_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/traces/stage.h"

#define STAGE_TICK_NS INT64_C(20000000)  // between two turns of the timers, at least

typedef struct stage_world {
    bool is_playing;  // else clock and numbers are the real ones
    bool cut;         // the record ends here
    trace_file *file;
    stage_result *result;
    int turn;
    size_t first, end;  // lines of this turn
    int64_t begun_ns, begun_wall_ms, now_ns, wall_ms;
    int64_t ticked_ns;  // the last time
    uint64_t *drawn;    // owned; all numbers of the record
    size_t num_drawn, next_drawn;
    uint64_t num_invented;
} stage_world;

extern stage_world stage;  // linked in place of functions, which have no context of ours

void stage_reach(size_t line);    // its time
void stage_leave(gs_json *json);  // takes what left the coordinator, as a line
void stage_forget_calls(void);
void stage_plain_path(char *plain, size_t bytes, const char *path);  // without "/./"
// What a write does, while it is done: "put_job 7 put_key a".
void stage_note_write(const char *operation, const char *key);

#endif
