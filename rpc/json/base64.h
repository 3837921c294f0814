// Opaque bytes inside JSON: RFC 4648 base64 with padding, one spelling for each value.
#ifndef RPC_JSON_BASE64_H
#define RPC_JSON_BASE64_H

#include <stdbool.h>
#include <stddef.h>

// The text is the caller's (free()); NULL: out of memory.
char *gs_base64_encode(const void *data, size_t bytes);
// `data` has room for strlen(text) / 4 * 3 bytes. False when the text is not canonical base64.
bool gs_base64_decode(void *data, size_t *bytes, const char *text);

#endif
