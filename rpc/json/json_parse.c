// Text → json-c objects, by RFC 8259 to the letter: json-c's own reader coerces, clamps and accepts
// more than JSON even when told to be strict. One pass, no look-ahead beyond a character, depth
// bounded. A string with an escaped NUL is refused: all our strings end at their first NUL.
#include "rpc/json/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "rpc/json/utf8.h"

#define MAX_DEPTH 32
#define TEXT_OF(number) TEXT_OF_DIGITS(number)
#define TEXT_OF_DIGITS(digits) #digits

typedef struct parser {
    const char *text;
    size_t at, end;
    bool relaxed;  // comments and trailing commas
    int depth;
    size_t containers_left;
    // A stack of unescaped strings: the names of the members that are open, and the string being
    // read. All of them are never longer than the text.
    char *scratch;
    size_t scratch_len;
    gs_status error;  // the first one
} parser;

static bool fail_at(parser *p, size_t at, const char *what) {
    if (!p->error.code) {
        p->error = gs_error(GS_INVALID_ARGUMENT, "%s at byte %zu", what, at);
    }
    return false;
}

static bool fail_memory(parser *p) {
    p->error = gs_error(GS_RESOURCE_EXHAUSTED, "json: out of memory");
    return false;
}

static bool skip_comment(parser *p) {
    size_t start = p->at;
    bool block = p->at + 1 < p->end && p->text[p->at + 1] == '*';
    if (!block && !(p->at + 1 < p->end && p->text[p->at + 1] == '/')) {
        return fail_at(p, start, "unexpected '/'");
    }
    for (p->at += 2; p->at < p->end; p->at++) {
        if (!block && p->text[p->at] == '\n') return true;
        if (block && p->text[p->at] == '*' && p->at + 1 < p->end && p->text[p->at + 1] == '/') {
            p->at += 2;
            return true;
        }
    }
    return block ? fail_at(p, start, "comment without an end") : true;
}

static bool skip_space(parser *p) {
    while (p->at < p->end) {
        char c = p->text[p->at];
        if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
            p->at++;
        else if (c == '/' && p->relaxed) {
            if (!skip_comment(p)) return false;
        } else
            return true;
    }
    return true;
}

// The next character that means something; NUL at the end of the text.
static char peek_char(const parser *p) {
    return p->at < p->end ? p->text[p->at] : '\0';
}

static bool read_hex(parser *p, uint32_t *unit) {
    *unit = 0;
    if (p->end - p->at < 4) return fail_at(p, p->at, "\\u without four digits");
    for (int i = 0; i < 4; i++) {
        char c = p->text[p->at++];
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A' + 10);
        else
            return fail_at(p, p->at - 1, "\\u without four digits");
        *unit = *unit << 4 | digit;
    }
    return true;
}

static void push_code_point(parser *p, uint32_t point) {
    char *out = p->scratch + p->scratch_len;
    if (point < 0x80) {
        out[0] = (char)point;
        p->scratch_len += 1;
    } else if (point < 0x800) {
        out[0] = (char)(0xc0 | point >> 6);
        out[1] = (char)(0x80 | (point & 0x3f));
        p->scratch_len += 2;
    } else if (point < 0x10000) {
        out[0] = (char)(0xe0 | point >> 12);
        out[1] = (char)(0x80 | (point >> 6 & 0x3f));
        out[2] = (char)(0x80 | (point & 0x3f));
        p->scratch_len += 3;
    } else {
        out[0] = (char)(0xf0 | point >> 18);
        out[1] = (char)(0x80 | (point >> 12 & 0x3f));
        out[2] = (char)(0x80 | (point >> 6 & 0x3f));
        out[3] = (char)(0x80 | (point & 0x3f));
        p->scratch_len += 4;
    }
}

// After "\u": one code point, from two escapes when it lies above U+FFFF.
static bool read_unicode_escape(parser *p) {
    size_t start = p->at - 2;
    uint32_t unit, low;
    if (!read_hex(p, &unit)) return false;
    if (unit == 0) return fail_at(p, start, "NUL in a string");
    if (unit >= 0xdc00 && unit <= 0xdfff) return fail_at(p, start, "half of a surrogate pair");
    if (unit >= 0xd800 && unit <= 0xdbff) {
        if (p->end - p->at < 2 || p->text[p->at] != '\\' || p->text[p->at + 1] != 'u') {
            return fail_at(p, start, "half of a surrogate pair");
        }
        p->at += 2;
        if (!read_hex(p, &low)) return false;
        if (low < 0xdc00 || low > 0xdfff) return fail_at(p, start, "half of a surrogate pair");
        unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
    }
    push_code_point(p, unit);
    return true;
}

static bool read_escape(parser *p) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    p->at++;
    char c = peek_char(p);
    p->at++;
    if (c == 'u') return read_unicode_escape(p);
    const char *found = c ? strchr(names, c) : NULL;
    if (!found) return fail_at(p, p->at - 2, "unknown escape");
    p->scratch[p->scratch_len++] = values[found - names];
    return true;
}

// Most text is this.
static void copy_plain_ascii(parser *p) {
    size_t at = p->at;
    while (at < p->end) {
        unsigned char c = (unsigned char)p->text[at];
        if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\') break;
        at++;
    }
    memcpy(p->scratch + p->scratch_len, p->text + p->at, at - p->at);
    p->scratch_len += at - p->at;
    p->at = at;
}

// Pushes the text onto the scratch stack, with a NUL.
static bool read_string(parser *p) {
    size_t start = p->at++;
    while (p->at < p->end) {
        copy_plain_ascii(p);
        if (p->at == p->end) break;
        unsigned char c = (unsigned char)p->text[p->at];
        if (c == '"') {
            p->at++;
            p->scratch[p->scratch_len++] = '\0';
            return true;
        }
        if (c == '\\') {
            if (!read_escape(p)) return false;
            continue;
        }
        if (c < 0x20) return fail_at(p, p->at, "control character in a string");
        size_t bytes = gs_utf8_char_bytes(p->text + p->at, p->end - p->at);
        if (bytes == 0) return fail_at(p, p->at, "text that is not UTF-8");
        memcpy(p->scratch + p->scratch_len, p->text + p->at, bytes);
        p->scratch_len += bytes;
        p->at += bytes;
    }
    return fail_at(p, start, "string without an end");
}

static bool skip_digits(parser *p) {
    size_t start = p->at;
    while (peek_char(p) >= '0' && peek_char(p) <= '9') p->at++;
    return p->at > start || fail_at(p, start, "digit expected");
}

// Exact where both the digits and the power of ten are (2^53, 10^22), as for nearly all numbers of
// a report; strtod, which is right for all, takes three times as long.
static double convert_decimal(const char *text) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                    1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char *c = text + (*text == '-');
    uint64_t digits = 0;
    int num_digits = 0, decimals = 0;
    for (; *c >= '0' && *c <= '9'; c++, num_digits++) digits = digits * 10 + (uint64_t)(*c - '0');
    if (*c == '.') {
        for (c++; *c >= '0' && *c <= '9'; c++, num_digits++, decimals++) {
            digits = digits * 10 + (uint64_t)(*c - '0');
        }
    }
    if (*c || num_digits > 15 || decimals > 22) return strtod(text, NULL);
    double value = (double)digits / powers[decimals];
    return *text == '-' ? -value : value;
}

static bool convert_number(parser *p, json_object **out, size_t start, bool is_int) {
    // Longer numbers have no meaning that a double or an int64 could keep.
    char text[512];
    size_t len = p->at - start;
    if (len >= sizeof text) return fail_at(p, start, "number too long");
    memcpy(text, p->text + start, len);
    text[len] = '\0';
    errno = 0;
    if (is_int) {
        long long value = strtoll(text, NULL, 10);
        if (errno) return fail_at(p, start, "integer beyond 64 bits");
        *out = json_object_new_int64(value);
    } else {
        double value = convert_decimal(text);
        if (!isfinite(value)) return fail_at(p, start, "number out of range");
        *out = json_object_new_double_s(value, text);  // encodes as it was written
    }
    return *out || fail_memory(p);
}

static bool read_number(parser *p, json_object **out) {
    size_t start = p->at;
    bool is_int = true;
    if (peek_char(p) == '-') p->at++;
    if (peek_char(p) == '0')
        p->at++;
    else if (!skip_digits(p))
        return false;
    if (peek_char(p) == '.') {
        is_int = false;
        p->at++;
        if (!skip_digits(p)) return false;
    }
    if (peek_char(p) == 'e' || peek_char(p) == 'E') {
        is_int = false;
        p->at++;
        if (peek_char(p) == '+' || peek_char(p) == '-') p->at++;
        if (!skip_digits(p)) return false;
    }
    return convert_number(p, out, start, is_int);
}

static bool read_value(parser *p, json_object **out);

// After an element: true at the end of the container, else past the comma.
static bool end_of_container(parser *p, char close, bool *ended) {
    *ended = false;
    if (!skip_space(p)) return false;
    char c = peek_char(p);
    if (c == ',') {
        p->at++;
        if (!skip_space(p)) return false;
        if (!p->relaxed || peek_char(p) != close) return true;
    } else if (c != close) {
        return fail_at(p, p->at, close == ']' ? "',' or ']' expected" : "',' or '}' expected");
    }
    p->at++;
    *ended = true;
    return true;
}

static bool read_array(parser *p, json_object *array) {
    bool ended = false;
    while (!ended) {
        json_object *value = NULL;
        if (!read_value(p, &value)) return false;
        if (json_object_array_add(array, value) != 0) {
            json_object_put(value);
            return fail_memory(p);
        }
        if (!end_of_container(p, ']', &ended)) return false;
    }
    return true;
}

static bool fail_twice(parser *p, size_t at, const char *key) {
    p->error = gs_error(GS_INVALID_ARGUMENT, "member \"%.64s\" twice at byte %zu", key, at);
    return false;
}

static bool read_member(parser *p, json_object *object) {
    size_t start = p->at, key_at = p->scratch_len;
    int count = json_object_object_length(object);
    if (peek_char(p) != '"') return fail_at(p, start, "member name expected");
    if (!read_string(p)) return false;
    const char *key = p->scratch + key_at;
    json_object *value = NULL;
    bool ok = skip_space(p);
    if (ok && peek_char(p) != ':') ok = fail_at(p, p->at, "':' expected");
    p->at++;
    ok = ok && skip_space(p) && read_value(p, &value);
    if (!ok) return false;
    if (json_object_object_add(object, key, value) != 0) {
        json_object_put(value);
        return fail_memory(p);
    }
    p->scratch_len = key_at;
    return json_object_object_length(object) > count || fail_twice(p, start, key);
}

static bool read_object(parser *p, json_object *object) {
    bool ended = false;
    while (!ended) {
        if (!read_member(p, object) || !end_of_container(p, '}', &ended)) return false;
    }
    return true;
}

static bool read_container(parser *p, json_object **out) {
    bool is_array = peek_char(p) == '[';
    char close = is_array ? ']' : '}';
    if (++p->depth > MAX_DEPTH) return fail_at(p, p->at, "more than 32 levels deep");
    if (p->containers_left-- == 0) return fail_at(p, p->at, "more than " TEXT_OF(GS_JSON_MOST_CONTAINERS) " objects and arrays");
    p->at++;
    json_object *container = is_array ? json_object_new_array() : json_object_new_object();
    if (!container) return fail_memory(p);
    bool ok = skip_space(p);
    if (ok && peek_char(p) == close)
        p->at++;
    else
        ok = ok && (is_array ? read_array(p, container) : read_object(p, container));
    p->depth--;
    if (!ok)
        json_object_put(container);
    else
        *out = container;
    return ok;
}

static bool read_word(parser *p, const char *word) {
    size_t len = strlen(word);
    if (p->end - p->at < len || memcmp(p->text + p->at, word, len) != 0) {
        return fail_at(p, p->at, "value expected");
    }
    p->at += len;
    return true;
}

static bool read_value(parser *p, json_object **out) {
    if (!skip_space(p)) return false;
    char c = peek_char(p);
    if (c == '{' || c == '[') return read_container(p, out);
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(p, out);
    if (c == 'n') return read_word(p, "null");  // json-c's null is NULL
    if (c == '"') {
        size_t start = p->scratch_len;
        if (!read_string(p)) return false;
        *out = json_object_new_string_len(p->scratch + start, (int)(p->scratch_len - start - 1));
        p->scratch_len = start;
    } else if (c == 't' || c == 'f') {
        if (!read_word(p, c == 't' ? "true" : "false")) return false;
        *out = json_object_new_boolean(c == 't');
    } else {
        return fail_at(p, p->at,
                       p->at < p->end ? "value expected" : "value expected, not the end,");
    }
    return *out || fail_memory(p);
}

static gs_status parse_text(gs_json **out, const char *text, size_t bytes, bool relaxed, size_t most_containers) {
    *out = NULL;
    if (bytes > INT32_MAX) return gs_error(GS_INVALID_ARGUMENT, "json: longer than 2 GiB");
    parser p = {.text = text, .end = bytes, .relaxed = relaxed, .containers_left = most_containers, .error = gs_ok()};
    char small[4096];
    p.scratch = bytes < sizeof small ? small : malloc(bytes + 1);
    if (!p.scratch) return gs_error(GS_RESOURCE_EXHAUSTED, "json: out of memory");
    json_object *value = NULL;
    bool ok = read_value(&p, &value) && skip_space(&p);
    if (ok && p.at < p.end) ok = fail_at(&p, p.at, "more after the value");
    if (p.scratch != small) free(p.scratch);
    if (ok)
        *out = (gs_json *)value;
    else
        json_object_put(value);
    return p.error;
}

gs_status gs_json_parse(gs_json **out, const char *text, size_t bytes) {
    return parse_text(out, text, bytes, false, SIZE_MAX);
}

gs_status gs_json_parse_foreign(gs_json **out, const char *text, size_t bytes) {
    return parse_text(out, text, bytes, false, GS_JSON_MOST_CONTAINERS);
}

gs_status gs_json_parse_relaxed(gs_json **out, const char *text, size_t bytes) {
    return parse_text(out, text, bytes, true, SIZE_MAX);
}
