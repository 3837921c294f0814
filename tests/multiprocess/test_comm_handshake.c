// Ranks that cannot share memory find out together, with the reason in words, and at once.
// Row N13 of docs/faults.md.
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/version.h"
#include "gradsync/comm/shm/layout.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"

#define WORLD 3
#define DOOR_PREFIX "gradsync-"
#define DOOR_LEN 40  // of the name in a host card; the nonce follows
#define MAX_EXCHANGE 65536
// Stages of the creation: shm's first and second.
#define INTRODUCTION "world/2"
#define HOST "world/3"

// What rank 1 does wrong, and at which exchange it does it.
typedef struct intruder {
    const gs_rank_env *env;
    const char *deed;
} intruder;

static bool does(const intruder *self, const char *deed) {
    return self->env->rank == 1 && strcmp(self->deed, deed) == 0;
}

static int knock(const char *door, const void *bytes, size_t num_bytes, int fd) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strnlen(door, DOOR_LEN);
    memcpy(address.sun_path + 1, door, len);
    socklen_t address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(connection, (struct sockaddr *)&address, address_bytes))
        fprintf(stderr, "no door\n");
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(130 * sizeof(int))];
    } control = {0};
    struct iovec piece = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = num_bytes};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    if (fd >= 0) {  // more descriptors than anybody asked for
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_LEN(130 * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = message.msg_controllen};
        int fds[130];
        for (int i = 0; i < 130; i++) fds[i] = fd;
        memcpy(CMSG_DATA(header), fds, sizeof fds);
    }
    if (num_bytes && sendmsg(connection, &message, MSG_NOSIGNAL) < 0) fprintf(stderr, "not sent\n");
    return connection;
}

// Visitors before the rank itself: silent, too short, too long, garbage, with descriptors.
static void send_strangers(const char *door) {
    unsigned char garbage[4096];
    for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (unsigned char)(i * 7 + 1);
    close(knock(door, garbage, 3, -1));
    close(knock(door, garbage, 32, -1));
    close(knock(door, garbage, sizeof garbage, -1));
    close(knock(door, garbage, 32, STDERR_FILENO));
    knock(door, garbage, 0, -1);  // stays, and says nothing
}

static void forge_layout(const intruder *self, unsigned char *introduction) {
    gs_shm_layout layout;
    int fact = -1;
    memcpy(&layout, introduction, sizeof layout);
    if (self->env->rank == 1 && sscanf(self->deed, "layout fact %d", &fact) == 1)
        layout.facts[fact] += 8;
    if (does(self, "layout page")) layout.page_bytes = 65536;
    if (does(self, "layout libc")) memset(layout.libc, 'x', sizeof layout.libc);  // and no end
    if (self->env->rank > 0 && strcmp(self->deed, "layout of two") == 0) layout.facts[2] = 4;
    memcpy(introduction, &layout, sizeof layout);
}

// Of the same version, but structs of another one: as of a tree that was built in between.
static void forge_abi(unsigned char *introduction, size_t bytes) {
    char *abi = memmem(introduction, bytes, " ABI ", 5);
    if (abi) abi[5] = '0';
}

static gs_status exchange_as_intruder(void *ctx, const char *tag, const int *ranks, int num_ranks,
                                      const void *mine, size_t bytes, void *all,
                                      gs_deadline deadline) {
    const intruder *self = ctx;
    unsigned char changed[MAX_EXCHANGE];
    bool at_introduction = strcmp(tag, INTRODUCTION) == 0, at_host = strcmp(tag, HOST) == 0;
    unsigned char *said = changed + sizeof(gs_status);
    if (bytes > sizeof changed) return gs_error(GS_INVALID_ARGUMENT, "%zu bytes", bytes);
    memcpy(changed, mine, bytes);
    if (does(self, tag)) raise(SIGKILL);
    if (does(self, "other library") && strcmp(tag, "world/1") == 0) forge_abi(changed, bytes);
    if ((does(self, "other host") || does(self, "apart")) && at_introduction) said[sizeof(gs_shm_layout)] ^= 1;
    if (at_introduction) forge_layout(self, said);
    if (strncmp(self->deed, "layout", 6) == 0 && at_host)
        return gs_error(GS_INTERNAL, "goes on with a layout that differs");
    GS_TRY(gs_rank_exchange(self->env->exchange, tag, ranks, num_ranks, changed, bytes, all,
                            deadline));
    if (!at_host || strcmp(self->deed, "apart") == 0) return gs_ok();
    char *door = memmem(all, bytes, DOOR_PREFIX, strlen(DOOR_PREFIX));
    if (!door) return gs_error(GS_INTERNAL, "rank 0 has no door");
    if (does(self, "strangers")) send_strangers(door);
    if (does(self, "wrong nonce")) door[DOOR_LEN] ^= 1;
    if (does(self, "wrong door")) door[strlen(DOOR_PREFIX)] ^= 1;
    return gs_ok();
}

static gs_status change_surroundings(const intruder *self) {
    if (does(self, "other network") && unshare(CLONE_NEWNET))
        return gs_error_from_errno(errno, "not permitted here");
    if (does(self, "other user") && seteuid(65534))
        return gs_error_from_errno(errno, "not permitted here");
    return gs_ok();
}

static gs_status intrude(const gs_rank_env *env) {
    intruder self = {.env = env, .deed = env->arg};
    GS_TRY(change_surroundings(&self));
    comm_rank rank;
    // "apart": left to themselves, with one that shares no memory with the others.
    bool is_auto = strcmp(self.deed, "apart") == 0;
    gs_comm_options options = {.backend = is_auto ? "auto" : "shm",
                               .exchange = exchange_as_intruder,
                               .exchange_ctx = &self};
    gs_status status = comm_rank_open(&rank, env, env->rank == 2 ? 8192 : 4096, &options);
    gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1};
    if (!status.code) status = gs_comm_run(rank.comm, &barrier, gs_deadline_in_seconds(60));
    if (!status.code && is_auto &&
        !strstr(gs_comm_backend_reason(rank.comm), "; not shm: rank 1 runs on another host"))
        status = gs_error(GS_INTERNAL, "it is %s: %s", gs_comm_backend_name(rank.comm),
                          gs_comm_backend_reason(rank.comm));
    comm_rank_close(&rank);
    // A sanitizer looks at its own process when it ends: as whom it began.
    if (does(&self, "other user") && seteuid(getuid()))
        return gs_error_from_errno(errno, "cannot return");
    return status;
}

static const gs_rank_body bodies[] = {{"intrude", intrude}, {0}};

static void run_deed(gs_status *statuses, const char *deed) {
    gs_ranks *ranks;
    assert_int_equal(gs_ranks_start(&ranks, "intrude", WORLD, deed, NULL).code, GS_OK);
    // Well below the deadline of the handshake: a rank that only its deadline frees is a failure.
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)).code, GS_OK);
    gs_ranks_destroy(ranks);
}

static void expect_end(const char *deed, gs_code code, const char *text) {
    gs_status statuses[WORLD];
    run_deed(statuses, deed);
    if (strstr(statuses[1].message, "not permitted here")) {
        print_message("%s: %s\n", deed, statuses[1].message);
        skip();
    }
    for (int rank = 0; rank < WORLD; rank++) {
        if (statuses[rank].code != code || !strstr(statuses[rank].message, text))
            print_error("%s, rank %d: %s\n", deed, rank, statuses[rank].message);
        assert_int_equal(statuses[rank].code, code);
        assert_non_null(strstr(statuses[rank].message, text));
    }
}

static void expect_refusal(const char *deed, const char *text) {
    expect_end(deed, GS_UNAVAILABLE, text);
}

static void another_host_is_refused_by_all(void **state) {
    (void)state;
    expect_refusal("other host", "rank 1 runs on another host than rank 0");
}

static void another_library_is_refused_by_all(void **state) {
    (void)state;
    char words[80];
    snprintf(words, sizeof words, "rank 1 has gradsync %s ABI 0, rank 0 %s ABI %d", gs_version(),
             gs_version(), gs_abi_version());
    expect_end("other library", GS_FAILED_PRECONDITION, words);
}

static void a_layout_that_differs_is_named_by_all_before_anything_is_shared(void **state) {
    (void)state;
    static const struct {
        const char *deed, *text;
    } cases[] = {{"layout fact 0", "there byte order is 16909068, not 16909060"},
                 {"layout fact 1", "there GS_SHM_PROTOCOL is 10, not 2"},
                 {"layout fact 3", "there sizeof(pthread_mutex_t) is "},
                 {"layout fact 12", "there sizeof(gs_shm_control) is "},
                 {"layout fact 31", "there offsetof(gs_shm_common, lives) is "},
                 {"layout page", "there a page is 65536 bytes, not "},
                 {"layout libc", "there the C library is xxxxxxxx"},
                 {"layout of two", "there sizeof(void *) is 4, not 8; nor can rank 2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_end(cases[i].deed, GS_FAILED_PRECONDITION,
                   "rank 1 cannot share memory with rank 0: there ");
        expect_end(cases[i].deed, GS_FAILED_PRECONDITION, cases[i].text);
    }
}

static void another_network_namespace_is_refused_by_all(void **state) {
    (void)state;
    expect_refusal("other network", "rank 1: runs in another container than rank 0");
}

static void an_unreachable_socket_is_refused_by_all(void **state) {
    (void)state;
    expect_refusal("wrong door", "rank 1: runs in another container than rank 0");
}

static void another_user_is_refused_by_all(void **state) {
    (void)state;
    expect_refusal("other user", "rank 0: had to turn rank 1 away: it runs as another user");
}

static void a_forged_hello_is_refused_by_all(void **state) {
    (void)state;
    expect_refusal("wrong nonce", "rank 0: had to turn rank 1 away: it wants another communicator");
}

static void ranks_that_share_no_memory_take_the_network_and_say_why(void **state) {
    (void)state;
    gs_status statuses[WORLD];
    run_deed(statuses, "apart");
    for (int rank = 0; rank < WORLD; rank++) {
        if (statuses[rank].code) print_error("rank %d: %s\n", rank, statuses[rank].message);
        assert_int_equal(statuses[rank].code, GS_OK);
    }
}

static void strangers_at_the_door_disturb_nobody(void **state) {
    (void)state;
    gs_status statuses[WORLD];
    run_deed(statuses, "strangers");
    for (int rank = 0; rank < WORLD; rank++) {
        if (statuses[rank].code) print_error("rank %d: %s\n", rank, statuses[rank].message);
        assert_int_equal(statuses[rank].code, GS_OK);
    }
}

static void a_rank_that_dies_at_any_stage_ends_the_handshake_for_all(void **state) {
    (void)state;
    static const char *const stages[] = {"world/1", INTRODUCTION, HOST,
                                         "world/4", "world/5",    "world/6"};
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        gs_status statuses[WORLD];
        run_deed(statuses, stages[i]);
        assert_string_equal(statuses[1].message, "killed by signal 9");
        for (int rank = 0; rank < WORLD; rank += 2) {
            if (!strstr(statuses[rank].message, "rank 1 has ended"))
                fail_msg("%s: rank %d says %s", stages[i], rank, statuses[rank].message);
        }
    }
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_library_is_refused_by_all),
        cmocka_unit_test(another_host_is_refused_by_all),
        cmocka_unit_test(a_layout_that_differs_is_named_by_all_before_anything_is_shared),
        cmocka_unit_test(another_network_namespace_is_refused_by_all),
        cmocka_unit_test(an_unreachable_socket_is_refused_by_all),
        cmocka_unit_test(another_user_is_refused_by_all),
        cmocka_unit_test(a_forged_hello_is_refused_by_all),
        cmocka_unit_test(ranks_that_share_no_memory_take_the_network_and_say_why),
        cmocka_unit_test(strangers_at_the_door_disturb_nobody),
        cmocka_unit_test(a_rank_that_dies_at_any_stage_ends_the_handshake_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
