// gradsync timeline: the last steps as bars of text, or as a trace file; gradsync explain: the diagnosis.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/command.h"
#include "api/cli/job.h"

enum { BAR_CELLS = 64, MAX_ROWS = 40 };

static char *timeline_path(gs_cli *cli, bool trace) {
    gs_strbuf rest = {0};
    char *steps = gs_cli_http_escape(cli->http, cli->options.steps ? cli->options.steps : "last:3");
    gs_strbuf_printf(&rest, "/timeline?steps=%s", steps ? steps : "last:3");
    free(steps);
    if (cli->options.rank && strcmp(cli->options.rank, "all") != 0) {
        char *ranks = gs_cli_http_escape(cli->http, cli->options.rank);
        gs_strbuf_printf(&rest, "&ranks=%s", ranks ? ranks : "");
        free(ranks);
    }
    if (trace) gs_strbuf_puts(&rest, "&format=trace");
    char *path = gs_cli_job_path(cli->http, cli->options.args[0], gs_strbuf_text(&rest));
    gs_strbuf_release(&rest);
    return path;
}

// A span of `of` seconds, drawn into cells with `mark`.
static void draw(char cells[BAR_CELLS + 1], char mark, double begin, double end, double of) {
    int first = (int)floor(begin / of * BAR_CELLS), last = (int)ceil(end / of * BAR_CELLS) - 1;
    if (first < 0) first = 0;
    if (last < first) last = first;
    for (int i = first; i <= last && i < BAR_CELLS; i++) cells[i] = mark;
}

static void print_row(const char *name, const char *cells, double begin, double end) {
    gs_strbuf from = {0}, length = {0};
    gs_json *value = gs_json_new_double(begin);
    gs_cli_write_seconds(&from, value);
    gs_json_release(value);
    value = gs_json_new_double(end - begin);
    gs_cli_write_seconds(&length, value);
    gs_json_release(value);
    printf("  %-12.12s |%s| at %s for %s\n", name, cells, gs_strbuf_text(&from), gs_strbuf_text(&length));
    gs_strbuf_release(&from);
    gs_strbuf_release(&length);
}

// All spans of one phase on one line; "." between its first begin and its last end.
static void print_phase(const gs_json *phases, const char *name, double of) {
    char cells[BAR_CELLS + 1];
    double first = -1, last = 0;
    memset(cells, ' ', BAR_CELLS);
    cells[BAR_CELLS] = '\0';
    for (size_t i = 0; i < gs_json_count(phases); i++) {
        const gs_json *phase = gs_json_at(phases, i);
        if (strcmp(gs_json_string_or(phase, "phase", ""), name) != 0) continue;
        double begin = gs_json_double_or(phase, "begin_seconds", 0);
        double end = gs_json_double_or(phase, "end_seconds", 0);
        draw(cells, '#', begin, end, of);
        if (first < 0) first = begin;
        last = end;
    }
    if (first >= 0) print_row(name, cells, first, last);
}

// "." ready and not launched, "-" launched and others not there, "=" moving.
static void print_bucket(const gs_json *bucket, double of) {
    char cells[BAR_CELLS + 1], name[32];
    double ready = gs_json_double_or(bucket, "ready_seconds", -1);
    double launched = gs_json_double_or(bucket, "launched_seconds", ready);
    double arrived = gs_json_double_or(bucket, "arrived_seconds", launched);
    double finished = gs_json_double_or(bucket, "finished_seconds", arrived);
    if (ready < 0) return;
    memset(cells, ' ', BAR_CELLS);
    cells[BAR_CELLS] = '\0';
    draw(cells, '.', ready, launched, of);
    draw(cells, '-', launched, arrived, of);
    draw(cells, '=', arrived, finished, of);
    snprintf(name, sizeof name, "bucket %" PRId64, gs_json_int_or(bucket, "index", 0));
    print_row(name, cells, ready, finished);
}

static void print_step(const gs_json *rank, const gs_json *step) {
    static const char *const phases[] = {"opening",   "data",   "forward",   "backward",  "reduction",
                                         "commit", "optimizer", "checkpoint", "evaluate"};
    double of = gs_json_double_or(step, "duration_seconds", 0);
    if (!(of > 0)) return;
    gs_strbuf duration = {0};
    gs_cli_write_seconds(&duration, gs_json_get(step, "duration_seconds"));
    printf("rank %" PRId64 " on %s, step %" PRId64 ": %s%s\n", gs_json_int_or(rank, "rank", 0),
           gs_json_string_or(rank, "host", "?"), gs_json_int_or(step, "step", 0),
           gs_strbuf_text(&duration), gs_json_bool_or(step, "applied", true) ? "" : ", left out");
    gs_strbuf_release(&duration);
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        print_phase(gs_json_get(step, "phases"), phases[i], of);
    const gs_json *buckets = gs_json_get(step, "buckets");
    size_t count = gs_json_count(buckets);
    for (size_t i = 0; i < count && i < MAX_ROWS; i++) print_bucket(gs_json_at(buckets, i), of);
    if (count > MAX_ROWS) printf("  … %zu more buckets (-o trace.json has all)\n", count - MAX_ROWS);
    if (gs_json_int_or(step, "unused_parameters", 0) > 0)
        printf("  %" PRId64 " parameters were used by no rank\n",
               gs_json_int_or(step, "unused_parameters", 0));
}

static void print_timeline(const gs_json *timeline) {
    const gs_json *ranks = gs_json_get(timeline, "ranks"), *missing = gs_json_get(timeline, "missing");
    size_t drawn = 0;
    for (size_t i = 0; i < gs_json_count(ranks); i++) {
        const gs_json *rank = gs_json_at(ranks, i), *steps = gs_json_get(rank, "steps");
        for (size_t k = 0; k < gs_json_count(steps); k++, drawn++)
            print_step(rank, gs_json_at(steps, k));
    }
    if (drawn == 0)
        printf("no steps to show: the job is %s\n", gs_json_string_or(timeline, "state", "?"));
    else
        printf("buckets (%s): . ready, - launched and waiting for other ranks, = moving\n",
               gs_json_string_or(gs_json_get(timeline, "plan"), "hook", "?"));
    for (size_t i = 0; i < gs_json_count(missing); i++)
        fprintf(stderr, "rank %" PRId64 " is missing: %s\n",
                gs_json_int_or(gs_json_at(missing, i), "rank", -1),
                gs_json_string_or(gs_json_at(missing, i), "reason", "?"));
}

static int write_trace(gs_cli *cli) {
    char *path = timeline_path(cli, true);
    gs_strbuf text = {0};
    int exit_code = gs_cli_http_text(cli->http, &text, &(gs_cli_request){.verb = "GET", .path = path});
    free(path);
    if (exit_code == GS_EXIT_OK) {
        FILE *file = fopen(cli->options.file, "we");
        bool written = file && fwrite(gs_strbuf_text(&text), 1, text.len, file) == text.len;
        if (file && fclose(file) != 0) written = false;
        if (!written) {
            fprintf(stderr, "gradsync: cannot write %s\n", cli->options.file);
            exit_code = GS_EXIT_JOB_FAILED;
        }
    }
    gs_strbuf_release(&text);
    return exit_code;
}

int gs_cli_timeline(gs_cli *cli) {
    if (cli->options.file) return write_trace(cli);
    char *path = timeline_path(cli, false);
    gs_json *timeline = NULL;
    int exit_code = gs_cli_get(cli->http, &timeline, path);
    free(path);
    if (exit_code == GS_EXIT_OK) {
        if (cli->options.format == GS_CLI_TABLE) print_timeline(timeline);
        else gs_cli_print_json(timeline);
    }
    gs_json_release(timeline);
    return exit_code;
}

static void print_clean(const char *before, const gs_json *object, const char *member) {
    gs_strbuf text = {0};
    gs_cli_write_value(&text, gs_json_get(object, member));
    printf("%s%s\n", before, gs_strbuf_text(&text));
    gs_strbuf_release(&text);
}

int gs_cli_explain(gs_cli *cli) {
    char *path = gs_cli_job_path(cli->http, cli->options.args[0], "/diagnosis");
    gs_json *diagnosis = NULL;
    int exit_code = gs_cli_get(cli->http, &diagnosis, path);
    free(path);
    const gs_json *findings = gs_json_get(diagnosis, "findings");
    if (exit_code == GS_EXIT_OK && cli->options.format != GS_CLI_TABLE) {
        if (cli->options.format == GS_CLI_JSON) gs_cli_print_json(diagnosis);
        else puts(gs_json_string_or(diagnosis, "verdict", ""));
    } else if (exit_code == GS_EXIT_OK) {
        print_clean("verdict   ", diagnosis, "verdict");
        print_clean("          ", diagnosis, "summary");
        for (size_t i = 0; i < gs_json_count(findings); i++) {
            print_clean("\n* ", gs_json_at(findings, i), "detail");
            print_clean("  → ", gs_json_at(findings, i), "suggest");
        }
    }
    gs_json_release(diagnosis);
    return exit_code;
}
