// A line between two network interfaces that is as long, as lossy and as disorderly as it is told to be: for kernels without
// netem. Standalone: scripts compile it (link.sh).
//
//   relay IF_A IF_B [--delay-us N] [--jitter-us N] [--loss SHARE] [--reorder SHARE] [--rate BYTES_PER_SECOND]
//         [--queue BYTES] [--seed N]
//
// Frames that come in on one interface go out on the other, each way by itself, a delay later (one way; jitter adds up to N, and
// keeps the order). A share of them is lost; a share goes at once, before those that wait. With a rate each takes its time to be
// sent, and what finds `queue` bytes before it is dropped, as a switch does; kernels whose `tc tbf` works do that better. The
// interfaces belong to nobody else: no addresses, no bridge. Frames that segmentation was put off for travel as they are, so that
// 1 Gbit/s costs a few percent of a core; of such a frame all is lost or nothing.
//
// Ends with SIGTERM. Prints "relay: ready" when frames are moved.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif
#define MAX_FRAME_BYTES (sizeof(struct virtio_net_hdr) + 65536 + ETH_HLEN + 64)
#define SOCKET_BYTES (64 << 20)

typedef struct settings {
    int64_t delay_ns, jitter_ns;
    double loss, reorder, bytes_per_ns;
    size_t queue_bytes;
} settings;

typedef struct frame {
    struct frame *next;
    int64_t due_ns;
    size_t bytes;
    unsigned char data[];
} frame;

// One way.
typedef struct lane {
    int from, to;
    frame *first, *last;
    size_t waiting_bytes;
    int64_t free_ns;  // the line is done with what was given to it before
    int64_t last_due_ns;
    bool is_full;  // the way out
    uint64_t num_frames, num_lost, num_dropped, num_reordered;
} lane;

static uint64_t random_state;

static double draw(void) {  // xorshift64*
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (double)(random_state * UINT64_C(2685821657736338717) >> 11) / 9007199254740992.0;
}

static void die(const char *what) {
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int open_interface(const char *name) {
    int one = 1, bytes = SOCKET_BYTES;
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) die("packet socket");
    if (setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one)) die("PACKET_VNET_HDR");
    if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one)) die("PACKET_IGNORE_OUTGOING");
    // Without the right to force it the system's most has to do.
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes)) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes)) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    struct sockaddr_ll place = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex(name)};
    if (!place.sll_ifindex) die(name);
    struct packet_mreq all = {.mr_ifindex = place.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
    if (setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all)) die("promiscuous mode");
    if (bind(fd, (struct sockaddr *)&place, sizeof place)) die("bind");
    return fd;
}

static void append(lane *way, frame *one) {
    if (way->last) way->last->next = one;
    else way->first = one;
    way->last = one;
    way->waiting_bytes += one->bytes;
}

static void prepend(lane *way, frame *one) {
    one->next = way->first;
    way->first = one;
    if (!way->last) way->last = one;
    way->waiting_bytes += one->bytes;
}

static void take(lane *way, const settings *set, const unsigned char *data, size_t bytes, int64_t now) {
    way->num_frames++;
    if (set->loss > 0 && draw() < set->loss) {
        way->num_lost++;
        return;
    }
    if (set->bytes_per_ns > 0) {
        if (way->free_ns < now) way->free_ns = now;
        if ((double)(way->free_ns - now) * set->bytes_per_ns > (double)set->queue_bytes) {
            way->num_dropped++;
            return;
        }
        way->free_ns += (int64_t)((double)bytes / set->bytes_per_ns);
    }
    frame *one = malloc(sizeof *one + bytes);
    if (!one) die("memory");
    *one = (frame){.bytes = bytes};
    memcpy(one->data, data, bytes);
    if (set->reorder > 0 && draw() < set->reorder) {
        way->num_reordered++;
        one->due_ns = now;
        prepend(way, one);
        return;
    }
    one->due_ns = (set->bytes_per_ns > 0 ? way->free_ns : now) + set->delay_ns + (int64_t)(draw() * (double)set->jitter_ns);
    if (one->due_ns < way->last_due_ns) one->due_ns = way->last_due_ns;
    way->last_due_ns = one->due_ns;
    append(way, one);
}

static void receive(lane *way, const settings *set) {
    static unsigned char data[MAX_FRAME_BYTES];
    int64_t now = now_ns();
    for (int i = 0; i < 256; i++) {
        ssize_t bytes = recv(way->from, data, sizeof data, MSG_DONTWAIT);
        if (bytes < 0) return;  // nothing is there; or the interface is down for a moment
        take(way, set, data, (size_t)bytes, now);
    }
}

static void send_due(lane *way) {
    int64_t now = now_ns();
    way->is_full = false;
    while (way->first && way->first->due_ns <= now) {
        frame *one = way->first;
        if (send(way->to, one->data, one->bytes, MSG_DONTWAIT) < 0) {
            if (errno == EAGAIN || errno == ENOBUFS) {
                way->is_full = true;
                return;
            }
            way->num_dropped++;  // too long for the way out, or that is down
        }
        way->first = one->next;
        if (!way->first) way->last = NULL;
        way->waiting_bytes -= one->bytes;
        free(one);
    }
}

static double number(const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (*end || value < 0) {
        fprintf(stderr, "relay: %s is no number\n", text);
        exit(2);
    }
    return value;
}

static settings read_settings(int argc, char **argv) {
    settings set = {.queue_bytes = 1 << 20};
    random_state = 1;
    if (argc < 3 || argc % 2 == 0) {
        fprintf(stderr, "relay: IF_A IF_B [--delay-us N] [--jitter-us N] [--loss P] [--reorder P] [--rate B/s] [--queue B] [--seed N]\n");
        exit(2);
    }
    for (int i = 3; i < argc; i += 2) {
        double value = number(argv[i + 1]);
        if (!strcmp(argv[i], "--delay-us")) set.delay_ns = (int64_t)(value * 1000);
        else if (!strcmp(argv[i], "--jitter-us")) set.jitter_ns = (int64_t)(value * 1000);
        else if (!strcmp(argv[i], "--loss")) set.loss = value;
        else if (!strcmp(argv[i], "--reorder")) set.reorder = value;
        else if (!strcmp(argv[i], "--rate")) set.bytes_per_ns = value / 1e9;
        else if (!strcmp(argv[i], "--queue")) set.queue_bytes = (size_t)value;
        else if (!strcmp(argv[i], "--seed")) random_state = (uint64_t)value * UINT64_C(0x9E3779B97F4A7C15) + 1;
        else {
            fprintf(stderr, "relay: no option %s\n", argv[i]);
            exit(2);
        }
    }
    return set;
}

// Until something is due, comes in, or can go out again.
static void wait_for_frames(const lane *ways, const int *fds) {
    struct pollfd polled[2] = {{.fd = fds[0], .events = POLLIN}, {.fd = fds[1], .events = POLLIN}};
    struct timespec pause, *until = NULL;
    int64_t now = now_ns(), least = INT64_MAX;
    for (int w = 0; w < 2; w++) {
        if (ways[w].is_full) polled[1 - w].events |= POLLOUT;
        else if (ways[w].first && ways[w].first->due_ns < least) least = ways[w].first->due_ns;
    }
    if (least != INT64_MAX) {
        int64_t left = least > now ? least - now : 0;
        pause = (struct timespec){left / 1000000000, left % 1000000000};
        until = &pause;
    }
    if (ppoll(polled, 2, until, NULL) < 0 && errno != EINTR) die("poll");
}

int main(int argc, char **argv) {
    settings set = read_settings(argc, argv);
    int fds[2] = {open_interface(argv[1]), open_interface(argv[2])};
    lane ways[2] = {{.from = fds[0], .to = fds[1]}, {.from = fds[1], .to = fds[0]}};
    printf("relay: ready\n");
    fflush(stdout);
    for (;;) {
        wait_for_frames(ways, fds);
        for (int w = 0; w < 2; w++) {
            receive(&ways[w], &set);
            send_due(&ways[w]);
        }
    }
}
