#include "tests/support/rank_link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct rank_link {
    int rank, world_size;
    uint64_t sequence;
    pthread_mutex_t send_lock; // notes may come from any thread
};

rank_link *rank_link_open(int rank, int world_size) {
    if (fcntl(RANK_LINK_FD, F_SETFD, FD_CLOEXEC)) return NULL;
    rank_link *link = calloc(1, sizeof *link);
    if (!link) return NULL;
    link->rank = rank;
    link->world_size = world_size;
    pthread_mutex_init(&link->send_lock, NULL);
    return link;
}

void rank_link_close(rank_link *link) {
    if (!link) return;
    pthread_mutex_destroy(&link->send_lock);
    free(link);
}

static gs_status send_all(const void *data, size_t bytes) {
    const char *at = data;
    while (bytes) {
        ssize_t sent = send(RANK_LINK_FD, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return gs_error_from_errno(errno, "link to the parent");
        at += sent;
        bytes -= (size_t)sent;
    }
    return gs_ok();
}

static gs_status send_message(rank_link *link, const rank_message *head, const void *body) {
    pthread_mutex_lock(&link->send_lock);
    gs_status status = send_all(head, sizeof *head);
    if (!status.code) status = send_all(body, head->bytes);
    pthread_mutex_unlock(&link->send_lock);
    return status;
}

gs_status rank_link_send(rank_link *link, rank_message_type type, const void *body, size_t bytes) {
    rank_message head = {.type = type, .bytes = (uint32_t)bytes};
    return send_message(link, &head, body);
}

static gs_status receive_all(void *data, size_t bytes, const char *tag, gs_deadline deadline) {
    char *at = data;
    while (bytes) {
        struct pollfd wait = {.fd = RANK_LINK_FD, .events = POLLIN};
        int ready = poll(&wait, 1, gs_deadline_left_ms(deadline));
        if (ready < 0 && errno != EINTR) return gs_error_from_errno(errno, "exchange \"%s\"", tag);
        if (ready == 0)
            return gs_error(GS_DEADLINE_EXCEEDED, "exchange \"%s\": not all ranks came", tag);
        if (ready < 0) continue;
        ssize_t got = recv(RANK_LINK_FD, at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return gs_error(GS_UNAVAILABLE, "exchange \"%s\": the parent is gone", tag);
        at += got;
        bytes -= (size_t)got;
    }
    return gs_ok();
}

// A reply to an exchange that this rank gave up is read and forgotten.
static gs_status skip_reply(const rank_message *head, gs_deadline deadline) {
    void *body = malloc(head->bytes ? head->bytes : 1);
    if (!body) return gs_error(GS_RESOURCE_EXHAUSTED, "exchange: out of memory");
    gs_status status = receive_all(body, head->bytes, head->tag, deadline);
    free(body);
    return status;
}

static gs_status receive_reply(rank_link *link, void *all, size_t all_bytes, const char *tag,
                               gs_deadline deadline) {
    rank_message head;
    for (;;) {
        GS_TRY(receive_all(&head, sizeof head, tag, deadline));
        if (head.sequence == link->sequence) break;
        GS_TRY(skip_reply(&head, deadline));
    }
    if (head.type == RANK_MESSAGE_ERROR) {
        gs_status status;
        GS_TRY(receive_all(&status, sizeof status, tag, deadline));
        return status;
    }
    if (head.bytes != all_bytes)
        return gs_error(GS_INTERNAL, "exchange \"%s\": %u bytes instead of %zu", tag, head.bytes,
                        all_bytes);
    return receive_all(all, all_bytes, tag, deadline);
}

gs_status rank_link_exchange(rank_link *link, const char *tag, const int *ranks, int num_ranks,
                             const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    rank_message head = {
        .type = RANK_MESSAGE_EXCHANGE, .bytes = (uint32_t)bytes, .sequence = ++link->sequence};
    if (!ranks) num_ranks = link->world_size;
    for (int i = 0; i < num_ranks; i++) head.ranks |= UINT64_C(1) << (ranks ? ranks[i] : i);
    snprintf(head.tag, sizeof head.tag, "%s", tag);
    GS_TRY(send_message(link, &head, mine));
    return receive_reply(link, all, bytes * (size_t)num_ranks, tag, deadline);
}
