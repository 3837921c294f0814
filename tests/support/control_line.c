#include "tests/support/control_line.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/thread.h"

#define MAX_PAIRS 64
#define GREETING_BYTES 64
#define FLAG_MORE 1
#define FLAG_LONG 2
#define FLAG_COMMAND 4

typedef struct byte_list {
    uint8_t *bytes;
    size_t count, reserved;
} byte_list;

typedef struct pair {
    int worker, coordinator;  // −1: closed
    byte_list said;
} pair;

struct gs_control_line {
    int listener;
    char endpoint[64], coordinator[128];
    gs_thread *thread;
    pthread_mutex_t lock;  // of the pairs
    pair pairs[MAX_PAIRS];
    int num_pairs;
};

static void must(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "control line: %s: %s\n", what, strerror(errno));
    abort();
}

static int connect_to(const char *endpoint) {
    char host[64];
    int port = 0;
    must(sscanf(endpoint, "tcp://%63[^:]:%d", host, &port) == 2, endpoint);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    must(inet_pton(AF_INET, host, &address.sin_addr) == 1, host);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    must(fd >= 0, "socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static bool send_all(int fd, const void *bytes, size_t count) {
    for (size_t sent = 0; sent < count;) {
        ssize_t n = send(fd, (const char *)bytes + sent, count - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        sent += (size_t)n;
    }
    return true;
}

static void remember(byte_list *list, const void *bytes, size_t count) {
    if (list->count + count > list->reserved) {
        list->reserved = 2 * (list->count + count);
        list->bytes = realloc(list->bytes, list->reserved);
        must(list->bytes != NULL, "memory");
    }
    memcpy(list->bytes + list->count, bytes, count);
    list->count += count;
}

static void close_pair(pair *it) {
    if (it->worker >= 0) close(it->worker);
    if (it->coordinator >= 0) close(it->coordinator);
    it->worker = it->coordinator = -1;
}

// What one end said goes to the other.
static void pass_on(gs_control_line *line, pair *it, int from, int to) {
    char bytes[65536];
    ssize_t n = recv(from, bytes, sizeof bytes, 0);
    pthread_mutex_lock(&line->lock);
    if (n > 0 && from == it->worker) remember(&it->said, bytes, (size_t)n);
    if (n <= 0 || !send_all(to, bytes, (size_t)n)) close_pair(it);
    pthread_mutex_unlock(&line->lock);
}

static void accept_pair(gs_control_line *line) {
    int worker = accept4(line->listener, NULL, NULL, SOCK_CLOEXEC), coordinator = connect_to(line->coordinator);
    pthread_mutex_lock(&line->lock);
    // While there is no coordinator clients come again and again: whoever is gone and said nothing leaves its place.
    int at = 0;
    while (at < line->num_pairs && (line->pairs[at].worker >= 0 || line->pairs[at].said.count > 0)) at++;
    must(at < MAX_PAIRS, "too many connections");
    if (at == line->num_pairs) line->num_pairs++;
    pair *it = &line->pairs[at];
    free(it->said.bytes);
    *it = (pair){.worker = worker, .coordinator = coordinator};
    if (worker < 0 || coordinator < 0) close_pair(it);
    pthread_mutex_unlock(&line->lock);
}

static void run_line(void *ctx, const atomic_bool *stopping) {
    gs_control_line *line = ctx;
    while (!atomic_load(stopping)) {
        struct pollfd fds[1 + 2 * MAX_PAIRS] = {{.fd = line->listener, .events = POLLIN}};
        int num_pairs = line->num_pairs;
        for (int i = 0; i < num_pairs; i++) {
            fds[1 + 2 * i] = (struct pollfd){.fd = line->pairs[i].worker, .events = POLLIN};
            fds[2 + 2 * i] = (struct pollfd){.fd = line->pairs[i].coordinator, .events = POLLIN};
        }
        if (poll(fds, (nfds_t)(1 + 2 * num_pairs), 20) <= 0) continue;
        for (int i = 0; i < num_pairs; i++) {
            pair *it = &line->pairs[i];
            if (fds[1 + 2 * i].revents && it->worker >= 0) pass_on(line, it, it->worker, it->coordinator);
            if (fds[2 + 2 * i].revents && it->worker >= 0) pass_on(line, it, it->coordinator, it->worker);
        }
        if (fds[0].revents) accept_pair(line);
    }
}

gs_control_line *gs_control_line_open(const char *coordinator) {
    gs_control_line *line = calloc(1, sizeof *line);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    snprintf(line->coordinator, sizeof line->coordinator, "%s", coordinator);
    pthread_mutex_init(&line->lock, NULL);
    line->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(bind(line->listener, (struct sockaddr *)&address, bytes) == 0, "bind");
    must(listen(line->listener, MAX_PAIRS) == 0, "listen");
    must(getsockname(line->listener, (struct sockaddr *)&address, &bytes) == 0, "name");
    snprintf(line->endpoint, sizeof line->endpoint, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    gs_status status = gs_thread_start(&line->thread, "line", run_line, line);
    must(status.code == 0, status.message);
    return line;
}

const char *gs_control_line_endpoint(const gs_control_line *line) { return line->endpoint; }

void gs_control_line_close(gs_control_line *line) {
    if (!line) return;
    gs_thread_stop(line->thread);
    for (int i = 0; i < line->num_pairs; i++) {
        close_pair(&line->pairs[i]);
        free(line->pairs[i].said.bytes);
    }
    close(line->listener);
    pthread_mutex_destroy(&line->lock);
    free(line);
}

// One frame of ZeroMQ's; false when it is not all there.
static bool read_frame(const byte_list *said, size_t *at, uint8_t *flags, const uint8_t **bytes, size_t *count) {
    if (said->count < *at + 2) return false;  // perhaps not even the greeting
    size_t left = said->count - *at;
    const uint8_t *from = said->bytes + *at;
    *flags = from[0];
    size_t head = *flags & FLAG_LONG ? 9 : 2;
    if (left < head) return false;
    *count = from[1];
    if (*flags & FLAG_LONG) {
        *count = 0;
        for (int i = 1; i <= 8; i++) *count = *count << 8 | from[i];
    }
    if (left - head < *count) return false;
    *bytes = from + head;
    *at += head + *count;
    return true;
}

static void add_said(gs_said_list *list, int connection, const uint8_t *header, const uint8_t *body, size_t body_bytes) {
    list->items = realloc(list->items, (list->count + 1) * sizeof *list->items);
    must(list->items != NULL, "memory");
    gs_said *said = &list->items[list->count++];
    *said = (gs_said){.body = malloc(body_bytes + 1), .body_bytes = body_bytes, .connection = connection};
    memcpy(said->header, header, sizeof said->header);
    memcpy(said->body, body, body_bytes);
    gs_status status = gs_frame_unpack(&said->frame, header, sizeof said->header, body, body_bytes);
    must(status.code == 0, status.message);
}

static void read_pair(gs_said_list *list, int connection, const byte_list *said) {
    size_t at = GREETING_BYTES, header_bytes, body_bytes;
    const uint8_t *header, *body;
    uint8_t flags;
    while (read_frame(said, &at, &flags, &header, &header_bytes)) {
        if (flags & FLAG_COMMAND) continue;
        if (!read_frame(said, &at, &flags, &body, &body_bytes)) return;
        must(header_bytes == GS_FRAME_HEADER_BYTES, "a header");
        add_said(list, connection, header, body, body_bytes);
    }
}

gs_said_list gs_control_line_said(gs_control_line *line) {
    gs_said_list list = {0};
    pthread_mutex_lock(&line->lock);
    for (int i = 0; i < line->num_pairs; i++) read_pair(&list, i, &line->pairs[i].said);
    list.num_connections = line->num_pairs;
    pthread_mutex_unlock(&line->lock);
    return list;
}

void gs_said_list_release(gs_said_list *list) {
    for (size_t i = 0; i < list->count; i++) free(list->items[i].body);
    free(list->items);
    *list = (gs_said_list){0};
}

const gs_said *gs_said_find(const gs_said_list *list, gs_method method) {
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].frame.method == method) return &list->items[i];
    return NULL;
}

// A message that comes before it has told that it is ready is a breach of the protocol to it.
static bool is_ready(int fd) {
    uint8_t bytes[256];
    for (size_t got = 0; got < GREETING_BYTES + 2 || got < GREETING_BYTES + 2 + (size_t)bytes[GREETING_BYTES + 1];) {
        ssize_t n = recv(fd, bytes + got, sizeof bytes - got, 0);
        if (n <= 0) return false;
        got += (size_t)n;
    }
    return true;
}

bool gs_stranger_open(gs_stranger *stranger, const char *coordinator) {
    static const uint8_t greeting[GREETING_BYTES] = {[0] = 0xff, [9] = 0x7f, [10] = 3, [12] = 'N', 'U', 'L', 'L'};
    static const char ready[] = "\4\x1c\5READY\13Socket-Type\0\0\0\6DEALER";
    stranger->fd = connect_to(coordinator);
    return stranger->fd >= 0 && send_all(stranger->fd, greeting, sizeof greeting) &&
           send_all(stranger->fd, ready, sizeof ready - 1) && is_ready(stranger->fd);
}

// Not at once: what is on its way would be lost with the connection.
void gs_stranger_close(gs_stranger *stranger) {
    if (stranger->fd < 0) return;
    shutdown(stranger->fd, SHUT_WR);
    gs_stranger_is_cut(stranger, 2 * GS_NS_PER_SEC);
    close(stranger->fd);
    stranger->fd = -1;
}

static void throw_away(const gs_stranger *stranger) {
    char bytes[65536];
    while (recv(stranger->fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) continue;
}

bool gs_stranger_send(gs_stranger *stranger, const void *bytes, size_t count) {
    throw_away(stranger);
    return send_all(stranger->fd, bytes, count);
}

static size_t write_head(uint8_t head[9], uint8_t flags, size_t count) {
    if (count < 256) {
        head[0] = flags;
        head[1] = (uint8_t)count;
        return 2;
    }
    head[0] = flags | FLAG_LONG;
    for (int i = 0; i < 8; i++) head[1 + i] = (uint8_t)(count >> (56 - 8 * i));
    return 9;
}

bool gs_stranger_say(gs_stranger *stranger, const void *header, size_t header_bytes, const void *body, size_t body_bytes) {
    byte_list message = {0};
    uint8_t head[9];
    remember(&message, head, write_head(head, FLAG_MORE, header_bytes));
    remember(&message, header, header_bytes);
    remember(&message, head, write_head(head, 0, body_bytes));
    remember(&message, body, body_bytes);
    bool sent = gs_stranger_send(stranger, message.bytes, message.count);
    free(message.bytes);
    return sent;
}

bool gs_stranger_say_frame(gs_stranger *stranger, const gs_frame *frame, const char *body) {
    uint8_t header[GS_FRAME_HEADER_BYTES];
    gs_frame_pack(header, frame, body, strlen(body));
    return gs_stranger_say(stranger, header, sizeof header, body, strlen(body));
}

bool gs_stranger_is_cut(gs_stranger *stranger, int64_t within_ns) {
    gs_deadline deadline = {gs_now_ns() + within_ns};
    char bytes[4096];
    while (!gs_deadline_passed(deadline)) {
        ssize_t n = recv(stranger->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return true;
        if (n < 0) gs_sleep_ns(5 * GS_NS_PER_MS);
    }
    return false;
}
