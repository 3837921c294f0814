#include "gradsync/sharded/shards.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"
#include "core/random.h"
#include "gradsync/bucket/bucket.h"
#include "tests/support/asserts.h"

#define MAX_PARAMS 40
#define MAX_WORLD 9

typedef struct model {
    gs_param_spec params[MAX_PARAMS];
    size_t num_params;
    gs_bucket_plan plan;
    int owners[MAX_PARAMS];
} model;

static void make_model(model *self, uint64_t seed) {
    gs_random_key key = {.seed = seed, .stream = 7};
    self->num_params = 1 + gs_random_u64(key, 0) % MAX_PARAMS;
    for (size_t i = 0; i < self->num_params; i++) {
        uint64_t drawn = gs_random_u64(key, i + 1);
        // Some are larger than all others together, some empty, some of one element.
        int64_t count = drawn % 7 == 0   ? 20000
                        : drawn % 7 == 1 ? 1
                        : drawn % 7 == 2 ? (int64_t)(drawn / 7 % 2)
                                         : (int64_t)(drawn / 7 % 700);
        self->params[i] = gs_param_spec_make(drawn % 11 == 0 ? GS_FP64 : GS_FP32, 1, 0, "p%zu", i);
        self->params[i].shape[0] = count;
        self->owners[i] = (int)(drawn / 16 % MAX_WORLD);
    }
    assert_ok(gs_bucket_plan_parity(&self->plan, self->params, self->num_params, 1000, 9000, NULL));
}

static gs_shards_options options_for(const model *of, gs_partition partition, int world_size) {
    return (gs_shards_options){.partition = partition,
                               .owners = partition == GS_PARTITION_GIVEN ? of->owners : NULL,
                               .plan = &of->plan,
                               .params = of->params,
                               .num_params = of->num_params,
                               .world_size = world_size};
}

static gs_shards *make_shards(const model *of, gs_partition partition, int world_size) {
    gs_shards *shards;
    const gs_shards_options options = options_for(of, partition, world_size);
    assert_ok(gs_shards_create(&shards, &options));
    return shards;
}

// In any order, all ranks' segments together.
static void assert_whole(const model *of, const gs_shards *shards) {
    gs_segment_tensor tensors[MAX_PARAMS];
    gs_segment all[MAX_PARAMS * MAX_WORLD];
    size_t num_all = 0, num_elements = 0;
    for (size_t i = 0; i < of->num_params; i++)
        tensors[i] = (gs_segment_tensor){.name = of->params[i].name,
                                         .count = gs_param_spec_count(&of->params[i]),
                                         .element_bytes = 4};
    for (int rank = 0; rank < gs_shards_world_size(shards); rank++) {
        size_t num, own = 0;
        const gs_segment *segments = gs_shards_of_rank(shards, rank, &num);
        assert_ok(gs_segments_check_apart(segments, num, tensors, of->num_params));
        for (size_t i = 0; i < num; i++) {
            assert_true(segments[i].count > 0);
            own += segments[i].count;
            all[num_all++] = segments[i];
        }
        assert_int_equal(gs_shards_elements(shards, rank), own);
        num_elements += own;
    }
    assert_ok(gs_segments_check_whole(all, num_all, tensors, of->num_params));
    for (size_t i = 0; i < of->num_params; i++) num_elements -= tensors[i].count;
    assert_int_equal(num_elements, 0);
}

// Every segment of a bucket lies in a run of its owner, and of those a rank has the same ones in
// all.
static void assert_runs_hold_segments(const model *of, const gs_shards *shards) {
    size_t of_buckets = 0, of_ranks = 0, num;
    for (int rank = 0; rank < gs_shards_world_size(shards); rank++) {
        gs_shards_of_rank(shards, rank, &num);
        of_ranks += num;
    }
    for (size_t b = 0; b < of->plan.num_buckets; b++) {
        size_t num_runs, element_bytes = gs_shards_element_bytes(shards, b), before = 0;
        const gs_shard_run *runs = gs_shards_runs(shards, b, &num_runs);
        assert_true(num_runs <= gs_shards_most_runs(shards));
        for (int rank = 0; rank < gs_shards_world_size(shards); rank++) {
            const gs_segment *segments = gs_shards_of_bucket(shards, b, rank, &num);
            of_buckets += num;
            for (size_t i = 0; i < num; i++) {
                size_t at = (gs_shards_param_offset(shards, segments[i].tensor) -
                             gs_shards_bucket_offset(shards, b)) /
                                element_bytes +
                            segments[i].first;
                size_t k = 0;
                while (k < num_runs && runs[k].first + runs[k].count <= at) k++;
                assert_true(k < num_runs && runs[k].first <= at &&
                            at + segments[i].count <= runs[k].first + runs[k].count);
                assert_int_equal(runs[k].owner, rank);
            }
        }
        for (size_t k = 0; k < num_runs; k++) {
            assert_true(runs[k].first >= before);
            before = runs[k].first + runs[k].count;
        }
        assert_true(before <= gs_shards_bucket_count(shards, b));
    }
    assert_int_equal(of_buckets, of_ranks);
}

static void every_element_has_one_owner(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        model of;
        make_model(&of, seed);
        for (gs_partition kind = GS_PARTITION_FLAT; kind <= GS_PARTITION_GIVEN; kind++) {
            int world_size = kind == GS_PARTITION_GIVEN ? MAX_WORLD : 1 + (int)(seed % MAX_WORLD);
            gs_shards *shards = make_shards(&of, kind, world_size);
            assert_whole(&of, shards);
            assert_runs_hold_segments(&of, shards);
            gs_shards_destroy(shards);
        }
        gs_bucket_plan_release(&of.plan);
    }
}

static void flat_parts_are_even_runs_of_whole_lines(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        model of;
        make_model(&of, seed);
        int world_size = 1 + (int)(seed % MAX_WORLD);
        gs_shards *shards = make_shards(&of, GS_PARTITION_FLAT, world_size);
        size_t line = of.plan.num_buckets * GS_LINE_BYTES / 4;
        for (size_t b = 0; b < of.plan.num_buckets; b++) {
            size_t num_runs;
            const gs_shard_run *runs = gs_shards_runs(shards, b, &num_runs);
            assert_int_equal(num_runs, world_size);
            for (int rank = 0; rank < world_size; rank++) {
                assert_int_equal(runs[rank].owner, rank);
                assert_int_equal(runs[rank].count, runs[0].count);
                assert_int_equal(runs[rank].first, runs[0].count * (size_t)rank);
                assert_int_equal(
                    runs[rank].count * (of.plan.buckets[b].dtype == GS_FP64 ? 8 : 4) % 64, 0);
            }
            assert_int_equal(gs_shards_bucket_count(shards, b), runs[0].count * (size_t)world_size);
        }
        // Padding is all that any rank has more: below a line for each member, and one for each
        // part.
        size_t total = 0;
        for (int rank = 0; rank < world_size; rank++) total += gs_shards_elements(shards, rank);
        assert_true(gs_shards_most_elements(shards) <=
                    total / (size_t)world_size + line + of.num_params * 16 + 1);
        gs_shards_destroy(shards);
        gs_bucket_plan_release(&of.plan);
    }
}

// Parameters lie in their block as gradients do in a slot, in elements.
static void parameters_lie_as_gradients_do(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        model of;
        make_model(&of, seed);
        bool is_flat = seed % 2;
        int world_size = 2 + (int)(seed % 5);
        gs_bucket buckets[MAX_PARAMS];
        size_t offsets[MAX_PARAMS], most;
        gs_shards *shards =
            make_shards(&of, is_flat ? GS_PARTITION_FLAT : GS_PARTITION_SORTED, world_size);
        size_t num_parts = is_flat ? (size_t)world_size : 1;
        size_t end = 0;  // of the block so far
        gs_bucket_layout(buckets, offsets, &of.plan, of.params, num_parts);
        assert_ok(gs_bucket_max_layout_bytes(&most, of.params, of.num_params, num_parts));
        for (size_t b = 0; b < of.plan.num_buckets; b++) {
            size_t start = gs_shards_bucket_offset(shards, b);
            assert_int_equal(start, gs_round_up(end, 256));
            end = start + gs_shards_bucket_count(shards, b) * buckets[b].element_bytes;
            assert_int_equal(gs_shards_bucket_count(shards, b), buckets[b].grad_count);
            assert_int_equal(buckets[b].grad_count * buckets[b].element_bytes % (64 * num_parts),
                             0);
            for (size_t i = 0; i < buckets[b].num_params; i++) {
                size_t param = buckets[b].params[i];
                assert_int_equal(gs_shards_param_offset(shards, param) - start,
                                 offsets[param] - buckets[b].offset_bytes);
            }
            assert_true(buckets[b].offset_bytes +
                            (buckets[b].grad_count + buckets[b].reserved_count) *
                                buckets[b].element_bytes <=
                        most);
        }
        assert_int_equal(gs_shards_param_bytes(shards), gs_round_up(end, 256));
        gs_shards_destroy(shards);
        gs_bucket_plan_release(&of.plan);
    }
}

// The tensors of GPT-2 124M, 148 of them, in registration order.
static size_t list_gpt2(gs_param_spec *params) {
    size_t n = 0;
    const int64_t blocks[][2] = {{768, 0}, {768, 0}, {2304, 768}, {2304, 0}, {768, 768},  {768, 0},
                                 {768, 0}, {768, 0}, {3072, 768}, {3072, 0}, {768, 3072}, {768, 0}};
    params[n] = gs_param_spec_make(GS_FP32, 50257, 768, "p%zu", n), n++;
    params[n] = gs_param_spec_make(GS_FP32, 1024, 768, "p%zu", n), n++;
    for (int layer = 0; layer < 12; layer++)
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
            params[n] = gs_param_spec_make(GS_FP32, blocks[i][0], blocks[i][1], "p%zu", n), n++;
    params[n] = gs_param_spec_make(GS_FP32, 768, 0, "p%zu", n), n++;
    params[n] = gs_param_spec_make(GS_FP32, 768, 0, "p%zu", n), n++;
    return n;
}

// Largest shard over the mean of 16.
static double balance_of_gpt2(gs_partition partition) {
    static gs_param_spec params[160];
    size_t num_params = list_gpt2(params), total = 0;
    gs_bucket_plan plan;
    gs_shards *shards;
    assert_ok(gs_bucket_plan_parity(&plan, params, num_params, 1 << 20, 25 << 20, NULL));
    assert_ok(gs_shards_create(&shards, &(gs_shards_options){.partition = partition,
                                                             .plan = &plan,
                                                             .params = params,
                                                             .num_params = num_params,
                                                             .world_size = 16}));
    for (int rank = 0; rank < 16; rank++) total += gs_shards_elements(shards, rank);
    assert_int_equal(total, 124439808);
    double balance = (double)gs_shards_most_elements(shards) * 16 / (double)total;
    gs_shards_destroy(shards);
    gs_bucket_plan_release(&plan);
    return balance;
}

static void flat_shards_of_gpt2_are_equal(void **state) {
    (void)state;
    assert_near(balance_of_gpt2(GS_PARTITION_FLAT), 1.00, 0.001);
    assert_near(balance_of_gpt2(GS_PARTITION_GREEDY), 4.96, 0.005);
    assert_near(balance_of_gpt2(GS_PARTITION_SORTED), 4.96, 0.005);
}

static bool same_digest(const gs_shards *a, const gs_shards *b) {
    return gs_digest_equal(gs_shards_digest(a), gs_shards_digest(b));
}

static void redone_shards_are_those_made_anew(void **state) {
    (void)state;
    for (gs_partition kind = GS_PARTITION_FLAT; kind <= GS_PARTITION_GIVEN; kind++) {
        model of, other;
        make_model(&of, 3);
        make_model(&other, 3);
        gs_bucket_plan_release(&other.plan);
        assert_ok(gs_bucket_plan_parity(&other.plan, of.params, of.num_params, 4000, 40000, NULL));
        const int *owners = kind == GS_PARTITION_GIVEN ? of.owners : NULL;
        gs_shards *shards = make_shards(&of, kind, MAX_WORLD), *anew;
        assert_ok(gs_shards_redo(shards, MAX_WORLD + 1, NULL, owners));
        anew = make_shards(&of, kind, MAX_WORLD + 1);
        assert_true(same_digest(shards, anew));
        assert_ok(gs_shards_redo(shards, MAX_WORLD, &other.plan, owners));
        assert_false(same_digest(shards, anew));
        gs_shards_destroy(anew);
        anew = make_shards(&other, kind, MAX_WORLD);
        assert_true(same_digest(shards, anew));
        // What fails changes nothing.
        gs_status status = gs_shards_redo(shards, 0, NULL, owners);
        assert_string_equal(status.message, "shards: 0 ranks");
        assert_true(same_digest(shards, anew));
        gs_shards_destroy(anew);
        gs_shards_destroy(shards);
        gs_bucket_plan_release(&of.plan);
        gs_bucket_plan_release(&other.plan);
    }
}

// Whole tensors of each are dealt as if it were alone; a rank's segments are those of all of them.
static void several_optimizers_are_dealt_each_by_itself(void **state) {
    (void)state;
    static const int64_t counts[] = {10, 3, 4, 3, 4, 9};
    static const int optimizers[] = {0, 1, 0, 1, 0, 1};
    // By the greedy rule 10 | 4, 4 and 3 | 3, 9; in one list 10, 3 | 4, 3, 4, 9.
    static const int owners[] = {0, 0, 1, 1, 1, 0};
    model of = {.num_params = 6};
    for (size_t i = 0; i < of.num_params; i++)
        of.params[i] = gs_param_spec_make(GS_FP32, counts[i], 0, "p%zu", i);
    assert_ok(gs_bucket_plan_parity(&of.plan, of.params, of.num_params, 100, 100, NULL));
    for (gs_partition kind = GS_PARTITION_FLAT; kind <= GS_PARTITION_SORTED; kind++) {
        gs_shards *shards, *one = make_shards(&of, kind, 2);
        gs_shards_options options = options_for(&of, kind, 2);
        options.optimizers = optimizers;
        assert_ok(gs_shards_create(&shards, &options));
        assert_int_equal(gs_shards_num_optimizers(shards), 2);
        assert_int_equal(gs_shards_num_optimizers(one), 1);
        assert_false(gs_digest_equal(gs_shards_digest(shards), gs_shards_digest(one)));
        if (kind == GS_PARTITION_GREEDY)
            assert_memory_equal(gs_shards_owners(shards), owners, sizeof owners);
        assert_whole(&of, shards);
        for (int rank = 0; rank < 2; rank++) {
            size_t num_all, num_seen = 0, num;
            gs_shards_of_rank(shards, rank, &num_all);
            for (int k = 0; k < 2; k++) {
                const gs_segment *own = gs_shards_of_optimizer(shards, rank, k, &num);
                for (size_t i = 0; i < num; i++) assert_int_equal(optimizers[own[i].tensor], k);
                num_seen += num;
            }
            assert_int_equal(num_seen, num_all);
        }
        assert_ok(gs_shards_redo(shards, 3, NULL, NULL));
        assert_int_equal(gs_shards_num_optimizers(shards), 2);
        gs_shards_destroy(shards);
        gs_shards_destroy(one);
    }
    gs_bucket_plan_release(&of.plan);
}

// Parameters of 16 bits: the block is half as large, and gradients lie as ever.
static void elements_are_as_large_as_the_caller_says(void **state) {
    (void)state;
    model of;
    make_model(&of, 11);
    for (gs_partition kind = GS_PARTITION_FLAT; kind <= GS_PARTITION_GIVEN; kind++) {
        gs_shards *shards, *plain = make_shards(&of, kind, MAX_WORLD);
        gs_shards_options options = options_for(&of, kind, MAX_WORLD);
        size_t end = 0;
        options.element_bytes = 2;
        assert_ok(gs_shards_create(&shards, &options));
        assert_false(same_digest(shards, plain));
        for (size_t b = 0; b < of.plan.num_buckets; b++) {
            assert_int_equal(gs_shards_element_bytes(shards, b), 2);
            assert_int_equal(gs_shards_bucket_offset(shards, b), gs_round_up(end, 256));
            assert_int_equal(gs_shards_bucket_count(shards, b), gs_shards_bucket_count(plain, b));
            end = gs_shards_bucket_offset(shards, b) + 2 * gs_shards_bucket_count(shards, b);
        }
        assert_int_equal(gs_shards_param_bytes(shards), gs_round_up(end, 256));
        gs_shards_destroy(shards);
        gs_shards_destroy(plain);
    }
    gs_bucket_plan_release(&of.plan);
}

// 10 of which none is trained, then 3 and 4: the first counts as one element, in another world, too.
static void what_is_frozen_weighs_one_element(void **state) {
    (void)state;
    static const int64_t counts[] = {10, 3, 4};
    static const bool trainable[] = {false, true, true};
    static const int of_two[] = {0, 1, 0}, of_three[] = {0, 1, 2};
    model of = {.num_params = 3};
    gs_shards *shards;
    for (size_t i = 0; i < of.num_params; i++)
        of.params[i] = gs_param_spec_make(GS_FP32, counts[i], 0, "p%zu", i);
    assert_ok(gs_bucket_plan_parity(&of.plan, of.params, of.num_params, 100, 100, NULL));
    gs_shards_options options = options_for(&of, GS_PARTITION_GREEDY, 3);
    options.trainable = trainable;
    assert_ok(gs_shards_create(&shards, &options));
    assert_memory_equal(gs_shards_owners(shards), of_three, sizeof of_three);
    assert_ok(gs_shards_redo(shards, 2, NULL, NULL));
    assert_memory_equal(gs_shards_owners(shards), of_two, sizeof of_two);
    gs_shards_destroy(shards);
    gs_bucket_plan_release(&of.plan);
}

static void lists_point_where_segments_begin(void **state) {
    (void)state;
    model of;
    make_model(&of, 3);
    gs_shards *shards = make_shards(&of, GS_PARTITION_FLAT, MAX_WORLD);
    char memory[MAX_PARAMS];
    void *tensors[MAX_PARAMS], *own[MAX_PARAMS];
    for (size_t i = 0; i < of.num_params; i++) tensors[i] = &memory[i];
    for (int rank = 0; rank < MAX_WORLD; rank++) {
        size_t num;
        const gs_segment *segments = gs_shards_of_rank(shards, rank, &num);
        gs_shards_point(own, shards, rank, tensors, 2);
        for (size_t i = 0; i < num; i++)
            assert_ptr_equal((void *)((uintptr_t)own[i] - 2 * segments[i].first),
                             tensors[segments[i].tensor]);
    }
    gs_shards_destroy(shards);
    gs_bucket_plan_release(&of.plan);
}

static void expect_refused(const gs_shards_options *options, const char *words) {
    gs_shards *shards;
    gs_status status = gs_shards_create(&shards, options);
    assert_null(shards);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    if (!strstr(status.message, words)) fail_msg("\"%s\", not \"%s\"", status.message, words);
}

static void what_is_no_partition_is_refused_by_name(void **state) {
    (void)state;
    model of;
    make_model(&of, 5);
    gs_shards_options options = options_for(&of, GS_PARTITION_GIVEN, MAX_WORLD);
    of.owners[1] = MAX_WORLD;
    expect_refused(&options, "parameter 1 \"p1\": its owner is 9 of 9 ranks");
    options.owners = NULL;
    expect_refused(&options, "owners are for the partition \"given\"");
    options.partition = 17;
    expect_refused(&options, "partition 17 is none");
    options.partition = GS_PARTITION_FLAT;
    int optimizers[MAX_PARAMS] = {0};
    options.optimizers = optimizers;
    optimizers[0] = 2;
    if (of.num_params > 2) expect_refused(&options, "optimizer 1 has no parameters");
    optimizers[0] = -1;
    expect_refused(&options, "parameter 0 \"p0\": optimizer -1");
    options.optimizers = NULL;
    of.params[0].sparse = true;
    expect_refused(&options, "parameter 0 \"p0\": is sparse");
    of.params[0].sparse = false;
    of.plan.num_params--;
    expect_refused(&options, "");
    of.plan.num_params++;
    gs_bucket_plan_release(&of.plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_has_one_owner),
        cmocka_unit_test(flat_parts_are_even_runs_of_whole_lines),
        cmocka_unit_test(parameters_lie_as_gradients_do),
        cmocka_unit_test(flat_shards_of_gpt2_are_equal),
        cmocka_unit_test(redone_shards_are_those_made_anew),
        cmocka_unit_test(several_optimizers_are_dealt_each_by_itself),
        cmocka_unit_test(elements_are_as_large_as_the_caller_says),
        cmocka_unit_test(what_is_frozen_weighs_one_element),
        cmocka_unit_test(lists_point_where_segments_begin),
        cmocka_unit_test(what_is_no_partition_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
