// What gs_comm checks for every backend, and the communicator of one rank.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/comm/comm.h"
#include "tests/support/soon.h"

typedef struct fixture {
    gs_device *device;
    gs_comm *comm;
} fixture;

static int open_comm(void **state) {
    static fixture fx;
    if (gs_device_open(&fx.device, "cpu", &(gs_device_options){.num_threads = 1}).code) return -1;
    gs_comm_options options = {.world_size = 1, .generation = 1, .device = fx.device};
    if (gs_comm_create(&fx.comm, &options, soon()).code) return -1;
    *state = &fx;
    return 0;
}

static int close_comm(void **state) {
    fixture *fx = *state;
    gs_comm_destroy(fx->comm);
    gs_device_close(fx->device);
    return 0;
}

static void one_rank_gets_backend_self_and_why(void **state) {
    fixture *fx = *state;
    assert_string_equal(gs_comm_backend_name(fx->comm), "self");
    assert_string_equal(gs_comm_backend_reason(fx->comm), "there is one rank");
    assert_int_equal(gs_comm_rank(fx->comm), 0);
    assert_int_equal(gs_comm_world_size(fx->comm), 1);
}

static void one_rank_sums_to_its_scaled_input(void **state) {
    fixture *fx = *state;
    float send[3] = {1, 2, 3}, recv[3] = {0};
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = send,
                         .recv = recv,
                         .count = 3,
                         .dtype = GS_FP32,
                         .scale = 0.5};
    assert_int_equal(gs_comm_run(fx->comm, &sum, soon()).code, GS_OK);
    assert_true(recv[0] == 0.5f && recv[1] == 1.0f && recv[2] == 1.5f);
    sum.scale = 0;
    assert_int_equal(gs_comm_run(fx->comm, &sum, soon()).code, GS_OK);
    assert_memory_equal(recv, send, sizeof send);
}

static void one_rank_rounds_to_its_wire_dtype(void **state) {
    fixture *fx = *state;
    float send[3] = {1 + 0x1p-8f, 1 + 0x1.8p-7f, 200000.0f}, recv[3] = {0};
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = send,
                         .recv = recv,
                         .count = 3,
                         .dtype = GS_FP32,
                         .wire_dtype = GS_BF16};
    assert_int_equal(gs_comm_run(fx->comm, &sum, soon()).code, GS_OK);
    assert_true(recv[0] == 1.0f && recv[1] == 1 + 0x1p-6f && recv[2] == 199680.0f);
    sum.wire_dtype = GS_FP16;
    sum.wire_scale = 0.5f;
    assert_int_equal(gs_comm_run(fx->comm, &sum, soon()).code, GS_OK);
    assert_true(recv[0] == send[0] / 2 && recv[1] == send[1] / 2 && recv[2] == INFINITY);
}

static void one_rank_follows_a_tree_of_its_own_parts(void **state) {
    fixture *fx = *state;
    float parts[3][2] = {{1, 2}, {10, 20}, {100, 200}};
    const int rank[3] = {0, 0, 0}, part[3] = {0, 1, 2};
    const uint8_t merges[3] = {0, 1, 1};
    gs_reduce_tree tree = {3, rank, part, merges};
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = parts,
                         .recv = parts,
                         .count = 2,
                         .dtype = GS_FP32,
                         .tree = &tree,
                         .part_stride_bytes = sizeof parts[0]};
    for (; sum.kind <= GS_REDUCE_SCATTER; sum.kind++) {
        parts[0][0] = 1, parts[0][1] = 2;
        assert_int_equal(gs_comm_run(fx->comm, &sum, soon()).code, GS_OK);
        assert_true(parts[0][0] == 111.0f && parts[0][1] == 222.0f);
    }
}

static gs_status post(fixture *fx, gs_collective collective) {
    gs_work work;
    return gs_comm_post(fx->comm, &work, &collective);
}

static void expect_refusal(fixture *fx, gs_collective collective, const char *text) {
    gs_status status = post(fx, collective);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    if (!strstr(status.message, text)) print_error("%s\n", status.message);
    assert_non_null(strstr(status.message, text));
}

static void wrong_collectives_are_refused_by_name(void **state) {
    fixture *fx = *state;
    float data[8] = {0};
    gs_collective good = {
        .kind = GS_ALLREDUCE, .send = data, .recv = data, .count = 4, .dtype = GS_FP32};
    gs_collective bad = good;
    bad.kind = GS_COLLECTIVE_UNSET;
    expect_refusal(fx, bad, "unknown kind 0");
    bad = good, bad.dtype = GS_DTYPE_UNSET;
    expect_refusal(fx, bad, "unknown dtype");
    bad = good, bad.dtype = GS_U8;
    expect_refusal(fx, bad, "u8 cannot be reduced");
    bad = good, bad.dtype = GS_I32, bad.scale = 0.5;
    expect_refusal(fx, bad, "i32 cannot be scaled");
    bad = good, bad.count = SIZE_MAX / 2;
    expect_refusal(fx, bad, "too large");
    bad = good, bad.recv = NULL;
    expect_refusal(fx, bad, "receive buffer is missing");
    bad = good, bad.send = NULL;
    expect_refusal(fx, bad, "send buffer is missing");
    bad = good, bad.recv = data + 1;
    expect_refusal(fx, bad, "overlap");
    bad = good, bad.send = (char *)data + 2;
    expect_refusal(fx, bad, "does not lie on a boundary of fp32");
    bad = good, bad.lane = 1;
    expect_refusal(fx, bad, "lane 1 of a communicator with 1");
    bad = good, bad.lane = -1;
    expect_refusal(fx, bad, "lane -1");
    bad = good, bad.kind = GS_BROADCAST, bad.root = 1;
    expect_refusal(fx, bad, "root 1 is no rank of 1");
    bad = good, bad.wire_scale = 0.5f;
    expect_refusal(fx, bad, "a wire scale of 0.5, but no wire dtype");
    bad = good, bad.wire_dtype = GS_FP64;
    expect_refusal(fx, bad, "wire dtype fp64 has not 16 bits");
    bad = good, bad.wire_dtype = GS_BF16, bad.op = GS_OP_MAX;
    expect_refusal(fx, bad, "for sums of fp32 or fp64, not for max of fp32");
    bad = good, bad.wire_dtype = GS_FP16, bad.dtype = GS_I32;
    expect_refusal(fx, bad, "for sums of fp32 or fp64, not for sum of i32");
    bad = good, bad.wire_dtype = GS_FP16, bad.kind = GS_BROADCAST;
    expect_refusal(fx, bad, "for sums of fp32 or fp64, not for broadcast");
    assert_int_equal(post(fx, good).code, GS_OK);
}

static void wrong_trees_are_refused_by_name(void **state) {
    fixture *fx = *state;
    float data[8] = {0}, other[4];
    const int rank[2] = {0, 0}, foreign[2] = {0, 1}, part[2] = {0, 1};
    const uint8_t merges[2] = {0, 1}, none[2] = {0, 0}, many[2] = {0, 2};
    gs_reduce_tree tree = {2, rank, part, merges};
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = other,
                         .count = 4,
                         .dtype = GS_FP32,
                         .tree = &tree,
                         .part_stride_bytes = 16};
    assert_int_equal(post(fx, sum).code, GS_OK);
    sum.wire_dtype = GS_BF16;
    expect_refusal(fx, sum, "not along a tree");
    sum.wire_dtype = GS_DTYPE_UNSET;
    sum.recv = data + 4;
    expect_refusal(fx, sum, "overlaps part 1");
    sum.recv = data + 1;
    expect_refusal(fx, sum, "overlaps part 0");
    sum.recv = other;
    sum.part_stride_bytes = SIZE_MAX - 3;
    expect_refusal(fx, sum, "lies nowhere");
    sum.part_stride_bytes = 17;
    expect_refusal(fx, sum, "lies nowhere");
    sum.part_stride_bytes = 16;
    tree.rank = foreign;
    expect_refusal(fx, sum, "of rank 1 of 1");
    tree.rank = rank, tree.merges = none;
    expect_refusal(fx, sum, "leaves 2 sums");
    tree.merges = many;
    expect_refusal(fx, sum, "merges too much");
    tree.merges = merges, sum.kind = GS_ALLGATHER;
    expect_refusal(fx, sum, "not for all-gather");
    for (gs_collective_kind kind = GS_REDUCE; kind <= GS_REDUCE_SCATTER; kind++) {
        sum.kind = kind;
        assert_int_equal(post(fx, sum).code, GS_OK);
        sum.recv = data + 5;
        expect_refusal(fx, sum, "overlaps part 1");
        sum.recv = other;
    }
}

static void what_was_not_posted_cannot_be_waited_for(void **state) {
    fixture *fx = *state;
    assert_int_equal(gs_comm_wait(fx->comm, (gs_work){.sequence = 9999}, soon()).code, GS_FAILED_PRECONDITION);
    gs_work_times times;
    assert_false(gs_comm_times(fx->comm, (gs_work){.sequence = 9999}, &times));
    const gs_work nowhere[] = {{1, 1}, {1, -1}, {1, GS_COMM_MAX_LANES}};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        assert_int_equal(gs_comm_wait(fx->comm, nowhere[i], soon()).code, GS_FAILED_PRECONDITION);
        assert_false(gs_comm_done(fx->comm, nowhere[i]));
        assert_false(gs_comm_times(fx->comm, nowhere[i], &times));
    }
}

static void lanes_count_their_collectives_apart(void **state) {
    fixture *fx = *state;
    gs_comm *comm;
    gs_comm_options options = {.world_size = 1, .device = fx->device, .num_lanes = 3};
    assert_int_equal(gs_comm_create(&comm, &options, soon()).code, GS_OK);
    assert_int_equal(gs_comm_num_lanes(comm), 3);
    assert_int_equal(gs_comm_num_lanes(fx->comm), 1);
    gs_work work;
    gs_work_times times, first;
    const int lanes[] = {2, 0, 2, 1, 2};
    const uint64_t sequences[] = {1, 1, 2, 1, 3};
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++) {
        gs_collective barrier = {.kind = GS_BARRIER, .lane = lanes[i]};
        assert_int_equal(gs_comm_post(comm, &work, &barrier).code, GS_OK);
        assert_int_equal(work.lane, lanes[i]);
        assert_int_equal(work.sequence, sequences[i]);
        assert_int_equal(gs_comm_wait(comm, work, soon()).code, GS_OK);
    }
    assert_true(gs_comm_done(comm, (gs_work){3, 2}));
    assert_false(gs_comm_done(comm, (gs_work){2, 1}));
    assert_true(gs_comm_times(comm, (gs_work){1, 2}, &first));
    assert_true(gs_comm_times(comm, (gs_work){3, 2}, &times));
    assert_true(first.posted_ns && first.posted_ns <= times.posted_ns);
    gs_status status = gs_comm_wait(comm, (gs_work){2, 1}, soon());
    assert_string_equal(status.message, "collective 2 of lane 1 was not posted");
    gs_comm_let_go(comm, "enough");
    gs_comm_destroy(comm);
}

static void a_collective_of_another_lane_says_so(void **state) {
    (void)state;
    static const struct {
        gs_collective collective;
        const char *name;
    } cases[] = {{{.bucket = 3, .step = 5}, "bucket 3, step 5"},
                 {{.bucket = -1, .step = 5}, "collective 17, step 5"},
                 {{.bucket = 3, .step = 5, .lane = 2}, "bucket 3 in lane 2, step 5"},
                 {{.bucket = -1, .step = 5, .lane = 2}, "collective 17 of lane 2, step 5"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64];
        gs_collective_name(name, sizeof name, 17, &cases[i].collective);
        assert_string_equal(name, cases[i].name);
    }
}

#ifndef GRADSYNC_CUDA
static void nccl_is_unimplemented_without_cuda(void **state) {
    fixture *fx = *state;
    gs_comm *comm = NULL;
    char why[64];
    gs_comm_options options = {.backend = "nccl", .world_size = 1, .device = fx->device};
    gs_status status = gs_comm_create(&comm, &options, soon());
    assert_int_equal(status.code, GS_UNIMPLEMENTED);
    assert_string_equal(status.message, "backend nccl: this build has no CUDA");
    assert_null(comm);
    assert_false(gs_nccl_version(why, sizeof why));
    assert_string_equal(why, "this build has no CUDA");
}
#endif

static void done_and_times_tell_of_a_posted_collective(void **state) {
    fixture *fx = *state;
    gs_collective barrier = {.kind = GS_BARRIER};
    gs_work work;
    gs_work_times times;
    assert_int_equal(gs_comm_post(fx->comm, &work, &barrier).code, GS_OK);
    assert_true(gs_comm_done(fx->comm, work));
    assert_true(gs_comm_times(fx->comm, work, &times));
    assert_true(times.posted_ns > 0 && times.finished_ns >= times.posted_ns);
}

static void an_abort_keeps_its_first_reason_and_what_was_done(void **state) {
    fixture *fx = *state;
    gs_collective barrier = {.kind = GS_BARRIER};
    gs_work work;
    assert_int_equal(gs_comm_post(fx->comm, &work, &barrier).code, GS_OK);
    gs_comm_abort(fx->comm, "generation 4 begins");
    gs_comm_abort(fx->comm, "second");
    assert_int_equal(gs_comm_wait(fx->comm, work, soon()).code, GS_OK);
    gs_status status = gs_comm_run(fx->comm, &barrier, soon());
    assert_int_equal(status.code, GS_ABORTED);
    assert_string_equal(status.message, "generation 4 begins");
}

static void wrong_options_are_refused_by_name(void **state) {
    fixture *fx = *state;
    static const struct {
        int rank, world_size, num_lanes;
        bool device;
        const char *text;
    } cases[] = {{0, 0, 0, true, "world size 0"},       {2, 1, 0, true, "rank 2"},
                 {-1, 1, 0, true, "rank -1"},           {0, 2, 0, true, "needs an exchange"},
                 {0, 1, 0, false, "needs a device"},    {0, 1, 9, true, "1 to 8 lanes, not 9"},
                 {0, 1, -1, true, "1 to 8 lanes, not -1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gs_comm *comm;
        gs_comm_options options = {.rank = cases[i].rank,
                                   .world_size = cases[i].world_size,
                                   .num_lanes = cases[i].num_lanes,
                                   .device = cases[i].device ? fx->device : NULL};
        gs_status status = gs_comm_create(&comm, &options, soon());
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        assert_non_null(strstr(status.message, cases[i].text));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_gets_backend_self_and_why),
        cmocka_unit_test(one_rank_sums_to_its_scaled_input),
        cmocka_unit_test(one_rank_rounds_to_its_wire_dtype),
        cmocka_unit_test(one_rank_follows_a_tree_of_its_own_parts),
        cmocka_unit_test(wrong_collectives_are_refused_by_name),
        cmocka_unit_test(wrong_trees_are_refused_by_name),
        cmocka_unit_test(what_was_not_posted_cannot_be_waited_for),
        cmocka_unit_test(lanes_count_their_collectives_apart),
        cmocka_unit_test(a_collective_of_another_lane_says_so),
        cmocka_unit_test(done_and_times_tell_of_a_posted_collective),
        cmocka_unit_test(wrong_options_are_refused_by_name),
#ifndef GRADSYNC_CUDA
        cmocka_unit_test(nccl_is_unimplemented_without_cuda),
#endif
        cmocka_unit_test(an_abort_keeps_its_first_reason_and_what_was_done),
    };
    return cmocka_run_group_tests(tests, open_comm, close_comm);
}
