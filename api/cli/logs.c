// gradsync logs: asks for records and remembers the cursor of the last one, so that a broken stream
// goes on behind it: nothing twice, nothing missing, also over a restart of the coordinator.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/command.h"
#include "api/cli/job.h"
#include "core/clock.h"

enum { LOST_SECONDS = 60, RETRY_MS = 500 };

typedef struct log_reader {
    bool as_json;
    gs_strbuf line;  // the begin of a record whose end has not come yet
    char *cursor;    // of the last record that was printed; NULL: none
    int64_t num_records;
} log_reader;

static void print_record(log_reader *reader, const char *text, size_t bytes) {
    gs_json *record = NULL;
    gs_status status = gs_json_parse(&record, text, bytes);
    if (status.code) return;
    gs_strbuf cursor = {0};
    gs_cli_write_value(&cursor, gs_json_get(record, "cursor"));
    free(reader->cursor);
    reader->cursor = gs_strbuf_take(&cursor);
    reader->num_records++;
    if (reader->as_json)
        printf("%.*s\n", (int)bytes, text);
    else
        gs_cli_print_line(stdout, "[r%" PRId64 " %s] %s", gs_json_int_or(record, "rank", 0),
               gs_json_string_or(record, "host", gs_json_string_or(record, "worker", "?")),
               gs_json_string_or(record, "text", ""));
    gs_json_release(record);
}

static bool take_piece(void *ctx, const char *data, size_t bytes) {
    log_reader *reader = ctx;
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != '\n') {
            gs_strbuf_putc(&reader->line, data[i]);
            continue;
        }
        if (reader->line.len > 0)
            print_record(reader, gs_strbuf_text(&reader->line), reader->line.len);
        gs_strbuf_clear(&reader->line);
    }
    fflush(stdout);
    return !ferror(stdout) && !gs_strbuf_failed(&reader->line);
}

// From the cursor on, when there is one.
static char *make_path(gs_cli *cli, const log_reader *reader) {
    const gs_cli_options *options = &cli->options;
    gs_strbuf path = {0};
    char *base = gs_cli_job_path(cli->http, options->args[0], "/logs");
    gs_strbuf_puts(&path, base);
    free(base);
    gs_cli_add_query(cli->http, &path, "rank", options->rank);
    gs_cli_add_query(cli->http, &path, "level", options->level);
    gs_cli_add_query(cli->http, &path, "grep", options->grep);
    if (!reader->cursor) gs_cli_add_query(cli->http, &path, "tail", options->tail);
    gs_cli_add_query(cli->http, &path, "since", reader->cursor);
    gs_cli_add_query(cli->http, &path, "follow", options->follow ? "true" : NULL);
    return gs_strbuf_take(&path);
}

static int read_stream(gs_cli *cli, log_reader *reader, bool again) {
    char *path = make_path(cli, reader);
    if (!path) return GS_EXIT_JOB_FAILED;
    reader->num_records = 0;
    gs_strbuf_clear(&reader->line);
    int exit_code = gs_cli_http_stream(cli->http,
                                       &(gs_cli_request){.verb = "GET",
                                                         .path = path,
                                                         .accept = "application/x-ndjson",
                                                         .quiet = again,
                                                         .once = again,
                                                         .resumes = cli->options.follow},
                                       take_piece, reader);
    free(path);
    return exit_code;
}

// A stream also ends when its server does; only a job that has ended has no more to say.
static bool job_has_ended(gs_cli *cli) {
    gs_json *job = NULL;
    char *path = gs_cli_job_path(cli->http, cli->options.args[0], "");
    int exit_code = gs_cli_http_call(
        cli->http, &job,
        &(gs_cli_request){.verb = "GET", .path = path, .quiet = true, .once = true});
    free(path);
    bool ended =
        exit_code == GS_EXIT_NOT_FOUND ||
        (exit_code == GS_EXIT_OK && gs_cli_is_terminal_state(gs_json_string_or(job, "state", "")));
    gs_json_release(job);
    return ended;
}

static int follow_logs(gs_cli *cli, log_reader *reader) {
    int64_t lost_since_ns = 0;
    for (bool again = false;; again = true) {
        int exit_code = read_stream(cli, reader, again);
        if (exit_code != GS_EXIT_OK && exit_code != GS_EXIT_UNAVAILABLE) return exit_code;
        bool never_there = exit_code == GS_EXIT_UNAVAILABLE && !again && !reader->num_records;
        if (never_there || ferror(stdout)) return exit_code;
        if (exit_code == GS_EXIT_OK && job_has_ended(cli)) return exit_code;
        if (reader->num_records > 0 || !lost_since_ns) lost_since_ns = gs_now_ns();
        if (gs_now_ns() - lost_since_ns > LOST_SECONDS * GS_NS_PER_SEC) {
            fprintf(stderr, "gradsync: no answer for %d s; the job may go on without it\n",
                    LOST_SECONDS);
            return GS_EXIT_UNAVAILABLE;
        }
        gs_sleep_ns(RETRY_MS * GS_NS_PER_MS);
    }
}

int gs_cli_logs(gs_cli *cli) {
    log_reader reader = {.as_json = cli->options.format == GS_CLI_JSON};
    int exit_code =
        cli->options.follow ? follow_logs(cli, &reader) : read_stream(cli, &reader, false);
    gs_strbuf_release(&reader.line);
    free(reader.cursor);
    return exit_code;
}
