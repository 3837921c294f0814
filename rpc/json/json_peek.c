// One member of a text, for who hands the text on as it is.
#include <string.h>

#include "rpc/json/json.h"

// Behind the string that begins at `at`; NULL: it has no end.
static const char *skip_string(const char *at, const char *end) {
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\') at++;
    return at < end ? at + 1 : NULL;
}

// The string that begins at `at`, without its quotes.
static bool copy_plain(char *value, size_t value_bytes, const char *at, const char *end) {
    const char *behind = *at == '"' ? skip_string(at, end) : NULL;
    size_t length = behind ? (size_t)(behind - at) - 2 : 0;
    if (!behind || length >= value_bytes || memchr(at + 1, '\\', length)) return false;
    memcpy(value, at + 1, length);
    value[length] = '\0';
    return true;
}

// A string at depth 1 with a colon behind it is a key of the object, whatever strings within hold.
bool gs_json_peek_string(char *value, size_t value_bytes, const char *text, size_t bytes, const char *key) {
    const char *end = text + bytes, *at = text;
    size_t key_bytes = strlen(key);
    int depth = 0;
    while (at < end) {
        if (*at == '{' || *at == '[') depth++;
        if (*at == '}' || *at == ']') depth--;
        if (*at != '"') {
            at++;
            continue;
        }
        const char *name = at + 1;
        at = skip_string(at, end);
        if (!at) return false;
        if (depth != 1 || at + 1 >= end || *at != ':') continue;
        if ((size_t)(at - 1 - name) != key_bytes || memcmp(name, key, key_bytes) != 0) continue;
        return copy_plain(value, value_bytes, at + 1, end);
    }
    return false;
}
