// How much of a bucket travels with each communication hook: by shapes and options alone, so that a coordinator says
// it before any rank has run. Steps before a hook begins are plain all-reduces. What is not a gradient comes on top:
// what was used, samples, a line or two of each bucket; averages of parameters.
#ifndef CORE_HOOK_VOLUME_H
#define CORE_HOOK_VOLUME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/param_spec.h"

// A hook as far as volumes hang on it. Members that a kind does not have are not looked at.
typedef struct gs_hook_rule {
    const char *kind;     // "powersgd": the specification's word, the library's name
    gs_dtype wire_dtype;  // of sums of floats on their way, as a wrapper has it; unset: as in the bucket
    int world_size;
    int local_ranks;  // whose gradients are averaged when ranks train apart; 0: not known
    int rank;
    double min_compression_rate, ratio;
} gs_hook_rule;

// One bucket in one step, of the rank that sends most.
typedef struct gs_hook_volume {
    uint64_t elements;       // of its gradients
    uint64_t elements_sent;  // in their place: codes, factors, values
    // Padding between gradients included; in bytes of an all-reduce, of which a rank in a ring sends 2 (world - 1) /
    // world. So plain sums are what they are, and what is gathered is world / 2 of what a rank hands in.
    uint64_t wire_bytes;
    size_t num_compressed;   // gradients that do not travel as they are
} gs_hook_volume;

// The bucket of `num_members` of `params`. A kind that is not known counts as plain all-reduce.
gs_hook_volume gs_hook_volume_of(const gs_hook_rule *rule, const gs_param_spec *params,
                                 const size_t *members, size_t num_members);

#endif
