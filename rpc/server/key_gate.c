#include "rpc/server/key_gate.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/digest.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "core/random.h"
#include "core/thread.h"
#include "core/u64_map.h"
#include "rpc/server/refusals.h"

#define HANDLER_ENDPOINT "inproc://zeromq.zap.01"
#define PROBE_ID "probe"
enum { LOOK_MS = 1000, DEAD_MS = 10000, PROBE_SECONDS = 20, MOST_PARTS = 8 };
#define SOON_NS (200 * GS_NS_PER_MS)   // between two looks that strangers cause
#define WARN_NS (10 * GS_NS_PER_SEC)  // between two lines of refusals

struct gs_key_gate {
    gs_rpc_context *context;
    char path[PATH_MAX];
    gs_curve_pair server;
    uint64_t seed;  // of by_key
    gs_thread *thread;
    int wake_fd;  // something is wanted of the thread
    atomic_bool has_begun, is_over, is_behind;
    atomic_uint changes;
    atomic_ullong num_admitted, num_unknown, num_ended;
    _Atomic int64_t turned_ns;
    gs_status begun;  // before has_begun

    // Of the thread.
    void *socket;
    int64_t warned_ns, looked_ns;
    gs_refusals refusals;
    _Atomic(gs_audit *) audit;  // for these
    gs_file_mark told;  // of the file of which the log says that it cannot be read, and why
    gs_code told_code;

    pthread_mutex_t lock;  // what follows; never held over the disk
    pthread_cond_t changed;
    unsigned num_looks, looks_wanted;
    gs_key_list list;
    gs_u64_map by_id, by_key;  // to items of the list
    gs_rank_keys ranks;
    gs_file_mark mark;
    bool has_probe;
    gs_curve_key probe;  // let in while the gate tries itself
};

static uint64_t key_of_id(const char *id) {
    return strncmp(id, "k-", 2) == 0 ? strtoull(id + 2, NULL, 16) + 1 : 0;
}

// Seeded: who enrols chooses his key's bytes, and would have them take the place of another's.
static uint64_t key_of_curve(const gs_key_gate *gate, const gs_curve_key *shown) {
    uint64_t key = gs_hash64(shown->bytes, sizeof shown->bytes, gate->seed);
    return key ? key : 1;
}

// Under the lock.
static bool index_list(gs_key_gate *gate) {
    gs_u64_map_release(&gate->by_id);
    gs_u64_map_release(&gate->by_key);
    gate->by_id = gate->by_key = (gs_u64_map){0};
    for (size_t i = 0; i < gate->list.count; i++) {
        gs_known_key *item = &gate->list.items[i];
        if (!gs_u64_map_set(&gate->by_id, key_of_id(item->id), item)) return false;
        if (!gs_u64_map_set(&gate->by_key, key_of_curve(gate, &item->shown), item)) return false;
    }
    return true;
}

static gs_status show_list(gs_key_gate *gate, gs_key_list list, const gs_file_mark *mark) {
    pthread_mutex_lock(&gate->lock);
    gs_key_list_release(&gate->list);
    gate->list = list;
    gate->mark = *mark;
    bool indexed = index_list(gate);
    pthread_mutex_unlock(&gate->lock);
    atomic_fetch_add(&gate->changes, 1);
    return indexed ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "keys: out of memory");
}

// Once for each file and reason: it is read again each second.
static void tell_unreadable(gs_key_gate *gate, const gs_file_mark *now, gs_status status) {
    if (gate->told_code == status.code && gs_file_mark_equal(&gate->told, now)) return;
    gate->told = *now;
    gate->told_code = status.code;
    gs_log_error("keys cannot be read, those known before count", "reason=\"%s\"", status.message);
}

// What failed once may succeed at the next look (no descriptor was free, a disk was away), and a revocation must not be lost by it:
// so a file is looked at until it was read, also one that is damaged.
static void look_at_file(gs_key_gate *gate) {
    static const gs_file_mark none = {0};
    gs_file_mark now;
    gs_key_list list = {0};
    gs_status status = gs_file_mark_take(&now, gate->path);
    bool is_known = gs_file_mark_equal(&now, &gate->mark) && (!status.code || status.code == GS_NOT_FOUND);
    gs_file_mark read = now;
    if (!is_known && !status.code) status = gs_key_store_read(&list, &read, gate->path);
    // One that was there and is gone takes nobody's key away: an attacker who could remove it could also change it.
    if (!is_known && !status.code && gs_file_mark_equal(&read, &none)) status = gs_error(GS_NOT_FOUND, "%s is gone", gate->path);
    bool is_behind = !is_known && status.code;
    if (is_behind) tell_unreadable(gate, &now, status);
    else gate->told_code = GS_OK;
    if (is_known || is_behind) {
        atomic_store(&gate->is_behind, is_behind && status.code != GS_NOT_FOUND);  // what is gone changes nothing
        return;
    }
    size_t count = list.count;
    status = show_list(gate, list, &read);
    atomic_store(&gate->is_behind, false);
    gs_log_info("keys read", "path=%s count=%zu", gate->path, count);
    if (status.code) gs_log_error("keys not all known", "reason=\"%s\"", status.message);
}

static void look_again(gs_key_gate *gate) {
    pthread_mutex_lock(&gate->lock);
    unsigned wanted = gate->looks_wanted;
    pthread_mutex_unlock(&gate->lock);
    look_at_file(gate);
    gate->looked_ns = gs_now_ns();
    pthread_mutex_lock(&gate->lock);
    gate->num_looks = wanted;  // those that were wanted behind that get one of their own
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

typedef struct zap_request {
    char id[256], address[64], mechanism[16];
    size_t id_bytes;
    gs_curve_key shown;
    bool is_whole;
} zap_request;

static void copy_text(char *out, size_t out_bytes, zmq_msg_t *part) {
    size_t bytes = zmq_msg_size(part);
    if (bytes >= out_bytes) bytes = out_bytes - 1;
    memcpy(out, zmq_msg_data(part), bytes);
    out[bytes] = '\0';
}

// Seven parts: version, id, domain, address, routing id, mechanism, and CURVE's one credential.
static bool receive_request(void *socket, zap_request *request) {
    zmq_msg_t part;
    bool more = true, sized = true;
    int count = 0;
    *request = (zap_request){0};
    for (; more; count++) {
        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&part);
            return false;
        }
        if (count == 1 && zmq_msg_size(&part) <= sizeof request->id) {
            request->id_bytes = zmq_msg_size(&part);
            memcpy(request->id, zmq_msg_data(&part), request->id_bytes);
        }
        if (count == 3) copy_text(request->address, sizeof request->address, &part);
        if (count == 5) copy_text(request->mechanism, sizeof request->mechanism, &part);
        if (count == 6) sized = zmq_msg_size(&part) == sizeof request->shown.bytes;
        if (count == 6 && sized) memcpy(request->shown.bytes, zmq_msg_data(&part), sizeof request->shown.bytes);
        more = zmq_msg_more(&part);
        zmq_msg_close(&part);
    }
    request->is_whole = count == 7 && sized && strcmp(request->mechanism, "CURVE") == 0;
    return true;
}

static void send_answer(void *socket, const zap_request *request, bool admits, const char *user) {
    const struct {
        const void *data;
        size_t bytes;
    } parts[] = {{"1.0", 3},
                 {request->id, request->id_bytes},
                 {admits ? "200" : "400", 3},
                 {admits ? "OK" : "unknown key", admits ? 2 : 11},
                 {user, strlen(user)},
                 {"", 0}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool more = i + 1 < sizeof parts / sizeof *parts;
        if (zmq_send(socket, parts[i].data, parts[i].bytes, more ? ZMQ_SNDMORE : 0) < 0) return;
    }
}

static void note_refused(gs_key_gate *gate, const zap_request *request, const char *id, const char *why) {
    gs_refusal facts = {.role = "", .what = "connect", .result = why};
    char text[GS_CURVE_KEY_TEXT_BYTES] = "";
    gate->refusals.audit = atomic_load(&gate->audit);
    if (request->is_whole) gs_curve_key_format(text, &request->shown);
    snprintf(facts.who, sizeof facts.who, "%.16s", *id ? id : text);
    snprintf(facts.from, sizeof facts.from, "%s", request->address);
    gs_refusals_note(&gate->refusals, &facts, gs_now_ns());
}

static void warn_refused(gs_key_gate *gate, const zap_request *request, const char *id, const char *why) {
    int64_t now_ns = gs_now_ns();
    note_refused(gate, request, id, why);
    if (gate->warned_ns && now_ns - gate->warned_ns < WARN_NS) return;
    gate->warned_ns = now_ns;
    char text[GS_CURVE_KEY_TEXT_BYTES];
    gs_curve_key_format(text, &request->shown);
    gs_log_warn("refused a key", "address=%s key=%.16s id=%s reason=\"%s\" unknown=%llu ended=%llu", request->address, text,
                *id ? id : "none", why, (unsigned long long)atomic_load(&gate->num_unknown),
                (unsigned long long)atomic_load(&gate->num_ended));
}

// Under the lock. The key of its worker, if that counts.
static const gs_known_key *owner_of(const gs_key_gate *gate, const gs_rank_key *rank) {
    const gs_known_key *owner = rank ? gs_u64_map_get(&gate->by_id, key_of_id(rank->owner)) : NULL;
    return owner && gs_known_key_counts(owner, gs_wall_ms()) ? owner : NULL;
}

// Who this is; "" when nobody who counts.
static const char *judge(gs_key_gate *gate, const zap_request *request, char user[GS_KEY_ID_BYTES]) {
    char id[GS_KEY_ID_BYTES] = "";
    const char *why = request->is_whole ? "unknown" : "no key";
    user[0] = '\0';
    pthread_mutex_lock(&gate->lock);
    const gs_known_key *known = request->is_whole ? gs_u64_map_get(&gate->by_key, key_of_curve(gate, &request->shown)) : NULL;
    if (known && !gs_curve_key_equal(&known->shown, &request->shown)) known = NULL;
    if (known) memcpy(id, known->id, sizeof id);
    if (known && gs_known_key_counts(known, gs_wall_ms())) memcpy(user, known->id, sizeof known->id);
    else if (known) why = known->revoked_ms ? "revoked" : "expired";
    const gs_rank_key *rank = request->is_whole && !known ? gs_rank_keys_find(&gate->ranks, &request->shown) : NULL;
    if (rank) memcpy(id, rank->id, sizeof id);
    if (owner_of(gate, rank)) memcpy(user, rank->id, sizeof rank->id);
    else if (rank) why = "its worker's key has ended";
    if (request->is_whole && gate->has_probe && gs_curve_key_equal(&gate->probe, &request->shown))
        snprintf(user, GS_KEY_ID_BYTES, PROBE_ID);
    bool has_probe = gate->has_probe;
    pthread_mutex_unlock(&gate->lock);
    if (has_probe) return user;
    if (*user) atomic_fetch_add(&gate->num_admitted, 1);
    else if (*id) atomic_fetch_add(&gate->num_ended, 1);
    else atomic_fetch_add(&gate->num_unknown, 1);
    if (!*user) warn_refused(gate, request, id, why);
    return user;
}

static bool is_known(gs_key_gate *gate, const gs_curve_key *shown) {
    pthread_mutex_lock(&gate->lock);
    bool known = gs_u64_map_get(&gate->by_key, key_of_curve(gate, shown)) || gs_rank_keys_find(&gate->ranks, shown) || gate->has_probe;
    pthread_mutex_unlock(&gate->lock);
    return known;
}

static gs_status answer_one(gs_key_gate *gate) {
    GS_FAILPOINT("gate.answer");
    zap_request request;
    char user[GS_KEY_ID_BYTES];
    if (!receive_request(gate->socket, &request)) return gs_ok();
    // A key that was made a moment ago is not to be refused.
    if (!is_known(gate, &request.shown) && gs_now_ns() - gate->looked_ns > SOON_NS) look_again(gate);
    judge(gate, &request, user);
    send_answer(gate->socket, &request, *user, user);
    return gs_ok();
}

static gs_status open_handler(gs_key_gate *gate) {
    int linger = 0;
    gate->socket = zmq_socket(gs_rpc_context_zmq(gate->context), ZMQ_REP);
    if (!gate->socket) return gs_error(GS_RESOURCE_EXHAUSTED, "keys: socket: %s", zmq_strerror(errno));
    if (zmq_setsockopt(gate->socket, ZMQ_LINGER, &linger, sizeof linger) == 0 && zmq_bind(gate->socket, HANDLER_ENDPOINT) == 0)
        return gs_ok();
    return gs_error(GS_INTERNAL, "keys: handler: %s", zmq_strerror(errno));
}

static void say_begun(gs_key_gate *gate, gs_status status) {
    pthread_mutex_lock(&gate->lock);
    gate->begun = status;
    atomic_store(&gate->has_begun, true);
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

static void wake(gs_key_gate *gate) {
    uint64_t one = 1;
    ssize_t written = write(gate->wake_fd, &one, sizeof one);
    (void)written;
}

static void clear_wake(gs_key_gate *gate) {
    uint64_t wakes;
    ssize_t got = read(gate->wake_fd, &wakes, sizeof wakes);
    (void)got;
}

static bool is_wanted(gs_key_gate *gate) {
    pthread_mutex_lock(&gate->lock);
    bool wanted = gate->looks_wanted != gate->num_looks;
    pthread_mutex_unlock(&gate->lock);
    return wanted;
}

void gs_key_gate_look(gs_key_gate *gate) {
    gs_deadline deadline = gs_deadline_in_ms(2 * LOOK_MS);
    pthread_mutex_lock(&gate->lock);
    unsigned wanted = ++gate->looks_wanted;
    wake(gate);
    while ((int)(gate->num_looks - wanted) < 0 && !atomic_load(&gate->is_over) && gs_cond_wait(&gate->changed, &gate->lock, deadline))
        continue;
    pthread_mutex_unlock(&gate->lock);
}

static void run(void *ctx, const atomic_bool *stopping) {
    gs_key_gate *gate = ctx;
    gs_status status = open_handler(gate);
    say_begun(gate, status);
    int64_t look_ns = gs_now_ns() + LOOK_MS * GS_NS_PER_MS;
    while (!status.code && !atomic_load(stopping)) {
        int64_t now_ns = gs_now_ns();
        atomic_store(&gate->turned_ns, now_ns);
        if (now_ns >= look_ns || is_wanted(gate)) {
            look_again(gate);
            gs_refusals_tell(&gate->refusals, now_ns);
            look_ns = gs_now_ns() + LOOK_MS * GS_NS_PER_MS;
        }
        zmq_pollitem_t items[] = {{.socket = gate->socket, .events = ZMQ_POLLIN}, {.fd = gate->wake_fd, .events = ZMQ_POLLIN}};
        long wait_ms = gs_deadline_left_ms((gs_deadline){look_ns});
        if (zmq_poll(items, 2, wait_ms > 0 ? wait_ms : 0) < 0 && errno != EINTR) status = gs_error(GS_INTERNAL, "%s", zmq_strerror(errno));
        if (items[1].revents) clear_wake(gate);
        if (items[0].revents && !status.code) status = answer_one(gate);
    }
    if (status.code) gs_log_error("nobody is let in any more: the handler of keys has ended", "reason=\"%s\"", status.message);
    gs_refusals_tell(&gate->refusals, INT64_MAX);
    atomic_store(&gate->is_over, true);
    if (gate->socket) zmq_close(gate->socket);
    gate->socket = NULL;
}

void gs_key_gate_audit(gs_key_gate *gate, gs_audit *audit) { atomic_store(&gate->audit, audit); }

gs_status gs_key_gate_guard(const gs_key_gate *gate, gs_zmq_socket *socket) {
    return gs_zmq_ask_for_keys(socket, &gate->server);
}

// What a client with this pair comes to.
static gs_status try_pair(const gs_key_gate *gate, const char *endpoint, const gs_curve_pair *pair, bool *admitted) {
    gs_zmq_socket client;
    GS_TRY(gs_zmq_socket_open(&client, gate->context, ZMQ_DEALER, ZMQ_EVENT_HANDSHAKE_SUCCEEDED | GS_ZMQ_HANDSHAKE_FAILED));
    gs_status status = gs_zmq_show_key(&client, pair, &gate->server.shown);
    if (!status.code && zmq_connect(client.socket, endpoint) != 0) status = gs_error(GS_INTERNAL, "keys: %s", zmq_strerror(errno));
    zmq_pollitem_t item = {.socket = client.monitor, .events = ZMQ_POLLIN};
    int event = 0, value;
    if (!status.code && (zmq_poll(&item, 1, PROBE_SECONDS * 1000) <= 0 || !gs_zmq_next_event(&client, &event, &value)))
        status = gs_error(GS_INTERNAL, "keys: the handler did not answer within %d s", PROBE_SECONDS);
    *admitted = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    gs_zmq_socket_close(&client);
    return status;
}

static void set_probe(gs_key_gate *gate, const gs_curve_key *probe) {
    pthread_mutex_lock(&gate->lock);
    gate->has_probe = probe;
    gate->probe = probe ? *probe : (gs_curve_key){0};
    pthread_mutex_unlock(&gate->lock);
}

static gs_status try_gate(gs_key_gate *gate, gs_zmq_socket *server) {
    char endpoint[128];
    size_t bytes = sizeof endpoint;
    gs_curve_pair known, unknown;
    bool known_admitted = false, unknown_admitted = true;
    GS_TRY(gs_key_gate_guard(gate, server));
    if (zmq_bind(server->socket, "tcp://127.0.0.1:*") != 0 ||
        zmq_getsockopt(server->socket, ZMQ_LAST_ENDPOINT, endpoint, &bytes) != 0)
        return gs_error(GS_INTERNAL, "keys: %s", zmq_strerror(errno));
    GS_TRY(gs_curve_pair_draw(&known));
    GS_TRY(gs_curve_pair_draw(&unknown));
    set_probe(gate, &known.shown);
    gs_status status = try_pair(gate, endpoint, &known, &known_admitted);
    if (!status.code) status = try_pair(gate, endpoint, &unknown, &unknown_admitted);
    set_probe(gate, NULL);
    if (status.code || (known_admitted && !unknown_admitted)) return status;
    return gs_error(GS_INTERNAL, "keys: a known key was %s, an unknown one was %s", known_admitted ? "let in" : "refused",
                    unknown_admitted ? "let in" : "refused");
}

static gs_status begin(gs_key_gate *gate) {
    gs_key_list list = {0};
    gs_file_mark mark;
    GS_TRY(gs_key_store_read(&list, &mark, gate->path));
    GS_TRY(show_list(gate, list, &mark));
    atomic_store(&gate->turned_ns, gs_now_ns());
    GS_TRY(gs_thread_start(&gate->thread, "keys", run, gate));
    pthread_mutex_lock(&gate->lock);
    while (!atomic_load(&gate->has_begun)) pthread_cond_wait(&gate->changed, &gate->lock);
    gs_status status = gate->begun;
    pthread_mutex_unlock(&gate->lock);
    GS_TRY(status);
    gs_zmq_socket server;
    GS_TRY(gs_zmq_socket_open(&server, gate->context, ZMQ_ROUTER, ZMQ_EVENT_LISTENING));
    status = try_gate(gate, &server);
    gs_zmq_socket_close(&server);
    return status;
}

gs_status gs_key_gate_open(gs_key_gate **out, gs_rpc_context *context, const gs_curve_pair *server, const char *keys_path) {
    gs_key_gate *gate = calloc(1, sizeof *gate);
    if (!gate) return gs_error(GS_RESOURCE_EXHAUSTED, "keys: out of memory");
    gate->context = context;
    gate->server = *server;
    gate->seed = gs_random_from_system();
    gs_rank_keys_init(&gate->ranks, gs_random_from_system());
    snprintf(gate->path, sizeof gate->path, "%s", keys_path);
    pthread_mutex_init(&gate->lock, NULL);
    gs_cond_init(&gate->changed);
    gate->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gs_status status = gate->wake_fd >= 0 ? begin(gate) : gs_error_from_errno(errno, "keys: eventfd");
    if (status.code) gs_key_gate_close(gate);
    else *out = gate;
    return status;
}

void gs_key_gate_close(gs_key_gate *gate) {
    if (!gate) return;
    gs_thread_ask_to_stop(gate->thread);
    if (gate->wake_fd >= 0) wake(gate);
    gs_thread_stop(gate->thread);
    if (gate->wake_fd >= 0) close(gate->wake_fd);
    gs_key_list_release(&gate->list);
    gs_u64_map_release(&gate->by_id);
    gs_u64_map_release(&gate->by_key);
    gs_rank_keys_release(&gate->ranks);
    pthread_cond_destroy(&gate->changed);
    pthread_mutex_destroy(&gate->lock);
    explicit_bzero(&gate->server, sizeof gate->server);
    free(gate);
}

bool gs_key_gate_find(gs_key_gate *gate, const char *user, gs_rpc_caller *caller) {
    *caller = (gs_rpc_caller){.is_known = true};
    pthread_mutex_lock(&gate->lock);
    uint64_t key = key_of_id(user);
    const gs_known_key *known = key ? gs_u64_map_get(&gate->by_id, key) : NULL;
    bool counts = known && gs_known_key_counts(known, gs_wall_ms());
    const gs_rank_key *rank = key ? NULL : gs_rank_keys_find_id(&gate->ranks, user);
    const gs_known_key *owner = owner_of(gate, rank);
    if (owner) {
        caller->role = GS_ROLE_TRAINER;
        caller->expires_ms = owner->expires_ms;
        caller->incarnation = rank->incarnation;
        memcpy(caller->id, rank->id, sizeof caller->id);
        memcpy(caller->name, rank->worker, sizeof caller->name);
    } else if (counts) {
        caller->role = known->role;
        caller->is_pool = known->is_pool;
        caller->expires_ms = known->expires_ms;
        memcpy(caller->id, known->id, sizeof caller->id);
        memcpy(caller->name, known->name, sizeof caller->name);
    }
    pthread_mutex_unlock(&gate->lock);
    return owner || counts;
}

bool gs_key_gate_add_rank(gs_key_gate *gate, const gs_rank_key *key) {
    pthread_mutex_lock(&gate->lock);
    bool is_of_list = gs_u64_map_get(&gate->by_key, key_of_curve(gate, &key->shown));
    bool added = !is_of_list && gs_rank_keys_add(&gate->ranks, key);
    pthread_mutex_unlock(&gate->lock);
    return added;
}

void gs_key_gate_drop_rank(gs_key_gate *gate, uint64_t incarnation, const gs_rpc_caller *by) {
    pthread_mutex_lock(&gate->lock);
    const gs_rank_key *rank = gs_rank_keys_find_rank(&gate->ranks, incarnation);
    if (rank && by->is_known && gs_key_name_covers(by->name, by->is_pool, rank->worker)) gs_rank_keys_drop(&gate->ranks, incarnation);
    pthread_mutex_unlock(&gate->lock);
}

bool gs_key_gate_ranks_are_many(gs_key_gate *gate) {
    pthread_mutex_lock(&gate->lock);
    bool many = gs_rank_keys_are_many(&gate->ranks);
    pthread_mutex_unlock(&gate->lock);
    return many;
}

void gs_key_gate_sweep_ranks(gs_key_gate *gate, bool (*is_there)(void *ctx, uint64_t incarnation), void *ctx) {
    pthread_mutex_lock(&gate->lock);
    gs_rank_keys_sweep(&gate->ranks, is_there, ctx);
    pthread_mutex_unlock(&gate->lock);
}

unsigned gs_key_gate_changes(const gs_key_gate *gate) {
    return atomic_load(&gate->changes);
}

void gs_key_gate_get_stats(const gs_key_gate *gate, gs_key_gate_stats *stats) {
    bool turns = gs_now_ns() - atomic_load(&gate->turned_ns) < DEAD_MS * GS_NS_PER_MS;
    *stats = (gs_key_gate_stats){.is_alive = turns && !atomic_load(&gate->is_over),
                                 .is_behind = atomic_load(&gate->is_behind),
                                 .admitted = atomic_load(&gate->num_admitted),
                                 .refused_unknown = atomic_load(&gate->num_unknown),
                                 .refused_ended = atomic_load(&gate->num_ended)};
}

void gs_key_gate_prove(const gs_key_gate *gate, char text[GS_LIFE_PROOF_BYTES], const gs_told_life *told) {
    if (gate) gs_life_proof_make(text, &gate->server.secret, told);
    else *text = '\0';
}

bool gs_key_gate_has_proven(const gs_key_gate *gate, const char *text, const gs_told_life *told) {
    return gate && gs_life_proof_holds(text, &gate->server.secret, told);
}
