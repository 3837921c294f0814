// The communication hook that a job asks for: the kinds, and which members each of them has. The one table drives what
// is refused, what defaults are filled in and shown, and what the trainer hands to the library's hook of that name.
//
// Rules between a hook and the rest of a specification are in job_spec.c.
#ifndef RPC_SCHEMA_JOB_HOOK_H
#define RPC_SCHEMA_JOB_HOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rpc/json/json.h"
#include "rpc/schema/fields.h"

#define GS_JOB_HOOK_MEMBERS 8  // most of a kind
#define GS_MAX_GROUP_AVERAGES 7

enum { GS_JOB_HOOK_ALLREDUCE = 0 };  // other kinds are asked for what they have, not for who they are
enum { GS_WRAP_NONE = 0, GS_WRAP_FP16, GS_WRAP_BF16 };

// Neighbours, so many that the last group may have fewer, average their parameters this often.
typedef struct gs_group_average {
    int64_t period, group_size;
} gs_group_average;

// Members that the kind does not have are zero.
typedef struct gs_job_hook {
    int kind;  // in gs_job_hook_kinds
    int wrap;
    int64_t rank, start_step, period, local_ranks, seed;
    double min_compression_rate, orthogonalization_epsilon, ratio, error_budget;
    bool error_feedback, warm_start, divide_after_cast;
    gs_group_average group_averages[GS_MAX_GROUP_AVERAGES];  // periods and sizes ascend, below `period`
    int num_group_averages;
} gs_job_hook;

typedef struct gs_job_hook_member {
    const char *name;      // of the field; a number or a flag is an option of the hook
    const char *fallback;  // JSON; NULL: the default of the field
} gs_job_hook_member;

typedef struct gs_job_hook_kind {
    const char *name;  // of the library's hook, too
    gs_job_hook_member members[GS_JOB_HOOK_MEMBERS + 1];  // ended by one without a name
} gs_job_hook_kind;

extern const gs_job_hook_kind gs_job_hook_kinds[];
extern const gs_field gs_job_hook_fields[];
extern const char *const gs_wrap_words[];  // by GS_WRAP_…

const gs_job_hook_kind *gs_job_hook_kind_of(const gs_job_hook *hook);
bool gs_job_hook_has(const gs_job_hook *hook, const char *member);
// What the library takes: numbers and flags, these as 0 and 1.
bool gs_job_hook_is_number(const char *member);
double gs_job_hook_number(const gs_job_hook *hook, const char *member);
// Sums of gradients, as they are or in 16 bits, and nothing that follows them.
// What it makes of an element does not depend on which others are in its bucket.
bool gs_job_hook_is_by_element(const gs_job_hook *hook);
bool gs_job_hook_is_sum(const gs_job_hook *hook);
// Ranks' parameters differ until they are averaged.
bool gs_job_hook_trains_apart(const gs_job_hook *hook);
// It decides by times and errors how each bucket travels.
bool gs_job_hook_chooses(const gs_job_hook *hook);
// It keeps what it owes from step to step, each rank its own.
bool gs_job_hook_carries(const gs_job_hook *hook);

// Behind gs_fields_decode of `given`, the object in the specification or NULL: the kind's own defaults, and zero for
// what it does not have.
void gs_job_hook_fill(gs_job_hook *hook, const gs_json *given);
// What is given and not of the kind, and values that do not fit together; pointers begin with `prefix`.
void gs_job_hook_check(const gs_job_hook *hook, const gs_json *given, const char *prefix,
                       gs_field_errors *errors);
// [{"period", "group_size"}…], the last without a size: of all ranks. NULL: parameters are not averaged.
gs_json *gs_job_hook_averages(const gs_job_hook *hook);
// Takes what is not of the kind out of the encoded hook.
void gs_job_hook_trim(gs_json *encoded, const gs_job_hook *hook);

#endif
