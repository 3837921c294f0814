#include "rpc/schema/job_freeze.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

#include "rpc/schema/model_params.h"

#define FREEZE "/model/freeze"
#define PATTERN "^[A-Za-z0-9_.*?-]+$"

const gs_field gs_job_freeze_fields[] = {
    {"params", .type = GS_FIELD_STRING, .offset = offsetof(gs_job_freeze, params),
     .capacity = GS_SPEC_NAME_LEN, .required = true, .pattern = PATTERN,
     .help = "Names of parameters; * stands for any characters, ? for one."},
    {"from_step", .type = GS_FIELD_INT, .offset = offsetof(gs_job_freeze, from_step),
     .has_range = true, .least = 0, .most = 1e12, .default_value = "0",
     .help = "The first step in which they are frozen."},
    {"until_step", .type = GS_FIELD_INT, .offset = offsetof(gs_job_freeze, until_step),
     .has_range = true, .least = 0, .most = 1e12, .default_value = "0",
     .help = "The first step in which they train again; 0 is never."},
    {0},
};

bool gs_job_freeze_matches(const gs_job_freeze *rule, const char *name) {
    return fnmatch(rule->params, name, 0) == 0;
}

static bool is_in_force(const gs_job_freeze *rule, int64_t step) {
    return step >= rule->from_step && (!rule->until_step || step < rule->until_step);
}

uint32_t gs_job_freeze_rules_of(const gs_job_spec *spec, const gs_param_spec *param) {
    uint32_t rules = 0;
    for (int i = 0; i < spec->model.num_freezes; i++)
        rules |= (uint32_t)gs_job_freeze_matches(&spec->model.freeze[i], param->name) << i;
    return rules;
}

static bool trains_at(const gs_job_spec *spec, uint32_t rules, int64_t step) {
    for (int i = 0; i < spec->model.num_freezes; i++) {
        if (rules >> i & 1 && is_in_force(&spec->model.freeze[i], step)) return false;
    }
    return true;
}

bool gs_job_freeze_trains(const gs_job_spec *spec, const gs_param_spec *param, int64_t step) {
    return trains_at(spec, gs_job_freeze_rules_of(spec, param), step);
}

bool gs_job_freeze_ever_trains(const gs_job_spec *spec, const gs_param_spec *param) {
    uint32_t rules = gs_job_freeze_rules_of(spec, param);
    int64_t step = 0;
    while (!trains_at(spec, rules, step)) {
        step = gs_job_freeze_next_change(spec, step);
        if (step >= spec->steps.target) return false;
    }
    return true;
}

int64_t gs_job_freeze_next_change(const gs_job_spec *spec, int64_t step) {
    int64_t next = INT64_MAX;
    for (int i = 0; i < spec->model.num_freezes; i++) {
        const gs_job_freeze *rule = &spec->model.freeze[i];
        if (rule->from_step > step && rule->from_step < next) next = rule->from_step;
        if (rule->until_step > step && rule->until_step < next) next = rule->until_step;
    }
    return next;
}

static void check_range(const gs_job_spec *spec, int index, gs_field_errors *errors) {
    const gs_job_freeze *rule = &spec->model.freeze[index];
    char pointer[128];
    if (!rule->until_step || rule->until_step > rule->from_step) return;
    snprintf(pointer, sizeof pointer, FREEZE "/%d/until_step", index);
    gs_field_errors_add(errors, pointer, "out_of_range", NULL, "must be above from_step (%lld), or 0",
                        (long long)rule->from_step);
}

static void check_matches(const gs_job_spec *spec, int index, const gs_param_spec *params,
                          size_t num_params, gs_field_errors *errors) {
    char pointer[128];
    for (size_t i = 0; i < num_params; i++) {
        if (gs_job_freeze_matches(&spec->model.freeze[index], params[i].name)) return;
    }
    snprintf(pointer, sizeof pointer, FREEZE "/%d/params", index);
    gs_field_errors_add(errors, pointer, "no_match", NULL,
                        "no parameter has such a name; the first is %.80s", params[0].name);
}

static bool trains_any(const gs_job_spec *spec, const gs_param_spec *params, size_t num_params,
                       int64_t step) {
    for (size_t i = 0; i < num_params; i++) {
        if (gs_job_freeze_trains(spec, &params[i], step)) return true;
    }
    return false;
}

static void check_steps(const gs_job_spec *spec, const gs_param_spec *params, size_t num_params,
                        gs_field_errors *errors) {
    for (int64_t step = 0; step < spec->steps.target; step = gs_job_freeze_next_change(spec, step)) {
        if (trains_any(spec, params, num_params, step)) continue;
        gs_field_errors_add(errors, FREEZE, "out_of_range", NULL,
                            "at step %lld no parameter is left that trains", (long long)step);
        return;
    }
}

// What reduces or updates gradients beside the buckets, of which a bucket that rests says nothing.
static void check_others(const gs_job_spec *spec, gs_field_errors *errors) {
    if (spec->world.replicas_per_process > 1)
        gs_field_errors_add(errors, FREEZE, "not_applicable", NULL, "%s",
                            "world.replicas_per_process: replicas add up all gradients among themselves");
    for (int i = 0; i < spec->model.num_freezes; i++) {
        char pointer[128];
        if (spec->reducer.sparse_embedding == GS_SPARSE_OFF ||
            !gs_job_freeze_matches(&spec->model.freeze[i], "wte.weight"))
            continue;
        snprintf(pointer, sizeof pointer, FREEZE "/%d/params", i);
        gs_field_errors_add(errors, pointer, "not_applicable", NULL, "%s",
                            "reducer.sparse_embedding: rows of wte.weight travel in every step");
    }
}

void gs_job_spec_check_freeze(const gs_job_spec *spec, gs_field_errors *errors) {
    gs_param_spec *params = NULL;
    size_t num_params = 0;
    if (!spec->model.num_freezes || gs_field_errors_lie_in(errors, "/model")) return;
    for (int i = 0; i < spec->model.num_freezes; i++) check_range(spec, i, errors);
    check_others(spec, errors);
    // What no list can have has been said, or is said when the job is planned.
    gs_status status = gs_model_params_of_spec(&params, &num_params, spec);
    for (int i = 0; i < spec->model.num_freezes && !status.code; i++)
        check_matches(spec, i, params, num_params, errors);
    bool knows_steps = !gs_field_errors_lie_in(errors, "/steps") && !gs_field_errors_lie_in(errors, FREEZE);
    if (knows_steps && !status.code) check_steps(spec, params, num_params, errors);
    free(params);
}
