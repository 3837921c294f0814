// Steps of an optimizer that is cut among ranks: gradients reduced to their owners, each rank's own
// elements updated, parameters gathered. Beside it the same steps with everything on every rank:
// the same bits, for every world, partition and optimizer; in exact mode the same in every world.
// On GPUs sums have an order of their library's: the same values, nearly.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "gradsync/bucket/grad_norm.h"
#include "gradsync/comm/device_arena.h"
#include "gradsync/optim/mixed_precision.h"
#include "gradsync/optim/optimizer.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/sharded/common_params.h"
#include "gradsync/sharded/param_gather.h"
#include "gradsync/sharded/shard_reduce.h"
#include "gradsync/sharded/shards.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/ranks.h"
#include "tests/support/shared_gpu.h"

#define MAX_PARAMS 7
#define MAX_ELEMENTS 1200
#define MAX_WORLD 8
#define NUM_STEPS 4
#define NUM_SHARDS 8  // logical ones of exact ways
#define POISONED_STEP 2
#define GATHER_LANE 1
#define DEADLINE gs_deadline_in_seconds(60)

// Odd sizes; one parameter of one element, one of none, one larger than all others.
static const int64_t counts[MAX_PARAMS] = {301, 1, 33, 16, 0, 777, 5};
#define UNUSED 3       // by anybody, in odd steps
#define USED_BY_ONE 2  // rank 0
#define POISONED 0     // its last element is infinite on a rank that does not own it

typedef struct way {
    const char *name;
    gs_partition partition;
    gs_optimizer_options optimizer;
    int passes;         // 0: 1
    size_t num_params;  // 0: all
    gs_reducer_op op;
    gs_dtype wire_dtype;
    bool static_graph, uneven, clips, poisons, all_used, exact;
    bool on_gpus;              // on the software machine, too, where a step takes long
    bool fails;                // in each step rank 0's first pass, which is then run anew
    bool gradients_are_whole;  // an all-reduce, and the optimizer's state alone is cut
    double unit;               // loss scale; 0: 1
    gs_dtype half;             // parameters of 16 bits travel, masters stay with their owner
    bool splits;               // these masters, in halves
    bool by_hand;  // a pass more, in which nothing is used, reduces what those before have added up
    bool freezes;  // steps 1 and 2: a bucket of its own, and one of two in another
    bool are_common;  // parameters, in one memory of all ranks: nothing is gathered
} way;

#define SGD                                                                                        \
    { .kind = "sgd", .weight_decay = 0.01f }
#define MOMENTUM                                                                                   \
    { .kind = "sgd", .momentum = 0.9f, .dampening = 0.1f, .nesterov = false }
#define ADAM(kind_name)                                                                            \
    { .kind = kind_name, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.05f }

// All are stepped at all worlds, whole and sharded.
static const way ways[] = {
    {"adam", GS_PARTITION_FLAT, ADAM("adam"), .passes = 2, .clips = true, .on_gpus = true},
    {"adamw", GS_PARTITION_GREEDY, ADAM("adamw"), .clips = true, .static_graph = true},
    {"momentum", GS_PARTITION_SORTED, MOMENTUM, .passes = 3, .on_gpus = true},
    {"reduced by hand", GS_PARTITION_FLAT, ADAM("adam"), .passes = 2, .op = GS_SUM,
     .by_hand = true},
    {"sgd", GS_PARTITION_FLAT, SGD, .op = GS_SUM, .uneven = true},
    {"given", GS_PARTITION_GIVEN, ADAM("adam"), .op = GS_SAMPLE_MEAN, .uneven = true,
     .on_gpus = true},
    {"samples", GS_PARTITION_FLAT, MOMENTUM, .op = GS_SAMPLE_MEAN, .static_graph = true},
    {"poison", GS_PARTITION_FLAT, ADAM("adamw"), .poisons = true, .unit = 1024, .on_gpus = true},
    {"poison of whole", GS_PARTITION_GREEDY, ADAM("adam"), .poisons = true, .clips = true},
    {"fp16", GS_PARTITION_FLAT, ADAM("adam"), .wire_dtype = GS_FP16, .on_gpus = true},
    {"bf16", GS_PARTITION_SORTED, SGD, .wire_dtype = GS_BF16, .passes = 2},
    {"few", GS_PARTITION_FLAT, ADAM("adam"), .num_params = 2, .all_used = true},
    {"fewer", GS_PARTITION_SORTED, ADAM("adamw"), .num_params = 2, .all_used = true},
    {"state alone", GS_PARTITION_FLAT, ADAM("adam"), .gradients_are_whole = true, .clips = true},
    {"state of whole", GS_PARTITION_GREEDY, MOMENTUM, .gradients_are_whole = true, .uneven = true},
    {"masters", GS_PARTITION_FLAT, ADAM("adamw"), .half = GS_FP16, .passes = 2, .clips = true},
    {"masters of whole", GS_PARTITION_SORTED, MOMENTUM, .half = GS_BF16, .uneven = true},
    {"split masters", GS_PARTITION_FLAT, ADAM("adam"), .half = GS_BF16, .splits = true},
    {"a pass that fails", GS_PARTITION_FLAT, ADAM("adam"), .passes = 2, .fails = true},
    {"exact", GS_PARTITION_FLAT, ADAM("adamw"), .exact = true, .on_gpus = true},
    {"frozen for a while", GS_PARTITION_FLAT, ADAM("adamw"), .freezes = true, .clips = true,
     .on_gpus = true},
    {"whole ones frozen", GS_PARTITION_GREEDY, MOMENTUM, .freezes = true, .uneven = true},
    {"masters frozen", GS_PARTITION_FLAT, ADAM("adam"), .freezes = true, .half = GS_BF16,
     .splits = true, .passes = 2},
    {"in one memory", GS_PARTITION_FLAT, ADAM("adam"), .are_common = true, .passes = 2,
     .clips = true, .freezes = true},
    {"whole in one memory", GS_PARTITION_GREEDY, MOMENTUM, .are_common = true, .uneven = true},
    {"masters, in one memory", GS_PARTITION_SORTED, ADAM("adamw"), .are_common = true,
     .half = GS_FP16, .poisons = true, .unit = 1024},
    {"halves in one memory", GS_PARTITION_FLAT, ADAM("adam"), .are_common = true, .half = GS_BF16,
     .splits = true, .freezes = true},
    {"exact whole", GS_PARTITION_SORTED, MOMENTUM, .exact = true, .passes = 2},
};
#define NUM_WAYS (sizeof ways / sizeof *ways)

typedef struct rank_state {
    int rank, world_size;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_param_spec params[MAX_PARAMS];
    bool decays[MAX_PARAMS];
    int owners[MAX_PARAMS];
} rank_state;

// What a way is stepped with.
typedef struct stepper {
    const rank_state *self;
    const way *how;
    size_t num_params;
    gs_bucket_plan plan;
    gs_shards *shards;  // NULL: everything is on every rank
    gs_hook_choice choice;
    gs_reducer *reducer;
    gs_optimizer *optimizer;
    gs_param_gather *gather;
    float *memory;              // of parameters that are not gathered, and masters
    float *values[MAX_PARAMS];  // NULL: in 16 bits alone
    float *masters[MAX_PARAMS];
    gs_mixed_precision *mixed;  // NULL: parameters are fp32
    void *own_params[MAX_PARAMS], *own_grads[MAX_PARAMS];
} stepper;

static gs_shards_options shards_for(const stepper *self) {
    bool given = self->how->partition == GS_PARTITION_GIVEN;
    return (gs_shards_options){.partition = self->how->partition,
                               .owners = given ? self->self->owners : NULL,
                               .plan = &self->plan,
                               .params = self->self->params,
                               .num_params = self->num_params,
                               .world_size = self->self->world_size,
                               .element_bytes = self->how->half ? 2 : 4};
}

// Beside a whole run that reduces with its last gradients.
static bool is_by_hand(const stepper *self) {
    return self->how->by_hand && self->shards;
}

static gs_reducer_options reducer_for(stepper *self) {
    const way *how = self->how;
    bool cuts = self->shards && !how->gradients_are_whole;
    self->choice = (gs_hook_choice){.hook = gs_shard_reduce_hook(), .user = self->shards};
    return (gs_reducer_options){
        .params = self->self->params,
        .num_params = self->num_params,
        .plan = &self->plan,
        .shards = {.num_shards = how->exact ? NUM_SHARDS : self->self->world_size,
                   .world_size = self->self->world_size,
                   .rank = self->self->rank,
                   .exact = how->exact},
        .passes_per_shard = how->passes + is_by_hand(self),
        .op = how->op,
        .static_graph = how->static_graph,
        .wire_dtype = how->wire_dtype,
        .hooks = cuts ? &self->choice : NULL,
        .num_hooks = cuts ? 1 : 0,
        .arena = self->self->arena,
        .device = self->self->device,
        .tally = cuts ? GS_TALLY_APART : GS_TALLY_IN_BUCKETS};
}

static gs_status make_plan(stepper *self) {
    self->num_params = self->how->num_params ? self->how->num_params : MAX_PARAMS;
    return gs_bucket_plan_parity(&self->plan, self->self->params, self->num_params, 200, 3000,
                                 NULL);
}

// Of each rank elsewhere in its arena.
static gs_status find_place(const stepper *self, const gs_reducer_options *options, void **params) {
    size_t first, bytes = gs_shards_param_bytes(self->shards);
    const rank_state *rank = self->self;
    GS_TRY(gs_reducer_arena_bytes(&first, options));
    first += (size_t)rank->rank * 256;
    if (first + bytes > gs_arena_bytes(rank->arena))
        return gs_error(GS_INTERNAL, "the arena is too small");
    *params = (char *)gs_arena_data(rank->arena) + first;
    if (!self->how->are_common || rank->world_size == 1) return gs_ok();
    void *common;
    GS_TRY(gs_common_params_find(&common, rank->comm, *params, bytes, DEADLINE));
    if (!common || (rank->rank == 0) != (common == *params))
        return gs_error(GS_INTERNAL, "parameters are in no common memory");
    *params = common;
    return gs_ok();
}

static gs_status share_params(stepper *self, const gs_reducer_options *options) {
    const rank_state *rank = self->self;
    gs_param_gather_options gathers = {.shards = self->shards,
                                       .comm = rank->comm,
                                       .lane = GATHER_LANE,
                                       .are_common = self->how->are_common && rank->world_size > 1};
    GS_TRY(find_place(self, options, &gathers.params));
    GS_TRY(gs_param_gather_create(&self->gather, &gathers, DEADLINE));
    for (size_t i = 0; i < self->num_params && !self->how->half; i++)
        self->values[i] = gs_param_gather_params(self->gather)[i];
    return gs_ok();
}

static void place_params(stepper *self) {
    float *next = self->memory;
    for (size_t i = 0; i < self->num_params; i++) {
        self->values[i] = next;
        next += counts[i];
    }
}

// Masters of what is owned here; 16 bits of all, where gathers have them.
static gs_status halve_params(stepper *self, const gs_optimizer_options *owned) {
    const way *how = self->how;
    size_t num_segments = self->shards ? owned->num_segments : self->num_params;
    float *next = self->memory;
    for (size_t i = 0; i < num_segments; i++) {
        self->masters[i] = next;
        next += self->shards ? owned->segments[i].count : (size_t)counts[i];
    }
    const gs_mixed_precision_options options = {
        .dtype = how->half,
        .params = self->self->params,
        .num_params = self->num_params,
        .masters = how->splits ? NULL : self->masters,
        .splits_masters = how->splits,
        .keeps_params = true,
        .keeps_values = !how->splits,
        .device = self->self->device,
        .segments = owned->segments,
        .num_segments = owned->num_segments,
        .places = self->gather ? gs_param_gather_params(self->gather) : NULL};
    GS_TRY(gs_mixed_precision_create(&self->mixed, &options));
    for (size_t i = 0; i < self->num_params && !how->splits; i++)
        self->values[i] = gs_mixed_precision_values(self->mixed)[i];
    return gs_ok();
}

static float first_value(size_t param, size_t i) {
    return sinf((float)(i * 3 + param));
}

// Of masters; what others own comes from them.
static gs_status begin_halves(stepper *self, const gs_optimizer_options *owned) {
    size_t num_segments = self->shards ? owned->num_segments : self->num_params;
    for (size_t s = 0; s < num_segments; s++) {
        gs_segment own = self->shards ? owned->segments[s] : (gs_segment){s, 0, (size_t)counts[s]};
        float first[MAX_ELEMENTS];
        for (size_t i = 0; i < own.count; i++) first[i] = first_value(own.tensor, own.first + i);
        GS_TRY(gs_mixed_precision_write(self->mixed, own.tensor, own.first, first, own.count));
    }
    gs_mixed_precision_write_back(self->mixed);
    return self->gather ? gs_param_gather_start(self->gather, 0) : gs_ok();
}

// Of parameter `param` as kernels read them.
static void read_values(const stepper *self, float *out, size_t param) {
    gs_device *device = self->self->device;
    uint16_t halves[MAX_ELEMENTS];
    size_t count = (size_t)counts[param];
    if (self->values[param]) {
        device_memory_read(device, out, self->values[param], count * sizeof *out);
        return;
    }
    device_memory_read(device, halves, gs_mixed_precision_params(self->mixed)[param],
                       count * sizeof *halves);
    for (size_t i = 0; i < count; i++) out[i] = gs_bf16_to_fp32(halves[i]);
}

static gs_status await_param(const stepper *self, size_t param) {
    if (!self->gather) return gs_ok();
    GS_TRY(gs_param_gather_wait(self->gather, param, DEADLINE));
    if (self->mixed) gs_mixed_precision_take_param(self->mixed, param);
    return gs_ok();
}

static gs_status begin_params(stepper *self) {
    for (size_t i = 0; i < self->num_params; i++) {
        float first[MAX_ELEMENTS];
        for (size_t k = 0; k < (size_t)counts[i]; k++) first[k] = first_value(i, k);
        device_memory_write(self->self->device, self->values[i], first,
                            (size_t)counts[i] * sizeof *first);
    }
    return gs_ok();
}

static gs_status open_stepper(stepper *self, const rank_state *rank, const way *how, bool shards) {
    *self = (stepper){.self = rank, .how = how};
    GS_TRY(make_plan(self));
    const gs_shards_options cut = shards_for(self);
    if (shards) GS_TRY(gs_shards_create(&self->shards, &cut));
    gs_reducer_options options = reducer_for(self);
    GS_TRY(gs_reducer_create(&self->reducer, &options, rank->comm, DEADLINE));
    self->memory = device_memory_alloc(rank->device, MAX_ELEMENTS * sizeof *self->memory);
    if (shards)
        GS_TRY(share_params(self, &options));
    else if (!how->half)
        place_params(self);
    gs_optimizer_options optimizer = how->optimizer;
    if (shards)
        optimizer.segments = gs_shards_of_rank(self->shards, rank->rank, &optimizer.num_segments);
    GS_TRY(gs_optimizer_create(&self->optimizer, &optimizer, rank->params, rank->decays,
                               self->num_params, rank->device));
    if (!how->half) return begin_params(self);
    GS_TRY(halve_params(self, &optimizer));
    return begin_halves(self, &optimizer);
}

static void close_stepper(stepper *self) {
    gs_mixed_precision_destroy(self->mixed);
    gs_optimizer_destroy(self->optimizer);
    gs_param_gather_destroy(self->gather);
    gs_reducer_destroy(self->reducer);
    gs_shards_destroy(self->shards);
    gs_bucket_plan_release(&self->plan);
    device_memory_free(self->self->device, self->memory);
}

static bool is_frozen(const way *how, size_t param, int64_t step) {
    return how->freezes && (step == 1 || step == 2) && (param == 5 || param == 2);
}

// Told in each step, as who looks for changes does.
static gs_status tell_trainable(const stepper *self, int64_t step) {
    bool trainable[MAX_PARAMS], changed;
    if (!self->how->freezes) return gs_ok();
    for (size_t i = 0; i < self->num_params; i++) trainable[i] = !is_frozen(self->how, i, step);
    GS_TRY(gs_reducer_set_trainable(self->reducer, trainable, &changed, DEADLINE));
    if (changed != (step == 1 || step == 3))
        return gs_error(GS_INTERNAL, "step %lld: changed %d", (long long)step, changed);
    gs_optimizer_set_trainable(self->optimizer, trainable);
    if (!self->gather) return gs_ok();
    GS_TRY(gs_param_gather_finish(self->gather, DEADLINE));
    for (size_t i = 0; self->mixed && i < self->num_params; i++)
        gs_mixed_precision_take_param(self->mixed, i);
    return gs_param_gather_set_trainable(self->gather, trainable);
}

// Logical shard 0 is rank 0's.
static bool is_used(const stepper *self, const gs_reducer_pass *pass, size_t param, int64_t step) {
    if (self->how->all_used) return true;
    if (is_frozen(self->how, param, step)) return false;
    if (param == UNUSED) return !self->how->static_graph && step % 2 == 0;
    return param != USED_BY_ONE || pass->shard == 0;
}

// Of its parameter's values: one that were not whole would show in all that follows.
static void add_grad(const stepper *self, const gs_reducer_pass *pass, size_t param, int64_t step) {
    gs_device *device = self->self->device;
    size_t bytes = (size_t)counts[param] * sizeof(float);
    float grad[MAX_ELEMENTS], values[MAX_ELEMENTS];
    float unit = self->how->unit ? (float)self->how->unit : 1;
    read_values(self, values, param);
    if (pass->accumulate) device_memory_read(device, grad, pass->grads[param], bytes);
    for (int64_t i = 0; i < counts[param]; i++) {
        float noise = (float)((int)((i * 7 + (int64_t)param + step + pass->pass) % 23) - 11) / 8;
        float value =
            (noise * (1 + (float)pass->shard / 3) + 0.3f * values[i]) * unit * pass->grad_factor;
        grad[i] = pass->accumulate ? grad[i] + value : value;
    }
    if (self->how->poisons && step == POISONED_STEP && param == POISONED &&
        self->self->rank == self->self->world_size - 1)
        grad[0] = INFINITY;
    device_memory_write(device, pass->grads[param], grad, bytes);
}

// Of a step that would add up two passes: the first one leaves half of its gradients behind.
static gs_status fail_pass(const stepper *self, int64_t step) {
    gs_reducer_pass pass;
    float spoilt[MAX_ELEMENTS];
    for (size_t i = 0; i < MAX_ELEMENTS; i++) spoilt[i] = 77;
    GS_TRY(gs_reducer_begin(self->reducer, step));
    GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, 5));
    for (size_t i = self->num_params; i-- > self->num_params / 2;) {
        size_t bytes = (size_t)counts[i] * sizeof *spoilt;
        device_memory_write(self->self->device, pass.grads[i], spoilt, bytes);
        GS_TRY(gs_reducer_mark_ready(self->reducer, i));
    }
    return gs_reducer_abandon(self->reducer);
}

static gs_status run_passes(const stepper *self, int64_t step) {
    gs_reducer_pass pass = {0};
    for (int p = 0; !pass.reduces; p++) {
        GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, 2 + self->self->rank + p));
        bool uses_nothing = is_by_hand(self) && pass.reduces;
        for (size_t i = 0; i < self->num_params; i++) {
            if (!is_used(self, &pass, i, step)) continue;
            GS_TRY(await_param(self, i));
        }
        for (size_t i = self->num_params; i-- > 0;) {
            if (uses_nothing || !is_used(self, &pass, i, step)) continue;
            add_grad(self, &pass, i, step);
            GS_TRY(gs_reducer_mark_ready(self->reducer, i));
        }
        GS_TRY(gs_reducer_end_pass(self->reducer));
    }
    return gs_ok();
}

static gs_status update(stepper *self, const gs_reduce_result *result) {
    const way *how = self->how;
    void *const *grads = gs_reducer_grads(self->reducer), *const *values =
                                                              (void *const *)self->values;
    float scale = how->clips ? gs_grad_clip_factor(result->grad_norm, 0.5) : 1;
    if (how->unit) scale /= (float)how->unit;
    if (self->shards) {
        gs_shards_point(self->own_grads, self->shards, self->self->rank, grads, sizeof(float));
        grads = self->own_grads;
    }
    if (self->mixed)
        return gs_mixed_precision_step(self->mixed, self->optimizer, grads, result->used, 0.05f,
                                       scale);
    if (self->shards) {
        gs_shards_point(self->own_params, self->shards, self->self->rank, values, sizeof(float));
        values = self->own_params;
    }
    return gs_optimizer_step(self->optimizer, values, grads, result->used, 0.05f, scale);
}

static gs_status step_once(stepper *self, int64_t step) {
    const rank_state *rank = self->self;
    gs_reduce_result result;
    // From step 2 on the last rank has no data.
    bool uneven = self->how->uneven && step >= 2 && rank->world_size > 1;
    gs_join_round round = {.num_active = rank->world_size - uneven,
                           .active = !uneven || rank->rank != rank->world_size - 1};
    if (self->how->fails && self->shards && rank->rank == 0) GS_TRY(fail_pass(self, step));
    GS_TRY(tell_trainable(self, step));
    GS_TRY(gs_reducer_begin_uneven(self->reducer, step, &round));
    if (round.active) GS_TRY(run_passes(self, step));
    GS_TRY(gs_reducer_finish(self->reducer, &result, DEADLINE));
    bool poisoned = self->how->poisons && step == POISONED_STEP;
    if (result.nonfinite != poisoned)
        return gs_error(GS_INTERNAL, "step %lld: nonfinite %d", (long long)step, result.nonfinite);
    // A rank without data has waited for no parameter: its own are still on their way.
    if (self->gather) GS_TRY(gs_param_gather_finish(self->gather, DEADLINE));
    if (!result.nonfinite) GS_TRY(update(self, &result));
    GS_TRY(gs_reducer_commit(self->reducer));
    return self->gather && !result.nonfinite ? gs_param_gather_start(self->gather, step) : gs_ok();
}

// The parameters behind each step, and the squares of counts of updates.
typedef struct history {
    float values[NUM_STEPS][MAX_ELEMENTS];
    int64_t num_updates[NUM_STEPS][MAX_PARAMS];
} history;

// In an order of its own, and not all of them.
static bool is_noted(size_t param, int64_t step) {
    return (param + (size_t)step) % 3 != 0 || step == NUM_STEPS - 1;
}

static gs_status note(history *to, stepper *self, int64_t step) {
    float *next = to->values[step];
    for (size_t i = 0; i < self->num_params; next += counts[i++]) {
        if (!is_noted(i, step)) continue;
        GS_TRY(await_param(self, i));
        read_values(self, next, i);
    }
    memcpy(to->num_updates[step], gs_optimizer_num_updates(self->optimizer),
           self->num_params * sizeof(int64_t));
    return gs_ok();
}

static gs_status run_steps(history *to, const rank_state *rank, const way *how, bool shards) {
    stepper *self = malloc(sizeof *self);
    gs_status status = open_stepper(self, rank, how, shards);
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
        status = step_once(self, step);
        if (!status.code) status = note(to, self, step);
    }
    close_stepper(self);
    free(self);
    return status;
}

static const gs_near nearly = {.absolute = 2e-4};

static gs_status compare(const history *whole, const history *cut, const way *how) {
    size_t num_params = how->num_params ? how->num_params : MAX_PARAMS;
    for (int step = 0; step < NUM_STEPS; step++) {
        const float *a = whole->values[step], *b = cut->values[step];
        if (memcmp(whole->num_updates[step], cut->num_updates[step],
                   num_params * sizeof(int64_t)) != 0)
            return gs_error(GS_INTERNAL, "step %d: other counts of updates", step);
        for (size_t p = 0; p < num_params; a += counts[p], b += counts[p], p++) {
            if (!is_noted(p, step)) continue;
            for (int64_t i = 0; i < counts[p]; i++)
                if (how->exact || test_device_is_host() ? memcmp(&a[i], &b[i], sizeof *a) != 0
                                                        : !is_near(b[i], a[i], nearly))
                    return gs_error(GS_INTERNAL, "step %d, parameter %zu[%lld]: %a, not %a", step,
                                    p, (long long)i, (double)b[i], (double)a[i]);
        }
    }
    return gs_ok();
}

static gs_status open_rank(rank_state *self, const gs_rank_env *env) {
    *self = (rank_state){.rank = env->rank, .world_size = env->world_size};
    for (size_t p = 0; p < MAX_PARAMS; p++) {
        self->params[p] = gs_param_spec_make(GS_FP32, 1, 0, "p%zu", p);
        self->params[p].shape[0] = counts[p];
        self->decays[p] = p % 2 == 0;
        self->owners[p] = (int)(p * 5 + 1) % env->world_size;
    }
    gs_share_gpu(env->rank);
    GS_TRY(test_device_try(&self->device, 1));
    GS_TRY(gs_arena_create_on(&self->arena, 512 << 10, self->device));
    return gs_comm_create(&self->comm,
                          &(gs_comm_options){.rank = env->rank,
                                             .world_size = env->world_size,
                                             .generation = 1,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = env->exchange,
                                             .arena = self->arena,
                                             .device = self->device,
                                             .num_lanes = GATHER_LANE + 1},
                          DEADLINE);
}

static void close_rank(rank_state *self) {
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    test_device_close(self->device);
}

static gs_status body_same_bits(const gs_rank_env *env) {
    rank_state self;
    uint64_t exact = 0;
    char text[24];
    history *whole = calloc(1, sizeof *whole), *cut = calloc(1, sizeof *cut);
    gs_status status = open_rank(&self, env);
    for (size_t i = 0; i < NUM_WAYS && !status.code; i++) {
        if (!test_device_is_host() && !ways[i].on_gpus) continue;
        status = run_steps(whole, &self, &ways[i], false);
        if (!status.code) status = run_steps(cut, &self, &ways[i], true);
        if (!status.code) status = compare(whole, cut, &ways[i]);
        if (ways[i].exact)
            exact = gs_hash64(cut->values[NUM_STEPS - 1], sizeof cut->values[0], exact);
        status = gs_status_prefix(status, "%s", ways[i].name);
    }
    snprintf(text, sizeof text, "%016llx", (unsigned long long)exact);
    gs_rank_note(env, text);
    close_rank(&self);
    free(whole);
    free(cut);
    return status;
}

static void sharded_steps_have_the_bits_of_whole_ones(void **state) {
    (void)state;
    char exact[24] = "";
    bool on_host = test_device_is_host();
    if (!test_device_is_there()) skip();
    for (int world_size = on_host ? 1 : 2; world_size <= (on_host ? MAX_WORLD : 2); world_size++) {
        gs_ranks *ranks;
        gs_status statuses[MAX_WORLD];
        assert_ok(gs_ranks_start(&ranks, "same bits", world_size, "", NULL));
        assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(120)));
        for (int r = 0; r < world_size; r++) {
            if (statuses[r].code) fail_msg("rank %d of %d: %s", r, world_size, statuses[r].message);
            if (!*exact) snprintf(exact, sizeof exact, "%s", gs_ranks_note(ranks, r));
            assert_string_equal(gs_ranks_note(ranks, r), exact);
        }
        gs_ranks_destroy(ranks);
    }
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"same bits", body_same_bits}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharded_steps_have_the_bits_of_whole_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
