#include "rpc/json/config_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/strbuf.h"
#include "rpc/json/json.h"

enum { MAX_FILE_BYTES = 1 << 20 };

typedef struct member_walk {
    const char *path;
    gs_status (*set)(void *set_ctx, const char *name, const char *value);
    void *set_ctx;
    gs_status status;
} member_walk;

static bool set_member(void *ctx, const char *key, const gs_json *value) {
    member_walk *walk = ctx;
    char number[40];
    int64_t whole = 0;
    double real = 0;
    const char *text = gs_json_string(value);
    if (!text && gs_json_type_of(value) == GS_JSON_BOOL) {
        gs_json *holder = gs_json_new_object();
        gs_json_set(holder, "b", gs_json_copy(value));
        text = gs_json_bool_or(holder, "b", false) ? "true" : "false";
        gs_json_release(holder);
    } else if (!text && gs_json_int(&whole, value)) {
        snprintf(number, sizeof number, "%" PRId64, whole);
        text = number;
    } else if (!text && gs_json_double(&real, value)) {
        snprintf(number, sizeof number, "%.17g", real);
        text = number;
    }
    if (text)
        walk->status = walk->set(walk->set_ctx, key, text);
    else
        walk->status = gs_error(GS_INVALID_ARGUMENT, "%s: %s is not a string, number or boolean",
                                walk->path, key);
    return walk->status.code == GS_OK;
}

static gs_status read_text(gs_strbuf *text, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return gs_error_from_errno(errno, "%s", path);
    char block[4096];
    ssize_t got;
    gs_status status = gs_ok();
    while ((got = read(fd, block, sizeof block)) > 0) {
        gs_strbuf_add(text, block, (size_t)got);
        if (text->len > MAX_FILE_BYTES) break;
    }
    if (got < 0)
        status = gs_error_from_errno(errno, "%s", path);
    else if (text->len > MAX_FILE_BYTES)
        status = gs_error(GS_INVALID_ARGUMENT, "%s: larger than 1 MiB", path);
    close(fd);
    return status;
}

gs_status gs_config_file_read(const char *path,
                              gs_status (*set)(void *set_ctx, const char *name, const char *value),
                              void *set_ctx) {
    gs_strbuf text = {0};
    gs_json *object = NULL;
    gs_status status = read_text(&text, path);
    if (!status.code)
        status = gs_status_prefix(gs_json_parse_relaxed(&object, gs_strbuf_text(&text), text.len),
                                  "%s", path);
    if (!status.code && gs_json_type_of(object) != GS_JSON_OBJECT)
        status = gs_error(GS_INVALID_ARGUMENT, "%s: not a JSON object", path);
    if (!status.code) {
        member_walk walk = {.path = path, .set = set, .set_ctx = set_ctx, .status = gs_ok()};
        gs_json_each(object, set_member, &walk);
        status = walk.status;
    }
    gs_json_release(object);
    gs_strbuf_release(&text);
    return status;
}
