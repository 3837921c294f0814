// What could not be sent yet keeps its collective from being done; what can never be sent ends the
// connection, with words for why.
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "gradsync/comm/net/line.h"
#include "gradsync/comm/net/work.h"
#include "tests/support/asserts.h"

static void make_pair(int type, int *sockets) {
    assert_int_equal(socketpair(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
}

static gs_status note_closed(void *ctx, int peer, int error) {
    (void)peer;
    *(int *)ctx = error;
    return gs_ok();
}

// A packet that is longer than the socket can ever take stands for all errors of sending that leave
// the connection as it was.
static void a_line_that_cannot_send_hangs_up_and_says_why(void **state) {
    (void)state;
    int sockets[2], told = -1;
    uint32_t pending = 0;
    bool moved = false;
    static unsigned char large[4 << 20], byte;
    gs_net_receiver receiver = {.ctx = &told, .closed = note_closed};
    gs_net_header header = {.kind = GS_NET_INPUT, .bytes = sizeof large};
    gs_net_line *line = malloc(sizeof *line);
    assert_non_null(line);
    make_pair(SOCK_SEQPACKET, sockets);
    gs_net_line_open(line, 1, sockets[0]);
    assert_ok(gs_net_line_send(line, &header, large, &pending));
    assert_int_equal(pending, 0);
    assert_int_equal(recv(sockets[1], &byte, 1, 0), 0);  // the peer knows at once
    assert_ok(gs_net_line_pull(line, &receiver, &moved));
    assert_int_equal(told, -1);  // it has not answered yet
    close(sockets[1]);
    assert_ok(gs_net_line_pull(line, &receiver, &moved));
    assert_int_equal(told, EMSGSIZE);
    gs_net_line_close(line);
    free(line);
}

static void fill_socket(int fd) {
    static const char junk[4096];
    while (send(fd, junk, sizeof junk, MSG_NOSIGNAL) > 0) {
    }
    while (send(fd, junk, 1, MSG_NOSIGNAL) > 0) {
    }
    assert_int_equal(errno, EAGAIN);
}

static void drain_socket(int fd) {
    char bytes[4096];
    while (recv(fd, bytes, sizeof bytes, 0) > 0) {
    }
}

static void a_small_sum_is_not_done_while_its_claim_waits(void **state) {
    (void)state;
    int sockets[2], of_ranks[2];
    bool moved;
    float numbers[2] = {1, 2};
    gs_net_party party = {.world_size = 2, .generation = 1};
    gs_net_receiver receiver = {0};
    gs_comm_failure cause;
    make_pair(SOCK_STREAM, sockets);
    of_ranks[0] = -1, of_ranks[1] = sockets[0];
    gs_net_mesh mesh = {.world_size = 2, .sockets = of_ranks};
    assert_ok(gs_device_open(&party.device, "cpu", &(gs_device_options){.num_threads = 1}));
    assert_ok(gs_net_transport_create(&party.transport, &mesh));
    gs_net_transport_receive(party.transport, &receiver);
    fill_socket(sockets[0]);

    gs_collective sum = {
        .kind = GS_ALLREDUCE, .send = numbers, .recv = numbers, .count = 2, .dtype = GS_FP32};
    gs_net_work *work = gs_net_work_create(&party, 0, 1);
    assert_non_null(work);
    assert_ok(gs_net_work_post(work, &sum, NULL));
    gs_collective_claim claim = gs_collective_claim_of(&sum, party.generation);
    gs_net_header header = {.kind = GS_NET_CLAIM, .bytes = sizeof claim + sizeof numbers};
    void *body;
    assert_ok(gs_net_work_place(work, 1, &header, &body));
    memcpy(body, &claim, sizeof claim);
    memcpy((char *)body + sizeof claim, (float[]){10, 20}, sizeof numbers);
    assert_ok(gs_net_work_came(work, 1, &header));
    assert_ok(gs_net_work_start(work, &cause));
    assert_false(gs_net_work_is_complete(work));
    assert_true(gs_net_work_debts(work).own);
    assert_true(numbers[0] == 1 && numbers[1] == 2);  // until it is its turn

    drain_socket(sockets[1]);
    assert_ok(gs_net_transport_wait(party.transport, 1000, &moved));
    assert_true(gs_net_work_is_complete(work));
    assert_false(gs_net_work_debts(work).own);
    gs_net_work_finish(work);
    assert_true(numbers[0] == 11 && numbers[1] == 22);
    gs_net_transport_destroy(party.transport);
    gs_net_work_destroy(work);
    gs_net_store_release(&party.store);
    gs_device_close(party.device);
    close(sockets[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_that_cannot_send_hangs_up_and_says_why),
        cmocka_unit_test(a_small_sum_is_not_done_while_its_claim_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
