// gradsync doctor, gradsync bench allreduce: what workers say of themselves and of the links between them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/command.h"
#include "api/cli/job.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define WHOLE_BYTES 26214400.0  // of the all-reduce that links are judged by: a bucket of PyTorch's

static void write_clock(gs_strbuf *out, const gs_json *value) {
    double seconds;
    if (gs_json_double(&seconds, value)) gs_strbuf_printf(out, "%+.2f s", seconds);
    else gs_strbuf_puts(out, "-");
}

static void write_bandwidth(gs_strbuf *out, const gs_json *value) {
    double bytes_per_sec;
    if (gs_json_double(&bytes_per_sec, value)) gs_strbuf_printf(out, "%.1f MB/s", bytes_per_sec / 1e6);
    else gs_strbuf_puts(out, "-");
}

static const gs_cli_column host_columns[] = {{"WORKER", "worker", NULL},
                                             {"HOST", "host", NULL},
                                             {"DATA ADDRESS", "data_address", NULL},
                                             {"BUILD", "build", NULL},
                                             {"CORES", "cores", NULL},
                                             {"CLOCK", "clock_offset_seconds", write_clock},
                                             {"CHECKPOINTS", "checkpoints.state", NULL},
                                             {"FREE", "checkpoints.free_bytes", gs_cli_write_bytes},
                                             {"DESCRIPTORS", "limits.descriptors", NULL}};
static const gs_cli_column link_columns[] = {{"FROM", "from", NULL},
                                             {"TO", "to", NULL},
                                             {"ROUND TRIP", "round_trip_seconds", gs_cli_write_seconds},
                                             {"LEAST", "least_round_trip_seconds", gs_cli_write_seconds}};
static const gs_cli_column measured_columns[] = {{"FROM", "from", NULL},
                                                 {"TO", "to", NULL},
                                                 {"ROUND TRIP", "round_trip_seconds", gs_cli_write_seconds},
                                                 {"1 KiB", "sizes.0", gs_cli_write_seconds},
                                                 {"16 KiB", "sizes.1", gs_cli_write_seconds},
                                                 {"64 KiB", "sizes.2", gs_cli_write_seconds},
                                                 {"256 KiB", "sizes.3", gs_cli_write_seconds},
                                                 {"BANDWIDTH", "bytes_per_second", write_bandwidth}};

static const gs_cli_column sum_columns[] = {{"BYTES", "bytes", NULL},
                                            {"TIME", "seconds", gs_cli_write_seconds},
                                            {"ALGBW", "bytes_per_second", write_bandwidth},
                                            {"BUSBW", "bus_bytes_per_second", write_bandwidth},
                                            {"WRONG", "num_wrong", NULL}};

static int ask(gs_cli *cli, gs_json **reply, bool measures) {
    gs_strbuf path = {0};
    gs_strbuf_puts(&path, "/v1/workers/examination");
    gs_cli_add_query(cli->http, &path, "workers", cli->options.hosts);
    if (measures) gs_cli_add_query(cli->http, &path, "measure", "true");
    if (measures && cli->options.force) gs_cli_add_query(cli->http, &path, "force", "true");
    int exit_code = gs_cli_http_call(cli->http, reply, &(gs_cli_request){.verb = "POST", .path = path.text, .once = true});
    gs_strbuf_release(&path);
    return exit_code;
}

static void print_findings(const gs_json *findings) {
    for (size_t i = 0; i < gs_json_count(findings); i++) {
        const gs_json *finding = gs_json_at(findings, i);
        const char *worker = gs_json_string_or(finding, "worker", NULL), *peer = gs_json_string_or(finding, "peer", NULL);
        const char *suggest = gs_json_string_or(finding, "suggest", NULL);
        gs_cli_print_line(stdout, "%-7s  %s%s%s%s%s", gs_json_string_or(finding, "severity", ""), worker ? worker : "",
                          worker && peer ? " and " : "", worker && peer ? peer : "", worker ? ": " : "",
                          gs_json_string_or(finding, "detail", ""));
        if (suggest) gs_cli_print_line(stdout, "         %s", suggest);
    }
}

// Links that were reached; those that were not are among the findings.
static gs_json *reached(const gs_json *links) {
    gs_json *out = gs_json_new_array();
    for (size_t i = 0; i < gs_json_count(links); i++) {
        const gs_json *link = gs_json_at(links, i);
        if (!gs_json_bool_or(link, "reachable", false)) continue;
        gs_json *copy = gs_json_copy(link), *sizes = gs_json_new_object();
        const gs_json *list = gs_json_get(link, "sizes");
        for (size_t k = 0; k < gs_json_count(list); k++) {
            char name[8];
            snprintf(name, sizeof name, "%zu", k);
            gs_json_set_double(sizes, name, gs_json_double_or(gs_json_at(list, k), "seconds", 0));
        }
        gs_json_set(copy, "sizes", sizes);
        gs_json_push(out, copy);
    }
    return out;
}

static void print_links(const gs_json *links, const gs_cli_column *columns, size_t num_columns) {
    gs_json *shown = reached(links);
    if (gs_json_count(shown) > 0) gs_cli_print_table(shown, columns, num_columns);
    gs_json_release(shown);
}

static int end(gs_cli *cli, gs_json *reply, int exit_code) {
    if (exit_code == GS_EXIT_OK && cli->options.format == GS_CLI_JSON) gs_cli_print_json(reply);
    bool healthy = gs_json_bool_or(reply, "healthy", false);
    gs_json_release(reply);
    if (exit_code != GS_EXIT_OK) return exit_code;
    return healthy ? GS_EXIT_OK : GS_EXIT_JOB_FAILED;
}

int gs_cli_doctor(gs_cli *cli) {
    gs_json *reply = NULL;
    int exit_code = ask(cli, &reply, false);
    if (exit_code == GS_EXIT_OK && cli->options.format != GS_CLI_JSON) {
        const gs_json *findings = gs_json_get(reply, "findings");
        gs_cli_print_table(gs_json_get(reply, "hosts"), host_columns, COUNT(host_columns));
        print_links(gs_json_get(reply, "links"), link_columns, COUNT(link_columns));
        print_findings(findings);
        if (gs_json_count(findings) == 0) puts("nothing is in the way");
    }
    return end(cli, reply, exit_code);
}

// Of the slowest link: with the owner of a slice on each host all lines carry 2 (N − 1) / N of the bytes, and a word goes there and
// back.
static void print_bound(const gs_json *hosts, const gs_json *links) {
    double slowest = 0, latency = 0, num_hosts = (double)gs_json_count(hosts);
    const char *from = "", *to = "";
    for (size_t i = 0; i < gs_json_count(links); i++) {
        const gs_json *link = gs_json_at(links, i);
        double rate = gs_json_double_or(link, "bytes_per_second", 0), round_trip = gs_json_double_or(link, "round_trip_seconds", 0);
        if (round_trip > latency) latency = round_trip;
        if (rate <= 0 || (slowest > 0 && rate >= slowest)) continue;
        slowest = rate;
        from = gs_json_string_or(link, "from", "");
        to = gs_json_string_or(link, "to", "");
    }
    if (slowest <= 0 || num_hosts < 2) return;
    double seconds = 2 * (num_hosts - 1) / num_hosts * WHOLE_BYTES / slowest + latency;
    printf("an all-reduce of 25 MiB among them takes %.1f ms at least: the slowest link is %s to %s\n", seconds * 1000, from, to);
}

// As nccl-tests have it: BUSBW is what a line carries, whatever the number of ranks.
static void print_sums(const gs_json *sums) {
    const gs_json *workers = gs_json_get(sums, "workers"), *sizes = gs_json_get(sums, "sizes");
    if (gs_json_count(sizes) == 0) return;
    printf("all-reduces of fp32 among");
    for (size_t i = 0; i < gs_json_count(workers); i++) printf("%s %s", i ? "," : "", gs_json_string(gs_json_at(workers, i)));
    printf(", one rank each, by %s\n", gs_json_string_or(sums, "backend", ""));
    gs_cli_print_table(sizes, sum_columns, COUNT(sum_columns));
}

int gs_cli_bench(gs_cli *cli) {
    gs_json *reply = NULL;
    if (strcmp(cli->options.args[0], "allreduce") != 0) {
        fprintf(stderr, "gradsync bench: \"%s\" is not known; it measures allreduce\n", cli->options.args[0]);
        return GS_EXIT_USAGE;
    }
    int exit_code = ask(cli, &reply, true);
    if (exit_code == GS_EXIT_OK && cli->options.format != GS_CLI_JSON) {
        const gs_json *links = gs_json_get(reply, "links");
        print_links(links, measured_columns, COUNT(measured_columns));
        print_bound(gs_json_get(reply, "hosts"), links);
        print_sums(gs_json_get(reply, "sums"));
        print_findings(gs_json_get(reply, "findings"));
        if (gs_json_count(links) == 0) puts("there is no link: one worker alone");
    }
    return end(cli, reply, exit_code);
}
