#include "api/cli/output.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { MAX_COLUMNS = 12, GAP = 2 };

bool gs_cli_format_from_name(gs_cli_format *format, const char *name) {
    static const char *const names[] = {"table", "json", "name"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *format = (gs_cli_format)i;
        return true;
    }
    return false;
}

const gs_json *gs_cli_find_member(const gs_json *object, const char *path) {
    while (object) {
        char key[64];
        size_t len = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)len, path);
        object = gs_json_get(object, key);
        if (path[len] == '\0') break;
        path += len + 1;
    }
    return object;
}

// What the server says is data: control characters in it must not drive the terminal. C1 in UTF-8 is two bytes, and does so too.
static size_t control_bytes(const char *c) {
    if ((unsigned char)*c < 0x20 || *c == 0x7f) return 1;
    return (unsigned char)c[0] == 0xc2 && (unsigned char)c[1] >= 0x80 && (unsigned char)c[1] < 0xa0 ? 2 : 0;
}

static void write_clean(gs_strbuf *out, const char *text) {
    for (const char *c = text; *c; c++) {
        size_t bytes = control_bytes(c);
        gs_strbuf_putc(out, bytes ? ' ' : *c);
        if (bytes == 2) c++;
    }
}

void gs_cli_print_line(FILE *out, const char *format, ...) {
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int bytes = vasprintf(&text, format, args);
    va_end(args);
    if (bytes < 0) return;
    for (char *c = text; *c; c++) {
        size_t control = *c == '\t' ? 0 : control_bytes(c);
        if (control) c[0] = ' ';
        if (control == 2) c[1] = ' ';
    }
    fprintf(out, "%s\n", text);
    free(text);
}

void gs_cli_write_value(gs_strbuf *out, const gs_json *value) {
    const char *text = gs_json_string(value);
    int64_t whole;
    if (!value) {
        gs_strbuf_putc(out, '-');
    } else if (text) {
        write_clean(out, *text ? text : "-");
    } else if (gs_json_int(&whole, value)) {
        gs_strbuf_printf(out, "%" PRId64, whole);
    } else {
        char *encoded = NULL;
        gs_status status = gs_json_encode(&encoded, NULL, value, false);
        gs_strbuf_puts(out, status.code ? "?" : encoded);
        free(encoded);
    }
}

static bool read_number(double *number, gs_strbuf *out, const gs_json *value) {
    if (value && gs_json_double(number, value)) return true;
    gs_cli_write_value(out, value);
    return false;
}

void gs_cli_write_bytes(gs_strbuf *out, const gs_json *value) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double bytes;
    if (!read_number(&bytes, out, value)) return;
    size_t unit = 0;
    while (fabs(bytes) >= 1024 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    gs_strbuf_printf(out, unit == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

void gs_cli_write_number(gs_strbuf *out, const gs_json *value) {
    double number;
    if (read_number(&number, out, value)) gs_strbuf_printf(out, "%.4g", number);
}

void gs_cli_write_seconds(gs_strbuf *out, const gs_json *value) {
    double seconds;
    if (!read_number(&seconds, out, value)) return;
    if (!isfinite(seconds))
        gs_strbuf_printf(out, "%g", seconds);
    else if (seconds < 1e-3)
        gs_strbuf_printf(out, "%.0f us", seconds * 1e6);
    else if (seconds < 1)
        gs_strbuf_printf(out, "%.1f ms", seconds * 1e3);
    else if (seconds < 60)
        gs_strbuf_printf(out, "%.1fs", seconds);
    else if (seconds < 3600)
        gs_strbuf_printf(out, "%dm%02ds", (int)(seconds / 60), (int)seconds % 60);
    else
        gs_strbuf_printf(out, "%.0fh%02dm", floor(seconds / 3600), (int)fmod(seconds / 60, 60));
}

void gs_cli_write_rate(gs_strbuf *out, const gs_json *value) {
    double rate;
    if (!read_number(&rate, out, value)) return;
    if (rate >= 1e7)
        gs_strbuf_printf(out, "%.0fM", rate / 1e6);
    else if (rate >= 1e6)
        gs_strbuf_printf(out, "%.1fM", rate / 1e6);
    else if (rate >= 1e4)
        gs_strbuf_printf(out, "%.0fk", rate / 1e3);
    else if (rate >= 1e3)
        gs_strbuf_printf(out, "%.1fk", rate / 1e3);
    else
        gs_strbuf_printf(out, "%.0f", rate);
}

static char *cell_text(const gs_json *item, const gs_cli_column *column) {
    gs_strbuf text = {0};
    const gs_json *value = gs_cli_find_member(item, column->member);
    if (column->write)
        column->write(&text, value);
    else
        gs_cli_write_value(&text, value);
    return gs_strbuf_take(&text);
}

int gs_cli_terminal_width(int fd) {
    struct winsize size;
    if (!isatty(fd) || ioctl(fd, TIOCGWINSZ, &size) != 0) return 0;
    return size.ws_col;
}

static void print_row(char *const *cells, const int *widths, size_t num_columns, int terminal) {
    int used = 0;
    for (size_t i = 0; i < num_columns; i++) {
        const char *text = cells[i] ? cells[i] : "";
        if (i + 1 < num_columns) {
            used += printf("%-*s", widths[i] + GAP, text);
        } else {
            int room = terminal > used ? terminal - used : 0;
            printf("%.*s", terminal > 0 ? room : (int)strlen(text), text);
        }
    }
    putchar('\n');
}

void gs_cli_print_table(const gs_json *items, const gs_cli_column *columns, size_t num_columns) {
    size_t num_rows = gs_json_count(items) + 1;
    char **cells = calloc(num_rows * num_columns, sizeof *cells);
    int widths[MAX_COLUMNS] = {0};
    if (!cells || num_columns > MAX_COLUMNS) {
        free(cells);
        return;
    }
    for (size_t row = 0; row < num_rows; row++)
        for (size_t i = 0; i < num_columns; i++) {
            char *text = row == 0 ? strdup(columns[i].title)
                                  : cell_text(gs_json_at(items, row - 1), &columns[i]);
            cells[row * num_columns + i] = text;
            int width = text ? (int)strlen(text) : 0;
            if (width > widths[i]) widths[i] = width;
        }
    int terminal = gs_cli_terminal_width(STDOUT_FILENO);
    for (size_t row = 0; row < num_rows; row++)
        print_row(cells + row * num_columns, widths, num_columns, terminal);
    for (size_t i = 0; i < num_rows * num_columns; i++) free(cells[i]);
    free(cells);
}

void gs_cli_print_json(const gs_json *value) {
    char *text = NULL;
    gs_status status = gs_json_encode(&text, NULL, value, true);
    if (status.code)
        fprintf(stderr, "gradsync: %s\n", status.message);
    else
        puts(text);
    free(text);
}

void gs_cli_print_items(gs_cli_format format, const gs_json *reply, const gs_cli_column *columns,
                        size_t num_columns, const char *name_member) {
    const gs_json *items = gs_json_get(reply, "items");
    if (format == GS_CLI_JSON) {
        gs_cli_print_json(reply);
    } else if (format == GS_CLI_TABLE) {
        gs_cli_print_table(items, columns, num_columns);
    } else {
        for (size_t i = 0; i < gs_json_count(items); i++) {
            gs_strbuf text = {0};
            gs_cli_write_value(&text, gs_cli_find_member(gs_json_at(items, i), name_member));
            puts(gs_strbuf_text(&text));
            gs_strbuf_release(&text);
        }
    }
}
