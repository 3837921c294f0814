// token, login, logout, contexts: who this user is to which server.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/command.h"
#include "api/cli/contexts.h"
#include "api/cli/secret_file.h"

static int refuse(const char *command, const char *what) {
    fprintf(stderr, "gradsync %s: %s\n  `gradsync %s --help` shows examples\n", command, what, command);
    return GS_EXIT_USAGE;
}

static int fail(gs_status status) {
    fprintf(stderr, "gradsync: %s\n", status.message);
    return status.code == GS_ALREADY_EXISTS ? GS_EXIT_CONFLICT : GS_EXIT_USAGE;
}

bool gs_cli_read_time(double *seconds, const char *text) {
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}, {"", 1}};
    char *end;
    double count = strtod(text, &end);
    if (end == text || !(count > 0) || count > 1e9) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0) {
            *seconds = count * units[i].seconds;
            return true;
        }
    return false;
}

// What was made: where it cannot be kept, it is no use, and its id is said, to revoke it by.
static int keep_token(gs_cli_secret_file *out, const gs_json *made, gs_cli_format format) {
    char *text = NULL;
    gs_status status = gs_ok();
    if (format == GS_CLI_JSON) status = gs_json_encode(&text, NULL, made, true);
    if (!status.code) status = gs_cli_secret_file_finish(out, text ? text : gs_json_string_or(made, "token", ""));
    if (text) explicit_bzero(text, strlen(text));
    free(text);
    if (!status.code) return GS_EXIT_OK;
    gs_cli_secret_file_abandon(out);
    fprintf(stderr, "gradsync: token %s was made, and is lost: `gradsync token revoke` ends it\n", gs_json_string_or(made, "id", "?"));
    return fail(status);
}

static int new_token(gs_cli *cli) {
    const gs_cli_options *options = &cli->options;
    double seconds = 0;
    if (options->num_args < 2) return refuse("token", "new: a name is missing");
    if (!options->role) return refuse("token", "new: --role is missing: metrics, viewer, operator or admin");
    if (options->expires && !gs_cli_read_time(&seconds, options->expires))
        return refuse("token", "--expires is no time like 90d, 12h, 30m or 60s");
    gs_json *order = gs_json_new_object(), *made = NULL;
    char *body = NULL;
    gs_json_set_string(order, "name", options->args[1]);
    gs_json_set_string(order, "role", options->role);
    gs_json_set_double(order, "expires_in_seconds", seconds);
    gs_status status = gs_json_encode(&body, NULL, order, false);
    gs_json_release(order);
    gs_cli_secret_file out;
    if (!status.code) status = gs_cli_secret_file_begin(&out, options->file);
    if (status.code) {
        free(body);
        return fail(status);
    }
    int exit_code = gs_cli_http_call(
        cli->http, &made, &(gs_cli_request){.verb = "POST", .path = "/v1/tokens", .body = body, .once = true});
    free(body);
    if (exit_code == GS_EXIT_OK) exit_code = keep_token(&out, made, options->format);
    else gs_cli_secret_file_abandon(&out);
    if (exit_code == GS_EXIT_OK && options->format != GS_CLI_JSON)
        fprintf(stderr, "gradsync: %s (%s) may what %s may%s%s; the token is not shown again\n",
                gs_json_string_or(made, "id", "?"), options->args[1], options->role,
                seconds > 0 ? " until " : "", gs_json_string_or(made, "expires_at", ""));
    gs_json_release(made);
    return exit_code;
}

static int list_tokens(gs_cli *cli) {
    static const gs_cli_column columns[] = {{"ID", "id", NULL},           {"NAME", "name", NULL},
                                            {"ROLE", "role", NULL},       {"STATE", "state", NULL},
                                            {"MADE", "created_at", NULL}, {"EXPIRES", "expires_at", NULL}};
    gs_json *reply = NULL;
    int exit_code = gs_cli_http_call(cli->http, &reply, &(gs_cli_request){.verb = "GET", .path = "/v1/tokens"});
    if (exit_code == GS_EXIT_OK)
        gs_cli_print_items(cli->options.format, reply, columns, sizeof columns / sizeof *columns, "id");
    gs_json_release(reply);
    return exit_code;
}

static int revoke_token(gs_cli *cli) {
    if (cli->options.num_args < 2) return refuse("token", "revoke: an id or a name is missing");
    char *which = gs_cli_http_escape(cli->http, cli->options.args[1]), path[512];
    snprintf(path, sizeof path, "/v1/tokens/%s", which);
    free(which);
    int exit_code = gs_cli_http_call(cli->http, NULL, &(gs_cli_request){.verb = "DELETE", .path = path});
    if (exit_code == GS_EXIT_OK) printf("revoked: %s\n", cli->options.args[1]);
    return exit_code;
}

int gs_cli_token(gs_cli *cli) {
    const char *what = cli->options.args[0];
    if (strcmp(what, "new") == 0) return new_token(cli);
    if (strcmp(what, "list") == 0 || strcmp(what, "ls") == 0) return list_tokens(cli);
    if (strcmp(what, "revoke") == 0) return revoke_token(cli);
    return refuse("token", "neither new nor list nor revoke");
}

// From standard input, unseen on a terminal.
static bool ask_token(char token[128]) {
    if (isatty(STDIN_FILENO)) {
        char *typed = getpass("Token: ");
        snprintf(token, 128, "%s", typed ? typed : "");
    } else if (!fgets(token, 128, stdin)) {
        token[0] = '\0';
    }
    token[strcspn(token, "\r\n")] = '\0';
    return *token;
}

static void name_context(char name[64], const char *server) {
    const char *host = strstr(server, "://") ? strstr(server, "://") + 3 : server;
    snprintf(name, 64, "%.*s", (int)strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-"), host);
    if (!*name || name[0] == '.' || name[0] == '-') snprintf(name, 64, "here");
}

static bool asks_for_token(gs_cli *cli) {
    gs_json *reply = NULL;
    int exit_code = gs_cli_http_call(cli->http, &reply, &(gs_cli_request){.verb = "GET", .path = "/v1/whoami", .quiet = true, .once = true});
    gs_json_release(reply);
    return exit_code == GS_EXIT_NOT_ALLOWED;
}

static void open_http(gs_cli *cli) {
    gs_cli_http_close(cli->http);
    gs_cli_server server = {cli->identity.server, cli->identity.token, cli->identity.cacert};
    cli->http = gs_cli_http_open(&server, cli->options.timeout_seconds, cli->options.debug);
}

static gs_status keep_context(const gs_cli *cli, const char *name) {
    gs_cli_contexts *contexts = calloc(1, sizeof *contexts);
    if (!contexts) return gs_error(GS_RESOURCE_EXHAUSTED, "contexts: out of memory");
    gs_status status = gs_cli_contexts_read(contexts);
    gs_cli_context *context = gs_cli_contexts_find(contexts, name);
    if (!context && contexts->count < GS_CONTEXTS_MOST) context = &contexts->items[contexts->count++];
    if (!status.code && !context)
        status = gs_error(GS_FAILED_PRECONDITION, "there are %d contexts, and no more are kept", GS_CONTEXTS_MOST);
    // Cut off, it would be another server that is shown the token.
    if (!status.code && (strlen(cli->identity.server) >= sizeof context->server || strlen(cli->identity.token) >= sizeof context->token))
        status = gs_error(GS_INVALID_ARGUMENT, "the server's address or the token is too long to be kept");
    if (!status.code) {
        char absolute[PATH_MAX] = "";
        if (*cli->identity.cacert && !realpath(cli->identity.cacert, absolute)) absolute[0] = '\0';
        *context = (gs_cli_context){0};
        snprintf(context->name, sizeof context->name, "%s", name);
        snprintf(context->server, sizeof context->server, "%.511s", cli->identity.server);
        snprintf(context->token, sizeof context->token, "%.63s", cli->identity.token);
        snprintf(context->cacert, sizeof context->cacert, "%.511s", absolute);
        snprintf(contexts->current, sizeof contexts->current, "%s", name);
        status = gs_cli_contexts_write(contexts);
    }
    free(contexts);
    return status;
}

static bool is_private(const char *server) {
    return strncmp(server, "https://", 8) == 0 || gs_cli_identity_is_local(server);
}

// Before it is sent, and before somebody types it.
static bool may_send_token(const gs_cli *cli) {
    if (is_private(cli->identity.server) || cli->options.force) return true;
    fprintf(stderr, "gradsync: %s is not encrypted: who listens on the way would have the token; --force sends it\n", cli->identity.server);
    return false;
}

int gs_cli_login(gs_cli *cli) {
    const gs_cli_options *options = &cli->options;
    gs_cli_identity_wish wish = {.server = options->num_args ? options->args[0] : options->server,
                                 .token_file = options->token_file,
                                 .cacert = options->cacert,
                                 .ignores_kept = true};
    char name[64];
    gs_status status = gs_cli_identity_find(&cli->identity, &wish);
    if (status.code) return fail(status);
    name_context(name, cli->identity.server);
    if (options->context) snprintf(name, sizeof name, "%.63s", options->context);
    if (*cli->identity.token && !may_send_token(cli)) return GS_EXIT_USAGE;
    open_http(cli);
    if (cli->http && asks_for_token(cli)) {
        if (!may_send_token(cli)) return GS_EXIT_USAGE;
        if (!*cli->identity.token && !ask_token(cli->identity.token))
            return refuse("login", "the server asks for a token, and none was given");
        open_http(cli);
    }
    gs_json *who = NULL;
    int exit_code = cli->http ? gs_cli_http_call(cli->http, &who, &(gs_cli_request){.verb = "GET", .path = "/v1/whoami"})
                              : GS_EXIT_JOB_FAILED;
    if (exit_code == GS_EXIT_OK) {
        status = keep_context(cli, name);
        if (status.code) exit_code = fail(status);
    }
    if (exit_code == GS_EXIT_OK) {
        printf("context %s: %s, %s%s%s\n", name, cli->identity.server,
               gs_json_bool_or(who, "asked_for_tokens", false) ? gs_json_string_or(who, "name", "?") : "no token is needed",
               gs_json_bool_or(who, "asked_for_tokens", false) ? " with the role " : "",
               gs_json_bool_or(who, "asked_for_tokens", false) ? gs_json_string_or(who, "role", "?") : "");
        if (*cli->identity.token && !is_private(cli->identity.server))
            fprintf(stderr, "gradsync: %s is not encrypted: who listens on the way has the token\n", cli->identity.server);
    }
    gs_json_release(who);
    return exit_code;
}

int gs_cli_logout(gs_cli *cli) {
    gs_cli_contexts *contexts = calloc(1, sizeof *contexts);
    if (!contexts) return GS_EXIT_JOB_FAILED;
    gs_status status = gs_cli_contexts_read(contexts);
    const char *name = cli->options.context ? cli->options.context : contexts->current;
    gs_cli_context *context = gs_cli_contexts_find(contexts, name);
    if (!status.code && !context)
        status = gs_error(GS_NOT_FOUND, "%s", *name ? "--context: there is none of this name" : "nothing was kept");
    if (!status.code) {
        printf("forgotten: %s\n", name);
        if (context == gs_cli_contexts_find(contexts, contexts->current)) contexts->current[0] = '\0';
        contexts->count--;
        memmove(context, context + 1, (size_t)(&contexts->items[contexts->count] - context) * sizeof *context);
        status = gs_cli_contexts_write(contexts);
    }
    free(contexts);
    return status.code ? fail(status) : GS_EXIT_OK;
}

static void print_contexts(const gs_cli *cli, const gs_cli_contexts *contexts) {
    static const gs_cli_column columns[] = {{"", "mark", NULL}, {"NAME", "name", NULL}, {"SERVER", "server", NULL}, {"TOKEN", "token", NULL}};
    gs_json *reply = gs_json_new_object(), *items = gs_json_new_array();
    for (int i = 0; i < contexts->count; i++) {
        const gs_cli_context *context = &contexts->items[i];
        gs_json *item = gs_json_new_object();
        gs_json_set_string(item, "mark", strcmp(context->name, contexts->current) == 0 ? "*" : "");
        gs_json_set_string(item, "name", context->name);
        gs_json_set_string(item, "server", context->server);
        gs_json_set_string(item, "token", *context->token ? "kept" : "none");
        gs_json_push(items, item);
    }
    gs_json_set(reply, "items", items);
    gs_cli_print_items(cli->options.format, reply, columns, sizeof columns / sizeof *columns, "name");
    gs_json_release(reply);
}

int gs_cli_list_contexts(gs_cli *cli) {
    const gs_cli_options *options = &cli->options;
    bool uses = options->num_args == 2 && strcmp(options->args[0], "use") == 0;
    if (options->num_args > 0 && !uses) return refuse("contexts", "use NAME is missing");
    gs_cli_contexts *contexts = calloc(1, sizeof *contexts);
    if (!contexts) return GS_EXIT_JOB_FAILED;
    gs_status status = gs_cli_contexts_read(contexts);
    if (!status.code && uses && !gs_cli_contexts_find(contexts, options->args[1]))
        status = gs_error(GS_NOT_FOUND, "there is no context %s; `gradsync login` makes one", options->args[1]);
    if (!status.code && uses) {
        snprintf(contexts->current, sizeof contexts->current, "%.63s", options->args[1]);
        status = gs_cli_contexts_write(contexts);
    }
    if (!status.code && !uses) print_contexts(cli, contexts);
    free(contexts);
    return status.code ? fail(status) : GS_EXIT_OK;
}
