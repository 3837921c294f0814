// A run of elements of one tensor: the address of whatever is less than a state. Optimizer state
// and parts of a checkpoint consist of segments, so that a part may begin and end inside a tensor;
// coordinator and ranks compute the same ones from the same list of tensors.
#ifndef CORE_SEGMENT_H
#define CORE_SEGMENT_H

#include <stddef.h>

#include "core/abi.h"
#include "core/digest.h"
#include "core/status.h"

GS_BEGIN_DECLS

typedef struct gs_segment {
    size_t tensor;
    size_t first, count;  // elements
} gs_segment;

// A tensor of the state that segments speak of.
typedef struct gs_segment_tensor {
    const char *name;  // for errors
    size_t count, element_bytes;
} gs_segment_tensor;

// Part `part` of `num_parts` equal ones of all bytes, tensors taken one behind the other: returns
// how many segments it has, in order and none of them empty, at most one of each tensor. A cut
// inside a tensor lies a multiple of `boundary_bytes` (and whole elements) from the tensor's start;
// by less than that, and an element, parts differ in size.
size_t gs_segments_of_part(gs_segment *segments, const gs_segment_tensor *tensors,
                           size_t num_tensors, size_t part, size_t num_parts,
                           size_t boundary_bytes);

// Segments in order of tensor and element, apart from each other and inside their tensors; some may
// be empty. INVALID_ARGUMENT names tensor and element.
GS_NODISCARD gs_status gs_segments_check_apart(const gs_segment *segments, size_t num_segments,
                                               const gs_segment_tensor *tensors,
                                               size_t num_tensors);
// In any order, every element of every tensor is in one segment and in one alone. INVALID_ARGUMENT
// names tensor and element.
GS_NODISCARD gs_status gs_segments_check_whole(const gs_segment *segments, size_t num_segments,
                                               const gs_segment_tensor *tensors,
                                               size_t num_tensors);

// What both have; count 0: nothing.
gs_segment gs_segment_intersect(gs_segment a, gs_segment b);

// For comparing who holds what.
gs_digest gs_segments_digest(const gs_segment *segments, size_t num_segments);

GS_END_DECLS

#endif
