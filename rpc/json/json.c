#include "rpc/json/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "core/clock.h"
#include "rpc/json/base64.h"
#include "rpc/json/utf8.h"

// A value that could not be made. It is told apart from NULL, which is "no value", so that a setter
// can pass the failure on to its container.
static char lost_value;
#define LOST ((gs_json *)&lost_value)

static json_object *unwrap(const gs_json *value) {
    return value == LOST ? NULL : (json_object *)(uintptr_t)value;
}

static gs_json *wrap_new(json_object *object) {
    return object ? (gs_json *)object : LOST;
}

// Containers remember in their user data that a member was lost.
static void mark_lost(json_object *container) {
    json_object_set_userdata(container, &lost_value, NULL);
}

static bool is_whole(json_object *value) {
    if (json_object_is_type(value, json_type_object)) {
        if (json_object_get_userdata(value) == &lost_value) return false;
        json_object_object_foreach(value, key, member) {
            (void)key;
            if (!is_whole(member)) return false;
        }
    } else if (json_object_is_type(value, json_type_array)) {
        if (json_object_get_userdata(value) == &lost_value) return false;
        size_t count = json_object_array_length(value);
        for (size_t i = 0; i < count; i++) {
            if (!is_whole(json_object_array_get_idx(value, i))) return false;
        }
    }
    return true;
}

gs_status gs_json_encode(char **text, size_t *bytes, const gs_json *value, bool pretty) {
    *text = NULL;
    json_object *object = unwrap(value);
    size_t len = 0;
    int flags = JSON_C_TO_STRING_NOSLASHESCAPE |
                (pretty ? JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED : 0);
    const char *encoded =
        object && is_whole(object) ? json_object_to_json_string_length(object, flags, &len) : NULL;
    // json-c keeps the text in the value; the caller gets a copy that outlives it.
    char *copy = encoded ? malloc(len + 1) : NULL;
    if (!copy) return gs_error(GS_RESOURCE_EXHAUSTED, "json: out of memory, or nothing to encode");
    memcpy(copy, encoded, len + 1);
    *text = copy;
    if (bytes) *bytes = len;
    return gs_ok();
}

static size_t most_text_bytes(const char *text, size_t len) {
    size_t quoted = 0, control = 0;  // without branches: in text that is JSON itself each would be a guess
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        quoted += (size_t)((c == '"') | (c == '\\'));
        control += (size_t)(c < 0x20);
    }
    return 2 + len + quoted + 5 * control;
}

size_t gs_json_most_bytes(const gs_json *value) {
    json_object *object = unwrap(value);
    size_t bytes = 2;
    switch (json_object_get_type(object)) {
    case json_type_null: return strlen("null");
    case json_type_boolean: return strlen("false");
    case json_type_int: return strlen("-9223372036854775808");
    case json_type_double: return strlen("-1.2345678901234567e-308");
    case json_type_string:
        return most_text_bytes(json_object_get_string(object), (size_t)json_object_get_string_len(object));
    case json_type_array:
        for (size_t i = 0; i < json_object_array_length(object); i++)
            bytes += gs_json_most_bytes((const gs_json *)json_object_array_get_idx(object, i)) + 1;
        return bytes;
    case json_type_object: break;
    }
    json_object_object_foreach(object, key, member)
        bytes += most_text_bytes(key, strlen(key)) + gs_json_most_bytes((const gs_json *)member) + 2;
    return bytes;
}

gs_json *gs_json_retain(gs_json *value) {
    if (unwrap(value)) json_object_get(unwrap(value));
    return value;
}

void gs_json_release(gs_json *value) {
    if (unwrap(value)) json_object_put(unwrap(value));
}

gs_json *gs_json_copy(const gs_json *value) {
    json_object *copy = NULL;
    if (!unwrap(value)) return (gs_json *)(uintptr_t)value;
    if (!is_whole(unwrap(value)) || json_object_deep_copy(unwrap(value), &copy, NULL) != 0)
        return LOST;
    return (gs_json *)copy;
}

gs_json *gs_json_new_object(void) {
    return wrap_new(json_object_new_object());
}
gs_json *gs_json_new_array(void) {
    return wrap_new(json_object_new_array());
}
gs_json *gs_json_new_int(int64_t value) {
    return wrap_new(json_object_new_int64(value));
}
gs_json *gs_json_new_bool(bool value) {
    return wrap_new(json_object_new_boolean(value));
}

gs_json *gs_json_new_string(const char *text) {
    return text ? gs_json_new_string_len(text, strlen(text)) : NULL;
}

// Output of programs and file names may be any bytes: what is not UTF-8, and NUL, becomes U+FFFD.
gs_json *gs_json_new_string_len(const char *text, size_t bytes) {
    if (bytes > INT32_MAX / 4) return LOST;
    size_t good = gs_ascii_bytes(text, bytes), step;
    while (good < bytes && text[good] &&
           (step = gs_utf8_char_bytes(text + good, bytes - good)) > 0) {
        good += step;
    }
    if (good == bytes) return wrap_new(json_object_new_string_len(text, (int)bytes));
    char *clean = malloc(bytes * 3 + 1);
    if (!clean) return LOST;
    size_t len = 0;
    for (size_t i = 0; i < bytes; i += step) {
        step = text[i] ? gs_utf8_char_bytes(text + i, bytes - i) : 0;
        if (step) memcpy(clean + len, text + i, step);
        else memcpy(clean + len, "\xef\xbf\xbd", 3);
        len += step ? step : 3;
        step = step ? step : 1;
    }
    json_object *value = json_object_new_string_len(clean, (int)len);
    free(clean);
    return wrap_new(value);
}

static int write_verbatim(json_object *value, struct printbuf *out, int level, int flags) {
    (void)level;
    (void)flags;
    return printbuf_memappend(out, json_object_get_string(value), json_object_get_string_len(value));
}

gs_json *gs_json_new_encoded(const gs_json *value) {
    char *text;
    size_t bytes;
    if (gs_json_encode(&text, &bytes, value, false).code) return LOST;
    gs_json *encoded = gs_json_new_text(text, bytes);
    free(text);
    return encoded;
}

gs_json *gs_json_new_text(const char *text, size_t bytes) {
    json_object *encoded = bytes <= INT32_MAX ? json_object_new_string_len(text, (int)bytes) : NULL;
    if (encoded) json_object_set_serializer(encoded, write_verbatim, NULL, NULL);
    return wrap_new(encoded);
}

static bool needs_escapes(const char *text) {
    for (; *text; text++)
        if (*text < 0x20 || *text > 0x7e || *text == '"' || *text == '\\') return true;
    return false;
}

void gs_json_quote(gs_strbuf *out, const char *text) {
    if (!needs_escapes(text)) {
        gs_strbuf_putc(out, '"');
        gs_strbuf_puts(out, text);
        gs_strbuf_putc(out, '"');
        return;
    }
    char *encoded = NULL;
    gs_json *value = gs_json_new_string(text);
    if (gs_json_encode(&encoded, NULL, value, false).code) out->failed = true;
    else gs_strbuf_puts(out, encoded);
    free(encoded);
    gs_json_release(value);
}

// The shortest of four precisions that reads back as the same number, always with a sign of being a
// double, so that it is one again after a round trip.
static void format_double(char text[40], double value) {
    static const int digits[] = {9, 15, 16, 17};
    for (int i = 0; i < 4; i++) {
        snprintf(text, 32, "%.*g", digits[i], value);
        if (strtod(text, NULL) == value) break;
    }
    if (!strpbrk(text, ".e")) strcat(text, ".0");
}

gs_json *gs_json_new_double(double value) {
    if (isnan(value)) return gs_json_new_string("NaN");
    if (isinf(value)) return gs_json_new_string(value > 0 ? "Infinity" : "-Infinity");
    char text[40];
    format_double(text, value);
    return wrap_new(json_object_new_double_s(value, text));
}

void gs_json_set(gs_json *object, const char *key, gs_json *value) {
    json_object *container = unwrap(object);
    if (!json_object_is_type(container, json_type_object) || !value || value == LOST) {
        if (container && value == LOST) mark_lost(container);
        gs_json_release(value);
        return;
    }
    if (json_object_object_add(container, key, unwrap(value)) != 0) {
        mark_lost(container);
        gs_json_release(value);
    }
}

void gs_json_set_string(gs_json *object, const char *key, const char *text) {
    gs_json_set(object, key, gs_json_new_string(text));
}

void gs_json_set_int(gs_json *object, const char *key, int64_t value) {
    gs_json_set(object, key, gs_json_new_int(value));
}

void gs_json_set_u64(gs_json *object, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    gs_json_set(object, key, gs_json_new_string(text));
}

void gs_json_set_double(gs_json *object, const char *key, double value) {
    gs_json_set(object, key, gs_json_new_double(value));
}

void gs_json_set_bool(gs_json *object, const char *key, bool value) {
    gs_json_set(object, key, gs_json_new_bool(value));
}

void gs_json_set_bytes(gs_json *object, const char *key, const void *data, size_t bytes) {
    char *text = gs_base64_encode(data, bytes);
    gs_json_set(object, key, text ? gs_json_new_string(text) : LOST);
    free(text);
}

void gs_json_set_time(gs_json *object, const char *key, int64_t wall_ms) {
    char text[GS_TIMESTAMP_LEN];
    gs_timestamp_format(text, wall_ms);
    gs_json_set(object, key, gs_json_new_string(text));
}

void gs_json_remove(gs_json *object, const char *key) {
    if (json_object_is_type(unwrap(object), json_type_object)) {
        json_object_object_del(unwrap(object), key);
    }
}

void gs_json_push(gs_json *array, gs_json *value) {
    json_object *container = unwrap(array);
    if (!json_object_is_type(container, json_type_array) || !value || value == LOST) {
        if (container && value == LOST) mark_lost(container);
        gs_json_release(value);
        return;
    }
    if (json_object_array_add(container, unwrap(value)) != 0) {
        mark_lost(container);
        gs_json_release(value);
    }
}

gs_json_type gs_json_type_of(const gs_json *value) {
    switch (json_object_get_type(unwrap(value))) {
    case json_type_boolean: return GS_JSON_BOOL;
    case json_type_int: return GS_JSON_INT;
    case json_type_double: return GS_JSON_DOUBLE;
    case json_type_string: return GS_JSON_STRING;
    case json_type_array: return GS_JSON_ARRAY;
    case json_type_object: return GS_JSON_OBJECT;
    case json_type_null: break;
    }
    return GS_JSON_NULL;
}

const gs_json *gs_json_get(const gs_json *object, const char *key) {
    json_object *value = NULL;
    if (!json_object_is_type(unwrap(object), json_type_object)) return NULL;
    json_object_object_get_ex(unwrap(object), key, &value);
    return (const gs_json *)value;
}

size_t gs_json_count(const gs_json *container) {
    json_object *object = unwrap(container);
    if (json_object_is_type(object, json_type_array)) return json_object_array_length(object);
    if (json_object_is_type(object, json_type_object))
        return (size_t)json_object_object_length(object);
    return 0;
}

const gs_json *gs_json_at(const gs_json *array, size_t index) {
    if (!json_object_is_type(unwrap(array), json_type_array)) return NULL;
    return (const gs_json *)json_object_array_get_idx(unwrap(array), index);
}

void gs_json_each(const gs_json *object,
                  bool (*visit)(void *ctx, const char *key, const gs_json *value), void *ctx) {
    if (!json_object_is_type(unwrap(object), json_type_object)) return;
    json_object_object_foreach(unwrap(object), key, value) {
        if (!visit(ctx, key, (const gs_json *)value)) return;
    }
}

const char *gs_json_string(const gs_json *value) {
    if (!json_object_is_type(unwrap(value), json_type_string)) return NULL;
    return json_object_get_string(unwrap(value));
}

bool gs_json_int(int64_t *value, const gs_json *json) {
    if (!json_object_is_type(unwrap(json), json_type_int)) return false;
    *value = json_object_get_int64(unwrap(json));
    return true;
}

bool gs_json_double(double *value, const gs_json *json) {
    const char *text = gs_json_string(json);
    gs_json_type type = gs_json_type_of(json);
    if (text && strcmp(text, "NaN") == 0) *value = NAN;
    else if (text && strcmp(text, "Infinity") == 0) *value = INFINITY;
    else if (text && strcmp(text, "-Infinity") == 0) *value = -INFINITY;
    else if (type == GS_JSON_DOUBLE || type == GS_JSON_INT)
        *value = json_object_get_double(unwrap(json));
    else return false;
    return true;
}

bool gs_json_is_true(const gs_json *value) {
    json_object *object = unwrap(value);
    return json_object_is_type(object, json_type_boolean) && json_object_get_boolean(object);
}

const char *gs_json_string_or(const gs_json *object, const char *key, const char *fallback) {
    const char *text = gs_json_string(gs_json_get(object, key));
    return text ? text : fallback;
}

int64_t gs_json_int_or(const gs_json *object, const char *key, int64_t fallback) {
    int64_t value;
    return gs_json_int(&value, gs_json_get(object, key)) ? value : fallback;
}

double gs_json_double_or(const gs_json *object, const char *key, double fallback) {
    double value;
    return gs_json_double(&value, gs_json_get(object, key)) ? value : fallback;
}

bool gs_json_bool_or(const gs_json *object, const char *key, bool fallback) {
    const gs_json *member = gs_json_get(object, key);
    return gs_json_type_of(member) == GS_JSON_BOOL ? gs_json_is_true(member) : fallback;
}

static gs_status refuse_member(const char *key, const gs_json *object, const char *wanted) {
    if (!gs_json_get(object, key))
        return gs_error(GS_INVALID_ARGUMENT, "member %s is missing", key);
    return gs_error(GS_INVALID_ARGUMENT, "member %s must be %s", key, wanted);
}

gs_status gs_json_read_int(int64_t *value, const gs_json *object, const char *key, int64_t least,
                           int64_t most) {
    int64_t number;
    if (!gs_json_int(&number, gs_json_get(object, key)))
        return refuse_member(key, object, "an integer");
    if (number < least || number > most) {
        return gs_error(GS_INVALID_ARGUMENT, "member %s is %lld, not between %lld and %lld", key,
                        (long long)number, (long long)least, (long long)most);
    }
    *value = number;
    return gs_ok();
}

gs_status gs_json_read_u64(uint64_t *value, const gs_json *object, const char *key) {
    const char *text = gs_json_string(gs_json_get(object, key));
    static const char wanted[] = "a decimal number below 2^64, as a string";
    if (!text || !*text || strspn(text, "0123456789") != strlen(text)) {
        return refuse_member(key, object, wanted);
    }
    errno = 0;
    unsigned long long number = strtoull(text, NULL, 10);
    if (errno) return refuse_member(key, object, wanted);
    *value = number;
    return gs_ok();
}

gs_status gs_json_read_bytes(void **data, size_t *bytes, const gs_json *object, const char *key) {
    const char *text = gs_json_string(gs_json_get(object, key));
    if (!text) return refuse_member(key, object, "base64");
    size_t room = strlen(text) / 4 * 3 + 1;
    void *decoded = malloc(room);
    if (!decoded) return gs_error(GS_RESOURCE_EXHAUSTED, "json: out of memory");
    if (!gs_base64_decode(decoded, bytes, text)) {
        free(decoded);
        return refuse_member(key, object, "base64");
    }
    *data = decoded;
    return gs_ok();
}
