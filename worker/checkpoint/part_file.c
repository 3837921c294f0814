#include "worker/checkpoint/part_file.h"

#include <stdlib.h>
#include <string.h>

#include "rpc/checkpoint/part_entry.h"

_Static_assert(GS_STATE_NAME_LEN + 24 <= GS_PART_ENTRY_NAME_LEN, "a name of a state, and where a slice begins");

static size_t count_of(const gs_state_tensor *tensor) {
    return tensor->bytes / gs_dtype_bytes(tensor->dtype);
}

// What is here, from tensor `first` on.
static void add_here(gs_segment *segments, size_t *num_segments, const gs_state_snapshot *snapshot,
                     size_t first) {
    for (size_t i = first; i < snapshot->num_tensors + snapshot->num_own; i++) {
        gs_segment here = snapshot->here[i];
        here.tensor = i;
        if (here.count) segments[(*num_segments)++] = here;
    }
}

static gs_status cut_by_bytes(gs_segment *segments, size_t *num_segments,
                              const gs_state_snapshot *snapshot, int part, int num_parts) {
    gs_segment_tensor *tensors = calloc(snapshot->num_tensors + 1, sizeof *tensors);
    if (!tensors) return gs_error(GS_RESOURCE_EXHAUSTED, "checkpoint: out of memory");
    for (size_t i = 0; i < snapshot->num_tensors; i++) {
        const gs_state_tensor *tensor = &snapshot->tensors[i];
        tensors[i] = (gs_segment_tensor){tensor->name, count_of(tensor),
                                         gs_dtype_bytes(tensor->dtype)};
    }
    *num_segments = gs_segments_of_part(segments, tensors, snapshot->num_tensors, (size_t)part,
                                        (size_t)num_parts, GS_PART_BOUNDARY_BYTES);
    free(tensors);
    return gs_ok();
}

gs_status gs_part_file_cut(gs_segment **segments, size_t *num_segments,
                           const gs_state_snapshot *snapshot, int part, int num_parts) {
    *num_segments = 0;
    *segments = calloc(snapshot->num_tensors + snapshot->num_own + 1, sizeof **segments);
    if (!*segments) return gs_error(GS_RESOURCE_EXHAUSTED, "checkpoint: out of memory");
    if (!snapshot->is_part) {
        gs_status status = cut_by_bytes(*segments, num_segments, snapshot, part, num_parts);
        if (status.code) {
            free(*segments);
            return status;
        }
    }
    // Shares lie where they were taken, whatever the cut.
    add_here(*segments, num_segments, snapshot, snapshot->is_part ? 0 : snapshot->num_tensors);
    return gs_ok();
}

static void describe(gs_safetensors_entry *entry, char name[GS_PART_ENTRY_NAME_LEN],
                     const gs_state_snapshot *snapshot, gs_segment segment) {
    const gs_state_tensor *tensor = &snapshot->tensors[segment.tensor];
    const uint8_t *data = snapshot->data[segment.tensor];
    *entry = (gs_safetensors_entry){.name = name, .dtype = tensor->dtype, .data = data};
    if (segment.count == count_of(tensor)) {
        gs_part_entry_name(name, tensor->name, 0, true);
        entry->num_dims = tensor->num_dims;
        memcpy(entry->shape, tensor->shape, sizeof entry->shape);
        return;
    }
    gs_part_entry_name(name, tensor->name, segment.first, false);
    entry->num_dims = 1;
    entry->shape[0] = (int64_t)segment.count;
    size_t first_here = snapshot->here[segment.tensor].first;
    if (data) entry->data = data + (segment.first - first_here) * gs_dtype_bytes(tensor->dtype);
}

// Where entries come from, of which some are not in memory.
typedef struct spilled {
    const gs_spill *spill;
    const gs_safetensors_entry *entries;
    const size_t *places;  // in the spill, by entry
} spilled;

static gs_status read_entry(void *ctx, size_t entry, void *to, size_t begin, size_t bytes) {
    const spilled *from = ctx;
    const uint8_t *data = from->entries[entry].data;
    if (!data) return gs_spill_read(from->spill, from->places[entry] + begin, to, bytes);
    memcpy(to, data + begin, bytes);
    return gs_ok();
}

// Of a segment, behind what is here of the tensors before it.
static size_t place_in_spill(const gs_state_snapshot *snapshot, gs_segment segment) {
    size_t place = (segment.first - snapshot->here[segment.tensor].first) * gs_dtype_bytes(snapshot->tensors[segment.tensor].dtype);
    for (size_t i = 0; i < segment.tensor; i++)
        if (!snapshot->data[i]) place += snapshot->here[i].count * gs_dtype_bytes(snapshot->tensors[i].dtype);
    return place;
}

static gs_status write_spilled(gs_file_place place, const gs_state_snapshot *snapshot, const gs_spill *spill, const gs_segment *segments,
                               gs_safetensors_source *source) {
    size_t *places = calloc(source->num_entries + 1, sizeof *places);
    if (!places) return gs_error(GS_RESOURCE_EXHAUSTED, "checkpoint: out of memory");
    for (size_t i = 0; i < source->num_entries; i++)
        if (!source->entries[i].data) places[i] = place_in_spill(snapshot, segments[i]);
    spilled from = {spill, source->entries, places};
    source->ctx = &from;
    source->read = read_entry;
    gs_status status = gs_safetensors_write_source_at(place, source);
    free(places);
    return status;
}

gs_status gs_part_file_write(gs_file_place place, const gs_state_snapshot *snapshot,
                             const gs_spill *spill, const gs_segment *segments, size_t num_segments,
                             const gs_safetensors_metadata_entry *metadata, size_t num_metadata) {
    gs_safetensors_entry *entries = calloc(num_segments + 1, sizeof *entries);
    char(*names)[GS_PART_ENTRY_NAME_LEN] = calloc(num_segments + 1, sizeof *names);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "checkpoint: out of memory");
    if (entries && names) {
        for (size_t i = 0; i < num_segments; i++)
            describe(&entries[i], names[i], snapshot, segments[i]);
        gs_safetensors_source source = {entries, num_segments, metadata, num_metadata, NULL, NULL};
        status = spill ? write_spilled(place, snapshot, spill, segments, &source)
                       : gs_safetensors_write_at(place, entries, num_segments, metadata, num_metadata);
    }
    free(entries);
    free(names);
    return status;
}
