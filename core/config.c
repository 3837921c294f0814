// Settings of a program: defaults, file, environment, flags, in this order, each over the one
// before. Every value is checked where it enters, so that an error can say where it came from.
#include "core/config.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/strbuf.h"

enum { MAX_WORD_LEN = 64 };

typedef struct config_parser {
    char *values;
    const gs_config_program *program;
    gs_config_origin *origins;  // one for each field
    gs_config_origin layer;     // what set_field works for now
    const char *source;         // how errors call it: "--%s", the file's path
} config_parser;

static int fold_letter(char letter) {
    return letter == '-' ? '_' : tolower((unsigned char)letter);
}

// Edits that turn a into b: letters put in, left out, changed, and neighbours swapped (optimal string
// alignment). Case does not count, '-' is '_'. Both words are at most MAX_WORD_LEN long.
static size_t edit_distance(const char *a, const char *b) {
    size_t rows[3][MAX_WORD_LEN + 1];
    size_t *above_two = rows[0], *above = rows[1], *row = rows[2];
    size_t a_len = strlen(a), b_len = strlen(b);
    for (size_t j = 0; j <= b_len; j++) row[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t *oldest = above_two;
        above_two = above;
        above = row;
        row = oldest;
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            int left = fold_letter(a[i - 1]), right = fold_letter(b[j - 1]);
            size_t least = above[j - 1] + (left != right);
            if (above[j] + 1 < least) least = above[j] + 1;
            if (row[j - 1] + 1 < least) least = row[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && left == fold_letter(b[j - 2]) &&
                           right == fold_letter(a[i - 2]);
            if (swapped && above_two[j - 2] + 1 < least) least = above_two[j - 2] + 1;
            row[j] = least;
        }
    }
    return row[b_len];
}

const char *gs_nearest_word(const char *word, const char *const *candidates,
                            size_t num_candidates) {
    size_t word_len = strlen(word);
    if (word_len == 0 || word_len > MAX_WORD_LEN) return NULL;
    // Three letters forgive one slip, longer words a third of their letters.
    size_t allowed = word_len < 3 ? 0 : word_len / 3;
    const char *nearest = NULL;
    for (size_t i = 0; i < num_candidates; i++) {
        if (!candidates[i] || strlen(candidates[i]) > MAX_WORD_LEN) continue;
        size_t distance = edit_distance(word, candidates[i]);
        if (distance > allowed) continue;
        if (!nearest || distance < edit_distance(word, nearest)) nearest = candidates[i];
    }
    return nearest;
}

bool gs_parse_bytes(int64_t *bytes, const char *text) {
    static const struct {
        const char *suffix;
        double factor;
    } units[] = {{"", 1},
                 {"B", 1},
                 {"KiB", 1024.0},
                 {"MiB", 1048576.0},
                 {"GiB", 1073741824.0},
                 {"TiB", 1099511627776.0},
                 {"kB", 1e3},
                 {"KB", 1e3},
                 {"MB", 1e6},
                 {"GB", 1e9},
                 {"TB", 1e12}};
    if (!isdigit((unsigned char)text[0])) return false;
    size_t digits = strspn(text, "0123456789.");
    char number[32];
    if (digits >= sizeof number) return false;
    memcpy(number, text, digits);
    number[digits] = '\0';
    char *end;
    double value = strtod(number, &end);
    if (*end != '\0') return false;
    const char *suffix = text + digits + strspn(text + digits, " ");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(suffix, units[i].suffix) != 0) continue;
        double product = value * units[i].factor;
        if (product >= 9007199254740992.0) return false;  // beyond what a double counts exactly
        *bytes = (int64_t)llround(product);
        return true;
    }
    return false;
}

static bool is_size(const gs_config_field *field) {
    size_t len = strlen(field->name);
    return len > 6 && strcmp(field->name + len - 6, "_bytes") == 0;
}

static bool parse_int(int64_t *value, const gs_config_field *field, const char *text) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end != text && *end == '\0' && errno == 0) {
        *value = number;
        return true;
    }
    return is_size(field) && gs_parse_bytes(value, text);
}

static bool parse_double(double *value, const char *text) {
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value);
}

static bool parse_bool(bool *value, const char *text) {
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        *value = i % 2 == 1;
        return true;
    }
    return false;
}

static gs_status check_range(const gs_config_field *field, const char *source, double value) {
    if (field->least == 0 && field->most == 0) return gs_ok();
    if (value >= field->least && value <= field->most) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "%s: %.15g is not between %.15g and %.15g", source, value,
                    field->least, field->most);
}

static bool is_text(const gs_config_field *field) {
    return field->type == GS_CONFIG_STRING || field->type == GS_CONFIG_LIST;
}

static gs_status set_text(config_parser *parser, size_t index, const char *source,
                          const char *text) {
    const gs_config_field *field = &parser->program->fields[index];
    char **member = (char **)(void *)(parser->values + field->offset);
    bool adds = field->type == GS_CONFIG_LIST && parser->layer == GS_CONFIG_FROM_FLAG &&
                parser->origins[index] == GS_CONFIG_FROM_FLAG;
    gs_strbuf value = {0};
    gs_strbuf_printf(&value, "%s%s%s", adds ? *member : "", adds ? "," : "", text);
    char *taken = gs_strbuf_take(&value);
    if (!taken) return gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", source);
    free(*member);
    *member = taken;
    return gs_ok();
}

// Converts `text` into the field's member. `source` is how the user knows this value.
static gs_status set_field(config_parser *parser, size_t index, const char *source,
                           const char *text) {
    const gs_config_field *field = &parser->program->fields[index];
    void *member = parser->values + field->offset;
    if (is_text(field)) {
        GS_TRY(set_text(parser, index, source, text));
    } else if (field->type == GS_CONFIG_INT) {
        int64_t value;
        if (!parse_int(&value, field, text))
            return gs_error(GS_INVALID_ARGUMENT, "%s: '%s' is not a whole number%s", source, text,
                            is_size(field) ? " or a size like 25MiB" : "");
        GS_TRY(check_range(field, source, (double)value));
        *(int64_t *)member = value;
    } else if (field->type == GS_CONFIG_DOUBLE) {
        double value;
        if (!parse_double(&value, text))
            return gs_error(GS_INVALID_ARGUMENT, "%s: '%s' is not a number", source, text);
        GS_TRY(check_range(field, source, value));
        *(double *)member = value;
    } else if (!parse_bool(member, text)) {
        return gs_error(GS_INVALID_ARGUMENT, "%s: '%s' is not true or false", source, text);
    }
    parser->origins[index] = parser->layer;
    return gs_ok();
}

// "data_dir" → "data-dir" or "GRADSYNC_DATA_DIR".
static void flag_name(char *out, size_t out_bytes, const char *name) {
    snprintf(out, out_bytes, "%s", name);
    for (char *c = out; *c; c++)
        if (*c == '_') *c = '-';
}

static void variable_name(char *out, size_t out_bytes, const char *name) {
    snprintf(out, out_bytes, "GRADSYNC_%s", name);
    for (char *c = out; *c; c++) *c = (char)toupper((unsigned char)*c);
}

static gs_status set_from_file(void *ctx, const char *name, const char *value) {
    config_parser *parser = ctx;
    const gs_config_program *program = parser->program;
    char source[512];
    snprintf(source, sizeof source, "%s: %s", parser->source, name);
    for (size_t i = 0; i < program->num_fields; i++)
        if (strcmp(program->fields[i].name, name) == 0) return set_field(parser, i, source, value);

    const char *names[128];
    size_t num_names = 0;
    for (size_t i = 0; i < program->num_fields && i < 128; i++)
        names[num_names++] = program->fields[i].name;
    const char *nearest = gs_nearest_word(name, names, num_names);
    return nearest
               ? gs_error(GS_INVALID_ARGUMENT, "%s is unknown; did you mean %s?", source, nearest)
               : gs_error(GS_INVALID_ARGUMENT, "%s is unknown", source);
}

static gs_status read_config_file(config_parser *parser, const char *path) {
    if (!parser->program->read_file)
        return gs_error(GS_INVALID_ARGUMENT, "--config: %s reads no files", parser->program->name);
    parser->layer = GS_CONFIG_FROM_FILE;
    parser->source = path;
    return parser->program->read_file(path, set_from_file, parser);
}

static gs_status read_environment(config_parser *parser) {
    parser->layer = GS_CONFIG_FROM_ENVIRONMENT;
    for (size_t i = 0; i < parser->program->num_fields; i++) {
        char name[80];
        variable_name(name, sizeof name, parser->program->fields[i].name);
        const char *text = getenv(name);
        if (text) GS_TRY(set_field(parser, i, name, text));
    }
    return gs_ok();
}

static gs_status set_defaults(config_parser *parser) {
    parser->layer = GS_CONFIG_FROM_DEFAULT;
    for (size_t i = 0; i < parser->program->num_fields; i++) {
        const gs_config_field *field = &parser->program->fields[i];
        const char *text = field->default_value;
        if (!text && is_text(field)) text = "";
        if (text) GS_TRY(set_field(parser, i, field->name, text));
    }
    return gs_ok();
}

typedef enum builtin_flag { NO_BUILTIN = 0, HELP, VERSION, CONFIG, PRINT_CONFIG } builtin_flag;

static builtin_flag find_builtin(const char *name, size_t name_len) {
    static const struct {
        const char *name;
        builtin_flag flag;
    } builtins[] = {
        {"help", HELP}, {"version", VERSION}, {"config", CONFIG}, {"print-config", PRINT_CONFIG}};
    for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++)
        if (strlen(builtins[i].name) == name_len && strncmp(name, builtins[i].name, name_len) == 0)
            return builtins[i].flag;
    return NO_BUILTIN;
}

static bool find_flag(size_t *index, const gs_config_program *program, const char *name,
                      size_t name_len) {
    for (size_t i = 0; i < program->num_fields; i++) {
        char flag[64];
        flag_name(flag, sizeof flag, program->fields[i].name);
        if (strlen(flag) != name_len || strncmp(flag, name, name_len) != 0) continue;
        *index = i;
        return true;
    }
    return false;
}

static gs_status unknown_flag(const gs_config_program *program, const char *name, size_t name_len) {
    const char *candidates[132] = {"help", "version", "config", "print-config"};
    size_t num_candidates = 4;
    for (size_t i = 0; i < program->num_fields && num_candidates < 132; i++)
        candidates[num_candidates++] = program->fields[i].name;
    char word[128], flag[64];
    snprintf(word, sizeof word, "%.*s", (int)(name_len < 100 ? name_len : 100), name);
    const char *nearest = gs_nearest_word(word, candidates, num_candidates);
    if (!nearest) return gs_error(GS_INVALID_ARGUMENT, "unknown flag --%s", word);
    flag_name(flag, sizeof flag, nearest);
    return gs_error(GS_INVALID_ARGUMENT, "unknown flag --%s; did you mean --%s?", word, flag);
}

typedef struct flag_scan {
    builtin_flag asked;  // the first of --help, --version, --print-config
    const char *config_path;
} flag_scan;

// One flag at argv[*at], which moves to the last word that belongs to it. `apply` false: only look
// for the flags that every program takes, and check that the others are known.
static gs_status read_flag(config_parser *parser, flag_scan *scan, int *at, int argc, char **argv,
                           bool apply) {
    const char *word = argv[*at];
    if (strcmp(word, "-h") == 0) word = "--help";
    if (strncmp(word, "--", 2) != 0 || word[2] == '\0')
        return gs_error(GS_INVALID_ARGUMENT, "unexpected argument '%s'", argv[*at]);
    const char *name = word + 2, *value = strchr(name, '=');
    size_t name_len = value ? (size_t)(value - name) : strlen(name), index = 0;
    if (value) value++;

    builtin_flag builtin = find_builtin(name, name_len);
    if (!builtin && !find_flag(&index, parser->program, name, name_len))
        return unknown_flag(parser->program, name, name_len);
    bool takes_value =
        builtin ? builtin == CONFIG : parser->program->fields[index].type != GS_CONFIG_BOOL;
    if (takes_value && !value) {
        if (*at + 1 >= argc) return gs_error(GS_INVALID_ARGUMENT, "%s needs a value", word);
        value = argv[++*at];
    }
    if (builtin == CONFIG) {
        scan->config_path = value;
    } else if (builtin) {
        if (!scan->asked) scan->asked = builtin;
    } else if (apply) {
        char source[80];
        snprintf(source, sizeof source, "--%.*s", (int)name_len, name);
        return set_field(parser, index, source, value ? value : "true");
    }
    return gs_ok();
}

static gs_status read_flags(config_parser *parser, flag_scan *scan, int argc, char **argv,
                            bool apply) {
    parser->layer = GS_CONFIG_FROM_FLAG;
    for (int i = 1; i < argc; i++) GS_TRY(read_flag(parser, scan, &i, argc, argv, apply));
    return gs_ok();
}

static void print_help(const gs_config_program *program) {
    printf("Usage: %s %s\n%s\n\n", program->name, program->synopsis ? program->synopsis : "",
           program->description ? program->description : "");
    for (size_t i = 0; i < program->num_fields; i++) {
        const gs_config_field *field = &program->fields[i];
        char flag[64], left[128];
        flag_name(flag, sizeof flag, field->name);
        if (field->type == GS_CONFIG_BOOL)
            snprintf(left, sizeof left, "--%s", flag);
        else
            snprintf(left, sizeof left, "--%s %s", flag, field->metavar ? field->metavar : "VALUE");
        bool has_default =
            field->default_value && *field->default_value && field->type != GS_CONFIG_BOOL;
        printf("  %-30s %s%s%s%s\n", left, field->help ? field->help : "",
               has_default ? " (default " : "", has_default ? field->default_value : "",
               has_default ? ")" : "");
    }
    printf("  %-30s %s\n", "--config FILE", "settings from a JSON file; comments are allowed");
    printf("  %-30s %s\n", "--print-config", "print the effective settings and where each is from");
    printf("  %-30s %s\n", "--help, --version", "print this text, or the version");
    printf("\nA flag comes before its variable (--data-dir is GRADSYNC_DATA_DIR), that before the "
           "file, that before the default.\n");
}

static void put_quoted(gs_strbuf *out, const char *text) {
    gs_strbuf_putc(out, '"');
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\')
            gs_strbuf_printf(out, "\\%c", *c);
        else if ((unsigned char)*c < 0x20)
            gs_strbuf_printf(out, "\\u%04x", (unsigned char)*c);
        else
            gs_strbuf_putc(out, *c);
    }
    gs_strbuf_putc(out, '"');
}

// A file that --config reads: JSON, with the origin as a comment.
static void print_config(const config_parser *parser) {
    static const char *const origins[] = {"default", "file", "environment", "flag"};
    gs_strbuf out = {0};
    gs_strbuf_puts(&out, "{\n");
    for (size_t i = 0; i < parser->program->num_fields; i++) {
        const gs_config_field *field = &parser->program->fields[i];
        const void *member = parser->values + field->offset;
        gs_strbuf_printf(&out, "  \"%s\": ", field->name);
        if (is_text(field))
            put_quoted(&out, *(char *const *)member);
        else if (field->type == GS_CONFIG_INT)
            gs_strbuf_printf(&out, "%lld", (long long)*(const int64_t *)member);
        else if (field->type == GS_CONFIG_DOUBLE)
            gs_strbuf_printf(&out, "%.17g", *(const double *)member);
        else
            gs_strbuf_puts(&out, *(const bool *)member ? "true" : "false");
        gs_strbuf_printf(&out, "%s  // %s\n", i + 1 < parser->program->num_fields ? "," : "",
                         origins[parser->origins[i]]);
    }
    gs_strbuf_puts(&out, "}\n");
    fputs(gs_strbuf_text(&out), stdout);
    gs_strbuf_release(&out);
}

static gs_status run_layers(config_parser *parser, gs_config_outcome *outcome, int argc,
                            char **argv) {
    flag_scan scan = {0};
    GS_TRY(read_flags(parser, &scan, argc, argv, false));
    if (scan.asked == HELP || scan.asked == VERSION) {
        if (scan.asked == HELP)
            print_help(parser->program);
        else
            printf("%s %s\n", parser->program->name, GRADSYNC_VERSION);
        *outcome = GS_CONFIG_EXIT;
        return gs_ok();
    }
    GS_TRY(set_defaults(parser));
    const char *path = scan.config_path ? scan.config_path : getenv("GRADSYNC_CONFIG");
    if (path && *path) GS_TRY(read_config_file(parser, path));
    GS_TRY(read_environment(parser));
    GS_TRY(read_flags(parser, &scan, argc, argv, true));
    if (scan.asked == PRINT_CONFIG) {
        print_config(parser);
        *outcome = GS_CONFIG_EXIT;
    }
    return gs_ok();
}

gs_status gs_config_parse(void *values, gs_config_outcome *outcome,
                          const gs_config_program *program, int argc, char **argv) {
    *outcome = GS_CONFIG_RUN;
    config_parser parser = {.values = values, .program = program};
    parser.origins = calloc(program->num_fields + 1, sizeof *parser.origins);
    if (!parser.origins) return gs_error(GS_RESOURCE_EXHAUSTED, "settings: out of memory");
    gs_status status = run_layers(&parser, outcome, argc, argv);
    free(parser.origins);
    if (status.code) gs_config_release(values, program);
    return status;
}

void gs_config_release(void *values, const gs_config_program *program) {
    for (size_t i = 0; i < program->num_fields; i++) {
        if (!is_text(&program->fields[i])) continue;
        char **member = (char **)((char *)values + program->fields[i].offset);
        free(*member);
        *member = NULL;
    }
}
