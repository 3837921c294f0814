#include "rpc/checkpoint/part_record.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "rpc/checkpoint/checkpoint_layout.h"

#define FORMAT "gradsync-checkpoint-part"

gs_json *gs_part_record_make(gs_json *head, gs_json *file, size_t part, size_t num_parts,
                             const gs_segment *segments, size_t num_segments) {
    gs_json *record = gs_json_new_object(), *rows = gs_json_new_array();
    for (size_t i = 0; i < num_segments; i++) {
        gs_json *row = gs_json_new_array();
        gs_json_push(row, gs_json_new_int((int64_t)segments[i].tensor));
        gs_json_push(row, gs_json_new_int((int64_t)segments[i].first));
        gs_json_push(row, gs_json_new_int((int64_t)segments[i].count));
        gs_json_push(rows, row);
    }
    gs_json_set_string(record, "format", FORMAT);
    gs_json_set_int(record, "part", (int64_t)part);
    gs_json_set_int(record, "num_parts", (int64_t)num_parts);
    gs_json_set_time(record, "created_at", gs_wall_ms());
    gs_json_set(record, "head", head);
    gs_json_set(record, "file", file);
    gs_json_set(record, "segments", rows);
    return record;
}

size_t gs_part_record_num_parts(const gs_json *record) {
    int64_t num_parts;
    bool is_record = !strcmp(gs_json_string_or(record, "format", ""), FORMAT) &&
                     gs_json_read_int(&num_parts, record, "num_parts", 1, 1 << 20).code == GS_OK;
    return is_record ? (size_t)num_parts : 0;
}

// Which member of the first head the other has not, or has otherwise.
typedef struct comparison {
    const gs_json *other;
    const char *differs;  // NULL: none
} comparison;

static bool compare_member(void *ctx, const char *key, const gs_json *value) {
    comparison *at = ctx;
    const gs_json *other = gs_json_get(at->other, key);
    char *a = NULL, *b = NULL;
    bool same = other && !gs_json_encode(&a, NULL, value, false).code &&
                !gs_json_encode(&b, NULL, other, false).code && strcmp(a, b) == 0;
    free(a);
    free(b);
    if (!same) at->differs = key;
    return same;
}

static gs_status check_record(const gs_json *record, const gs_json *first, size_t part,
                              size_t num_parts) {
    const gs_json *head = gs_json_get(first, "head");
    int64_t found;
    if (gs_part_record_num_parts(record) != num_parts ||
        gs_json_read_int(&found, record, "part", 0, INT64_MAX).code)
        return gs_error(GS_DATA_LOSS, "part %zu: its record is none of a save in %zu parts", part,
                        num_parts);
    if ((size_t)found != part)
        return gs_error(GS_DATA_LOSS, "part %zu: its record is that of part %lld", part,
                        (long long)found);
    comparison at = {.other = gs_json_get(record, "head")};
    gs_json_each(head, compare_member, &at);
    if (!at.differs && gs_json_count(head) == gs_json_count(at.other)) return gs_ok();
    return gs_error(GS_DATA_LOSS, "part %zu is of another save than part 0: its %.40s differs",
                    part, at.differs ? at.differs : "head");
}

// Into the rows of tensors: where the segments of a part lie.
static gs_status add_ranges(gs_json *tensors, const gs_json *record, size_t part) {
    const gs_json *segments = gs_json_get(record, "segments");
    for (size_t i = 0; i < gs_json_count(segments); i++) {
        const gs_json *segment = gs_json_at(segments, i);
        int64_t tensor;
        if (gs_json_count(segment) != 3 || !gs_json_int(&tensor, gs_json_at(segment, 0)) ||
            tensor < 0 || (uint64_t)tensor >= gs_json_count(tensors))
            return gs_error(GS_DATA_LOSS, "part %zu: segment %zu is of no tensor", part, i);
        const gs_json *row = gs_json_at(tensors, (size_t)tensor);
        gs_json *range = gs_json_new_array();
        gs_json_push(range, gs_json_new_int((int64_t)part));
        gs_json_push(range, gs_json_copy(gs_json_at(segment, 1)));
        gs_json_push(range, gs_json_copy(gs_json_at(segment, 2)));
        gs_json_push((gs_json *)(uintptr_t)gs_json_get(row, "ranges"), range);
    }
    return gs_ok();
}

static gs_json *copy_tensors(const gs_json *head) {
    gs_json *tensors = gs_json_copy(gs_json_get(head, "tensors"));
    for (size_t i = 0; i < gs_json_count(tensors); i++)
        gs_json_set((gs_json *)(uintptr_t)gs_json_at(tensors, i), "ranges", gs_json_new_array());
    return tensors;
}

static gs_status join(gs_json *manifest, gs_json *const *records, size_t num_parts) {
    gs_json *parts = gs_json_new_array();
    gs_json *tensors = copy_tensors(gs_json_get(records[0], "head"));
    gs_json_set_string(manifest, "created_at", gs_json_string_or(records[0], "created_at", ""));
    gs_json_set(manifest, "parts", parts);
    gs_json_set(manifest, "tensors", tensors);
    for (size_t part = 0; part < num_parts; part++) {
        const gs_json *file = gs_json_get(records[part], "file");
        GS_TRY(check_record(records[part], records[0], part, num_parts));
        if (gs_json_type_of(file) != GS_JSON_OBJECT)
            return gs_error(GS_DATA_LOSS, "part %zu: its record names no file", part);
        gs_json_push(parts, gs_json_copy(file));
        GS_TRY(add_ranges(tensors, records[part], part));
    }
    gs_checkpoint_layout layout;
    GS_TRY(gs_checkpoint_layout_parse(&layout, manifest));
    gs_checkpoint_layout_release(&layout);
    return gs_ok();
}

gs_status gs_part_records_join(gs_json **manifest, gs_json *const *records, size_t num_parts) {
    const gs_json *head = num_parts ? gs_json_get(records[0], "head") : NULL;
    const gs_json *tensors = gs_json_get(head, "tensors");
    if (gs_json_type_of(head) != GS_JSON_OBJECT || gs_json_type_of(tensors) != GS_JSON_ARRAY)
        return gs_error(GS_DATA_LOSS, "part 0: its record has no head");
    for (size_t i = 0; i < gs_json_count(tensors); i++)
        if (gs_json_type_of(gs_json_at(tensors, i)) != GS_JSON_OBJECT)
            return gs_error(GS_DATA_LOSS, "part 0: its record has no tensor %zu", i);
    *manifest = gs_json_copy(head);
    gs_status status = join(*manifest, records, num_parts);
    if (status.code) {
        gs_json_release(*manifest);
        *manifest = NULL;
    }
    return status;
}
