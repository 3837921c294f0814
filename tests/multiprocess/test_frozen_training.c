// model.freeze as a job: what is frozen rests, gradient, moments and count, and goes on from there,
// as in a serial loop that leaves it out; with the same bits sharded and not, in any world, and
// behind a checkpoint that was made in between.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_rank.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data/data_loader.h"
#include "worker/state/trainer_state.h"

#define STEPS 7
#define SHARDS 2
#define RANK_SHARDS 6  // that 1, 2 and 3 ranks divide evenly

#define MLP_MODEL "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,17,15,10],\"batch_norm\":\"local\"}"
#define GPT2_MODEL                                                                                 \
    "\"kind\":\"gpt2\",\"gpt2\":{\"layers\":2,\"heads\":2,\"channels\":16,\"context\":8,"          \
    "\"vocab\":64}"
// An epsilon that keeps what is next to nothing from deciding where a parameter goes.
#define ADAMW "\"kind\":\"adamw\",\"weight_decay\":0.1,\"eps\":0.001"

typedef struct model {
    const char *name, *members;
    // Rules, of which two may be about one parameter.
    const char *freeze;
    struct {
        const char *params;  // the end of a name, or its begin and a dot
        int64_t from, until;
    } rules[4];
} model;

// Backward ends above frozen layers; norms are frozen alone, and one half of them; biases for ever.
static const model mlp = {
    "mlp",
    MLP_MODEL,
    "[{\"params\":\"fc1.*\",\"until_step\":3},{\"params\":\"bn1.*\",\"until_step\":2},"
    "{\"params\":\"bn2.weight\",\"from_step\":1,\"until_step\":5},"
    "{\"params\":\"fc3.bias\",\"from_step\":4}]",
    {{"fc1.", 0, 3}, {"bn1.", 0, 2}, {"bn2.weight", 1, 5}, {"fc3.bias", 4, 0}},
};
static const model gpt2 = {
    "gpt2",
    GPT2_MODEL,
    "[{\"params\":\"w?e.weight\",\"until_step\":2},{\"params\":\"h.0.*\",\"until_step\":3},"
    "{\"params\":\"h.1.ln_1.bias\",\"from_step\":2},"
    "{\"params\":\"wpe.weight\",\"from_step\":4,\"until_step\":6}]",
    {{"wte.weight", 0, 2}, {"h.0.", 0, 3}, {"h.1.ln_1.bias", 2, 0}, {"wpe.weight", 4, 6}},
};

static bool is_frozen(const model *of, const char *name, int64_t step) {
    if (of == &gpt2 && strcmp(name, "wpe.weight") == 0 && step < 2) return true;
    for (size_t i = 0; i < 4; i++) {
        size_t len = strlen(of->rules[i].params);
        if (strncmp(name, of->rules[i].params, len) != 0 || step < of->rules[i].from) continue;
        if (!of->rules[i].until || step < of->rules[i].until) return true;
    }
    return false;
}

typedef struct job {
    const char *what;
    const model *of;
    int world_size, logical_shards;
    const char *optimizer, *reducer;
    bool exact;
} job;

static char *write_spec(const job *of, const char *freeze, const char *reducer, int target) {
    char *spec;
    bool in_windows = strstr(reducer, "gradients");
    if (asprintf(&spec,
                 "{\"name\":\"frozen\",\"exact\":%s,\"logical_shards\":%d,"
                 "\"world\":{\"min\":%d,\"max\":%d},\"model\":{\"seed\":5,%s%s%s},"
                 "\"data\":{\"kind\":\"synthetic\",\"micro_batch\":8},"
                 "\"optimizer\":{%s,\"lr\":0.01},\"reducer\":{\"first_bucket_bytes\":512,"
                 "\"bucket_cap_bytes\":2048,\"check_replicas_every_steps\":1%s},"
                 "\"steps\":{\"target\":%d}}",
                 of->exact ? "true" : "false", of->logical_shards,
                 in_windows ? of->logical_shards : 1, of->logical_shards, of->of->members,
                 freeze ? ",\"freeze\":" : "", freeze ? freeze : "", of->optimizer, reducer,
                 target) < 0)
        abort();
    return spec;
}

static void decode(gs_job_spec *spec, const char *text) {
    gs_field_errors errors = {0};
    gs_json *object;
    assert_ok(gs_json_parse(&object, text, strlen(text)));
    gs_status status = gs_job_spec_decode(spec, object, &errors);
    if (status.code) fail_msg("%s: %s", errors.items[0].pointer, errors.items[0].message);
    gs_json_release(object);
}

// ---- a serial loop, with an optimizer of its own

typedef struct serial {
    gs_job_spec spec;
    gs_device *device;
    gs_trainer_state state;  // of its parameters and model alone
    gs_data_loader *data;
    void **grads, **next_buffers;
    double **m, **v;
    int64_t *num_updates;
} serial;

static void open_serial(serial *self, const job *of) {
    char *text = write_spec(of, NULL, "", STEPS);
    decode(&self->spec, text);
    free(text);
    assert_ok(gs_device_open(&self->device, "cpu", &(gs_device_options){.num_threads = 1}));
    assert_ok(gs_trainer_state_init(&self->state, &self->spec, self->device));
    assert_ok(gs_data_loader_open(
        &self->data, &(gs_data_loader_options){.spec = &self->spec,
                                               .split = GS_TRAIN,
                                               .data_root = "/",
                                               .shards = {.num_shards = of->logical_shards,
                                                          .world_size = 1}}));
    size_t num_params = self->state.num_params, num_buffers = self->state.num_buffers;
    self->grads = calloc(num_params, sizeof *self->grads);
    self->m = calloc(num_params, sizeof *self->m);
    self->v = calloc(num_params, sizeof *self->v);
    self->num_updates = calloc(num_params, sizeof *self->num_updates);
    self->next_buffers = calloc(num_buffers + 1, sizeof *self->next_buffers);
    for (size_t i = 0; i < num_params; i++) {
        size_t count = gs_param_spec_count(&self->state.param_specs[i]);
        self->grads[i] = calloc(count, sizeof(float));
        self->m[i] = calloc(count, sizeof(double));
        self->v[i] = calloc(count, sizeof(double));
    }
    for (size_t i = 0; i < num_buffers; i++)
        self->next_buffers[i] = calloc(1, gs_param_spec_bytes(&self->state.buffer_specs[i]));
}

static void close_serial(serial *self) {
    for (size_t i = 0; i < self->state.num_params; i++) {
        free(self->grads[i]);
        free(self->m[i]);
        free(self->v[i]);
    }
    for (size_t i = 0; i < self->state.num_buffers; i++) free(self->next_buffers[i]);
    free(self->grads);
    free(self->m);
    free(self->v);
    free(self->num_updates);
    free(self->next_buffers);
    gs_data_loader_close(self->data);
    gs_trainer_state_release(&self->state);
    gs_device_close(self->device);
}

// Statistics of training passes are their batch's: which buffers they begin with is no matter.
static void add_grads(serial *self, int64_t step, int shard) {
    const gs_trainer_state *state = &self->state;
    gs_batch batch;
    assert_ok(gs_data_loader_next(self->data, &batch, gs_deadline_in_seconds(60)));
    gs_model_pass pass = {.batch = &batch,
                          .training = true,
                          .step = step,
                          .shard = shard,
                          .params = state->params,
                          .buffers = (const void *const *)self->next_buffers,
                          .next_buffers = self->next_buffers,
                          .grads = self->grads,
                          .accumulate = shard > 0,
                          .grad_factor = 1};
    assert_ok(state->model.ops->forward(state->model.state, &pass));
    assert_ok(state->model.ops->backward(state->model.state, &pass));
}

// AdamW, of what has a gradient: the others are as they were, to their count.
static void update(serial *self, size_t param, bool decays, int num_shards) {
    float *values = self->state.params[param];
    const float *grad = self->grads[param];
    double t = (double)++self->num_updates[param];
    for (size_t i = 0; i < gs_param_spec_count(&self->state.param_specs[param]); i++) {
        double g = (double)grad[i] / num_shards, *m = &self->m[param][i], *v = &self->v[param][i];
        *m = 0.9 * *m + 0.1 * g;
        *v = 0.999 * *v + 0.001 * g * g;
        double value = (double)values[i] * (decays ? 1 - 0.01 * 0.1 : 1);
        double root = sqrt(*v / (1 - pow(0.999, t))) + 0.001;
        values[i] = (float)(value - 0.01 * (*m / (1 - pow(0.9, t))) / root);
    }
}

static void run_serially(serial *self, const job *of) {
    size_t num_params;
    const gs_trainer_state *state = &self->state;
    const gs_model_param *params = state->model.ops->params(state->model.state, &num_params);
    for (int64_t step = 0; step < STEPS; step++) {
        for (int shard = 0; shard < of->logical_shards; shard++) add_grads(self, step, shard);
        for (size_t i = 0; i < num_params; i++) {
            if (!is_frozen(of->of, params[i].spec.name, step))
                update(self, i, params[i].decays, of->logical_shards);
        }
    }
}

// ---- jobs

// Returns the checkpoint of the end: the caller's.
static char *train(const job *of, const char *dir, const char *reducer, int world_size, int target,
                   const char *resume) {
    static gs_digest held[TRAINER_RANK_MAX_STEPS];
    char *spec = write_spec(of, of->of->freeze, reducer, target);
    gs_status status = trainer_rank_train_on(held, dir, spec, world_size, resume, "cpu");
    if (status.code) fail_msg("%s%s: %s", of->what, reducer, status.message);
    assert_int_equal(trainer_rank_last_step(held), target);
    free(spec);
    char *checkpoint = trainer_rank_checkpoint(dir);
    assert_non_null(checkpoint);
    return checkpoint;
}

// All that is in a checkpoint, whoever wrote which part of it.
static void load(gs_trainer_state *state, gs_device **device, const job *of,
                 const char *checkpoint) {
    static gs_job_spec spec;
    char *text = write_spec(of, of->of->freeze, "", STEPS);
    decode(&spec, text);
    free(text);
    assert_ok(gs_device_open(device, "cpu", &(gs_device_options){.num_threads = 1}));
    assert_ok(gs_trainer_state_init(state, &spec, *device));
    assert_ok(gs_checkpoint_load(state, checkpoint, &spec));
}

static void unload(gs_trainer_state *state, gs_device *device) {
    gs_trainer_state_release(state);
    gs_device_close(device);
}

static gs_digest digest_of(const job *of, const char *checkpoint) {
    gs_trainer_state state;
    gs_device *device;
    load(&state, &device, of, checkpoint);
    gs_digest digest = gs_trainer_state_digest(&state);
    unload(&state, device);
    return digest;
}

static void compare_with_serial(const gs_trainer_state *state, const serial *wanted) {
    const int64_t *num_updates = gs_optimizer_num_updates(state->optimizer);
    for (size_t p = 0; p < state->num_params; p++) {
        const char *name = state->param_specs[p].name;
        const float *values = state->params[p], *expected = wanted->state.params[p];
        const float *exp_avg = gs_optimizer_state(state->optimizer, 0, p);
        if (num_updates[p] != wanted->num_updates[p])
            fail_msg("%s: updated %lld times, expected %lld", name, (long long)num_updates[p],
                     (long long)wanted->num_updates[p]);
        for (size_t i = 0; i < gs_param_spec_count(&state->param_specs[p]); i++) {
            if (!(fabs((double)values[i] - (double)expected[i]) <= 2e-5))
                fail_msg("%s: element %zu is %.9g, expected %.9g", name, i, (double)values[i],
                         (double)expected[i]);
            if (!(fabs((double)exp_avg[i] - wanted->m[p][i]) <= 2e-5))
                fail_msg("%s: moment %zu is %.9g, expected %.9g", name, i, (double)exp_avg[i],
                         wanted->m[p][i]);
        }
    }
}

static void a_job_trains_as_a_serial_loop_that_leaves_out_what_is_frozen(void **state) {
    (void)state;
    const job jobs[] = {{"mlp", &mlp, 1, SHARDS, ADAMW, "", false},
                        {"gpt2", &gpt2, 1, SHARDS, ADAMW ",\"zero_grad\":\"zero\"", "", false}};
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        static serial wanted;
        gs_trainer_state trained;
        gs_device *device;
        char *dir = gs_temp_dir_make(), *checkpoint = train(&jobs[i], dir, "", 1, STEPS, NULL);
        wanted = (serial){0};
        open_serial(&wanted, &jobs[i]);
        run_serially(&wanted, &jobs[i]);
        load(&trained, &device, &jobs[i], checkpoint);
        compare_with_serial(&trained, &wanted);
        unload(&trained, device);
        close_serial(&wanted);
        gs_temp_dir_remove(dir);
        free(checkpoint);
    }
}

static void sharded_jobs_have_the_bits_of_whole_updates(void **state) {
    (void)state;
    model of_16_bits = gpt2;
    of_16_bits.members = GPT2_MODEL ",\"precision\":\"bf16\"";
    const job jobs[] = {
        {"masters", &of_16_bits, 3, 3, ADAMW, ",\"sharding\":\"optimizer\"", false},
        {"parts", &mlp, 2, 2, ADAMW ",\"grad_clip_norm\":0.05", ",\"sharding\":\"optimizer\"", false},
        {"windows", &gpt2, 3, 3, ADAMW, ",\"sharding\":\"gradients\"", false},
        {"whole tensors", &mlp, 4, 4, ADAMW, ",\"sharding\":\"optimizer\",\"partition\":\"oss\"", false},
        {"large ones first", &gpt2, 2, 2, "\"kind\":\"sgd\",\"momentum\":0.9,\"zero_grad\":\"zero\"",
         ",\"sharding\":\"optimizer\",\"partition\":\"zero\"", false},
        {"overlap", &gpt2, 4, 4, ADAMW, ",\"sharding\":\"optimizer\",\"zero_overlap\":\"interleaved\"",
         false},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        const job *of = &jobs[i];
        char *dir = gs_temp_dir_make(), *whole_dir = gs_temp_dir_make();
        char *parts = train(of, dir, of->reducer, of->world_size, STEPS, NULL);
        char *whole = train(of, whole_dir, "", of->world_size, STEPS, NULL);
        if (!gs_digest_equal(digest_of(of, parts), digest_of(of, whole)))
            fail_msg("%s: another state", of->what);
        free(parts);
        free(whole);
        gs_temp_dir_remove(dir);
        gs_temp_dir_remove(whole_dir);
    }
}

// 2 ranks to step 2, in the middle of a phase; then 3, over two changes, to step 5; then one.
static gs_digest train_on_and_on(const job *of, const char *const reducers[3]) {
    static const int worlds[] = {2, 3, 1}, targets[] = {2, 5, STEPS};
    char *dirs[3], *last = NULL;
    for (int i = 0; i < 3; i++) {
        dirs[i] = gs_temp_dir_make();
        char *next = train(of, dirs[i], reducers[i], worlds[i], targets[i], last);
        free(last);
        last = next;
    }
    gs_digest digest = digest_of(of, last);
    for (int i = 0; i < 3; i++) gs_temp_dir_remove(dirs[i]);
    free(last);
    return digest;
}

static void checkpoints_between_changes_go_on_in_any_world(void **state) {
    (void)state;
    const job of = {"another world", &mlp, 0, RANK_SHARDS, ADAMW, "", true};
    const char *const flat = ",\"sharding\":\"optimizer\"",
                      *const oss = ",\"sharding\":\"optimizer\",\"partition\":\"oss\"";
    char *dir = gs_temp_dir_make(), *straight = train(&of, dir, "", 1, STEPS, NULL);
    gs_digest wanted = digest_of(&of, straight);
    assert_true(gs_digest_equal(train_on_and_on(&of, (const char *const[]){flat, oss, flat}), wanted));
    assert_true(gs_digest_equal(train_on_and_on(&of, (const char *const[]){"", flat, ""}), wanted));
    gs_temp_dir_remove(dir);
    free(straight);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"train", trainer_rank_run}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_trains_as_a_serial_loop_that_leaves_out_what_is_frozen),
        cmocka_unit_test(sharded_jobs_have_the_bits_of_whole_updates),
        cmocka_unit_test(checkpoints_between_changes_go_on_in_any_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
