// A random training run as the reducer sees it, drawn from one number, and what must come out of
// it, added up serially in double.
//
// Everything follows from seed and world: model, plans, ready orders, options, who uses what when,
// who has data until when. So ranks agree without talking, and the referee needs no ranks.
// reduce_runner.h takes the steps.
#ifndef TESTS_SUPPORT_REDUCE_CASE_H
#define TESTS_SUPPORT_REDUCE_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradsync/reducer/reducer.h"
#include "tests/support/hook_reference.h"

#define REDUCE_CASE_MAX_PARAMS 24
#define REDUCE_CASE_MAX_WORLD 8
#define REDUCE_CASE_STEPS 5
#define REDUCE_CASE_MAX_MARKS 3
#define REDUCE_CASE_MAX_HOOKS 2

// A hook of the case, and what is around it.
typedef struct reduce_hook {
    const hook_reference *reference;
    gs_dtype wrap;  // fp16 or bf16; unset: nothing
    gs_hook_number numbers[HOOK_REFERENCE_NUMBERS];
    size_t num_numbers;
} reduce_hook;

typedef struct reduce_case {
    uint64_t seed;
    int world_size, num_shards, passes_per_shard;
    size_t num_params;
    gs_param_spec params[REDUCE_CASE_MAX_PARAMS];
    gs_bucket_plan plans[2];  // owned; the second one from `replan_step` on
    int64_t replan_step;      // REDUCE_CASE_STEPS: never
    gs_reducer_op op;
    bool exact, static_graph;
    bool freezes;  // some parameters, others in each second step
    gs_dtype wire_dtype;  // unset: as in the bucket
    gs_tally_carrier tally;
    bool separate;        // gradients in tensors of these types
    gs_dtype tensor_dtypes[REDUCE_CASE_MAX_PARAMS];
    bool uneven;  // rank r has data for its first num_data_steps[r] steps
    gs_join_divisor divisor;
    int64_t num_data_steps[REDUCE_CASE_MAX_WORLD];
    int unused_percent;  // of (parameter, shard, pass)
    int said_percent;    // of those: said early, by mark_unused
    reduce_hook hooks[REDUCE_CASE_MAX_HOOKS];  // a bucket of a plan says which
    size_t num_hooks;
    bool names_hooks;    // false: the reducer takes the first by itself, for its wire dtype
    int num_tokens;      // phases of the hook before the one that reduces (phased_hook.h)
    gs_helper_thread helper;
    char text[640];  // the options in words, for messages
} reduce_case;

void reduce_case_init(reduce_case *self, uint64_t seed, int world_size);
void reduce_case_release(reduce_case *self);

// One micro-batch: which step, shard, and pass inside the shard.
typedef struct reduce_place {
    int64_t step;
    int shard, pass;
} reduce_place;

bool reduce_case_has_data(const reduce_case *self, int rank, int64_t step);
bool reduce_case_trains(const reduce_case *self, size_t param, int64_t step);
// Whether the bucket that has it in that step has none that trains.
bool reduce_case_rests(const reduce_case *self, size_t param, int64_t step);
bool reduce_case_uses(const reduce_case *self, size_t param, reduce_place place);
bool reduce_case_says_unused(const reduce_case *self, size_t param, reduce_place place);
int reduce_case_num_marks(const reduce_case *self, size_t param);  // in a pass that uses it
int64_t reduce_case_samples(const reduce_case *self, reduce_place place);
// One element of the gradient of the mean loss: few bits, so that every dtype holds it exactly;
// more of them in fp64 than fp32 has.
double reduce_case_value(const reduce_case *self, size_t param, reduce_place place, size_t index);
// A random order of all parameters.
void reduce_case_order(const reduce_case *self, size_t *order, uint64_t which);

// What rank `rank` gives in a step, added up as it is handed to the hook.
void reduce_case_local(const reduce_case *self, double *grads, size_t param, int rank,
                       int64_t step);
// What the sum over ranks is multiplied by, by the hook and in all.
double reduce_case_hook_scale(const reduce_case *self, int64_t step);
double reduce_case_scale(const reduce_case *self, int64_t step);
bool reduce_case_narrows(const reduce_case *self);  // something travels in 16 bits
// The hook of a bucket as the reducer gets it without what is around it.
gs_hook_choice reduce_case_choice(const reduce_case *self, size_t hook);

// What every rank must hold of one parameter after a step.
typedef struct reduce_expected {
    bool used;          // by any rank
    double *grads;      // one for each element
    double *magnitude;  // the same sums of absolute values: what rounding errors are measured by
} reduce_expected;
void reduce_case_expect(const reduce_case *self, reduce_expected *expected, size_t param,
                        int64_t step);
// Of the whole step.
int64_t reduce_case_total_samples(const reduce_case *self, int64_t step);
int reduce_case_num_active(const reduce_case *self, int64_t step);
// How far an element of this magnitude may be off by the coarsest type that it is added up in.
double reduce_case_tolerance(const reduce_case *self, size_t param, double magnitude);

#endif
