#include "coordinator/observe/hosts/examination.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/observe/events.h"
#include "coordinator/observe/held.h"
#include "coordinator/observe/hosts/findings.h"
#include "core/clock.h"
#include "core/random.h"

#define HOST_NS (4 * GS_NS_PER_SEC)
#define REACH_NS (5 * GS_NS_PER_SEC)
#define MEASURE_NS (6 * GS_NS_PER_SEC)
#define SUMS_NS (30 * GS_NS_PER_SEC)  // all of them
#define MOST_EXCHANGES 64
#define SECRET_BYTES 16

typedef enum stage { STAGE_HOST = 0, STAGE_REACH, STAGE_MEASURE, STAGE_SUMS } stage;

typedef struct examined {
    char name[64], host[128], boot_id[64];
    uint64_t incarnation;
    gs_call stream;
    bool is_asked, has_answered;
    gs_json *report;  // owned; NULL: it said nothing
    gs_json *said;    // owned; of sums, its last answer
} examined;

struct gs_examination {
    gs_observer *observer;
    gs_rpc_call_handle *call;
    gs_held held;
    int64_t request, stage_number, asked_ns, asked_wall_ms, deadline_ns;
    stage stage;
    int round;  // of measurements, from 1
    int num_exchanges;  // of words, for sums
    bool measures;
    uint8_t secret[SECRET_BYTES];
    int num_hosts;
    examined *hosts;  // owned
    gs_json **links;  // owned, and each: what was found of those from i to k, at i · num_hosts + k; NULL: nothing
    gs_json *sums;    // owned; NULL: there were none
};

static void release(gs_examination *self) {
    if (!self) return;
    for (int i = 0; self->links && i < self->num_hosts * self->num_hosts; i++) gs_json_release(self->links[i]);
    for (int i = 0; i < self->num_hosts; i++) {
        gs_json_release(self->hosts[i].report);
        gs_json_release(self->hosts[i].said);
    }
    gs_json_release(self->sums);
    free(self->links);
    free(self->hosts);
    free(self);
}

static void forget(gs_examination *self) {
    for (int i = 0; i < self->num_hosts; i++) {
        gs_json *item = gs_json_new_object();
        gs_json_set_string(item, "type", "examined");
        self->observer->send(self->observer->send_ctx, self->hosts[i].stream, item);
    }
    self->observer->examination = NULL;
    release(self);
}

static void forget_asker(void *owner, gs_rpc_call_handle *call) {
    (void)call;
    forget(owner);
}

static const char *address_of(const examined *host) { return gs_json_string_or(host->report, "data_address", ""); }
static int64_t port_of(const examined *host) { return gs_json_int_or(host->report, "port", 0); }

static gs_json *describe_host(const examined *host) {
    gs_json *out = host->report ? gs_json_retain(host->report) : gs_json_new_object();
    gs_json_set_string(out, "worker", host->name);
    gs_json_set_string(out, "host", host->host);
    gs_json_set_string(out, "boot_id", host->boot_id);
    gs_json_set_bool(out, "answered", host->report != NULL);
    return out;
}

static int by_name(const void *a, const void *b) { return strcmp(((const examined *)a)->name, ((const examined *)b)->name); }

static void finish(gs_examination *self) {
    gs_json *reply = gs_json_new_object(), *hosts = gs_json_new_array(), *links = gs_json_new_array();
    bool healthy;
    for (int i = 0; i < self->num_hosts; i++) gs_json_push(hosts, describe_host(&self->hosts[i]));
    for (int i = 0; i < self->num_hosts * self->num_hosts; i++)
        if (self->links[i]) gs_json_push(links, gs_json_retain(self->links[i]));
    gs_json *findings = gs_findings_of(&healthy, hosts, links, self->sums, GRADSYNC_VERSION);
    gs_json_set_bool(reply, "healthy", healthy);
    gs_json_set(reply, "findings", findings);
    gs_json_set(reply, "hosts", hosts);
    gs_json_set(reply, "links", links);
    if (self->sums) gs_json_set(reply, "sums", gs_json_retain(self->sums));
    gs_rpc_reply(self->call, gs_ok(), reply);
    forget(self);
}

static void send(gs_examination *self, examined *host, gs_json *item) {
    gs_json_set_int(item, "request", self->request);
    gs_json_set_int(item, "stage_number", self->stage_number);
    host->is_asked = self->observer->send(self->observer->send_ctx, host->stream, item);
    host->has_answered = false;
}

static void begin_stage(gs_examination *self, stage next, int64_t patience_ns) {
    self->stage = next;
    self->stage_number++;
    self->asked_ns = gs_now_ns();
    self->asked_wall_ms = gs_wall_ms();
    self->deadline_ns = self->asked_ns + patience_ns;
    for (int i = 0; i < self->num_hosts; i++) self->hosts[i].is_asked = false;
}

static void ask_hosts(gs_examination *self) {
    begin_stage(self, STAGE_HOST, HOST_NS);
    for (int i = 0; i < self->num_hosts; i++) {
        gs_json *item = gs_json_new_object();
        gs_json_set_string(item, "type", "examine");
        gs_json_set_bytes(item, "secret", self->secret, sizeof self->secret);
        send(self, &self->hosts[i], item);
    }
}

static void add_peer(gs_json *peers, const examined *host) {
    gs_json *entry = gs_json_new_object();
    gs_json_set_string(entry, "worker", host->name);
    gs_json_set_string(entry, "address", address_of(host));
    gs_json_set_int(entry, "port", port_of(host));
    gs_json_push(peers, entry);
}

static void ask_links(gs_examination *self, examined *host, gs_json *peers) {
    if (gs_json_count(peers) == 0) {
        gs_json_release(peers);
        return;
    }
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "reach");
    gs_json_set_bool(item, "thoroughly", self->stage == STAGE_MEASURE);
    gs_json_set(item, "peers", peers);
    send(self, host, item);
}

static void ask_all_links(gs_examination *self) {
    begin_stage(self, STAGE_REACH, REACH_NS);
    for (int i = 0; i < self->num_hosts; i++) {
        gs_json *peers = gs_json_new_array();
        for (int k = 0; k < self->num_hosts; k++)
            if (k != i && port_of(&self->hosts[i]) && port_of(&self->hosts[k])) add_peer(peers, &self->hosts[k]);
        ask_links(self, &self->hosts[i], peers);
    }
}

// In round r each sends to the one that stands r behind it: all lines are in use once in each direction.
static void ask_round(gs_examination *self) {
    begin_stage(self, STAGE_MEASURE, MEASURE_NS);
    for (int i = 0; i < self->num_hosts; i++) {
        const examined *other = &self->hosts[(i + self->round) % self->num_hosts];
        gs_json *peers = gs_json_new_array();
        if (port_of(&self->hosts[i]) && port_of(other)) add_peer(peers, other);
        ask_links(self, &self->hosts[i], peers);
    }
}

// All reach each other: else a communicator would be waited for in vain, and links have said why.
static bool may_add_up(const gs_examination *self) {
    for (int i = 0; i < self->num_hosts; i++) {
        for (int k = 0; k < self->num_hosts; k++)
            if (k != i && !gs_json_bool_or(self->links[i * self->num_hosts + k], "reachable", false)) return false;
    }
    return self->num_hosts > 1;
}

static void forget_words(gs_examination *self) {
    for (int i = 0; i < self->num_hosts; i++) {
        gs_json_release(self->hosts[i].said);
        self->hosts[i].said = NULL;
    }
}

static void ask_sums(gs_examination *self) {
    begin_stage(self, STAGE_SUMS, SUMS_NS);
    for (int i = 0; i < self->num_hosts; i++) {
        gs_json *item = gs_json_new_object();
        gs_json_set_string(item, "type", "sum");
        gs_json_set_int(item, "rank", i);
        gs_json_set_int(item, "world_size", self->num_hosts);
        send(self, &self->hosts[i], item);
    }
}

static const char *tag_of(const examined *host) { return gs_json_string_or(gs_json_get(host->said, "exchange"), "tag", ""); }

// Whether all have words for each other, and the same ones.
static bool want_words(const gs_examination *self) {
    for (int i = 0; i < self->num_hosts; i++)
        if (!*tag_of(&self->hosts[i]) || strcmp(tag_of(&self->hosts[i]), tag_of(&self->hosts[0])) != 0) return false;
    return self->num_exchanges < MOST_EXCHANGES;
}

static void pass_words(gs_examination *self) {
    gs_json *words = gs_json_new_array();
    int64_t deadline_ns = self->deadline_ns;
    char tag[64];
    snprintf(tag, sizeof tag, "%s", tag_of(&self->hosts[0]));
    for (int i = 0; i < self->num_hosts; i++) {
        gs_json *entry = gs_json_new_object();
        gs_json_set_string(entry, "word", gs_json_string_or(gs_json_get(self->hosts[i].said, "exchange"), "word", ""));
        gs_json_push(words, entry);
    }
    forget_words(self);
    self->num_exchanges++;
    begin_stage(self, STAGE_SUMS, 0);
    self->deadline_ns = deadline_ns;
    for (int i = 0; i < self->num_hosts; i++) {
        gs_json *item = gs_json_new_object();
        gs_json_set_string(item, "type", "exchanged");
        gs_json_set_string(item, "tag", tag);
        gs_json_set(item, "words", gs_json_copy(words));
        send(self, &self->hosts[i], item);
    }
    gs_json_release(words);
}

// Who failed first is not known; who did not answer is worse than who says why.
static void find_error(const gs_examination *self) {
    for (int i = 0; i < self->num_hosts; i++) {
        const examined *host = &self->hosts[i];
        const char *error = gs_json_string_or(gs_json_get(host->said, "sums"), "error", NULL);
        char text[400] = "";
        if (!host->has_answered) snprintf(text, sizeof text, "%.63s did not answer in time", host->name);
        else if (error) snprintf(text, sizeof text, "%.63s: %.300s", host->name, error);
        if (text[0]) gs_json_set_string(self->sums, "error", text);
        if (text[0] && !host->has_answered) return;
    }
}

// All ranks say the same; the first is taken at its word.
static void take_sums(gs_examination *self) {
    const gs_json *found = gs_json_get(self->hosts[0].said, "sums"), *sizes = gs_json_get(found, "sizes");
    gs_json *workers = gs_json_new_array(), *list = gs_json_new_array();
    double num_hosts = self->num_hosts;
    self->sums = gs_json_new_object();
    for (int i = 0; i < self->num_hosts; i++) gs_json_push(workers, gs_json_new_string(self->hosts[i].name));
    for (size_t i = 0; i < gs_json_count(sizes); i++) {
        gs_json *entry = gs_json_copy(gs_json_at(sizes, i));
        double bytes = (double)gs_json_int_or(entry, "bytes", 0), seconds = gs_json_double_or(entry, "seconds", 0);
        gs_json_set_double(entry, "bytes_per_second", seconds > 0 ? bytes / seconds : 0);
        gs_json_set_double(entry, "bus_bytes_per_second", seconds > 0 ? 2 * (num_hosts - 1) / num_hosts * bytes / seconds : 0);
        gs_json_push(list, entry);
    }
    gs_json_set(self->sums, "workers", workers);
    gs_json_set_string(self->sums, "backend", gs_json_string_or(found, "backend", ""));
    gs_json_set_string(self->sums, "reason", gs_json_string_or(found, "reason", ""));
    gs_json_set(self->sums, "sizes", list);
    find_error(self);
}

static bool waits(const gs_examination *self) {
    for (int i = 0; i < self->num_hosts; i++)
        if (self->hosts[i].is_asked && !self->hosts[i].has_answered) return true;
    return false;
}

static void go_on(gs_examination *self) {
    while (!waits(self) || gs_now_ns() >= self->deadline_ns) {
        if (self->stage == STAGE_HOST) {
            ask_all_links(self);
            continue;
        }
        if (self->stage == STAGE_SUMS && !waits(self) && want_words(self)) {
            pass_words(self);
            continue;
        }
        if (self->stage == STAGE_SUMS) take_sums(self);
        bool has_round = self->measures && self->stage != STAGE_SUMS && ++self->round < self->num_hosts;
        bool adds_up = self->measures && self->stage != STAGE_SUMS && !has_round && may_add_up(self);
        if (!has_round && !adds_up) {
            finish(self);
            return;
        }
        if (has_round) ask_round(self);
        else ask_sums(self);
    }
}

static bool is_named(const gs_json *names, const char *name) {
    if (!names) return true;
    for (size_t i = 0; i < gs_json_count(names); i++) {
        const char *text = gs_json_string(gs_json_at(names, i));
        if (text && strcmp(text, name) == 0) return true;
    }
    return false;
}

static gs_status choose_hosts(gs_examination *self, const gs_json *request) {
    const gs_agent_table *agents = &self->observer->state->agents;
    const gs_json *names = gs_json_get(request, "workers");
    for (size_t i = 0; i < gs_json_count(names); i++) {
        const char *name = gs_json_string(gs_json_at(names, i));
        const gs_agent *agent = name ? gs_agent_table_find(agents, name) : NULL;
        if (!agent || !gs_agent_is_connected(agent))
            return gs_error(GS_NOT_FOUND, "workers: \"%.63s\" is not connected", name ? name : "");
    }
    self->hosts = calloc(agents->count + 1, sizeof *self->hosts);
    if (!self->hosts) return gs_error(GS_RESOURCE_EXHAUSTED, "examination: out of memory");
    for (size_t i = 0; i < agents->count; i++) {
        const gs_agent *agent = agents->items[i];
        if (!gs_agent_is_connected(agent) || !is_named(names, agent->name)) continue;
        examined *host = &self->hosts[self->num_hosts++];
        snprintf(host->name, sizeof host->name, "%s", agent->name);
        snprintf(host->host, sizeof host->host, "%s", agent->host);
        snprintf(host->boot_id, sizeof host->boot_id, "%s", agent->boot_id);
        host->incarnation = agent->incarnation;
        host->stream = agent->stream.call;
    }
    int most = self->measures ? GS_MEASURED_HOSTS : GS_EXAMINED_HOSTS;
    if (self->num_hosts > most)
        return gs_error(GS_INVALID_ARGUMENT, "workers: %d are connected; name at most %d of them", self->num_hosts, most);
    self->links = calloc((size_t)self->num_hosts * (size_t)self->num_hosts + 1, sizeof(gs_json *));
    if (!self->links) return gs_error(GS_RESOURCE_EXHAUSTED, "examination: out of memory");
    qsort(self->hosts, (size_t)self->num_hosts, sizeof *self->hosts, by_name);
    return gs_ok();
}

// Measurements take lines from jobs that train.
static gs_status check_idle(const gs_observer *observer, const gs_json *request, gs_json **details) {
    if (!gs_json_bool_or(request, "measure", false) || gs_json_bool_or(request, "force", false)) return gs_ok();
    const gs_job_table *jobs = &observer->state->jobs;
    for (size_t i = 0; i < jobs->count; i++) {
        if (!jobs->items[i]->run) continue;
        *details = gs_json_new_object();
        gs_json_set_string(*details, "code", "wrong_state");
        gs_json_set_string(*details, "hint", "wait for it, or force the measurement: it takes the network from the job meanwhile");
        return gs_error(GS_FAILED_PRECONDITION, "job %s uses the network that is to be measured", jobs->items[i]->id_text);
    }
    return gs_ok();
}

void gs_examine_workers(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    gs_observer *observer = ctx;
    gs_json *details = NULL;
    gs_examination *self = NULL;
    gs_status status = check_idle(observer, request, &details);
    if (!status.code && observer->examination)
        status = gs_error(GS_RESOURCE_EXHAUSTED, "workers are being examined already; try again in some seconds");
    if (!status.code && !(self = calloc(1, sizeof *self))) status = gs_error(GS_RESOURCE_EXHAUSTED, "examination: out of memory");
    if (!status.code) {
        *self = (gs_examination){.observer = observer,
                                 .call = call,
                                 .request = ++observer->timeline_requests,
                                 .measures = gs_json_bool_or(request, "measure", false)};
        for (int i = 0; i < 2; i++) {
            uint64_t drawn = gs_random_from_system();
            memcpy(self->secret + i * 8, &drawn, 8);
        }
        status = choose_hosts(self, request);
    }
    if (status.code) {
        release(self);
        gs_rpc_reply(call, status, details);
        return;
    }
    observer->examination = self;
    gs_events_note_asker(observer, peer, request, self->measures ? "an examination of workers that measures" : "an examination of workers");
    gs_held_keep(&self->held, call, forget_asker, self);
    ask_hosts(self);
    go_on(self);
}

static examined *find_host(gs_examination *self, uint64_t incarnation) {
    for (int i = 0; i < self->num_hosts; i++)
        if (self->hosts[i].incarnation == incarnation) return &self->hosts[i];
    return NULL;
}

// How far its clock is from this one's, as if its word had been said half way between the question and now.
static void take_report(gs_examination *self, examined *host, const gs_json *report) {
    gs_json_release(host->report);
    host->report = gs_json_copy(report);
    double between = gs_seconds_since(self->asked_ns);
    // In floating point: a host may say any number.
    double offset = ((double)gs_json_int_or(report, "wall_ms", 0) - (double)self->asked_wall_ms) / 1000 - between / 2;
    gs_json_remove(host->report, "wall_ms");
    gs_json_set_double(host->report, "clock_offset_seconds", offset);
    gs_json_set_double(host->report, "clock_offset_error_seconds", between / 2);
}

static bool copy_member(void *ctx, const char *key, const gs_json *value) {
    if (strcmp(key, "worker") != 0) gs_json_set(ctx, key, gs_json_copy(value));
    return true;
}

// A measurement takes the place of what was found of the link before.
static void take_link(gs_examination *self, int from, const gs_json *found) {
    const char *name = gs_json_string_or(found, "worker", "");
    for (int to = 0; to < self->num_hosts; to++) {
        if (to == from || strcmp(self->hosts[to].name, name) != 0) continue;
        gs_json *link = gs_json_new_object();
        gs_json_set_string(link, "from", self->hosts[from].name);
        gs_json_set_string(link, "to", name);
        gs_json_each(found, copy_member, link);
        gs_json_release(self->links[from * self->num_hosts + to]);
        self->links[from * self->num_hosts + to] = link;
    }
}

static void take_links(gs_examination *self, const examined *host, const gs_json *peers) {
    for (size_t i = 0; i < gs_json_count(peers) && i < GS_EXAMINED_HOSTS; i++)
        take_link(self, (int)(host - self->hosts), gs_json_at(peers, i));
}

void gs_examined(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    (void)call;
    gs_observer *observer = ctx;
    gs_examination *self = observer->examination;
    gs_identity who = gs_identity_of_peer(peer);
    examined *host = self && gs_identity_find_agent(observer->state, &who) ? find_host(self, peer->incarnation) : NULL;
    if (!host || !host->is_asked || host->has_answered || gs_json_int_or(request, "request", 0) != self->request ||
        gs_json_int_or(request, "stage_number", 0) != self->stage_number)
        return;
    host->has_answered = true;
    const gs_json *report = gs_json_get(request, "host"), *peers = gs_json_get(request, "peers");
    if (self->stage == STAGE_SUMS) host->said = gs_json_copy(request);
    if (self->stage == STAGE_HOST && report && gs_json_type_of(report) == GS_JSON_OBJECT) take_report(self, host, report);
    if ((self->stage == STAGE_REACH || self->stage == STAGE_MEASURE) && peers) take_links(self, host, peers);
    go_on(self);
}

void gs_examination_tick(gs_observer *observer) {
    if (observer->examination) go_on(observer->examination);
}

void gs_examination_end(gs_observer *observer) {
    gs_examination *self = observer->examination;
    if (!self) return;
    gs_rpc_reply(self->call, gs_error(GS_UNAVAILABLE, "the coordinator stops"), NULL);
    forget(self);
}
