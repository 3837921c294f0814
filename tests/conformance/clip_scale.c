// Kind clip-scale: dynamic loss scale, unscaling, and clipping by norms, in one process and over
// ranks that own different gradients. Each case runs through what jobs run (job_step.h), over ranks
// with whole gradients and with sharded ones, and through the functions for callers with gradients of
// their own; norms other than the 2-norm through these alone.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "gradsync/bucket/grad_norm.h"
#include "gradsync/optim/grad_scaler.h"
#include "gradsync/sharded/shard_norm.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/job_step.h"
#include "tests/conformance/training.h"
#include "tests/support/near.h"

#define CASE_SECONDS 60.0
#define MAX_GRADS 64

static struct json_object *member(struct json_object *item, const char *key) {
    return json_object_object_get(item, key);
}

// Numbers as they are; what JSON cannot write are "inf", "-inf", "nan".
static double number(struct json_object *value) {
    if (json_object_get_type(value) != json_type_string) return json_object_get_double(value);
    return strtod(json_object_get_string(value), NULL);
}

static double number_of(struct json_object *item, const char *key) {
    return number(member(item, key));
}

static double number_at(struct json_object *list, size_t index) {
    return number(json_object_array_get_idx(list, index));
}

static float *read_floats(struct json_object *list) {
    size_t count = json_object_array_length(list);
    float *values = calloc(count + 1, sizeof *values);
    for (size_t i = 0; values && i < count; i++) values[i] = (float)number_at(list, i);
    return values;
}

// Any NaN is a NaN; other bits count, zeros' signs included.
static bool same_bits(float a, float b) {
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

static bool within_tolerance(double got, double wanted) {
    return is_near(got, wanted, (gs_near){.relative = 1e-5, .nonfinite = true});
}

static gs_status check_trace(struct json_object *item) {
    const gs_grad_scaler_options options = {
        .init_scale = (float)number_of(item, "init_scale"),
        .growth_factor = number_of(item, "growth_factor"),
        .backoff_factor = number_of(item, "backoff_factor"),
        .growth_interval = json_object_get_int64(member(item, "growth_interval"))};
    gs_grad_scaler scaler;
    GS_TRY(gs_grad_scaler_init(&scaler, &options));
    struct json_object *found = member(item, "found_inf");
    for (size_t step = 0; step < json_object_array_length(found); step++) {
        struct json_object *ranks = json_object_array_get_idx(found, step);
        bool overflow = false;
        for (size_t r = 0; r < json_object_array_length(ranks); r++)
            overflow |= number_at(ranks, r) != 0;
        gs_grad_scaler_update(&scaler, &options, overflow);
        if (overflow != (number_at(member(item, "step_skipped"), step) != 0))
            return gs_error(GS_DATA_LOSS, "step %zu: skipped %d", step, overflow);
        float wanted = (float)number_at(member(item, "scale"), step);
        if (!same_bits(scaler.scale, wanted))
            return gs_error(GS_DATA_LOSS, "step %zu: scale %.9g, expected %.9g", step,
                            (double)scaler.scale, (double)wanted);
        if ((double)scaler.growth_tracker != number_at(member(item, "growth_tracker"), step))
            return gs_error(GS_DATA_LOSS, "step %zu: growth tracker %lld", step,
                            (long long)scaler.growth_tracker);
    }
    return gs_ok();
}

static gs_status check_unscaled(struct json_object *item, const float *grad, bool found,
                                const gs_grad_scaler *scaler) {
    struct json_object *wanted = member(item, "unscaled");
    float inverse = gs_grad_scaler_inverse(scaler);
    if (!same_bits(inverse, (float)number_of(item, "inv_scale")))
        return gs_error(GS_DATA_LOSS, "inverse %.9g", (double)inverse);
    if (found != (number_of(item, "found_inf") != 0))
        return gs_error(GS_DATA_LOSS, "not finite: %d", found);
    for (size_t i = 0; i < json_object_array_length(wanted); i++) {
        if (!same_bits(grad[i], (float)number_at(wanted, i)))
            return gs_error(GS_DATA_LOSS, "element %zu: %.9g, expected %.9g", i, (double)grad[i],
                            number_at(wanted, i));
    }
    return gs_ok();
}

// The factor is folded into the update, and a step with something that is not finite is skipped.
// The bits count, but for the sign of a zero that was taken off a zero.
static gs_status unscale_as_a_job(struct json_object *item, const float *grad, size_t count,
                                  const gs_grad_scaler *scaler) {
    job_step_result result;
    GS_TRY(job_step_run(
        &result, &(job_step){.grads = &grad, .counts = &count, .num_grads = 1, .scaler = *scaler}));
    gs_status status = gs_ok();
    if (result.nonfinite != (number_of(item, "found_inf") != 0))
        status = gs_error(GS_DATA_LOSS, "job: not finite: %d", result.nonfinite);
    for (size_t i = 0; i < count && !status.code && !result.nonfinite; i++) {
        float wanted = (float)number_at(member(item, "unscaled"), i);
        if (result.applied[i] != wanted)
            status = gs_error(GS_DATA_LOSS, "job: element %zu: %.9g, expected %.9g", i,
                              (double)result.applied[i], (double)wanted);
    }
    job_step_release(&result);
    return status;
}

static gs_status check_unscale(struct json_object *item, gs_device *device) {
    gs_grad_scaler scaler = {.scale = (float)number_of(item, "scale")};
    struct json_object *scaled = member(item, "scaled");
    float *grad = read_floats(scaled);
    if (!grad) return gs_error(GS_RESOURCE_EXHAUSTED, "gradient: out of memory");
    gs_status status = unscale_as_a_job(item, grad, json_object_array_length(scaled), &scaler);
    bool found = gs_grad_scaler_unscale(&scaler, grad, json_object_array_length(scaled), device);
    if (!status.code) status = check_unscaled(item, grad, found, &scaler);
    free(grad);
    return status;
}

// The gradients of a case that belong to `rank`, or all of them (-1).
typedef struct case_grads {
    void *grads[MAX_GRADS];
    size_t counts[MAX_GRADS], index[MAX_GRADS], num_grads;
} case_grads;

static void release_grads(case_grads *own) {
    for (size_t i = 0; i < own->num_grads; i++) free(own->grads[i]);
}

static gs_status read_grads(case_grads *own, struct json_object *item, int rank) {
    *own = (case_grads){0};
    struct json_object *all = member(item, "grads"), *owner = member(item, "owner");
    size_t num_all = json_object_array_length(all);
    if (num_all > MAX_GRADS) return gs_error(GS_INVALID_ARGUMENT, "%zu gradients", num_all);
    for (size_t i = 0; i < num_all; i++) {
        if (rank >= 0 && number_at(owner, i) != rank) continue;
        struct json_object *values = json_object_array_get_idx(all, i);
        float *grad = read_floats(values);
        if (!grad) return gs_error(GS_RESOURCE_EXHAUSTED, "gradient: out of memory");
        own->grads[own->num_grads] = grad;
        own->counts[own->num_grads] = json_object_array_length(values);
        own->index[own->num_grads++] = i;
    }
    return gs_ok();
}

static gs_status compare_clipped(const case_grads *own, struct json_object *item) {
    for (size_t i = 0; i < own->num_grads; i++) {
        struct json_object *wanted =
            json_object_array_get_idx(member(item, "clipped"), own->index[i]);
        for (size_t j = 0; j < own->counts[i]; j++) {
            if (!within_tolerance((double)((const float *)own->grads[i])[j], number_at(wanted, j)))
                return gs_error(GS_DATA_LOSS, "gradient %zu[%zu]: %.9g, expected %.9g",
                                own->index[i], j, (double)((const float *)own->grads[i])[j],
                                number_at(wanted, j));
        }
    }
    return gs_ok();
}

static gs_status compare_norm(const char *what, double norm, double wanted) {
    if (within_tolerance(norm, wanted)) return gs_ok();
    return gs_error(GS_DATA_LOSS, "%s %.9g, expected %.9g", what, norm, wanted);
}

// The norm of what the ranks own; gradients that no factor saves stay as they are, where the vectors go on with NaN.
static gs_status clip_owned(case_grads *own, struct json_object *item, double p, gs_comm *comm,
                            gs_device *device) {
    gs_segment segments[MAX_GRADS];
    double norm, limit = number_of(item, "max_norm");
    bool nonfinite, wanted = !isfinite(number_of(item, "total_norm"));
    for (size_t i = 0; i < own->num_grads; i++)
        segments[i] = (gs_segment){own->index[i], 0, own->counts[i]};
    const gs_shard_grads list = {.segments = segments,
                                 .num_segments = own->num_grads,
                                 .grads = own->grads,
                                 .device = device};
    GS_TRY(gs_shard_nonfinite(&nonfinite, &list, comm, gs_deadline_in_seconds(20)));
    if (nonfinite != wanted) return gs_error(GS_DATA_LOSS, "shards: not finite: %d", nonfinite);
    GS_TRY(gs_shard_clip(&norm, &list, p, limit, comm, gs_deadline_in_seconds(20)));
    GS_TRY(compare_norm("norm of shards", norm, number_of(item, "total_norm")));
    return nonfinite ? gs_ok() : compare_clipped(own, item);
}

// `comm` NULL: all gradients are here.
static gs_status clip(case_grads *own, struct json_object *item, int rank, gs_comm *comm,
                      gs_device *device) {
    double p = number_of(item, "norm_type"), norm;
    const gs_grad_list list = {own->grads, own->counts, own->num_grads};
    norm = gs_grad_list_norm(&list, p, device);
    if (comm) {
        GS_TRY(
            compare_norm("local norm", norm, number_at(member(item, "local_norm"), (size_t)rank)));
        GS_TRY(gs_grad_norm_across(&norm, norm, p, comm, gs_deadline_in_seconds(20)));
    }
    GS_TRY(compare_norm("total norm", norm, number_of(item, "total_norm")));
    if (comm) return clip_owned(own, item, p, comm, device);
    gs_grad_list_clip(&list, norm, number_of(item, "max_norm"), device);
    return compare_clipped(own, item);
}

// What a job refuses or does not have: other norms, and a limit of zero, which means none.
static bool has_job_path(struct json_object *item) {
    return number_of(item, "norm_type") == 2 && number_of(item, "max_norm") > 0;
}

static gs_status compare_applied(const job_step_result *result, const size_t *counts,
                                 struct json_object *item) {
    double wanted = number_of(item, "total_norm");
    struct json_object *clipped = member(item, "clipped");
    if (result->nonfinite != !isfinite(wanted))
        return gs_error(GS_DATA_LOSS, "job: not finite: %d", result->nonfinite);
    if (result->nonfinite) return gs_ok();  // skipped, where the vectors go on with NaN
    GS_TRY(compare_norm("job: norm", result->grad_norm, wanted));
    const float *got = result->applied;
    for (size_t i = 0; i < json_object_array_length(clipped); got += counts[i++]) {
        for (size_t j = 0; j < counts[i]; j++) {
            double value = number_at(json_object_array_get_idx(clipped, i), j);
            if (!within_tolerance((double)got[j], value))
                return gs_error(GS_DATA_LOSS, "job: gradient %zu[%zu]: %.9g, expected %.9g", i, j,
                                (double)got[j], value);
        }
    }
    return gs_ok();
}

// On each rank the gradients of all ranks come out, clipped.
static gs_status clip_as_a_job(const case_grads *own, struct json_object *item,
                               const gs_rank_env *env, const int *owners) {
    struct json_object *all = member(item, "grads");
    const float *grads[MAX_GRADS] = {NULL};
    size_t counts[MAX_GRADS], num_grads = json_object_array_length(all);
    for (size_t i = 0; i < num_grads; i++)
        counts[i] = json_object_array_length(json_object_array_get_idx(all, i));
    for (size_t i = 0; i < own->num_grads; i++) grads[own->index[i]] = own->grads[i];
    job_step_result result;
    GS_TRY(job_step_run(&result, &(job_step){.env = env,
                                             .grads = grads,
                                             .counts = counts,
                                             .num_grads = num_grads,
                                             .owners = owners,
                                             .max_norm = number_of(item, "max_norm")}));
    gs_status status = compare_applied(&result, counts, item);
    job_step_release(&result);
    return status;
}

// Each rank owns what the case gives it.
static gs_status clip_as_a_sharded_job(const case_grads *own, struct json_object *item,
                                       const gs_rank_env *env) {
    int owners[MAX_GRADS];
    struct json_object *owner = member(item, "owner");
    for (size_t i = 0; i < json_object_array_length(owner); i++)
        owners[i] = (int)number_at(owner, i);
    return gs_status_prefix(clip_as_a_job(own, item, env, owners), "sharded");
}

// `env` NULL: all gradients are here.
static gs_status check_clip(struct json_object *item, const gs_rank_env *env, gs_comm *comm,
                            gs_device *device) {
    case_grads own;
    gs_status status = read_grads(&own, item, env ? env->rank : -1);
    if (!status.code && has_job_path(item)) status = clip_as_a_job(&own, item, env, NULL);
    if (!status.code && has_job_path(item) && env) status = clip_as_a_sharded_job(&own, item, env);
    if (!status.code) status = clip(&own, item, env ? env->rank : -1, comm, device);
    release_grads(&own);
    return status;
}

// arg: "INDEX FILE"
gs_status conformance_clip_rank(const gs_rank_env *env) {
    char *path;
    size_t index = strtoul(env->arg, &path, 10);
    struct json_object *file;
    gs_device *device = NULL;
    gs_comm *comm = NULL;
    GS_TRY(conformance_read_json(&file, path + 1));
    struct json_object *item = json_object_array_get_idx(member(file, "sharded_clip"), index);
    gs_status status = gs_device_open(&device, "cpu", &(gs_device_options){0});
    if (!status.code)
        status = gs_comm_create(&comm,
                                &(gs_comm_options){.backend = conformance_backend(),
                                                   .rank = env->rank,
                                                   .world_size = env->world_size,
                                                   .generation = 1,
                                                   .exchange = gs_rank_exchange,
                                                   .exchange_ctx = env->exchange,
                                                   .device = device},
                                gs_deadline_in_seconds(20));
    if (!status.code) status = check_clip(item, env, comm, device);
    gs_comm_destroy(comm);
    gs_device_close(device);
    json_object_put(file);
    return status;
}

static void run_case(conformance *run, struct json_object *item, const char *section,
                     gs_status status) {
    char label[160];
    snprintf(label, sizeof label, "%s %s", section, json_object_get_string(member(item, "name")));
    conformance_case(run, label, status);
}

static void run_sharded(conformance *run, struct json_object *cases, const char *path) {
    for (size_t i = 0; i < json_object_array_length(cases); i++) {
        struct json_object *item = json_object_array_get_idx(cases, i);
        char arg[1024];
        snprintf(arg, sizeof arg, "%zu %s", i, path);
        run_case(run, item, "sharded_clip",
                 gs_ranks_run("clip-sharded", (int)number_of(item, "world"), arg,
                              gs_deadline_in_seconds(CASE_SECONDS)));
    }
}

static void run_local(conformance *run, struct json_object *file, gs_device *device) {
    static const char *const sections[] = {"scale_traces", "unscale", "clip"};
    for (size_t s = 0; s < 3; s++) {
        struct json_object *cases = member(file, sections[s]);
        for (size_t i = 0; i < json_object_array_length(cases); i++) {
            struct json_object *item = json_object_array_get_idx(cases, i);
            gs_status status = s == 0   ? check_trace(item)
                               : s == 1 ? check_unscale(item, device)
                                        : check_clip(item, NULL, NULL, device);
            run_case(run, item, sections[s], status);
        }
    }
}

gs_status conformance_clip_scale(conformance *run, char **args, int num_args) {
    if (num_args != 1) return gs_error(GS_INVALID_ARGUMENT, "clip-scale: one file expected");
    struct json_object *file;
    gs_device *device = NULL;
    GS_TRY(conformance_read_json(&file, args[0]));
    gs_status status = gs_device_open(&device, "cpu", &(gs_device_options){0});
    if (!status.code) {
        run_local(run, file, device);
        run_sharded(run, member(file, "sharded_clip"), args[0]);
    }
    gs_device_close(device);
    json_object_put(file);
    return status;
}
