#include "gradsync/optim/early_step.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"

#define NUM_PARAMS 5
#define COUNT 33
#define NUM_STEPS 7

static gs_device *shared_device;  // of all models: to open one takes long

typedef enum precision { FULL, BESIDE, HALVES } precision;  // 16 bits beside masters, or masters in halves

// Parameters, their optimizer and gradients, in memory of the device; perhaps 16 bits beside, and a step in pieces.
typedef struct model {
    gs_device *device;
    gs_param_spec specs[NUM_PARAMS];
    float grad_values[NUM_PARAMS][COUNT];
    void *params[NUM_PARAMS], *grads[NUM_PARAMS];
    gs_optimizer *optimizer;
    gs_mixed_precision *mixed;
    gs_early_step *step;
} model;

static const gs_optimizer_options kinds[] = {
    {.kind = "adamw", .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f},
    {.kind = "adam", .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .unused_is_zero = true},
    {.kind = "sgd", .momentum = 0.9f, .nesterov = true},
    {.kind = "sgd"},
};

// Where a step takes long, the first.
static size_t num_kinds(void) {
    return test_device_is_host() ? sizeof kinds / sizeof kinds[0] : 1;
}

static void open_mixed(model *m, precision kind) {
    gs_mixed_precision_options options = {.dtype = GS_BF16,
                                          .params = m->specs,
                                          .num_params = NUM_PARAMS,
                                          .device = m->device};
    if (kind == HALVES) {
        options.splits_masters = true;
    } else {
        options.masters = (float *const *)m->params;
        options.keeps_params = true;
        options.keeps_values = test_device_is_host();
    }
    assert_ok(gs_mixed_precision_create(&m->mixed, &options));
}

static void open_model(model *m, const gs_optimizer_options *kind, precision is_mixed,
                       const gs_early_step_options *early) {
    static const bool decays[NUM_PARAMS] = {true, true, false, false, true};
    float values[COUNT];
    *m = (model){.device = shared_device};
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        m->specs[p] = gs_param_spec_make(GS_FP32, COUNT, 0, "p%zu", p);
        m->params[p] = device_memory_alloc(m->device, sizeof values);
        m->grads[p] = device_memory_alloc(m->device, sizeof values);
    }
    assert_ok(gs_optimizer_create(&m->optimizer, kind, m->specs, decays, NUM_PARAMS, m->device));
    if (is_mixed) open_mixed(m, is_mixed);
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        gs_random_fill_normal(values, COUNT, (gs_random_key){.seed = 1, .stream = p}, 0, 0, 1);
        if (is_mixed == HALVES)
            assert_ok(gs_mixed_precision_write(m->mixed, p, 0, values, COUNT));
        else
            device_memory_write(m->device, m->params[p], values, sizeof values);
    }
    if (m->mixed) gs_mixed_precision_write_back(m->mixed);
    if (!early) return;
    gs_early_step_options options = *early;
    options.optimizer = m->optimizer;
    options.params = is_mixed == HALVES ? NULL : m->params;
    options.mixed = m->mixed;
    options.device = m->device;
    assert_ok(gs_early_step_create(&m->step, &options));
}

static void close_model(model *m) {
    gs_early_step_destroy(m->step);
    gs_mixed_precision_destroy(m->mixed);
    gs_optimizer_destroy(m->optimizer);
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        device_memory_free(m->device, m->params[p]);
        device_memory_free(m->device, m->grads[p]);
    }
}

static void write_grads(model *m) {
    for (size_t p = 0; p < NUM_PARAMS; p++)
        device_memory_write(m->device, m->grads[p], m->grad_values[p], sizeof m->grad_values[p]);
}

static void draw_grads(model *m, uint64_t step) {
    for (size_t p = 0; p < NUM_PARAMS; p++)
        gs_random_fill_normal(m->grad_values[p], COUNT,
                              (gs_random_key){.seed = 2, .stream = step * 16 + p}, 0, 0, 1);
    write_grads(m);
}

// Everything that a step changes.
typedef struct image {
    float values[NUM_PARAMS][COUNT], state[2][NUM_PARAMS][COUNT];
    int64_t num_updates[NUM_PARAMS];
    uint16_t halves[NUM_PARAMS][COUNT];
    float rounded[NUM_PARAMS][COUNT];
} image;

static void take_image(image *out, const model *m) {
    memset(out, 0, sizeof *out);
    memcpy(out->num_updates, gs_optimizer_num_updates(m->optimizer), sizeof out->num_updates);
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        if (m->mixed)
            assert_ok(gs_mixed_precision_read(m->mixed, out->values[p], p, 0, COUNT));
        else
            device_memory_read(m->device, out->values[p], m->params[p], sizeof out->values[p]);
        for (int s = 0; s < gs_optimizer_state_count(m->optimizer); s++)
            device_memory_read(m->device, out->state[s][p], gs_optimizer_state(m->optimizer, s, p),
                               sizeof out->state[s][p]);
        if (!m->mixed) continue;
        device_memory_read(m->device, out->halves[p], gs_mixed_precision_params(m->mixed)[p],
                           sizeof out->halves[p]);
        void *const *rounded = gs_mixed_precision_values(m->mixed);
        if (rounded)
            device_memory_read(m->device, out->rounded[p], rounded[p], sizeof out->rounded[p]);
    }
}

static void assert_alike(const model *a, const model *b) {
    image *one = malloc(2 * sizeof *one);
    assert_non_null(one);
    take_image(&one[0], a);
    take_image(&one[1], b);
    assert_memory_equal(&one[0], &one[1], sizeof *one);
    free(one);
}

static void step_whole(model *m, const uint8_t *used) {
    assert_ok(m->mixed ? gs_mixed_precision_step(m->mixed, m->optimizer, m->grads, used, 0.1f, 0.5f)
                       : gs_optimizer_step(m->optimizer, m->params, m->grads, used, 0.1f, 0.5f));
}

// Parameter 2 sits out every third step.
static void set_used(uint8_t used[NUM_PARAMS], int step) {
    for (size_t p = 0; p < NUM_PARAMS; p++) used[p] = p != 2 || step % 3 != 1;
}

static void zero_unused(model *m, const uint8_t *used) {
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        if (!used[p]) memset(m->grad_values[p], 0, sizeof m->grad_values[p]);
    }
    write_grads(m);
}

static const size_t first_bucket[] = {4, 3}, second_bucket[] = {2, 0};

static void check_pieces(const gs_optimizer_options *kind, precision is_mixed, const bool *early) {
    model whole, pieces;
    open_model(&whole, kind, is_mixed, NULL);
    open_model(&pieces, kind, is_mixed, &(gs_early_step_options){.early = early});
    for (int step = 0; step < NUM_STEPS; step++) {
        uint8_t used[NUM_PARAMS];
        set_used(used, step);
        draw_grads(&whole, (uint64_t)step);
        draw_grads(&pieces, (uint64_t)step);
        zero_unused(&whole, used);
        zero_unused(&pieces, used);
        step_whole(&whole, used);
        gs_early_step_begin(pieces.step, 0.1f, 0.5f);
        gs_early_step_bucket(pieces.step, first_bucket, 2, pieces.grads, used);
        assert_int_equal(gs_early_step_num_updated(pieces.step), early ? 1 : 2);
        gs_early_step_bucket(pieces.step, second_bucket, 2, pieces.grads, used);
        assert_int_equal(gs_early_step_num_updated(pieces.step), (early ? 2 : 3) + (!early && used[2]));
        assert_ok(gs_early_step_finish(pieces.step, pieces.grads, used));
        assert_alike(&whole, &pieces);
    }
    close_model(&whole);
    close_model(&pieces);
}

static void pieces_have_the_bits_of_a_whole_step(void **state) {
    (void)state;
    static const bool early[NUM_PARAMS] = {true, true, false, true, false};
    for (size_t k = 0; k < num_kinds(); k++) {
        check_pieces(&kinds[k], FULL, NULL);
        check_pieces(&kinds[k], FULL, early);
        check_pieces(&kinds[k], BESIDE, NULL);
        if (gs_optimizer_takes_halves(&kinds[k])) check_pieces(&kinds[k], HALVES, NULL);
    }
}

// What a step that is undone has done, and where it was.
static void disturb(model *m, int step) {
    static const uint8_t used[NUM_PARAMS] = {1, 1, 0, 1, 1};
    image now;
    draw_grads(m, 99);
    m->grad_values[4][7] = NAN;
    write_grads(m);
    gs_early_step_begin(m->step, 0.3f, 1);
    gs_early_step_bucket(m->step, first_bucket, 2, m->grads, used);
    if (step % 2) gs_early_step_bucket(m->step, second_bucket, 2, m->grads, used);
    take_image(&now, m);
    assert_true(isnan(now.values[4][7]));
}

static void check_undo(const gs_optimizer_options *kind, precision is_mixed) {
    static const uint8_t used[NUM_PARAMS] = {1, 1, 1, 1, 1};
    model calm, shaken;
    open_model(&calm, kind, is_mixed, NULL);
    open_model(&shaken, kind, is_mixed, &(gs_early_step_options){0});
    for (int step = 0; step < NUM_STEPS; step++) {
        disturb(&shaken, step);
        // A step that nobody has decided is undone by the next one.
        if (step < NUM_STEPS - 1)
            gs_early_step_undo(shaken.step);
        else
            gs_early_step_begin(shaken.step, 0.1f, 0.5f);
        assert_alike(&calm, &shaken);
        draw_grads(&calm, (uint64_t)step);
        draw_grads(&shaken, (uint64_t)step);
        step_whole(&calm, used);
        gs_early_step_begin(shaken.step, 0.1f, 0.5f);
        gs_early_step_bucket(shaken.step, second_bucket, 2, shaken.grads, used);
        assert_ok(gs_early_step_finish(shaken.step, shaken.grads, used));
        gs_early_step_undo(shaken.step);  // nothing is open any more
        assert_alike(&calm, &shaken);
    }
    close_model(&calm);
    close_model(&shaken);
}

static void undo_restores_values_state_and_counts(void **state) {
    (void)state;
    for (size_t k = 0; k < num_kinds(); k++) {
        check_undo(&kinds[k], FULL);
        check_undo(&kinds[k], BESIDE);
        if (gs_optimizer_takes_halves(&kinds[k])) check_undo(&kinds[k], HALVES);
    }
}

static void what_is_still_read_waits_for_its_release(void **state) {
    (void)state;
    static const uint8_t used[NUM_PARAMS] = {1, 1, 1, 1, 1};
    model whole, m;
    image before, now, done;
    open_model(&whole, &kinds[0], FULL, NULL);
    open_model(&m, &kinds[0], FULL, &(gs_early_step_options){.waits_for_release = true});
    draw_grads(&whole, 0);
    draw_grads(&m, 0);
    step_whole(&whole, used);
    take_image(&before, &m);
    take_image(&done, &whole);
    gs_early_step_begin(m.step, 0.1f, 0.5f);
    gs_early_step_release(m.step, 3);
    gs_early_step_bucket(m.step, first_bucket, 2, m.grads, used);
    assert_int_equal(gs_early_step_num_updated(m.step), 1);
    take_image(&now, &m);
    assert_memory_equal(now.values[4], before.values[4], sizeof now.values[4]);
    assert_memory_equal(now.values[3], done.values[3], sizeof now.values[3]);
    gs_early_step_release(m.step, 4);
    assert_int_equal(gs_early_step_num_updated(m.step), 2);
    gs_early_step_bucket(m.step, second_bucket, 2, m.grads, used);
    assert_int_equal(gs_early_step_num_updated(m.step), 2);
    gs_early_step_release_all(m.step);
    assert_int_equal(gs_early_step_num_updated(m.step), 4);
    assert_ok(gs_early_step_finish(m.step, m.grads, used));
    assert_alike(&whole, &m);
    close_model(&whole);
    close_model(&m);
}

// Another rank may have used it: what becomes of it is said at the end.
static void what_is_not_known_to_be_used_waits_for_the_end(void **state) {
    (void)state;
    static const uint8_t known[NUM_PARAMS] = {0, 1, 1, 0, 1}, used[NUM_PARAMS] = {1, 1, 1, 0, 1};
    model whole, m;
    open_model(&whole, &kinds[0], FULL, NULL);
    open_model(&m, &kinds[0], FULL, &(gs_early_step_options){0});
    draw_grads(&whole, 0);
    draw_grads(&m, 0);
    step_whole(&whole, used);
    gs_early_step_begin(m.step, 0.1f, 0.5f);
    gs_early_step_bucket(m.step, first_bucket, 2, m.grads, known);
    gs_early_step_bucket(m.step, second_bucket, 2, m.grads, known);
    assert_int_equal(gs_early_step_num_updated(m.step), 2);
    assert_ok(gs_early_step_finish(m.step, m.grads, used));
    assert_alike(&whole, &m);
    close_model(&whole);
    close_model(&m);
}

static void assert_refused(gs_status status, gs_code code, const char *words) {
    assert_int_equal(status.code, code);
    assert_non_null(strstr(status.message, words));
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    static const uint8_t used[NUM_PARAMS] = {1, 1, 1, 1, 1};
    model m;
    image before, now;
    open_model(&m, &kinds[0], FULL, &(gs_early_step_options){0});
    take_image(&before, &m);
    assert_refused(gs_early_step_finish(m.step, m.grads, used), GS_FAILED_PRECONDITION,
                   "finish without begin");
    gs_early_step_begin(m.step, 0.1f, 1);
    gs_early_step_bucket(m.step, first_bucket, 2, m.grads, used);
    gs_early_step_bucket(m.step, second_bucket, 2, m.grads, NULL);
    assert_refused(gs_early_step_check(m.step), GS_FAILED_PRECONDITION, "GS_TALLY_APART");
    assert_refused(gs_early_step_finish(m.step, m.grads, used), GS_FAILED_PRECONDITION,
                   "GS_TALLY_APART");
    gs_early_step_undo(m.step);
    take_image(&now, &m);
    assert_memory_equal(&before, &now, sizeof now);
    gs_early_step *step;
    assert_refused(gs_early_step_create(&step, &(gs_early_step_options){.optimizer = m.optimizer,
                                                                        .device = m.device}),
                   GS_INVALID_ARGUMENT, "params");
    assert_null(step);
    close_model(&m);
}

// An update kept neither what it did not come to (main) nor what has no gradient here.
static void undo_leaves_what_was_not_updated(void **state) {
    (void)state;
    static const uint8_t used[NUM_PARAMS] = {1, 1, 1, 1, 1};
    model m;
    image before, now;
    open_model(&m, &kinds[0], FULL, &(gs_early_step_options){0});
    draw_grads(&m, 0);
    take_image(&before, &m);
    void *const grads[NUM_PARAMS] = {[2] = m.grads[2]};
    gs_early_step_begin(m.step, 0.1f, 1);
    gs_early_step_bucket(m.step, second_bucket, 2, grads, used);
    gs_early_step_undo(m.step);
    take_image(&now, &m);
    assert_memory_equal(&before, &now, sizeof now);
#ifdef GRADSYNC_FAILPOINTS
    gs_early_step_begin(m.step, 0.1f, 1);
    gs_early_step_bucket(m.step, second_bucket, 2, m.grads, used);
    gs_early_step_bucket(m.step, first_bucket, 2, m.grads, used);
    assert_int_not_equal(gs_early_step_check(m.step).code, GS_OK);
    gs_early_step_undo(m.step);
    take_image(&now, &m);
    assert_memory_equal(&before, &now, sizeof now);
#endif
    close_model(&m);
}

// More than is kept at a time, in segments that begin and end anywhere, one behind the other.
#define LARGE_COUNT ((size_t)100003)
#define NUM_CUTS 3

typedef struct large_model {
    gs_optimizer *optimizer;
    float values[LARGE_COUNT];
    void *params[NUM_CUTS], *grads[NUM_CUTS];
} large_model;

static void open_large(large_model *m, const gs_optimizer_options *kind, const gs_segment *cuts,
                       const gs_param_spec *spec, float *grad, gs_device *device) {
    static const bool decays = true;
    gs_optimizer_options options = *kind;
    options.segments = cuts;
    options.num_segments = NUM_CUTS;
    assert_ok(gs_optimizer_create(&m->optimizer, &options, spec, &decays, 1, device));
    for (size_t i = 0; i < LARGE_COUNT; i++) m->values[i] = (float)(i % 1013) / 64 - 3;
    for (size_t i = 0; i < NUM_CUTS; i++) {
        m->params[i] = m->values + cuts[i].first;
        m->grads[i] = grad + cuts[i].first;
    }
}

static void assert_alike_large(const large_model *a, const large_model *b, const gs_segment *cuts) {
    assert_memory_equal(a->values, b->values, sizeof a->values);
    assert_int_equal(*gs_optimizer_num_updates(a->optimizer),
                     *gs_optimizer_num_updates(b->optimizer));
    for (int s = 0; s < gs_optimizer_state_count(a->optimizer); s++) {
        for (size_t i = 0; i < NUM_CUTS; i++)
            assert_memory_equal(gs_optimizer_state(a->optimizer, s, i),
                                gs_optimizer_state(b->optimizer, s, i),
                                cuts[i].count * sizeof(float));
    }
}

// Every step is taken early, taken back and taken again.
static void check_large(const gs_optimizer_options *kind, gs_device *device) {
    static large_model whole, pieces;
    static float grad[LARGE_COUNT];
    const gs_segment cuts[NUM_CUTS] = {{0, 5, 40001}, {0, 40006, 16384}, {0, 56400, 43603}};
    gs_param_spec spec = gs_param_spec_make(GS_FP32, (int64_t)LARGE_COUNT, 0, "large");
    const uint8_t used = 1;
    const size_t param = 0;
    gs_early_step *step;
    open_large(&whole, kind, cuts, &spec, grad, device);
    open_large(&pieces, kind, cuts, &spec, grad, device);
    assert_ok(gs_early_step_create(&step, &(gs_early_step_options){.optimizer = pieces.optimizer,
                                                                   .params = pieces.params,
                                                                   .device = device}));
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < LARGE_COUNT; i++) grad[i] = (float)((i * 7 + round) % 257) / 32 - 4;
        gs_early_step_begin(step, 0.1f, 0.5f);
        gs_early_step_bucket(step, &param, 1, pieces.grads, &used);
        assert_int_equal(gs_early_step_num_updated(step), 1);
        gs_early_step_undo(step);
        assert_alike_large(&whole, &pieces, cuts);
        gs_early_step_begin(step, 0.1f, 0.5f);
        gs_early_step_bucket(step, &param, 1, pieces.grads, &used);
        assert_ok(gs_early_step_finish(step, pieces.grads, &used));
        assert_ok(gs_optimizer_step(whole.optimizer, whole.params, whole.grads, &used, 0.1f, 0.5f));
        assert_alike_large(&whole, &pieces, cuts);
    }
    gs_early_step_destroy(step);
    gs_optimizer_destroy(whole.optimizer);
    gs_optimizer_destroy(pieces.optimizer);
}

static void large_parameters_are_kept_as_they_are_updated(void **state) {
    (void)state;
    if (!test_device_is_host()) skip();
    for (int num_threads = 1; num_threads <= 2; num_threads++) {
        gs_device *device;
        assert_ok(gs_device_open(&device, "cpu", &(gs_device_options){.num_threads = num_threads}));
        for (size_t k = 0; k < num_kinds(); k++) check_large(&kinds[k], device);
        gs_device_close(device);
    }
}

static int open_device(void **state) {
    (void)state;
    shared_device = test_device_open(1);
    return 0;
}

static int close_device(void **state) {
    (void)state;
    test_device_close(shared_device);
    return 0;
}

int main(void) {
    if (!test_device_is_there()) return TEST_SKIPPED;
    setenv("GRADSYNC_FAILPOINTS", "optimizer.early=error@3", 1);  // of the first test
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(undo_leaves_what_was_not_updated),
        cmocka_unit_test(pieces_have_the_bits_of_a_whole_step),
        cmocka_unit_test(undo_restores_values_state_and_counts),
        cmocka_unit_test(large_parameters_are_kept_as_they_are_updated),
        cmocka_unit_test(what_is_still_read_waits_for_its_release),
        cmocka_unit_test(what_is_not_known_to_be_used_waits_for_the_end),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
