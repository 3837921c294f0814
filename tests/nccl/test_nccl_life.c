// Communicators on GPUs beside everything else: what they choose and refuse, the arena, the compute
// stream and their own, who lets go in the middle, and a process that lives through many
// generations.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/comm/device_arena.h"
#include "gradsync/comm/nccl/library.h"
#include "tests/nccl/nccl_rank.h"
#include "tests/support/asserts.h"

#define RUN_SECONDS 40.0

// A collective of one rank that lies behind much work of the compute stream.
static gs_status let_go_of_much(const gs_rank_env *env) {
    enum { COUNT = 1 << 18, FILLS = 200 };
    comm_rank self;
    gs_work work;
    gs_event *end = NULL;
    bool done = false;
    gs_comm_options options = {.backend = "self"};
    gs_status status = nccl_rank_open(&self, env, COUNT * sizeof(float), &options);
    if (!status.code) status = gs_event_create(&end, self.device, false);
    if (!status.code) {
        float *data = gs_arena_data(self.arena);
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = data,
                             .recv = data,
                             .count = COUNT,
                             .dtype = GS_FP32,
                             .scale = 2,
                             .bucket = -1};
        for (int i = 0; i < FILLS; i++)
            gs_device_kernels(self.device)->fill(gs_device_stream(self.device), data, 1, COUNT);
        status = gs_comm_post(self.comm, &work, &sum);
        gs_event_record(end, gs_comm_stream(self.comm));
        gs_comm_let_go(self.comm, "enough");
    }
    if (!status.code) status = gs_event_query(end, &done);
    if (!status.code && !done) status = gs_error(GS_INTERNAL, "it still moves");
    gs_event_destroy(end);
    comm_rank_close(&self);
    return status;
}

// The compute stream writes a bucket, then goes on with something else; the collective waits for
// the first.
static gs_status follow_compute(const gs_rank_env *env) {
    enum { COUNT = 4096, BUCKETS = 12 };
    static float host[COUNT];
    comm_rank self;
    gs_work works[BUCKETS];
    gs_event *point = NULL;
    gs_status status = nccl_rank_open(&self, env, BUCKETS * sizeof host * 2, NULL);
    if (!status.code) status = gs_event_create(&point, self.device, false);
    float *data = status.code ? NULL : gs_arena_data(self.arena);
    for (int b = 0; b < BUCKETS && !status.code; b++) {
        gs_stream *compute = gs_device_stream(self.device);
        const gs_kernels *kernels = gs_device_kernels(self.device);
        kernels->fill(compute, data + b * COUNT, (float)(self.rank + b), COUNT);
        // Every other bucket lies before a point of which only the host knows that it comes first.
        if (b % 2) gs_event_record(point, compute);
        kernels->fill(compute, data + (BUCKETS + b) * COUNT, 1, COUNT);
        gs_stream_set_point(compute, b % 2 ? point : NULL);
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = data + b * COUNT,
                             .recv = data + b * COUNT,
                             .count = COUNT,
                             .dtype = GS_FP32,
                             .scale = 2,
                             .bucket = b};
        status = gs_comm_post(self.comm, &works[b], &sum);
        gs_stream_set_point(compute, NULL);
    }
    int ranks = self.world_size * (self.world_size - 1) / 2;
    for (int b = 0; b < BUCKETS && !status.code; b++) {
        status = gs_comm_wait(self.comm, works[b], gs_deadline_in_seconds(RUN_SECONDS));
        if (!status.code)
            status = gs_device_download(self.device, host, data + b * COUNT, sizeof host);
        for (size_t i = 0; i < COUNT && !status.code; i++) {
            if (host[i] != (float)(2 * (ranks + b * self.world_size)))
                status =
                    gs_error(GS_DATA_LOSS, "bucket %d: element %zu is %g", b, i, (double)host[i]);
        }
    }
    gs_event_destroy(point);
    comm_rank_close(&self);
    return status;
}

// What a hook enqueues on the communicator's stream comes before what it posts next.
static gs_status precede_post(const gs_rank_env *env) {
    enum { COUNT = 1000 };
    static float host[COUNT];
    comm_rank self;
    gs_status status = nccl_rank_open(&self, env, sizeof host, NULL);
    for (int round = 0; round < 20 && !status.code; round++) {
        float *data = gs_arena_data(self.arena);
        gs_stream *stream = gs_comm_stream(self.comm);
        gs_device_kernels(self.device)->fill(stream, data, (float)(self.rank + round), COUNT);
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = data,
                             .recv = data,
                             .count = COUNT,
                             .dtype = GS_FP32,
                             .bucket = 0,
                             .step = round};
        status = gs_comm_run(self.comm, &sum, gs_deadline_in_seconds(RUN_SECONDS));
        if (!status.code) status = gs_device_download(self.device, host, data, sizeof host);
        int sums = self.world_size * (self.world_size - 1) / 2 + round * self.world_size;
        if (!status.code && (host[0] != (float)sums || host[COUNT - 1] != (float)sums))
            status = gs_error(GS_DATA_LOSS, "round %d: %g", round, (double)host[0]);
    }
    comm_rank_close(&self);
    return status;
}

// One process through many generations: what it holds does not grow.
static gs_status live_long(const gs_rank_env *env) {
    int generations = (int)strtol(env->arg, NULL, 10), descriptors = 0, threads = 0;
    uint64_t free_bytes = 0;
    comm_rank self;
    gs_device_facts facts;
    gs_status status = nccl_rank_open_device(&self, env, 1 << 20);
    for (int g = 1; g <= generations && !status.code; g++) {
        gs_comm_options options = {.generation = (uint32_t)g};
        status = nccl_rank_connect(&self, env, &options, gs_deadline_in_seconds(NCCL_RANK_SECONDS));
        gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1};
        if (!status.code)
            status = gs_comm_run(self.comm, &barrier, gs_deadline_in_seconds(RUN_SECONDS));
        // Every third one ends by an abort.
        if (!status.code && g % 3 == 0) gs_comm_abort(self.comm, "next generation");
        if (!status.code && g % 3 == 0)
            status = gs_comm_wait_ended(self.comm, gs_deadline_in_seconds(RUN_SECONDS));
        gs_comm_destroy(self.comm);
        self.comm = NULL;
        if (!status.code) status = gs_cuda_device_facts(&facts, 0);
        if (g == generations / 4) {
            descriptors = nccl_count_descriptors();
            threads = nccl_count_threads();
            free_bytes = facts.free_bytes;
        }
    }
    if (!status.code && nccl_count_descriptors() > descriptors + 2)
        status = gs_error(GS_INTERNAL, "descriptors grew from %d to %d", descriptors,
                          nccl_count_descriptors());
    // A thread that has ended may be listed for a moment.
    if (!status.code && nccl_count_threads() > threads + 2)
        status = gs_error(GS_INTERNAL, "threads grew from %d to %d", threads, nccl_count_threads());
    if (!status.code && facts.free_bytes + (8 << 20) < free_bytes)
        status = gs_error(GS_INTERNAL, "device memory shrank by %llu bytes",
                          (unsigned long long)(free_bytes - facts.free_bytes));
    comm_rank_close(&self);
    return status;
}

static gs_status say_why(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.backend = "auto"};
    gs_status status = nccl_rank_open(&self, env, 1 << 20, &options);
    if (!status.code) {
        char text[256];
        snprintf(text, sizeof text, "%s: %s", gs_comm_backend_name(self.comm),
                 gs_comm_backend_reason(self.comm));
        gs_rank_note(env, text);
    }
    comm_rank_close(&self);
    return status;
}

static gs_status want_shm(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.backend = "shm"};
    gs_status status = nccl_rank_open(&self, env, 0, &options);
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {{"follow", follow_compute},
                                      {"let go", let_go_of_much},
                                      {"precede", precede_post},
                                      {"generations", live_long},
                                      {"why", say_why},
                                      {"shm", want_shm},
                                      {0}};

static void the_library_tells_its_version(void **state) {
    (void)state;
    char text[128];
    if (!gs_nccl_version(text, sizeof text))
        print_message("%s\n", text);
    else
        assert_int_equal(strncmp(text, "2.", 2), 0);
}

static void an_arena_on_a_gpu_is_zero_and_no_file(void **state) {
    (void)state;
    enum { BYTES = 300000 };
    static unsigned char host[BYTES];
    gs_device *device;
    gs_arena *arena;
    assert_int_equal(gs_device_open(&device, "cuda:0", &(gs_device_options){0}).code, GS_OK);
    assert_int_equal(gs_arena_create_on(&arena, BYTES, device).code, GS_OK);
    assert_true(gs_arena_bytes(arena) >= BYTES);
    assert_int_equal(gs_arena_fd(arena), -1);
    unsigned char *data = gs_arena_data(arena);
    assert_true(gs_arena_contains(arena, data + 1000, gs_arena_bytes(arena) - 1000));
    assert_false(gs_arena_contains(arena, data + 1000, gs_arena_bytes(arena) - 999));
    assert_true(gs_device_is_device_memory(device, data + 1000));
    memset(host, 1, sizeof host);
    assert_int_equal(gs_device_download(device, host, data, sizeof host).code, GS_OK);
    for (size_t i = 0; i < BYTES; i++) assert_int_equal(host[i], 0);
    gs_arena_destroy(arena);
    gs_device_close(device);
}

static void an_arena_lies_on_its_own_gpu(void **state) {
    (void)state;
    enum { BYTES = 64 << 20 };
    gs_device *first, *second;
    gs_arena *arena;
    gs_device_facts before, after;
    char why[256];
    if (gs_cuda_device_count(why, sizeof why) < 2) skip();
    assert_int_equal(gs_device_open(&second, "cuda:1", &(gs_device_options){0}).code, GS_OK);
    assert_int_equal(gs_device_open(&first, "cuda:0", &(gs_device_options){0}).code, GS_OK);
    assert_int_equal(gs_cuda_device_facts(&before, 1).code, GS_OK);
    // What was used last is the thread's: the first.
    gs_deadline deadline = gs_deadline_in_seconds(RUN_SECONDS);
    assert_int_equal(gs_stream_wait(gs_device_stream(first), deadline).code, GS_OK);
    assert_int_equal(gs_arena_create_on(&arena, BYTES, second).code, GS_OK);
    assert_int_equal(gs_cuda_device_facts(&after, 1).code, GS_OK);
    assert_true(after.free_bytes + BYTES <= before.free_bytes);
    gs_arena_destroy(arena);
    gs_device_close(second);
    gs_device_close(first);
}

static void an_arena_larger_than_the_gpu_is_refused(void **state) {
    (void)state;
    gs_device *device;
    gs_arena *arena = NULL;
    assert_int_equal(gs_device_open(&device, "cuda:0", &(gs_device_options){0}).code, GS_OK);
    gs_status status = gs_arena_create_on(&arena, (size_t)1 << 50, device);
    assert_int_equal(status.code, GS_RESOURCE_EXHAUSTED);
    assert_null(arena);
    gs_device_close(device);
}

static void gpus_choose_nccl_and_say_why(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[2];
    assert_int_equal(gs_ranks_start(&ranks, "why", 2, "", NULL).code, GS_OK);
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(120)).code, GS_OK);
    if (statuses[0].code) print_error("%s\n", statuses[0].message);
    assert_int_equal(statuses[0].code, GS_OK);
    assert_non_null(strstr(gs_ranks_note(ranks, 0), "nccl: all 2 ranks have a GPU; NCCL 2."));
    gs_ranks_destroy(ranks);
}

static void shared_memory_of_the_host_is_refused_to_gpus(void **state) {
    (void)state;
    gs_status status = gs_ranks_run("shm", 2, "", gs_deadline_in_seconds(60));
    if (status.code != GS_UNAVAILABLE) print_error("%s\n", status.message);
    assert_int_equal(status.code, GS_UNAVAILABLE);
    assert_non_null(strstr(status.message, "keeps its gradients on cuda:0"));
}

static void a_collective_waits_for_its_input_on_the_compute_stream(void **state) {
    (void)state;
    assert_ok(nccl_ranks_run("follow", 1, ""));
    assert_ok(nccl_ranks_run("follow", 2, ""));
}

static void who_lets_go_has_buffers_that_nothing_writes(void **state) {
    (void)state;
    assert_ok(nccl_ranks_run("let go", 1, ""));
}

static void work_on_the_communicators_stream_precedes_the_next_post(void **state) {
    (void)state;
    assert_ok(nccl_ranks_run("precede", 2, ""));
}

static void generations_leave_nothing_behind(void **state) {
    (void)state;
    assert_ok(nccl_ranks_run(
        "generations", 2,
        getenv("GRADSYNC_NCCL_GENERATIONS") ? getenv("GRADSYNC_NCCL_GENERATIONS") : "40"));
}

int main(int argc, char **argv) {
    int exit_code;
#ifdef GRADSYNC_CUDA_SIM
    setenv("CUDA_SIM_DEVICES", "2", 0);
#endif
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    nccl_skip_without_gpu();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_library_tells_its_version),
        cmocka_unit_test(an_arena_on_a_gpu_is_zero_and_no_file),
        cmocka_unit_test(an_arena_lies_on_its_own_gpu),
        cmocka_unit_test(an_arena_larger_than_the_gpu_is_refused),
        cmocka_unit_test(gpus_choose_nccl_and_say_why),
        cmocka_unit_test(shared_memory_of_the_host_is_refused_to_gpus),
        cmocka_unit_test(a_collective_waits_for_its_input_on_the_compute_stream),
        cmocka_unit_test(who_lets_go_has_buffers_that_nothing_writes),
        cmocka_unit_test(work_on_the_communicators_stream_precedes_the_next_post),
        cmocka_unit_test(generations_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
