// What NCCL cannot do and a rank must survive: peers that die or freeze, a library that hangs, fails, lies or
// never comes back. Survivors get an error with a name and in time, and go on in the same process.
//
// Death and freezing also run on real devices; the rest needs the stand-in, which obeys orders
// (tests/nccl_sim/orders.h). Collectives 1 and 2 of a communicator are its own warm-up.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef GRADSYNC_CUDA_SIM
#include <sys/un.h>
#else
#include <netinet/in.h>
#endif

#include <cmocka.h>

#include "core/log.h"
#include "core/thread.h"
#include "tests/nccl/nccl_rank.h"

#define MAX_WORLD 3
#define COUNT 50000
#define FAR_SECONDS 40.0

static void skip_without_stand_in(void) {
#ifndef GRADSYNC_CUDA_SIM
    skip();
#endif
}

// As who waits for several communicators does: nobody is inside a wait of this one.
static gs_status move_until_done(comm_rank *self, const gs_collective *sum, gs_deadline deadline) {
    gs_work work;
    gs_status status = gs_comm_post(self->comm, &work, sum);
    while (!status.code && !gs_comm_done(self->comm, work))
        status = gs_comm_wait_moved(&self->comm, 1, deadline);
    if (status.code) gs_comm_let_go(self->comm, status.message);
    return status;
}

static gs_status reduce_once(comm_rank *self, int64_t step, gs_deadline deadline,
                             bool moves) {
    float *data = gs_arena_data(self->arena);
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = COUNT,
                         .dtype = GS_FP32,
                         .step = step,
                         .bucket = 3};
    return moves ? move_until_done(self, &sum, deadline) : gs_comm_run(self->comm, &sum, deadline);
}

// Another generation in the same process, of all ranks or of this one alone.
static gs_status regroup(comm_rank *self, const gs_rank_env *env, bool alone) {
    gs_rank_env again = *env;
    gs_comm_options options = {.generation = 2};
    if (alone) again.rank = 0, again.world_size = 1;
    if (self->comm) GS_TRY(gs_comm_wait_ended(self->comm, gs_deadline_in_seconds(FAR_SECONDS)));
    gs_comm_destroy(self->comm);
    self->comm = NULL;
    gs_status status = nccl_rank_connect(self, &again, &options, gs_deadline_in_seconds(FAR_SECONDS));
    gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1};
    if (!status.code)
        status = gs_comm_run(self->comm, &barrier, gs_deadline_in_seconds(FAR_SECONDS));
    gs_rank_note(env, status.code ? status.message : "regrouped");
    return status;
}

// The last warning, and every error at once: the process may be about to end.
static char last_line[1024];

static void keep_line(void *ctx, gs_log_level level, const char *line) {
    if (level < GS_LOG_WARN) return;
    snprintf(last_line, sizeof last_line, "%s", line);
    if (level == GS_LOG_ERROR) gs_rank_note(ctx, line);
}

// The library does not say who is missing, so nobody is accused: least of all whoever reports it.
static gs_status check_blame(comm_rank *self, gs_status late) {
    gs_comm_failure failure;
    gs_comm_explain(self->comm, &failure);
    if (failure.kind != GS_COMM_FAILURE_TIMEOUT || failure.bucket != 3 || !failure.sequence)
        return gs_error(GS_INTERNAL, "a timeout that is none: kind %d, bucket %d", failure.kind,
                        failure.bucket);
    for (int rank = 0; rank < GS_COMM_MAX_RANKS; rank++) {
        if (gs_comm_failure_names(&failure, rank))
            return gs_error(GS_INTERNAL, "rank %d is accused: %s", rank, late.message);
    }
    return late;
}

// Steps until something happens. The argument says how long a collective may take (ms), what follows, and
// whether what the log said is noted.
static gs_status reduce_on(const gs_rank_env *env) {
    comm_rank self;
    long limit_ms = strtol(env->arg, NULL, 10);
    bool notes_log = strstr(env->arg, "log") != NULL;
    if (notes_log) gs_log_set_sink(keep_line, (void *)(uintptr_t)env);
    gs_status status = nccl_rank_open(&self, env, COUNT * sizeof(float), NULL);
    if (!status.code) gs_rank_note(env, "ready");
    int64_t steps = strstr(env->arg, "ten") ? 10 : 1000000;
    for (int64_t step = 0; !status.code && step < steps; step++) {
        // The first steps set the pace of a machine that is busy with other things.
        gs_deadline deadline = gs_deadline_in_ms(step < 2 ? 20000 : limit_ms);
        status = reduce_once(&self, step, deadline, strstr(env->arg, "moves") != NULL);
    }
    if (status.code) gs_rank_note(env, "failed");
    if (status.code == GS_DEADLINE_EXCEEDED && strstr(env->arg, "alone"))
        status = check_blame(&self, status);
    if (strstr(env->arg, "regroup")) {
        gs_status again = regroup(&self, env, strstr(env->arg, "alone") != NULL);
        if (again.code) status = gs_status_prefix(again, "regroup");
    }
    if (notes_log) gs_rank_note(env, last_line);
    comm_rank_close(&self);
    return status;
}

static gs_status check_arena(comm_rank *self, const float *was) {
    float now[COUNT];
    GS_TRY(gs_device_download(self->device, now, gs_arena_data(self->arena), sizeof now));
    if (memcmp(now, was, sizeof now) == 0) return gs_ok();
    return gs_error(GS_DATA_LOSS, "the arena is %g …, was %g …", (double)now[0], (double)was[0]);
}

static gs_status connect_in_time(const gs_rank_env *env) {
    float was[COUNT];
    comm_rank self;
    gs_status status = nccl_rank_open_device(&self, env, COUNT * sizeof(float));
    double seconds = strtod(env->arg, NULL);
    for (int i = 0; i < COUNT; i++) was[i] = (float)(env->rank + i + 1);
    if (!status.code)
        status = gs_device_upload(self.device, gs_arena_data(self.arena), was, sizeof was);
    if (!status.code)
        status = nccl_rank_connect(&self, env, NULL, gs_deadline_in_seconds(seconds));
    if (!status.code) status = check_arena(&self, was);
    if (!status.code) gs_rank_note(env, gs_comm_backend_reason(self.comm));
    if (!status.code) status = reduce_once(&self, 0, gs_deadline_in_seconds(FAR_SECONDS), false);
    comm_rank_close(&self);
    return status;
}

// Where rank 0 gives its unique id, behind the status with which each stage begins.
#define ID_STAGE "world/2"
#define ID_BYTES 128

// What every rank gets as the unique id is something else than rank 0 made.
static gs_status exchange_garbage(void *ctx, const char *tag, const int *ranks, int num_ranks,
                                  const void *mine, size_t bytes, void *all,
                                  gs_deadline deadline) {
    const gs_rank_env *env = ctx;
    gs_status status =
        gs_rank_exchange(env->exchange, tag, ranks, num_ranks, mine, bytes, all, deadline);
    if (strcmp(tag, ID_STAGE) == 0) memset((char *)all + sizeof(gs_status), 0x5a, ID_BYTES);
    return status;
}

static gs_status connect_by_garbage(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.exchange = exchange_garbage,
                               .exchange_ctx = (void *)(uintptr_t)env};
    gs_status status = nccl_rank_open_device(&self, env, 4096);
    if (!status.code)
        status = nccl_rank_connect(&self, env, &options, gs_deadline_in_seconds(10));
    comm_rank_close(&self);
    return status;
}

// Somebody connects to the port that the unique id names, and says nothing.
static int visit_silently(const char *id) {
#ifdef GRADSYNC_CUDA_SIM
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *name = id + 2 * sizeof(uint64_t);  // behind magic and nonce
    memcpy(address.sun_path + 1, name, strlen(name));
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
#else
    struct sockaddr_in6 address;
    memcpy(&address, id + sizeof(uint64_t), sizeof address);  // behind the magic
    socklen_t bytes = address.sin6_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof address;
#endif
    int visitor = socket(((struct sockaddr *)&address)->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (visitor < 0 || connect(visitor, (struct sockaddr *)&address, bytes) == 0) return visitor;
    close(visitor);
    return -1;
}

typedef struct visit {
    const gs_rank_env *env;
    int visitor, num_checks;
} visit;

// Some tenths of a second after the library was asked.
static gs_status lose_patience(void *ctx) {
    visit *one = ctx;
    return ++one->num_checks > 2000 ? gs_error(GS_ABORTED, "nobody comes") : gs_ok();
}

static gs_status exchange_behind_visitor(void *ctx, const char *tag, const int *ranks,
                                         int num_ranks, const void *mine, size_t bytes, void *all,
                                         gs_deadline deadline) {
    visit *one = ctx;
    if (one->env->rank == 0 && strcmp(tag, ID_STAGE) == 0) {
        one->visitor = visit_silently((const char *)mine + sizeof(gs_status));
        if (one->visitor < 0) return gs_error(GS_UNAVAILABLE, "nobody listens behind the id");
    }
    return gs_rank_exchange(one->env->exchange, tag, ranks, num_ranks, mine, bytes, all, deadline);
}

static gs_status connect_behind_visitor(const gs_rank_env *env) {
    comm_rank self;
    visit one = {.env = env, .visitor = -1};
    gs_comm_options options = {.exchange = exchange_behind_visitor,
                               .exchange_ctx = &one,
                               .check = lose_patience,
                               .check_ctx = &one};
    gs_status status = nccl_rank_open_device(&self, env, 4096);
    if (!status.code)
        status = nccl_rank_connect(&self, env, &options, gs_deadline_in_seconds(FAR_SECONDS));
    if (status.code) {
        gs_status again = regroup(&self, env, false);
        if (again.code) status = gs_status_prefix(again, "regroup");
    }
    if (one.visitor >= 0) close(one.visitor);
    comm_rank_close(&self);
    return status;
}

static gs_status end_generation(void *ctx) {
    int *num_checks = ctx;
    return ++*num_checks > 3 ? gs_error(GS_ABORTED, "the generation is over") : gs_ok();
}

static gs_status connect_in_vain(const gs_rank_env *env) {
    comm_rank self;
    int num_checks = 0;
    gs_comm_options options = {.check = end_generation, .check_ctx = &num_checks};
    gs_status status = nccl_rank_open_device(&self, env, 4096);
    if (!status.code)
        status = nccl_rank_connect(&self, env, &options, gs_deadline_in_seconds(FAR_SECONDS));
    comm_rank_close(&self);
    return status;
}

// The last rank believes in one rank more.
static gs_status connect_other_world(const gs_rank_env *env) {
    comm_rank self;
    gs_rank_env own = *env;
    if (own.rank == own.world_size - 1) own.world_size++;
    gs_status status = nccl_rank_open(&self, &own, 4096, NULL);
    comm_rank_close(&self);
    return status;
}

static void abort_comm(void *ctx, const atomic_bool *stopping) {
    (void)stopping;
    gs_comm_abort(ctx, "told so");
    gs_comm_abort(ctx, "too late");
}

// Rank 1 posts nothing until rank 0 has given up.
static gs_status wait_for_nobody(const gs_rank_env *env) {
    comm_rank self;
    gs_thread *thread = NULL;
    uint8_t here = 1, all[MAX_WORLD];
    gs_status aborted = gs_ok(), status = nccl_rank_open(&self, env, COUNT * sizeof(float), NULL);
    if (!status.code && env->rank == 0) {
        status = gs_thread_start(&thread, "aborts", abort_comm, self.comm);
        if (!status.code) aborted = reduce_once(&self, 7, gs_deadline_in_seconds(FAR_SECONDS), false);
        gs_thread_stop(thread);
    }
    if (!status.code)
        status = gs_rank_exchange(env->exchange, "test/over", NULL, 0, &here, 1, all,
                                  gs_deadline_in_seconds(FAR_SECONDS));
    comm_rank_close(&self);
    return status.code ? status : aborted;
}

static gs_status mix_devices(const gs_rank_env *env) {
    comm_rank self = {0};
    gs_comm_options options = {.backend = "auto"};
    gs_status status =
        gs_device_open(&self.device, env->rank == 1 ? "cpu" : "cuda:0", &(gs_device_options){0});
    if (!status.code)
        status = nccl_rank_connect(&self, env, &options, gs_deadline_in_seconds(FAR_SECONDS));
    comm_rank_close(&self);
    return status;
}

static gs_status try_often(const gs_rank_env *env) {
    comm_rank self;
    gs_status status = nccl_rank_open_device(&self, env, 0);
    for (int i = 0; i < 201 && status.code != GS_RESOURCE_EXHAUSTED; i++)
        status = nccl_rank_connect(&self, env, NULL, gs_deadline_in_seconds(60));
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {{"reduce", reduce_on},
                                      {"connect", connect_in_time},
                                      {"garbage", connect_by_garbage},
                                      {"visited", connect_behind_visitor},
                                      {"in-vain", connect_in_vain},
                                      {"worlds", connect_other_world},
                                      {"nobody", wait_for_nobody},
                                      {"mixed", mix_devices},
                                      {"often", try_often},
                                      {0}};

static gs_ranks *start(const char *body, int world_size, const char *arg, const char *variable,
                       const char *value) {
    char text[256];
    snprintf(text, sizeof text, "%s=%s", variable, value);
    const char *environment[] = {text, NULL};
    gs_ranks *ranks;
    assert_int_equal(gs_ranks_start(&ranks, body, world_size, arg, environment).code, GS_OK);
    return ranks;
}

static void run(gs_status *statuses, const char *body, int world_size, const char *arg,
                const char *variable, const char *value) {
    gs_ranks *ranks = start(body, world_size, arg, variable, value);
    gs_status status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(100));
    if (status.code) print_error("%s\n", status.message);
    gs_ranks_destroy(ranks);
    assert_int_equal(status.code, GS_OK);
}

static void expect(const gs_status *status, gs_code code, const char *text) {
    if (status->code != code || !strstr(status->message, text))
        print_error("%s: %s\n", gs_code_name(status->code), status->message);
    assert_int_equal(status->code, code);
    assert_non_null(strstr(status->message, text));
}

static void expect_both(const char *orders, const char *arg, gs_code code, const char *text) {
    gs_status statuses[2];
    run(statuses, "connect", 2, arg, "NCCL_SIM_ORDERS", orders);
    expect(&statuses[0], code, text);
    expect(&statuses[1], code, text);
}

static void a_killed_rank_ends_the_collective_of_the_others(void **state) {
    (void)state;
    gs_ranks *ranks = start("reduce", MAX_WORLD, "3000 regroup alone", "UNUSED", "");
    gs_status statuses[MAX_WORLD];
    gs_deadline deadline = gs_deadline_in_seconds(100);
    for (int rank = 0; rank < MAX_WORLD; rank++)
        assert_int_equal(gs_ranks_wait_note(ranks, rank, "ready", deadline).code, GS_OK);
    gs_ranks_signal(ranks, 1, SIGKILL);
    assert_int_equal(gs_ranks_wait(ranks, statuses, deadline).code, GS_OK);
    for (int rank = 0; rank < MAX_WORLD; rank += 2) {
        bool in_time = statuses[rank].code == GS_ABORTED ||
                       statuses[rank].code == GS_DEADLINE_EXCEEDED ||
                       statuses[rank].code == GS_UNAVAILABLE;
        if (!in_time) print_error("%s\n", statuses[rank].message);
        assert_true(in_time);
        assert_non_null(strstr(statuses[rank].message, "bucket 3, step "));
        assert_string_equal(gs_ranks_note(ranks, rank), "regrouped");
    }
    gs_ranks_destroy(ranks);
}

static void a_frozen_rank_is_survived_by_the_deadline(void **state) {
    (void)state;
    gs_ranks *ranks = start("reduce", 2, "1000 regroup alone", "UNUSED", "");
    gs_status statuses[2];
    gs_deadline deadline = gs_deadline_in_seconds(100);
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(gs_ranks_wait_note(ranks, rank, "ready", deadline).code, GS_OK);
    gs_ranks_signal(ranks, 1, SIGSTOP);
    assert_int_equal(gs_ranks_wait_note(ranks, 0, "regrouped", deadline).code, GS_OK);
    gs_ranks_signal(ranks, 1, SIGKILL);
    assert_int_equal(gs_ranks_wait(ranks, statuses, deadline).code, GS_OK);
    gs_ranks_destroy(ranks);
    expect(&statuses[0], GS_DEADLINE_EXCEEDED, "bucket 3, step ");
    expect(&statuses[0], GS_DEADLINE_EXCEEDED, "NCCL does not say which rank did not arrive");
}

static void an_abort_from_another_thread_ends_the_wait(void **state) {
    (void)state;
    gs_status statuses[2];
    run(statuses, "nobody", 2, "", "UNUSED", "");
    expect(&statuses[0], GS_ABORTED, "told so");
    expect(&statuses[1], GS_OK, "");
}

static void ranks_on_cpu_and_gpu_do_not_mix(void **state) {
    (void)state;
    gs_status statuses[2];
    run(statuses, "mixed", 2, "", "UNUSED", "");
    expect(&statuses[0], GS_FAILED_PRECONDITION, "rank 1 trains on cpu, rank 0 cuda");
    expect(&statuses[1], GS_FAILED_PRECONDITION, "rank 1 trains on cpu, rank 0 cuda");
}

static void variables_that_take_control_away_are_refused(void **state) {
    (void)state;
    gs_status statuses[2];
    run(statuses, "connect", 2, "20", "NCCL_COMM_BLOCKING", "1");
    expect(&statuses[1], GS_FAILED_PRECONDITION, "the variable NCCL_COMM_BLOCKING is set");
    run(statuses, "connect", 2, "20", "NCCL_COMM_ID", "127.0.0.1:1");
    expect(&statuses[1], GS_FAILED_PRECONDITION, "the variable NCCL_COMM_ID is set");
}

static void a_missing_library_is_unavailable(void **state) {
    (void)state;
    gs_status statuses[2];
    run(statuses, "connect", 2, "20", "GRADSYNC_NCCL", "/nowhere/libnccl.so");
    expect(&statuses[0], GS_UNAVAILABLE, "/nowhere/libnccl.so");
    expect(&statuses[1], GS_UNAVAILABLE, "/nowhere/libnccl.so");
}

static void two_ranks_on_one_gpu_are_named(void **state) {
    (void)state;
    gs_status statuses[2];
    run(statuses, "connect", 2, "20", "NCCL_HOSTID", "the same");
    expect(&statuses[0], GS_FAILED_PRECONDITION, "ranks 0 and 1 have the same GPU, GPU-");
    expect(&statuses[1], GS_FAILED_PRECONDITION, "ranks 0 and 1 have the same GPU, GPU-");
}

static void a_false_unique_id_ends_with_an_error(void **state) {
    (void)state;
    gs_status statuses[2];
    run(statuses, "garbage", 2, "", "UNUSED", "");
    for (int rank = 0; rank < 2; rank++) {
        assert_int_not_equal(statuses[rank].code, GS_OK);
        if (!strstr(statuses[rank].message, "NCCL communicator")) fail_msg("rank %d: %s", rank, statuses[rank].message);
    }
}

static void worlds_that_differ_are_named(void **state) {
    (void)state;
    gs_status statuses[2];
    run(statuses, "worlds", 2, "", "UNUSED", "");
    expect(&statuses[0], GS_FAILED_PRECONDITION, "rank 1 has world size 3, rank 0 has 2");
    expect(&statuses[1], GS_FAILED_PRECONDITION, "rank 1 has world size 3, rank 0 has 2");
}

static void a_silent_visitor_costs_an_attempt_and_not_the_process(void **state) {
    (void)state;
    gs_ranks *ranks = start("visited", 2, "", "UNUSED", "");
    gs_status statuses[2];
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(100)).code, GS_OK);
    for (int rank = 0; rank < 2; rank++) {
        expect(&statuses[rank], GS_ABORTED, "rank 0: NCCL communicator: ");
        assert_string_equal(gs_ranks_note(ranks, rank), "regrouped");
    }
    gs_ranks_destroy(ranks);
}

static void an_abort_of_others_ends_the_initialisation(void **state) {
    (void)state;
    skip_without_stand_in();
    gs_status statuses[2];
    run(statuses, "in-vain", 2, "", "NCCL_SIM_ORDERS", "hang.init");
    expect(&statuses[0], GS_ABORTED, "rank 0: NCCL communicator: the generation is over");
    expect(&statuses[1], GS_ABORTED, "rank 0: NCCL communicator: the generation is over");
}

static void initialisation_that_hangs_ends_at_the_deadline(void **state) {
    (void)state;
    skip_without_stand_in();
    expect_both("hang.init#1", "5", GS_DEADLINE_EXCEEDED, "ncclCommInitRankConfig did not end");
}

static void versions_that_differ_are_named(void **state) {
    (void)state;
    skip_without_stand_in();
    expect_both("version#1=22700", "20", GS_FAILED_PRECONDITION,
                "rank 1 has NCCL 2.27.0, rank 0 2.28.9");
    expect_both("version=21300", "20", GS_UNAVAILABLE, "version 2.13, at least 2.14 is needed");
}

static void a_wrong_first_sum_is_data_loss_on_all_ranks(void **state) {
    (void)state;
    skip_without_stand_in();
    expect_both("wrong#1@2", "30", GS_DATA_LOSS, "rank 1: the first all-reduce of 2097152");
}

static void a_collective_that_hangs_is_survived_by_regrouping(void **state) {
    (void)state;
    skip_without_stand_in();
    gs_status statuses[2];
    run(statuses, "reduce", 2, "1000 regroup", "NCCL_SIM_ORDERS", "hang.collective#1@6");
    for (int rank = 0; rank < 2; rank++) {
        bool expected = statuses[rank].code == GS_DEADLINE_EXCEEDED ||
                        strstr(statuses[rank].message, "connection closed");
        if (!expected) print_error("%s\n", statuses[rank].message);
        assert_true(expected);
        assert_non_null(strstr(statuses[rank].message, "bucket 3, step 3"));
    }
}

static void an_asynchronous_error_is_passed_on_with_its_words(void **state) {
    (void)state;
    skip_without_stand_in();
    gs_status statuses[2];
    run(statuses, "reduce", 2, "20000 regroup", "NCCL_SIM_ORDERS", "async#0@6=3");
    expect(&statuses[0], GS_INTERNAL, "bucket 3, step 3: rank 0: NCCL: internal error");
    expect(&statuses[1], GS_ABORTED, "rank 1: NCCL: remote process exited");  // in a bucket, or before it was late with one
}

static void an_asynchronous_error_reaches_who_only_moves(void **state) {
    (void)state;
    skip_without_stand_in();
    gs_status statuses[2];
    run(statuses, "reduce", 2, "20000 moves", "NCCL_SIM_ORDERS", "async#0@6=3");
    expect(&statuses[0], GS_INTERNAL, "bucket 3, step 3: rank 0: NCCL: internal error");
    expect(&statuses[1], GS_ABORTED, "rank 1: NCCL: remote process exited");  // in a bucket, or before it was late with one
}

static void a_call_that_fails_is_named(void **state) {
    (void)state;
    skip_without_stand_in();
    gs_status statuses[2];
    run(statuses, "reduce", 2, "20000 regroup", "NCCL_SIM_ORDERS", "fail.ncclAllReduce#0@5=1");
    expect(&statuses[0], GS_INTERNAL, "ncclAllReduce: unhandled cuda error: ordered by the test");
    expect(&statuses[1], GS_ABORTED, "connection closed by rank 0");
}

static void late_and_slow_calls_are_waited_for(void **state) {
    (void)state;
    skip_without_stand_in();
    gs_status statuses[2];
    run(statuses, "reduce", 2, "20000 ten", "NCCL_SIM_ORDERS", "late#1@5=200,settle#0=5");
    expect(&statuses[0], GS_OK, "");
    expect(&statuses[1], GS_OK, "");
}

static void expect_line(const gs_ranks *ranks, int rank, const char *text) {
    const char *line = gs_ranks_note(ranks, rank);
    if (!strstr(line, text)) print_error("\"%s\" is not in: %s\n", text, line);
    assert_non_null(strstr(line, text));
}

static void an_abort_that_never_returns_ends_the_process_and_says_in_what(void **state) {
    (void)state;
    skip_without_stand_in();
    gs_ranks *ranks =
        start("reduce", 2, "1000 log", "NCCL_SIM_ORDERS", "hang.collective#1@6,hang.abort#0");
    gs_status statuses[2];
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(100)).code, GS_OK);
    expect(&statuses[0], GS_INTERNAL, "exit code 76");
    assert_int_not_equal(statuses[1].code, GS_OK);
    expect_line(ranks, 0, "a communicator cannot be left");
    expect_line(ranks, 0, "rank=0 call=ncclCommAbort");
    expect_line(ranks, 0, "sequence=4 kind=all-reduce step=3 bucket=3 count=50000 started=yes");
    gs_ranks_destroy(ranks);
}

// Without somebody who ends it: what hangs is leaked, and the status is that of the collective.
static void an_abort_that_never_returns_leaves_the_process_alone(void **state) {
    (void)state;
    skip_without_stand_in();
    gs_ranks *ranks =
        start("reduce", 2, "1000 log stays", "NCCL_SIM_ORDERS", "hang.collective#1@6,hang.abort#0");
    gs_status statuses[2];
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(100)).code, GS_OK);
    assert_non_null(strstr(statuses[0].message, "bucket 3, step 3"));
    expect_line(ranks, 0, "a communicator cannot be left");
    gs_ranks_destroy(ranks);
}

static void an_abort_that_takes_long_is_said(void **state) {
    (void)state;
    skip_without_stand_in();
    gs_ranks *ranks = start("reduce", 2, "1000 regroup log", "NCCL_SIM_ORDERS",
                            "hang.collective#1@6,slow.abort#0=1500");
    gs_status statuses[2];
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(100)).code, GS_OK);
    assert_non_null(strstr(statuses[0].message, "bucket 3, step 3"));
    expect_line(ranks, 0, "leaving a communicator takes long");
    expect_line(ranks, 0, "sequence=4 kind=all-reduce step=3 bucket=3");
    gs_ranks_destroy(ranks);
}

static void a_clean_end_that_never_returns_ends_the_process(void **state) {
    (void)state;
    skip_without_stand_in();
    gs_status statuses[2];
    run(statuses, "reduce", 2, "20000 ten", "NCCL_SIM_ORDERS", "hang.destroy#1");
    expect(&statuses[0], GS_OK, "");
    expect(&statuses[1], GS_INTERNAL, "exit code 76");
}

static void expect_registration(const char *orders, const char *text) {
    gs_ranks *ranks = start("connect", 2, "40", "NCCL_SIM_ORDERS", orders);
    gs_status statuses[2];
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(100)).code, GS_OK);
    for (int rank = 0; rank < 2; rank++) {
        expect(&statuses[rank], GS_OK, "");
        if (!strstr(gs_ranks_note(ranks, rank), text))
            print_error("%s\n", gs_ranks_note(ranks, rank));
        assert_non_null(strstr(gs_ranks_note(ranks, rank), text));
    }
    gs_ranks_destroy(ranks);
}

static void the_arena_is_registered_alike_on_all_ranks(void **state) {
    (void)state;
    skip_without_stand_in();
    expect_registration("", "arena registered");
    expect_registration("windows", "arena in a window");
    expect_registration("windows,no-windows#1", "arena registered");
    assert_int_equal(setenv("GRADSYNC_NCCL_WINDOWS", "0", 1), 0);
    expect_registration("windows", "arena registered");
    assert_int_equal(setenv("GRADSYNC_NCCL_REGISTRATION", "0", 1), 0);
    expect_registration("windows", "arena not registered");
    assert_int_equal(setenv("GRADSYNC_NCCL_WINDOWS", "all", 1), 0);
    expect_registration("windows", "arena in a window, staging in a window");
    assert_int_equal(unsetenv("GRADSYNC_NCCL_WINDOWS") | unsetenv("GRADSYNC_NCCL_REGISTRATION"), 0);
}

// Staging and tree memory as the arena, before the first collective; a rank whose library gives it none keeps them plain on
// all.
static void staging_is_registered_alike_on_all_ranks(void **state) {
    (void)state;
    skip_without_stand_in();
    assert_int_equal(setenv("GRADSYNC_NCCL_WINDOWS", "all", 1), 0);
    expect_registration("windows", "arena in a window, staging in a window");
    expect_registration("windows,no-windows#1", "arena registered, staging registered");
    expect_registration("windows,fail.ncclMemAlloc#1@2=1", "arena in a window, staging registered");
    assert_int_equal(unsetenv("GRADSYNC_NCCL_WINDOWS"), 0);
    expect_registration("windows", "arena in a window");
}

// In the arena too, whose numbers stay; with rank 0's word on the blocks of kernels.
static void a_warm_arena_keeps_what_lies_in_it(void **state) {
    (void)state;
    skip_without_stand_in();
    assert_int_equal(setenv("GRADSYNC_NCCL_WARM_ARENA", "1", 1), 0);
    assert_int_equal(setenv("GRADSYNC_NCCL_MIN_CTAS", "2", 1), 0);
    assert_int_equal(setenv("GRADSYNC_NCCL_MAX_CTAS", "2", 1), 0);
    expect_registration("windows", "arena in a window");
    expect_registration("", "arena registered");
    assert_int_equal(unsetenv("GRADSYNC_NCCL_WARM_ARENA") | unsetenv("GRADSYNC_NCCL_MIN_CTAS") |
                         unsetenv("GRADSYNC_NCCL_MAX_CTAS"),
                     0);
}

static void after_200_failed_attempts_a_new_process_is_asked_for(void **state) {
    (void)state;
    skip_without_stand_in();
    gs_status statuses[1];
    run(statuses, "often", 1, "", "NCCL_SIM_ORDERS", "fail.ncclCommInitRankConfig=3");
    expect(&statuses[0], GS_RESOURCE_EXHAUSTED, "start a new one");
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    nccl_skip_without_gpu();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_on_cpu_and_gpu_do_not_mix),
        cmocka_unit_test(variables_that_take_control_away_are_refused),
        cmocka_unit_test(a_missing_library_is_unavailable),
        cmocka_unit_test(two_ranks_on_one_gpu_are_named),
        cmocka_unit_test(versions_that_differ_are_named),
        cmocka_unit_test(worlds_that_differ_are_named),
        cmocka_unit_test(a_silent_visitor_costs_an_attempt_and_not_the_process),
        cmocka_unit_test(an_abort_of_others_ends_the_initialisation),
        cmocka_unit_test(a_killed_rank_ends_the_collective_of_the_others),
        cmocka_unit_test(a_frozen_rank_is_survived_by_the_deadline),
        cmocka_unit_test(an_abort_from_another_thread_ends_the_wait),
        cmocka_unit_test(a_false_unique_id_ends_with_an_error),
        cmocka_unit_test(initialisation_that_hangs_ends_at_the_deadline),
        cmocka_unit_test(a_wrong_first_sum_is_data_loss_on_all_ranks),
        cmocka_unit_test(a_collective_that_hangs_is_survived_by_regrouping),
        cmocka_unit_test(an_asynchronous_error_is_passed_on_with_its_words),
        cmocka_unit_test(an_asynchronous_error_reaches_who_only_moves),
        cmocka_unit_test(a_call_that_fails_is_named),
        cmocka_unit_test(late_and_slow_calls_are_waited_for),
        cmocka_unit_test(an_abort_that_never_returns_ends_the_process_and_says_in_what),
        cmocka_unit_test(an_abort_that_never_returns_leaves_the_process_alone),
        cmocka_unit_test(an_abort_that_takes_long_is_said),
        cmocka_unit_test(a_clean_end_that_never_returns_ends_the_process),
        cmocka_unit_test(the_arena_is_registered_alike_on_all_ranks),
        cmocka_unit_test(staging_is_registered_alike_on_all_ranks),
        cmocka_unit_test(a_warm_arena_keeps_what_lies_in_it),
        cmocka_unit_test(after_200_failed_attempts_a_new_process_is_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
