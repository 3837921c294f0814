#include "tests/support/reduce_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "gradsync/bucket/main_grad.h"

enum {
    DRAW_MODEL = 1,
    DRAW_OPTIONS,
    DRAW_ORDER,
    DRAW_USE,
    DRAW_SAID,
    DRAW_MARKS,
    DRAW_SAMPLES,
    DRAW_VALUE,
    DRAW_END,
    DRAW_HOOK,
    DRAW_FREEZE
};

static uint64_t draw(const reduce_case *self, uint64_t what, uint64_t a, uint64_t b) {
    return gs_random_u64(
        (gs_random_key){.seed = self->seed, .stream = gs_random_stream(what, a, b)}, 0);
}

// One in `many`.
static bool happens(const reduce_case *self, uint64_t which, uint64_t many) {
    return draw(self, DRAW_OPTIONS, which, 0) % many == 0;
}

static uint64_t place_number(reduce_place place) {
    return (uint64_t)(place.step * 10000 + place.shard * 10 + place.pass);
}

static void draw_model(reduce_case *self) {
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP32, GS_FP64, GS_FP16, GS_BF16};
    bool mixed = happens(self, 1, 2);
    self->num_params = 1 + draw(self, DRAW_MODEL, 0, 0) % REDUCE_CASE_MAX_PARAMS;
    for (size_t i = 0; i < self->num_params; i++) {
        uint64_t number = draw(self, DRAW_MODEL, 1, i);
        int64_t rows = 1 + (int64_t)(number % 40), cols = (int64_t)(number >> 8) % 60;
        gs_dtype dtype = mixed ? dtypes[(number >> 16) % 5] : GS_FP32;
        self->params[i] =
            gs_param_spec_make(dtype, rows, (number >> 24) % 3 ? 0 : cols, "layer.%zu.weight", i);
        self->tensor_dtypes[i] = dtypes[(number >> 32) % 5];
    }
}

static void draw_plan(reduce_case *self, int which) {
    uint64_t number = draw(self, DRAW_MODEL, 2, (uint64_t)which);
    uint64_t cap_bytes = number % 4 ? 100 + (number >> 8) % 8000 : 1 << 30;
    size_t order[REDUCE_CASE_MAX_PARAMS];
    reduce_case_order(self, order, 1000 + (uint64_t)which);
    gs_status status =
        gs_bucket_plan_parity(&self->plans[which], self->params, self->num_params, cap_bytes / 8,
                              cap_bytes, (number >> 4) % 2 ? order : NULL);
    if (status.code) abort();
}

static void draw_options(reduce_case *self) {
    uint64_t number = draw(self, DRAW_OPTIONS, 0, 0);
    self->num_shards = self->world_size + (number % 3 ? 0 : (int)((number >> 4) % 4));
    self->passes_per_shard = 1 + (int)((number >> 8) % 3);
    self->op = (gs_reducer_op)((number >> 12) % 3);
    self->exact = happens(self, 2, 4);
    self->static_graph = happens(self, 3, 3);
    self->separate = happens(self, 4, 3);
    self->uneven = !self->exact && happens(self, 5, 3);
    self->tally = happens(self, 6, 2) ? GS_TALLY_APART : GS_TALLY_IN_BUCKETS;
    bool shard_for_each = self->num_shards == self->world_size || self->op != GS_MEAN;
    self->divisor =
        shard_for_each && (number >> 20) % 2 ? GS_DIVIDE_BY_ACTIVE : GS_DIVIDE_BY_INITIAL;
    self->unused_percent = (int[]){0, 10, 40, 90}[(number >> 24) % 4];
    self->said_percent = (int[]){0, 50, 100}[(number >> 28) % 3];
    self->replan_step = 1 + (int64_t)((number >> 32) % REDUCE_CASE_STEPS);
    self->helper = (number >> 36) % 3 ? GS_HELPER_OFF : GS_HELPER_ON;
    self->num_tokens = (int)((number >> 40) % 4);
    self->freezes = !self->static_graph && happens(self, 7, 3);
}

// The reducer's own choice, by its wire dtype.
static void take_default(reduce_case *self, uint64_t number) {
    static const gs_dtype wires[] = {GS_DTYPE_UNSET, GS_DTYPE_UNSET, GS_FP16, GS_BF16};
    self->wire_dtype = self->exact ? GS_DTYPE_UNSET : wires[number % 4];
    const char *name = self->wire_dtype ? gs_dtype_name(self->wire_dtype) : "allreduce";
    self->hooks[0] = (reduce_hook){.reference = hook_reference_find(name)};
    self->num_hooks = 1;
}

// Half of them carry something from step to step: there is more to get wrong.
static const hook_reference *pick_hook(uint64_t number) {
    const hook_reference *const *all = hook_references();
    const hook_reference *fit[64];
    const bool carries = number % 2;
    size_t count = 0;
    for (size_t i = 0; all[i]; i++)
        if (all[i]->release || !carries) fit[count++] = all[i];
    return fit[number / 2 % count];
}

static void draw_hook(reduce_case *self, size_t which) {
    const reference_limits limits = {.num_steps = REDUCE_CASE_STEPS,
                                     .divides_later = self->op == GS_SAMPLE_MEAN};
    uint64_t number = draw(self, DRAW_HOOK, which, 0);
    reduce_hook *hook = &self->hooks[which];
    hook->reference = pick_hook(draw(self, DRAW_HOOK, 300 + which, 0));
    hook->num_numbers = hook->reference->draw(hook->numbers, number >> 16, &limits);
    bool is_half = gs_dtype_from_name(hook->reference->name) != GS_DTYPE_UNSET;
    if ((number >> 8) % 4 == 0 && !is_half) hook->wrap = (number >> 12) % 2 ? GS_FP16 : GS_BF16;
    // What decides by more than last bits gets inputs that are known to the last.
    for (size_t i = 0; i < self->num_params && !hook->reference->is_linear; i++)
        self->tensor_dtypes[i] = gs_main_grad_dtype(self->params[i].dtype);
}

static void draw_hooks(reduce_case *self) {
    uint64_t number = draw(self, DRAW_HOOK, 100, 0);
    if (self->exact || number % 3 == 0) {
        take_default(self, number >> 8);
        return;
    }
    self->names_hooks = true;
    self->num_hooks = 1 + (number >> 8) % REDUCE_CASE_MAX_HOOKS;
    for (size_t i = 0; i < self->num_hooks; i++) draw_hook(self, i);
    for (int which = 0; which < 2; which++) {
        gs_bucket_plan *plan = &self->plans[which];
        for (size_t b = 0; b < plan->num_buckets; b++)
            plan->buckets[b].hook =
                (int)(draw(self, DRAW_HOOK, 200 + (uint64_t)which, b) % self->num_hooks);
    }
}

static void draw_ends(reduce_case *self) {
    for (int r = 0; r < self->world_size; r++) {
        uint64_t number = draw(self, DRAW_END, (uint64_t)r, 0) % (REDUCE_CASE_STEPS + 1);
        self->num_data_steps[r] = self->uneven ? (int64_t)number : REDUCE_CASE_STEPS;
        // The first step of a static graph is everybody's.
        if (self->static_graph && !self->num_data_steps[r]) self->num_data_steps[r] = 1;
    }
    self->num_data_steps[draw(self, DRAW_END, 9, 0) % (uint64_t)self->world_size] =
        REDUCE_CASE_STEPS;
}

static void describe_hook(reduce_case *self, const reduce_hook *hook) {
    size_t used = strlen(self->text), left = sizeof self->text - used;
    snprintf(self->text + used, left, ", %s%s%s", hook->wrap ? gs_dtype_name(hook->wrap) : "",
             hook->wrap ? " around " : "", hook->reference->name);
    for (size_t i = 0; i < hook->num_numbers; i++) {
        used = strlen(self->text);
        snprintf(self->text + used, sizeof self->text - used, " %s %g", hook->numbers[i].name,
                 hook->numbers[i].number);
    }
}

void reduce_case_init(reduce_case *self, uint64_t seed, int world_size) {
    *self = (reduce_case){.seed = seed, .world_size = world_size};
    draw_model(self);
    draw_options(self);
    draw_ends(self);
    draw_plan(self, 0);
    draw_plan(self, 1);
    draw_hooks(self);
    snprintf(self->text, sizeof self->text,
             "seed %llu world %d shards %d passes %d op %d%s%s%s%s%s%s%s wire %s unused %d %% said %d "
             "%% replan %d phases %d",
             (unsigned long long)seed, world_size, self->num_shards, self->passes_per_shard,
             (int)self->op, self->exact ? " exact" : "", self->static_graph ? " static" : "",
             self->freezes ? " freezes" : "", self->separate ? " separate" : "",
             self->uneven ? " uneven" : "",
             self->divisor == GS_DIVIDE_BY_ACTIVE ? " by-active" : "",
             self->tally == GS_TALLY_APART ? " tally apart" : "",
             self->wire_dtype ? gs_dtype_name(self->wire_dtype) : "as is", self->unused_percent,
             self->said_percent, (int)self->replan_step, 1 + self->num_tokens);
    for (size_t i = 0; i < self->num_hooks; i++) describe_hook(self, &self->hooks[i]);
}

void reduce_case_release(reduce_case *self) {
    gs_bucket_plan_release(&self->plans[0]);
    gs_bucket_plan_release(&self->plans[1]);
}

bool reduce_case_has_data(const reduce_case *self, int rank, int64_t step) {
    return step < self->num_data_steps[rank];
}

bool reduce_case_trains(const reduce_case *self, size_t param, int64_t step) {
    uint64_t phase = (uint64_t)step / 2;
    if (!self->freezes || draw(self, DRAW_FREEZE, 0, phase) % self->num_params == param) return true;
    return draw(self, DRAW_FREEZE, 1 + param, phase) % 3 != 0;
}

bool reduce_case_rests(const reduce_case *self, size_t param, int64_t step) {
    const gs_bucket_plan *plan = &self->plans[step >= self->replan_step];
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const size_t *members = plan->params + plan->buckets[b].first;
        bool trains = false, is_member = false;
        for (size_t i = 0; i < plan->buckets[b].num_params; i++) {
            trains |= reduce_case_trains(self, members[i], step);
            is_member |= members[i] == param;
        }
        if (is_member) return !trains;
    }
    return false;
}

bool reduce_case_uses(const reduce_case *self, size_t param, reduce_place place) {
    if (!reduce_case_trains(self, param, place.step)) return false;
    if (self->static_graph) place.step = 0;
    // Some parameters are rare: in many steps no rank uses them.
    bool rare = self->unused_percent && draw(self, DRAW_USE, param, 1 << 30) % 6 == 0;
    int percent = rare ? 95 : self->unused_percent;
    return (int)(draw(self, DRAW_USE, param, place_number(place)) % 100) >= percent;
}

bool reduce_case_says_unused(const reduce_case *self, size_t param, reduce_place place) {
    return (int)(draw(self, DRAW_SAID, param, place_number(place)) % 100) < self->said_percent;
}

int reduce_case_num_marks(const reduce_case *self, size_t param) {
    return self->static_graph ? 1 + (int)(draw(self, DRAW_MARKS, param, 0) % REDUCE_CASE_MAX_MARKS)
                              : 1;
}

int64_t reduce_case_samples(const reduce_case *self, reduce_place place) {
    return 1 + (int64_t)(draw(self, DRAW_SAMPLES, place_number(place), 0) % 4);
}

double reduce_case_value(const reduce_case *self, size_t param, reduce_place place, size_t index) {
    uint64_t number = draw(self, DRAW_VALUE, param, place_number(place)) + index * 2654435761u;
    double value = (double)(int)((number >> 7) % 31 - 15) / 8;
    return self->params[param].dtype == GS_FP64 ? value + (double)(number % 64) / (1ll << 40)
                                                : value;
}

void reduce_case_order(const reduce_case *self, size_t *order, uint64_t which) {
    gs_random_key key = {.seed = self->seed, .stream = gs_random_stream(DRAW_ORDER, which, 0)};
    for (size_t i = 0; i < self->num_params; i++)
        order[i] = gs_random_permute(key, self->num_params, i);
}

int64_t reduce_case_total_samples(const reduce_case *self, int64_t step) {
    int64_t samples = 0;
    gs_logical_shards shards = {.num_shards = self->num_shards, .world_size = self->world_size};
    for (int s = 0; s < self->num_shards; s++) {
        if (!reduce_case_has_data(self, gs_logical_shards_owner(&shards, s), step)) continue;
        for (int pass = 0; pass < self->passes_per_shard; pass++)
            samples += reduce_case_samples(self, (reduce_place){step, s, pass});
    }
    return samples;
}

int reduce_case_num_active(const reduce_case *self, int64_t step) {
    int num_active = 0;
    for (int r = 0; r < self->world_size; r++) num_active += reduce_case_has_data(self, r, step);
    return num_active;
}

static double divisor_of(const reduce_case *self, int64_t step) {
    if (self->op == GS_SUM) return 1;
    if (self->op == GS_SAMPLE_MEAN) return (double)reduce_case_total_samples(self, step);
    int num_shards = self->divisor == GS_DIVIDE_BY_ACTIVE ? reduce_case_num_active(self, step)
                                                          : self->num_shards;
    return (double)num_shards * self->passes_per_shard;
}

static void add_place(const reduce_case *self, reduce_expected *expected, size_t param,
                      reduce_place place, double divisor) {
    double factor = self->op == GS_SAMPLE_MEAN ? (double)reduce_case_samples(self, place) / divisor
                                               : 1 / divisor;
    // What is taken from the first part of a gradient and added by the others is rounded, too.
    double parts = factor * (reduce_case_num_marks(self, param) - 1) / 4;
    for (size_t i = 0; i < gs_param_spec_count(&self->params[param]); i++) {
        double value = factor * reduce_case_value(self, param, place, i);
        expected->grads[i] += value;
        expected->magnitude[i] += (value < 0 ? -value : value) + parts;
    }
}

void reduce_case_local(const reduce_case *self, double *grads, size_t param, int rank,
                       int64_t step) {
    size_t count = gs_param_spec_count(&self->params[param]);
    gs_logical_shards shards = {
        .num_shards = self->num_shards, .world_size = self->world_size, .rank = rank};
    int first = gs_logical_shards_first(&shards, rank), each = gs_logical_shards_count(&shards);
    memset(grads, 0, count * sizeof *grads);
    if (!reduce_case_has_data(self, rank, step)) return;
    for (int at = 0; at < each * self->passes_per_shard; at++) {
        reduce_place place = {step, first + at / self->passes_per_shard,
                              at % self->passes_per_shard};
        if (!reduce_case_uses(self, param, place)) continue;
        double weight =
            self->op == GS_SAMPLE_MEAN ? (double)reduce_case_samples(self, place) : 1;
        for (size_t i = 0; i < count; i++)
            grads[i] += weight * reduce_case_value(self, param, place, i);
    }
}

bool reduce_case_narrows(const reduce_case *self) {
    bool narrows = false;
    for (size_t i = 0; i < self->num_hooks; i++)
        narrows |= self->hooks[i].wrap || gs_dtype_from_name(self->hooks[i].reference->name);
    return narrows;
}

double reduce_case_scale(const reduce_case *self, int64_t step) {
    return 1 / divisor_of(self, step);
}

double reduce_case_hook_scale(const reduce_case *self, int64_t step) {
    if (self->op != GS_SAMPLE_MEAN) return reduce_case_scale(self, step);
    // Where all have data nobody asks for another divisor.
    bool by_active = self->uneven && self->divisor == GS_DIVIDE_BY_ACTIVE;
    int num_shards = by_active ? reduce_case_num_active(self, step) : self->num_shards;
    return reduce_case_narrows(self) ? 1.0 / ((double)num_shards * self->passes_per_shard) : 1;
}

gs_hook_choice reduce_case_choice(const reduce_case *self, size_t hook) {
    const reduce_hook *own = &self->hooks[hook];
    return (gs_hook_choice){.hook = gs_comm_hook_find(own->reference->name),
                            .numbers = own->numbers,
                            .num_numbers = own->num_numbers};
}

void reduce_case_expect(const reduce_case *self, reduce_expected *expected, size_t param,
                        int64_t step) {
    size_t bytes = gs_param_spec_count(&self->params[param]) * sizeof(double);
    gs_logical_shards shards = {.num_shards = self->num_shards, .world_size = self->world_size};
    double divisor = divisor_of(self, step);
    expected->used = false;
    memset(expected->grads, 0, bytes);
    memset(expected->magnitude, 0, bytes);
    for (int s = 0; s < self->num_shards; s++) {
        if (!reduce_case_has_data(self, gs_logical_shards_owner(&shards, s), step)) continue;
        for (int pass = 0; pass < self->passes_per_shard; pass++) {
            reduce_place place = {step, s, pass};
            if (!reduce_case_uses(self, param, place)) continue;
            expected->used = true;
            add_place(self, expected, param, place, divisor);
        }
    }
}

double reduce_case_tolerance(const reduce_case *self, size_t param, double magnitude) {
    double most = reference_epsilon(gs_main_grad_dtype(self->params[param].dtype));
    gs_dtype tensor = self->separate ? self->tensor_dtypes[param] : GS_DTYPE_UNSET;
    if (tensor && reference_epsilon(tensor) > most) most = reference_epsilon(tensor);
    // Each partial sum is rounded once, and twice more for scale and result; fp16 loses small
    // numbers altogether.
    int num_roundings = self->num_shards * self->passes_per_shard + 2;
    double least = tensor == GS_FP16 ? 0x1p-24 : 0;
    return num_roundings * (most * magnitude + least);
}
