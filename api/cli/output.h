// What commands print on standard output: tables for people, JSON and names for programs.
#ifndef API_CLI_OUTPUT_H
#define API_CLI_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "core/strbuf.h"
#include "rpc/json/json.h"

typedef enum gs_cli_format { GS_CLI_TABLE = 0, GS_CLI_JSON, GS_CLI_NAME } gs_cli_format;

typedef struct gs_cli_column {
    const char *title;
    const char *member;  // "progress.step": down through objects
    // Turns the value into text; NULL: as it is.
    void (*write)(gs_strbuf *out, const gs_json *value);
} gs_cli_column;

bool gs_cli_format_from_name(gs_cli_format *format, const char *name);
const gs_json *gs_cli_find_member(const gs_json *object, const char *path);

// Aligned, no borders; a terminal's width cuts the last column.
void gs_cli_print_table(const gs_json *items, const gs_cli_column *columns, size_t num_columns);
// Columns of the terminal behind `fd`; 0: it is none, nothing is cut.
int gs_cli_terminal_width(int fd);
// What others say, between what the format says: control characters in it, but tabs, become spaces, wherever it goes: what goes
// into a pipe is shown by a terminal in the end. The line ends here.
void gs_cli_print_line(FILE *out, const char *format, ...) GS_PRINTF(2, 3);
void gs_cli_print_json(const gs_json *value);
// items (a list) in the format; `name_member` is what GS_CLI_NAME prints of each.
void gs_cli_print_items(gs_cli_format format, const gs_json *reply, const gs_cli_column *columns,
                        size_t num_columns, const char *name_member);

void gs_cli_write_value(gs_strbuf *out, const gs_json *value);    // "-" when absent
void gs_cli_write_bytes(gs_strbuf *out, const gs_json *value);    // "1.5 MiB"
void gs_cli_write_number(gs_strbuf *out, const gs_json *value);   // four significant digits
void gs_cli_write_seconds(gs_strbuf *out, const gs_json *value);  // "1.2 ms", "3m05s"
void gs_cli_write_rate(gs_strbuf *out, const gs_json *value);     // "140k"

#endif
