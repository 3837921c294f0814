// A sharded state: what of it lies on a rank, which rank saves what, and what is there before a
// generation begins.
#include "worker/state/state_shards.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"
#include "rpc/json/json.h"
#include "rpc/schema/job_plan.h"
#include "tests/support/asserts.h"
#include "worker/state/trainer_state.h"

#define WORLD 3
#define MOST_TENSORS 64

static gs_job_spec spec;

static void read_spec_of(const char *precision, const char *sharding, const char *partition) {
    gs_json *json;
    gs_field_errors errors = {0};
    char text[600];
    snprintf(text, sizeof text,
             "{\"world\":{\"max\":3},\"model\":{\"kind\":\"mlp\",\"precision\":\"%s\","
             "\"mlp\":{\"dims\":[7,19,11,5]}},"
             "\"optimizer\":{\"kind\":\"adamw\"},\"reducer\":{\"first_bucket_bytes\":512,"
             "\"bucket_cap_bytes\":900,\"sharding\":\"%s\",\"partition\":\"%s\"},"
             "\"steps\":{\"target\":1}}",
             precision, sharding, partition);
    assert_ok(gs_json_parse(&json, text, strlen(text)));
    assert_ok(gs_job_spec_decode(&spec, json, &errors));
    gs_json_release(json);
}

static void read_spec(const char *sharding, const char *partition) {
    read_spec_of("fp32", sharding, partition);
}

typedef struct rank_state {
    gs_device *device;
    gs_trainer_state state;
    void *memory;
} rank_state;

static void open_state(rank_state *of) {
    *of = (rank_state){0};
    assert_ok(gs_device_open(&of->device, "cpu", &(gs_device_options){.num_threads = 1}));
    assert_ok(gs_trainer_state_init(&of->state, &spec, of->device));
}

static void close_state(rank_state *of) {
    gs_trainer_state_release(&of->state);
    gs_device_close(of->device);
    free(of->memory);
}

// Memory that was in use before.
static void lay_out(rank_state *of, int rank, int world_size) {
    gs_trainer_state *state = &of->state;
    gs_bucket_plan plan;
    gs_state_shards *shards;
    assert_ok(
        gs_job_plan_make(&plan, &spec, world_size, state->param_specs, state->num_params, NULL));
    assert_ok(
        gs_state_shards_create(&shards, &(gs_state_shards_options){.spec = &spec,
                                                                   .plan = &plan,
                                                                   .params = state->param_specs,
                                                                   .num_params = state->num_params,
                                                                   .rank = rank,
                                                                   .world_size = world_size}));
    gs_bucket_plan_release(&plan);
    size_t bytes = gs_shards_param_bytes(shards->partition);
    void *last = of->memory;
    of->memory = gs_alloc_aligned(bytes, 256);
    memset(of->memory, 0xff, bytes);
    assert_ok(gs_trainer_state_lay_out(state, &spec, shards, of->memory));
    free(last);
}

static size_t held_by_optimizer(const gs_trainer_state *state) {
    size_t count = 0;
    for (size_t i = state->num_params; i < state->num_model_tensors; i++) {
        if (strncmp(state->tensors[i].name, "optimizer.exp_", 14) == 0)
            count += gs_trainer_state_held(state, i).count;
    }
    return count;
}

static void before_a_generation_there_is_no_state(void **state) {
    (void)state;
    rank_state one;
    read_spec("optimizer", "flat");
    open_state(&one);
    assert_int_equal(held_by_optimizer(&one.state), 0);
    assert_false(gs_trainer_state_is_whole(&one.state));
    assert_true(gs_digest_equal(gs_trainer_state_digest(&one.state), (gs_digest){0}));
    close_state(&one);
}

// All parameters with the values of a job that is not sharded, and of the optimizer's state a
// third.
static void ranks_hold_all_parameters_and_their_part_of_the_rest(void **state) {
    (void)state;
    static const char *const partitions[] = {"flat", "oss", "zero"};
    rank_state whole, ranks[WORLD];
    read_spec("none", "flat");
    open_state(&whole);
    for (int p = 0; p < 3; p++) {
        size_t held = 0;
        read_spec("optimizer", partitions[p]);
        for (int r = 0; r < WORLD; r++) {
            open_state(&ranks[r]);
            lay_out(&ranks[r], r, WORLD);
            held += held_by_optimizer(&ranks[r].state);
            size_t num_own = 0;
            const gs_segment *own = gs_optimizer_segments(ranks[r].state.optimizer, &num_own);
            size_t of_optimizer = 0;
            for (size_t i = 0; i < num_own; i++) of_optimizer += own[i].count;
            assert_int_equal(2 * of_optimizer, held_by_optimizer(&ranks[r].state));
            assert_true(gs_digest_equal(gs_trainer_state_params_digest(&ranks[r].state),
                                        gs_trainer_state_params_digest(&whole.state)));
            assert_true(gs_digest_equal(gs_trainer_state_digest(&ranks[r].state),
                                        gs_trainer_state_digest(&ranks[0].state)));
        }
        assert_int_equal(held, held_by_optimizer(&whole.state));
        for (int r = 0; r < WORLD; r++) close_state(&ranks[r]);
    }
    close_state(&whole);
}

// Of a parameter's master, what is not this rank's, is in no memory of its own; its 16 bits are.
static void check_halves(const gs_trainer_state *part, const gs_trainer_state *whole, size_t param) {
    size_t count = gs_param_spec_count(&part->param_specs[param]);
    gs_segment held = gs_trainer_state_held(part, param);
    float *master = malloc(count * sizeof *master), *own = malloc(count * sizeof *own + 1);
    const uint16_t *halves = part->halves[param].data;
    assert_ok(gs_trainer_state_read(whole, param, master));
    assert_ok(gs_trainer_state_read(part, param, own));
    assert_memory_equal(own, master + held.first, held.count * sizeof *own);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(halves[i], gs_fp32_to_fp16(master[i]));
        assert_true(((const float *)part->values[param])[i] == gs_fp16_to_fp32(halves[i]));
    }
    free(master);
    free(own);
}

static void of_16_bits_ranks_hold_all_parameters_and_their_part_of_the_masters(void **state) {
    (void)state;
    static const char *const partitions[] = {"flat", "oss"};
    rank_state whole, ranks[WORLD];
    read_spec_of("fp16", "none", "flat");
    open_state(&whole);
    for (int p = 0; p < 2; p++) {
        size_t held = 0;
        read_spec_of("fp16", "optimizer", partitions[p]);
        for (int r = 0; r < WORLD; r++) {
            const gs_trainer_state *part = &ranks[r].state;
            open_state(&ranks[r]);
            lay_out(&ranks[r], r, WORLD);
            for (size_t i = 0; i < part->num_params; i++) {
                held += gs_trainer_state_held(part, i).count;
                check_halves(part, &whole.state, i);
            }
            assert_true(part->position.loss_scale.scale > 1);
            assert_true(gs_digest_equal(gs_trainer_state_digest(part),
                                        gs_trainer_state_digest(&ranks[0].state)));
            assert_true(gs_digest_equal(gs_trainer_state_params_digest(part),
                                        gs_trainer_state_params_digest(&ranks[0].state)));
        }
        assert_int_equal(held, gs_trainer_state_total_elements(&whole.state));
        for (int r = 0; r < WORLD; r++) close_state(&ranks[r]);
    }
    close_state(&whole);
}

static void save_each_element_once(const char *precision) {
    rank_state ranks[WORLD];
    gs_segment saved[WORLD * MOST_TENSORS];
    gs_segment_tensor tensors[MOST_TENSORS];
    size_t num_saved = 0;
    read_spec_of(precision, "optimizer", "flat");
    for (int r = 0; r < WORLD; r++) {
        open_state(&ranks[r]);
        lay_out(&ranks[r], r, WORLD);
        const gs_trainer_state *held = &ranks[r].state;
        assert_true(held->num_tensors <= MOST_TENSORS);
        for (size_t i = 0; i < held->num_tensors; i++) {
            size_t element_bytes = gs_dtype_bytes(held->tensors[i].dtype);
            tensors[i] = (gs_segment_tensor){held->tensors[i].name,
                                             held->tensors[i].bytes / element_bytes, element_bytes};
            saved[num_saved] = gs_trainer_state_saved(held, i);
            assert_int_equal(saved[num_saved].tensor, i);
            num_saved += saved[num_saved].count > 0;
        }
    }
    assert_ok(gs_segments_check_whole(saved, num_saved, tensors, ranks[0].state.num_tensors));
    for (int r = 0; r < WORLD; r++) close_state(&ranks[r]);
}

static void each_element_is_saved_by_one_rank(void **state) {
    (void)state;
    save_each_element_once("fp32");
    save_each_element_once("bf16");
}

static void compare_with_plan(const char *precision) {
    rank_state one;
    read_spec_of(precision, "optimizer", "flat");
    open_state(&one);
    assert_true(gs_job_plan_is_cut(&spec));
    for (int r = 0; r < WORLD; r++) {
        lay_out(&one, r, WORLD);
        const gs_shards *shards = one.state.shards->partition;
        const gs_bucket_plan *plan = gs_shards_plan(shards);
        for (size_t b = 0; b < plan->num_buckets; b++) {
            size_t first[MOST_TENSORS], num_own, part;
            const gs_segment *own = gs_shards_of_bucket(shards, b, r, &num_own);
            part = gs_job_plan_part_count(WORLD, plan, b, one.state.param_specs);
            assert_int_equal(part * WORLD, gs_shards_bucket_count(shards, b));
            gs_job_plan_member_places(first, plan, b, one.state.param_specs);
            for (size_t i = 0; i < num_own; i++) {
                size_t member = 0;
                while (plan->params[plan->buckets[b].first + member] != own[i].tensor) member++;
                size_t begin = first[member] + own[i].first;
                assert_in_range(begin, part * (size_t)r, part * (size_t)(r + 1) - 1);
                assert_in_range(begin + own[i].count, begin, part * (size_t)(r + 1));
            }
        }
    }
    close_state(&one);
}

// What a plan shows of parts that are cut, before any rank is there.
static void the_plan_says_whose_each_element_is(void **state) {
    (void)state;
    compare_with_plan("fp32");
    compare_with_plan("fp16");
    read_spec("optimizer", "oss");
    assert_false(gs_job_plan_is_cut(&spec));
}

// What the last generation left is gone: the state begins again from where it came from.
static void lay_out_twice(const char *precision) {
    rank_state one;
    read_spec_of(precision, "optimizer", "flat");
    open_state(&one);
    lay_out(&one, 1, WORLD);
    gs_digest first = gs_trainer_state_digest(&one.state);
    size_t third = held_by_optimizer(&one.state);
    ((uint16_t *)one.memory)[1] += 1;
    one.state.position.step = 7;
    gs_trainer_state_take_down(&one.state);
    assert_true(gs_digest_equal(gs_trainer_state_digest(&one.state), (gs_digest){0}));
    lay_out(&one, 0, 1);
    assert_true(gs_trainer_state_is_whole(&one.state));
    assert_true(held_by_optimizer(&one.state) > 2 * third);
    assert_int_equal(one.state.position.step, 0);
    assert_true(gs_digest_equal(gs_trainer_state_digest(&one.state), first));
    close_state(&one);
}

static void another_generation_lays_the_state_out_anew(void **state) {
    (void)state;
    lay_out_twice("fp32");
    lay_out_twice("fp16");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_a_generation_there_is_no_state),
        cmocka_unit_test(ranks_hold_all_parameters_and_their_part_of_the_rest),
        cmocka_unit_test(of_16_bits_ranks_hold_all_parameters_and_their_part_of_the_masters),
        cmocka_unit_test(each_element_is_saved_by_one_rank),
        cmocka_unit_test(the_plan_says_whose_each_element_is),
        cmocka_unit_test(another_generation_lays_the_state_out_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
