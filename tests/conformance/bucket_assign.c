// bucket-assign: the size-based assignment, buckets and the limits in force.
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "tests/conformance/conformance.h"

gs_status conformance_read_json(struct json_object **out, const char *path) {
    *out = json_object_from_file(path);
    if (!*out) return gs_error(GS_NOT_FOUND, "%s: %.150s", path, json_util_get_last_err());
    return gs_ok();
}

// The files' names of element types.
static gs_dtype dtype_of(const char *name) {
    static const struct {
        const char *name;
        gs_dtype dtype;
    } names[] = {{"f16", GS_FP16}, {"bf16", GS_BF16}, {"f32", GS_FP32}, {"f64", GS_FP64},
                 {"i64", GS_I64},  {"i32", GS_I32},   {"u8", GS_U8}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].name, name) == 0) return names[i].dtype;
    }
    return GS_DTYPE_UNSET;
}

// Element i of the array `key`; NULL when there is none.
static struct json_object *element_of(struct json_object *item, const char *key, size_t i) {
    struct json_object *array;
    return json_object_object_get_ex(item, key, &array) ? json_object_array_get_idx(array, i)
                                                        : NULL;
}

static size_t length_of(struct json_object *item, const char *key) {
    struct json_object *array;
    return json_object_object_get_ex(item, key, &array) ? json_object_array_length(array) : 0;
}

gs_status conformance_read_tensors(gs_plan_tensor **out, size_t *num_tensors,
                                   struct json_object *item) {
    *num_tensors = length_of(item, "numel");
    *out = calloc(*num_tensors + 1, sizeof **out);
    if (!*out) return gs_error(GS_RESOURCE_EXHAUSTED, "tensors: out of memory");
    for (size_t i = 0; i < *num_tensors; i++) {
        (*out)[i] = (gs_plan_tensor){
            .count = json_object_get_uint64(element_of(item, "numel", i)),
            .dtype = dtype_of(json_object_get_string(element_of(item, "dtype", i))),
            .device = json_object_get_int(element_of(item, "device", i)),
            .sparse_storage = json_object_get_int(element_of(item, "sparse", i)) != 0};
    }
    return gs_ok();
}

static gs_status assign_case(gs_bucket_plan *plan, struct json_object *item) {
    gs_plan_tensor *tensors;
    size_t num_tensors, num_limits = length_of(item, "limits");
    GS_TRY(conformance_read_tensors(&tensors, &num_tensors, item));
    uint64_t *limits = calloc(num_limits + 1, sizeof *limits);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "limits: out of memory");
    if (limits) {
        for (size_t i = 0; i < num_limits; i++)
            limits[i] = json_object_get_uint64(element_of(item, "limits", i));
        status = gs_bucket_plan_assign(plan, &(gs_plan_request){.tensors = tensors,
                                                                .num_tensors = num_tensors,
                                                                .limits_bytes = limits,
                                                                .num_limits = num_limits});
    }
    free(tensors);
    free(limits);
    return status;
}

static gs_status compare_plan(const gs_bucket_plan *plan, struct json_object *item) {
    if (plan->num_buckets != length_of(item, "buckets"))
        return gs_error(GS_DATA_LOSS, "%zu buckets, expected %zu", plan->num_buckets,
                        length_of(item, "buckets"));
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const gs_plan_bucket *bucket = &plan->buckets[b];
        struct json_object *members = element_of(item, "buckets", b);
        if (bucket->num_params != json_object_array_length(members))
            return gs_error(GS_DATA_LOSS, "bucket %zu: %zu tensors, expected %zu", b,
                            bucket->num_params, json_object_array_length(members));
        for (size_t i = 0; i < bucket->num_params; i++) {
            uint64_t expected = json_object_get_uint64(json_object_array_get_idx(members, i));
            if (plan->params[bucket->first + i] != expected)
                return gs_error(GS_DATA_LOSS, "bucket %zu: member %zu is tensor %zu, expected %llu",
                                b, i, plan->params[bucket->first + i],
                                (unsigned long long)expected);
        }
        uint64_t limit = json_object_get_uint64(element_of(item, "bucket_limits", b));
        if (bucket->limit_bytes != limit)
            return gs_error(GS_DATA_LOSS, "bucket %zu: limit %llu, expected %llu", b,
                            (unsigned long long)bucket->limit_bytes, (unsigned long long)limit);
    }
    return gs_ok();
}

static const char *name_of(struct json_object *item) {
    struct json_object *name;
    return json_object_object_get_ex(item, "name", &name) ? json_object_get_string(name) : "?";
}

gs_status conformance_bucket_assign(conformance *run, char **args, int num_args) {
    if (num_args != 1) return gs_error(GS_INVALID_ARGUMENT, "bucket-assign: one file expected");
    struct json_object *file;
    GS_TRY(conformance_read_json(&file, args[0]));
    for (size_t i = 0; i < length_of(file, "cases"); i++) {
        struct json_object *item = element_of(file, "cases", i);
        gs_bucket_plan plan = {0};
        gs_status status = assign_case(&plan, item);
        if (!status.code) status = compare_plan(&plan, item);
        conformance_case(run, name_of(item), status);
        gs_bucket_plan_release(&plan);
    }
    for (size_t i = 0; i < length_of(file, "errors"); i++) {
        struct json_object *item = element_of(file, "errors", i);
        gs_bucket_plan plan = {0};
        gs_status status = assign_case(&plan, item);
        if (status.code == GS_INVALID_ARGUMENT) conformance_pass(run, name_of(item));
        else conformance_fail(run, name_of(item), "was not refused");
        gs_bucket_plan_release(&plan);
    }
    json_object_put(file);
    return gs_ok();
}
