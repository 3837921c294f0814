#include "core/segment.h"

#include <stdlib.h>
#include <string.h>

// Where one part ends and the next begins.
typedef struct cut {
    size_t tensor, element;
} cut;

static size_t total_bytes(const gs_segment_tensor *tensors, size_t num_tensors) {
    size_t total = 0;
    for (size_t i = 0; i < num_tensors; i++) total += tensors[i].count * tensors[i].element_bytes;
    return total;
}

// Before part `part`; the last is behind everything.
static cut find_cut(const gs_segment_tensor *tensors, size_t num_tensors, size_t part,
                    size_t num_parts, size_t boundary_bytes) {
    size_t total = total_bytes(tensors, num_tensors);
    // total · part / num_parts, without the overflow
    size_t at = total / num_parts * part + total % num_parts * part / num_parts;
    for (size_t i = 0; i < num_tensors && part < num_parts; i++) {
        size_t element_bytes = tensors[i].element_bytes, bytes = tensors[i].count * element_bytes;
        if (at < bytes) {
            size_t boundary = boundary_bytes / element_bytes;
            if (!boundary) boundary = 1;
            return (cut){i, at / element_bytes / boundary * boundary};
        }
        at -= bytes;
    }
    return (cut){num_tensors, 0};
}

size_t gs_segments_of_part(gs_segment *segments, const gs_segment_tensor *tensors,
                           size_t num_tensors, size_t part, size_t num_parts,
                           size_t boundary_bytes) {
    cut begin = find_cut(tensors, num_tensors, part, num_parts, boundary_bytes);
    cut end = find_cut(tensors, num_tensors, part + 1, num_parts, boundary_bytes);
    size_t num_segments = 0;
    for (size_t i = begin.tensor; i < num_tensors && i <= end.tensor; i++) {
        size_t first = i == begin.tensor ? begin.element : 0;
        size_t last = i == end.tensor ? end.element : tensors[i].count;
        if (first < last) segments[num_segments++] = (gs_segment){i, first, last - first};
    }
    return num_segments;
}

static gs_status check_inside(const gs_segment *segment, const gs_segment_tensor *tensors,
                              size_t num_tensors) {
    if (segment->tensor >= num_tensors)
        return gs_error(GS_INVALID_ARGUMENT, "there is no tensor %zu, there are %zu",
                        segment->tensor, num_tensors);
    const gs_segment_tensor *tensor = &tensors[segment->tensor];
    if (segment->first <= tensor->count && segment->count <= tensor->count - segment->first)
        return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT,
                    "tensor \"%.100s\": %zu elements from %zu on, it has %zu in all", tensor->name,
                    segment->count, segment->first, tensor->count);
}

gs_status gs_segments_check_apart(const gs_segment *segments, size_t num_segments,
                                  const gs_segment_tensor *tensors, size_t num_tensors) {
    for (size_t i = 0; i < num_segments; i++) {
        const gs_segment *segment = &segments[i], *before = segment - 1;
        GS_TRY(check_inside(segment, tensors, num_tensors));
        if (i == 0 || before->tensor < segment->tensor) continue;
        if (before->tensor > segment->tensor || before->first + before->count > segment->first)
            return gs_error(GS_INVALID_ARGUMENT,
                            "tensor \"%.100s\": element %zu is there twice, or out of order",
                            tensors[segment->tensor].name, segment->first);
    }
    return gs_ok();
}

static int compare_places(const void *a, const void *b) {
    const gs_segment *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->count < y->count ? -1 : x->count > y->count;
}

static gs_status check_no_gap(const gs_segment *segments, size_t num_segments,
                              const gs_segment_tensor *tensors, size_t num_tensors) {
    size_t next = 0;
    for (size_t t = 0; t < num_tensors; t++) {
        size_t end = 0;
        for (; next < num_segments && segments[next].tensor == t; next++) {
            if (segments[next].first > end) break;
            end = segments[next].first + segments[next].count;
        }
        if (end < tensors[t].count)
            return gs_error(GS_INVALID_ARGUMENT, "tensor \"%.100s\": element %zu is missing",
                            tensors[t].name, end);
    }
    return gs_ok();
}

gs_status gs_segments_check_whole(const gs_segment *segments, size_t num_segments,
                                  const gs_segment_tensor *tensors, size_t num_tensors) {
    gs_segment *sorted = calloc(num_segments + 1, sizeof *sorted);
    if (!sorted) return gs_error(GS_RESOURCE_EXHAUSTED, "segments: out of memory");
    if (num_segments) memcpy(sorted, segments, num_segments * sizeof *sorted);
    qsort(sorted, num_segments, sizeof *sorted, compare_places);
    gs_status status = gs_segments_check_apart(sorted, num_segments, tensors, num_tensors);
    if (!status.code) status = check_no_gap(sorted, num_segments, tensors, num_tensors);
    free(sorted);
    return status;
}

gs_segment gs_segment_intersect(gs_segment a, gs_segment b) {
    size_t first = a.first > b.first ? a.first : b.first;
    size_t a_end = a.first + a.count, b_end = b.first + b.count;
    size_t end = a_end < b_end ? a_end : b_end;
    if (a.tensor != b.tensor || end <= first) return (gs_segment){a.tensor, first, 0};
    return (gs_segment){a.tensor, first, end - first};
}

gs_digest gs_segments_digest(const gs_segment *segments, size_t num_segments) {
    return gs_digest_of(segments, num_segments * sizeof *segments);
}
