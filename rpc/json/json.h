// JSON as the rest of the program sees it: the only place that knows json-c.
//
// Parsing is strict: UTF-8, one value, no comments, no duplicate members, no NaN, depth ≤ 32.
// Getters never coerce. Every double goes through one writer: what is not finite becomes "NaN",
// "Infinity" or
// "-Infinity", and "/" is not escaped.
// JSON's null is the NULL pointer: gs_json_parse of "null" gives NULL, and gs_json_each shows
// members that are null. New strings: what is not UTF-8, and NUL, becomes U+FFFD, so what is
// encoded can be parsed; an escaped NUL in a text is refused. Values are reference counted: make
// and parse give one reference, setters *take* the value's reference, getters *borrow* from their
// container. Not shared between threads at the same time. Out of memory while building sticks:
// setters ignore such a value, and the encode of what should have held it fails. Setting NULL is
// allowed and does nothing.
#ifndef RPC_JSON_JSON_H
#define RPC_JSON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "core/strbuf.h"

typedef struct gs_json gs_json;

typedef enum gs_json_type {
    GS_JSON_NULL = 0,
    GS_JSON_BOOL,
    GS_JSON_INT,
    GS_JSON_DOUBLE,
    GS_JSON_STRING,
    GS_JSON_ARRAY,
    GS_JSON_OBJECT
} gs_json_type;

// INVALID_ARGUMENT says what and at which byte.
GS_NODISCARD gs_status gs_json_parse(gs_json **out, const char *text, size_t bytes);
// Text of somebody else: no more objects and arrays than this in it. An empty one is two bytes of text and some 800 of memory, so that a
// message of 1 MiB would become 280. As many tensors of a plan preview as fit into one are fewer.
#define GS_JSON_MOST_CONTAINERS 73728
GS_NODISCARD gs_status gs_json_parse_foreign(gs_json **out, const char *text, size_t bytes);
// Configuration files: comments and trailing commas allowed too.
GS_NODISCARD gs_status gs_json_parse_relaxed(gs_json **out, const char *text, size_t bytes);
// The text is the caller's (free()); *bytes may be NULL.
GS_NODISCARD gs_status gs_json_encode(char **text, size_t *bytes, const gs_json *value,
                                      bool pretty);
// At least what gs_json_encode needs for it when it is not pretty, in a fraction of the time.
size_t gs_json_most_bytes(const gs_json *value);
gs_json *gs_json_retain(gs_json *value);
void gs_json_release(gs_json *value);         // NULL is fine
gs_json *gs_json_copy(const gs_json *value);  // deep

gs_json *gs_json_new_object(void);
gs_json *gs_json_new_array(void);
gs_json *gs_json_new_string(const char *text);
gs_json *gs_json_new_string_len(const char *text, size_t bytes);
gs_json *gs_json_new_int(int64_t value);
gs_json *gs_json_new_double(double value);
gs_json *gs_json_new_bool(bool value);
// What `value` is as text, to be part of several documents: it cannot be looked into, only encoded.
gs_json *gs_json_new_encoded(const gs_json *value);
// Likewise of text that is JSON already: for long lists, of which a tree costs ten times as much. Strings in it are gs_json_quote's.
gs_json *gs_json_new_text(const char *text, size_t bytes);
void gs_json_quote(gs_strbuf *out, const char *text);

// A member of the object that `text` is, without reading the rest into a tree: true when it is there, a string without
// escapes, and fits. `text` was encoded by gs_json_encode.
GS_NODISCARD bool gs_json_peek_string(char *value, size_t value_bytes, const char *text, size_t bytes, const char *key);

// Building. Setters replace.
void gs_json_set(gs_json *object, const char *key, gs_json *value);           // takes value
void gs_json_set_string(gs_json *object, const char *key, const char *text);  // NULL: not set
void gs_json_set_int(gs_json *object, const char *key, int64_t value);
void gs_json_set_u64(gs_json *object, const char *key, uint64_t value);  // as a decimal string
void gs_json_set_double(gs_json *object, const char *key, double value);
void gs_json_set_bool(gs_json *object, const char *key, bool value);
void gs_json_set_bytes(gs_json *object, const char *key, const void *data, size_t bytes);  // base64
void gs_json_set_time(gs_json *object, const char *key, int64_t wall_ms);  // RFC 3339
void gs_json_remove(gs_json *object, const char *key);
void gs_json_push(gs_json *array, gs_json *value);  // takes value

// Looking. NULL containers are empty ones.
gs_json_type gs_json_type_of(const gs_json *value);
const gs_json *gs_json_get(const gs_json *object, const char *key);  // NULL when absent
size_t gs_json_count(const gs_json *container);
const gs_json *gs_json_at(const gs_json *array, size_t index);
// Calls visit for each member; stops when it returns false.
void gs_json_each(const gs_json *object,
                  bool (*visit)(void *ctx, const char *key, const gs_json *value), void *ctx);

// With a fallback when absent or of another type.
const char *gs_json_string_or(const gs_json *object, const char *key, const char *fallback);
int64_t gs_json_int_or(const gs_json *object, const char *key, int64_t fallback);
double gs_json_double_or(const gs_json *object, const char *key,
                         double fallback);  // ints, "NaN" too
bool gs_json_bool_or(const gs_json *object, const char *key, bool fallback);

// Without one: INVALID_ARGUMENT names the member.
GS_NODISCARD gs_status gs_json_read_int(int64_t *value, const gs_json *object, const char *key,
                                        int64_t least, int64_t most);
GS_NODISCARD gs_status gs_json_read_u64(uint64_t *value, const gs_json *object, const char *key);
// The data is the caller's (free()).
GS_NODISCARD gs_status gs_json_read_bytes(void **data, size_t *bytes, const gs_json *object,
                                          const char *key);
// The value itself.
const char *gs_json_string(const gs_json *value);  // NULL when it is no string
bool gs_json_int(int64_t *value, const gs_json *json);
bool gs_json_double(double *value,
                    const gs_json *json);    // ints, "NaN", "Infinity", "-Infinity" too
bool gs_json_is_true(const gs_json *value);  // false for anything but true

#endif
