#include "rpc/schema/fields.h"

#include <math.h>
#include <regex.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/config.h"

#define MAX_FIELDS 64  // of one object; more is two nouns

typedef struct decoder {
    const gs_field *fields;
    char *out;            // the struct
    const char *pointer;  // to the object
    gs_field_errors *errors;
    bool seen[MAX_FIELDS];
} decoder;

void gs_field_errors_add(gs_field_errors *errors, const char *pointer, const char *code,
                         const char *hint, const char *format, ...) {
    if (errors->count++ >= GS_MAX_FIELD_ERRORS) return;
    gs_field_error *error = &errors->items[errors->count - 1];
    snprintf(error->pointer, sizeof error->pointer, "%s", pointer);
    snprintf(error->code, sizeof error->code, "%s", code);
    snprintf(error->hint, sizeof error->hint, "%s", hint ? hint : "");
    va_list args;
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
}

bool gs_field_errors_lie_in(const gs_field_errors *errors, const char *prefix) {
    for (int i = 0; i < errors->count && i < GS_MAX_FIELD_ERRORS; i++) {
        if (strncmp(errors->items[i].pointer, prefix, strlen(prefix)) == 0) return true;
    }
    return false;
}

static int find_word(const char *const *words, const char *text) {
    for (int i = 0; words && words[i]; i++) {
        if (strcmp(words[i], text) == 0) return i;
    }
    return -1;
}

static size_t count_words(const char *const *words) {
    size_t count = 0;
    while (words[count]) count++;
    return count;
}

static const char *join_words(char *text, size_t text_bytes, const char *const *words) {
    size_t len = 0;
    text[0] = '\0';
    for (int i = 0; words[i] && len < text_bytes; i++) {
        len += (size_t)snprintf(text + len, text_bytes - len, "%s%s", i ? ", " : "", words[i]);
    }
    return text;
}

// RFC 6901: a name from the outside may hold "/" and "~".
static void append_pointer(char pointer[128], const char *parent, const char *name) {
    size_t len = (size_t)snprintf(pointer, 128, "%s/", parent);
    for (; *name && len < 125; name++) {
        if (*name == '~' || *name == '/') {
            pointer[len++] = '~';
            pointer[len++] = *name == '~' ? '0' : '1';
        } else {
            pointer[len++] = *name;
        }
    }
    pointer[len < 128 ? len : 127] = '\0';
}

static void refuse_type(gs_field_errors *errors, const char *pointer, const char *wanted,
                        const gs_json *value) {
    static const char *const names[] = {"null",     "a boolean", "an integer", "a number",
                                        "a string", "a list",    "an object"};
    gs_field_errors_add(errors, pointer, "wrong_type", NULL, "must be %s, not %s", wanted,
                        names[gs_json_type_of(value)]);
}

static bool matches_pattern(const char *text, const char *pattern) {
    regex_t compiled;
    if (regcomp(&compiled, pattern, REG_EXTENDED | REG_NOSUB) != 0) return false;
    bool matches = regexec(&compiled, text, 0, NULL, 0) == 0;
    regfree(&compiled);
    return matches;
}

static void decode_string(char *out, size_t out_bytes, const gs_field *field, const gs_json *value,
                          const char *pointer, gs_field_errors *errors) {
    const char *text = gs_json_string(value);
    if (!text) {
        refuse_type(errors, pointer, "a string", value);
    } else if (strlen(text) >= out_bytes) {
        gs_field_errors_add(errors, pointer, "too_long", NULL, "longer than %zu bytes",
                            out_bytes - 1);
    } else if (!*text && field->required) {
        // An empty text is none: it is not written either.
        gs_field_errors_add(errors, pointer, "missing", NULL, "must not be empty");
    } else if (!errors->takes_old_values && *text && field->pattern && !matches_pattern(text, field->pattern)) {
        gs_field_errors_add(errors, pointer, "bad_pattern", NULL, "does not match %s",
                            field->pattern);
    } else {
        snprintf(out, out_bytes, "%s", text);
    }
}

static void decode_int(int64_t *out, const gs_field *field, const gs_json *value,
                       const char *pointer, gs_field_errors *errors) {
    int64_t number;
    if (!gs_json_int(&number, value)) {
        refuse_type(errors, pointer, "an integer", value);
    } else if (field->has_range && !errors->takes_old_values &&
               (number < (int64_t)field->least || number > (int64_t)field->most)) {
        gs_field_errors_add(errors, pointer, "out_of_range", NULL,
                            "must be between %.15g and %.15g", field->least, field->most);
    } else {
        *out = number;
    }
}

static void decode_double(double *out, const gs_field *field, const gs_json *value,
                          const char *pointer, gs_field_errors *errors) {
    double number;
    if (!gs_json_double(&number, value) || (field->has_range && gs_json_string(value))) {
        refuse_type(errors, pointer, "a number", value);
    } else if (field->has_range && !errors->takes_old_values && !(number >= field->least && number <= field->most)) {
        gs_field_errors_add(errors, pointer, "out_of_range", NULL,
                            "must be between %.15g and %.15g", field->least, field->most);
    } else {
        *out = number;
    }
}

static void decode_bool(bool *out, const gs_json *value, const char *pointer,
                        gs_field_errors *errors) {
    if (gs_json_type_of(value) != GS_JSON_BOOL) {
        refuse_type(errors, pointer, "true or false", value);
        return;
    }
    *out = gs_json_is_true(value);
}

static const char *find_synonym(const char *const *pairs, const char *text) {
    for (; pairs && *pairs; pairs += 2) {
        if (strcmp(pairs[0], text) == 0) return pairs[1];
    }
    return NULL;
}

static void decode_enum(int *out, const gs_field *field, const gs_json *value, const char *pointer,
                        gs_field_errors *errors) {
    const char *text = gs_json_string(value);
    char words[120], hint[96] = "";
    if (!text) {
        refuse_type(errors, pointer, "a string", value);
        return;
    }
    int found = find_word(field->words, text);
    if (found >= 0) {
        *out = found;
        return;
    }
    bool later = find_word(field->later_words, text) >= 0;
    const char *near = find_synonym(field->synonyms, text);
    if (!near && !later) near = gs_nearest_word(text, field->words, count_words(field->words));
    if (near) snprintf(hint, sizeof hint, "did you mean %s?", near);
    gs_field_errors_add(errors, pointer, "bad_word", hint, "%s: %s",
                        later ? "not in this version; one of" : "must be one of",
                        join_words(words, sizeof words, field->words));
}

static void decode_object(char *out, const gs_field *fields, const gs_json *object,
                          const char *pointer, gs_field_errors *errors);

static void decode_element(char *out, const gs_field *field, const gs_json *value,
                           const char *pointer, gs_field_errors *errors) {
    switch (field->type) {
    case GS_FIELD_STRINGS:
        decode_string(out, field->element_bytes, field, value, pointer, errors);
        break;
    case GS_FIELD_INTS: decode_int((int64_t *)(void *)out, field, value, pointer, errors); break;
    default: decode_object(out, field->fields, value, pointer, errors); break;
    }
}

static size_t element_bytes_of(const gs_field *field) {
    return field->type == GS_FIELD_INTS ? sizeof(int64_t) : field->element_bytes;
}

static void decode_list(char *out, const gs_field *field, const gs_json *value, const char *pointer,
                        gs_field_errors *errors) {
    char *items = out + field->offset;
    int *count = (int *)(void *)(out + field->count_offset);
    gs_json_type type = gs_json_type_of(value);
    memset(items, 0, field->capacity * element_bytes_of(field));  // the default's elements
    *count = 0;
    if ((type == GS_JSON_STRING && field->type == GS_FIELD_STRINGS) ||
        (type == GS_JSON_INT && field->type == GS_FIELD_INTS)) {
        decode_element(items, field, value, pointer, errors);
        *count = 1;
        return;
    }
    if (type != GS_JSON_ARRAY) {
        refuse_type(errors, pointer, "a list", value);
        return;
    }
    size_t given = gs_json_count(value);
    if (given < field->fewest && !errors->takes_old_values) {
        gs_field_errors_add(errors, pointer, "out_of_range", "", "must hold at least %zu", field->fewest);
        return;
    }
    if (given > field->capacity) {
        gs_field_errors_add(errors, pointer, "too_many", NULL, "more than %zu entries",
                            field->capacity);
        return;
    }
    for (size_t i = 0; i < given; i++) {
        char name[24], element_pointer[128];
        snprintf(name, sizeof name, "%zu", i);
        append_pointer(element_pointer, pointer, name);
        decode_element(items + i * element_bytes_of(field), field, gs_json_at(value, i),
                       element_pointer, errors);
    }
    *count = (int)given;
}

static void decode_value(char *out, const gs_field *field, const gs_json *value,
                         const char *pointer, gs_field_errors *errors) {
    void *member = out + field->offset;
    switch (field->type) {
    case GS_FIELD_STRING:
        decode_string(member, field->capacity, field, value, pointer, errors);
        break;
    case GS_FIELD_INT: decode_int(member, field, value, pointer, errors); break;
    case GS_FIELD_DOUBLE: decode_double(member, field, value, pointer, errors); break;
    case GS_FIELD_BOOL: decode_bool(member, value, pointer, errors); break;
    case GS_FIELD_ENUM: decode_enum(member, field, value, pointer, errors); break;
    case GS_FIELD_OBJECT: decode_object(member, field->fields, value, pointer, errors); break;
    default: decode_list(out, field, value, pointer, errors); break;
    }
}

static void refuse_member(decoder *d, const char *key, const char *pointer) {
    const char *names[MAX_FIELDS];
    size_t count = 0;
    while (d->fields[count].name) {
        names[count] = d->fields[count].name;
        count++;
    }
    char hint[96] = "";
    const char *near = gs_nearest_word(key, names, count);
    if (near) snprintf(hint, sizeof hint, "did you mean %s?", near);
    gs_field_errors_add(d->errors, pointer, "unknown_member", hint, "unknown member");
}

static bool decode_member(void *ctx, const char *key, const gs_json *value) {
    decoder *d = ctx;
    char pointer[128];
    append_pointer(pointer, d->pointer, key);
    for (int i = 0; d->fields[i].name; i++) {
        if (strcmp(d->fields[i].name, key) != 0) continue;
        d->seen[i] = true;
        decode_value(d->out, &d->fields[i], value, pointer, d->errors);
        return true;
    }
    refuse_member(d, key, pointer);
    return true;
}

// Defaults are in `out` already, or zero in a new list element.
static void decode_object(char *out, const gs_field *fields, const gs_json *object,
                          const char *pointer, gs_field_errors *errors) {
    gs_fields_set_defaults(out, fields);
    if (gs_json_type_of(object) != GS_JSON_OBJECT) {
        refuse_type(errors, pointer, "an object", object);
        return;
    }
    decoder d = {.fields = fields, .out = out, .pointer = pointer, .errors = errors};
    gs_json_each(object, decode_member, &d);
    for (int i = 0; fields[i].name; i++) {
        if (!fields[i].required || d.seen[i]) continue;
        char missing[128];
        append_pointer(missing, pointer, fields[i].name);
        gs_field_errors_add(errors, missing, "missing", NULL, "must be given");
    }
}

static void clear_member(char *out, const gs_field *field) {
    void *member = out + field->offset;
    switch (field->type) {
    case GS_FIELD_STRING: memset(member, 0, field->capacity); break;
    case GS_FIELD_INT: *(int64_t *)member = 0; break;
    case GS_FIELD_DOUBLE: *(double *)member = 0; break;
    case GS_FIELD_BOOL: *(bool *)member = false; break;
    case GS_FIELD_ENUM: *(int *)member = 0; break;
    case GS_FIELD_OBJECT: gs_fields_set_defaults(member, field->fields); break;
    default:
        memset(member, 0, field->capacity * element_bytes_of(field));
        *(int *)(void *)(out + field->count_offset) = 0;
        break;
    }
}

void gs_fields_set_defaults(void *out, const gs_field *fields) {
    for (const gs_field *field = fields; field->name; field++) {
        clear_member(out, field);
        if (!field->default_value || field->type == GS_FIELD_OBJECT) continue;
        // Tables are ours: a default that is no JSON, or out of its own range, shows in the tests.
        gs_field_errors ignored = {0};
        gs_json *value = NULL;
        gs_status status =
            gs_json_parse(&value, field->default_value, strlen(field->default_value));
        if (!status.code) decode_value(out, field, value, "", &ignored);
        gs_json_release(value);
    }
}

gs_status gs_fields_decode(void *out, const gs_field *fields, const gs_json *object,
                           gs_field_errors *errors) {
    decode_object(out, fields, object, "", errors);
    if (errors->count == 0) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "%d problem%s found", errors->count,
                    errors->count == 1 ? "" : "s");
}

gs_status gs_fields_decode_stored(void *out, const gs_field *fields, const gs_json *object, gs_field_errors *errors) {
    errors->takes_old_values = true;
    return gs_fields_decode(out, fields, object, errors);
}

static gs_json *encode_list(const char *in, const gs_field *field) {
    int count = *(const int *)(const void *)(in + field->count_offset);
    if (count == 0 && !field->default_value) return NULL;
    gs_json *list = gs_json_new_array();
    for (int i = 0; i < count; i++) {
        const char *element = in + field->offset + (size_t)i * element_bytes_of(field);
        if (field->type == GS_FIELD_STRINGS) gs_json_push(list, gs_json_new_string(element));
        else if (field->type == GS_FIELD_INTS) {
            gs_json_push(list, gs_json_new_int(*(const int64_t *)(const void *)element));
        } else gs_json_push(list, gs_fields_encode(element, field->fields));
    }
    return list;
}

static gs_json *encode_value(const char *in, const gs_field *field) {
    const void *member = in + field->offset;
    switch (field->type) {
    case GS_FIELD_STRING: {
        const char *text = member;
        return *text || field->default_value ? gs_json_new_string(text) : NULL;
    }
    case GS_FIELD_INT: return gs_json_new_int(*(const int64_t *)member);
    case GS_FIELD_DOUBLE: return gs_json_new_double(*(const double *)member);
    case GS_FIELD_BOOL: return gs_json_new_bool(*(const bool *)member);
    case GS_FIELD_ENUM: return gs_json_new_string(field->words[*(const int *)member]);
    case GS_FIELD_OBJECT: return gs_fields_encode(member, field->fields);
    default: return encode_list(in, field);
    }
}

gs_json *gs_fields_encode(const void *in, const gs_field *fields) {
    gs_json *object = gs_json_new_object();
    for (const gs_field *field = fields; field->name; field++) {
        gs_json_set(object, field->name, encode_value(in, field));
    }
    return object;
}

static void add_range(gs_json *schema, const gs_field *field, bool integer) {
    if (!field->has_range) return;
    if (integer) {
        gs_json_set_int(schema, "minimum", (int64_t)field->least);
        gs_json_set_int(schema, "maximum", (int64_t)field->most);
    } else {
        gs_json_set_double(schema, "minimum", field->least);
        gs_json_set_double(schema, "maximum", field->most);
    }
}

static gs_json *make_string_schema(const gs_field *field, size_t text_bytes) {
    gs_json *schema = gs_json_new_object();
    gs_json_set_string(schema, "type", "string");
    if (field->required) gs_json_set_int(schema, "minLength", 1);
    gs_json_set_int(schema, "maxLength", (int64_t)text_bytes - 1);
    gs_json_set_string(schema, "pattern", field->pattern);
    return schema;
}

static gs_json *make_int_schema(const gs_field *field) {
    gs_json *schema = gs_json_new_object();
    gs_json_set_string(schema, "type", "integer");
    gs_json_set_string(schema, "format", "int64");
    add_range(schema, field, true);
    return schema;
}

static gs_json *make_element_schema(const gs_field *field) {
    if (field->type == GS_FIELD_STRINGS) return make_string_schema(field, field->element_bytes);
    if (field->type == GS_FIELD_INTS) return make_int_schema(field);
    return gs_fields_schema(field->fields, NULL);
}

static gs_json *make_list_schema(const gs_field *field) {
    gs_json *list = gs_json_new_object();
    gs_json_set_string(list, "type", "array");
    gs_json_set(list, "items", make_element_schema(field));
    if (field->fewest) gs_json_set_int(list, "minItems", (int64_t)field->fewest);
    gs_json_set_int(list, "maxItems", (int64_t)field->capacity);
    if (field->type == GS_FIELD_OBJECTS) return list;
    gs_json *choice = gs_json_new_array(), *schema = gs_json_new_object();
    gs_json_push(choice, list);
    gs_json_push(choice, make_element_schema(field));
    gs_json_set(schema, "oneOf", choice);
    return schema;
}

static gs_json *make_enum_schema(const gs_field *field) {
    gs_json *schema = gs_json_new_object(), *words = gs_json_new_array();
    for (int i = 0; field->words[i]; i++) gs_json_push(words, gs_json_new_string(field->words[i]));
    gs_json_set_string(schema, "type", "string");
    gs_json_set(schema, "enum", words);
    return schema;
}

static gs_json *make_number_schema(const gs_field *field) {
    gs_json *schema = gs_json_new_object();
    gs_json_set_string(schema, "type", "number");
    gs_json_set_string(schema, "format", "double");
    add_range(schema, field, false);
    return schema;
}

static gs_json *make_bool_schema(void) {
    gs_json *schema = gs_json_new_object();
    gs_json_set_string(schema, "type", "boolean");
    return schema;
}

static gs_json *make_schema(const gs_field *field) {
    gs_json *schema;
    switch (field->type) {
    case GS_FIELD_STRING: schema = make_string_schema(field, field->capacity); break;
    case GS_FIELD_INT: schema = make_int_schema(field); break;
    case GS_FIELD_DOUBLE: schema = make_number_schema(field); break;
    case GS_FIELD_BOOL: schema = make_bool_schema(); break;
    case GS_FIELD_ENUM: schema = make_enum_schema(field); break;
    case GS_FIELD_OBJECT: return gs_fields_schema(field->fields, field->help);
    default: schema = make_list_schema(field); break;
    }
    gs_json_set_string(schema, "description", field->help);
    gs_json *value = NULL;
    if (field->default_value) {
        gs_status status =
            gs_json_parse(&value, field->default_value, strlen(field->default_value));
        if (!status.code) gs_json_set(schema, "default", value);
    }
    return schema;
}

gs_json *gs_fields_schema(const gs_field *fields, const char *description) {
    gs_json *schema = gs_json_new_object(), *properties = gs_json_new_object();
    gs_json *required = gs_json_new_array();
    for (const gs_field *field = fields; field->name; field++) {
        gs_json_set(properties, field->name, make_schema(field));
        if (field->required) gs_json_push(required, gs_json_new_string(field->name));
    }
    gs_json_set_string(schema, "type", "object");
    gs_json_set_string(schema, "description", description);
    gs_json_set(schema, "properties", properties);
    // OpenAPI 3.0 wants at least one name in the list.
    if (gs_json_count(required)) gs_json_set(schema, "required", required);
    else gs_json_release(required);
    gs_json_set_bool(schema, "additionalProperties", false);
    return schema;
}

gs_json *gs_field_errors_to_json(const gs_field_errors *errors) {
    gs_json *object = gs_json_new_object(), *list = gs_json_new_array();
    for (int i = 0; i < errors->count && i < GS_MAX_FIELD_ERRORS; i++) {
        const gs_field_error *error = &errors->items[i];
        gs_json *item = gs_json_new_object();
        gs_json_set_string(item, "pointer", error->pointer);
        gs_json_set_string(item, "code", error->code);
        gs_json_set_string(item, "message", error->message);
        if (error->hint[0]) gs_json_set_string(item, "hint", error->hint);
        gs_json_push(list, item);
    }
    gs_json_set(object, "errors", list);
    return object;
}
