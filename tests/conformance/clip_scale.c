// Kind clip-scale: dynamic loss scale, unscaling, and clipping by norms, in one process and over
// ranks that own different gradients.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "gradsync/bucket/grad_norm.h"
#include "gradsync/optim/grad_scaler.h"
#include "tests/conformance/conformance.h"
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

static gs_status check_unscale(struct json_object *item, gs_device *device) {
    gs_grad_scaler scaler = {.scale = (float)number_of(item, "scale")};
    struct json_object *scaled = member(item, "scaled");
    float *grad = read_floats(scaled);
    if (!grad) return gs_error(GS_RESOURCE_EXHAUSTED, "gradient: out of memory");
    bool found = gs_grad_scaler_unscale(&scaler, grad, json_object_array_length(scaled), device);
    gs_status status = check_unscaled(item, grad, found, &scaler);
    free(grad);
    return status;
}

// The gradients of a case that belong to `rank`, or all of them (-1).
typedef struct case_grads {
    float *grads[MAX_GRADS];
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
            if (!within_tolerance((double)own->grads[i][j], number_at(wanted, j)))
                return gs_error(GS_DATA_LOSS, "gradient %zu[%zu]: %.9g, expected %.9g",
                                own->index[i], j, (double)own->grads[i][j], number_at(wanted, j));
        }
    }
    return gs_ok();
}

static gs_status compare_norm(const char *what, double norm, double wanted) {
    if (within_tolerance(norm, wanted)) return gs_ok();
    return gs_error(GS_DATA_LOSS, "%s %.9g, expected %.9g", what, norm, wanted);
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
    gs_grad_list_clip(&list, norm, number_of(item, "max_norm"), device);
    return compare_clipped(own, item);
}

static gs_status check_clip(struct json_object *item, int rank, gs_comm *comm, gs_device *device) {
    case_grads own;
    gs_status status = read_grads(&own, item, rank);
    if (!status.code) status = clip(&own, item, rank, comm, device);
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
                                &(gs_comm_options){.rank = env->rank,
                                                   .world_size = env->world_size,
                                                   .generation = 1,
                                                   .exchange = gs_rank_exchange,
                                                   .exchange_ctx = env->exchange,
                                                   .device = device},
                                gs_deadline_in_seconds(20));
    if (!status.code) status = check_clip(item, env->rank, comm, device);
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
                                        : check_clip(item, -1, NULL, device);
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
