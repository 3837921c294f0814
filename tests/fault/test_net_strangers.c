// Whoever can reach the data port of a rank while ranks look for each other: silent, with garbage,
// with a hello that is right but for its proof, with a wrong proof. Ranks find each other all the
// same, and nobody else is among them.
// Row M4 of docs/faults.md.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/digest.h"
#include "gradsync/comm/net/greeting.h"
#include "gradsync/comm/stages.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"

#define WORLD 3
#define FIRST_STAGE "world/2"  // at which ranks say where they listen
#define ADDRESS "127.0.0.1"
#define ADDRESS_LEN 48  // of the field before the port
#define CROWD 60        // at each port: more than a rank has places for
#define QUEUE 16        // of those that the kernel lets in before they are accepted
#define AT_ONCE_MS 100
#define ANSWER_MS 60000
#define COUNT 1000

typedef struct visitor {
    const gs_rank_env *env;
    int generation;
} visitor;

static bool does(const visitor *self, const char *deed) {
    return strcmp(self->env->arg, deed) == 0;
}

// In the background: the queue of callers may be full.
static int knock(uint32_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, ADDRESS, &address.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS)
        fprintf(stderr, "no door: %s\n", strerror(errno));
    return fd;
}

static bool becomes(int fd, short event, int timeout_ms) {
    struct pollfd polled = {.fd = fd, .events = event};
    return poll(&polled, 1, timeout_ms) == 1 && (polled.revents & event);
}

static void say(int fd, const void *bytes, size_t num_bytes, int timeout_ms) {
    if (becomes(fd, POLLOUT, timeout_ms)) send(fd, bytes, num_bytes, MSG_NOSIGNAL);
}

static gs_net_hello hello_to(const visitor *self, int from, int to) {
    return (gs_net_hello){.version = GS_NET_VERSION,
                          .group = gs_hash64("", 0, 0),
                          .generation = (uint32_t)self->generation,
                          .from = from,
                          .to = to,
                          .nonce = {{1, 2, 3}}};
}

static void send_garbage(uint32_t port) {
    unsigned char garbage[4096];
    for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (unsigned char)(i * 7 + 1);
    static const size_t lengths[] = {1, 47, 48, 49, 4096};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int fd = knock(port);
        say(fd, garbage, lengths[i], AT_ONCE_MS);
        close(fd);
    }
}

// A rank of the generation before, at the right port. It is hung up on without an answer.
static void send_stale_hello(const visitor *self, uint32_t port, int to) {
    gs_net_hello hello = hello_to(self, 0, to);
    gs_net_answer answer;
    hello.generation--;
    int fd = knock(port);
    say(fd, &hello, sizeof hello, ANSWER_MS);
    if (!becomes(fd, POLLIN, ANSWER_MS) || recv(fd, &answer, sizeof answer, 0) > 0) _exit(1);
}

// In the name of rank 0, which waits meanwhile. What it is answered, it gives back as its own
// proof.
static void send_wrong_proof(const visitor *self, uint32_t port, int to) {
    gs_net_hello hello = hello_to(self, 0, to);
    gs_net_answer answer = {0};
    int fd = knock(port);
    say(fd, &hello, sizeof hello, ANSWER_MS);
    if (!becomes(fd, POLLIN, ANSWER_MS) || recv(fd, &answer, sizeof answer, 0) != sizeof answer)
        _exit(1);
    say(fd, &answer.proof, sizeof answer.proof, AT_ONCE_MS);
    if (!becomes(fd, POLLIN, ANSWER_MS) || recv(fd, &answer, sizeof answer, 0) > 0)
        _exit(1);  // hung up on
}

// All of them stay.
static void crowd(const visitor *self, uint32_t port, int to) {
    int fds[CROWD];
    for (int i = 0; i < CROWD; i++) fds[i] = knock(port);
    for (int i = 0; i < CROWD && does(self, "unproven"); i++) {
        gs_net_hello hello = hello_to(self, to ? i % to : 0, to);
        say(fds[i], &hello, sizeof hello, i < WORLD + QUEUE + 3 ? AT_ONCE_MS : 0);
    }
}

static void visit(const visitor *self, const uint32_t ports[WORLD], int arrived) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int to = 0; to < WORLD; to++) {
        if (does(self, "garbage"))
            send_garbage(ports[to]);
        else if (!does(self, "wrong proof"))
            crowd(self, ports[to], to);
    }
    if (does(self, "wrong proof")) {
        send_stale_hello(self, ports[2], 2);
        send_wrong_proof(self, ports[2], 2);
    }
    if (write(arrived, "", 1) != 1) _exit(1);
    pause();
    _exit(0);
}

static gs_status read_ports(uint32_t ports[WORLD], const void *all, size_t bytes) {
    for (int rank = 0; rank < WORLD; rank++) {
        const char *words = (const char *)all + (size_t)rank * bytes;
        const char *address = memmem(words, bytes, ADDRESS, sizeof ADDRESS);
        if (!address) return gs_error(GS_INTERNAL, "rank %d does not say where it listens", rank);
        memcpy(&ports[rank], address + ADDRESS_LEN, sizeof ports[rank]);
    }
    return gs_ok();
}

static gs_status send_visitors(const visitor *self, const void *all, size_t bytes) {
    uint32_t ports[WORLD];
    int arrived[2];
    char byte;
    GS_TRY(read_ports(ports, all, bytes));
    if (pipe(arrived)) return gs_error_from_errno(errno, "pipe");
    if (fork() == 0) visit(self, ports, arrived[1]);
    close(arrived[1]);
    ssize_t got = read(arrived[0], &byte, 1);
    close(arrived[0]);
    return got == 1 ? gs_ok() : gs_error(GS_INTERNAL, "a visitor was not received as it should be");
}

// Rank 1 sends them to everybody as soon as it knows where that is, and rank 0 calls nobody before
// they are there.
static gs_status exchange_and_visit(void *ctx, const char *tag, const int *ranks, int num_ranks,
                                    const void *mine, size_t bytes, void *all,
                                    gs_deadline deadline) {
    const visitor *self = ctx;
    static const int first_two[] = {0, 1};
    char there = 1, both[2];
    GS_TRY(
        gs_rank_exchange(self->env->exchange, tag, ranks, num_ranks, mine, bytes, all, deadline));
    if (strcmp(tag, FIRST_STAGE) != 0 || self->env->rank > 1) return gs_ok();
    if (self->env->rank == 1) GS_TRY(send_visitors(self, all, bytes));
    return gs_rank_exchange(self->env->exchange, "visited", first_two, 2, &there, 1, both,
                            deadline);
}

static gs_status add_among_strangers(const gs_rank_env *env) {
    visitor self = {.env = env, .generation = 1};
    comm_rank rank;
    gs_comm_options options = {.backend = "net",
                               .generation = (uint32_t)self.generation,
                               .exchange = exchange_and_visit,
                               .exchange_ctx = &self};
    float data[COUNT];
    gs_status status = comm_rank_open(&rank, env, 0, &options);
    if (!status.code) {
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = data,
                             .recv = data,
                             .count = COUNT,
                             .dtype = GS_FP32,
                             .bucket = -1};
        fill_pattern(data, GS_FP32, COUNT, 5, rank.rank, 0);
        status = gs_comm_run(rank.comm, &sum, gs_deadline_in_seconds(60));
        if (!status.code) status = check_pattern(data, GS_FP32, COUNT, 5, -1, WORLD, 0);
    }
    comm_rank_close(&rank);
    return status;
}

static const gs_rank_body bodies[] = {{"add", add_among_strangers}, {0}};

static void ranks_find_each_other_among(const char *strangers) {
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    assert_ok(gs_ranks_start(&ranks, "add", WORLD, strangers, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(180)));
    gs_ranks_destroy(ranks);
    for (int rank = 0; rank < WORLD; rank++) {
        if (statuses[rank].code)
            print_error("%s, rank %d: %s\n", strangers, rank, statuses[rank].message);
        assert_int_equal(statuses[rank].code, GS_OK);
    }
}

static void garbage_disturbs_nobody(void **state) {
    (void)state;
    ranks_find_each_other_among("garbage");
}

static void silent_callers_take_no_place_for_good(void **state) {
    (void)state;
    ranks_find_each_other_among("silent");
}

static void whoever_proves_nothing_takes_no_place_for_good(void **state) {
    (void)state;
    ranks_find_each_other_among("unproven");
}

static void a_wrong_proof_is_no_rank(void **state) {
    (void)state;
    ranks_find_each_other_among("wrong proof");
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(garbage_disturbs_nobody),
        cmocka_unit_test(silent_callers_take_no_place_for_good),
        cmocka_unit_test(whoever_proves_nothing_takes_no_place_for_good),
        cmocka_unit_test(a_wrong_proof_is_no_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
