// What each communication hook has to leave in a bucket, done serially, in double, by one who sees all ranks.
//
// A hook's reference draws its options and then follows its buckets step by step, with a state of its own for what
// is carried from one to the next. It says how far each element may be off: by rounding, and where a rounding decides
// more than the last bit. To add one: a line in the table of hook_reference.c, its functions in a file beside it where
// they are long.
#ifndef TESTS_SUPPORT_HOOK_REFERENCE_H
#define TESTS_SUPPORT_HOOK_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

#include "gradsync/hooks/comm_hook.h"

#define HOOK_REFERENCE_NUMBERS 8

// A bucket of a step as the hooks of all ranks get it.
typedef struct reference_bucket {
    int64_t step;
    int world_size;
    double scale;  // gs_hook_bucket.scale
    gs_dtype dtype;
    size_t count;                 // zeros between members
    const gs_hook_param *params;  // members in order, `first` is where each begins
    size_t num_params;
    double *const *in;    // [rank][count], without scale; the reference may write there
    gs_dtype wire_dtype;  // of floats on their way, where a wrapper says so; unset: as they are
    double *out, *slack;  // [count]: the result, and how far it may be off beside roundings in `dtype`; zeros at first
} reference_bucket;

// What options have to fit.
typedef struct reference_limits {
    int64_t num_steps;
    bool divides_later;  // the mean over samples
} reference_limits;

typedef struct hook_reference {
    const char *name;  // of the hook
    bool is_linear;    // a last bit of its input is no more than a last bit of its result
    // Options of the hook, from a random number; returns how many.
    size_t (*draw)(gs_hook_number numbers[HOOK_REFERENCE_NUMBERS], uint64_t dice,
                   const reference_limits *limits);
    // *state: its own, NULL at first. Called for each bucket that travels, in the order of steps and buckets.
    void (*run)(void **state, const gs_hook_choice *choice, const reference_bucket *bucket);
    void (*release)(void *state);  // takes NULL; may be NULL where there is none
} hook_reference;

extern const hook_reference topk_reference, onebit_reference;                      // residual_reference.c
extern const hook_reference powersgd_reference, batched_powersgd_reference;        // low_rank_reference.c
extern const hook_reference int8_reference, int8_channel_reference, uint8_gather_reference;  // code_reference.c

// The hooks that have both a reference and a place in the registry; ends with NULL. A constant table.
const hook_reference *const *hook_references(void);
const hook_reference *hook_reference_find(const char *name);  // NULL: none

// ---- for references

double reference_epsilon(gs_dtype dtype);  // half of the distance from 1 to the next number
double reference_round(gs_dtype dtype, double value);  // to fp16 or bf16 and back
// As a bucket of this dtype holds it. An operation on two such numbers, done in double and rounded by this, has
// the bits of the same operation in the dtype.
double reference_real(gs_dtype dtype, double value);
// out = scale · Σ in, in 16 bits where `wire_dtype` says so: what plain averaging does.
//   rounds_first  each rank's gradient is one of that dtype before it is scaled
void reference_sum(const reference_bucket *bucket, gs_dtype wire_dtype, bool rounds_first);

#endif
