// Many requests at once, by one thread that does nothing else: for each a line "STATUS
// MILLISECONDS", with 000 for a connection that is refused, which is opened again. A connection is
// kept for as long as the server keeps it.
//   flood PORT REQUESTS CONNECTIONS PATH…     on 127.0.0.1; the paths in turn
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 30000
#define HEAD_BYTES 4096

typedef struct client {
    int fd;           // −1: none
    bool has_asked;   // of a request that is under way: it has been sent
    double begin_ms;  // of the request: when it was made, connecting included
    char head[HEAD_BYTES + 1];
    size_t num_read;  // of headers
    long left;        // of the body; −1: not known yet
    int status;
    const char *path;
} client;

static struct sockaddr_in server;
static char *const *paths;
static int num_paths, num_begun, num_ended, num_wanted;

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1000 + (double)now.tv_nsec / 1e6;
}

static void hang_up(client *self) {
    if (self->fd >= 0) close(self->fd);
    self->fd = -1;
}

// The next request, where one is left; on the connection that is there, else on a new one.
static void begin(client *self) {
    self->path = NULL;
    if (num_begun == num_wanted) {
        hang_up(self);
        return;
    }
    self->path = paths[num_begun++ % num_paths];
    self->begin_ms = now_ms();
    self->has_asked = false;
    self->num_read = 0;
    self->left = -1;
    if (self->fd >= 0) return;
    self->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (self->fd < 0) {
        perror("flood: socket");
        exit(1);
    }
    if (connect(self->fd, (struct sockaddr *)&server, sizeof server) && errno != EINPROGRESS)
        hang_up(self);
}

static void end(client *self, int status) {
    printf("%03d %.1f\n", status, now_ms() - self->begin_ms);
    num_ended++;
    if (!status) hang_up(self);
    begin(self);
}

static void ask(client *self) {
    char text[300];
    int length = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n",
                          self->path, ntohs(server.sin_port));
    if (send(self->fd, text, (size_t)length, MSG_NOSIGNAL) != length)
        end(self, 0);
    else
        self->has_asked = true;
}

// Whole headers of an answer with a length.
static bool read_head(client *self, size_t *num_of_body) {
    self->head[self->num_read] = '\0';
    const char *over = strstr(self->head, "\r\n\r\n");
    if (!over) return false;
    for (const char *line = self->head; line < over; line = strstr(line, "\r\n") + 2) {
        if (!strncasecmp(line, "content-length:", 15)) self->left = strtol(line + 15, NULL, 10);
    }
    if (self->left < 0 || sscanf(self->head, "HTTP/1.1 %d", &self->status) != 1) {
        fprintf(stderr, "flood: an answer that it cannot read: %s\n", self->head);
        exit(1);
    }
    *num_of_body = self->num_read - (size_t)(over + 4 - self->head);
    return true;
}

static void listen_to(client *self) {
    static char body[65536];
    bool in_head = self->left < 0;
    ssize_t got = in_head
                      ? recv(self->fd, self->head + self->num_read, HEAD_BYTES - self->num_read, 0)
                      : recv(self->fd, body, sizeof body, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        end(self, 0);
        return;
    }
    size_t num_of_body = (size_t)got;
    if (in_head) {
        self->num_read += (size_t)got;
        if (!read_head(self, &num_of_body)) return;
    }
    self->left -= (long)num_of_body;
    if (self->left <= 0) end(self, self->status);
}

int main(int argc, char **argv) {
    if (argc < 5) return 64;
    server = (struct sockaddr_in){.sin_family = AF_INET,
                                  .sin_port = htons((unsigned short)atoi(argv[1])),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    num_wanted = atoi(argv[2]);
    int num_clients = atoi(argv[3]);
    paths = argv + 4;
    num_paths = argc - 4;
    client *clients = calloc((size_t)num_clients, sizeof *clients);
    struct pollfd *waits = calloc((size_t)num_clients, sizeof *waits);
    if (!clients || !waits) return 1;
    for (int i = 0; i < num_clients; i++) {
        clients[i].fd = -1;
        begin(&clients[i]);
    }
    while (num_ended < num_wanted) {
        for (int i = 0; i < num_clients; i++) {
            client *self = &clients[i];
            while (self->path && self->fd < 0) end(self, 0);  // it could not even connect
            waits[i] =
                (struct pollfd){.fd = self->fd, .events = self->has_asked ? POLLIN : POLLOUT};
        }
        if (poll(waits, (nfds_t)num_clients, PATIENCE_MS) <= 0) {
            fprintf(stderr, "flood: no answer in %d s\n", PATIENCE_MS / 1000);
            return 1;
        }
        for (int i = 0; i < num_clients; i++) {
            if (waits[i].fd < 0 || !waits[i].revents) continue;
            if (clients[i].has_asked)
                listen_to(&clients[i]);
            else
                ask(&clients[i]);
        }
    }
    return 0;
}
