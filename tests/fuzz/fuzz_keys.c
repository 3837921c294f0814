// Whatever a file of a key, a list of known keys or a token to enrol with says: the reader says what is wrong, or what it read
// is written as something that is read as the same. "{" begins a file, and "keys" in it a list; anything else is a token.
#include <stdlib.h>
#include <string.h>

#include "rpc/keys/key_list.h"
#include "tests/fuzz/fuzz.h"

static void read_token(const uint8_t *data, size_t bytes) {
    gs_key_file key;
    char text[GS_ENROL_TOKEN_BYTES];
    if (gs_enrol_token_parse(&key, (const char *)data, bytes).code) return;
    gs_enrol_token_format(text, &key.server, &key.pair.secret);
    if (bytes != GS_ENROL_TOKEN_BYTES - 1 || memcmp(text, data, bytes) != 0) abort();
}

static void read_key(const gs_json *file) {
    gs_key_file key, again;
    if (gs_key_file_decode(&key, file).code) return;
    if (!gs_key_name_is_sound(key.name)) abort();
    gs_json *written = gs_key_file_encode(&key);
    if (gs_key_file_decode(&again, written).code || memcmp(&key, &again, sizeof key) != 0) abort();
    gs_json_release(written);
}

static void read_list(const gs_json *file) {
    gs_key_list list = {0}, again = {0};
    if (gs_key_list_decode(&list, file).code) {
        if (list.items) abort();
        return;
    }
    gs_json *written = gs_key_list_encode(&list);
    if (!written || gs_key_list_decode(&again, written).code || again.count != list.count) abort();
    for (size_t i = 0; i < list.count; i++) {
        if (memcmp(&list.items[i], &again.items[i], sizeof list.items[i]) != 0) abort();
        if (gs_key_list_find(&list, &list.items[i].shown) != &list.items[i]) abort();
        if (gs_key_list_find_id(&list, list.items[i].id) != &list.items[i]) abort();
    }
    gs_json_release(written);
    gs_key_list_release(&list);
    gs_key_list_release(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    gs_json *file = NULL;
    if (bytes == 0 || data[0] != '{') {
        read_token(data, bytes);
        return 0;
    }
    if (gs_json_parse(&file, (const char *)data, bytes).code) return 0;
    if (gs_json_get(file, "keys")) read_list(file);
    else read_key(file);
    gs_json_release(file);
    return 0;
}
