// The options of a job specification as a grid: what each may be set to so that it changes how a step is computed,
// and what it needs beside it. Generated from the validator's field table: an option that the table here does not
// know is an error, a new word of one that it knows joins by itself.
#ifndef TESTS_SUPPORT_OPTION_TABLE_H
#define TESTS_SUPPORT_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "rpc/json/json.h"

typedef enum option_role {
    OPTION_NOT_OF_STEP = 0,  // what is computed in a step does not follow from it
    OPTION_OF_WORK,          // what is computed: the serial reference has it, too
    OPTION_OF_WAY            // how ranks come to it: the result is that without it
} option_role;

typedef struct option_set {
    const char *pointer, *json;
} option_set;

#define MOST_OPTION_NEEDS 6

// Several may be of one pointer, when its values need different things: then each of its words stands in one.
typedef struct option_row {
    const char *pointer;
    option_role role;
    const char *values[3];    // JSON; none: each word of an enum but that of the base; true
    option_set needs[MOST_OPTION_NEEDS];  // set before it, where another option does not say otherwise
    double tolerance;         // of the movement's norm; 0: 2e-5, the order of fp32 sums
} option_row;

// One value of one option.
typedef struct option_value {
    const option_row *row;
    char json[48];
} option_value;

#define MOST_OPTION_VALUES 128

// All values of all options of a step. NULL, or what the table lacks or has in vain.
const char *option_table_values(option_value *out, size_t *count);

// The base with `num` values set; those of a way are left out where `serial`.
gs_json *option_table_spec(const option_value *const *values, int num, bool serial);
void option_table_set(gs_json *spec, const char *pointer, const char *json);

#endif
