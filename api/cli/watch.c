// Commands that wait for a job: watch, and sample, which a job writes at its end.
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/command.h"
#include "api/cli/job.h"
#include "core/clock.h"

enum {
    TERMINAL_MS = 250,
    PLAIN_MS = 500,
    LINE_SECONDS = 10,
    LOST_SECONDS = 60,
    BAR_LEN = 24,
    LEAST_BAR_LEN = 8
};

static volatile sig_atomic_t interrupted;

static void note_interrupt(int signal_number) {
    interrupted = signal_number;
}

static void catch_interrupt(void) {
    struct sigaction action = {.sa_handler = note_interrupt};  // no SA_RESTART: waits end
    sigaction(SIGINT, &action, NULL);
}

static int exit_code_of_state(const char *state) {
    if (strcmp(state, "succeeded") == 0) return GS_EXIT_OK;
    return strcmp(state, "cancelled") == 0 ? GS_EXIT_CANCELLED : GS_EXIT_JOB_FAILED;
}

static void add_bar(gs_strbuf *line, double ratio, int bar_len) {
    int filled = (int)(ratio * bar_len + 0.5);
    gs_strbuf_puts(line, " [");
    for (int i = 0; i < bar_len; i++) gs_strbuf_putc(line, i < filled ? '#' : '.');
    gs_strbuf_puts(line, "]");
}

static void add_value(gs_strbuf *line, const char *before, const gs_json *value, const char *after,
                      void (*write)(gs_strbuf *, const gs_json *)) {
    if (!value) return;
    gs_strbuf_printf(line, "  %s", before);
    write(line, value);
    gs_strbuf_puts(line, after);
}

// hello  running  112/200 [#####.....] 56%  loss 1.82  140k tok/s  exposed 21 ms  4 ranks  eta 41s
//   bar_len  0: no bar
static void write_progress(gs_strbuf *line, const gs_json *job, int bar_len) {
    const gs_json *progress = gs_json_get(job, "progress"), *latest = gs_json_get(job, "latest");
    int64_t step = gs_json_int_or(progress, "step", 0);
    int64_t target = gs_json_int_or(progress, "target_steps", 0);
    double ratio = target > 0 ? (double)step / (double)target : 0;
    gs_cli_write_value(line, gs_json_get(job, "name"));
    gs_strbuf_puts(line, "  ");
    gs_cli_write_value(line, gs_json_get(job, "state"));
    gs_strbuf_printf(line, "  %" PRId64 "/%" PRId64, step, target);
    ratio = ratio < 0 ? 0 : ratio > 1 ? 1 : ratio;
    if (bar_len > 0) add_bar(line, ratio, bar_len);
    gs_strbuf_printf(line, " %.0f%%", ratio * 100);
    add_value(line, "loss ", gs_json_get(latest, "loss"), "", gs_cli_write_number);
    add_value(line, "", gs_json_get(latest, "tokens_per_second"), " tok/s", gs_cli_write_rate);
    add_value(line, "exposed ", gs_json_get(latest, "comm_exposed_seconds"), "",
              gs_cli_write_seconds);
    add_value(line, "", gs_json_get(job, "world_size"), " ranks", gs_cli_write_value);
    add_value(line, "eta ", gs_json_get(progress, "eta_seconds"), "", gs_cli_write_seconds);
    const char *state = gs_json_string_or(job, "state", "");
    if (strcmp(state, "running") != 0 && !gs_cli_is_terminal_state(state))
        add_value(line, "", gs_json_get(job, "message"), "", gs_cli_write_value);
}

// Columns that `text` takes on a terminal: its characters, not its bytes.
static int count_columns(const char *text) {
    int columns = 0;
    for (; *text; text++) columns += ((unsigned char)*text & 0xc0) != 0x80;
    return columns;
}

// How many bytes of `text` fit into so many columns.
static int fitting_bytes(const char *text, int columns) {
    const char *end = text;
    for (; *end; end++)
        if (((unsigned char)*end & 0xc0) != 0x80 && columns-- == 0) break;
    return (int)(end - text);
}

// The line in one row: the bar takes what the words leave, then the end is cut. A row that wraps could
// not be drawn over.
static void draw_in_place(const gs_json *job) {
    gs_strbuf words = {0}, line = {0};
    int room = gs_cli_terminal_width(STDERR_FILENO) - 1;  // the last column makes some terminals wrap
    if (room < 20) room = 79;
    write_progress(&words, job, 0);
    int bar_len = room - count_columns(gs_strbuf_text(&words)) - 3;
    write_progress(&line, job, bar_len < LEAST_BAR_LEN ? 0 : bar_len > BAR_LEN ? BAR_LEN : bar_len);
    const char *text = gs_strbuf_text(&line);
    fprintf(stderr, "\r\033[K%.*s", fitting_bytes(text, room), text);
    gs_strbuf_release(&words);
    gs_strbuf_release(&line);
}

// Redrawn in place on a terminal; else a line on a change and now and then.
typedef struct progress_line {
    bool terminal;
    char last[160];  // state and reason of the last line
    int64_t next_line_ns;
} progress_line;

static void show_progress(progress_line *line, const gs_json *job) {
    char now[160];
    const char *state = gs_json_string_or(job, "state", "");
    snprintf(now, sizeof now, "%s %s", state, gs_json_string_or(job, "reason", ""));
    bool changed = strcmp(now, line->last) != 0;
    if (line->terminal) {
        draw_in_place(job);
        if (gs_cli_is_terminal_state(state)) fputc('\n', stderr);
    } else if (changed || gs_now_ns() >= line->next_line_ns) {
        gs_strbuf text = {0};
        write_progress(&text, job, 0);
        fprintf(stderr, "%s\n", gs_strbuf_text(&text));
        gs_strbuf_release(&text);
        line->next_line_ns = gs_now_ns() + LINE_SECONDS * GS_NS_PER_SEC;
    }
    memcpy(line->last, now, sizeof now);
}

// Why a job ended otherwise than wished, in three lines and the log of who failed first.
static void tell_end(const gs_json *job) {
    const char *state = gs_json_string_or(job, "state", "");
    if (strcmp(state, "succeeded") == 0) return;
    const gs_json *first = gs_cli_find_member(job, "failure.first");
    const char *hint = gs_json_string_or(gs_json_get(job, "failure"), "hint", "");
    gs_cli_print_line(stderr, "gradsync: job %s: %s: %s", state, gs_json_string_or(job, "reason", ""),
            gs_json_string_or(job, "message", ""));
    if (first)
        gs_cli_print_line(stderr, "  first: rank %" PRId64 " on %s at step %" PRId64,
                gs_json_int_or(first, "rank", -1), gs_json_string_or(first, "host", "?"),
                gs_json_int_or(first, "step", 0));
    if (*hint) gs_cli_print_line(stderr, "  %s", hint);
    const gs_json *tail = gs_cli_find_member(job, "failure.log_tail");
    for (size_t i = 0; i < gs_json_count(tail); i++) {
        gs_strbuf text = {0};
        gs_cli_write_value(&text, gs_json_at(tail, i));
        fprintf(stderr, "  | %s\n", gs_strbuf_text(&text));
        gs_strbuf_release(&text);
    }
}

int gs_cli_follow_job(gs_cli *cli, const char *job) {
    progress_line line = {.terminal = isatty(STDERR_FILENO) != 0};
    char *path = gs_cli_job_path(cli->http, job, "");
    int exit_code = GS_EXIT_OK;
    int64_t lost_since_ns = 0;
    catch_interrupt();
    while (!interrupted) {
        gs_json *state = NULL;
        // The first question retries and tells; after that, a coordinator may restart meanwhile.
        exit_code = gs_cli_http_call(cli->http, &state,
                                     &(gs_cli_request){.verb = "GET",
                                                       .path = path,
                                                       .quiet = line.last[0] != '\0',
                                                       .once = line.last[0] != '\0'});
        const char *word = gs_json_string_or(state, "state", "");
        if (exit_code == GS_EXIT_OK) {
            lost_since_ns = 0;
            show_progress(&line, state);
            if (gs_cli_is_terminal_state(word)) {
                tell_end(state);
                exit_code = exit_code_of_state(word);
                gs_json_release(state);
                break;
            }
        } else if (exit_code != GS_EXIT_UNAVAILABLE || !line.last[0]) {
            gs_json_release(state);
            break;
        } else {
            if (!lost_since_ns) lost_since_ns = gs_now_ns();
            if (gs_now_ns() - lost_since_ns > LOST_SECONDS * GS_NS_PER_SEC) {
                fprintf(stderr, "%sgradsync: no answer for %d s; the job may go on without it\n",
                        line.terminal ? "\n" : "", LOST_SECONDS);
                gs_json_release(state);
                break;
            }
        }
        gs_json_release(state);
        gs_sleep_ns((line.terminal ? TERMINAL_MS : PLAIN_MS) * GS_NS_PER_MS);
    }
    if (interrupted) {
        fprintf(stderr, "%sgradsync: stopped watching; the job goes on\n",
                line.terminal ? "\n" : "");
        exit_code = GS_EXIT_INTERRUPTED;
    }
    free(path);
    return exit_code;
}

int gs_cli_watch(gs_cli *cli) {
    return gs_cli_follow_job(cli, cli->options.args[0]);
}

static void explain_no_sample(const gs_json *job) {
    const char *state = gs_json_string_or(job, "state", "");
    if (!gs_cli_is_terminal_state(state))
        fprintf(stderr, "gradsync: no sample yet: the job is %s; it writes one at its end\n",
                state);
    else if (gs_json_int_or(gs_cli_find_member(job, "spec.sample"), "tokens", 0) == 0)
        fprintf(stderr, "gradsync: the job was not asked for a sample\n  set sample.tokens in the "
                        "job file\n");
    else
        fprintf(stderr, "gradsync: no sample: the job ended as %s before it wrote one\n", state);
}

// A model may write any byte; a terminal gets none that drives it.
static void print_sample(const char *text) {
    bool terminal = isatty(STDOUT_FILENO) != 0;
    for (const char *c = text; *c; c++) {
        bool drives = ((unsigned char)*c < 0x20 && *c != '\n' && *c != '\t') || *c == 0x7f;
        putchar(terminal && drives ? '?' : *c);
    }
    putchar('\n');
}

int gs_cli_sample(gs_cli *cli) {
    gs_json *job = NULL;
    char *path = gs_cli_job_path(cli->http, cli->options.args[0], "");
    int exit_code = gs_cli_get(cli->http, &job, path);
    free(path);
    if (exit_code == GS_EXIT_OK) {
        const gs_json *sample = gs_json_get(job, "sample");
        const char *text = gs_json_string(sample);
        if (!text) text = gs_json_string_or(sample, "text", NULL);
        if (!text) {
            explain_no_sample(job);
            exit_code = GS_EXIT_NOT_FOUND;
        } else if (cli->options.format == GS_CLI_JSON) {
            gs_cli_print_json(sample);
        } else {
            print_sample(text);
        }
    }
    gs_json_release(job);
    return exit_code;
}
