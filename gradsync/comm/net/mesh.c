#include "gradsync/comm/net/mesh.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/digest.h"
#include "core/log.h"
#include "gradsync/comm/net/greeting.h"

#define LOOPBACK "127.0.0.1"
#define ADDRESS_LEN 48
#define MOST_STRANGERS 16  // that may be about to say who they are, beside the ranks
// Among many strangers a rank may be hung up on before it has proven who it is: it calls again.
#define MOST_CALLS 40
#define CALL_PAUSE_NS (100 * GS_NS_PER_MS)
#define PROOF_NS GS_NS_PER_SEC
#define PATIENCE_SECONDS 10.0
#define CHECK_MS 50

// What a rank says at the first stage.
typedef struct whereabouts {
    uint64_t version;
    gs_net_secret share;  // of the generation's secret: all of them together
    char address[ADDRESS_LEN];
    uint32_t port;
    uint32_t zeros;
} whereabouts;

typedef enum contact_state {
    CONTACT_NONE = 0,
    CONTACT_CONNECTING,
    CONTACT_AWAITS_ANSWER,
    CONTACT_AWAITS_HELLO,
    CONTACT_AWAITS_LAST
} contact_state;

// A connection that is not one of the mesh yet.
typedef struct contact {
    contact_state state;
    int fd;
    int peer;          // -1: it has not said who it is; before the proof that is what it says
    int num_calls;     // of a rank that is called; MOST_CALLS and no state: it is given up
    const char *why;   // the last call failed; constant text, NULL: none did
    int64_t since_ns;  // or that the call failed
    size_t got_bytes;
    gs_net_greeting greeting;
} contact;

typedef struct forming {
    gs_net_mesh *mesh;
    const gs_comm_options *options;
    gs_stages *stages;
    uint64_t group;
    gs_net_secret secret;
    whereabouts *all;
    int listener;
    int num_missing, num_strangers;
    contact *contacts;
    struct pollfd *polled;
    int num_contacts;
    gs_deadline deadline;
} forming;

static const char *address_of(const gs_comm_options *options) {
    return options->data_address && options->data_address[0] ? options->data_address : LOOPBACK;
}

// Numbers only: getaddrinfo asks nobody then.
static gs_status read_address(struct sockaddr_storage *out, socklen_t *bytes, const char *address,
                              uint32_t port) {
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char service[12];
    snprintf(service, sizeof service, "%u", (unsigned)port);
    int error = getaddrinfo(address, service, &hints, &found);
    if (error)
        return gs_error(GS_INVALID_ARGUMENT, "data address \"%.45s\" is no address: %s", address,
                        gai_strerror(error));
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return gs_ok();
}

static gs_status open_socket(int *out, int family) {
    int one = 1;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return gs_error_from_errno(errno, "socket for data");
    // Small messages wait for no acknowledgement of the one before.
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one)) {
        gs_status status = gs_error_from_errno(errno, "TCP_NODELAY");
        close(fd);
        return status;
    }
    *out = fd;
    return gs_ok();
}

static uint32_t port_of(const struct sockaddr_storage *address) {
    return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                                : ((const struct sockaddr_in *)address)->sin_port);
}

static gs_status listen_for_ranks(forming *self, whereabouts *mine) {
    struct sockaddr_storage address;
    socklen_t bytes;
    const char *text = address_of(self->options);
    if (strlen(text) >= sizeof mine->address)
        return gs_error(GS_INVALID_ARGUMENT, "data address \"%.60s\" is too long", text);
    GS_TRY(read_address(&address, &bytes, text, 0));
    GS_TRY(open_socket(&self->listener, address.ss_family));
    if (bind(self->listener, (struct sockaddr *)&address, bytes) ||
        listen(self->listener, self->mesh->world_size + MOST_STRANGERS))
        return gs_error(GS_UNAVAILABLE, "listening for ranks at data address %s: %s", text,
                        strerror(errno));
    bytes = sizeof address;
    if (getsockname(self->listener, (struct sockaddr *)&address, &bytes))
        return gs_error_from_errno(errno, "port at data address %s", text);
    snprintf(mine->address, sizeof mine->address, "%s", text);
    mine->port = port_of(&address);
    return gs_net_secret_draw(&mine->share);
}

static bool is_loopback(const char *address) {
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

// One that only its own host reaches beside one of a network: found by all before they try.
static gs_status compare_addresses(const forming *self) {
    for (int i = 1; i < self->mesh->world_size; i++) {
        bool here = is_loopback(self->all[i].address);
        if (here == is_loopback(self->all[0].address)) continue;
        return gs_error(
            GS_UNAVAILABLE,
            "rank %d listens at %s, which only its own host reaches, rank %d at %s: give its "
            "worker a data address",
            here ? i : 0, self->mesh->places[here ? i : 0], here ? 0 : i,
            self->mesh->places[here ? 0 : i]);
    }
    return gs_ok();
}

// The secret is made of everybody's share: one good source of random numbers is enough.
static gs_status learn_whereabouts(forming *self, gs_stages *stages) {
    gs_net_mesh *mesh = self->mesh;
    whereabouts mine = {.version = GS_NET_VERSION};
    gs_status listening = listen_for_ranks(self, &mine);
    GS_TRY(gs_stages_meet(stages, "net", listening, self->all, &mine, sizeof mine));
    for (int i = 0; i < mesh->world_size; i++) {
        whereabouts *one = &self->all[i];
        one->address[sizeof one->address - 1] = '\0';
        if (one->version != GS_NET_VERSION)
            return gs_stages_conclude(
                stages,
                gs_error(GS_FAILED_PRECONDITION,
                         "rank %d speaks another version of the protocol between ranks", i));
        bool is_v6 = strchr(one->address, ':') != NULL;
        snprintf(mesh->places[i], sizeof mesh->places[i], is_v6 ? "[%s]:%u" : "%s:%u", one->address,
                 (unsigned)(one->port & 0xffff));
        for (size_t k = 0; k < sizeof self->secret.bytes; k++)
            self->secret.bytes[k] ^= one->share.bytes[k];
    }
    return gs_stages_conclude(stages, compare_addresses(self));
}

static void hang_up(contact *one) {
    close(one->fd);
    *one = (contact){0};
}

// Whose words these are is said with them.
static gs_status blame_pair(const forming *self, int peer, const char *why) {
    gs_stages_blame(self->stages, peer);
    return gs_error(GS_UNAVAILABLE, "%s cannot reach rank %d at %s: %s",
                    self->mesh->places[self->options->rank], peer, self->mesh->places[peer], why);
}

static void keep_contact(forming *self, contact *one) {
    self->mesh->sockets[one->peer] = one->fd;
    self->num_missing--;
    *one = (contact){0};
}

static bool say(const contact *one, const void *what, size_t bytes) {
    return send(one->fd, what, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

// A call that failed. Others may still reach this rank, and it them: it goes on, so that they blame
// nobody but whom they cannot reach, and says at the end which pair it is.
static void call_later(contact *one, const char *why) {
    int peer = one->peer, num_calls = one->num_calls;
    hang_up(one);
    *one = (contact){.peer = peer, .num_calls = num_calls, .why = why, .since_ns = gs_now_ns()};
}

static void give_up(contact *one, const char *why) {
    call_later(one, why);
    one->num_calls = MOST_CALLS;
}

// What it gave cannot be called at all.
static void never_call(contact *one, int peer, const char *why) {
    *one = (contact){.peer = peer, .num_calls = MOST_CALLS, .why = why, .since_ns = gs_now_ns()};
}

// From the own data address, so that packets take the interface that was configured.
static gs_status call_rank(forming *self, int peer) {
    struct sockaddr_storage own, theirs;
    socklen_t own_bytes, their_bytes;
    contact *one = &self->contacts[peer];
    int num_calls = one->num_calls + 1;
    const char *why = one->why;
    GS_TRY(read_address(&own, &own_bytes, address_of(self->options), 0));
    const whereabouts *there = &self->all[peer];
    if (!there->port || there->port > UINT16_MAX ||
        read_address(&theirs, &their_bytes, there->address, there->port).code) {
        never_call(one, peer, "what it gave is no address and port");
        return gs_ok();
    }
    if (own.ss_family != theirs.ss_family) {
        never_call(one, peer, "one address is IPv4 and the other is not");
        return gs_ok();
    }
    int fd;
    GS_TRY(open_socket(&fd, theirs.ss_family));
    *one = (contact){.state = CONTACT_CONNECTING,
                     .fd = fd,
                     .peer = peer,
                     .num_calls = num_calls,
                     .why = why};
    if (bind(fd, (struct sockaddr *)&own, own_bytes) ||
        (connect(fd, (struct sockaddr *)&theirs, their_bytes) && errno != EINPROGRESS))
        call_later(one, strerror(errno));
    return gs_ok();
}

static bool is_given_up(const contact *one) {
    return !one->state && one->num_calls == MOST_CALLS;
}

static gs_status call_ranks(forming *self) {
    int64_t now_ns = gs_now_ns();
    for (int i = self->options->rank + 1; i < self->mesh->world_size; i++) {
        const contact *one = &self->contacts[i];
        if (self->mesh->sockets[i] >= 0 || one->state || is_given_up(one)) continue;
        if (!one->num_calls || now_ns - one->since_ns >= CALL_PAUSE_NS) GS_TRY(call_rank(self, i));
    }
    return gs_ok();
}

// Who has been told what to prove may be a rank that has proven it just now.
static bool may_go(const contact *one, int64_t now_ns) {
    return one->state == CONTACT_AWAITS_HELLO || now_ns - one->since_ns >= PROOF_NS;
}

// Where no place is free, the one goes who has been at it for longest. NULL: nobody does.
static contact *find_place(forming *self, int64_t now_ns) {
    contact *oldest = NULL, *end = self->contacts + self->num_contacts;
    for (contact *one = &self->contacts[self->mesh->world_size]; one < end; one++) {
        if (!one->state) return one;
        if (may_go(one, now_ns) && (!oldest || one->since_ns < oldest->since_ns)) oldest = one;
    }
    if (!oldest) return NULL;
    hang_up(oldest);
    self->num_strangers++;
    return oldest;
}

static void accept_caller(forming *self) {
    int fd = accept4(self->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), yes = 1;
    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    int64_t now_ns = gs_now_ns();
    contact *place = find_place(self, now_ns);
    if (place)
        *place = (contact){.state = CONTACT_AWAITS_HELLO, .fd = fd, .peer = -1, .since_ns = now_ns};
    else
        close(fd);
}

static gs_status say_hello(forming *self, contact *one) {
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(one->fd, SOL_SOCKET, SO_ERROR, &error, &bytes)) error = errno;
    if (error) {
        call_later(one, strerror(error));
        return gs_ok();
    }
    gs_net_hello *hello = &one->greeting.hello;
    *hello = (gs_net_hello){.version = GS_NET_VERSION,
                            .group = self->group,
                            .generation = self->options->generation,
                            .from = self->options->rank,
                            .to = one->peer};
    GS_TRY(gs_net_secret_draw(&hello->nonce));
    if (say(one, hello, sizeof *hello)) one->state = CONTACT_AWAITS_ANSWER;
    else call_later(one, strerror(errno));
    return gs_ok();
}

static bool is_expected(const forming *self, const gs_net_hello *hello) {
    return hello->version == GS_NET_VERSION && hello->group == self->group &&
           hello->generation == self->options->generation && hello->to == self->options->rank &&
           hello->from >= 0 && hello->from < self->options->rank &&
           self->mesh->sockets[hello->from] < 0;
}

// A whole message of the greeting has come. False: not one of ours.
static bool take_greeting(forming *self, contact *one) {
    gs_net_greeting *greeting = &one->greeting;
    one->got_bytes = 0;
    switch (one->state) {
    case CONTACT_AWAITS_HELLO:
        if (!is_expected(self, &greeting->hello)) return false;
        one->peer = greeting->hello.from;
        one->state = CONTACT_AWAITS_LAST;
        return !gs_net_greeting_answer(greeting, &self->secret).code &&
               say(one, &greeting->answer, sizeof greeting->answer);
    case CONTACT_AWAITS_ANSWER:
        if (!gs_net_greeting_conclude(greeting, &self->secret) ||
            !say(one, &greeting->last, sizeof greeting->last))
            return false;
        break;
    default:
        // Two that claim to be one rank: the first that proves it is.
        if (!gs_net_greeting_is_proven(greeting, &self->secret) ||
            self->mesh->sockets[one->peer] >= 0)
            return false;
        break;
    }
    keep_contact(self, one);
    return true;
}

// Who called and is not who it should be is forgotten; one that this rank called is called again, and
// given up when it is not who it should be.
static void hear(forming *self, contact *one) {
    gs_net_greeting *greeting = &one->greeting;
    bool was_called = one->state == CONTACT_AWAITS_ANSWER;
    void *into = &greeting->hello;
    size_t bytes = sizeof greeting->hello;
    if (was_called) into = &greeting->answer, bytes = sizeof greeting->answer;
    if (one->state == CONTACT_AWAITS_LAST) into = &greeting->last, bytes = sizeof greeting->last;
    ssize_t got = recv(one->fd, (char *)into + one->got_bytes, bytes - one->got_bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    bool is_good = got > 0;
    if (is_good) one->got_bytes += (size_t)got;
    if (is_good && one->got_bytes == bytes) is_good = take_greeting(self, one);
    if (is_good) return;
    if (was_called && got > 0) {
        give_up(one, "it does not know the secret of this generation");
    } else if (was_called) {
        call_later(one, got ? strerror(errno) : "it hung up, as on another version or generation");
    } else {
        self->num_strangers++;
        hang_up(one);
    }
}

static gs_status serve_contacts(forming *self) {
    self->polled[self->num_contacts] = (struct pollfd){.fd = self->listener, .events = POLLIN};
    for (int i = 0; i < self->num_contacts; i++) {
        const contact *one = &self->contacts[i];
        self->polled[i] =
            (struct pollfd){.fd = one->state ? one->fd : -1,
                            .events = one->state == CONTACT_CONNECTING ? POLLOUT : POLLIN};
    }
    int left_ms = gs_deadline_left_ms(self->deadline);
    if (poll(self->polled, (nfds_t)self->num_contacts + 1,
             left_ms < CHECK_MS ? left_ms : CHECK_MS) < 0)
        return errno == EINTR ? gs_ok() : gs_error_from_errno(errno, "waiting for ranks");
    for (int i = 0; i < self->num_contacts; i++) {
        contact *one = &self->contacts[i];
        if (!self->polled[i].revents) continue;
        if (one->state == CONTACT_CONNECTING)
            GS_TRY(say_hello(self, one));
        else
            hear(self, one);
    }
    if (self->polled[self->num_contacts].revents) accept_caller(self);
    return gs_ok();
}

static bool is_hopeless(const forming *self) {
    int num_given_up = 0;
    for (int i = self->options->rank + 1; i < self->mesh->world_size; i++)
        num_given_up += is_given_up(&self->contacts[i]);
    return self->num_missing == num_given_up;
}

static gs_status connect_ranks(forming *self) {
    const gs_comm_options *options = self->options;
    while (self->num_missing) {
        if (options->check) GS_TRY(options->check(options->check_ctx));
        if (gs_deadline_passed(self->deadline) || is_hopeless(self)) break;
        GS_TRY(call_ranks(self));
        GS_TRY(serve_contacts(self));
    }
    for (int i = 0; i < options->world_size; i++) {
        if (i == options->rank || self->mesh->sockets[i] >= 0) continue;
        const char *why = i < options->rank ? "it did not connect in time" : self->contacts[i].why;
        return blame_pair(self, i, why ? why : "no answer in time; a firewall, or no route?");
    }
    return gs_ok();
}

static gs_status alloc_forming(forming *self) {
    gs_net_mesh *mesh = self->mesh;
    size_t world_size = (size_t)mesh->world_size;
    self->num_contacts = 2 * mesh->world_size + MOST_STRANGERS;
    mesh->sockets = malloc(world_size * sizeof *mesh->sockets);
    for (size_t i = 0; mesh->sockets && i < world_size; i++) mesh->sockets[i] = -1;
    mesh->places = calloc(world_size, sizeof *mesh->places);
    self->all = calloc(world_size, sizeof *self->all);
    self->contacts = calloc((size_t)self->num_contacts, sizeof *self->contacts);
    self->polled = calloc((size_t)self->num_contacts + 1, sizeof *self->polled);
    if (!mesh->sockets || !mesh->places || !self->all || !self->contacts || !self->polled)
        return gs_error(GS_RESOURCE_EXHAUSTED, "mesh of ranks: out of memory");
    return gs_ok();
}

static void release_forming(forming *self) {
    for (int i = 0; self->contacts && i < self->num_contacts; i++) {
        if (self->contacts[i].state) close(self->contacts[i].fd);
    }
    if (self->listener >= 0) close(self->listener);
    free(self->all);
    free(self->contacts);
    free(self->polled);
}

gs_status gs_net_mesh_form(gs_net_mesh *out, const gs_comm_options *options, gs_stages *stages,
                           gs_deadline deadline) {
    const char *group = options->group ? options->group : "";
    *out = (gs_net_mesh){.world_size = options->world_size};
    forming self = {.mesh = out, .options = options, .stages = stages, .listener = -1};
    self.num_missing = options->world_size - 1;
    self.group = gs_hash64(group, strlen(group), 0);
    gs_status status = alloc_forming(&self);
    if (!status.code) status = learn_whereabouts(&self, stages);
    if (!status.code) {
        double left = gs_seconds_of(gs_deadline_left_ns(deadline)) / 2;
        self.deadline = gs_deadline_in_seconds(left < PATIENCE_SECONDS ? left : PATIENCE_SECONDS);
        status = gs_stages_meet(stages, "net", connect_ranks(&self), NULL, NULL, 0);
    }
    if (self.num_strangers)
        gs_log_warn("strangers refused", "rank=%d address=%s count=%d", options->rank,
                    out->places[options->rank], self.num_strangers);
    release_forming(&self);
    if (status.code) gs_net_mesh_release(out);
    return status;
}

void gs_net_mesh_release(gs_net_mesh *mesh) {
    for (int i = 0; mesh->sockets && i < mesh->world_size; i++) {
        if (mesh->sockets[i] >= 0) close(mesh->sockets[i]);
    }
    free(mesh->sockets);
    free(mesh->places);
    *mesh = (gs_net_mesh){0};
}
