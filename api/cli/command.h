// A subcommand of `gradsync`: its row in the table, and what its flags came to.
#ifndef API_CLI_COMMAND_H
#define API_CLI_COMMAND_H

#include <stdbool.h>

#include "api/cli/http_client.h"
#include "api/cli/identity.h"
#include "api/cli/output.h"

enum { GS_CLI_MAX_SETS = 64, GS_CLI_MAX_ARGS = 16 };

// The union of all commands' flags; {0} but for the defaults that main sets.
typedef struct gs_cli_options {
    const char *server, *context, *token_file, *cacert;
    double timeout_seconds;
    gs_cli_format format;
    bool debug;
    const char *args[GS_CLI_MAX_ARGS];
    int num_args;

    const char *sets[GS_CLI_MAX_SETS];  // submit --set
    int num_sets;
    bool pool, wait, dry_run, now, follow, all, purge, model_alone, force;
    const char *role, *expires;  // token new
    const char *hosts;           // doctor, bench
    const char *rank, *tail, *level, *grep;  // logs
    const char *state, *label, *series;
    const char *step;          // release
    const char *steps, *file;  // timeline; where -o writes to
    const char *workers, *slots, *data_root, *data_dir, *http;  // up
} gs_cli_options;

typedef struct gs_cli {
    gs_cli_options options;
    gs_cli_identity identity;
    gs_cli_http *http;  // NULL for commands that need no server
} gs_cli;

typedef struct gs_cli_command {
    const char *name, *alias;
    const char *args;     // "JOB", "[JOB]", "FILE|-"
    const char *flags;    // letters of the flag table in main.c
    const char *summary;  // one line
    const char *help;     // more, with examples
    int least_args, most_args;
    bool no_server;
    int (*run)(gs_cli *cli);  // an exit code
} gs_cli_command;

extern const gs_cli_command gs_cli_commands[];
extern const int gs_cli_num_commands;

int gs_cli_submit(gs_cli *cli);
int gs_cli_watch(gs_cli *cli);
int gs_cli_logs(gs_cli *cli);
int gs_cli_sample(gs_cli *cli);
int gs_cli_up(gs_cli *cli);
int gs_cli_timeline(gs_cli *cli);
int gs_cli_explain(gs_cli *cli);
int gs_cli_export(gs_cli *cli);
int gs_cli_doctor(gs_cli *cli);
int gs_cli_bench(gs_cli *cli);
int gs_cli_token(gs_cli *cli);
int gs_cli_keygen(gs_cli *cli);
int gs_cli_key(gs_cli *cli);
int gs_cli_worker(gs_cli *cli);
int gs_cli_login(gs_cli *cli);
int gs_cli_logout(gs_cli *cli);
int gs_cli_list_contexts(gs_cli *cli);

// "90d" → seconds. False: it is no time.
bool gs_cli_read_time(double *seconds, const char *text);
// Follows a job to its end and tells it; an exit code by the result.
int gs_cli_follow_job(gs_cli *cli, const char *job);

#endif
