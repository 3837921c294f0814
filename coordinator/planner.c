#include "coordinator/planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/job_control.h"
#include "core/digest.h"
#include "rpc/model_params.h"
#include "rpc/u64_map.h"

#define MAX_PARAMS 20000
#define MAX_PREVIEW_TENSORS 100000
#define MAX_EXACT_COUNT 9007199254740992.0  // 2^53

static gs_status read_param(gs_param_spec *param, const gs_json *entry, size_t index) {
    const char *name = gs_json_string(gs_json_at(entry, 0));
    const char *dtype = gs_json_string(gs_json_at(entry, 1));
    const gs_json *shape = gs_json_at(entry, 2);
    if (!name || !dtype || strlen(name) >= GS_PARAM_NAME_LEN) {
        return gs_error(GS_INVALID_ARGUMENT, "parameter %zu: must be [name, dtype, [shape]]", index);
    }
    memset(param, 0, sizeof *param);
    snprintf(param->name, sizeof param->name, "%s", name);
    param->dtype = gs_dtype_from_name(dtype);
    if (gs_json_count(shape) > GS_MAX_DIMS) {
        return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%s\": more than %d dimensions", index,
                        name, GS_MAX_DIMS);
    }
    param->num_dims = (int)gs_json_count(shape);
    for (int i = 0; i < param->num_dims; i++) {
        if (!gs_json_int(&param->shape[i], gs_json_at(shape, (size_t)i))) {
            return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%s\": a dimension is no integer",
                            index, name);
        }
    }
    return gs_ok();
}

gs_status gs_planner_read_params(gs_param_spec **params, size_t *num_params, const gs_json *list) {
    size_t count = gs_json_count(list);
    if (count == 0 || count > MAX_PARAMS) {
        return gs_error(GS_INVALID_ARGUMENT, "params: %zu parameters, allowed are 1 to %d", count,
                        MAX_PARAMS);
    }
    gs_param_spec *specs = calloc(count, sizeof *specs);
    if (!specs) return gs_error(GS_RESOURCE_EXHAUSTED, "params: out of memory");
    gs_status status = gs_ok();
    for (size_t i = 0; i < count && !status.code; i++) {
        status = read_param(&specs[i], gs_json_at(list, i), i);
    }
    if (!status.code) status = gs_param_specs_check(specs, count);
    if (status.code) {
        free(specs);
        return status;
    }
    *params = specs;
    *num_params = count;
    return gs_ok();
}

static gs_json *plan_header(const gs_job *job, const char *reason, const char *hash) {
    gs_json *plan = gs_json_new_object();
    gs_json_set_int(plan, "revision", job->plan_revision);
    gs_json_set_string(plan, "reason", reason);
    gs_json_set_string(plan, "hash", hash);
    return plan;
}

static gs_json *plan_to_message(const gs_job *job, const gs_bucket_plan *plan, const char *reason,
                                const char *hash) {
    gs_json *message = plan_header(job, reason, hash);
    gs_json *buckets = gs_json_new_array();
    for (size_t i = 0; i < plan->num_buckets; i++) {
        const gs_plan_bucket *bucket = &plan->buckets[i];
        gs_json *entry = gs_json_new_object();
        gs_json_set_int(entry, "limit_bytes", (int64_t)bucket->limit_bytes);
        gs_json_set_int(entry, "bytes", (int64_t)bucket->bytes);
        gs_json_set_string(entry, "dtype", gs_dtype_name(bucket->dtype));
        gs_json_set_int(entry, "device", bucket->device);
        gs_json *params = gs_json_new_array();
        for (size_t k = 0; k < bucket->num_params; k++) {
            gs_json_push(params, gs_json_new_int((int64_t)plan->params[bucket->first + k]));
        }
        gs_json_set(entry, "params", params);
        gs_json_push(buckets, entry);
    }
    gs_json_set(message, "buckets", buckets);
    return message;
}

static gs_json *bucket_to_view(const gs_bucket_plan *plan, size_t index,
                               const gs_param_spec *params) {
    const gs_plan_bucket *bucket = &plan->buckets[index];
    gs_json *entry = gs_json_new_object();
    gs_json_set_int(entry, "index", (int64_t)index);
    gs_json_set_int(entry, "bytes", (int64_t)bucket->bytes);
    gs_json_set_int(entry, "limit_bytes", (int64_t)bucket->limit_bytes);
    gs_json_set_string(entry, "dtype", gs_dtype_name(bucket->dtype));
    gs_json_set_int(entry, "position", (int64_t)index);
    gs_json *tensors = gs_json_new_array();
    size_t offset_bytes = 0;
    for (size_t k = 0; k < bucket->num_params; k++) {
        const gs_param_spec *param = &params[plan->params[bucket->first + k]];
        gs_json *tensor = gs_json_new_object();
        gs_json_set_string(tensor, "name", param->name);
        gs_json_set_int(tensor, "elements", (int64_t)gs_param_spec_count(param));
        gs_json_set_int(tensor, "offset_bytes", (int64_t)offset_bytes);
        gs_json_push(tensors, tensor);
        offset_bytes += gs_param_spec_bytes(param);
    }
    gs_json_set(entry, "tensors", tensors);
    return entry;
}

static int64_t bytes_of_plan(const gs_bucket_plan *plan) {
    uint64_t total_bytes = 0;
    for (size_t i = 0; i < plan->num_buckets; i++) total_bytes += plan->buckets[i].bytes;
    return (int64_t)total_bytes;
}

static gs_json *plan_to_view(const gs_run *run, const char *reason, const gs_param_spec *params) {
    gs_json *view = plan_header(run->job, reason, run->plan_hash);
    gs_json_set_int(view, "world_size", run->num_members);
    gs_json *buckets = gs_json_new_array();
    for (size_t i = 0; i < run->plan.num_buckets; i++) {
        gs_json_push(buckets, bucket_to_view(&run->plan, i, params));
    }
    gs_json_set_int(view, "total_bytes", bytes_of_plan(&run->plan));
    gs_json_set(view, "buckets", buckets);
    return view;
}

static gs_status assign_buckets(gs_bucket_plan *out, const gs_job_spec *spec,
                                const gs_param_spec *params, size_t num_params) {
    if (spec->reducer.plan == GS_PLAN_AUTO) {
        return gs_bucket_plan_one_host(out, params, num_params, NULL);
    }
    return gs_bucket_plan_parity(out, params, num_params,
                                 (uint64_t)spec->reducer.first_bucket_bytes,
                                 (uint64_t)spec->reducer.bucket_cap_bytes, NULL);
}

gs_status gs_planner_foresee(gs_json **summary, const gs_job_spec *spec) {
    gs_param_spec *params = NULL;
    size_t num_params = 0;
    GS_TRY(gs_model_params_of_spec(&params, &num_params, spec));
    gs_bucket_plan plan = {0};
    gs_status status = assign_buckets(&plan, spec, params, num_params);
    free(params);
    if (status.code) return status;
    char hash[GS_DIGEST_TEXT_LEN];
    gs_digest_format(hash, gs_bucket_plan_digest(&plan));
    *summary = gs_json_new_object();
    gs_json_set_int(*summary, "num_buckets", (int64_t)plan.num_buckets);
    gs_json_set_int(*summary, "total_bytes", bytes_of_plan(&plan));
    gs_json_set_string(*summary, "hash", hash);
    gs_bucket_plan_release(&plan);
    return gs_ok();
}

gs_status gs_planner_make(gs_coordinator *coordinator, gs_run *run, const gs_param_spec *params,
                          size_t num_params) {
    gs_job *job = run->job;
    bool one_host = job->spec.reducer.plan == GS_PLAN_AUTO;
    gs_bucket_plan_release(&run->plan);
    memset(&run->plan, 0, sizeof run->plan);
    GS_TRY(assign_buckets(&run->plan, &job->spec, params, num_params));
    char hash[GS_DIGEST_TEXT_LEN];
    gs_digest_format(hash, gs_bucket_plan_digest(&run->plan));
    const char *reason = one_host ? "one_host" : "size_based";
    const char *old_hash = gs_json_string_or(job->plan, "hash", "");
    // The same layout again keeps its number: revisions count changes.
    if (strcmp(old_hash, hash) != 0) job->plan_revision++;
    snprintf(run->plan_hash, sizeof run->plan_hash, "%s", hash);
    gs_json_release(run->plan_message);
    run->plan_message = plan_to_message(job, &run->plan, reason, hash);
    gs_json_release(job->plan);
    job->plan = plan_to_view(run, reason, params);
    gs_coordinator_touch(coordinator, job);
    return gs_ok();
}

void gs_get_job_plan(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request) {
    (void)peer;
    gs_job *job = NULL;
    gs_json *details = NULL;
    gs_status status = gs_jobs_find(ctx, &job, &details, request);
    if (!status.code && !job->plan) {
        details = gs_json_new_object();
        gs_json_set_string(details, "code", "not_ready");
        gs_json_set_string(details, "hint", "the plan is made when all ranks are in");
        status = gs_error(GS_FAILED_PRECONDITION, "job %s has no plan yet: %s", job->id_text,
                          job->reason);
    }
    gs_rpc_reply(call, status, status.code ? details : gs_json_copy(job->plan));
}

// A device of a preview is any name; equal names are the same device.
typedef struct gs_preview {
    gs_plan_tensor *tensors;
    const char **devices;  // by number
    gs_u64_map numbers;    // entries of devices, by hash of the name
    bool incomplete;       // no memory for it
    size_t num_tensors, num_devices;
    uint64_t *limits_bytes;
    size_t num_limits;
} gs_preview;

static int number_device(gs_preview *preview, const char *name) {
    uint64_t key = gs_hash64(name, strlen(name), 0) | 1;
    const char **known = gs_u64_map_get(&preview->numbers, key);
    if (known && !strcmp(*known, name)) return (int)(known - preview->devices);
    const char **made = &preview->devices[preview->num_devices];
    *made = name;
    if (!gs_u64_map_set(&preview->numbers, key, made)) preview->incomplete = true;
    return (int)preview->num_devices++;
}

// Counts may come as integers or as doubles without a fraction, up to 2^53.
static bool read_count(uint64_t *count, gs_field_errors *errors, const char *pointer,
                       const gs_json *value) {
    int64_t whole = 0;
    double number = 0;
    if (!value) {
        gs_field_errors_add(errors, pointer, "missing", "", "must be given");
        return false;
    }
    if (gs_json_type_of(value) == GS_JSON_INT && gs_json_int(&whole, value)) {
        number = (double)whole;
    } else if (gs_json_type_of(value) == GS_JSON_DOUBLE && gs_json_double(&number, value)) {
        if (!(floor(number) == number)) {
            gs_field_errors_add(errors, pointer, "wrong_type", "", "must be a whole number");
            return false;
        }
    } else {
        gs_field_errors_add(errors, pointer, "wrong_type", "", "must be a whole number");
        return false;
    }
    if (number < 0 || number > MAX_EXACT_COUNT) {
        gs_field_errors_add(errors, pointer, "out_of_range", "", "must be between 0 and 2^53");
        return false;
    }
    *count = (uint64_t)number;
    return true;
}

static void read_tensor(gs_preview *preview, gs_field_errors *errors, const gs_json *entry,
                        size_t index) {
    char pointer[64];
    gs_plan_tensor *tensor = &preview->tensors[index];
    snprintf(pointer, sizeof pointer, "/tensors/%zu/elements", index);
    read_count(&tensor->count, errors, pointer, gs_json_get(entry, "elements"));
    snprintf(pointer, sizeof pointer, "/tensors/%zu/dtype", index);
    const char *dtype = gs_json_string_or(entry, "dtype", gs_json_get(entry, "dtype") ? "" : "fp32");
    tensor->dtype = gs_dtype_from_name(dtype);
    if (tensor->dtype < GS_FP32 || tensor->dtype > GS_BF16) {
        gs_field_errors_add(errors, pointer, "unknown_value", "one of fp16, bf16, fp32, fp64",
                            "\"%s\" is no dtype of a gradient", dtype);
    }
    snprintf(pointer, sizeof pointer, "/tensors/%zu/device", index);
    const char *device = gs_json_string_or(entry, "device", gs_json_get(entry, "device") ? "" : "cpu");
    if (!device[0]) gs_field_errors_add(errors, pointer, "wrong_type", "", "must be a name");
    tensor->device = number_device(preview, device);
}

static gs_status read_preview(gs_preview *preview, gs_field_errors *errors, const gs_json *request) {
    const gs_json *tensors = gs_json_get(request, "tensors");
    const gs_json *limits = gs_json_get(request, "limits_bytes");
    if (gs_json_type_of(tensors) != GS_JSON_ARRAY) {
        gs_field_errors_add(errors, "/tensors", tensors ? "wrong_type" : "missing", "",
                            "must be a list of tensors");
    } else if (gs_json_count(tensors) > MAX_PREVIEW_TENSORS) {
        gs_field_errors_add(errors, "/tensors", "too_long", "", "at most %d tensors",
                            MAX_PREVIEW_TENSORS);
    } else {
        preview->num_tensors = gs_json_count(tensors);
    }
    preview->num_limits = gs_json_count(limits);
    if (gs_json_type_of(limits) != GS_JSON_ARRAY || preview->num_limits == 0) {
        gs_field_errors_add(errors, "/limits_bytes", limits ? "out_of_range" : "missing", "",
                            "must hold at least one limit");
        preview->num_limits = 0;
    }
    preview->tensors = calloc(preview->num_tensors + 1, sizeof *preview->tensors);
    preview->devices = calloc(preview->num_tensors + 1, sizeof *preview->devices);
    preview->limits_bytes = calloc(preview->num_limits + 1, sizeof *preview->limits_bytes);
    if (!preview->tensors || !preview->devices || !preview->limits_bytes) {
        return gs_error(GS_RESOURCE_EXHAUSTED, "plan preview: out of memory");
    }
    for (size_t i = 0; i < preview->num_tensors; i++) {
        read_tensor(preview, errors, gs_json_at(tensors, i), i);
    }
    for (size_t i = 0; i < preview->num_limits; i++) {
        char pointer[64];
        snprintf(pointer, sizeof pointer, "/limits_bytes/%zu", i);
        read_count(&preview->limits_bytes[i], errors, pointer, gs_json_at(limits, i));
    }
    if (preview->incomplete) return gs_error(GS_RESOURCE_EXHAUSTED, "plan preview: out of memory");
    if (errors->count == 0) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "%d problem%s found", errors->count,
                    errors->count == 1 ? "" : "s");
}

static gs_json *preview_to_json(const gs_preview *preview, const gs_bucket_plan *plan) {
    gs_json *buckets = gs_json_new_array();
    for (size_t i = 0; i < plan->num_buckets; i++) {
        const gs_plan_bucket *bucket = &plan->buckets[i];
        gs_json *entry = gs_json_new_object();
        gs_json_set_int(entry, "index", (int64_t)i);
        gs_json_set_int(entry, "limit_bytes", (int64_t)bucket->limit_bytes);
        gs_json_set_string(entry, "dtype", gs_dtype_name(bucket->dtype));
        gs_json_set_string(entry, "device", preview->devices[bucket->device]);
        // Saturated sums have no exact number; they stay within what JSON readers keep exact.
        uint64_t most = (uint64_t)INT64_MAX;
        gs_json_set_int(entry, "bytes", (int64_t)(bucket->bytes > most ? most : bucket->bytes));
        gs_json *tensors = gs_json_new_array();
        for (size_t k = 0; k < bucket->num_params; k++) {
            gs_json_push(tensors, gs_json_new_int((int64_t)plan->params[bucket->first + k]));
        }
        gs_json_set(entry, "tensors", tensors);
        gs_json_push(buckets, entry);
    }
    char hash[GS_DIGEST_TEXT_LEN];
    gs_digest_format(hash, gs_bucket_plan_digest(plan));
    gs_json *reply = gs_json_new_object();
    gs_json_set(reply, "buckets", buckets);
    gs_json_set_string(reply, "hash", hash);
    return reply;
}

void gs_preview_plan(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request) {
    (void)ctx;
    (void)peer;
    gs_preview preview = {0};
    gs_field_errors errors = {0};
    gs_bucket_plan plan = {0};
    const gs_json *reverse = gs_json_get(request, "reverse");
    if (reverse && gs_json_type_of(reverse) != GS_JSON_BOOL) {
        gs_field_errors_add(&errors, "/reverse", "wrong_type", "", "must be true or false");
    }
    gs_status status = read_preview(&preview, &errors, request);
    if (!status.code) {
        status = gs_bucket_plan_assign(
            &plan, &(gs_plan_request){.tensors = preview.tensors,
                                      .num_tensors = preview.num_tensors,
                                      .limits_bytes = preview.limits_bytes,
                                      .num_limits = preview.num_limits,
                                      .reverse = gs_json_bool_or(request, "reverse", false)});
    }
    gs_json *body = status.code ? NULL : preview_to_json(&preview, &plan);
    if (status.code && errors.count > 0) body = gs_field_errors_to_json(&errors);
    gs_rpc_reply(call, status, body);
    gs_bucket_plan_release(&plan);
    free(preview.tensors);
    free(preview.devices);
    gs_u64_map_release(&preview.numbers);
    free(preview.limits_bytes);
}
