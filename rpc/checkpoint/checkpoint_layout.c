#include "rpc/checkpoint/checkpoint_layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

void gs_checkpoint_part_name(char name[GS_CHECKPOINT_FILE_LEN], size_t part) {
    snprintf(name, GS_CHECKPOINT_FILE_LEN, "part-%zu.safetensors", part);
}

void gs_checkpoint_record_name(char name[GS_CHECKPOINT_FILE_LEN], size_t part) {
    snprintf(name, GS_CHECKPOINT_FILE_LEN, "part-%zu.json", part);
}

// Names are those that we give: nothing else in a manifest leads to a file.
static gs_status read_parts(gs_checkpoint_layout *layout, const gs_json *manifest) {
    const gs_json *parts = gs_json_get(manifest, "parts");
    layout->num_parts = gs_json_count(parts);
    if (gs_json_type_of(parts) != GS_JSON_ARRAY || !layout->num_parts)
        return gs_error(GS_DATA_LOSS, "the manifest lists no part");
    for (size_t i = 0; i < layout->num_parts; i++) {
        char name[GS_CHECKPOINT_FILE_LEN];
        gs_checkpoint_part_name(name, i);
        const char *found = gs_json_string_or(gs_json_at(parts, i), "name", "");
        if (strcmp(found, name) != 0)
            return gs_error(GS_DATA_LOSS, "part %zu is \"%.60s\", must be %s", i, found, name);
    }
    return gs_ok();
}

static gs_status read_tensor(gs_checkpoint_tensor *tensor, const gs_json *row) {
    const gs_json *shape = gs_json_get(row, "shape");
    tensor->name = gs_json_string_or(row, "name", "");
    tensor->dtype = gs_dtype_from_name(gs_json_string_or(row, "dtype", ""));
    size_t bytes = gs_dtype_bytes(tensor->dtype);
    bool is_read = *tensor->name && bytes && gs_json_type_of(shape) == GS_JSON_ARRAY &&
                   gs_json_count(shape) <= GS_MAX_DIMS;
    tensor->num_dims = is_read ? (int)gs_json_count(shape) : 0;
    tensor->count = 1;
    for (int d = 0; d < tensor->num_dims && is_read; d++) {
        is_read = gs_json_int(&tensor->shape[d], gs_json_at(shape, (size_t)d)) &&
                  tensor->shape[d] >= 0 &&
                  gs_bytes_of(&tensor->count, tensor->count, (size_t)tensor->shape[d]) &&
                  gs_bytes_of(&(size_t){0}, tensor->count, bytes);
    }
    tensor->is_own = gs_json_bool_or(row, "own", false);
    if (tensor->is_own && tensor->num_dims != 2) is_read = false;
    if (is_read) return gs_ok();
    return gs_error(GS_DATA_LOSS, "tensor \"%.100s\": name, dtype or shape cannot be read",
                    tensor->name);
}

static size_t count_ranges(const gs_json *row) {
    const gs_json *ranges = gs_json_get(row, "ranges");
    return ranges ? gs_json_count(ranges) : 1;
}

static gs_status read_piece(gs_checkpoint_piece *piece, const gs_json *range, size_t num_parts,
                            const char *name) {
    int64_t part, first, count;
    if (gs_json_count(range) == 3 && gs_json_int(&part, gs_json_at(range, 0)) &&
        gs_json_int(&first, gs_json_at(range, 1)) && gs_json_int(&count, gs_json_at(range, 2)) &&
        part >= 0 && (uint64_t)part < num_parts && first >= 0 && count > 0) {
        piece->segment.first = (size_t)first;
        piece->segment.count = (size_t)count;
        piece->part = (size_t)part;
        return gs_ok();
    }
    return gs_error(GS_DATA_LOSS, "tensor \"%.100s\": a range is no [part, first, count] of %zu parts",
                    name, num_parts);
}

// The row of tensor `index`: its ranges, or the one part that it is in as a whole.
static gs_status read_pieces(gs_checkpoint_layout *layout, const gs_json *row, size_t index) {
    const gs_checkpoint_tensor *tensor = &layout->tensors[index];
    const gs_json *ranges = gs_json_get(row, "ranges");
    if (!ranges) {
        int64_t part = gs_json_int_or(row, "part", -1);
        if (part < 0 || (uint64_t)part >= layout->num_parts)
            return gs_error(GS_DATA_LOSS, "tensor \"%.100s\": is in no part", tensor->name);
        if (tensor->count)
            layout->pieces[layout->num_pieces++] =
                (gs_checkpoint_piece){{index, 0, tensor->count}, (size_t)part};
        return gs_ok();
    }
    if (gs_json_type_of(ranges) != GS_JSON_ARRAY)
        return gs_error(GS_DATA_LOSS, "tensor \"%.100s\": ranges are no list", tensor->name);
    for (size_t i = 0; i < gs_json_count(ranges); i++) {
        gs_checkpoint_piece *piece = &layout->pieces[layout->num_pieces++];
        piece->segment.tensor = index;
        GS_TRY(read_piece(piece, gs_json_at(ranges, i), layout->num_parts, tensor->name));
    }
    return gs_ok();
}

static gs_status read_tensors(gs_checkpoint_layout *layout, const gs_json *manifest) {
    const gs_json *rows = gs_json_get(manifest, "tensors");
    if (gs_json_type_of(rows) != GS_JSON_ARRAY)
        return gs_error(GS_DATA_LOSS, "the manifest lists no tensors");
    size_t num_pieces = 0;
    layout->num_tensors = gs_json_count(rows);
    for (size_t i = 0; i < layout->num_tensors; i++)
        num_pieces += count_ranges(gs_json_at(rows, i));
    layout->tensors = calloc(layout->num_tensors + 1, sizeof *layout->tensors);
    layout->pieces = calloc(num_pieces + 1, sizeof *layout->pieces);
    if (!layout->tensors || !layout->pieces)
        return gs_error(GS_RESOURCE_EXHAUSTED, "manifest: out of memory");
    for (size_t i = 0; i < layout->num_tensors; i++) {
        GS_TRY(read_tensor(&layout->tensors[i], gs_json_at(rows, i)));
        GS_TRY(read_pieces(layout, gs_json_at(rows, i), i));
    }
    return gs_ok();
}

static int compare_pieces(const void *a, const void *b) {
    const gs_segment *x = &((const gs_checkpoint_piece *)a)->segment;
    const gs_segment *y = &((const gs_checkpoint_piece *)b)->segment;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static gs_status check_names(const gs_checkpoint_layout *layout) {
    const char **names = calloc(layout->num_tensors + 1, sizeof *names);
    if (!names) return gs_error(GS_RESOURCE_EXHAUSTED, "manifest: out of memory");
    for (size_t i = 0; i < layout->num_tensors; i++) names[i] = layout->tensors[i].name;
    qsort(names, layout->num_tensors, sizeof *names, compare_names);
    gs_status status = gs_ok();
    for (size_t i = 1; i < layout->num_tensors && !status.code; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = gs_error(GS_DATA_LOSS, "tensor \"%.100s\" is there twice", names[i]);
    free(names);
    return status;
}

static gs_status check_whole(const gs_checkpoint_layout *layout) {
    gs_segment *segments = calloc(layout->num_pieces + 1, sizeof *segments);
    gs_segment_tensor *tensors = calloc(layout->num_tensors + 1, sizeof *tensors);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "manifest: out of memory");
    if (segments && tensors) {
        for (size_t i = 0; i < layout->num_pieces; i++) segments[i] = layout->pieces[i].segment;
        for (size_t i = 0; i < layout->num_tensors; i++)
            tensors[i] = (gs_segment_tensor){layout->tensors[i].name, layout->tensors[i].count,
                                             gs_dtype_bytes(layout->tensors[i].dtype)};
        status = gs_segments_check_whole(segments, layout->num_pieces, tensors,
                                         layout->num_tensors);
        if (status.code == GS_INVALID_ARGUMENT) status.code = GS_DATA_LOSS;
    }
    free(segments);
    free(tensors);
    return status;
}

static gs_status parse(gs_checkpoint_layout *layout, const gs_json *manifest) {
    GS_TRY(read_parts(layout, manifest));
    GS_TRY(read_tensors(layout, manifest));
    qsort(layout->pieces, layout->num_pieces, sizeof *layout->pieces, compare_pieces);
    GS_TRY(check_names(layout));
    return check_whole(layout);
}

gs_status gs_checkpoint_layout_parse(gs_checkpoint_layout *layout, const gs_json *manifest) {
    *layout = (gs_checkpoint_layout){0};
    gs_status status = parse(layout, manifest);
    if (status.code) gs_checkpoint_layout_release(layout);
    return gs_status_prefix(status, "manifest");
}

void gs_checkpoint_layout_release(gs_checkpoint_layout *layout) {
    free(layout->tensors);
    free(layout->pieces);
    *layout = (gs_checkpoint_layout){0};
}
