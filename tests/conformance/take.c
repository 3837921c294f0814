// take: the chunking of coalesced collectives, by both rules.
#include <stdio.h>
#include <stdlib.h>

#include <json-c/json.h>

#include "tests/conformance/conformance.h"

// `chunks` lists the members of each chunk, which are to ascend: so no tensor is listed twice, and
// the count says that none is left out.
static gs_status compare_chunks(const size_t *chunk_of, size_t num_chunks, size_t num_tensors,
                                struct json_object *chunks) {
    if (num_chunks != json_object_array_length(chunks))
        return gs_error(GS_DATA_LOSS, "%zu chunks, expected %zu", num_chunks,
                        json_object_array_length(chunks));
    size_t num_seen = 0;
    for (size_t c = 0; c < num_chunks; c++) {
        struct json_object *members = json_object_array_get_idx(chunks, c);
        num_seen += json_object_array_length(members);
        uint64_t least = 0;
        for (size_t i = 0; i < json_object_array_length(members); i++) {
            uint64_t tensor = json_object_get_uint64(json_object_array_get_idx(members, i));
            if (tensor < least)
                return gs_error(GS_DATA_LOSS, "chunk %zu: tensor %llu does not ascend", c,
                                (unsigned long long)tensor);
            least = tensor + 1;
            if (tensor >= num_tensors || chunk_of[tensor] != c)
                return gs_error(GS_DATA_LOSS, "tensor %llu is not in chunk %zu",
                                (unsigned long long)tensor, c);
        }
    }
    if (num_seen != num_tensors)
        return gs_error(GS_DATA_LOSS, "%zu tensors, expected %zu", num_tensors, num_seen);
    return gs_ok();
}

static void run_case(conformance *run, struct json_object *item, const char *rule, bool per_type) {
    struct json_object *name, *limit, *chunks;
    char label[128];
    json_object_object_get_ex(item, "name", &name);
    json_object_object_get_ex(item, "limit", &limit);
    json_object_object_get_ex(item, rule, &chunks);
    snprintf(label, sizeof label, "%s %s", json_object_get_string(name), rule);

    gs_plan_tensor *tensors;
    size_t num_tensors, num_chunks;
    gs_status status = conformance_read_tensors(&tensors, &num_tensors, item);
    if (!status.code) {
        size_t *chunk_of = calloc(num_tensors + 1, sizeof *chunk_of);
        status = gs_error(GS_RESOURCE_EXHAUSTED, "chunks: out of memory");
        if (chunk_of)
            status = gs_take_tensors(chunk_of, &num_chunks, tensors, num_tensors,
                                     json_object_get_uint64(limit), per_type);
        if (!status.code) status = compare_chunks(chunk_of, num_chunks, num_tensors, chunks);
        free(chunk_of);
        free(tensors);
    }
    conformance_case(run, label, status);
}

gs_status conformance_take(conformance *run, char **args, int num_args) {
    if (num_args != 1) return gs_error(GS_INVALID_ARGUMENT, "take: one file expected");
    struct json_object *file, *cases;
    GS_TRY(conformance_read_json(&file, args[0]));
    if (json_object_object_get_ex(file, "cases", &cases)) {
        for (size_t i = 0; i < json_object_array_length(cases); i++) {
            run_case(run, json_object_array_get_idx(cases, i), "in_order", false);
            run_case(run, json_object_array_get_idx(cases, i), "per_type", true);
        }
    }
    json_object_put(file);
    return gs_ok();
}
