#include "gradsync/optim/optimizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "core/random.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"

#define NUM_PARAMS 4
#define COUNT 33
#define NUM_STEPS 12

static gs_device *open_device(void) {
    return test_device_open(1);
}

// The update as PyTorch writes it, in double, one element at a time.
typedef struct reference {
    double param, first, second;  // first: exp_avg or momentum; second: exp_avg_sq
    int64_t num_updates;
} reference;

static void step_reference(reference *r, const gs_optimizer_options *o, double grad, bool decays,
                           double lr) {
    double decay = decays ? (double)o->weight_decay : 0;
    r->num_updates++;
    if (strcmp(o->kind, "sgd") == 0) {
        grad += decay * r->param;
        if (o->momentum != 0) {
            r->first = r->num_updates == 1
                           ? grad
                           : (double)o->momentum * r->first + (1 - (double)o->dampening) * grad;
            grad = o->nesterov ? grad + (double)o->momentum * r->first : r->first;
        }
        r->param -= lr * grad;
        return;
    }
    if (strcmp(o->kind, "adamw") == 0)
        r->param -= lr * decay * r->param;
    else
        grad += decay * r->param;
    double beta1 = (double)o->beta1, beta2 = (double)o->beta2;
    r->first = beta1 * r->first + (1 - beta1) * grad;
    r->second = beta2 * r->second + (1 - beta2) * grad * grad;
    double corrected = sqrt(r->second / (1 - pow(beta2, (double)r->num_updates)));
    r->param -=
        lr * (r->first / (1 - pow(beta1, (double)r->num_updates))) / (corrected + (double)o->eps);
}

typedef struct model {
    gs_device *device;
    gs_param_spec specs[NUM_PARAMS];
    bool decays[NUM_PARAMS];
    float values[NUM_PARAMS * COUNT], all_grads[NUM_PARAMS * COUNT];  // what was written, what was read
    float *memory;                                                    // both on the device, contiguous
    void *params[NUM_PARAMS];
    void *grads[NUM_PARAMS];
} model;

static void init_model(model *m, gs_device *device) {
    *m = (model){.device = device};
    m->memory = device_memory_alloc(device, 2 * sizeof m->values);
    gs_random_fill_normal(m->values, NUM_PARAMS * COUNT, (gs_random_key){.seed = 1}, 0, 0, 1);
    device_memory_write(device, m->memory, m->values, sizeof m->values);
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        m->specs[p] = gs_param_spec_make(GS_FP32, COUNT, 0, "p%zu", p);
        m->decays[p] = p < 2;
        m->params[p] = m->memory + p * COUNT;
        m->grads[p] = m->memory + (NUM_PARAMS + p) * COUNT;
    }
}

static void release_model(model *m) {
    device_memory_free(m->device, m->memory);
}

// All that a checkpoint keeps of it.
static gs_digest digest_of_state(const gs_optimizer *optimizer, gs_device *device) {
    float state[2][NUM_PARAMS][COUNT] = {{{0}}};
    gs_digest pieces[2];
    for (int s = 0; s < gs_optimizer_state_count(optimizer); s++) {
        for (size_t p = 0; p < NUM_PARAMS; p++)
            device_memory_read(device, state[s][p], gs_optimizer_state(optimizer, s, p),
                               sizeof state[s][p]);
    }
    pieces[0] = gs_digest_of(state, sizeof state);
    pieces[1] = gs_digest_of(gs_optimizer_num_updates(optimizer), NUM_PARAMS * sizeof(int64_t));
    return gs_digest_of(pieces, sizeof pieces);
}

static void write_grads(model *m) {
    device_memory_write(m->device, m->memory + NUM_PARAMS * COUNT, m->all_grads, sizeof m->all_grads);
}

static void fill_grads(model *m, int64_t step) {
    gs_random_fill_normal(m->all_grads, NUM_PARAMS * COUNT,
                          (gs_random_key){.seed = 2, .stream = (uint64_t)step}, 0, 0, 1);
    write_grads(m);
}

static void read_values(model *m) {
    device_memory_read(m->device, m->values, m->memory, sizeof m->values);
}

// Parameter 2 sits out every third step.
static bool uses(size_t param, int64_t step) {
    return param != 2 || step % 3 != 1;
}

static const gs_optimizer_options kinds[] = {
    {.kind = "adamw", .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f},
    {.kind = "adam", .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.05f},
    {.kind = "sgd"},
    {.kind = "sgd", .momentum = 0.9f, .weight_decay = 0.01f},
    {.kind = "sgd", .momentum = 0.9f, .dampening = 0.3f},
    {.kind = "sgd", .momentum = 0.9f, .nesterov = true, .weight_decay = 0.01f},
};

static void updates_equal_the_textbook_with_parameters_skipped(void **state) {
    (void)state;
    gs_device *device = open_device();
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        model m;
        init_model(&m, device);
        reference expected[NUM_PARAMS * COUNT] = {{0}};
        for (size_t i = 0; i < NUM_PARAMS * COUNT; i++) expected[i].param = (double)m.values[i];
        gs_optimizer *optimizer;
        assert_ok(
            gs_optimizer_create(&optimizer, &kinds[k], m.specs, m.decays, NUM_PARAMS, device));
        for (int64_t step = 0; step < NUM_STEPS; step++) {
            float lr = 0.01f + 0.001f * (float)step;
            uint8_t used[NUM_PARAMS];
            fill_grads(&m, step);
            for (size_t p = 0; p < NUM_PARAMS; p++) {
                used[p] = uses(p, step);
                for (size_t i = p * COUNT; used[p] && i < (p + 1) * COUNT; i++)
                    step_reference(&expected[i], &kinds[k], 0.5 * (double)m.all_grads[i],
                                   m.decays[p], (double)lr);
            }
            assert_ok(gs_optimizer_step(optimizer, m.params, m.grads, used, lr, 0.5f));
        }
        read_values(&m);
        for (size_t i = 0; i < NUM_PARAMS * COUNT; i++)
            assert_true(fabs((double)m.values[i] - expected[i].param) <
                        2e-6 * fmax(1, fabs(expected[i].param)));
        assert_int_equal(gs_optimizer_num_updates(optimizer)[0], NUM_STEPS);
        assert_int_equal(gs_optimizer_num_updates(optimizer)[2], NUM_STEPS - 4);
        gs_optimizer_destroy(optimizer);
        release_model(&m);
    }
    test_device_close(device);
}

static void update_of_one_run_has_the_bits_of_separate_updates(void **state) {
    (void)state;
    gs_device *device = open_device();
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        model together, apart;
        init_model(&together, device);
        init_model(&apart, device);
        float *spread[2 * NUM_PARAMS];
        for (size_t p = 0; p < NUM_PARAMS; p++) {  // the same values, each in memory of its own
            spread[2 * p] = device_memory_alloc(device, COUNT * sizeof(float));
            spread[2 * p + 1] = device_memory_alloc(device, COUNT * sizeof(float));
            device_memory_write(device, spread[2 * p], apart.values + p * COUNT, COUNT * sizeof(float));
            apart.params[p] = spread[2 * p];
        }
        gs_optimizer *a, *b;
        assert_ok(gs_optimizer_create(&a, &kinds[k], together.specs, together.decays, NUM_PARAMS,
                                      device));
        assert_ok(
            gs_optimizer_create(&b, &kinds[k], apart.specs, apart.decays, NUM_PARAMS, device));
        for (int64_t step = 0; step < 4; step++) {
            fill_grads(&together, step);
            void *grads[NUM_PARAMS];
            for (size_t p = 0; p < NUM_PARAMS; p++) {
                grads[p] = spread[2 * p + 1];
                device_memory_write(device, grads[p], together.all_grads + p * COUNT,
                           COUNT * sizeof(float));
            }
            assert_ok(gs_optimizer_step(a, together.params, together.grads, NULL, 0.1f, 1));
            assert_ok(gs_optimizer_step(b, apart.params, grads, NULL, 0.1f, 1));
        }
        read_values(&together);
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            float values[COUNT];
            device_memory_read(device, values, apart.params[p], sizeof values);
            assert_memory_equal(together.values + p * COUNT, values, sizeof values);
        }
        assert_true(gs_digest_equal(digest_of_state(a, device), digest_of_state(b, device)));
        for (size_t p = 0; p < 2 * NUM_PARAMS; p++) device_memory_free(device, spread[p]);
        gs_optimizer_destroy(a);
        gs_optimizer_destroy(b);
        release_model(&together);
        release_model(&apart);
    }
    test_device_close(device);
}

// What each of several ranks owns of the parameters: cut into equal parts, or by hand: single elements, odd
// places, nothing at all.
#define MOST_RANKS 7
#define MOST_SEGMENTS 8

typedef struct partition {
    size_t num_ranks;
    gs_segment segments[MOST_RANKS][MOST_SEGMENTS];
    size_t num_segments[MOST_RANKS];
} partition;

static partition equal_parts(const model *m, size_t num_ranks) {
    partition out = {.num_ranks = num_ranks};
    gs_segment_tensor tensors[NUM_PARAMS];
    for (size_t p = 0; p < NUM_PARAMS; p++)
        tensors[p] = (gs_segment_tensor){m->specs[p].name, COUNT, sizeof(float)};
    for (size_t r = 0; r < num_ranks; r++)
        out.num_segments[r] =
            gs_segments_of_part(out.segments[r], tensors, NUM_PARAMS, r, num_ranks, 1);
    return out;
}

static partition by_hand(void) {
    return (partition){.num_ranks = 3,
                       .num_segments = {7, 0, 5},
                       .segments = {{{0, 0, 1}, {0, 1, 6}, {0, 9, 0}, {0, 31, 2}, {1, 0, 33}, {2, 0, 0}, {3, 32, 1}},
                                    {{0}},
                                    {{0, 7, 24}, {2, 0, 17}, {2, 17, 16}, {3, 0, 1}, {3, 1, 31}}}};
}

// One rank's step on its own: memory of the model, from where each segment begins.
static void step_segments(gs_optimizer *optimizer, const model *m, const gs_segment *segments,
                          size_t num_segments, const uint8_t *used) {
    void *params[MOST_SEGMENTS];
    void *grads[MOST_SEGMENTS];
    for (size_t i = 0; i < num_segments; i++) {
        params[i] = (float *)m->params[segments[i].tensor] + segments[i].first;
        grads[i] = (float *)m->grads[segments[i].tensor] + segments[i].first;
    }
    assert_ok(gs_optimizer_step(optimizer, params, grads, used, 0.01f, 0.5f));
}

static void expect_state_of_segments(const gs_optimizer *part, const gs_optimizer *whole,
                                     const gs_segment *segments, size_t num_segments,
                                     gs_device *device) {
    for (int s = 0; s < gs_optimizer_state_count(whole); s++) {
        for (size_t i = 0; i < num_segments; i++) {
            float ours[COUNT], all[COUNT];
            device_memory_read(device, ours, gs_optimizer_state(part, s, i),
                               segments[i].count * sizeof *ours);
            device_memory_read(device, all, gs_optimizer_state(whole, s, segments[i].tensor),
                               sizeof all);
            assert_memory_equal(ours, all + segments[i].first, segments[i].count * sizeof *ours);
        }
    }
    assert_memory_equal(gs_optimizer_num_updates(part), gs_optimizer_num_updates(whole),
                        NUM_PARAMS * sizeof(int64_t));
}

static void expect_equal_training(const gs_optimizer_options *kind, const partition *of,
                                  gs_device *device) {
    model whole, apart;
    gs_optimizer *one, *many[MOST_RANKS];
    init_model(&whole, device);
    init_model(&apart, device);
    assert_ok(gs_optimizer_create(&one, kind, whole.specs, whole.decays, NUM_PARAMS, device));
    for (size_t r = 0; r < of->num_ranks; r++) {
        gs_optimizer_options options = *kind;
        options.segments = of->segments[r];
        options.num_segments = of->num_segments[r];
        assert_ok(gs_optimizer_create(&many[r], &options, apart.specs, apart.decays, NUM_PARAMS,
                                      device));
    }
    for (int64_t step = 0; step < 5; step++) {
        uint8_t used[NUM_PARAMS];
        for (size_t p = 0; p < NUM_PARAMS; p++) used[p] = uses(p, step);
        fill_grads(&whole, step);
        fill_grads(&apart, step);
        assert_ok(gs_optimizer_step(one, whole.params, whole.grads, used, 0.01f, 0.5f));
        for (size_t r = 0; r < of->num_ranks; r++)
            step_segments(many[r], &apart, of->segments[r], of->num_segments[r], used);
    }
    read_values(&whole);
    read_values(&apart);
    assert_memory_equal(whole.values, apart.values, sizeof whole.values);
    for (size_t r = 0; r < of->num_ranks; r++) {
        expect_state_of_segments(many[r], one, of->segments[r], of->num_segments[r], device);
        gs_optimizer_destroy(many[r]);
    }
    gs_optimizer_destroy(one);
    release_model(&whole);
    release_model(&apart);
}

static void ranks_that_step_their_segments_have_the_bits_of_one_that_steps_all(void **state) {
    (void)state;
    gs_device *device = open_device();
    model m;
    init_model(&m, device);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        gs_optimizer_options kind = kinds[k];
        kind.unused_is_zero = k % 2;
        partition parts = by_hand();
        expect_equal_training(&kind, &parts, device);
        for (size_t num_ranks = 2; num_ranks <= MOST_RANKS; num_ranks += 5) {
            parts = equal_parts(&m, num_ranks);
            expect_equal_training(&kind, &parts, device);
        }
    }
    release_model(&m);
    test_device_close(device);
}

static void segments_out_of_order_are_refused_by_name(void **state) {
    (void)state;
    gs_device *device = open_device();
    gs_param_spec specs[2] = {gs_param_spec_make(GS_FP32, 8, 0, "a"),
                              gs_param_spec_make(GS_FP32, 5, 0, "b")};
    const struct {
        gs_segment segments[2];
        const char *named;
    } bad[] = {{{{1, 0, 5}, {0, 0, 8}}, "\"a\""},
               {{{0, 0, 5}, {0, 4, 4}}, "element 4"},
               {{{0, 0, 8}, {1, 1, 5}}, "\"b\""},
               {{{0, 0, 8}, {2, 0, 1}}, "no tensor 2"},
               {{{0, 0, 8}, {1, SIZE_MAX, 2}}, "\"b\""}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gs_optimizer_options options = kinds[0];
        options.segments = bad[i].segments;
        options.num_segments = 2;
        gs_optimizer *optimizer;
        gs_status status = gs_optimizer_create(&optimizer, &options, specs, NULL, 2, device);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        if (!strstr(status.message, bad[i].named))
            fail_msg("%s does not name %s", status.message, bad[i].named);
        assert_null(optimizer);
    }
    test_device_close(device);
}

// Masters in halves go the way of fp32 ones, to the bit, and counts and state with them.
static void masters_in_halves_take_the_same_steps(void **state) {
    (void)state;
    gs_device *device = open_device();
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    for (size_t k = 0; k < 2; k++) {
        model m;
        init_model(&m, device);
        uint16_t *halves = device_memory_alloc(device, 2 * NUM_PARAMS * COUNT * sizeof *halves);
        uint16_t *values[NUM_PARAMS], *remainders[NUM_PARAMS];
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            values[p] = halves + p * COUNT;
            remainders[p] = halves + (NUM_PARAMS + p) * COUNT;
        }
        kernels->split_master(stream, values[0], remainders[0], m.memory, NUM_PARAMS * COUNT);
        gs_optimizer *whole, *split;
        assert_true(gs_optimizer_takes_halves(&kinds[k]));
        assert_ok(gs_optimizer_create(&whole, &kinds[k], m.specs, m.decays, NUM_PARAMS, device));
        assert_ok(gs_optimizer_create(&split, &kinds[k], m.specs, m.decays, NUM_PARAMS, device));
        for (int64_t step = 0; step < NUM_STEPS; step++) {
            uint8_t used[NUM_PARAMS];
            for (size_t p = 0; p < NUM_PARAMS; p++) used[p] = uses(p, step);
            fill_grads(&m, step);
            assert_ok(gs_optimizer_step(whole, m.params, m.grads, used, 0.01f, 0.5f));
            assert_ok(
                gs_optimizer_step_halves(split, values, remainders, m.grads, used, 0.01f, 0.5f));
        }
        read_values(&m);
        float joined[NUM_PARAMS * COUNT];
        kernels->join_master(stream, m.memory, values[0], remainders[0], NUM_PARAMS * COUNT);
        device_memory_read(device, joined, m.memory, sizeof joined);
        assert_memory_equal(joined, m.values, sizeof joined);
        assert_true(gs_digest_equal(digest_of_state(whole, device), digest_of_state(split, device)));
        gs_optimizer_destroy(whole);
        gs_optimizer_destroy(split);
        device_memory_free(device, halves);
        release_model(&m);
    }
    test_device_close(device);
}

static void an_optimizer_without_halves_says_so(void **state) {
    (void)state;
    gs_device *device = open_device();
    model m;
    init_model(&m, device);
    gs_optimizer *optimizer;
    assert_false(gs_optimizer_takes_halves(&kinds[3]));
    assert_ok(gs_optimizer_create(&optimizer, &kinds[3], m.specs, m.decays, NUM_PARAMS, device));
    uint16_t *none[NUM_PARAMS] = {0};
    gs_status status = gs_optimizer_step_halves(optimizer, none, none, m.grads, NULL, 0.01f, 1);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "sgd"));
    assert_int_equal(gs_optimizer_num_updates(optimizer)[0], 0);
    gs_optimizer_destroy(optimizer);
    release_model(&m);
    test_device_close(device);
}

// Digests of state do not say which device it is on.
static void state_is_the_same_on_every_device(void **state) {
    (void)state;
    gs_digest digests[2];
    for (int d = 0; d < 2; d++) {
        gs_device *device;
        if (d)
            device = open_device();
        else
            assert_ok(gs_device_open(&device, "cpu", NULL));
        model m;
        init_model(&m, device);
        gs_optimizer *optimizer;
        assert_ok(
            gs_optimizer_create(&optimizer, &kinds[0], m.specs, m.decays, NUM_PARAMS, device));
        for (int64_t step = 0; step < 4; step++) {
            fill_grads(&m, step);
            assert_ok(gs_optimizer_step(optimizer, m.params, m.grads, NULL, 0.01f, 1));
        }
        digests[d] = digest_of_state(optimizer, device);
        gs_optimizer_destroy(optimizer);
        release_model(&m);
        test_device_close(device);
    }
    assert_true(gs_digest_equal(digests[0], digests[1]));
}

// Where state lies in one of four ways: the device's memory, the host's, or moved there at some
// step, and back.
#define NUM_LOCATIONS 4
static gs_status move_at(gs_optimizer *optimizer, int location, int64_t step) {
    if (location >= 2 && step == 4) GS_TRY(gs_optimizer_move_state(optimizer, true));
    if (location == 3 && step == 8) GS_TRY(gs_optimizer_move_state(optimizer, false));
    return gs_ok();
}

static void state_takes_the_same_steps_wherever_it_lies(void **state) {
    (void)state;
    gs_device *device = open_device();
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        gs_digest values[NUM_LOCATIONS], states[NUM_LOCATIONS];
        for (int location = 0; location < NUM_LOCATIONS; location++) {
            model m;
            init_model(&m, device);
            gs_optimizer *optimizer;
            gs_optimizer_options options = kinds[k];
            options.state_on_host = location == 1;
            options.host_threads = 2;
            assert_ok(
                gs_optimizer_create(&optimizer, &options, m.specs, m.decays, NUM_PARAMS, device));
            for (int64_t step = 0; step < NUM_STEPS; step++) {
                uint8_t used[NUM_PARAMS];
                for (size_t p = 0; p < NUM_PARAMS; p++) used[p] = uses(p, step);
                assert_ok(move_at(optimizer, location, step));
                fill_grads(&m, step);
                assert_ok(gs_optimizer_step(optimizer, m.params, m.grads, used, 0.01f, 0.5f));
            }
            bool on_host = location == 1 || location == 2 || gs_device_is_host(device);
            assert_int_equal(gs_optimizer_state_is_on_host(optimizer), on_host);
            read_values(&m);
            values[location] = gs_digest_of(m.values, sizeof m.values);
            if (on_host)
                for (int s = 0; s < gs_optimizer_state_count(optimizer); s++)
                    assert_true(gs_optimizer_state(optimizer, s, 0)[0] != 0);
            assert_ok(gs_optimizer_move_state(optimizer, false));
            states[location] = digest_of_state(optimizer, device);
            gs_optimizer_destroy(optimizer);
            release_model(&m);
        }
        for (int location = 1; location < NUM_LOCATIONS; location++) {
            assert_true(gs_digest_equal(values[location], values[0]));
            assert_true(gs_digest_equal(states[location], states[0]));
        }
    }
    test_device_close(device);
}

// As masters of 16-bit parameters are, which leave a GPU's memory too.
static void parameters_in_the_hosts_memory_are_updated_where_they_are(void **state) {
    (void)state;
    gs_device *device = open_device();
    gs_digest digests[2];
    for (int pinned = 0; pinned < 2; pinned++) {
        model m;
        gs_optimizer *optimizer;
        gs_optimizer_options options = kinds[0];
        void *host, *params[NUM_PARAMS];
        init_model(&m, device);
        options.state_on_host = true;
        assert_ok(gs_device_alloc_pinned(device, &host, sizeof m.values));
        memcpy(host, m.values, sizeof m.values);
        for (size_t p = 0; p < NUM_PARAMS; p++)
            params[p] = pinned ? (float *)host + p * COUNT : m.params[p];
        assert_ok(gs_optimizer_create(&optimizer, &options, m.specs, m.decays, NUM_PARAMS, device));
        assert_false(gs_optimizer_takes_halves(&options));
        for (int64_t step = 0; step < 3; step++) {
            fill_grads(&m, step);
            assert_ok(gs_optimizer_step(optimizer, params, m.grads, NULL, 0.01f, 1));
        }
        read_values(&m);
        digests[pinned] = gs_digest_of(pinned ? host : m.values, sizeof m.values);
        gs_optimizer_destroy(optimizer);
        gs_device_free_pinned(device, host);
        release_model(&m);
    }
    assert_true(gs_digest_equal(digests[0], digests[1]));
    test_device_close(device);
}

// More than the host has in its hands at once, and a last piece of a few.
static void a_large_parameter_passes_the_host_piece_by_piece(void **state) {
    (void)state;
    const size_t count = ((size_t)5 << 19) + 3;
    gs_device *device = open_device();
    const gs_param_spec spec = gs_param_spec_make(GS_FP32, (int64_t)count, 0, "large");
    float *host = malloc(count * sizeof *host),
          *memory = device_memory_alloc(device, 3 * count * sizeof *host);
    gs_random_fill_normal(host, count, (gs_random_key){.seed = 5}, 0, 0, 1);
    gs_digest digests[2];
    void *grads[] = {memory};
    device_memory_write(device, grads[0], host, count * sizeof *host);
    for (int on_host = 0; on_host < 2; on_host++) {
        gs_optimizer *optimizer;
        gs_optimizer_options options = kinds[3];
        void *params[] = {memory + (size_t)(1 + on_host) * count};
        options.state_on_host = on_host != 0;
        assert_ok(gs_optimizer_create(&optimizer, &options, &spec, NULL, 1, device));
        for (int step = 0; step < 2; step++)
            assert_ok(gs_optimizer_step(optimizer, params, grads, NULL, 0.1f, 1));
        device_memory_read(device, host, params[0], count * sizeof *host);
        digests[on_host] = gs_digest_of(host, count * sizeof *host);
        gs_optimizer_destroy(optimizer);
    }
    assert_true(gs_digest_equal(digests[0], digests[1]));
    device_memory_free(device, memory);
    free(host);
    test_device_close(device);
}

static void state_can_be_saved_and_put_back(void **state) {
    (void)state;
    gs_device *device = open_device();
    model m;
    init_model(&m, device);
    gs_optimizer *from, *to;
    assert_ok(gs_optimizer_create(&from, &kinds[0], m.specs, m.decays, NUM_PARAMS, device));
    assert_ok(gs_optimizer_create(&to, &kinds[0], m.specs, m.decays, NUM_PARAMS, device));
    fill_grads(&m, 0);
    assert_ok(gs_optimizer_step(from, m.params, m.grads, NULL, 0.1f, 1));
    assert_int_equal(gs_optimizer_state_count(from), 2);
    assert_string_equal(gs_optimizer_state_name(from, 0), "exp_avg");
    assert_string_equal(gs_optimizer_state_name(from, 1), "exp_avg_sq");
    assert_false(gs_digest_equal(digest_of_state(from, device), digest_of_state(to, device)));
    for (int s = 0; s < 2; s++) {
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            float saved[COUNT];
            device_memory_read(device, saved, gs_optimizer_state(from, s, p), sizeof saved);
            device_memory_write(device, gs_optimizer_state(to, s, p), saved, sizeof saved);
        }
    }
    memcpy(gs_optimizer_num_updates(to), gs_optimizer_num_updates(from),
           NUM_PARAMS * sizeof(int64_t));
    assert_true(gs_digest_equal(digest_of_state(from, device), digest_of_state(to, device)));
    gs_optimizer_destroy(from);
    gs_optimizer_destroy(to);
    release_model(&m);
    test_device_close(device);
}

static void options_that_make_no_sense_are_refused_by_name(void **state) {
    (void)state;
    gs_device *device = open_device();
    gs_param_spec spec = gs_param_spec_make(GS_FP32, 4, 0, "w");
    static const struct {
        gs_optimizer_options options;
        const char *word;
    } bad[] = {
        {{.kind = "lion"}, "lion"},
        {{.kind = NULL}, "kind"},
        {{.kind = "adamw", .beta1 = 1, .beta2 = 0.9f}, "beta1"},
        {{.kind = "adam", .beta1 = 0.9f, .beta2 = -1}, "beta2"},
        {{.kind = "adamw", .beta1 = 0.9f, .beta2 = 0.9f, .weight_decay = NAN}, "weight_decay"},
        {{.kind = "sgd", .momentum = -1}, "momentum"},
        {{.kind = "sgd", .nesterov = true}, "nesterov"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        gs_optimizer *optimizer;
        gs_status status = gs_optimizer_create(&optimizer, &bad[i].options, &spec, NULL, 1, device);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        assert_non_null(strstr(status.message, bad[i].word));
        assert_null(optimizer);
    }
    test_device_close(device);
}

// zero_grad "zero": a parameter that nobody used goes on by momentum and decay, but one that never had
// a gradient has none yet.
static void unused_is_zero_goes_on_once_there_was_a_gradient(void **state) {
    (void)state;
    for (int zero = 0; zero < 2; zero++) {
        const gs_optimizer_options options = {.kind = "sgd",
                                              .momentum = 0.5f,
                                              .weight_decay = 0.25f,
                                              .unused_is_zero = zero};
        model m;
        gs_device *device = open_device();
        init_model(&m, device);
        gs_optimizer *optimizer;
        assert_ok(
            gs_optimizer_create(&optimizer, &options, m.specs, m.decays, NUM_PARAMS, device));
        reference used_once = {.param = (double)m.values[0]};
        float never_used = m.values[COUNT];
        for (int64_t step = 0; step < 5; step++) {
            const uint8_t used[NUM_PARAMS] = {step == 1, 0, 1, 1};
            memset(m.all_grads, 0, sizeof m.all_grads);
            m.all_grads[0] = step == 1 ? 2.0f : 0.0f;
            write_grads(&m);
            assert_ok(gs_optimizer_step(optimizer, m.params, m.grads, used, 0.125f, 1));
            if (step == 1 || (zero && step > 1))
                step_reference(&used_once, &options, (double)m.all_grads[0], true, 0.125);
            read_values(&m);
            assert_true(fabs((double)m.values[0] - used_once.param) < 1e-6);
        }
        assert_true(m.values[COUNT] == never_used);
        assert_int_equal(gs_optimizer_num_updates(optimizer)[0], zero ? 4 : 1);
        assert_int_equal(gs_optimizer_num_updates(optimizer)[1], 0);
        gs_optimizer_destroy(optimizer);
        release_model(&m);
        test_device_close(device);
    }
}

static void a_sparse_parameter_without_a_dense_gradient_is_left_alone(void **state) {
    (void)state;
    const gs_optimizer_options options = {.kind = "sgd"};
    model m;
    gs_device *device = open_device();
    init_model(&m, device);
    gs_optimizer *optimizer;
    assert_ok(gs_optimizer_create(&optimizer, &options, m.specs, m.decays, NUM_PARAMS, device));
    float before[2] = {m.values[0], m.values[COUNT]};
    for (size_t i = 0; i < NUM_PARAMS * COUNT; i++) m.all_grads[i] = 1;
    write_grads(&m);
    m.grads[1] = NULL;
    assert_ok(gs_optimizer_step(optimizer, m.params, m.grads, NULL, 0.5f, 1));
    read_values(&m);
    assert_true(m.values[0] == before[0] - 0.5f);
    assert_true(m.values[COUNT] == before[1]);
    assert_int_equal(gs_optimizer_num_updates(optimizer)[1], 0);
    assert_int_equal(gs_optimizer_num_updates(optimizer)[2], 1);
    gs_optimizer_destroy(optimizer);
    release_model(&m);
    test_device_close(device);
}

static void states_beyond_memory_are_refused(void **state) {
    (void)state;
    gs_device *device = open_device();
    gs_param_spec specs[5];
    for (size_t i = 0; i < 5; i++)
        specs[i] = gs_param_spec_make(GS_FP32, INT64_C(1) << 31, INT64_C(1) << 30, "p%zu", i);
    gs_optimizer *optimizer;
    gs_status status = gs_optimizer_create(&optimizer, &kinds[0], specs, NULL, 5, device);
    assert_int_equal(status.code, GS_RESOURCE_EXHAUSTED);
    assert_null(optimizer);
    test_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_equal_the_textbook_with_parameters_skipped),
        cmocka_unit_test(update_of_one_run_has_the_bits_of_separate_updates),
        cmocka_unit_test(ranks_that_step_their_segments_have_the_bits_of_one_that_steps_all),
        cmocka_unit_test(segments_out_of_order_are_refused_by_name),
        cmocka_unit_test(masters_in_halves_take_the_same_steps),
        cmocka_unit_test(an_optimizer_without_halves_says_so),
        cmocka_unit_test(state_is_the_same_on_every_device),
        cmocka_unit_test(state_takes_the_same_steps_wherever_it_lies),
        cmocka_unit_test(parameters_in_the_hosts_memory_are_updated_where_they_are),
        cmocka_unit_test(a_large_parameter_passes_the_host_piece_by_piece),
        cmocka_unit_test(state_can_be_saved_and_put_back),
        cmocka_unit_test(unused_is_zero_goes_on_once_there_was_a_gradient),
        cmocka_unit_test(a_sparse_parameter_without_a_dense_gradient_is_left_alone),
        cmocka_unit_test(states_beyond_memory_are_refused),
        cmocka_unit_test(options_that_make_no_sense_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
