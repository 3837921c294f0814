// A program's settings: flag, then GRADSYNC_… variable, then file, then default; one table for each
// program drives parsing, --help and --print-config.
//
// `data_dir` in the table is --data-dir, GRADSYNC_DATA_DIR and "data_dir" in the file. All programs
// also take --help, --version, --config FILE and --print-config. core reads no JSON: the file reader
// is a callback that rpc/json provides.
#ifndef CORE_CONFIG_H
#define CORE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef enum gs_config_type {
    GS_CONFIG_STRING = 0,  // char *, owned by the struct; never NULL after parsing
    GS_CONFIG_INT,         // int64_t
    GS_CONFIG_DOUBLE,      // double
    GS_CONFIG_BOOL,        // bool; a flag without a value, or =true / =false
    GS_CONFIG_LIST,        // char * as of a string: "a,b"; a flag given again adds to it
} gs_config_type;

typedef struct gs_config_field {
    const char *name;  // snake_case
    gs_config_type type;
    size_t offset;              // of the member in the program's struct
    const char *default_value;  // as text
    double least, most;         // of numbers; both 0: any
    const char *metavar;        // "ADDR:PORT"
    const char *help;           // one sentence
} gs_config_field;

typedef enum gs_config_origin {
    GS_CONFIG_FROM_DEFAULT = 0,
    GS_CONFIG_FROM_FILE,
    GS_CONFIG_FROM_ENVIRONMENT,
    GS_CONFIG_FROM_FLAG
} gs_config_origin;

typedef struct gs_config_program {
    const char *name, *synopsis, *description;  // for --help
    const gs_config_field *fields;
    size_t num_fields;
    // Calls set(set_ctx, name, value as text) for each member of the file. May be NULL: no files.
    gs_status (*read_file)(const char *path,
                           gs_status (*set)(void *set_ctx, const char *name, const char *value),
                           void *set_ctx);
} gs_config_program;

typedef enum gs_config_outcome {
    GS_CONFIG_RUN = 0,
    GS_CONFIG_EXIT  // --help, --version or --print-config has been answered on standard output
} gs_config_outcome;

// Fills `values` (zeroed by the caller; strings owned, released by gs_config_release).
// INVALID_ARGUMENT names the flag, variable or file member and suggests the nearest known one.
GS_NODISCARD gs_status gs_config_parse(void *values, gs_config_outcome *outcome,
                                       const gs_config_program *program, int argc, char **argv);
void gs_config_release(void *values, const gs_config_program *program);

// The candidate nearest to `word` by edit distance, NULL when none is near. For "did you mean".
const char *gs_nearest_word(const char *word, const char *const *candidates, size_t num_candidates);

// "25MiB", "1.5GiB", "1000" → bytes; false when it is not a size.
bool gs_parse_bytes(int64_t *bytes, const char *text);

#endif
