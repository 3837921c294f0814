// gradsync submit: a job file, changed by --set, sent once however often it must be tried.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/command.h"
#include "core/config.h"
#include "core/random.h"

enum { MAX_FILE_BYTES = 1 << 20 };

static bool read_file(gs_strbuf *text, const char *path) {
    char block[4096];
    size_t got;
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (!file) {
        fprintf(stderr, "gradsync: %s: %s\n", path, strerror(errno));
        return false;
    }
    while ((got = fread(block, 1, sizeof block, file)) > 0 && text->len <= MAX_FILE_BYTES)
        gs_strbuf_add(text, block, got);
    bool failed = ferror(file) || text->len > MAX_FILE_BYTES;
    if (failed) fprintf(stderr, "gradsync: %s: cannot be read, or is larger than 1 MiB\n", path);
    if (file != stdin) fclose(file);
    return !failed;
}

// "8MiB" for a size, else JSON, else the text itself.
static gs_json *parse_value(const char *key, const char *text) {
    gs_json *value = NULL;
    int64_t bytes;
    size_t key_len = strlen(key);
    if (key_len > 6 && strcmp(key + key_len - 6, "_bytes") == 0 && gs_parse_bytes(&bytes, text))
        return gs_json_new_int(bytes);
    gs_status status = gs_json_parse(&value, text, strlen(text));
    return status.code ? gs_json_new_string(text) : value;
}

// object[a][b][c] = value, where path is "a.b.c". Takes value.
static void set_member(gs_json *object, const char *path, gs_json *value) {
    char key[64];
    size_t len = strcspn(path, ".");
    snprintf(key, sizeof key, "%.*s", (int)len, path);
    if (path[len] == '\0') {
        gs_json_set(object, key, value);
        return;
    }
    const gs_json *old = gs_json_get(object, key);
    gs_json *child =
        gs_json_type_of(old) == GS_JSON_OBJECT ? gs_json_copy(old) : gs_json_new_object();
    set_member(child, path + len + 1, value);
    gs_json_set(object, key, child);
}

static bool apply_sets(gs_json *spec, const gs_cli_options *options) {
    for (int i = 0; i < options->num_sets; i++) {
        char path[256];
        const char *equals = strchr(options->sets[i], '=');
        size_t len = equals ? (size_t)(equals - options->sets[i]) : 0;
        if (len == 0 || len >= sizeof path) {
            fprintf(stderr, "gradsync: --set %s: not MEMBER=VALUE\n", options->sets[i]);
            return false;
        }
        memcpy(path, options->sets[i], len);
        path[len] = '\0';
        set_member(spec, path, parse_value(path, equals + 1));
    }
    return true;
}

// NULL: told why.
static char *make_body(const gs_cli_options *options) {
    gs_strbuf text = {0};
    gs_json *spec = NULL;
    char *body = NULL;
    const char *path = options->args[0];
    if (!read_file(&text, path)) goto done;
    gs_status status = gs_json_parse_relaxed(&spec, gs_strbuf_text(&text), text.len);
    if (status.code) {
        fprintf(stderr, "gradsync: %s: %s\n", path, status.message);
        goto done;
    }
    if (gs_json_type_of(spec) != GS_JSON_OBJECT) {
        fprintf(stderr, "gradsync: %s: not a JSON object\n", path);
        goto done;
    }
    if (!apply_sets(spec, options)) goto done;
    status = gs_json_encode(&body, NULL, spec, false);
    if (status.code) fprintf(stderr, "gradsync: %s: %s\n", path, status.message);
done:
    gs_json_release(spec);
    gs_strbuf_release(&text);
    return body;
}

int gs_cli_submit(gs_cli *cli) {
    char *body = make_body(&cli->options);
    if (!body) return GS_EXIT_INVALID;
    char key[32];
    snprintf(key, sizeof key, "cli-%016" PRIx64, gs_random_from_system());
    gs_json *job = NULL;
    int exit_code = gs_cli_http_call(
        cli->http, &job,
        &(gs_cli_request){.verb = "POST",
                          .path = cli->options.dry_run ? "/v1/jobs?dry_run=true" : "/v1/jobs",
                          .body = body,
                          .idempotency_key = cli->options.dry_run ? NULL : key});
    free(body);
    const char *id = gs_json_string_or(job, "id", "");
    if (exit_code == GS_EXIT_OK && (cli->options.dry_run || cli->options.format == GS_CLI_JSON)) {
        gs_cli_print_json(job);
    } else if (exit_code == GS_EXIT_OK) {
        puts(id);
        fflush(stdout);
    }
    if (exit_code == GS_EXIT_OK && cli->options.wait && !cli->options.dry_run)
        exit_code = gs_cli_follow_job(cli, id);
    gs_json_release(job);
    return exit_code;
}
