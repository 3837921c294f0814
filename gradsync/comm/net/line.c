#include "gradsync/comm/net/line.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"

// Before other lines have their turn.
#define MOST_PULLED_BYTES ((size_t)1 << 20)
#define RATE_NS (10 * GS_NS_PER_SEC)
#define RATED_BYTES ((uint64_t)131072)

struct gs_net_parcel {
    gs_net_parcel *next;
    gs_net_header header;
    const unsigned char *body;  // borrowed, or `own`
    uint32_t *pending;          // NULL: nobody counts
    unsigned char own[];
};

void gs_net_line_open(gs_net_line *line, int peer, int fd) {
    *line = (gs_net_line){.fd = fd, .peer = peer};
}

static void end_parcel(gs_net_parcel *parcel) {
    if (parcel && parcel->pending) --*parcel->pending;
    free(parcel);
}

static void drop_queue(gs_net_queue *queue) {
    while (queue->first) {
        gs_net_parcel *parcel = queue->first;
        queue->first = parcel->next;
        end_parcel(parcel);
    }
    queue->last = NULL;
}

static void drop_unsent(gs_net_line *line) {
    drop_queue(&line->urgent);
    drop_queue(&line->bulk);
    end_parcel(line->current);
    line->current = NULL;
}

void gs_net_line_close(gs_net_line *line) {
    drop_unsent(line);
    if (line->fd >= 0) close(line->fd);
    line->fd = -1;
}

// The peer sees the end of the connection; what it said before it went may still be there to be
// read, and its end comes behind that.
static void end_sending(gs_net_line *line, int error) {
    line->error = error;
    drop_unsent(line);
    shutdown(line->fd, SHUT_WR);
}

static void append(gs_net_queue *queue, gs_net_parcel *parcel) {
    if (queue->last)
        queue->last->next = parcel;
    else
        queue->first = parcel;
    queue->last = parcel;
}

static gs_net_parcel *take_first(gs_net_queue *queue) {
    gs_net_parcel *parcel = queue->first;
    if (!parcel) return NULL;
    queue->first = parcel->next;
    if (!queue->first) queue->last = NULL;
    return parcel;
}

gs_status gs_net_line_send(gs_net_line *line, const gs_net_header *header, const void *body,
                           uint32_t *pending) {
    if (line->fd < 0 || line->error) return gs_ok();  // whose end is told by `closed`
    bool is_bulk = gs_net_is_bulk(header);
    size_t own_bytes = is_bulk ? 0 : (size_t)header->bytes;
    gs_net_parcel *parcel = malloc(sizeof *parcel + own_bytes);
    if (!parcel)
        return gs_error(GS_RESOURCE_EXHAUSTED, "message to rank %d: out of memory", line->peer);
    *parcel = (gs_net_parcel){
        .header = *header, .body = is_bulk ? body : parcel->own, .pending = pending};
    if (own_bytes) memcpy(parcel->own, body, own_bytes);
    if (pending) ++*pending;
    bool was_idle = !gs_net_line_has_more(line);
    append(is_bulk ? &line->bulk : &line->urgent, parcel);
    if (was_idle) gs_net_line_push(line);
    return gs_ok();
}

bool gs_net_line_has_more(const gs_net_line *line) {
    return line->current || line->urgent.first || line->bulk.first;
}

// False: the socket takes no more.
static bool push_current(gs_net_line *line) {
    gs_net_parcel *parcel = line->current;
    struct iovec parts[2];
    size_t num_parts = 0, at = line->current_bytes;
    uint64_t whole = sizeof parcel->header + parcel->header.bytes;
    if (at < sizeof parcel->header)
        parts[num_parts++] =
            (struct iovec){(char *)&parcel->header + at, sizeof parcel->header - at};
    size_t body_at = at < sizeof parcel->header ? 0 : at - sizeof parcel->header;
    if (parcel->header.bytes > body_at)
        parts[num_parts++] = (struct iovec){(void *)(uintptr_t)(parcel->body + body_at),
                                            parcel->header.bytes - body_at};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = num_parts};
    bool more = line->urgent.first || line->bulk.first;
    ssize_t sent = sendmsg(line->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
    if (sent < 0) {
        if (errno == EINTR) return true;
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return false;
        end_sending(line, errno);
        return false;
    }
    line->current_bytes += (size_t)sent;
    line->sent_bytes += (uint64_t)sent;
    if (line->current_bytes < whole) return sent > 0;
    line->current = NULL;
    end_parcel(parcel);
    return true;
}

bool gs_net_line_push(gs_net_line *line) {
    bool moved = false;
    if (line->fd < 0) return false;
    for (;;) {
        if (!line->current) {
            line->current = take_first(line->urgent.first ? &line->urgent : &line->bulk);
            line->current_bytes = 0;
        }
        if (!line->current) return moved;
        size_t before = line->current_bytes;
        bool goes_on = push_current(line);
        moved |= !line->current || line->current_bytes != before;
        if (!goes_on) return moved;
    }
}

// Who says its last word waits until that has come; its kernel would let the answer wait for 40 ms.
static void acknowledge(const gs_net_line *line) {
    int yes = 1;
    setsockopt(line->fd, IPPROTO_TCP, TCP_QUICKACK, &yes, sizeof yes);
}

static gs_status end_message(gs_net_line *line, const gs_net_receiver *receiver) {
    gs_net_header header = line->header;
    if (header.kind == GS_NET_BYE || header.kind == GS_NET_FAILURE) acknowledge(line);
    line->header_bytes = 0;
    line->body_bytes = 0;
    line->body = NULL;
    return line->has_let_go ? gs_ok() : receiver->came(receiver->ctx, line->peer, &header);
}

static gs_status begin_body(gs_net_line *line, const gs_net_receiver *receiver) {
    void *body = NULL;
    line->body_bytes = 0;
    if (!line->has_let_go) GS_TRY(receiver->place(receiver->ctx, line->peer, &line->header, &body));
    line->body = body;
    return line->header.bytes ? gs_ok() : end_message(line, receiver);
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

// What lies in the buffer, message by message.
static gs_status take_buffer(gs_net_line *line, const gs_net_receiver *receiver) {
    while (line->buffer_first < line->buffer_end) {
        const unsigned char *from = line->buffer + line->buffer_first;
        size_t there = line->buffer_end - line->buffer_first, taken;
        if (line->header_bytes < sizeof line->header) {
            taken = least(there, sizeof line->header - line->header_bytes);
            memcpy((char *)&line->header + line->header_bytes, from, taken);
            line->header_bytes += taken;
            line->buffer_first += taken;
            if (line->header_bytes == sizeof line->header) GS_TRY(begin_body(line, receiver));
        } else {
            taken = least(there, line->header.bytes - line->body_bytes);
            if (line->body) memcpy(line->body + line->body_bytes, from, taken);
            line->body_bytes += taken;
            line->buffer_first += taken;
            if (line->body_bytes == line->header.bytes) GS_TRY(end_message(line, receiver));
        }
    }
    line->buffer_first = line->buffer_end = 0;
    return gs_ok();
}

// The rest of a long body goes where it belongs at once.
static bool wants_body(const gs_net_line *line) {
    return line->header_bytes == sizeof line->header && line->body &&
           line->header.bytes - line->body_bytes >= sizeof line->buffer;
}

gs_status gs_net_line_pull(gs_net_line *line, const gs_net_receiver *receiver, bool *moved) {
    for (size_t pulled = 0; line->fd >= 0 && pulled < MOST_PULLED_BYTES;) {
        bool directly = wants_body(line);
        void *into = directly ? line->body + line->body_bytes : line->buffer;
        size_t most = directly ? line->header.bytes - line->body_bytes : sizeof line->buffer;
        ssize_t got = recv(line->fd, into, least(most, MOST_PULLED_BYTES), MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return gs_ok();
        *moved = true;
        if (got <= 0) {
            int error = got < 0 ? errno : line->error;
            gs_net_line_close(line);
            return receiver->closed(receiver->ctx, line->peer, error);
        }
        pulled += (size_t)got;
        line->received_bytes += (uint64_t)got;
        if (directly) {
            line->body_bytes += (uint64_t)got;
            if (line->body_bytes == line->header.bytes) GS_TRY(end_message(line, receiver));
        } else {
            line->buffer_first = 0;
            line->buffer_end = (size_t)got;
            GS_TRY(take_buffer(line, receiver));
        }
    }
    return gs_ok();
}

static void copy_current(gs_net_line *line) {
    gs_net_parcel *parcel = line->current;
    if (!parcel) return;
    if (parcel->body == parcel->own) {
        if (parcel->pending) --*parcel->pending;
        parcel->pending = NULL;
        return;
    }
    if (!line->current_bytes) {
        end_parcel(parcel);
        line->current = NULL;
        return;
    }
    gs_net_parcel *copy = malloc(sizeof *copy + parcel->header.bytes);
    if (!copy) {
        end_sending(line, ENOMEM);  // in the middle of a message
        return;
    }
    *copy = (gs_net_parcel){.header = parcel->header, .body = copy->own};
    memcpy(copy->own, parcel->body, parcel->header.bytes);
    end_parcel(parcel);
    line->current = copy;
}

void gs_net_line_let_go(gs_net_line *line) {
    line->has_let_go = true;
    line->body = NULL;
    drop_queue(&line->bulk);
    drop_queue(&line->urgent);
    copy_current(line);
}

// The kernel tells the rate of the last window; one at which it had too little to send says nothing
// of the way.
static void note_rate(gs_net_line *line, const struct tcp_info *info) {
    int64_t now_ns = gs_now_ns();
    double rate = info->tcpi_delivery_rate_app_limited ? 0 : (double)info->tcpi_delivery_rate;
    // The kernel keeps telling the last rate: it is news only of what has been sent since.
    if (rate > 0 && line->sent_bytes - line->rated_bytes >= RATED_BYTES) {
        line->rates[line->num_rates++ % GS_NET_LINE_RATES] = rate;
        line->rated_bytes = line->sent_bytes;
    }
    if (rate < line->best_rate && now_ns - line->best_rate_ns < RATE_NS) return;
    if (rate == 0) return;
    line->best_rate = rate;
    line->best_rate_ns = now_ns;
}

static double median_rate(const gs_net_line *line) {
    double sorted[GS_NET_LINE_RATES];
    int count = line->num_rates < GS_NET_LINE_RATES ? line->num_rates : GS_NET_LINE_RATES;
    for (int i = 0; i < count; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > line->rates[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = line->rates[i];
    }
    return count ? sorted[count / 2] : 0;
}

void gs_net_line_look(gs_net_line *line, gs_comm_link *out) {
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    *out = (gs_comm_link){.sent_bytes = line->sent_bytes, .received_bytes = line->received_bytes};
    if (line->fd < 0 || getsockopt(line->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes)) return;
    note_rate(line, &info);
    out->retransmits = info.tcpi_total_retrans;
    out->round_trip_ns = (int64_t)info.tcpi_rtt * 1000;
    out->least_round_trip_ns =
        info.tcpi_min_rtt == UINT32_MAX ? 0 : (int64_t)info.tcpi_min_rtt * 1000;
    out->bytes_per_sec = line->best_rate;
    out->usual_bytes_per_sec = median_rate(line);
}

bool gs_net_line_is_flushed(const gs_net_line *line) {
    int unacknowledged = 0;
    if (line->fd < 0 || line->error) return true;
    return !gs_net_line_has_more(line) &&
           (ioctl(line->fd, SIOCOUTQ, &unacknowledged) || !unacknowledged);
}
