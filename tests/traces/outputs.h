// What left the coordinator, in channels: one for each call, one for the rows of each job or kind. Within a channel
// order counts; between them it does not, because nobody outside can see it.
#ifndef TESTS_TRACES_OUTPUTS_H
#define TESTS_TRACES_OUTPUTS_H

#include <stdbool.h>
#include <stddef.h>

#include "rpc/json/json.h"

typedef struct output {
    char channel[120];
    int turn;
    gs_json *json;  // owned; as in the record
} output;

typedef struct outputs {
    output *items;  // owned
    size_t count, reserved;
} outputs;

// Takes `json`: a line of the record.
void outputs_add(outputs *list, int turn, gs_json *json);
void outputs_release(outputs *list);
// Puts channels together, each in its order.
void outputs_sort(outputs *list);

// `path` of what is different: "/row/2/generation"; "+" an output more, "-" one less, "turn" in another turn.
typedef struct difference {
    const char *channel, *path;
    int turn;
    const char *expected, *found;  // texts; "" when absent
} difference;

// Calls `differs` for each leaf that is not equal.
void outputs_compare(const outputs *expected, const outputs *found,
                     void (*differs)(void *ctx, const difference *one), void *ctx);

#endif
