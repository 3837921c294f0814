#include "tests/nccl_sim/mesh.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ID_MAGIC UINT64_C(0x4d49535f4c43434e)
#define POLL_MS 5

typedef struct sim_id {
    uint64_t magic, nonce;
    char door[NCCL_SIM_NAME_LEN];
} sim_id;

typedef struct root {
    int door;
    uint64_t nonce;
} root;

// The first word on a socket between two ranks.
typedef struct greeting {
    uint64_t nonce;
    int32_t rank;
} greeting;

static uint64_t random_number(void) {
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) abort();
    return number;
}

static struct sockaddr_un address_of(const char *name, socklen_t *bytes) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strnlen(name, NCCL_SIM_NAME_LEN);
    memcpy(address.sun_path + 1, name, len);
    *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
    return address;
}

static int open_door(char name[NCCL_SIM_NAME_LEN]) {
    socklen_t bytes;
    snprintf(name, NCCL_SIM_NAME_LEN, "nccl-sim-%016llx", (unsigned long long)random_number());
    struct sockaddr_un address = address_of(name, &bytes);
    int door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (door < 0) return -1;
    if (bind(door, (struct sockaddr *)&address, bytes) == 0 && listen(door, 256) == 0) return door;
    close(door);
    return -1;
}

static int knock(const char *name) {
    socklen_t bytes;
    struct sockaddr_un address = address_of(name, &bytes);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, bytes) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

// Whether all bytes came; `aborted` NULL: waits for ever.
static bool receive_all(int fd, void *data, size_t bytes, const atomic_bool *aborted) {
    unsigned char *at = data;
    while (bytes) {
        struct pollfd waiting = {.fd = fd, .events = POLLIN};
        int ready = poll(&waiting, 1, aborted ? POLL_MS : -1);
        if (aborted && atomic_load(aborted)) return false;
        if (ready <= 0) continue;
        ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (got < 0) continue;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

static bool send_all(int fd, const void *data, size_t bytes) {
    const unsigned char *at = data;
    while (bytes) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

// One visitor after the other, without a limit of time, as the real one. A visitor that does not fit makes
// it give up without a word: those that came keep waiting.
static void *run_root(void *ctx) {
    root own = *(root *)ctx;
    nccl_sim_card cards[NCCL_SIM_MAX_RANKS];
    int visitors[NCCL_SIM_MAX_RANKS], num_ranks = 1, num_come = 0;
    free(ctx);
    for (int i = 0; i < NCCL_SIM_MAX_RANKS; i++) visitors[i] = -1;
    while (num_come < num_ranks) {
        nccl_sim_card card;
        int fd = accept4(own.door, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 || !receive_all(fd, &card, sizeof card, NULL)) {
            if (fd >= 0) close(fd);
            continue;
        }
        if (num_come == 0) num_ranks = card.num_ranks;
        if (card.nonce != own.nonce || card.num_ranks != num_ranks || card.rank < 0 ||
            card.rank >= num_ranks || num_ranks > NCCL_SIM_MAX_RANKS || visitors[card.rank] >= 0)
            return NULL;
        cards[card.rank] = card;
        visitors[card.rank] = fd;
        num_come++;
    }
    for (int i = 0; i < num_ranks; i++) {
        send_all(visitors[i], cards, (size_t)num_ranks * sizeof *cards);
        close(visitors[i]);
    }
    close(own.door);
    return NULL;
}

ncclResult_t nccl_sim_make_id(ncclUniqueId *id) {
    sim_id made = {.magic = ID_MAGIC, .nonce = random_number()};
    root *own = malloc(sizeof *own);
    pthread_t thread;
    if (!own) return ncclSystemError;
    *own = (root){.door = open_door(made.door), .nonce = made.nonce};
    if (own->door < 0 || pthread_create(&thread, NULL, run_root, own)) {
        free(own);
        return ncclSystemError;
    }
    pthread_detach(thread);
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &made, sizeof made);
    return ncclSuccess;
}

static bool meet_root(nccl_sim_card *cards, const nccl_sim_card *mine, const char *door,
                      const atomic_bool *aborted) {
    int fd = knock(door);
    if (fd < 0) return false;
    bool met = send_all(fd, mine, sizeof *mine) &&
               receive_all(fd, cards, (size_t)mine->num_ranks * sizeof *cards, aborted);
    close(fd);
    return met;
}

static bool meet_peers(int *sockets, const nccl_sim_card *cards, const nccl_sim_card *mine,
                       int door, const atomic_bool *aborted) {
    for (int i = 0; i < mine->rank; i++) {
        greeting hello = {mine->nonce, mine->rank};
        sockets[i] = knock(cards[i].door);
        if (sockets[i] < 0 || !send_all(sockets[i], &hello, sizeof hello)) return false;
    }
    for (int left = mine->num_ranks - 1 - mine->rank; left > 0;) {
        greeting hello;
        struct pollfd waiting = {.fd = door, .events = POLLIN};
        int ready = poll(&waiting, 1, POLL_MS);
        if (atomic_load(aborted)) return false;
        if (ready <= 0) continue;
        int fd = accept4(door, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) continue;
        bool fits = receive_all(fd, &hello, sizeof hello, aborted) && hello.nonce == mine->nonce &&
                    hello.rank > mine->rank && hello.rank < mine->num_ranks &&
                    sockets[hello.rank] < 0;
        if (!fits) {
            close(fd);
            continue;
        }
        sockets[hello.rank] = fd;
        left--;
    }
    return true;
}

static ncclResult_t check_cards(const nccl_sim_card *cards, const nccl_sim_card *mine, char *why,
                                size_t why_bytes) {
    for (int i = 0; i < mine->num_ranks; i++) {
        if (i == mine->rank) continue;
        if (cards[i].version != mine->version) {
            snprintf(why, why_bytes, "Mismatched NCCL version detected : rank %d", i);
            return ncclInvalidUsage;
        }
        if (strcmp(cards[i].host_id, mine->host_id) == 0 &&
            memcmp(cards[i].device, mine->device, sizeof mine->device) == 0) {
            snprintf(why, why_bytes, "Duplicate GPU detected : rank %d and rank %d", mine->rank, i);
            return ncclInvalidUsage;
        }
    }
    return ncclSuccess;
}

ncclResult_t nccl_sim_connect(int *sockets, nccl_sim_card *cards, const nccl_sim_card *mine,
                              const ncclUniqueId *id, const atomic_bool *aborted, char *why,
                              size_t why_bytes) {
    sim_id parsed;
    nccl_sim_card own = *mine;
    memcpy(&parsed, id->internal, sizeof parsed);
    for (int i = 0; i < mine->num_ranks; i++) sockets[i] = -1;
    if (parsed.magic != ID_MAGIC) {
        snprintf(why, why_bytes, "the unique id is none of this library");
        return ncclInvalidArgument;
    }
    own.nonce = parsed.nonce;
    int door = open_door(own.door);
    ncclResult_t result = ncclSystemError;
    snprintf(why, why_bytes, "ranks could not connect");
    if (door >= 0 && meet_root(cards, &own, parsed.door, aborted)) {
        result = check_cards(cards, &own, why, why_bytes);
        if (result == ncclSuccess && !meet_peers(sockets, cards, &own, door, aborted))
            result = ncclRemoteError;
    }
    if (door >= 0) close(door);
    return result;
}

bool nccl_sim_share_id(const int *sockets, int rank, int num_ranks, ncclUniqueId *id,
                       const atomic_bool *aborted) {
    if (rank != 0) return receive_all(sockets[0], id, sizeof *id, aborted);
    for (int i = 1; i < num_ranks; i++) {
        if (!send_all(sockets[i], id, sizeof *id)) return false;
    }
    return true;
}

void nccl_sim_hang_up(int socket) {
    shutdown(socket, SHUT_RDWR);
}
