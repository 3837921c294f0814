#include "gradsync/comm/net/transport.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct gs_net_transport {
    int world_size;
    int wakeup;  // eventfd
    const gs_net_receiver *receiver;
    struct pollfd *polled;  // by rank, and the wakeup behind them
    gs_net_line lines[];
};

gs_status gs_net_transport_create(gs_net_transport **out, gs_net_mesh *mesh) {
    size_t world_size = (size_t)mesh->world_size;
    gs_net_transport *self = calloc(1, sizeof *self + world_size * sizeof *self->lines);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "transport: out of memory");
    self->wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gs_status status =
        self->wakeup < 0 ? gs_error_from_errno(errno, "transport: wake-up") : gs_ok();
    self->polled = calloc(world_size + 1, sizeof *self->polled);
    if (!status.code && !self->polled)
        status = gs_error(GS_RESOURCE_EXHAUSTED, "transport: out of memory");
    if (status.code) {
        gs_net_transport_destroy(self);
        return status;
    }
    self->world_size = mesh->world_size;
    for (int i = 0; i < mesh->world_size; i++) {
        gs_net_line_open(&self->lines[i], i, mesh->sockets[i]);
        mesh->sockets[i] = -1;
    }
    *out = self;
    return gs_ok();
}

void gs_net_transport_destroy(gs_net_transport *self) {
    if (!self) return;
    for (int i = 0; i < self->world_size; i++) gs_net_line_close(&self->lines[i]);
    if (self->wakeup >= 0) close(self->wakeup);
    free(self->polled);
    free(self);
}

gs_status gs_net_transport_send(gs_net_transport *self, int peer, const gs_net_header *header,
                                const void *body, uint32_t *pending) {
    return gs_net_line_send(&self->lines[peer], header, body, pending);
}

gs_status gs_net_transport_tell(gs_net_transport *self, const gs_net_header *header,
                                const void *body) {
    for (int i = 0; i < self->world_size; i++)
        GS_TRY(gs_net_line_send(&self->lines[i], header, body, NULL));
    return gs_ok();
}

void gs_net_transport_receive(gs_net_transport *self, const gs_net_receiver *receiver) {
    self->receiver = receiver;
}

static void take_wakeups(const gs_net_transport *self) {
    uint64_t count;
    while (read(self->wakeup, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

gs_status gs_net_transport_wait(gs_net_transport *self, int timeout_ms, bool *moved) {
    int world_size = self->world_size;
    *moved = false;
    for (int i = 0; i < world_size; i++) {
        const gs_net_line *line = &self->lines[i];
        self->polled[i] = (struct pollfd){
            .fd = line->fd, .events = POLLIN | (gs_net_line_has_more(line) ? POLLOUT : 0)};
    }
    self->polled[world_size] = (struct pollfd){.fd = self->wakeup, .events = POLLIN};
    int ready = poll(self->polled, (nfds_t)world_size + 1, timeout_ms);
    if (ready < 0 && errno != EINTR) return gs_error_from_errno(errno, "waiting for ranks");
    if (ready <= 0) return gs_ok();
    if (self->polled[world_size].revents) take_wakeups(self);
    for (int i = 0; i < world_size; i++) {
        gs_net_line *line = &self->lines[i];
        short events = self->polled[i].revents;
        if (events & POLLOUT) *moved |= gs_net_line_push(line);
        if (events & (POLLIN | POLLHUP | POLLERR))
            GS_TRY(gs_net_line_pull(line, self->receiver, moved));
    }
    return gs_ok();
}

void gs_net_transport_abort(gs_net_transport *self) {
    for (int i = 0; i < self->world_size; i++) gs_net_line_let_go(&self->lines[i]);
}

void gs_net_transport_wake(gs_net_transport *self) {
    uint64_t one = 1;
    while (write(self->wakeup, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

bool gs_net_transport_is_flushed(const gs_net_transport *self) {
    for (int i = 0; i < self->world_size; i++) {
        if (!gs_net_line_is_flushed(&self->lines[i])) return false;
    }
    return true;
}

void gs_net_transport_look(gs_net_transport *self, int peer, gs_comm_link *out) {
    gs_net_line_look(&self->lines[peer], out);
}

void gs_net_transport_hang_up(gs_net_transport *self, int peer) {
    gs_net_line_close(&self->lines[peer]);
}
