#include "coordinator/observe/views/plan_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/schema/job_plan.h"

int64_t gs_plan_total_bytes(const gs_bucket_plan *plan) {
    uint64_t total_bytes = 0;
    for (size_t i = 0; i < plan->num_buckets; i++) total_bytes += plan->buckets[i].bytes;
    return (int64_t)total_bytes;
}

static gs_hook_volume volume_of(const gs_bucket_plan *plan, size_t index,
                                const gs_param_spec *params, const gs_hook_rule *hook) {
    const gs_plan_bucket *bucket = &plan->buckets[index];
    return gs_hook_volume_of(hook, params, plan->params + bucket->first, bucket->num_params);
}

int64_t gs_plan_total_wire_bytes(const gs_bucket_plan *plan, const gs_param_spec *params,
                                 const gs_hook_rule *hook) {
    uint64_t total_bytes = 0;
    for (size_t i = 0; i < plan->num_buckets; i++)
        total_bytes += volume_of(plan, i, params, hook).wire_bytes;
    return (int64_t)total_bytes;
}

static gs_json *header_to_json(const gs_plan_header *header) {
    gs_json *plan = gs_json_new_object();
    gs_json_set_int(plan, "revision", header->revision);
    gs_json_set_string(plan, "reason", header->reason);
    gs_json_set_string(plan, "hash", header->hash);
    return plan;
}

static void explain_end(gs_json *entry, const gs_bucket_plan *plan, size_t index,
                        const gs_param_spec *params, const int *owners, bool by_link) {
    const gs_plan_bucket *bucket = &plan->buckets[index];
    char why[200];
    unsigned long long bytes = bucket->bytes, limit_bytes = bucket->limit_bytes;
    const char *ends = "leftover";
    if (params[plan->params[bucket->first]].sparse) {
        ends = "sparse";
        snprintf(why, sizeof why, "a sparse gradient travels alone");
    } else if (by_link) {
        ends = "link";
        snprintf(why, sizeof why, "%llu bytes: what the measured link takes best at this place", bytes);
    } else if (bytes >= limit_bytes) {
        ends = "limit";
        snprintf(why, sizeof why, "%llu bytes reach the limit of %llu", bytes, limit_bytes);
    } else {
        snprintf(why, sizeof why,
                 "%llu bytes below the limit of %llu: no other %s parameters%s are left",
                 bytes, limit_bytes, gs_dtype_name(bucket->dtype), owners ? " of its owner" : "");
    }
    gs_json_set_string(entry, "ends", ends);
    gs_json_set_string(entry, "why", why);
}

// A bucket is complete when the last of its members is: its place in the observed order.
static void expect_ready(gs_json *entry, const gs_bucket_plan *plan, size_t index,
                         const size_t *place_of) {
    const gs_plan_bucket *bucket = &plan->buckets[index];
    size_t first = SIZE_MAX, last = 0;
    for (size_t k = 0; k < bucket->num_params; k++) {
        size_t place = place_of[plan->params[bucket->first + k]];
        if (place < first) first = place;
        if (place > last) last = place;
    }
    gs_json *expected = gs_json_new_object();
    gs_json_set_int(expected, "first", (int64_t)first);
    gs_json_set_int(expected, "last", (int64_t)last);
    gs_json_set(entry, "expected_ready", expected);
}

// What becomes of it once the hook has begun.
static void explain_hook(gs_json *entry, const gs_bucket_plan *plan, size_t index,
                         const gs_param_spec *params, const gs_hook_rule *hook) {
    gs_hook_volume volume = volume_of(plan, index, params, hook);
    gs_json_set_string(entry, "hook", hook->kind);
    if (hook->wire_dtype) gs_json_set_string(entry, "wrap", gs_dtype_name(hook->wire_dtype));
    gs_json_set_int(entry, "compressed_tensors", (int64_t)volume.num_compressed);
    gs_json_set_int(entry, "elements", (int64_t)volume.elements);
    gs_json_set_int(entry, "elements_sent", (int64_t)volume.elements_sent);
    gs_json_set_int(entry, "wire_bytes", (int64_t)volume.wire_bytes);
}

// Without printf, which would take most of the time. Returns the end.
static char *put_number(char *at, const char *name, size_t number) {
    char digits[20];
    int count = 0;
    at = stpcpy(at, name);
    do digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (count > 0) *at++ = digits[--count];
    return at;
}

// Of a bucket that is cut: which ranks own it, from the first element to the last one.
static char *explain_owners(char *at, size_t first, size_t count, size_t part_count) {
    at = put_number(at, ",\"first_element\":", first);
    at = put_number(at, ",\"first_owner\":", first / part_count);
    return put_number(at, ",\"last_owner\":", (first + count - 1) / part_count);
}

// As text, and their number beside it: of a model with many parameters they are nearly all of the view, which is made on the loop.
static void show_tensors(gs_json *entry, const gs_bucket_plan *plan, size_t index,
                         const gs_param_spec *params, const gs_plan_header *header) {
    const gs_plan_bucket *bucket = &plan->buckets[index];
    const size_t *members = plan->params + bucket->first;
    gs_strbuf tensors = {0};
    size_t offset_bytes = 0, part_count = 0;
    size_t *places = header->cut_among ? calloc(bucket->num_params, sizeof *places) : NULL;
    if (places) {
        gs_job_plan_member_places(places, plan, index, params);
        part_count = gs_job_plan_part_count(header->cut_among, plan, index, params);
        gs_json_set_int(entry, "part_elements", (int64_t)part_count);
    }
    for (size_t k = 0; k < bucket->num_params; k++) {
        const gs_param_spec *param = &params[members[k]];
        size_t count = gs_param_spec_count(param);
        gs_strbuf_puts(&tensors, k ? ",{\"name\":" : "[{\"name\":");
        gs_json_quote(&tensors, param->name);
        char facts[250], *at = put_number(facts, ",\"elements\":", count);
        at = put_number(at, ",\"offset_bytes\":", offset_bytes);
        if (header->tensor_owners) at = put_number(at, ",\"owner\":", (size_t)header->tensor_owners[members[k]]);
        if (part_count && count) at = explain_owners(at, places[k], count, part_count);
        *at++ = '}';
        gs_strbuf_add(&tensors, facts, (size_t)(at - facts));
        offset_bytes += gs_param_spec_grad_bytes(param);
    }
    gs_strbuf_puts(&tensors, bucket->num_params ? "]" : "[]");
    bool is_whole = !gs_strbuf_failed(&tensors);
    gs_json_set(entry, "tensors", is_whole ? gs_json_new_text(gs_strbuf_text(&tensors), tensors.len) : gs_json_new_array());
    gs_json_set_int(entry, "num_tensors", (int64_t)bucket->num_params);
    gs_strbuf_release(&tensors);
    free(places);
}

static gs_json *bucket_to_view(const gs_bucket_plan *plan, size_t index,
                               const gs_param_spec *params, const gs_plan_header *header,
                               const size_t *place_of) {
    const gs_plan_bucket *bucket = &plan->buckets[index];
    gs_json *entry = gs_json_new_object();
    gs_json_set_int(entry, "index", (int64_t)index);
    gs_json_set_int(entry, "bytes", (int64_t)bucket->bytes);
    gs_json_set_int(entry, "limit_bytes", (int64_t)bucket->limit_bytes);
    gs_json_set_string(entry, "dtype", gs_dtype_name(bucket->dtype));
    gs_json_set_int(entry, "device", bucket->device);
    gs_json_set_int(entry, "position", (int64_t)index);
    if (header->owners)
        gs_json_set_int(entry, "owner", header->owners[plan->params[bucket->first]]);
    explain_hook(entry, plan, index, params, header->hook);
    explain_end(entry, plan, index, params, header->owners, strcmp(header->reason, "link") == 0);
    if (place_of) expect_ready(entry, plan, index, place_of);
    show_tensors(entry, plan, index, params, header);
    return entry;
}

// NULL: no order is known (or no memory to show it).
static size_t *places_of(const gs_param_order *order, size_t num_params) {
    if (!order || !order->params || order->count != num_params) return NULL;
    size_t *places = calloc(num_params ? num_params : 1, sizeof *places);
    for (size_t i = 0; places && i < num_params; i++) places[order->params[i]] = i;
    return places;
}

gs_json *gs_plan_to_view(const gs_bucket_plan *plan, const gs_plan_header *header,
                         const gs_param_spec *params, const gs_param_order *order) {
    gs_json *view = header_to_json(header), *buckets = gs_json_new_array();
    size_t *place_of = places_of(order, plan->num_params);
    gs_json_set_int(view, "world_size", header->world_size);
    gs_json_set_int(view, "since_step", header->since_step);
    for (size_t i = 0; i < plan->num_buckets; i++) {
        gs_json_push(buckets, bucket_to_view(plan, i, params, header, place_of));
    }
    gs_json_set_int(view, "total_bytes", gs_plan_total_bytes(plan));
    gs_json_set_int(view, "total_wire_bytes", gs_plan_total_wire_bytes(plan, params, header->hook));
    gs_json *averages = header->asked ? gs_job_hook_averages(header->asked) : NULL;
    if (averages) gs_json_set(view, "averages", averages);
    gs_json_set(view, "buckets", buckets);
    free(place_of);
    return view;
}

void gs_plan_view_seal(gs_json *view) {
    const gs_json *buckets = gs_json_get(view, "buckets");
    for (size_t i = 0; i < gs_json_count(buckets); i++) {
        gs_json *bucket = (gs_json *)(uintptr_t)gs_json_at(buckets, i);
        const gs_json *tensors = gs_json_get(bucket, "tensors");
        if (gs_json_type_of(tensors) != GS_JSON_ARRAY) continue;
        gs_json_set_int(bucket, "num_tensors", (int64_t)gs_json_count(tensors));
        gs_json_set(bucket, "tensors", gs_json_new_encoded(tensors));
    }
}
