#include "api/cli/contexts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/directory.h"
#include "core/random.h"
#include "rpc/schema/fields.h"

enum { MOST_BYTES = 1 << 20 };

#define TEXT(member, is_required, rule)                                                                       \
    {.name = #member, .type = GS_FIELD_STRING, .offset = offsetof(gs_cli_context, member),                    \
     .capacity = sizeof(((gs_cli_context *)0)->member), .required = is_required, .pattern = rule,             \
     .default_value = is_required ? NULL : "\"\"", .help = "Of a context."}

static const gs_field context_fields[] = {
    TEXT(name, true, "^[A-Za-z0-9][A-Za-z0-9._:-]*$"),
    TEXT(server, true, "^[a-z]+:[!-~]+$"),
    TEXT(token, false, "^[!-~]+$"),
    TEXT(cacert, false, NULL),
    {0}};

static const gs_field file_fields[] = {
    {.name = "current", .type = GS_FIELD_STRING, .offset = offsetof(gs_cli_contexts, current), .capacity = 64,
     .default_value = "\"\"", .help = "Where commands go."},
    {.name = "contexts", .type = GS_FIELD_OBJECTS, .offset = offsetof(gs_cli_contexts, items),
     .capacity = GS_CONTEXTS_MOST, .element_bytes = sizeof(gs_cli_context),
     .count_offset = offsetof(gs_cli_contexts, count), .fields = context_fields, .help = "By name."},
    {0}};

gs_status gs_cli_contexts_path(char *path, size_t path_bytes) {
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    int len = 0;
    if (config && *config == '/') len = snprintf(path, path_bytes, "%s/gradsync/contexts.json", config);
    else if (home && *home) len = snprintf(path, path_bytes, "%s/.config/gradsync/contexts.json", home);
    else return gs_error(GS_NOT_FOUND, "contexts: neither XDG_CONFIG_HOME nor HOME is set");
    return (size_t)len < path_bytes ? gs_ok() : gs_error(GS_INVALID_ARGUMENT, "contexts: the path is too long");
}

gs_status gs_cli_contexts_decode(gs_cli_contexts *out, const gs_json *file) {
    gs_field_errors errors = {0};
    gs_status status = gs_fields_decode(out, file_fields, file, &errors);
    if (status.code && errors.count > 0)
        return gs_error(GS_INVALID_ARGUMENT, "%s %s", errors.items[0].pointer, errors.items[0].message);
    return status;
}

static gs_status read_text(char **text, size_t *bytes, const char *path) {
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return gs_error_from_errno(errno, "%s", path);
    gs_status status = gs_ok();
    *text = NULL;
    if (fstat(fd, &facts) != 0) status = gs_error_from_errno(errno, "%s", path);
    else if (!S_ISREG(facts.st_mode) || facts.st_size > MOST_BYTES)
        status = gs_error(GS_INVALID_ARGUMENT, "%s is no file of contexts", path);
    else if (facts.st_mode & (S_IRWXG | S_IRWXO))
        status = gs_error(GS_FAILED_PRECONDITION, "%s holds tokens, and others may read it; `chmod 600 %s` mends that", path, path);
    else if (!(*text = malloc((size_t)facts.st_size + 1))) status = gs_error(GS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    if (!status.code) {
        ssize_t got = read(fd, *text, (size_t)facts.st_size);
        *bytes = got > 0 ? (size_t)got : 0;
    }
    close(fd);
    return status;
}

gs_status gs_cli_contexts_read(gs_cli_contexts *out) {
    char path[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    gs_json *file = NULL;
    *out = (gs_cli_contexts){0};
    gs_status status = gs_cli_contexts_path(path, sizeof path);
    if (!status.code) status = read_text(&text, &bytes, path);
    if (status.code == GS_NOT_FOUND) return gs_ok();
    GS_TRY(status);
    status = gs_json_parse(&file, text, bytes);
    if (!status.code) status = gs_cli_contexts_decode(out, file);
    gs_json_release(file);
    free(text);
    return gs_status_prefix(status, "%s", path);
}

static gs_status replace_file(const char *path, const char *text) {
    char fresh[PATH_MAX + 16];
    snprintf(fresh, sizeof fresh, "%s.%08x", path, (unsigned)gs_random_from_system());
    int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return gs_error_from_errno(errno, "%s", fresh);
    bool is_there = dprintf(fd, "%s\n", text) > 0 && fsync(fd) == 0;
    gs_status status = is_there ? gs_ok() : gs_error_from_errno(errno, "%s", fresh);
    close(fd);
    if (!status.code && rename(fresh, path) != 0) status = gs_error_from_errno(errno, "%s", path);
    if (status.code) unlink(fresh);
    return status;
}

gs_status gs_cli_contexts_write(const gs_cli_contexts *contexts) {
    char path[PATH_MAX], folder[PATH_MAX], *text = NULL;
    GS_TRY(gs_cli_contexts_path(path, sizeof path));
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    GS_TRY(gs_directory_make_path(folder, 0700));
    gs_json *file = gs_fields_encode(contexts, file_fields);
    gs_status status = gs_json_encode(&text, NULL, file, true);
    gs_json_release(file);
    if (!status.code) status = replace_file(path, text);
    free(text);
    return status;
}

gs_cli_context *gs_cli_contexts_find(gs_cli_contexts *contexts, const char *name) {
    for (int i = 0; i < contexts->count; i++)
        if (strcmp(contexts->items[i].name, name) == 0) return &contexts->items[i];
    return NULL;
}

gs_cli_context *gs_cli_contexts_find_server(gs_cli_contexts *contexts, const char *server) {
    gs_cli_context *current = gs_cli_contexts_find(contexts, contexts->current);
    if (current && strcmp(current->server, server) == 0) return current;
    for (int i = 0; i < contexts->count; i++)
        if (strcmp(contexts->items[i].server, server) == 0) return &contexts->items[i];
    return NULL;
}
