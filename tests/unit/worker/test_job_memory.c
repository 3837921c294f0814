// What a specification foretells of a rank's memory is what the trainer, the library and the models
// lay out.
#include "rpc/schema/job_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/bucket/grad_layout.h"
#include "gradsync/comm/shm/segment.h"
#include "gradsync/optim/host_update.h"
#include "gradsync/step/logical_shards.h"
#include "rpc/json/json.h"
#include "rpc/schema/job_plan.h"
#include "tests/support/asserts.h"
#include "worker/state/device_copy.h"
#include "worker/state/sharding.h"

#define MLP "\"kind\":\"mlp\",\"mlp\":{\"dims\":[31,130,77,10]}"
#define PLAIN_MLP "\"kind\":\"mlp\",\"mlp\":{\"dims\":[31,130,77,10],\"batch_norm\":\"none\"}"
// One bucket of 12 parameters on 15 lines: its reserved elements fill the 16th, and one more would
// take 256 bytes.
#define FULL_MLP "\"kind\":\"mlp\",\"mlp\":{\"dims\":[5,5,5,5,2,2,2],\"batch_norm\":\"none\"}"
#define GPT2                                                                                       \
    "\"kind\":\"gpt2\",\"gpt2\":{\"layers\":3,\"heads\":3,\"channels\":21,\"context\":9,"          \
    "\"vocab\":77}"

#define DEALT "\"sharding\":\"optimizer\",\"zero_overlap\":\"step\""
#define BF16 ",\"precision\":\"bf16\""

typedef struct job {
    const char *what, *model, *optimizer, *reducer, *more;
    int world_size, logical_shards;
} job;

static const job jobs[] = {
    {"one rank", MLP, "adamw", "", "", 1, 1},
    {"whole states", GPT2, "adam", "", "", 3, 4},
    {"no state", PLAIN_MLP, "sgd", "", "", 2, 2},
    {"exact", MLP, "adamw", "", ",\"exact\":true", 3, 22},
    {"flat", GPT2, "adamw", "\"sharding\":\"optimizer\"", "", 4, 4},
    {"flat of 7", MLP, "adamw", "\"sharding\":\"optimizer\"", ",\"exact\":true", 7, 7},
    {"whole tensors", GPT2, "adamw", "\"sharding\":\"optimizer\",\"partition\":\"oss\"", "", 3, 3},
    {"large ones first", MLP, "adamw", "\"sharding\":\"optimizer\",\"partition\":\"zero\"", "", 9,
     9},
    {"overlap", MLP, "adamw",
     "\"sharding\":\"optimizer\",\"zero_overlap\":\"step\",\"zero_split_buckets\":true", "", 3, 3},
    {"windows", GPT2, "adamw", "\"sharding\":\"gradients\"", "", 3, 3},
    {"windows of passes", MLP, "adamw", "\"sharding\":\"gradients\"", "", 2, 4},
    {"masters", GPT2 BF16, "adamw", "\"sharding\":\"optimizer\"", "", 3, 3},
    {"masters of whole tensors", MLP BF16, "sgd",
     "\"sharding\":\"optimizer\",\"partition\":\"oss\"", "", 4, 4},
    {"a full line of reserved elements", FULL_MLP, "adamw", "", "", 2, 2},
    {"masters and windows of passes", MLP BF16, "adamw", "\"sharding\":\"gradients\"", "", 2, 4},
};

typedef struct foreseen {
    gs_job_spec spec;
    gs_device *device;
    gs_trainer_state state;
    gs_bucket_plan plan;
    gs_job_memory *memory;
} foreseen;

static void open_job(foreseen *it, const job *of) {
    gs_json *json;
    gs_field_errors errors = {0};
    char text[900];
    *it = (foreseen){0};
    snprintf(text, sizeof text,
             "{\"world\":{\"min\":%d,\"max\":%d},\"logical_shards\":%d,\"model\":{%s},"
             "\"data\":{\"micro_batch\":5},\"optimizer\":{\"kind\":\"%s\"},"
             "\"reducer\":{\"first_bucket_bytes\":4000,\"bucket_cap_bytes\":9000%s%s},"
             "\"steps\":{\"target\":9}%s}",
             of->world_size, of->world_size, of->logical_shards, of->model, of->optimizer,
             *of->reducer ? "," : "", of->reducer, of->more);
    assert_ok(gs_json_parse(&json, text, strlen(text)));
    gs_status status = gs_job_spec_decode(&it->spec, json, &errors);
    if (status.code)
        fail_msg("%s: %s %s", of->what, errors.items[0].pointer, errors.items[0].message);
    gs_json_release(json);
    assert_ok(gs_device_open(&it->device, "cpu", &(gs_device_options){.num_threads = 1}));
    assert_ok(gs_trainer_state_init(&it->state, &it->spec, it->device));
    assert_ok(gs_job_plan_make(&it->plan, &it->spec, of->world_size, it->state.param_specs,
                               it->state.num_params, NULL));
    assert_ok(gs_job_memory_foresee(&it->memory,
                                    &(gs_job_memory_request){.spec = &it->spec,
                                                             .plan = &it->plan,
                                                             .params = it->state.param_specs,
                                                             .num_params = it->state.num_params,
                                                             .world_size = of->world_size}));
}

static void close_job(foreseen *it) {
    free(it->memory);
    gs_bucket_plan_release(&it->plan);
    gs_trainer_state_release(&it->state);
    gs_device_close(it->device);
}

// As a session does, without memory.
static size_t lay_out_grads(const foreseen *it, const job *of, const gs_sharding *sharding,
                            int rank) {
    gs_grad_layout layout;
    const gs_logical_shards shards = {.num_shards = of->logical_shards,
                                      .world_size = of->world_size,
                                      .rank = rank,
                                      .exact = it->spec.exact};
    bool cut = sharding->partition && !gs_shards_owners(sharding->partition);
    gs_grad_layout_shape shape = {.params = it->state.param_specs,
                                  .num_params = it->state.num_params,
                                  .num_slots = 0,
                                  // One apart leaves the room, but in windows.
                                  .tally = sharding->windows.num_windows ? GS_TALLY_APART
                                                                         : GS_TALLY_IN_BUCKETS,
                                  .num_parts = cut ? (size_t)of->world_size : 1,
                                  .num_windows = (size_t)sharding->windows.num_windows,
                                  .own_part = (size_t)rank,
                                  .opens_early = sharding->opens_early,
                                  .adds_up = of->logical_shards > of->world_size};
    assert_ok(gs_grad_layout_init(&layout, &shape, NULL));
    assert_ok(gs_grad_layout_set_plan(&layout, &it->plan));
    size_t bytes = layout.slot_bytes;
    if (!shape.num_windows) {
        const gs_bucket *last = &layout.buckets[layout.plan.num_buckets - 1];
        size_t count = last->grad_count + last->reserved_count;
        bytes = last->offset_bytes + count * last->element_bytes;
        bytes = (bytes + 255) / 256 * 256 * (size_t)gs_logical_shards_num_slots(&shards);
    }
    gs_grad_layout_release(&layout);
    return bytes;
}

static void expect_within(const char *what, uint64_t foretold, uint64_t is, uint64_t padding) {
    if (foretold > is + padding || is > foretold + padding)
        fail_msg("%s: %llu foretold, %llu there", what, (unsigned long long)foretold,
                 (unsigned long long)is);
}

static void expect_bytes(const char *what, uint64_t foretold, uint64_t is) {
    expect_within(what, foretold, is, 0);
}

// Of elements that are counted without their padding: a few lines for each bucket apart.
static void expect_near(const char *what, uint64_t foretold, uint64_t is, const foreseen *it) {
    expect_within(what, foretold, is, it->plan.num_buckets * 64 * 16);
}

static void expect_rank(foreseen *it, const job *of, int rank) {
    const gs_job_memory *memory = &it->memory[rank];
    gs_sharding sharding;
    size_t num_elements = gs_trainer_state_total_elements(&it->state);
    assert_ok(gs_sharding_init(&sharding, &it->state,
                               &(gs_state_shards_options){.spec = &it->spec,
                                                          .plan = &it->plan,
                                                          .params = it->state.param_specs,
                                                          .num_params = it->state.num_params,
                                                          .rank = rank,
                                                          .world_size = of->world_size}));
    const gs_shards *partition = sharding.partition;
    size_t owned = partition ? gs_shards_elements(partition, rank) : num_elements;
    size_t params = partition ? gs_shards_param_bytes(partition) : it->state.params_bytes;
    bool is_16_bit = it->spec.model.precision == GS_PRECISION_BF16;
    if (is_16_bit) params += it->state.params_bytes;  // the values of fp32 kernels
    size_t kinds = (size_t)gs_optimizer_state_count(it->state.optimizer);
    expect_bytes(of->what, memory->params_bytes, params);
    size_t grads = lay_out_grads(it, of, &sharding, rank);
    // A pass's own, before they are rounded and added: where there are windows each pass has those.
    if (is_16_bit && !sharding.windows.num_windows) grads += num_elements * sizeof(float);
    expect_bytes(of->what, memory->gradients_bytes + memory->windows_bytes, grads);
    expect_near(of->what, memory->optimizer_bytes, owned * kinds * sizeof(float), it);
    assert_int_equal(memory->windows_bytes > 0, sharding.windows.num_windows > 0);
    assert_int_equal(memory->undo_bytes > 0, sharding.overlaps);
    expect_near(of->what, memory->masters_bytes, is_16_bit ? owned * sizeof(float) : 0, it);
    gs_sharding_release(&sharding);
}

static void what_ranks_lay_out_is_foretold(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        foreseen it;
        open_job(&it, &jobs[i]);
        for (int rank = 0; rank < jobs[i].world_size; rank++) expect_rank(&it, &jobs[i], rank);
        close_job(&it);
    }
}

static void activations_are_those_of_the_models(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        foreseen it;
        open_job(&it, &jobs[i]);
        const gs_model *model = &it.state.model;
        assert_int_equal(it.memory[0].activations_bytes,
                         model->ops->activation_bytes(model->state));
        close_job(&it);
    }
}

static void lanes_have_the_size_of_their_blocks(void **state) {
    (void)state;
    foreseen it;
    open_job(&it, &jobs[4]);
    assert_true(it.spec.reducer.sharding !=
                GS_SHARDING_NONE);  // parameters have a lane of their own
    expect_within("two lanes", it.memory[0].exchange_bytes,
                  sizeof(gs_shm_control) + 2 * sizeof(gs_shm_lane_block), 4096);
    close_job(&it);
}

static void pieces_on_their_way_are_those_of_their_rooms(void **state) {
    (void)state;
    foreseen it;
    gs_job_memory *memory;
    open_job(&it, &jobs[1]);
    gs_job_memory_request request = {.spec = &it.spec,
                                     .plan = &it.plan,
                                     .params = it.state.param_specs,
                                     .num_params = it.state.num_params,
                                     .world_size = jobs[1].world_size,
                                     .on_gpu = true};
    assert_int_equal(it.memory[0].staging_bytes, 0);
    assert_ok(gs_job_memory_foresee(&memory, &request));
    assert_int_equal(memory[0].staging_bytes, GS_DEVICE_COPY_PIECES_BYTES);
    free(memory);
    it.spec.optimizer.offload = true;
    assert_ok(gs_job_memory_foresee(&memory, &request));
    assert_int_equal(memory[0].staging_bytes,
                     GS_DEVICE_COPY_PIECES_BYTES + GS_HOST_UPDATE_PIECES_BYTES);
    free(memory);
    close_job(&it);
}

// Nothing is taken back where it is known that all updates come at the end. Whether a core is to
// spare is not known before ranks have a host: then it is the most that there can be.
static void undo_is_what_a_job_can_take_back(void **state) {
    (void)state;
    static const struct {
        const char *reducer;
        bool in_backward;
        double grad_clip_norm;
        int world_size;
        bool on_gpu, undoes;
    } cases[] = {
        {DEALT, false, 0, 2, false, true}, {DEALT, false, 0, 1, false, false},
        {DEALT, false, 0, 1, true, true},  {DEALT, false, 1, 2, false, false},
        {DEALT, false, 1, 2, true, false}, {"", true, 0, 2, false, true},
        {"", true, 0, 1, false, false},    {"", false, 0, 2, true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        foreseen it;
        gs_job_memory *memory;
        int world_size = cases[i].world_size;
        open_job(&it, &(job){"undo", MLP, "adamw", cases[i].reducer, "", world_size, world_size});
        it.spec.optimizer.in_backward = cases[i].in_backward;
        it.spec.optimizer.grad_clip_norm = cases[i].grad_clip_norm;
        assert_ok(gs_job_memory_foresee(&memory,
                                        &(gs_job_memory_request){.spec = &it.spec,
                                                                 .plan = &it.plan,
                                                                 .params = it.state.param_specs,
                                                                 .num_params = it.state.num_params,
                                                                 .world_size = world_size,
                                                                 .on_gpu = cases[i].on_gpu}));
        uint64_t owned = memory[0].optimizer_bytes / 2;
        if (memory[0].undo_bytes != (cases[i].undoes ? 3 * owned : 0))
            fail_msg("case %zu: %llu bytes to take back", i,
                     (unsigned long long)memory[0].undo_bytes);
        free(memory);
        close_job(&it);
    }
}

// Masters of 4 bytes that passes do not read, and of a GPU's halves 2.
static void precision_says_how_often_parameters_are_there(void **state) {
    (void)state;
    foreseen it;
    open_job(&it, &(job){"bf16", GPT2, "adamw", "", "", 2, 2});
    uint64_t bytes = it.memory[0].params_bytes, activations = it.memory[0].activations_bytes;
    gs_job_memory *memory;
    gs_job_memory_request request = {.spec = &it.spec,
                                     .plan = &it.plan,
                                     .params = it.state.param_specs,
                                     .num_params = it.state.num_params,
                                     .world_size = 2};
    it.spec.model.precision = GS_PRECISION_BF16;
    assert_ok(gs_job_memory_foresee(&memory, &request));
    assert_int_equal(memory[0].params_bytes, bytes);
    expect_near("masters", memory[0].masters_bytes, bytes, &it);
    assert_int_equal(memory[0].host_bytes, memory[0].total_bytes);
    free(memory);
    request.on_gpu = true;
    assert_ok(gs_job_memory_foresee(&memory, &request));
    assert_int_equal(memory[0].params_bytes, bytes / 2);
    expect_near("remainders", memory[0].masters_bytes, bytes / 2, &it);
    assert_true(memory[0].activations_bytes < activations);
    assert_int_equal(memory[0].host_bytes, memory[0].snapshot_bytes + memory[0].staging_bytes);
    free(memory);
    it.spec.optimizer.offload = true;
    assert_ok(gs_job_memory_foresee(&memory, &request));
    expect_near("masters that are not split", memory[0].masters_bytes, bytes, &it);
    assert_int_equal(memory[0].host_bytes, memory[0].snapshot_bytes + memory[0].staging_bytes +
                                               memory[0].optimizer_bytes);
    free(memory);
    close_job(&it);
}

static void neighbours_alike_are_one_entry(void **state) {
    (void)state;
    for (int i = 4; i <= 6; i += 2) {
        foreseen it;
        gs_json *shown;
        open_job(&it, &jobs[i]);
        assert_ok(gs_job_memory_to_json(
            &shown, &(gs_job_memory_request){.spec = &it.spec,
                                             .plan = &it.plan,
                                             .params = it.state.param_specs,
                                             .num_params = it.state.num_params,
                                             .world_size = jobs[i].world_size}));
        const gs_json *ranks = gs_json_get(shown, "ranks");
        assert_int_equal(gs_json_count(ranks), i == 4 ? 1 : 3);
        const gs_json *last = gs_json_at(ranks, gs_json_count(ranks) - 1);
        assert_int_equal(gs_json_int_or(last, "last_rank", -1), jobs[i].world_size - 1);
        assert_int_equal(gs_json_int_or(last, "total_bytes", -1),
                         it.memory[jobs[i].world_size - 1].total_bytes);
        gs_json_release(shown);
        close_job(&it);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_ranks_lay_out_is_foretold),
        cmocka_unit_test(activations_are_those_of_the_models),
        cmocka_unit_test(lanes_have_the_size_of_their_blocks),
        cmocka_unit_test(pieces_on_their_way_are_those_of_their_rooms),
        cmocka_unit_test(undo_is_what_a_job_can_take_back),
        cmocka_unit_test(precision_says_how_often_parameters_are_there),
        cmocka_unit_test(neighbours_alike_are_one_entry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
