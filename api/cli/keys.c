// keygen, key, worker: keys of the control port. They are the coordinator's files, so these work where its data directory is,
// whether it runs or not.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/command.h"
#include "api/cli/key_audit.h"
#include "api/cli/secret_file.h"
#include "core/clock.h"
#include "core/directory.h"
#include "rpc/keys/key_store.h"

#define TOKEN_LIFE_SECONDS 3600.0

static int refuse(const char *command, const char *what) {
    fprintf(stderr, "gradsync %s: %s\n  `gradsync %s --help` shows examples\n", command, what, command);
    return GS_EXIT_USAGE;
}

static int fail(gs_status status) {
    fprintf(stderr, "gradsync: %s\n", status.message);
    return status.code == GS_NOT_FOUND         ? GS_EXIT_NOT_FOUND
           : status.code == GS_ALREADY_EXISTS ? GS_EXIT_CONFLICT
                                              : GS_EXIT_USAGE;
}

// As the coordinator has it.
static gs_status default_data_dir(char path[1000]) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (geteuid() == 0) snprintf(path, 1000, "/var/lib/gradsync");
    else if (state && state[0] == '/') snprintf(path, 1000, "%.900s/gradsync", state);
    else if (home && home[0] == '/') snprintf(path, 1000, "%.900s/.local/state/gradsync", home);
    else return gs_error(GS_FAILED_PRECONDITION, "nothing says where the coordinator's data is: --data-dir does");
    return gs_ok();
}

static gs_status find_data_dir(char path[1000], const gs_cli_options *options) {
    if (options->data_dir && strlen(options->data_dir) >= 1000) return gs_error(GS_INVALID_ARGUMENT, "--data-dir: too long");
    if (options->data_dir) snprintf(path, 1000, "%s", options->data_dir);
    else if (getenv("GRADSYNC_DATA_DIR")) snprintf(path, 1000, "%.999s", getenv("GRADSYNC_DATA_DIR"));
    else GS_TRY(default_data_dir(path));
    return gs_status_prefix(gs_directory_make_path(path, 0700), "--data-dir");
}

// A line of the audit begins: it ends with gs_cli_key_audit_end where this returned none of an error.
static gs_status open_server(gs_key_file *server, char keys[GS_KEY_PATH_BYTES], gs_cli_key_audit *audit, bool *made, const gs_cli_options *options) {
    char data_dir[1000];
    GS_TRY(find_data_dir(data_dir, options));
    gs_key_store_path(keys, data_dir);
    gs_cli_key_audit_begin(audit, data_dir, audit->what, audit->target);
    gs_status status = gs_key_store_server(server, data_dir, made);
    if (status.code) gs_cli_key_audit_end(audit, status, NULL);
    return status;
}

int gs_cli_keygen(gs_cli *cli) {
    gs_key_file server;
    char keys[GS_KEY_PATH_BYTES], text[GS_CURVE_KEY_TEXT_BYTES];
    gs_cli_key_audit audit = {.what = "keygen", .target = ""};
    bool made = false;
    gs_status status = open_server(&server, keys, &audit, &made, &cli->options);
    if (status.code) return fail(status);
    gs_cli_key_audit_end(&audit, status, made ? "control.key" : NULL);
    gs_curve_key_format(text, &server.pair.shown);
    gs_key_file_wipe(&server);
    puts(text);
    return GS_EXIT_OK;
}

static int write_key(const gs_key_file *file, const char *path) {
    if (path) {
        if (access(path, F_OK) == 0) return fail(gs_error(GS_ALREADY_EXISTS, "%s is there already", path));
        gs_status status = gs_key_file_write(file, path);
        return status.code ? fail(status) : GS_EXIT_OK;
    }
    char *text = NULL;
    gs_status status = gs_key_file_print(&text, file);
    if (status.code) return fail(status);
    fputs(text, stdout);
    explicit_bzero(text, strlen(text));
    free(text);
    return GS_EXIT_OK;
}

static int new_key(const gs_cli_options *options) {
    double seconds = 0;
    gs_known_key made = {0};
    gs_key_file server, file;
    char keys[GS_KEY_PATH_BYTES];
    if (options->num_args < 2) return refuse("key", "new: a name is missing");
    if (!options->role || !gs_key_role_from_name(&made.role, options->role) || made.role == GS_ROLE_ENROL)
        return refuse("key", "new: --role is worker, metrics, viewer, operator or admin");
    if (options->expires && !gs_cli_read_time(&seconds, options->expires))
        return refuse("key", "--expires is no time like 90d, 12h, 30m or 60s");
    if (options->pool && made.role != GS_ROLE_AGENT) return refuse("key", "--pool is for workers");
    if (!gs_key_name_is_sound(options->args[1])) return refuse("key", "new: a name is letters, digits, '.', '_' and '-', at most 63");
    if (options->file && access(options->file, F_OK) == 0) return fail(gs_error(GS_ALREADY_EXISTS, "%s is there already", options->file));
    snprintf(made.name, sizeof made.name, "%s", options->args[1]);
    made.is_pool = options->pool;
    if (seconds > 0) made.expires_ms = gs_wall_ms() + (int64_t)(seconds * 1000);
    gs_cli_key_audit audit = {.what = "key new", .target = made.name};
    gs_status status = open_server(&server, keys, &audit, NULL, options);
    if (status.code) return fail(status);
    status = gs_key_store_make(keys, &made, &file);
    gs_cli_key_audit_end(&audit, status, status.code ? NULL : made.id);
    if (status.code) return fail(status);
    file.server = server.pair.shown;
    int exit_code = write_key(&file, options->file);
    gs_key_file_wipe(&server);
    gs_key_file_wipe(&file);
    if (exit_code == GS_EXIT_OK)
        fprintf(stderr, "gradsync: %s (%s) is %s%s; who has the file is\n", made.id, made.name, made.is_pool ? "of the pool of a " : "a ",
                gs_key_role_name(made.role));
    return exit_code;
}

static int list_keys(const gs_cli_options *options, bool workers_alone) {
    static const gs_cli_column columns[] = {{"ID", "id", NULL},           {"NAME", "name", NULL},
                                            {"ROLE", "role", NULL},       {"POOL", "pool", NULL},
                                            {"STATE", "state", NULL},     {"MADE", "created_at", NULL},
                                            {"EXPIRES", "expires_at", NULL}};
    char data_dir[1000], keys[GS_KEY_PATH_BYTES];
    gs_key_list list = {0};
    gs_file_mark mark;
    gs_status status = find_data_dir(data_dir, options);
    if (!status.code) {
        gs_key_store_path(keys, data_dir);
        status = gs_key_store_read(&list, &mark, keys);
    }
    if (status.code) return fail(status);
    gs_json *reply = gs_json_new_object(), *items = gs_json_new_array();
    for (size_t i = 0; i < list.count; i++)
        if (!workers_alone || list.items[i].role <= GS_ROLE_ENROL)
            gs_json_push(items, gs_known_key_view(&list.items[i], gs_wall_ms()));
    gs_json_set(reply, "items", items);
    gs_cli_print_items(options->format, reply, columns, sizeof columns / sizeof *columns, "id");
    gs_json_release(reply);
    gs_key_list_release(&list);
    return GS_EXIT_OK;
}

typedef struct revocation {
    const char *which;
    int count;
} revocation;

static gs_status revoke_named(gs_key_list *list, void *ctx) {
    revocation *it = ctx;
    return gs_key_list_revoke(list, it->which, gs_wall_ms(), &it->count);
}

static int revoke_key(const gs_cli_options *options, const char *command) {
    char data_dir[1000], keys[GS_KEY_PATH_BYTES];
    if (options->num_args < 2) return refuse(command, "revoke: an id or a name is missing");
    revocation it = {.which = options->args[1]};
    gs_status status = find_data_dir(data_dir, options);
    if (!status.code) {
        gs_cli_key_audit audit;
        gs_key_store_path(keys, data_dir);
        gs_cli_key_audit_begin(&audit, data_dir, strcmp(command, "key") == 0 ? "key revoke" : "worker revoke", it.which);
        status = gs_key_store_change(keys, revoke_named, &it);
        gs_cli_key_audit_end(&audit, status, NULL);
    }
    if (status.code) return fail(status);
    printf("revoked: %s\n", it.which);
    return GS_EXIT_OK;
}

int gs_cli_key(gs_cli *cli) {
    const gs_cli_options *options = &cli->options;
    const char *what = options->args[0];
    if (strcmp(what, "new") == 0) return new_key(options);
    if (strcmp(what, "list") == 0 || strcmp(what, "ls") == 0) return list_keys(options, false);
    if (strcmp(what, "revoke") == 0) return revoke_key(options, "key");
    return refuse("key", "neither new nor list nor revoke");
}

static int new_worker_token(const gs_cli_options *options) {
    double seconds = TOKEN_LIFE_SECONDS;
    gs_known_key made = {.role = GS_ROLE_ENROL, .is_pool = options->pool};
    gs_key_file server, file;
    char keys[GS_KEY_PATH_BYTES], text[GS_ENROL_TOKEN_BYTES];
    if (options->expires && !gs_cli_read_time(&seconds, options->expires))
        return refuse("worker", "--expires is no time like 90d, 12h, 30m or 60s");
    if (options->num_args > 1 && !gs_key_name_is_sound(options->args[1]))
        return refuse("worker", "token: a name is letters, digits, '.', '_' and '-', at most 63");
    if (options->pool && options->num_args < 2) return refuse("worker", "token: --pool needs a name");
    if (options->num_args > 1) snprintf(made.name, sizeof made.name, "%s", options->args[1]);
    made.expires_ms = gs_wall_ms() + (int64_t)(seconds * 1000);
    gs_cli_secret_file out;
    gs_status status = gs_cli_secret_file_begin(&out, options->file);
    if (status.code) return fail(status);
    gs_cli_key_audit audit = {.what = "worker token", .target = made.name};
    status = open_server(&server, keys, &audit, NULL, options);
    if (!status.code) {
        status = gs_key_store_make(keys, &made, &file);
        gs_cli_key_audit_end(&audit, status, status.code ? NULL : made.id);
    }
    if (status.code) {
        gs_cli_secret_file_abandon(&out);
        return fail(status);
    }
    gs_enrol_token_format(text, &server.pair.shown, &file.pair.secret);
    status = gs_cli_secret_file_finish(&out, text);
    explicit_bzero(text, sizeof text);
    gs_key_file_wipe(&server);
    gs_key_file_wipe(&file);
    if (status.code) return fail(status);
    fprintf(stderr, "gradsync: %s lets one worker enrol within %.0f s: gradsync-worker --key FILE --enrol %s\n", made.id, seconds,
            options->file ? options->file : "FILE_OF_THIS");
    return GS_EXIT_OK;
}

int gs_cli_worker(gs_cli *cli) {
    const gs_cli_options *options = &cli->options;
    const char *what = options->args[0];
    if (strcmp(what, "token") == 0) return new_worker_token(options);
    if (strcmp(what, "keys") == 0) return list_keys(options, true);
    if (strcmp(what, "revoke") == 0) return revoke_key(options, "worker");
    return refuse("worker", "neither token nor keys nor revoke");
}
