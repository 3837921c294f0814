#include "rpc/schema/job_hook.h"

#include <stdio.h>
#include <string.h>

#define MOST_SEED 9007199254740991.0  // 2^53 - 1: a double holds it

#define POWERSGD                                                                                       \
    {"wrap", NULL}, {"rank", NULL}, {"start_step", "1000"}, {"error_feedback", NULL}, {"warm_start", NULL}, \
        {"orthogonalization_epsilon", NULL}, {"seed", NULL}

const gs_job_hook_kind gs_job_hook_kinds[] = {
    {"allreduce", {{"wrap", NULL}}},
    {"fp16", {{"divide_after_cast", NULL}}},
    {"bf16", {{"divide_after_cast", NULL}}},
    {"local_sgd", {{"start_step", "1000"}, {"period", NULL}, {"group_averages", NULL}, {"local_ranks", NULL}}},
    {"noop", {{0}}},
    {"powersgd", {POWERSGD, {"min_compression_rate", NULL}}},
    {"batched_powersgd", {POWERSGD}},
    {"int8", {{0}}},
    {"int8_channel", {{0}}},
    {"uint8_gather", {{"wrap", NULL}}},
    {"topk", {{"wrap", NULL}, {"ratio", NULL}, {"error_feedback", NULL}, {"start_step", "0"}}},
    {"onebit", {{"error_feedback", NULL}, {"start_step", "0"}}},
    {"auto", {{"error_budget", NULL}, {"error_feedback", NULL}}},
};
// Kinds as far as the library has them, in the order of the table; the rest is "not in this version".
static const char *const kinds[] = {
    "allreduce", "fp16",         "bf16",         "local_sgd", "noop",  "powersgd", "batched_powersgd",
    "int8",      "int8_channel", "uint8_gather", "topk",      "onebit", "auto", NULL};
static const char *const later_kinds[] = {"plugin", NULL};
static const char *const sum_kinds[] = {"allreduce", "fp16", "bf16", NULL};
static const char *const apart_kinds[] = {"local_sgd", "noop", NULL};
const char *const gs_wrap_words[] = {"none", "fp16", "bf16", NULL};

#define AT(member) .offset = offsetof(gs_job_hook, member)
#define RANGE(low, high) .has_range = true, .least = (low), .most = (high)
#define WORDS(list) .type = GS_FIELD_ENUM, .words = (list)

#define AVERAGE(member) .type = GS_FIELD_INT, .offset = offsetof(gs_group_average, member), .required = true

static const gs_field group_average_fields[] = {
    {"period", AVERAGE(period), RANGE(1, 1e6), .help = "Steps between these averages."},
    {"group_size", AVERAGE(group_size), RANGE(2, 4096),
     .help = "So many neighbours take one; the last group may have fewer."},
    {0},
};

// Each default is that of all kinds that have the member and name no other.
const gs_field gs_job_hook_fields[] = {
    {"kind", WORDS(kinds), AT(kind), .later_words = later_kinds, .default_value = "\"allreduce\"",
     .help = "How a bucket is communicated."},
    {"wrap", WORDS(gs_wrap_words), AT(wrap), .default_value = "\"none\"",
     .help = "16 bits for the floats that a hook sends, gradients and results rounded to them."},
    {"rank", GS_FIELD_INT, AT(rank), RANGE(1, 64), .default_value = "1",
     .help = "powersgd, batched_powersgd: columns of the two factors that travel in a matrix's place."},
    {"start_step", GS_FIELD_INT, AT(start_step), RANGE(0, 1e12),
     .help = "Plain averages before this step of the job; default 1000, for topk and onebit 0. A powersgd "
             "with error_feedback or warm_start begins at 2 or later."},
    {"min_compression_rate", GS_FIELD_DOUBLE, AT(min_compression_rate), RANGE(1e-6, 1e6),
     .default_value = "2",
     .help = "powersgd: matrices whose factors are not this many times smaller travel as they are."},
    {"error_feedback", GS_FIELD_BOOL, AT(error_feedback), .default_value = "true",
     .help = "What compression left out is added in the next step. Checkpoints are of parts ranks then."},
    {"warm_start", GS_FIELD_BOOL, AT(warm_start), .default_value = "true",
     .help = "powersgd, batched_powersgd: begin with the factors of the step before."},
    {"orthogonalization_epsilon", GS_FIELD_DOUBLE, AT(orthogonalization_epsilon), RANGE(0, 1),
     .default_value = "0",
     .help = "powersgd, batched_powersgd: added to the norm of a column; a column of zeros stays zero anyway."},
    {"ratio", GS_FIELD_DOUBLE, AT(ratio), RANGE(1e-6, 1), .default_value = "0.01",
     .help = "topk: share of the elements that travels."},
    {"error_budget", GS_FIELD_DOUBLE, AT(error_budget), RANGE(0, 0.5), .default_value = "0.01",
     .help = "auto: what a bucket may lose of its gradients on their way, as a share of their norm, on the rank that "
             "loses most; the quickest way within it is taken. 0: plain sums. Not on GPUs."},
    {"period", GS_FIELD_INT, AT(period), RANGE(1, 1e6), .default_value = "4",
     .help = "local_sgd: steps between averages of the parameters over all ranks."},
    {"group_averages", GS_FIELD_OBJECTS, AT(group_averages), .capacity = GS_MAX_GROUP_AVERAGES,
     .element_bytes = sizeof(gs_group_average), .count_offset = offsetof(gs_job_hook, num_group_averages),
     .fields = group_average_fields,
     .help = "local_sgd: averages over groups of neighbours, more often than over all ranks; both numbers ascend. "
             "Of those that are due behind a step the one over most ranks is taken."},
    {"local_ranks", GS_FIELD_INT, AT(local_ranks), RANGE(0, 4096), .default_value = "0",
     .help = "local_sgd: so many neighbours average their gradients in every step; 0: the ranks of a host; "
             "1: none."},
    {"seed", GS_FIELD_INT, AT(seed), RANGE(0, MOST_SEED), .default_value = "0",
     .help = "powersgd, batched_powersgd: of the factors that it begins with."},
    {"divide_after_cast", GS_FIELD_BOOL, AT(divide_after_cast), .default_value = "false",
     .help = "fp16, bf16: cast, then divide, as PyTorch does; what fits divided may overflow."},
    {0},
};

const gs_job_hook_kind *gs_job_hook_kind_of(const gs_job_hook *hook) {
    return &gs_job_hook_kinds[hook->kind];
}

static const gs_job_hook_member *find_member(const gs_job_hook *hook, const char *name) {
    const gs_job_hook_member *member = gs_job_hook_kind_of(hook)->members;
    for (; member->name; member++) {
        if (strcmp(member->name, name) == 0) return member;
    }
    return NULL;
}

bool gs_job_hook_has(const gs_job_hook *hook, const char *member) {
    return find_member(hook, member) != NULL;
}

static bool is_one_of(const gs_job_hook *hook, const char *const *kinds_wanted) {
    const char *name = gs_job_hook_kind_of(hook)->name;
    for (const char *const *kind = kinds_wanted; *kind; kind++) {
        if (strcmp(name, *kind) == 0) return true;
    }
    return false;
}

bool gs_job_hook_is_sum(const gs_job_hook *hook) {
    return is_one_of(hook, sum_kinds) && hook->wrap == GS_WRAP_NONE;
}

bool gs_job_hook_is_by_element(const gs_job_hook *hook) {
    return is_one_of(hook, sum_kinds) || is_one_of(hook, apart_kinds);
}

bool gs_job_hook_trains_apart(const gs_job_hook *hook) {
    return is_one_of(hook, apart_kinds);
}

bool gs_job_hook_chooses(const gs_job_hook *hook) {
    return gs_job_hook_has(hook, "error_budget");
}

bool gs_job_hook_carries(const gs_job_hook *hook) {
    return hook->error_feedback;
}

bool gs_job_hook_is_number(const char *member) {
    for (const gs_field *field = gs_job_hook_fields; field->name; field++) {
        if (strcmp(field->name, member) == 0)
            return field->type == GS_FIELD_INT || field->type == GS_FIELD_BOOL || field->type == GS_FIELD_DOUBLE;
    }
    return false;
}

double gs_job_hook_number(const gs_job_hook *hook, const char *member) {
    for (const gs_field *field = gs_job_hook_fields; field->name; field++) {
        const void *value = (const char *)hook + field->offset;
        if (strcmp(field->name, member) != 0) continue;
        if (field->type == GS_FIELD_INT) return (double)*(const int64_t *)value;
        if (field->type == GS_FIELD_BOOL) return *(const bool *)value;
        if (field->type == GS_FIELD_DOUBLE) return *(const double *)value;
    }
    return 0;
}

// NULL: zero.
static void set_value(gs_job_hook *hook, const gs_field *field, const char *json) {
    gs_field row[2] = {*field, {0}};
    row[0].default_value = json;
    gs_fields_set_defaults(hook, row);
}

static bool is_kind(const gs_field *field) {
    return field == gs_job_hook_fields;
}

void gs_job_hook_fill(gs_job_hook *hook, const gs_json *given) {
    for (const gs_field *field = gs_job_hook_fields; field->name; field++) {
        if (is_kind(field)) continue;
        const gs_job_hook_member *member = find_member(hook, field->name);
        if (!member) set_value(hook, field, NULL);
        else if (member->fallback && !gs_json_get(given, field->name))
            set_value(hook, field, member->fallback);
    }
}

static bool is_sound(const gs_field_errors *errors, const char *prefix, const char *member) {
    char pointer[128];
    snprintf(pointer, sizeof pointer, "%s/%s", prefix, member);
    return !gs_field_errors_lie_in(errors, pointer);
}

static void check_members(const gs_job_hook *hook, const gs_json *given, const char *prefix,
                          gs_field_errors *errors) {
    for (const gs_field *field = gs_job_hook_fields; field->name; field++) {
        char pointer[128];
        bool is_own = is_kind(field) || gs_job_hook_has(hook, field->name);
        if (is_own || !gs_json_get(given, field->name) || !is_sound(errors, prefix, field->name))
            continue;
        snprintf(pointer, sizeof pointer, "%s/%s", prefix, field->name);
        gs_field_errors_add(errors, pointer, "not_applicable", NULL, "kind is %s",
                            gs_job_hook_kind_of(hook)->name);
    }
}

// The plan is made anew behind the first step, from the order in which gradients came.
static void check_start(const gs_job_hook *hook, const char *prefix, gs_field_errors *errors) {
    char pointer[128];
    snprintf(pointer, sizeof pointer, "%s/start_step", prefix);
    bool remembers = hook->error_feedback || hook->warm_start;
    if (!gs_job_hook_has(hook, "warm_start") || !remembers || hook->start_step >= 2) return;
    if (!is_sound(errors, prefix, "start_step") || !is_sound(errors, prefix, "error_feedback") ||
        !is_sound(errors, prefix, "warm_start"))
        return;
    gs_field_errors_add(errors, pointer, "out_of_range", NULL, "must be at least 2 with %s",
                        hook->error_feedback ? "error_feedback" : "warm_start");
}

// Each is of more ranks than the one before it, and rarer; all are of fewer than all, and more often.
static void check_averages(const gs_job_hook *hook, const char *prefix, gs_field_errors *errors) {
    char pointer[128];
    snprintf(pointer, sizeof pointer, "%s/group_averages", prefix);
    if (!is_sound(errors, prefix, "group_averages") || !is_sound(errors, prefix, "period")) return;
    for (int i = 0; i < hook->num_group_averages; i++) {
        const gs_group_average *average = &hook->group_averages[i];
        snprintf(pointer, sizeof pointer, "%s/group_averages/%d/period", prefix, i);
        if (average->period >= hook->period)
            gs_field_errors_add(errors, pointer, "out_of_range", NULL,
                                "must be less than period, %lld: that of all ranks", (long long)hook->period);
        else if (i > 0 && average->period <= average[-1].period)
            gs_field_errors_add(errors, pointer, "out_of_range", NULL, "must be more than %lld: periods ascend",
                                (long long)average[-1].period);
        snprintf(pointer, sizeof pointer, "%s/group_averages/%d/group_size", prefix, i);
        if (i > 0 && average->group_size <= average[-1].group_size)
            gs_field_errors_add(errors, pointer, "out_of_range", NULL, "must be more than %lld: sizes ascend",
                                (long long)average[-1].group_size);
    }
}

void gs_job_hook_check(const gs_job_hook *hook, const gs_json *given, const char *prefix,
                       gs_field_errors *errors) {
    check_members(hook, given, prefix, errors);
    check_start(hook, prefix, errors);
    if (gs_job_hook_has(hook, "group_averages")) check_averages(hook, prefix, errors);
}

gs_json *gs_job_hook_averages(const gs_job_hook *hook) {
    if (!gs_job_hook_has(hook, "period")) return NULL;
    gs_json *averages = gs_json_new_array(), *whole = gs_json_new_object();
    for (int i = 0; i < hook->num_group_averages; i++)
        gs_json_push(averages, gs_fields_encode(&hook->group_averages[i], group_average_fields));
    gs_json_set_int(whole, "period", hook->period);
    gs_json_push(averages, whole);
    return averages;
}

void gs_job_hook_trim(gs_json *encoded, const gs_job_hook *hook) {
    for (const gs_field *field = gs_job_hook_fields; field->name; field++) {
        if (!is_kind(field) && !gs_job_hook_has(hook, field->name)) gs_json_remove(encoded, field->name);
    }
}
