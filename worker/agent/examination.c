#include "worker/agent/examination.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/thread.h"
#include "gradsync/comm/net/greeting.h"
#include "rpc/schema/messages.h"
#include "worker/probes/link_probe.h"
#include "worker/probes/sum_probe.h"
#include "worker/data_address.h"

#define MOST_ITEMS 8
#define MOST_PEERS 64
#define TURN_NS (50 * GS_NS_PER_MS)
#define DOOR_NS (120 * GS_NS_PER_SEC)  // of a coordinator that is not heard again
#define PLACE_SECONDS 1.5
#define REACH_SECONDS 2.5
#define MEASURE_SECONDS 4.0
#define SUMS_SECONDS 12.0       // of sums alone
#define ALL_SUMS_SECONDS 25.0   // the coordinator waits for longer
#define MOST_EXCHANGED_BYTES ((size_t)32 << 10)

struct gs_examination {
    gs_thread *thread;
    gs_rpc_client *client;
    gs_examined_host host;
    gs_queue *items;
    // Of the thread:
    const atomic_bool *stopping;
    gs_json *next;  // an item that came amid sums and ends them; NULL: none did
    gs_link_door *door;
    int64_t opened_ns;
    gs_net_secret secret;
    char address[GS_DATA_ADDRESS_LEN];
};

// Settings of an environment that change what trainers compute, or how fast, without a word in a job.
static const char *const telling[] = {
    "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS", "LD_PRELOAD", "LD_LIBRARY_PATH",
    "MALLOC_ARENA_MAX", "MALLOC_PERTURB_", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG",
    "GRADSYNC_DATA_ADDRESS", "GRADSYNC_GRAPHS", "GRADSYNC_EARLY_UPDATES", "GRADSYNC_HOST", "RES_OPTIONS", NULL};

static gs_json *describe_environment(void) {
    gs_json *out = gs_json_new_object();
    for (const char *const *name = telling; *name; name++) gs_json_set_string(out, *name, getenv(*name));
    return out;
}

// The number of a namespace: equal ones are the same, on one machine.
static uint64_t namespace_of(const char *kind) {
    char path[64];
    struct stat facts;
    snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
    return stat(path, &facts) == 0 ? (uint64_t)facts.st_ino : 0;
}

static gs_json *describe_memory(void) {
    gs_json *out = gs_json_new_object();
    struct statvfs space;
    gs_json_set_u64(out, "network_namespace", namespace_of("net"));
    gs_json_set_u64(out, "ipc_namespace", namespace_of("ipc"));
    if (statvfs("/dev/shm", &space) == 0) {
        gs_json_set_int(out, "shm_bytes", (int64_t)((uint64_t)space.f_blocks * space.f_frsize));
        gs_json_set_int(out, "shm_free_bytes", (int64_t)((uint64_t)space.f_bavail * space.f_frsize));
    }
    long pages = sysconf(_SC_AVPHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page_bytes > 0) gs_json_set_int(out, "free_bytes", (int64_t)pages * page_bytes);
    return out;
}

static void set_limit(gs_json *out, const char *name, int resource) {
    struct rlimit limit;
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) gs_json_set_int(out, name, (int64_t)limit.rlim_cur);
}

static gs_json *describe_limits(void) {
    gs_json *out = gs_json_new_object();
    set_limit(out, "descriptors", RLIMIT_NOFILE);
    set_limit(out, "processes", RLIMIT_NPROC);
    set_limit(out, "locked_bytes", RLIMIT_MEMLOCK);
    set_limit(out, "address_space_bytes", RLIMIT_AS);
    set_limit(out, "file_bytes", RLIMIT_FSIZE);
    return out;
}

static gs_json *describe_place(const gs_place_sight *sight) {
    gs_json *out = gs_json_new_object();
    gs_json_set_string(out, "path", sight->path);
    gs_json_set_string(out, "state", sight->state);
    if (sight->detail[0]) gs_json_set_string(out, "detail", sight->detail);
    gs_json_set_bool(out, "writable", sight->is_writable);
    if (sight->free_bytes >= 0) gs_json_set_int(out, "free_bytes", sight->free_bytes);
    return out;
}

static gs_json *describe_host(gs_examination *self, gs_status door, uint32_t port) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "wall_ms", gs_wall_ms());
    gs_json_set_string(out, "build", GRADSYNC_VERSION);
    gs_json_set_u64(out, "data_version", GS_NET_VERSION);
    gs_json_set_string(out, "data_address", self->address);
    if (door.code) gs_json_set_string(out, "data_error", door.message);
    else gs_json_set_int(out, "port", port);
    gs_json_set_string(out, "data_root", self->host.data_root);
    gs_json_set_int(out, "cores", gs_usable_cores());
    gs_json_set(out, "memory", describe_memory());
    gs_json_set(out, "limits", describe_limits());
    gs_json_set(out, "environment", describe_environment());
    gs_place_sight sight = gs_shared_place_look(self->host.place, PLACE_SECONDS);
    gs_json_set(out, "checkpoints", describe_place(&sight));
    return out;
}

// Takes what was found.
static void answer(gs_examination *self, const gs_json *item, const char *stage, gs_json *found) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "request", gs_json_int_or(item, "request", 0));
    gs_json_set_int(out, "stage_number", gs_json_int_or(item, "stage_number", 0));
    gs_json_set(out, stage, found);
    gs_rpc_send(self->client, GS_EXAMINED, out);
    gs_json_release(out);
}

static gs_status read_secret(gs_net_secret *secret, const gs_json *item) {
    void *bytes = NULL;
    size_t num_bytes = 0;
    GS_TRY(gs_json_read_bytes(&bytes, &num_bytes, item, "secret"));
    if (num_bytes == sizeof secret->bytes) memcpy(secret->bytes, bytes, num_bytes);
    free(bytes);
    return num_bytes == sizeof secret->bytes ? gs_ok() : gs_error(GS_INVALID_ARGUMENT, "secret: %zu bytes", num_bytes);
}

static void close_door(gs_examination *self) {
    gs_link_door_close(self->door);
    self->door = NULL;
}

static void examine(gs_examination *self, const gs_json *item) {
    uint32_t port = 0;
    close_door(self);
    gs_data_address_find(self->address, self->host.data_address, self->host.coordinator);
    gs_status status = self->address[0] ? read_secret(&self->secret, item)
                                        : gs_error(GS_UNAVAILABLE, "no data address: the coordinator's name is not found");
    if (!status.code) status = gs_link_door_open(&self->door, &port, self->address, &self->secret);
    self->opened_ns = gs_now_ns();
    answer(self, item, "host", describe_host(self, status, port));
}

// One of the others, on a thread of its own: those that do not answer take no time from each other.
typedef struct peer {
    gs_link_place place;
    bool thoroughly;
    gs_thread *thread;
    gs_status status;
    gs_link_facts facts;
} peer;

static void try_peer(void *ctx, const atomic_bool *stopping) {
    peer *one = ctx;
    (void)stopping;
    one->status = gs_link_try(&one->facts, &one->place, one->thoroughly,
                              gs_deadline_in_seconds(one->thoroughly ? MEASURE_SECONDS : REACH_SECONDS));
}

static gs_json *describe_peer(const peer *one, const gs_json *asked) {
    gs_json *out = gs_json_new_object();
    gs_json_set_string(out, "worker", gs_json_string_or(asked, "worker", ""));
    gs_json_set_bool(out, "reachable", one->status.code == GS_OK);
    if (one->status.code) {
        gs_json_set_string(out, "error", one->status.message);
        return out;
    }
    gs_json_set_double(out, "round_trip_seconds", one->facts.round_trip_seconds);
    gs_json_set_double(out, "least_round_trip_seconds", one->facts.least_round_trip_seconds);
    if (!one->thoroughly) return out;
    gs_json *sizes = gs_json_new_array();
    for (int i = 0; i < GS_LINK_NUM_SIZES; i++) {
        gs_json *entry = gs_json_new_object();
        gs_json_set_int(entry, "bytes", (int64_t)gs_link_sizes[i]);
        gs_json_set_double(entry, "seconds", one->facts.size_seconds[i]);
        gs_json_push(sizes, entry);
    }
    gs_json_set(out, "sizes", sizes);
    gs_json_set_double(out, "bytes_per_second", one->facts.bytes_per_sec);
    return out;
}

static void reach(gs_examination *self, const gs_json *item) {
    const gs_json *asked = gs_json_get(item, "peers");
    size_t count = gs_json_count(asked);
    peer *peers = count <= MOST_PEERS ? calloc(count + 1, sizeof *peers) : NULL;
    gs_json *found = gs_json_new_array();
    for (size_t i = 0; peers && i < count; i++) {
        const gs_json *entry = gs_json_at(asked, i);
        peers[i].place = (gs_link_place){.own = self->address,
                                         .address = gs_json_string_or(entry, "address", ""),
                                         .port = (uint32_t)gs_json_int_or(entry, "port", 0),
                                         .secret = &self->secret};
        peers[i].thoroughly = gs_json_bool_or(item, "thoroughly", false);
        peers[i].status = gs_thread_start(&peers[i].thread, "gs-reach", try_peer, &peers[i]);
    }
    for (size_t i = 0; peers && i < count; i++) {
        gs_thread_stop(peers[i].thread);
        gs_json_push(found, describe_peer(&peers[i], gs_json_at(asked, i)));
    }
    free(peers);
    self->opened_ns = gs_now_ns();
    answer(self, item, "peers", found);
}

// Sums need a communicator, and its ranks something that carries words before there is one: the coordinator, which asks for the
// words of all and sends them round as the next stage.
typedef struct sum_talk {
    gs_examination *self;
    gs_json *asked;  // owned; the item that the next answer is to
    gs_json *words;  // owned; what came to the last one, and nobody has taken yet
    int world_size;
} sum_talk;

// Words are what is waited for; whatever else comes ends the measurement, and is done behind it.
static void take_item(sum_talk *talk, gs_json *item) {
    gs_json **place = strcmp(gs_json_string_or(item, "type", ""), "exchanged") == 0 ? &talk->words : &talk->self->next;
    gs_json_release(*place);
    *place = item;
}

// Asked while words are waited for, and while sums run.
static int is_over(void *ctx) {
    sum_talk *talk = ctx;
    void *item = NULL;
    while (!talk->self->next && gs_queue_pop(talk->self->items, &item, (gs_deadline){0})) take_item(talk, item);
    return talk->self->next || atomic_load(talk->self->stopping);
}

static gs_status await_words(sum_talk *talk, gs_deadline deadline) {
    gs_examination *self = talk->self;
    void *item = NULL;
    while (!is_over(talk) && !talk->words && !gs_deadline_passed(deadline))
        if (gs_queue_pop(self->items, &item, gs_deadline_min(deadline, gs_deadline_in_ns(TURN_NS)))) take_item(talk, item);
    if (talk->words && !self->next) {
        gs_json_release(talk->asked);
        talk->asked = talk->words;
        talk->words = NULL;
        return gs_ok();
    }
    return is_over(talk) ? gs_error(GS_CANCELLED, "the measurement has been given up")
                         : gs_error(GS_DEADLINE_EXCEEDED, "the other workers' words did not come in time");
}

static gs_status take_words(const sum_talk *talk, const char *tag, size_t bytes, void *all) {
    const gs_json *words = gs_json_get(talk->asked, "words");
    if (strcmp(gs_json_string_or(talk->asked, "tag", ""), tag) != 0 || gs_json_count(words) != (size_t)talk->world_size)
        return gs_error(GS_INTERNAL, "other words came than those of \"%.64s\"", tag);
    for (int rank = 0; rank < talk->world_size; rank++) {
        void *data = NULL;
        size_t num_bytes = 0;
        GS_TRY(gs_json_read_bytes(&data, &num_bytes, gs_json_at(words, (size_t)rank), "word"));
        if (num_bytes == bytes) memcpy((char *)all + (size_t)rank * bytes, data, bytes);
        free(data);
        if (num_bytes != bytes) return gs_error(GS_INTERNAL, "rank %d says %zu bytes, not %zu", rank, num_bytes, bytes);
    }
    return gs_ok();
}

static gs_status exchange_words(void *ctx, const char *tag, const int *ranks, int num_ranks, const void *mine, size_t bytes, void *all,
                                gs_deadline deadline) {
    sum_talk *talk = ctx;
    if (bytes > MOST_EXCHANGED_BYTES) return gs_error(GS_UNIMPLEMENTED, "words of %zu bytes of each rank", bytes);
    // The coordinator sends round the words of all. A backend that wants those of a few is left for the next one.
    if (ranks || num_ranks != talk->world_size) return gs_error(GS_UNAVAILABLE, "words of %d of %d ranks are not sent round here", num_ranks, talk->world_size);
    gs_json *said = gs_json_new_object();
    gs_json_set_string(said, "tag", tag);
    gs_json_set_bytes(said, "word", mine, bytes);
    answer(talk->self, talk->asked, "exchange", said);
    GS_TRY(await_words(talk, deadline));
    return take_words(talk, tag, bytes, all);
}

static gs_json *describe_sums(gs_status status, const gs_sum_facts *facts) {
    gs_json *out = gs_json_new_object(), *sizes = gs_json_new_array();
    if (status.code) gs_json_set_string(out, "error", status.message);
    gs_json_set_string(out, "backend", facts->backend);
    gs_json_set_string(out, "reason", facts->reason);
    for (int i = 0; i < facts->num_sizes; i++) {
        gs_json *entry = gs_json_new_object();
        gs_json_set_int(entry, "bytes", (int64_t)facts->sizes[i].bytes);
        gs_json_set_double(entry, "seconds", facts->sizes[i].seconds);
        gs_json_set_int(entry, "num_wrong", (int64_t)facts->sizes[i].num_wrong);
        gs_json_push(sizes, entry);
    }
    gs_json_set(out, "sizes", sizes);
    return out;
}

static void add_up(gs_examination *self, const gs_json *item) {
    sum_talk talk = {.self = self, .asked = gs_json_copy(item), .world_size = (int)gs_json_int_or(item, "world_size", 0)};
    const gs_sum_options options = {.rank = (int)gs_json_int_or(item, "rank", 0),
                                    .world_size = talk.world_size,
                                    .generation = (uint32_t)gs_json_int_or(item, "request", 0),
                                    .exchange = exchange_words,
                                    .exchange_ctx = &talk,
                                    .data_address = self->address,
                                    .interrupt = is_over,
                                    .interrupt_ctx = &talk};
    gs_sum_facts facts;
    gs_status status = gs_sum_probe_run(&facts, &options, SUMS_SECONDS, gs_deadline_in_seconds(ALL_SUMS_SECONDS));
    self->opened_ns = gs_now_ns();
    answer(self, talk.asked, "sums", describe_sums(status, &facts));
    gs_json_release(talk.asked);
    gs_json_release(talk.words);
}

// What came amid sums comes first.
static bool pop_item(gs_examination *self, void **item) {
    *item = self->next;
    self->next = NULL;
    return *item || gs_queue_pop(self->items, item, gs_deadline_in_ns(TURN_NS));
}

static void run(void *ctx, const atomic_bool *stopping) {
    gs_examination *self = ctx;
    self->stopping = stopping;
    while (!atomic_load(stopping)) {
        void *item = NULL;
        if (!pop_item(self, &item)) {
            if (self->door && gs_now_ns() - self->opened_ns >= DOOR_NS) close_door(self);
            if (atomic_load(stopping)) break;
            continue;
        }
        const char *type = gs_json_string_or(item, "type", "");
        if (strcmp(type, "examine") == 0) examine(self, item);
        else if (strcmp(type, "reach") == 0) reach(self, item);
        else if (strcmp(type, "sum") == 0) add_up(self, item);
        else if (strcmp(type, "examined") == 0) close_door(self);  // words that came too late close nothing
        gs_json_release(item);
    }
}

gs_status gs_examination_start(gs_examination **out, gs_rpc_client *client, const gs_examined_host *host) {
    gs_examination *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "examination: out of memory");
    self->client = client;
    self->host = *host;
    self->items = gs_queue_create(MOST_ITEMS);
    gs_status status = self->items ? gs_thread_start(&self->thread, "gs-examine", run, self)
                                   : gs_error(GS_RESOURCE_EXHAUSTED, "examination: out of memory");
    if (status.code) {
        gs_examination_stop(self);
        return status;
    }
    *out = self;
    return gs_ok();
}

void gs_examination_stop(gs_examination *self) {
    void *item;
    if (!self) return;
    gs_thread_stop(self->thread);
    gs_json_release(self->next);
    while (self->items && gs_queue_pop(self->items, &item, (gs_deadline){0})) gs_json_release(item);
    gs_queue_destroy(self->items);
    close_door(self);
    free(self);
}

void gs_examination_take(gs_examination *self, const gs_json *item) {
    gs_json *copy = gs_json_copy(item);
    if (!gs_queue_push(self->items, copy, (gs_deadline){0})) gs_json_release(copy);
}
