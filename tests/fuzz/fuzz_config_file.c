// Whatever a file of settings says: it is refused, or each of its members comes once, in its order, as a text that is a setting's, and
// means what the member said.
#include <stdlib.h>
#include <string.h>

#include "rpc/json/config_file.h"
#include "rpc/json/json.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/one_file.h"

static void require(bool holds) {
    if (!holds) abort();
}

typedef struct settings {
    const gs_json *file;
    size_t count;
} settings;

static gs_status take(void *ctx, const char *name, const char *text) {
    settings *seen = ctx;
    const gs_json *value = gs_json_get(seen->file, name);
    gs_json *read = NULL;
    int64_t whole, whole_again;
    double real, real_again;
    seen->count++;
    require(value != NULL);
    if (gs_json_string(value)) {
        require(strcmp(gs_json_string(value), text) == 0);
        return gs_ok();
    }
    if (gs_json_type_of(value) == GS_JSON_BOOL) {
        require(strcmp(text, gs_json_is_true(value) ? "true" : "false") == 0);
        return gs_ok();
    }
    require(!gs_json_parse(&read, text, strlen(text)).code);
    if (gs_json_int(&whole, value)) require(gs_json_int(&whole_again, read) && whole == whole_again);
    else require(gs_json_double(&real, value) && gs_json_double(&real_again, read) && real == real_again);
    gs_json_release(read);
    return gs_ok();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    settings seen = {0};
    char path[128];
    gs_json *file = NULL;
    gs_status parsed = gs_json_parse_relaxed(&file, (const char *)data, bytes);
    seen.file = file;
    fuzz_write("settings", data, bytes);
    snprintf(path, sizeof path, "%s/settings", fuzz_dir());
    gs_status status = gs_config_file_read(path, take, &seen);
    require(!parsed.code || status.code);
    require(status.code || (gs_json_type_of(file) == GS_JSON_OBJECT && seen.count == gs_json_count(file)));
    require(!status.code || strstr(status.message, "settings"));
    gs_json_release(file);
    return 0;
}

static void __attribute__((destructor)) remove_file(void) {
    fuzz_remove("settings");
}
