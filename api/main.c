// gradsync-api: the HTTP API in a process of its own, for a coordinator that is elsewhere.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "api/api.h"
#include "api/startup.h"
#include "core/config.h"
#include "core/log.h"
#include "rpc/json/config_file.h"

typedef struct api_settings {
    char *http, *http_readonly, *allow_host, *coordinator, *checkpoints, *log_level, *port_file, *tokens, *audit, *tls_cert, *tls_key, *key;
    bool require_token, insecure_no_auth, insecure_no_tls, core_files;
} api_settings;

static const gs_config_field fields[] = {
    {.name = "http",
     .offset = offsetof(api_settings, http),
     .default_value = "127.0.0.1:8470",
     .metavar = "ADDR:PORT|unix:/PATH",
     .help = "where to serve HTTP; port 0 picks one; a Unix socket is for this user alone"},
    {.name = "http_readonly",
     .offset = offsetof(api_settings, http_readonly),
     .metavar = "ADDR:PORT|unix:/PATH",
     .help = "where everybody may read jobs, logs and metrics, and change nothing"},
    {.name = "allow_host",
     .type = GS_CONFIG_LIST,
     .offset = offsetof(api_settings, allow_host),
     .metavar = "NAME[:PORT]",
     .help = "answer to this name in Host too; may be given again"},
    {.name = "coordinator",
     .offset = offsetof(api_settings, coordinator),
     .default_value = "tcp://127.0.0.1:8471",
     .metavar = "URL",
     .help = "the coordinator's control address"},
    {.name = "key",
     .offset = offsetof(api_settings, key),
     .metavar = "FILE",
     .help = "this server's key, where the coordinator asks for one: `gradsync key new NAME --role admin`"},
    {.name = "checkpoints",
     .offset = offsetof(api_settings, checkpoints),
     .metavar = "DIR",
     .help = "the directory of all checkpoints"},
    {.name = "port_file",
     .offset = offsetof(api_settings, port_file),
     .metavar = "FILE",
     .help = "write the address really used to this file, as JSON"},
    {.name = "insecure_no_auth",
     .type = GS_CONFIG_BOOL,
     .offset = offsetof(api_settings, insecure_no_auth),
     .default_value = "false",
     .help = "serve other than loopback addresses although nobody has to show credentials, and unencrypted"},
    {.name = "tokens",
     .offset = offsetof(api_settings, tokens),
     .metavar = "FILE",
     .help = "the coordinator's DATA_DIR/tokens.json, or one of this server's own, made where it is not there"},
    {.name = "audit",
     .offset = offsetof(api_settings, audit),
     .metavar = "FILE",
     .help = "write who changed what to this file, which is no other server's"},
    {.name = "require_token",
     .type = GS_CONFIG_BOOL,
     .offset = offsetof(api_settings, require_token),
     .default_value = "false",
     .help = "ask for a token at a loopback address too, and in spite of --insecure-no-auth"},
    {.name = "tls_cert",
     .offset = offsetof(api_settings, tls_cert),
     .metavar = "FILE",
     .help = "encrypt: the server's certificate, then those that vouch for it, in PEM; read again when it changes"},
    {.name = "tls_key",
     .offset = offsetof(api_settings, tls_key),
     .metavar = "FILE",
     .help = "the certificate's private key in PEM, which others may not read"},
    {.name = "insecure_no_tls",
     .type = GS_CONFIG_BOOL,
     .offset = offsetof(api_settings, insecure_no_tls),
     .default_value = "false",
     .help = "serve other than loopback addresses unencrypted, behind a proxy that encrypts"},
    {.name = "core_files",
     .type = GS_CONFIG_BOOL,
     .offset = offsetof(api_settings, core_files),
     .default_value = "false",
     .help = "let a process with keys leave core files and be traced"},
    {.name = "log_level",
     .offset = offsetof(api_settings, log_level),
     .default_value = "info",
     .metavar = "LEVEL",
     .help = "debug, info, warn, error or off"},
};

static const gs_config_program program = {
    .name = "gradsync-api",
    .synopsis = "[--http ADDR:PORT] [--coordinator URL]",
    .description = "Serves the gradsync HTTP API for a coordinator that runs elsewhere.",
    .fields = fields,
    .num_fields = sizeof fields / sizeof *fields,
    .read_file = gs_config_file_read,
};

#define FILES_WANTED 4096

static int exit_code_of(gs_status status) {
    if (status.code == GS_INVALID_ARGUMENT) return EX_USAGE;
    if (status.code == GS_FAILED_PRECONDITION) return EX_UNAVAILABLE;
    return EX_OSERR;
}

static gs_status run_api(const api_settings *settings, const sigset_t *signals) {
    gs_rpc_context *context = NULL;
    gs_api *api = NULL;
    gs_audit *audit = NULL;
    gs_status status = gs_rpc_context_create(&context);
    if (!status.code && *settings->audit) status = gs_audit_open(&audit, &(gs_audit_options){.path = settings->audit});
    gs_api_options options = {.http_address = settings->http,
                              .context = context,
                              .http_readonly = *settings->http_readonly ? settings->http_readonly : NULL,
                              .rpc_endpoint = settings->coordinator,
                              .rpc_key = settings->key,
                              .checkpoints_dir = settings->checkpoints,
                              .allow_host = settings->allow_host,
                              .tokens_path = *settings->tokens ? settings->tokens : NULL,
                              .audit = audit,
                              .require_token = settings->require_token,
                              .tls_cert = *settings->tls_cert ? settings->tls_cert : NULL,
                              .tls_key = *settings->tls_key ? settings->tls_key : NULL,
                              .insecure_no_tls = settings->insecure_no_tls,
                              .insecure_no_auth = settings->insecure_no_auth};
    if (!status.code) status = gs_api_start(&api, &options);
    if (!status.code && *settings->port_file)
        status = gs_startup_write_port_file(settings->port_file, gs_api_address(api), gs_api_readonly_address(api), NULL);
    if (!status.code) {
        int received = 0;
        sigwait(signals, &received);
        gs_log_info("stopping", "signal=%d", received);
    }
    gs_api_stop(api);
    gs_audit_close(audit);
    if (context) gs_rpc_context_destroy(context);
    return status;
}

int main(int argc, char **argv) {
    api_settings settings = {0};
    gs_config_outcome outcome;
    gs_status status = gs_config_parse(&settings, &outcome, &program, argc, argv);
    if (status.code) {
        fprintf(stderr, "gradsync-api: %s\n", status.message);
        return EX_USAGE;
    }
    if (outcome == GS_CONFIG_EXIT) {
        gs_config_release(&settings, &program);
        return EX_OK;
    }
    gs_log_level level;
    if (!gs_log_level_from_name(&level, settings.log_level)) {
        fprintf(stderr, "gradsync-api: --log-level: '%s' is no level\n", settings.log_level);
        gs_config_release(&settings, &program);
        return EX_USAGE;
    }
    gs_log_set_level(level);
    gs_startup_raise_file_limit(FILES_WANTED);

    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);

    // Requests have tokens too, wherever they are asked for.
    bool has_secrets = *settings.key || *settings.tls_key || *settings.tokens;
    if (has_secrets && !settings.core_files) gs_startup_guard_memory();
    status = run_api(&settings, &signals);
    if (status.code) gs_log_error("cannot serve", "error=\"%s\"", status.message);
    gs_config_release(&settings, &program);
    return status.code ? exit_code_of(status) : EX_OK;
}
