// The commands that ask one question and print the answer, and the table of all commands.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/command.h"
#include "api/cli/job.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

// All pages of a list as one, whose member `list` they part. *reply is the caller's.
static int get_pages(gs_cli *cli, gs_json **reply, const char *path, const char *list) {
    int exit_code = gs_cli_get(cli->http, reply, path);
    gs_json *items = NULL;
    while (exit_code == GS_EXIT_OK && gs_json_get(*reply, "next_cursor")) {
        if (!items) items = gs_json_copy(gs_json_get(*reply, list));
        gs_strbuf next = {0};
        gs_strbuf_puts(&next, path);
        gs_cli_add_query(cli->http, &next, "cursor", gs_json_string_or(*reply, "next_cursor", ""));
        gs_json_release(*reply);
        exit_code = gs_cli_get(cli->http, reply, gs_strbuf_text(&next));
        gs_strbuf_release(&next);
        const gs_json *more = gs_json_get(*reply, list);
        for (size_t i = 0; i < gs_json_count(more); i++)
            gs_json_push(items, gs_json_copy(gs_json_at(more, i)));
        if (gs_json_count(more) == 0) break;
    }
    if (exit_code == GS_EXIT_OK && items) {
        gs_json_set(*reply, list, items);
        gs_json_remove(*reply, "next_cursor");
    } else {
        gs_json_release(items);
    }
    return exit_code;
}

static int get_of_job(gs_cli *cli, gs_json **reply, const char *rest) {
    char *path = gs_cli_job_path(cli->http, cli->options.args[0], rest);
    int exit_code = get_pages(cli, reply, path, "ranks");
    free(path);
    return exit_code;
}

static int print_list(gs_cli *cli, const char *path, const gs_cli_column *columns,
                      size_t num_columns, const char *name_member) {
    gs_json *reply = NULL;
    int exit_code = get_pages(cli, &reply, path, "items");
    if (exit_code == GS_EXIT_OK)
        gs_cli_print_items(cli->options.format, reply, columns, num_columns, name_member);
    gs_json_release(reply);
    return exit_code;
}

static int print_job_list(gs_cli *cli, const char *rest, const gs_cli_column *columns,
                          size_t num_columns, const char *name_member) {
    char *path = gs_cli_job_path(cli->http, cli->options.args[0], rest);
    int exit_code = print_list(cli, path, columns, num_columns, name_member);
    free(path);
    return exit_code;
}

static int list_jobs(gs_cli *cli) {
    static const gs_cli_column columns[] = {{"ID", "id", NULL},
                                            {"NAME", "name", NULL},
                                            {"STATE", "state", NULL},
                                            {"RANKS", "world_size", NULL},
                                            {"STEP", "progress.step", NULL},
                                            {"TARGET", "progress.target_steps", NULL},
                                            {"LOSS", "latest.loss", gs_cli_write_number},
                                            {"CREATED", "created_at", NULL},
                                            {"MESSAGE", "message", NULL}};
    const char *live = "queued,starting,running,recovering,paused,stopping";
    gs_strbuf path = {0};
    gs_strbuf_puts(&path, "/v1/jobs?limit=500");
    gs_cli_add_query(cli->http, &path, "state",
              cli->options.state ? cli->options.state
              : cli->options.all ? NULL
                                 : live);
    gs_cli_add_query(cli->http, &path, "label", cli->options.label);
    int exit_code = print_list(cli, gs_strbuf_text(&path), columns, COUNT(columns), "id");
    gs_strbuf_release(&path);
    return exit_code;
}

static void print_line(const gs_json *object, const char *title, const char *member,
                       void (*write)(gs_strbuf *, const gs_json *)) {
    const gs_json *value = gs_cli_find_member(object, member);
    if (!value) return;
    gs_strbuf text = {0};
    write(&text, value);
    printf("%-14s %s\n", title, gs_strbuf_text(&text));
    gs_strbuf_release(&text);
}

// Whom the fault is laid to as a value; of several the first is the one that failed first.
static void print_accused(const gs_json *first) {
    const gs_json *accused = gs_json_get(first, "accused");
    for (size_t i = 0; i < gs_json_count(accused); i++) {
        int64_t rank = -1;
        gs_json_int(&rank, gs_json_at(accused, i));
        printf(i ? ", %" PRId64 : "accused        rank %" PRId64, rank);
    }
    if (gs_json_count(accused)) putchar('\n');
}

static void print_failure(const gs_json *job) {
    const gs_json *first = gs_cli_find_member(job, "failure.first");
    if (first) {
        printf("%-14s rank %" PRId64 " on %s, step %" PRId64, "first failure",
               gs_json_int_or(first, "rank", -1), gs_json_string_or(first, "host", "?"),
               gs_json_int_or(first, "step", 0));
        if (gs_json_get(first, "exit_code"))
            printf(", exit code %" PRId64, gs_json_int_or(first, "exit_code", 0));
        putchar('\n');
    }
    print_line(job, "fault", "failure.first.kind", gs_cli_write_value);
    print_accused(first);
    print_line(job, "hint", "failure.hint", gs_cli_write_value);
    const gs_json *tail = gs_cli_find_member(job, "failure.log_tail");
    for (size_t i = 0; i < gs_json_count(tail); i++) {
        gs_strbuf text = {0};
        gs_cli_write_value(&text, gs_json_at(tail, i));
        printf("  | %s\n", gs_strbuf_text(&text));
        gs_strbuf_release(&text);
    }
}

static void print_job(const gs_json *job) {
    static const struct {
        const char *title, *member;
        void (*write)(gs_strbuf *, const gs_json *);
    } lines[] = {{"id", "id", gs_cli_write_value},
                 {"name", "name", gs_cli_write_value},
                 {"state", "state", gs_cli_write_value},
                 {"reason", "reason", gs_cli_write_value},
                 {"message", "message", gs_cli_write_value},
                 {"created", "created_at", gs_cli_write_value},
                 {"ranks", "world_size", gs_cli_write_value},
                 {"generation", "generation", gs_cli_write_value},
                 {"restarts", "restarts", gs_cli_write_value},
                 {"lost steps", "lost_steps", gs_cli_write_value},
                 {"step", "progress.step", gs_cli_write_value},
                 {"target", "progress.target_steps", gs_cli_write_value},
                 {"eta", "progress.eta_seconds", gs_cli_write_seconds},
                 {"loss", "latest.loss", gs_cli_write_number},
                 {"step time", "latest.step_seconds", gs_cli_write_seconds},
                 {"tokens/s", "latest.tokens_per_second", gs_cli_write_rate},
                 {"exposed comm", "latest.comm_exposed_seconds", gs_cli_write_seconds},
                 {"overlap", "latest.comm_overlap_ratio", gs_cli_write_number}};
    for (size_t i = 0; i < COUNT(lines); i++)
        print_line(job, lines[i].title, lines[i].member, lines[i].write);
    print_failure(job);
}

// One object: as JSON, by its name, or by `print`.
static int print_object(gs_cli *cli, const char *rest, const char *name_member,
                        void (*print)(const gs_json *object)) {
    gs_json *reply = NULL;
    int exit_code = get_of_job(cli, &reply, rest);
    if (exit_code == GS_EXIT_OK) {
        if (cli->options.format == GS_CLI_TABLE)
            print(reply);
        else if (cli->options.format == GS_CLI_NAME)
            puts(gs_json_string_or(reply, name_member, ""));
        else
            gs_cli_print_json(reply);
    }
    gs_json_release(reply);
    return exit_code;
}

static int show_job(gs_cli *cli) {
    return print_object(cli, "", "id", print_job);
}

// "every 4 steps of 2 ranks, 16 steps of all"
static void print_averages(const gs_json *plan) {
    const gs_json *averages = gs_json_get(plan, "averages");
    for (size_t i = 0; i < gs_json_count(averages); i++) {
        const gs_json *average = gs_json_at(averages, i);
        int64_t ranks = gs_json_int_or(average, "group_size", 0);
        if (i == 0) printf("%-14s every ", "averages");
        else printf(", ");
        printf("%" PRId64 " steps of ", gs_json_int_or(average, "period", 0));
        if (ranks) printf("%" PRId64 " ranks", ranks);
        else printf("all");
    }
    if (gs_json_count(averages)) putchar('\n');
}

static void print_plan(const gs_json *plan) {
    static const gs_cli_column columns[] = {{"BUCKET", "index", NULL},
                                            {"BYTES", "bytes", gs_cli_write_bytes},
                                            {"LIMIT", "limit_bytes", gs_cli_write_bytes},
                                            {"DTYPE", "dtype", NULL},
                                            {"HOOK", "hook", NULL},
                                            {"WIRE", "wire_bytes", gs_cli_write_bytes},
                                            {"ENDS", "ends", NULL},
                                            {"TENSORS", "tensors", NULL}};
    static const gs_cli_column past[] = {{"REVISION", "revision", NULL},
                                         {"STEP", "step", NULL},
                                         {"REASON", "reason", NULL},
                                         {"BUCKETS", "num_buckets", NULL},
                                         {"HASH", "hash", NULL}};
    print_line(plan, "revision", "revision", gs_cli_write_value);
    print_line(plan, "reason", "reason", gs_cli_write_value);
    print_line(plan, "since step", "since_step", gs_cli_write_value);
    print_line(plan, "hash", "hash", gs_cli_write_value);
    print_line(plan, "bytes", "total_bytes", gs_cli_write_bytes);
    print_line(plan, "wire bytes", "total_wire_bytes", gs_cli_write_bytes);
    print_averages(plan);
    print_line(plan, "pending", "pending.revision", gs_cli_write_value);
    print_line(plan, "shares", "link.shares_why", gs_cli_write_value);
    const gs_json *buckets = gs_json_get(plan, "buckets");
    gs_json *rows = gs_json_new_array();
    for (size_t i = 0; i < gs_json_count(buckets); i++) {
        gs_json *row = gs_json_copy(gs_json_at(buckets, i));
        const gs_json *tensors = gs_json_get(row, "tensors");
        char text[256];
        snprintf(text, sizeof text, "%zu: %.100s … %.100s", gs_json_count(tensors),
                 gs_json_string_or(gs_json_at(tensors, 0), "name", ""),
                 gs_json_string_or(gs_json_at(tensors, gs_json_count(tensors) - 1), "name", ""));
        gs_json_set_string(row, "tensors", text);
        gs_json_push(rows, row);
    }
    gs_cli_print_table(rows, columns, COUNT(columns));
    gs_json_release(rows);
    if (gs_json_count(gs_json_get(plan, "history")) < 2) return;
    puts("\nplans so far");
    gs_cli_print_table(gs_json_get(plan, "history"), past, COUNT(past));
}

// The server says what is wrong with a step that is none.
static char *release_path(const gs_cli *cli) {
    const char *step = cli->options.step ? cli->options.step : "";
    char what[60];
    snprintf(what, sizeof what, "/release%s%.20s", *step ? "?step=" : "", step);
    bool is_number = strspn(step, "0123456789") == strlen(step);
    return is_number ? gs_cli_job_path(cli->http, cli->options.args[0], what) : NULL;
}

static int release_job(gs_cli *cli) {
    char *path = release_path(cli);
    if (!path) {
        fprintf(stderr, "gradsync: --step: \"%s\" is no number\n", cli->options.step);
        return GS_EXIT_USAGE;
    }
    gs_json *reply = NULL;
    int exit_code = gs_cli_http_call(
        cli->http, &reply, &(gs_cli_request){.verb = "POST", .path = path, .body = "{}"});
    free(path);
    if (exit_code == GS_EXIT_OK && cli->options.format == GS_CLI_JSON) {
        gs_cli_print_json(reply);
    } else if (exit_code == GS_EXIT_OK) {
        puts("released: what is out of reach is given up, what is unknown here is asked to save and end");
    }
    gs_json_release(reply);
    return exit_code;
}

static int adopt_job(gs_cli *cli) {
    char *path = gs_cli_job_path(cli->http, cli->options.args[0], "/adopt");
    gs_json *reply = NULL;
    int exit_code = gs_cli_http_call(
        cli->http, &reply, &(gs_cli_request){.verb = "POST", .path = path, .body = "{}"});
    free(path);
    if (exit_code == GS_EXIT_OK && cli->options.format == GS_CLI_JSON) {
        gs_cli_print_json(reply);
    } else if (exit_code == GS_EXIT_OK) {
        printf("adopted: %s (%s) is %s\n", gs_json_string_or(reply, "id", "?"), gs_json_string_or(reply, "name", "?"),
               gs_json_string_or(reply, "state", "?"));
    }
    gs_json_release(reply);
    return exit_code;
}

static int replan_job(gs_cli *cli) {
    char *path = gs_cli_job_path(cli->http, cli->options.args[0], "/replan");
    gs_json *reply = NULL;
    int exit_code = gs_cli_http_call(
        cli->http, &reply, &(gs_cli_request){.verb = "POST", .path = path, .body = "{}"});
    free(path);
    if (exit_code == GS_EXIT_OK && cli->options.format == GS_CLI_JSON) {
        gs_cli_print_json(reply);
    } else if (exit_code == GS_EXIT_OK) {
        bool pending = gs_json_bool_or(reply, "pending", false);
        printf("plan revision %" PRId64 " (%s, %" PRId64 " buckets) %s\n",
               gs_json_int_or(reply, "revision", 0), gs_json_string_or(reply, "reason", "?"),
               gs_json_int_or(reply, "num_buckets", 0),
               pending ? "begins as soon as all ranks have it" : "is in use already");
    }
    gs_json_release(reply);
    return exit_code;
}

static int show_plan(gs_cli *cli) {
    return print_object(cli, "/plan", "hash", print_plan);
}

static void print_series(const gs_json *reply) {
    const gs_json *series = gs_json_get(reply, "series");
    for (size_t i = 0; i < gs_json_count(series); i++) {
        const gs_json *points = gs_json_get(gs_json_at(series, i), "points");
        const char *name = gs_json_string_or(gs_json_at(series, i), "name", "?");
        for (size_t j = 0; j < gs_json_count(points); j++) {
            gs_strbuf text = {0};
            gs_cli_write_value(&text, gs_json_at(gs_json_at(points, j), 0));
            gs_strbuf_putc(&text, '\t');
            gs_cli_write_value(&text, gs_json_at(gs_json_at(points, j), 1));
            printf("%s\t%s\n", name, gs_strbuf_text(&text));
            gs_strbuf_release(&text);
        }
    }
}

static void print_metrics(const gs_json *reply) {
    static const gs_cli_column columns[] = {
        {"RANK", "rank", NULL},
        {"STEP", "step", NULL},
        {"LOSS", "loss", gs_cli_write_number},
        {"STEP TIME", "step_seconds", gs_cli_write_seconds},
        {"TOKENS/S", "tokens_per_second", gs_cli_write_rate},
        {"EXPOSED", "comm_exposed_seconds", gs_cli_write_seconds},
        {"OVERLAP", "overlap_ratio", gs_cli_write_number},
        {"LAG", "lag_seconds", gs_cli_write_seconds}};
    gs_cli_print_table(gs_json_get(reply, "ranks"), columns, COUNT(columns));
}

static int show_metrics(gs_cli *cli) {
    if (!cli->options.series) return print_object(cli, "/metrics", "job", print_metrics);
    gs_strbuf rest = {0};
    gs_strbuf_puts(&rest, "/series");
    gs_cli_add_query(cli->http, &rest, "name", cli->options.series);
    int exit_code = print_object(cli, gs_strbuf_text(&rest), "job", print_series);
    gs_strbuf_release(&rest);
    return exit_code;
}

// Trainers that an operator may adopt or release: "j-d20w6j6tz106/0 j-d20w6j6tz106/1", a job and the ranks that are there.
static void write_unknown(gs_strbuf *out, const gs_json *value) {
    size_t count = gs_json_count(value);
    if (count == 0) gs_strbuf_putc(out, '-');
    for (size_t i = 0; i < count; i++) {
        const gs_json *trainer = gs_json_at(value, i);
        gs_strbuf_printf(out, "%s%s/%" PRId64, i ? " " : "", gs_json_string_or(trainer, "job", "?"),
                         gs_json_int_or(trainer, "rank", 0));
    }
}

static int list_workers(gs_cli *cli) {
    static const gs_cli_column columns[] = {
        {"WORKER", "id", NULL},
        {"HOST", "host", NULL},
        {"STATE", "state", NULL},
        {"SLOTS", "slots", NULL},
        {"BUSY", "slots_busy", NULL},
        {"GPUS", "slots_with_gpu", NULL},
        {"CORES", "cores", NULL},
        {"HEARTBEAT", "heartbeat_age_seconds", gs_cli_write_seconds},
        {"UNKNOWN", "unknown", write_unknown}};
    static const gs_cli_column ranks[] = {{"RANK", "rank", NULL},
                                          {"WORKER", "worker", NULL},
                                          {"HOST", "host", NULL},
                                          {"SLOT", "slot", NULL},
                                          {"PID", "pid", NULL},
                                          {"STATE", "state", NULL},
                                          {"STEP", "step", NULL},
                                          {"LAG", "lag_seconds", gs_cli_write_seconds},
                                          {"MEMORY", "resident_memory_bytes", gs_cli_write_bytes}};
    if (cli->options.num_args > 0)
        return print_job_list(cli, "/workers", ranks, COUNT(ranks), "rank");
    return print_list(cli, "/v1/workers", columns, COUNT(columns), "id");
}

static int checkpoints(gs_cli *cli) {
    static const gs_cli_column columns[] = {
        {"STEP", "step", NULL},          {"BYTES", "bytes", gs_cli_write_bytes},
        {"RANKS", "world_size", NULL},   {"PARTS", "parts", NULL},
        {"VERIFIED", "verified", NULL},  {"CREATED", "created_at", NULL},
        {"DIRECTORY", "directory", NULL}};
    if (cli->options.num_args == 3 && strcmp(cli->options.args[0], "export") == 0)
        return gs_cli_export(cli);
    if (cli->options.num_args > 1) {
        fputs("gradsync checkpoints: JOB, or export JOB|DIR FILE\n", stderr);
        return GS_EXIT_USAGE;
    }
    return print_job_list(cli, "/checkpoints", columns, COUNT(columns), "step");
}

static int list_events(gs_cli *cli) {
    static const gs_cli_column columns[] = {{"AT", "at", NULL},
                                            {"JOB", "job", NULL},
                                            {"SEVERITY", "severity", NULL},
                                            {"REASON", "reason", NULL},
                                            {"MESSAGE", "message", NULL}};
    if (cli->options.num_args > 0)
        return print_job_list(cli, "/events?limit=500", columns, COUNT(columns), "sequence");
    return print_list(cli, "/v1/events?limit=500", columns, COUNT(columns), "sequence");
}

static int stop_job(gs_cli *cli) {
    char *path = gs_cli_job_path(cli->http, cli->options.args[0], "/stop");
    gs_json *job = NULL;
    int exit_code =
        gs_cli_http_call(cli->http, &job,
                         &(gs_cli_request){.verb = "POST",
                                           .path = path,
                                           .body = cli->options.now ? "{\"mode\":\"now\"}"
                                                                    : "{\"mode\":\"graceful\"}"});
    free(path);
    if (exit_code == GS_EXIT_OK) {
        if (cli->options.format == GS_CLI_JSON)
            gs_cli_print_json(job);
        else
            puts(gs_json_string_or(job, "id", ""));
        if (cli->options.wait) exit_code = gs_cli_follow_job(cli, gs_json_string_or(job, "id", ""));
        if (exit_code == GS_EXIT_CANCELLED) exit_code = GS_EXIT_OK;  // as asked
    }
    gs_json_release(job);
    return exit_code;
}

static int delete_job(gs_cli *cli) {
    char *path =
        gs_cli_job_path(cli->http, cli->options.args[0], cli->options.purge ? "?purge=true" : "");
    int exit_code =
        gs_cli_http_call(cli->http, NULL, &(gs_cli_request){.verb = "DELETE", .path = path});
    free(path);
    return exit_code;
}

static int check_health(gs_cli *cli) {
    gs_strbuf text = {0};
    int exit_code = gs_cli_http_text(
        cli->http, &text,
        &(gs_cli_request){.verb = "GET", .path = "/livez", .accept = "text/plain", .once = true});
    if (exit_code == GS_EXIT_OK) printf("%s is alive\n", gs_cli_http_server(cli->http));
    gs_strbuf_release(&text);
    return exit_code;
}

static int show_version(gs_cli *cli) {
    gs_json *system = NULL;
    printf("gradsync %s\n", GRADSYNC_VERSION);
    int exit_code = gs_cli_http_call(
        cli->http, &system,
        &(gs_cli_request){.verb = "GET", .path = "/v1/system", .quiet = true, .once = true});
    const char *server = gs_json_string_or(system, "version", NULL);
    if (exit_code == GS_EXIT_OK && server) {
        printf("server %s at %s\n", server, gs_cli_http_server(cli->http));
        if (strcmp(server, GRADSYNC_VERSION) != 0)
            fprintf(stderr, "gradsync: the server has another version\n");
    }
    gs_json_release(system);
    return GS_EXIT_OK;
}

const gs_cli_command gs_cli_commands[] = {
    {"up", NULL, "", "nkrdH", "start a coordinator and workers here, in the foreground",
     "Starts gradsync-coordinator and workers found beside this program, waits until jobs are\n"
     "accepted, and prints the addresses. Ctrl-C ends all of them; what they stored stays.\n\n"
     "  gradsync up --workers 2 --data-root ~/texts\n"
     "  gradsync up --workers 1 --slots 4 --http 127.0.0.1:9000",
     0, 0, true, gs_cli_up},
    {"submit", NULL, "FILE|-", "sWDo", "submit a job; prints its id",
     "The job file is JSON; comments are allowed. --set changes members of it.\n\n"
     "  gradsync submit job.json\n"
     "  gradsync submit job.json --set steps.target=500 --wait\n"
     "  gradsync submit job.json --set reducer.bucket_cap_bytes=8MiB\n"
     "  echo '{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":100}}' | gradsync submit -\n"
     "  gradsync submit job.json --dry-run",
     1, 1, false, gs_cli_submit},
    {"list", "ls", "", "aSlo", "list jobs",
     "Jobs that have not ended, newest first; --all lists every job.\n\n"
     "  gradsync list --all\n"
     "  gradsync list --state failed -o json | jq '.items[].failure.first'",
     0, 0, false, list_jobs},
    {"show", "get", "JOB", "o", "one job, with its reason sentence",
     "  gradsync show hello\n  gradsync show j-01jqz7w3t5x0 -o json | jq .latest", 1, 1, false,
     show_job},
    {"watch", NULL, "JOB", "", "follow a job to its end",
     "A progress line with loss, tokens/s and exposed communication; on a terminal it is redrawn,\n"
     "else printed every 10 s and on every change. Ends with the job's result: 0 succeeded,\n"
     "1 failed, 9 cancelled.\n\n  gradsync watch hello",
     1, 1, false, gs_cli_watch},
    {"logs", NULL, "JOB", "fRtLg", "what the ranks said",
     "Rank 0 and everybody's warnings, unless --rank says otherwise.\n\n"
     "  gradsync logs hello --tail 50\n  gradsync logs hello -f --rank all\n"
     "  gradsync logs hello --level error --rank all",
     1, 1, false, gs_cli_logs},
    {"stop", NULL, "JOB", "NWo", "stop a job, saving a checkpoint first",
     "  gradsync stop hello\n  gradsync stop hello --now     # without saving", 1, 1, false,
     stop_job},
    {"delete", "rm", "JOB", "P", "forget a job that has ended",
     "  gradsync delete hello\n  gradsync delete hello --purge     # its checkpoints and logs too",
     1, 1, false, delete_job},
    {"sample", NULL, "JOB", "o", "text that the trained model wrote",
     "The sample that the job made at its end (sample.tokens in the job file asks for one).\n\n"
     "  gradsync sample hello",
     1, 1, false, gs_cli_sample},
    {"workers", NULL, "[JOB]", "o", "workers and their slots, or the ranks of a job",
     "  gradsync workers\n  gradsync workers hello", 0, 1, false, list_workers},
    {"checkpoints", NULL, "JOB | export JOB|DIR FILE", "mo",
     "checkpoints of a job; or one of them as a safetensors file",
     "export writes the newest checkpoint of a job, or the one in a directory, as a single file,\n"
     "however many ranks wrote it; every check sum is verified first. The file must not be there\n"
     "yet, and the directory must be visible here.\n\n"
     "  gradsync checkpoints hello\n"
     "  gradsync checkpoints export hello hello.safetensors\n"
     "  gradsync checkpoints export --model ./step-0000000100-1a2b3c4d model.safetensors",
     1, 3, false, checkpoints},
    {"events", NULL, "[JOB]", "o", "what happened, oldest first",
     "  gradsync events\n  gradsync events hello", 0, 1, false, list_events},
    {"plan", NULL, "JOB", "o", "the bucket plan in use", "  gradsync plan hello", 1, 1, false,
     show_plan},
    {"replan", NULL, "JOB", "o", "make the plan anew from the order in which gradients came last",
     "For jobs with reducer.rebuild_after_steps 0, or before an order has settled.\n\n"
     "  gradsync replan hello",
     1, 1, false, replan_job},
    {"release", NULL, "JOB", "oq", "give up ranks that are out of reach, or end unknown trainers",
     "Ranks that nobody hears may still train, so their job waits for them (--orphan-limit of the\n"
     "coordinator). Who knows that their host is gone says so with this. A job that waits for the\n"
     "disk of its checkpoints starts from the newest that is known. Of a job that this coordinator\n"
     "does not know (gradsync workers) it asks the trainers to save and end. With --step the job goes on\n"
     "from the checkpoint of that step (gradsync checkpoints). Those of later steps are removed once its\n"
     "ranks have begun there: where it turns out to be damaged, nothing is lost.\n\n"
     "  gradsync release hello\n"
     "  gradsync release hello --step 500",
     1, 1, false, release_job},
    {"adopt", NULL, "JOB-ID", "o", "take over the trainers of a job that is not known here",
     "After the data directory was lost, or an older copy of it was put back: what `gradsync workers`\n"
     "shows as unknown becomes a job of this coordinator. Where all ranks of its generation are here\n"
     "they train on; else those that are save and end, and it starts from its newest checkpoint.\n"
     "Not while the coordinator that they belong to is there.\n\n"
     "  gradsync adopt j-d20w6j6tz106",
     1, 1, false, adopt_job},
    {"timeline", NULL, "JOB", "pROo", "where the time of the last steps went, on each rank",
     "Draws phases and reductions of each rank as bars; with a file name behind -o it writes a\n"
     "trace-event file, for Perfetto and its kin.\n\n"
     "  gradsync timeline hello\n  gradsync timeline hello --steps last:1 --rank 0,3\n"
     "  gradsync timeline hello --steps last:10 -o trace.json",
     1, 1, false, gs_cli_timeline},
    {"explain", NULL, "JOB", "o", "what holds a job back, and what to do about it",
     "  gradsync explain hello\n  gradsync explain hello -o json | jq .verdict", 1, 1, false,
     gs_cli_explain},
    {"metrics", NULL, "JOB", "eo", "latest values of all ranks, or series by step",
     "  gradsync metrics hello\n  gradsync metrics hello --series loss,step_seconds", 1, 1, false,
     show_metrics},
    {"doctor", NULL, "", "wo", "what is in the way of training on the workers that there are",
     "Asks the workers: whether each reaches each other at its data address, in both directions, and\n"
     "how fast a word comes back; builds, clocks, limits, settings that surprise, whether they see the\n"
     "coordinator's checkpoints. Exit code 1 when something has to be mended.\n\n"
     "  gradsync doctor\n  gradsync doctor --hosts a,b\n"
     "  gradsync doctor -o json | jq '.findings[] | select(.severity == \"error\")'",
     0, 0, false, gs_cli_doctor},
    {"bench", NULL, "allreduce", "wFo", "what the links between workers give",
     "Latency by size and bandwidth from each worker to each other, a second for each worker, and what\n"
     "that means for an all-reduce; then all-reduces among all of them, one rank each, as nccl-tests show\n"
     "them. Refused while jobs use the network, unless forced.\n\n"
     "  gradsync bench allreduce\n  gradsync bench allreduce --hosts a,b --force",
     1, 1, false, gs_cli_bench},
    {"login", NULL, "[URL]", "F", "keep a server and a token for this user",
     "Reads the token from --token-file, GRADSYNC_TOKEN, GRADSYNC_TOKEN_FILE or standard input, asks the server whose it\n"
     "is, and keeps both under the name that --context gives, the server's host unless given, in\n"
     "~/.config/gradsync/contexts.json, which nobody else may read. Commands go there from then on. A server of another machine\n"
     "whose address is http:// gets no token, unless it is forced.\n\n"
     "  gradsync login https://train.example:8470 --cacert ca.pem <token\n"
     "  gradsync login --context here --token-file /var/lib/gradsync/admin.token",
     0, 1, true, gs_cli_login},
    {"logout", NULL, "", "", "forget the token of --context, or of where commands go",
     "The server is not told: `gradsync token revoke` ends a token.\n\n  gradsync logout", 0, 0, true, gs_cli_logout},
    {"contexts", NULL, "[use NAME]", "o", "servers that login kept; where commands go",
     "  gradsync contexts\n  gradsync contexts use here\n  gradsync --context here list", 0, 2, true, gs_cli_list_contexts},
    {"token", NULL, "new NAME | list | revoke ID|NAME", "AEou", "who may use the server",
     "Roles: metrics reads /metrics alone, viewer reads all, operator changes jobs too, admin also tokens.\n"
     "new prints the token, or writes it to the new file of --out; nobody can ask for it again. As soon as there is one, everybody needs one, at a\n"
     "loopback address too; one for an administrator is then in admin.token in the data directory.\n\n"
     "  gradsync token new ci --role operator --expires 90d --out ci.token\n"
     "  gradsync token list\n  gradsync token revoke ci",
     1, 2, false, gs_cli_token},
    {"keygen", NULL, "", "d", "make the coordinator's key, and show its public half",
     "A coordinator that asks for keys makes its own at its first start; this makes it beforehand. It lies in the data\n"
     "directory, for its owner alone.\n\n"
     "  gradsync keygen --data-dir /var/lib/gradsync",
     0, 0, true, gs_cli_keygen},
    {"key", NULL, "new NAME --role ROLE | list | revoke NAME", "dAEux", "keys of the control port, in the coordinator's data directory",
     "Where the coordinator asks for keys, workers have one of role worker, and a gradsync-api of its own one of viewer,\n"
     "operator or admin. A file of a key has all that its holder needs. With --pool, workers whose names begin with NAME- share\n"
     "it. A second key of a name takes the first one's place: hand it out, then revoke the first by its id. What is revoked\n"
     "is cut off within some two seconds.\n\n"
     "  gradsync key new gpu-1 --role worker --out gpu-1.key\n"
     "  gradsync key new pool --role worker --pool --expires 90d --out pool.key\n"
     "  gradsync key list\n  gradsync key revoke gpu-1",
     1, 2, true, gs_cli_key},
    {"worker", NULL, "token [NAME] | keys | revoke NAME", "dEux", "let workers enrol, and end that",
     "A token lets one worker get a key by itself, once, within an hour unless --expires says otherwise. The worker's secret\n"
     "never leaves it. A token with a NAME is for that worker, which may have a key already; one without is for a name that\n"
     "has none.\n\n"
     "  gradsync worker token --out enrol.token\n"
     "  gradsync-worker --coordinator tcp://10.0.0.1:8471 --key worker.key --enrol enrol.token   # on the new host\n"
     "  gradsync worker keys\n  gradsync worker revoke gpu-1",
     1, 2, true, gs_cli_worker},
    {"health", NULL, "", "", "whether the server is alive (exit code 0)", "  gradsync health", 0, 0,
     false, check_health},
    {"version", NULL, "", "", "versions of this program and of the server", "  gradsync version", 0,
     0, false, show_version},
};
const int gs_cli_num_commands = (int)COUNT(gs_cli_commands);
