// A rank that belongs to the job, and lies where it listens: it gives the endpoint of another rank, of somebody who accepts and says
// nothing, of somebody who answers in any words, of nobody, or no address at all. The generation ends for all with one word,
// which names the pair that did not meet and blames no third; nobody has a sum of it. The next one, without
// the lie, adds as ever.
// Row M9 of docs/faults.md.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/thread.h"
#include "gradsync/comm/stages.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"

#define WORLD 4
#define FIRST_STAGE "world/2"  // at which ranks say where they listen
#define ADDRESS "127.0.0.1"
#define ADDRESS_LEN 48  // of the field before the port
#define COUNT 1000
#define MOST_CALLERS 256

// Who accepts.
typedef struct stranger {
    int listener;
    uint32_t port;
    bool answers;
    gs_thread *thread;
} stranger;

typedef struct liar {
    const gs_rank_env *env;
    int who, as;      // which rank lies; whose endpoint it gives, where that is a rank's
    char lie[16];
    stranger stranger;
} liar;

static bool lies(const liar *self, const char *lie) { return strcmp(self->lie, lie) == 0; }

// Keeps them all, so that each of them waits for it.
static void receive(void *ctx, const atomic_bool *stopping) {
    stranger *self = ctx;
    int callers[MOST_CALLERS], num_callers = 0;
    unsigned char words[4096];
    memset(words, 0x5a, sizeof words);
    while (!atomic_load(stopping)) {
        struct pollfd polled = {.fd = self->listener, .events = POLLIN};
        if (poll(&polled, 1, 20) != 1 || num_callers == MOST_CALLERS) continue;
        int caller = accept4(self->listener, NULL, NULL, SOCK_CLOEXEC);
        if (caller < 0) continue;
        callers[num_callers++] = caller;
        if (self->answers && send(caller, words, sizeof words, MSG_NOSIGNAL) < 0) continue;
    }
    while (num_callers) close(callers[--num_callers]);
}

static gs_status open_stranger(stranger *self, bool answers, bool accepts) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    inet_pton(AF_INET, ADDRESS, &address.sin_addr);
    self->answers = answers;
    self->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (self->listener < 0 || bind(self->listener, (struct sockaddr *)&address, bytes) || (accepts && listen(self->listener, MOST_CALLERS)) ||
        getsockname(self->listener, (struct sockaddr *)&address, &bytes))
        return gs_error_from_errno(errno, "a stranger");
    self->port = ntohs(address.sin_port);
    return accepts ? gs_thread_start(&self->thread, "stranger", receive, self) : gs_ok();
}

static void close_stranger(stranger *self) {
    gs_thread_stop(self->thread);
    if (self->listener >= 0) close(self->listener);
}

static char *address_in(void *words, size_t bytes) { return memmem(words, bytes, ADDRESS, sizeof ADDRESS); }

// Where the others listen it learns before it says where it does.
static gs_status give_another(const liar *self, char *mine, const int *ranks, int num_ranks, size_t bytes, gs_deadline deadline) {
    char *all = malloc(WORLD * bytes);
    if (!all) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = gs_rank_exchange(self->env->exchange, "truth", ranks, num_ranks, mine, bytes, all, deadline);
    char *own = address_in(mine, bytes), *theirs = status.code ? NULL : address_in(all + (size_t)self->as * bytes, bytes);
    if (!status.code && (!own || !theirs)) status = gs_error(GS_INTERNAL, "nobody says where it listens");
    if (!status.code && self->env->rank == self->who) memcpy(own, theirs, ADDRESS_LEN + sizeof(uint32_t));
    free(all);
    return status;
}

static gs_status lie(const liar *self, char *mine, size_t bytes) {
    char *own = address_in(mine, bytes);
    if (!own) return gs_error(GS_INTERNAL, "it does not say where it listens");
    if (lies(self, "no address")) {
        memset(own, 0, ADDRESS_LEN);
        snprintf(own, ADDRESS_LEN, "127.0.0.one");
    } else if (lies(self, "no port")) {
        uint32_t port = 70000;
        memcpy(own + ADDRESS_LEN, &port, sizeof port);
    } else if (lies(self, "other family")) {
        memset(own, 0, ADDRESS_LEN);
        snprintf(own, ADDRESS_LEN, "::1");
    } else {
        memcpy(own + ADDRESS_LEN, &self->stranger.port, sizeof self->stranger.port);
    }
    return gs_ok();
}

static gs_status exchange_with_lie(void *ctx, const char *tag, const int *ranks, int num_ranks, const void *mine, size_t bytes,
                                   void *all, gs_deadline deadline) {
    const liar *self = ctx;
    if (strcmp(tag, FIRST_STAGE) != 0) return gs_rank_exchange(self->env->exchange, tag, ranks, num_ranks, mine, bytes, all, deadline);
    char *said = malloc(bytes);
    if (!said) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    memcpy(said, mine, bytes);
    gs_status status = gs_ok();
    if (lies(self, "another")) status = give_another(self, said, ranks, num_ranks, bytes, deadline);
    else if (self->env->rank == self->who) status = lie(self, said, bytes);
    if (!status.code) status = gs_rank_exchange(self->env->exchange, tag, ranks, num_ranks, said, bytes, all, deadline);
    free(said);
    return status;
}

static gs_status add(comm_rank *rank) {
    float data[COUNT];
    gs_collective sum = {.kind = GS_ALLREDUCE, .send = data, .recv = data, .count = COUNT, .dtype = GS_FP32, .bucket = -1};
    fill_pattern(data, GS_FP32, COUNT, 5, rank->rank, 0);
    GS_TRY(gs_comm_run(rank->comm, &sum, gs_deadline_in_seconds(60)));
    return check_pattern(data, GS_FP32, COUNT, 5, -1, WORLD, 0);
}

static gs_status add_beside_a_lie(const gs_rank_env *env) {
    liar self = {.env = env, .stranger = {.listener = -1}};
    gs_comm_failure unreached = {.reporter = -1};
    comm_rank rank;
    if (sscanf(env->arg, "%d %d %15[a-z ]", &self.who, &self.as, self.lie) != 3) return gs_error(GS_INVALID_ARGUMENT, "which lie?");
    if (env->rank == self.who) GS_TRY(open_stranger(&self.stranger, lies(&self, "words"), !lies(&self, "nobody")));
    gs_comm_options options = {.backend = "net", .generation = 1, .exchange = exchange_with_lie, .exchange_ctx = &self, .unreached = &unreached};
    gs_status met = comm_rank_open(&rank, env, 0, &options);
    if (!met.code) met = add(&rank);
    comm_rank_close(&rank);
    close_stranger(&self.stranger);
    char note[400];
    int accused = 0;
    while (accused < WORLD && !gs_comm_failure_names(&unreached, accused)) accused++;
    snprintf(note, sizeof note, "%d %d %d %s", met.code, unreached.reporter, accused, met.message);
    gs_rank_note(env, note);
    gs_status status = comm_rank_open(&rank, env, 0, &(gs_comm_options){.backend = "net", .generation = 2});
    if (!status.code) status = add(&rank);
    comm_rank_close(&rank);
    return status;
}

static const gs_rank_body bodies[] = {{"add", add_beside_a_lie}, {0}};

// Whose lie, and which word of why it is not reached all others have. NULL: nobody asks it.
typedef struct trial {
    int who, as;
    const char *lie, *why;
    gs_ranks *ranks;
} trial;

static trial trials[] = {
    {1, 2, "another", "it hung up", NULL},
    {2, 1, "another", "it hung up", NULL},
    {3, 2, "another", "it hung up", NULL},
    {2, -1, "silence", "no answer in time", NULL},
    {2, -1, "words", "does not know the secret of this generation", NULL},
    {1, -1, "nobody", "refused", NULL},
    {2, -1, "no address", "no address and port", NULL},
    {2, -1, "no port", "no address and port", NULL},
    {2, -1, "other family", "IPv4", NULL},
    {0, 2, "another", NULL, NULL},
};
enum { NUM_TRIALS = sizeof trials / sizeof *trials };

// All at once: most of them wait for as long as ranks look for each other.
static int begin_all(void **state) {
    (void)state;
    for (int i = 0; i < NUM_TRIALS; i++) {
        char arg[40];
        snprintf(arg, sizeof arg, "%d %d %s", trials[i].who, trials[i].as, trials[i].lie);
        if (gs_ranks_start(&trials[i].ranks, "add", WORLD, arg, NULL).code) return -1;
    }
    return 0;
}

static int end_all(void **state) {
    (void)state;
    for (int i = 0; i < NUM_TRIALS; i++) gs_ranks_destroy(trials[i].ranks);
    return 0;
}

// All of them end, with the same word, which names the first that could not reach it, and it.
static void check_word(const trial *it, int rank, const char *note) {
    int code, reporter, accused, taken = 0;
    char named[24];
    assert_int_equal(sscanf(note, "%d %d %d %n", &code, &reporter, &accused, &taken), 3);
    if (!it->why) {
        assert_int_equal(code, GS_OK);
        return;
    }
    snprintf(named, sizeof named, "cannot reach rank %d at", it->who);
    bool is_named = strstr(note + taken, named) && strstr(note + taken, it->why);
    if (code != GS_UNAVAILABLE || !is_named) print_error("%s of rank %d, rank %d: %s\n", it->lie, it->who, rank, note);
    assert_int_equal(code, GS_UNAVAILABLE);
    assert_true(is_named);
    assert_int_equal(reporter, 0);
    assert_int_equal(accused, it->who);
}

static void check_trials(const char *lie) {
    for (int i = 0; i < NUM_TRIALS; i++) {
        const trial *it = &trials[i];
        gs_status statuses[WORLD];
        if (strcmp(it->lie, lie) != 0) continue;
        assert_ok(gs_ranks_wait(it->ranks, statuses, gs_deadline_in_seconds(180)));
        for (int rank = 0; rank < WORLD; rank++) {
            if (statuses[rank].code) print_error("%s of rank %d, behind it, rank %d: %s\n", lie, it->who, rank, statuses[rank].message);
            assert_int_equal(statuses[rank].code, GS_OK);
            check_word(it, rank, gs_ranks_note(it->ranks, rank));
        }
    }
}

// Of the first rank nobody asks where it is: it calls the others.
static void the_endpoint_of_another_is_no_way_to_it(void **state) {
    (void)state;
    check_trials("another");
}

static void the_endpoint_of_a_stranger_who_accepts_is_no_way_to_it(void **state) {
    (void)state;
    check_trials("silence");
}

static void the_endpoint_of_a_stranger_who_answers_is_no_way_to_it(void **state) {
    (void)state;
    check_trials("words");
}

static void the_endpoint_of_nobody_is_no_way_to_it(void **state) {
    (void)state;
    check_trials("nobody");
}

static void what_is_no_endpoint_names_who_gave_it(void **state) {
    (void)state;
    check_trials("no address");
    check_trials("no port");
    check_trials("other family");
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_endpoint_of_another_is_no_way_to_it),
        cmocka_unit_test(the_endpoint_of_a_stranger_who_accepts_is_no_way_to_it),
        cmocka_unit_test(the_endpoint_of_a_stranger_who_answers_is_no_way_to_it),
        cmocka_unit_test(the_endpoint_of_nobody_is_no_way_to_it),
        cmocka_unit_test(what_is_no_endpoint_names_who_gave_it),
    };
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
