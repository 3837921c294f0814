#include "worker/probes/link_probe.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/thread.h"
#include "gradsync/comm/net/greeting.h"

#define MOST_CALLERS 80  // at a time; one more goes in place of who has said nothing for longest
#define TURN_MS 50
#define BUFFER_BYTES ((size_t)256 << 10)
#define NUM_ROUNDS 9      // odd: there is a median
#define STREAM_SECONDS 0.4
#define STREAM_BYTES ((size_t)1 << 20)

const size_t gs_link_sizes[GS_LINK_NUM_SIZES] = {1024, 16384, 65536, 262144};

// What the calling side says before bytes of its own.
typedef struct request {
    uint32_t bytes, is_echoed;  // else one word answers, when all have come
} request;

typedef enum caller_state { CALLER_NONE = 0, CALLER_GREETS, CALLER_PROVES, CALLER_ASKS, CALLER_SENDS } caller_state;

typedef struct caller {
    caller_state state;
    int fd;
    size_t got_bytes;  // of what is awaited
    int64_t since_ns;
    gs_net_greeting greeting;
    request request;
} caller;

struct gs_link_door {
    gs_thread *thread;
    int listener;
    gs_net_secret secret;
    caller callers[MOST_CALLERS];
    unsigned char buffer[BUFFER_BYTES];
};

// Numbers only: getaddrinfo asks nobody then.
static gs_status read_place(struct sockaddr_storage *out, socklen_t *bytes, const char *address, uint32_t port) {
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char service[12];
    snprintf(service, sizeof service, "%u", (unsigned)port);
    int error = getaddrinfo(address, service, &hints, &found);
    if (error) return gs_error(GS_INVALID_ARGUMENT, "\"%.45s\" is no address: %s", address, gai_strerror(error));
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return gs_ok();
}

static gs_status listen_at(gs_link_door *door, uint32_t *port, const char *address) {
    struct sockaddr_storage place;
    socklen_t bytes;
    GS_TRY(read_place(&place, &bytes, address, 0));
    door->listener = socket(place.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (door->listener < 0) return gs_error_from_errno(errno, "socket");
    if (bind(door->listener, (struct sockaddr *)&place, bytes) || listen(door->listener, MOST_CALLERS))
        return gs_error(GS_UNAVAILABLE, "listening at data address %s: %s", address, strerror(errno));
    bytes = sizeof place;
    if (getsockname(door->listener, (struct sockaddr *)&place, &bytes)) return gs_error_from_errno(errno, "port of %s", address);
    *port = ntohs(place.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&place)->sin6_port : ((struct sockaddr_in *)&place)->sin_port);
    return gs_ok();
}

static void hang_up(caller *one) {
    close(one->fd);
    *one = (caller){0};
}

static void accept_caller(gs_link_door *door) {
    int fd = accept4(door->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), yes = 1;
    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    caller *place = &door->callers[0];
    for (caller *one = door->callers; one < door->callers + MOST_CALLERS; one++) {
        if (!one->state) {
            place = one;
            break;
        }
        if (one->since_ns < place->since_ns) place = one;
    }
    if (place->state) hang_up(place);
    *place = (caller){.state = CALLER_GREETS, .fd = fd, .since_ns = gs_now_ns()};
}

// What does not go at once is waited for a moment: the other side reads before it says more.
static bool say(int fd, const void *what, size_t bytes, gs_deadline deadline) {
    const char *at = what;
    while (bytes > 0) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
        if (sent > 0) {
            at += sent;
            bytes -= (size_t)sent;
            continue;
        }
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
        struct pollfd polled = {.fd = fd, .events = POLLOUT};
        int left_ms = gs_deadline_left_ms(deadline);
        if (left_ms == 0) {
            errno = ETIMEDOUT;
            return false;
        }
        poll(&polled, 1, left_ms);
    }
    return true;
}

static bool take(gs_link_door *door, caller *one) {
    static const char word = 1;
    gs_deadline soon = gs_deadline_in_seconds(1);
    one->got_bytes = 0;
    switch (one->state) {
    case CALLER_GREETS:
        if (one->greeting.hello.version != GS_NET_VERSION || gs_net_greeting_answer(&one->greeting, &door->secret).code) return false;
        one->state = CALLER_PROVES;
        return say(one->fd, &one->greeting.answer, sizeof one->greeting.answer, soon);
    case CALLER_PROVES:
        one->state = CALLER_ASKS;
        return gs_net_greeting_is_proven(&one->greeting, &door->secret);
    case CALLER_ASKS:
        one->state = CALLER_SENDS;
        return one->request.bytes > 0 && (!one->request.is_echoed || one->request.bytes <= BUFFER_BYTES);
    default:
        one->state = CALLER_ASKS;
        if (!one->request.is_echoed) return say(one->fd, &word, 1, soon);
        memset(door->buffer, 0, one->request.bytes);
        return say(one->fd, door->buffer, one->request.bytes, soon);
    }
}

// Where what is awaited goes; of bytes that are only counted always to the same place.
static size_t awaited(gs_link_door *door, caller *one, void **into) {
    size_t bytes = sizeof one->request;
    *into = (char *)&one->request + one->got_bytes;
    if (one->state == CALLER_GREETS) {
        bytes = sizeof one->greeting.hello;
        *into = (char *)&one->greeting.hello + one->got_bytes;
    } else if (one->state == CALLER_PROVES) {
        bytes = sizeof one->greeting.last;
        *into = (char *)&one->greeting.last + one->got_bytes;
    } else if (one->state == CALLER_SENDS) {
        bytes = one->request.bytes;
        *into = door->buffer;
    }
    return bytes;
}

static void hear(gs_link_door *door, caller *one) {
    void *into;
    size_t bytes = awaited(door, one, &into), left = bytes - one->got_bytes;
    ssize_t got = recv(one->fd, into, left < BUFFER_BYTES ? left : BUFFER_BYTES, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got > 0) {
        one->since_ns = gs_now_ns();
        one->got_bytes += (size_t)got;
        if (one->got_bytes < bytes || take(door, one)) return;
    }
    hang_up(one);
}

static void serve(void *ctx, const atomic_bool *stopping) {
    gs_link_door *door = ctx;
    struct pollfd polled[MOST_CALLERS + 1];
    while (!atomic_load(stopping)) {
        for (int i = 0; i < MOST_CALLERS; i++)
            polled[i] = (struct pollfd){.fd = door->callers[i].state ? door->callers[i].fd : -1, .events = POLLIN};
        polled[MOST_CALLERS] = (struct pollfd){.fd = door->listener, .events = POLLIN};
        if (poll(polled, MOST_CALLERS + 1, TURN_MS) <= 0) continue;
        for (int i = 0; i < MOST_CALLERS; i++)
            if (polled[i].revents) hear(door, &door->callers[i]);
        if (polled[MOST_CALLERS].revents) accept_caller(door);
    }
}

gs_status gs_link_door_open(gs_link_door **out, uint32_t *port, const char *address, const gs_net_secret *secret) {
    gs_link_door *door = calloc(1, sizeof *door);
    if (!door) return gs_error(GS_RESOURCE_EXHAUSTED, "examination: out of memory");
    door->listener = -1;
    door->secret = *secret;
    gs_status status = listen_at(door, port, address);
    if (!status.code) status = gs_thread_start(&door->thread, "gs-door", serve, door);
    if (status.code) {
        gs_link_door_close(door);
        return status;
    }
    *out = door;
    return gs_ok();
}

void gs_link_door_close(gs_link_door *door) {
    if (!door) return;
    gs_thread_stop(door->thread);
    for (int i = 0; i < MOST_CALLERS; i++)
        if (door->callers[i].state) close(door->callers[i].fd);
    if (door->listener >= 0) close(door->listener);
    free(door);
}

static bool hear_all(int fd, void *into, size_t bytes, gs_deadline deadline) {
    char *at = into;
    while (bytes > 0) {
        ssize_t got = recv(fd, at, bytes, 0);
        if (got == 0) errno = ECONNRESET;
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
            continue;
        }
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        int left_ms = gs_deadline_left_ms(deadline);
        if (left_ms == 0) {
            errno = ETIMEDOUT;
            return false;
        }
        poll(&polled, 1, left_ms);
    }
    return true;
}

static gs_status blame(const gs_link_place *place, const char *why) {
    bool is_v6 = strchr(place->address, ':') != NULL;
    return gs_error(GS_UNAVAILABLE, is_v6 ? "%s cannot reach [%s]:%u: %s" : "%s cannot reach %s:%u: %s", place->own, place->address,
                    (unsigned)place->port, why);
}

static const char *why_not(int error) { return error == ETIMEDOUT ? "no answer in time; a firewall, or no route?" : strerror(error); }

// 0, or an errno: of a connection that is being made.
static int await_connection(int fd, gs_deadline deadline) {
    struct pollfd polled = {.fd = fd, .events = POLLOUT};
    int error = 0, ready;
    socklen_t bytes = sizeof error;
    do ready = poll(&polled, 1, gs_deadline_left_ms(deadline));
    while (ready < 0 && errno == EINTR);
    if (ready < 0) return errno;
    if (ready == 0) return ETIMEDOUT;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) ? errno : error;
}

// From the own data address, as ranks do.
static gs_status call(int *out, const gs_link_place *place, gs_deadline deadline) {
    struct sockaddr_storage own, theirs;
    socklen_t own_bytes, their_bytes;
    int yes = 1, error = 0;
    GS_TRY(read_place(&own, &own_bytes, place->own, 0));
    GS_TRY(read_place(&theirs, &their_bytes, place->address, place->port));
    if (own.ss_family != theirs.ss_family) return blame(place, "one address is IPv4 and the other is not");
    int fd = socket(theirs.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return gs_error_from_errno(errno, "socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (bind(fd, (struct sockaddr *)&own, own_bytes) || (connect(fd, (struct sockaddr *)&theirs, their_bytes) && errno != EINPROGRESS))
        error = errno;
    if (!error) error = await_connection(fd, deadline);
    if (!error) {
        *out = fd;
        return gs_ok();
    }
    close(fd);
    return blame(place, why_not(error));
}

static gs_status greet(int fd, const gs_link_place *place, gs_deadline deadline) {
    gs_net_greeting greeting = {.hello = {.version = GS_NET_VERSION}};
    GS_TRY(gs_net_secret_draw(&greeting.hello.nonce));
    if (!say(fd, &greeting.hello, sizeof greeting.hello, deadline) ||
        !hear_all(fd, &greeting.answer, sizeof greeting.answer, deadline))
        return blame(place, errno == ECONNRESET ? "it hung up on the greeting, as on another version" : why_not(errno));
    if (!gs_net_greeting_conclude(&greeting, place->secret)) return blame(place, "somebody else answers there");
    return say(fd, &greeting.last, sizeof greeting.last, deadline) ? gs_ok() : blame(place, why_not(errno));
}

static int compare_times(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

// Sorted: how long it takes there and back.
static gs_status time_echoes(int64_t *times_ns, int fd, unsigned char *buffer, size_t bytes, const gs_link_place *place,
                             gs_deadline deadline) {
    const request asked = {(uint32_t)bytes, 1};
    for (int i = -1; i < NUM_ROUNDS; i++) {  // the first is not counted
        int64_t begin_ns = gs_now_ns();
        if (!say(fd, &asked, sizeof asked, deadline) || !say(fd, buffer, bytes, deadline) || !hear_all(fd, buffer, bytes, deadline))
            return blame(place, why_not(errno));
        if (i >= 0) times_ns[i] = gs_now_ns() - begin_ns;
    }
    qsort(times_ns, NUM_ROUNDS, sizeof *times_ns, compare_times);
    return gs_ok();
}

// Until its time is up, in pieces that are each answered with a word.
static gs_status time_stream(gs_link_facts *out, int fd, unsigned char *buffer, const gs_link_place *place, gs_deadline deadline) {
    const request asked = {(uint32_t)STREAM_BYTES, 0};
    int64_t begin_ns = gs_now_ns();
    uint64_t sent_bytes = 0;
    char word;
    while (gs_seconds_since(begin_ns) < STREAM_SECONDS) {
        if (!say(fd, &asked, sizeof asked, deadline)) return blame(place, why_not(errno));
        for (size_t at = 0; at < STREAM_BYTES; at += BUFFER_BYTES)
            if (!say(fd, buffer, BUFFER_BYTES, deadline)) return blame(place, why_not(errno));
        // One piece is on its way while the word of the one before comes.
        if (sent_bytes > 0 && !hear_all(fd, &word, 1, deadline)) return blame(place, why_not(errno));
        sent_bytes += STREAM_BYTES;
    }
    if (!hear_all(fd, &word, 1, deadline)) return blame(place, why_not(errno));
    out->bytes_per_sec = (double)sent_bytes / gs_seconds_since(begin_ns);
    return gs_ok();
}

static gs_status measure(gs_link_facts *out, int fd, unsigned char *buffer, const gs_link_place *place, bool thoroughly,
                         gs_deadline deadline) {
    int64_t times_ns[NUM_ROUNDS];
    GS_TRY(greet(fd, place, deadline));
    GS_TRY(time_echoes(times_ns, fd, buffer, 8, place, deadline));
    out->round_trip_seconds = gs_seconds_of(times_ns[NUM_ROUNDS / 2]);
    out->least_round_trip_seconds = gs_seconds_of(times_ns[0]);
    for (int i = 0; thoroughly && i < GS_LINK_NUM_SIZES; i++) {
        GS_TRY(time_echoes(times_ns, fd, buffer, gs_link_sizes[i], place, deadline));
        out->size_seconds[i] = gs_seconds_of(times_ns[NUM_ROUNDS / 2]) / 2;
    }
    return thoroughly ? time_stream(out, fd, buffer, place, deadline) : gs_ok();
}

gs_status gs_link_try(gs_link_facts *out, const gs_link_place *place, bool thoroughly, gs_deadline deadline) {
    int fd;
    *out = (gs_link_facts){0};
    GS_TRY(call(&fd, place, deadline));
    unsigned char *buffer = calloc(1, BUFFER_BYTES);
    gs_status status = buffer ? measure(out, fd, buffer, place, thoroughly, deadline)
                              : gs_error(GS_RESOURCE_EXHAUSTED, "examination: out of memory");
    free(buffer);
    close(fd);
    return status;
}
