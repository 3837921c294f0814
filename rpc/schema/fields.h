// The field table: one description of an object's members drives validation, encoding,
// documentation, OpenAPI and the error that names the field.
//
// decode reports *all* problems at once, each with a JSON pointer, a stable code and, for an
// unknown member, the nearest known name. Nothing is coerced: 200.0 is no integer, "1" no number,
// null no value. A double without a range takes "NaN", "Infinity" and "-Infinity" too. encode
// leaves out empty strings and lists that have no default, so decode(encode(x)) is x.
#ifndef RPC_SCHEMA_FIELDS_H
#define RPC_SCHEMA_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/json/json.h"

typedef enum gs_field_type {
    GS_FIELD_STRING = 0,  // char[capacity] inside the struct
    GS_FIELD_INT,         // int64_t
    GS_FIELD_DOUBLE,      // double
    GS_FIELD_BOOL,        // bool
    GS_FIELD_ENUM,        // int: position in `words`
    GS_FIELD_OBJECT,      // a struct with a table of its own
    GS_FIELD_STRINGS,  // char[capacity][element_bytes]; int count at count_offset; one string is a
                       // list of one
    GS_FIELD_INTS,     // int64_t[capacity]; int count at count_offset; one number is a list of one
    GS_FIELD_OBJECTS,  // struct[capacity] of element_bytes; int count at count_offset
} gs_field_type;

typedef struct gs_field {
    const char *name;
    gs_field_type type;
    size_t offset;         // of the member in its struct
    size_t capacity;       // of strings (bytes with NUL) and lists (elements)
    size_t fewest;         // of lists (elements)
    size_t element_bytes;  // of lists
    size_t count_offset;   // of lists
    bool required;
    bool has_range;
    double least, most;              // of numbers and of the elements of INTS
    const char *default_value;       // JSON text: "0.0006", "\"adamw\"", "true"; NULL: zero
    const char *const *words;        // of enums, NULL-terminated
    const char *const *later_words;  // values that are known but not in this version; or NULL
    const char *const *synonyms;     // pairs, NULL-terminated: what others say, and the word that it is here; or NULL
    const char *pattern;             // of strings: POSIX extended regex, or NULL; "" passes unless required
    const struct gs_field *fields;   // of OBJECT and OBJECTS, ended by a row without a name
    const char *help;                // one sentence
} gs_field;

typedef struct gs_field_error {
    char pointer[128];  // "/reducer/bucket_cap_bytes"
    // "unknown_member", "wrong_type", "out_of_range", "missing", "too_long", "bad_pattern",
    // "bad_word", "too_many"; rules between members add their own, as "not_applicable"
    char code[32];
    char message[160], hint[96];
} gs_field_error;

#define GS_MAX_FIELD_ERRORS 32
typedef struct gs_field_errors {
    int count;  // all that were found, also those that no longer fit
    bool takes_old_values;  // out of a range or pattern: no error, the value is taken
    gs_field_error items[GS_MAX_FIELD_ERRORS];
} gs_field_errors;

void gs_field_errors_add(gs_field_errors *errors, const char *pointer, const char *code,
                         const char *hint, const char *format, ...) GS_PRINTF(5, 6);
// Whether a pointer of them begins with `prefix`. Rules between members speak of values that were given, or of
// defaults, but not of the default of one that was refused.
bool gs_field_errors_lie_in(const gs_field_errors *errors, const char *prefix);

// Writes defaults into the struct that `fields` describe (ended by a row without a name).
void gs_fields_set_defaults(void *out, const gs_field *fields);
// Defaults, then what `object` says. INVALID_ARGUMENT ("2 problems found") when errors->count > 0.
GS_NODISCARD gs_status gs_fields_decode(void *out, const gs_field *fields, const gs_json *object,
                                        gs_field_errors *errors);
// Of what was accepted once, maybe by a version with wider limits: what can be held is taken as it is.
GS_NODISCARD gs_status gs_fields_decode_stored(void *out, const gs_field *fields, const gs_json *object,
                                               gs_field_errors *errors);
gs_json *gs_fields_encode(const void *in, const gs_field *fields);
// JSON Schema of the object, in the subset common to OpenAPI 3.0 and 3.1.
gs_json *gs_fields_schema(const gs_field *fields, const char *description);
// {"errors":[{"pointer","code","message","hint"}…]}: the details of an INVALID_ARGUMENT reply.
gs_json *gs_field_errors_to_json(const gs_field_errors *errors);

#endif
