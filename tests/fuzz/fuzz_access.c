// Whatever an Authorization header, a file of tokens or a file of contexts says: the reader says what is wrong, or
// what it read is written as something that is read as the same. The first byte says which: "{" is a file, and
// "contexts" in it one of contexts; anything else is a header.
#include <stdlib.h>
#include <string.h>

#include "api/access/token_list.h"
#include "api/cli/contexts.h"
#include "tests/fuzz/fuzz.h"

static void read_header(const uint8_t *data, size_t bytes) {
    gs_secret_hash hash, again;
    char *text = malloc(bytes + 1), hex[GS_SECRET_HASH_TEXT_BYTES];
    if (!text) abort();
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    if (gs_secret_hash_of_header(&hash, text)) {
        gs_secret_hash_format(hex, &hash);
        if (!gs_secret_hash_parse(&again, hex) || !gs_secret_hash_equal(&hash, &again)) abort();
    } else if (gs_secret_hash_parse(&hash, text)) {
        gs_secret_hash_format(hex, &hash);
        if (strcmp(hex, text) != 0) abort();
    }
    free(text);
}

static char *write_list(const gs_token_list *list) {
    char *text = NULL;
    gs_json *file = gs_token_list_encode(list);
    if (!file || gs_json_encode(&text, NULL, file, false).code) abort();
    gs_json_release(file);
    return text;
}

static void read_list(const gs_json *file) {
    gs_token_list list = {0}, again = {0};
    if (gs_token_list_decode(&list, file).code) {
        if (list.items) abort();
        return;
    }
    char *text = write_list(&list);
    gs_json *written = NULL;
    if (gs_json_parse(&written, text, strlen(text)).code || gs_token_list_decode(&again, written).code) abort();
    char *text_again = write_list(&again);
    if (strcmp(text, text_again) != 0) abort();
    for (size_t i = 0; i < list.count; i++)
        if (gs_token_list_find(&list, &list.items[i].hash) != &list.items[i]) abort();
    free(text);
    free(text_again);
    gs_json_release(written);
    gs_token_list_release(&list);
    gs_token_list_release(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static gs_cli_contexts contexts;
    gs_json *file = NULL;
    if (bytes == 0 || data[0] != '{') {
        read_header(data, bytes);
        return 0;
    }
    if (gs_json_parse(&file, (const char *)data, bytes).code) return 0;
    if (gs_json_get(file, "contexts")) {
        if (!gs_cli_contexts_decode(&contexts, file).code && contexts.count > GS_CONTEXTS_MOST) abort();
    } else {
        read_list(file);
    }
    gs_json_release(file);
    return 0;
}
