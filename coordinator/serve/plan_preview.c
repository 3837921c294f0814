#include "coordinator/serve/plan_preview.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bucket_plan.h"
#include "core/digest.h"
#include "core/random.h"
#include "core/u64_map.h"
#include "rpc/schema/fields.h"

#define MAX_PREVIEW_TENSORS 100000
#define MAX_EXACT_COUNT 9007199254740992.0  // 2^53

// A device of a preview is any name; equal names are the same device.
typedef struct gs_preview {
    gs_plan_tensor *tensors;
    const char **devices;  // by number
    gs_u64_map numbers;    // entries of devices, by hash of the name
    uint64_t seed;         // of the hash: nobody can choose names that fall on one another
    bool incomplete;       // no memory for it
    size_t num_tensors, num_devices;
    uint64_t *limits_bytes;
    size_t num_limits;
} gs_preview;

static int number_device(gs_preview *preview, const char *name) {
    uint64_t key = gs_hash64(name, strlen(name), preview->seed) | 1;
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
    gs_preview preview = {.seed = gs_random_from_system()};
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
