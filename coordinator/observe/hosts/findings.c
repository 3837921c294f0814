#include "coordinator/observe/hosts/findings.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FEW_DESCRIPTORS 4096
#define CLOCK_SECONDS 2.0       // apart: logs and curves of ranks can't be laid side by side
#define LITTLE_DISK_BYTES ((int64_t)1 << 30)
#define ONE_WAY_FACTOR 3.0      // a direction that is slower than the other by so much

typedef enum severity { SEVERITY_ERROR = 0, SEVERITY_WARNING, SEVERITY_INFO, NUM_SEVERITIES } severity;
static const char *const severities[NUM_SEVERITIES] = {"error", "warning", "info"};

typedef struct findings {
    gs_json *of[NUM_SEVERITIES];
    const gs_json *hosts;
} findings;

__attribute__((format(printf, 7, 8))) static void add(findings *self, severity how, const char *kind, const char *worker,
                                                      const char *peer, const char *suggest, const char *format, ...) {
    char detail[640];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "severity", severities[how]);
    gs_json_set_string(item, "kind", kind);
    gs_json_set_string(item, "worker", worker);
    gs_json_set_string(item, "peer", peer);
    gs_json_set_string(item, "detail", detail);
    gs_json_set_string(item, "suggest", suggest);
    gs_json_push(self->of[how], item);
}

static const char *text_of(const gs_json *object, const char *member) { return gs_json_string_or(object, member, ""); }
static const char *name_of(const gs_json *host) { return text_of(host, "worker"); }

static void look_at_address(findings *self, const gs_json *host) {
    const char *address = text_of(host, "data_address"), *error = text_of(host, "data_error");
    if (*error)
        add(self, SEVERITY_ERROR, "data_address", name_of(host), NULL, "give the worker an address of its host: --data-address", "%s", error);
    bool is_loopback = strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
    for (size_t i = 0; is_loopback && i < gs_json_count(self->hosts); i++) {
        const gs_json *other = gs_json_at(self->hosts, i);
        if (!strcmp(text_of(other, "boot_id"), text_of(host, "boot_id"))) continue;
        add(self, SEVERITY_ERROR, "data_address", name_of(host), name_of(other),
            "give it --data-address, an address that the others reach", "its data address is %s, which only its own host reaches", address);
        return;
    }
}

static void look_at_build(findings *self, const gs_json *host, const char *version) {
    const gs_json *first = gs_json_at(self->hosts, 0);
    const char *build = text_of(host, "build");
    if (strcmp(build, version) != 0)
        add(self, SEVERITY_ERROR, "build", name_of(host), NULL, "run one build of gradsync everywhere", "it is of build %s, the coordinator of %s",
            build, version);
    if (gs_json_bool_or(first, "answered", false) && strcmp(text_of(host, "data_version"), text_of(first, "data_version")) != 0)
        add(self, SEVERITY_ERROR, "build", name_of(host), name_of(first), "run one build of gradsync everywhere",
            "its ranks speak another version of the protocol between ranks");
}

static void look_at_limits(findings *self, const gs_json *host) {
    const gs_json *limits = gs_json_get(host, "limits");
    int64_t descriptors = gs_json_int_or(limits, "descriptors", INT64_MAX);
    if (descriptors < FEW_DESCRIPTORS)
        add(self, SEVERITY_WARNING, "descriptors", name_of(host), NULL, "raise it: ulimit -n, LimitNOFILE of the unit, or the container's ulimits",
            "its processes may open %lld files and connections: one is needed for each rank of a job, each data file and each log",
            (long long)descriptors);
    if (gs_json_get(limits, "file_bytes"))
        add(self, SEVERITY_WARNING, "file_bytes", name_of(host), NULL, "raise ulimit -f",
            "files of its processes end at %lld bytes: a larger part of a checkpoint can't be written",
            (long long)gs_json_int_or(limits, "file_bytes", 0));
}

// What each setting does that surprises; NULL: it is only shown.
static const char *trap_of(const char *name) {
    static const struct {
        const char *name, *says;
    } traps[] = {
        {"OPENBLAS_CORETYPE", "matrix products use another kernel than the processor has: slower, and not the bits of other hosts"},
        {"OPENBLAS_NUM_THREADS", "ranks set their own number of threads"},
        {"GOTO_NUM_THREADS", "ranks set their own number of threads"},
        {"LD_PRELOAD", "a library stands in front of those that were tested"},
        {"MALLOC_PERTURB_", "memory is filled when it is given and taken: slow"},
        {"CUDA_LAUNCH_BLOCKING", "each kernel is waited for: slow"},
        {"GRADSYNC_HOST", "ranks take this for their host: meant for tests"},
    };
    for (size_t i = 0; i < sizeof traps / sizeof *traps; i++)
        if (strcmp(traps[i].name, name) == 0) return traps[i].says;
    return NULL;
}

typedef struct looked_at {
    findings *self;
    const gs_json *host;
} looked_at;

static bool look_at_variable(void *ctx, const char *key, const gs_json *value) {
    looked_at *it = ctx;
    const char *says = trap_of(key), *text = gs_json_string(value);
    if (says)
        add(it->self, SEVERITY_WARNING, "environment", name_of(it->host), NULL, "unset it where the worker is started, unless it is meant",
            "%s=%.80s: %s", key, text ? text : "", says);
    return true;
}

static void look_at_checkpoints(findings *self, const gs_json *host) {
    const gs_json *place = gs_json_get(host, "checkpoints");
    const char *state = text_of(place, "state"), *path = text_of(place, "path"), *detail = text_of(place, "detail");
    static const char share[] = "mount the coordinator's checkpoint directory there (--checkpoints says where), or what its ranks save is lost to others";
    if (!strcmp(state, "missing"))
        add(self, SEVERITY_WARNING, "checkpoints", name_of(host), NULL, share, "%s is not the coordinator's checkpoint directory: no mark of it is there%s%s",
            path, *detail ? ": " : "", detail);
    else if (!strcmp(state, "other"))
        add(self, SEVERITY_WARNING, "checkpoints", name_of(host), NULL, share, "%s is not the coordinator's checkpoint directory, but a copy of it", path);
    else if (!strcmp(state, "unreadable") || !strcmp(state, "silent"))
        add(self, SEVERITY_ERROR, "checkpoints", name_of(host), NULL, "look at the disk or its file server", "%s %s%s%s", path,
            !strcmp(state, "silent") ? "does not answer" : "cannot be read", *detail ? ": " : "", detail);
    if (!strcmp(state, "same") && !gs_json_bool_or(place, "writable", true))
        add(self, SEVERITY_ERROR, "checkpoints", name_of(host), NULL, "let the worker's user write there", "%s cannot be written", path);
    int64_t free_bytes = gs_json_int_or(place, "free_bytes", INT64_MAX);
    if (free_bytes < LITTLE_DISK_BYTES)
        add(self, SEVERITY_WARNING, "checkpoints", name_of(host), NULL, "make room, or keep fewer: checkpoint.keep_last", "%s has %lld MiB left",
            path, (long long)(free_bytes >> 20));
}

static void look_at_clock(findings *self, const gs_json *host) {
    double offset = gs_json_double_or(host, "clock_offset_seconds", 0), error = gs_json_double_or(host, "clock_offset_error_seconds", 0);
    if (fabs(offset) - error < CLOCK_SECONDS) return;
    add(self, SEVERITY_WARNING, "clock", name_of(host), NULL, "let a time service set the clocks",
        "its clock is %.1f s %s the coordinator's (within %.1f s): nothing depends on it but times in logs", fabs(offset),
        offset > 0 ? "ahead of" : "behind", error);
}

static void look_at_host(findings *self, const gs_json *host, const char *version) {
    looked_at it = {self, host};
    if (!gs_json_bool_or(host, "answered", false)) {
        add(self, SEVERITY_ERROR, "silent", name_of(host), NULL, "look at its log; is it of an earlier build?", "it did not answer in time");
        return;
    }
    look_at_address(self, host);
    look_at_build(self, host, version);
    look_at_limits(self, host);
    look_at_checkpoints(self, host);
    look_at_clock(self, host);
    gs_json_each(gs_json_get(host, "environment"), look_at_variable, &it);
}

// Ranks hand each other shared memory over a socket of their network namespace, and only then it does not matter which /dev/shm
// they see.
static void look_at_sharing(findings *self, const gs_json *one, const gs_json *other) {
    const gs_json *memory = gs_json_get(one, "memory"), *others = gs_json_get(other, "memory");
    if (!*text_of(one, "boot_id") || strcmp(text_of(one, "boot_id"), text_of(other, "boot_id")) != 0 || !memory || !others) return;
    if (strcmp(text_of(memory, "network_namespace"), text_of(others, "network_namespace")) == 0) return;
    add(self, SEVERITY_INFO, "shared_memory", name_of(one), name_of(other),
        "one container with several slots, or containers of one network namespace, reduce several times faster",
        "they are on one machine and share no memory: their ranks reduce over the network");
}

static const gs_json *find_link(const gs_json *links, const char *from, const char *to) {
    for (size_t i = 0; i < gs_json_count(links); i++) {
        const gs_json *link = gs_json_at(links, i);
        if (!strcmp(text_of(link, "from"), from) && !strcmp(text_of(link, "to"), to)) return link;
    }
    return NULL;
}

static void look_at_link(findings *self, const gs_json *links, const gs_json *link) {
    const char *from = text_of(link, "from"), *to = text_of(link, "to");
    const gs_json *back = find_link(links, to, from);
    if (!gs_json_bool_or(link, "reachable", false)) {
        bool other_way = gs_json_bool_or(back, "reachable", false);
        add(self, SEVERITY_ERROR, "link", from, to,
            "let workers reach each other at their data addresses, at any port of net.ipv4.ip_local_port_range, in both directions", "%s%s",
            text_of(link, "error"), other_way ? " (the other way it does)" : "");
        return;
    }
    double there = gs_json_double_or(link, "bytes_per_second", 0), again = gs_json_double_or(back, "bytes_per_second", 0);
    if (there > 0 && again > ONE_WAY_FACTOR * there)
        add(self, SEVERITY_WARNING, "link", from, to, "look at the interfaces: duplex, offloads, limits of a container or a cloud",
            "%.0f MB/s go there and %.0f MB/s come back", there / 1e6, again / 1e6);
}

static void look_at_sums(findings *self, const gs_json *sums) {
    const gs_json *sizes = gs_json_get(sums, "sizes");
    const char *error = gs_json_string_or(sums, "error", NULL);
    if (error) add(self, SEVERITY_ERROR, "sums", NULL, NULL, "look at these workers' logs", "an all-reduce among them fails: %s", error);
    for (size_t i = 0; i < gs_json_count(sizes); i++) {
        const gs_json *size = gs_json_at(sizes, i);
        int64_t num_wrong = gs_json_int_or(size, "num_wrong", 0);
        if (num_wrong > 0)
            add(self, SEVERITY_ERROR, "sums", NULL, NULL, "take one of these machines away after the other; memory or a network card changes bytes",
                "of an all-reduce of %lld bytes %lld elements are wrong", (long long)gs_json_int_or(size, "bytes", 0), (long long)num_wrong);
    }
}

static int count_of(const gs_json *list) { return (int)gs_json_count(list); }

gs_json *gs_findings_of(bool *healthy, const gs_json *hosts, const gs_json *links, const gs_json *sums, const char *version) {
    findings self = {.hosts = hosts};
    gs_json *all = gs_json_new_array();
    for (int i = 0; i < NUM_SEVERITIES; i++) self.of[i] = gs_json_new_array();
    if (count_of(hosts) == 0)
        add(&self, SEVERITY_ERROR, "workers", NULL, NULL, "start gradsync-worker with --coordinator", "no worker is connected");
    for (int i = 0; i < count_of(hosts); i++) {
        look_at_host(&self, gs_json_at(hosts, (size_t)i), version);
        for (int k = i + 1; k < count_of(hosts); k++) look_at_sharing(&self, gs_json_at(hosts, (size_t)i), gs_json_at(hosts, (size_t)k));
    }
    for (int i = 0; i < count_of(links); i++) look_at_link(&self, links, gs_json_at(links, (size_t)i));
    look_at_sums(&self, sums);
    *healthy = gs_json_count(self.of[SEVERITY_ERROR]) == 0;
    for (int i = 0; i < NUM_SEVERITIES; i++) {
        for (size_t k = 0; k < gs_json_count(self.of[i]); k++) gs_json_push(all, gs_json_copy(gs_json_at(self.of[i], k)));
        gs_json_release(self.of[i]);
    }
    return all;
}
