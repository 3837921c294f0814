// gradsync checkpoints export: a checkpoint as one safetensors file. It is read here: the checkpoints'
// directory must be visible from this host, and no gigabytes go through the server.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api/cli/command.h"
#include "api/cli/job.h"
#include "rpc/checkpoint/checkpoint_export.h"
#include "rpc/checkpoint/checkpoint_layout.h"

// Of a job that is none: names and ids have no '/'.
static bool is_directory(const char *text) {
    gs_strbuf manifest = {0};
    struct stat facts;
    gs_strbuf_printf(&manifest, "%s/" GS_CHECKPOINT_MANIFEST, text);
    bool has_manifest = lstat(gs_strbuf_text(&manifest), &facts) == 0;
    gs_strbuf_release(&manifest);
    return has_manifest || strchr(text, '/');
}

// Where the newest checkpoint of a job lies; *path is the caller's.
static int find_newest(gs_cli *cli, char **path, const char *job) {
    gs_json *reply = NULL;
    char *url = gs_cli_job_path(cli->http, job, "/checkpoints");
    int exit_code = gs_cli_get(cli->http, &reply, url);
    free(url);
    const gs_json *newest = NULL, *items = gs_json_get(reply, "items");
    for (size_t i = 0; i < gs_json_count(items) && !newest; i++) {
        if (gs_json_bool_or(gs_json_at(items, i), "verified", false)) newest = gs_json_at(items, i);
    }
    if (exit_code == GS_EXIT_OK && !gs_json_get(newest, "path")) {
        fprintf(stderr, "gradsync: job %s has no checkpoint\n", job);
        exit_code = GS_EXIT_NOT_FOUND;
    }
    if (exit_code == GS_EXIT_OK) *path = strdup(gs_json_string_or(newest, "path", ""));
    gs_json_release(reply);
    return exit_code;
}

static int exit_code_of(gs_status status) {
    switch (status.code) {
    case GS_OK:
        return GS_EXIT_OK;
    case GS_NOT_FOUND:
        return GS_EXIT_NOT_FOUND;
    case GS_ALREADY_EXISTS:
        return GS_EXIT_CONFLICT;
    case GS_PERMISSION_DENIED:
        return GS_EXIT_NOT_ALLOWED;
    case GS_RESOURCE_EXHAUSTED:
    case GS_UNAVAILABLE:
        return GS_EXIT_UNAVAILABLE;
    default:
        return GS_EXIT_INVALID;
    }
}

static void print_export(const gs_cli *cli, const gs_checkpoint_export *done, const char *path,
                         const char *file) {
    gs_json *result = gs_json_new_object();
    gs_json_set_string(result, "file", file);
    gs_json_set_string(result, "checkpoint", path);
    gs_json_set_int(result, "step", done->step);
    gs_json_set_int(result, "parts", (int64_t)done->num_parts);
    gs_json_set_int(result, "tensors", (int64_t)done->num_tensors);
    gs_json_set_int(result, "bytes", (int64_t)done->bytes);
    if (cli->options.format == GS_CLI_JSON) {
        gs_cli_print_json(result);
    } else if (cli->options.format == GS_CLI_NAME) {
        puts(file);
    } else {
        gs_strbuf bytes = {0};
        gs_cli_write_bytes(&bytes, gs_json_get(result, "bytes"));
        printf("%s: step %" PRId64 ", %zu tensors, %s\n", file, done->step, done->num_tensors,
               gs_strbuf_text(&bytes));
        gs_strbuf_release(&bytes);
    }
    gs_json_release(result);
}

static size_t length_without_slashes(const char *path) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    return length;
}

int gs_cli_export(gs_cli *cli) {
    const char *from = cli->options.args[1], *file = cli->options.args[2];
    char *path = NULL;
    int exit_code = GS_EXIT_OK;
    if (is_directory(from)) path = strndup(from, length_without_slashes(from));
    else exit_code = find_newest(cli, &path, from);
    if (exit_code == GS_EXIT_OK && path) {
        gs_checkpoint_export done;
        const gs_checkpoint_export_options options = {.model_alone = cli->options.model_alone};
        gs_status status = gs_checkpoint_export_write(&done, file, path, &options);
        exit_code = exit_code_of(status);
        if (status.code) fprintf(stderr, "gradsync: %s\n", status.message);
        else print_export(cli, &done, path, file);
        if (status.code == GS_NOT_FOUND && !is_directory(from))
            fprintf(stderr, "  the server has it at %s\n", path);
    }
    free(path);
    return exit_code;
}
