#include "rpc/json/base64.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *gs_base64_encode(const void *data, size_t bytes) {
    const unsigned char *in = data;
    if (bytes > SIZE_MAX / 2) return NULL;
    char *text = malloc((bytes + 2) / 3 * 4 + 1), *out = text;
    if (!text) return NULL;
    for (size_t i = 0; i < bytes; i += 3) {
        size_t left = bytes - i;
        uint32_t group = (uint32_t)in[i] << 16;
        if (left > 1) group |= (uint32_t)in[i + 1] << 8;
        if (left > 2) group |= in[i + 2];
        *out++ = digits[group >> 18];
        *out++ = digits[group >> 12 & 63];
        *out++ = left > 1 ? digits[group >> 6 & 63] : '=';
        *out++ = left > 2 ? digits[group & 63] : '=';
    }
    *out = '\0';
    return text;
}

static int digit_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    return c == '/' ? 63 : -1;
}

bool gs_base64_decode(void *data, size_t *bytes, const char *text) {
    unsigned char *out = data;
    size_t len = strlen(text), count = 0;
    *bytes = 0;
    if (len % 4) return false;
    for (size_t i = 0; i < len; i += 4) {
        bool last = i + 4 == len;
        int padding = last && text[i + 3] == '=' ? (text[i + 2] == '=' ? 2 : 1) : 0;
        uint32_t group = 0;
        for (size_t j = 0; j < 4; j++) {
            int value = j >= 4 - (size_t)padding ? 0 : digit_value(text[i + j]);
            if (value < 0) return false;
            group = group << 6 | (uint32_t)value;
        }
        // Bits under the padding must be zero, or two texts would mean the same bytes.
        if (padding && group & (padding == 2 ? 0xffffu : 0xffu)) return false;
        out[count++] = (unsigned char)(group >> 16);
        if (padding < 2) out[count++] = (unsigned char)(group >> 8);
        if (padding < 1) out[count++] = (unsigned char)group;
    }
    *bytes = count;
    return true;
}
