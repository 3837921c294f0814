// A rank between hosts says what no rank would: nobody takes it for true. What it said before still
// counts.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "gradsync/comm/backends.h"
#include "gradsync/comm/net/mesh.h"
#include "gradsync/comm/net/message.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"

#define COUNT 16
#define FAR_SECONDS 60.0
#define SEED 5

// Rank 1 greets as all do, and then has the bare connection.
static gs_net_mesh bare;

static gs_status greet(void **out, const gs_comm_options *options, gs_stages *stages, char *reason,
                       size_t reason_bytes, gs_deadline deadline) {
    *out = &bare;
    snprintf(reason, reason_bytes, "it only talks");
    return gs_net_mesh_form(&bare, options, stages, deadline);
}

static uint64_t none_finished(const void *backend, int lane) {
    (void)backend, (void)lane;
    return 0;
}

static void hang_up(void *backend) {
    gs_net_mesh_release(backend);
}

typedef struct claim_message {
    gs_net_header header;
    gs_collective_claim claim;
    float numbers[COUNT];
} claim_message;

typedef struct failure_message {
    gs_net_header header;
    gs_net_failure said;
} failure_message;

static failure_message forge_failure(void) {
    failure_message message = {
        .header = {.kind = GS_NET_FAILURE, .input = 1, .bytes = sizeof message.said}};
    memset(&message.said, 0x7f, sizeof message.said);
    message.said.failure.reporter = 1 << 20;
    return message;
}

// What rank 0 claims is claimed back with other numbers; the failure is right behind it.
static gs_status talk(const gs_rank_env *env) {
    struct {
        claim_message claim;
        failure_message failure;
    } said = {.failure = forge_failure()};
    _Static_assert(sizeof said == sizeof said.claim + sizeof said.failure, "as it travels");
    size_t got = 0;
    while (got < sizeof said.claim) {
        ssize_t bytes = recv(bare.sockets[0], (char *)&said + got, sizeof said.claim - got, 0);
        if (bytes == 0) return gs_error(GS_INTERNAL, "rank 0 hung up");
        if (bytes > 0) got += (size_t)bytes;
        if (bytes < 0) gs_sleep_ns(GS_NS_PER_MS);
    }
    said.claim.header.input = 1;
    fill_pattern(said.claim.numbers, GS_FP32, COUNT, SEED, env->rank, 0);
    if (send(bare.sockets[0], &said, sizeof said, MSG_NOSIGNAL) != sizeof said)
        return gs_error(GS_INTERNAL, "not all was sent");
    return gs_ok();
}

static gs_status expect_sane(const gs_comm_failure *failure) {
    if (failure->kind != GS_COMM_FAILURE_ABORTED || failure->reporter != -1 || failure->lane != 0 ||
        gs_comm_failure_num_accused(failure) != 2)
        return gs_error(GS_INTERNAL, "kind %d, reporter %d, lane %d, %d accused", failure->kind,
                        failure->reporter, failure->lane, gs_comm_failure_num_accused(failure));
    return gs_ok();
}

static gs_status listen_to_it(comm_rank *self) {
    float numbers[COUNT];
    gs_deadline deadline = gs_deadline_in_seconds(FAR_SECONDS);
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = numbers,
                         .recv = numbers,
                         .count = COUNT,
                         .dtype = GS_FP32},
                  barrier = {.kind = GS_BARRIER};
    fill_pattern(numbers, GS_FP32, COUNT, SEED, self->rank, 0);
    GS_TRY(gs_status_prefix(gs_comm_run(self->comm, &sum, deadline), "said before"));
    GS_TRY(check_pattern(numbers, GS_FP32, COUNT, SEED, -1, self->world_size, 0));
    gs_status status = gs_comm_run(self->comm, &barrier, deadline);
    if (status.code != GS_ABORTED)
        return gs_error(GS_INTERNAL, "not aborted, but %s", status.message);
    gs_comm_failure failure;
    gs_comm_explain(self->comm, &failure);
    return expect_sane(&failure);
}

static gs_status meet(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_backend talker = gs_comm_net;
    char note = 0, all[2];
    talker.create = greet;
    talker.finished = none_finished;
    talker.destroy = hang_up;
    gs_comm_options options = {.backend = "net", .own_backend = env->rank == 1 ? &talker : NULL};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    if (!status.code) status = env->rank == 1 ? talk(env) : listen_to_it(&self);
    gs_status met = gs_rank_exchange(env->exchange, "over", NULL, 0, &note, 1, all,
                                     gs_deadline_in_seconds(FAR_SECONDS));
    comm_rank_close(&self);
    return status.code ? status : met;
}

static const gs_rank_body bodies[] = {{"meet", meet}, {0}};

static void forged_words_end_a_communicator_behind_its_sums_and_do_no_other_harm(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("meet", 2, "", gs_deadline_in_seconds(2 * FAR_SECONDS)));
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forged_words_end_a_communicator_behind_its_sums_and_do_no_other_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
