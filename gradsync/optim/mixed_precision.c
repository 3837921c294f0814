#include "gradsync/optim/mixed_precision.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/options.h"
#include "gradsync/optim/param_segments.h"

#define PIECE_COUNT ((size_t)1 << 20)  // of a split master, on its way between device and host
#define PIECE_SECONDS 60.0

// One block for all tensors, and where each lies.
typedef struct tensor_block {
    void *memory;  // NULL: not kept, or another block's
    size_t bytes;
    void **tensors;  // one for each parameter, or segment
} tensor_block;

struct gs_mixed_precision {
    gs_mixed_precision_options options;
    size_t *counts;        // of parameters
    gs_segment *segments;  // what has masters
    size_t num_segments, *segment_counts;
    size_t *first_segment;  // of each parameter; behind the last one: num_segments
    tensor_block params, values, pass_grads;
    tensor_block remainders;  // of segments, behind the params in their memory
    uint16_t **split_values;  // where each segment lies in params; NULL unless masters are split
    float *piece;             // PIECE_COUNT of the device's memory; NULL: the host's serves
    gs_cast_item *casts;      // masters to params, on a GPU: of segments that are not empty
    size_t *first_cast;       // of each parameter; behind the last one: how many there are
};

static gs_status place_tensors(tensor_block *block, const size_t *counts, size_t num_tensors,
                               size_t element_bytes) {
    size_t total = 0;
    block->tensors = calloc(num_tensors + 1, sizeof *block->tensors);
    if (!block->tensors) return gs_error(GS_RESOURCE_EXHAUSTED, "mixed precision: out of memory");
    for (size_t i = 0; i < num_tensors; i++) {
        size_t bytes;
        if (!gs_bytes_of(&bytes, counts[i], element_bytes) || !gs_add_padded(&total, bytes) ||
            total > SIZE_MAX / 4)
            return gs_error(GS_RESOURCE_EXHAUSTED, "mixed precision: no memory for tensor %zu", i);
    }
    block->bytes = total;
    return gs_ok();
}

static void set_tensors(tensor_block *block, const size_t *counts, size_t num_tensors, char *at,
                        size_t element_bytes) {
    for (size_t i = 0; i < num_tensors; i++) {
        block->tensors[i] = at;
        at += gs_round_up(counts[i] * element_bytes, GS_LINE_BYTES);
    }
}

static gs_status make_block(tensor_block *block, const gs_mixed_precision *mixed,
                            size_t element_bytes) {
    size_t num_params = mixed->options.num_params;
    GS_TRY(place_tensors(block, mixed->counts, num_params, element_bytes));
    GS_TRY(gs_device_alloc(mixed->options.device, &block->memory, block->bytes + GS_LINE_BYTES));
    set_tensors(block, mixed->counts, num_params, block->memory, element_bytes);
    return gs_ok();
}

// Of halves of masters: where each segment lies in the params.
static void point_values(gs_mixed_precision *mixed) {
    for (size_t i = 0; i < mixed->num_segments; i++) {
        const gs_segment *segment = &mixed->segments[i];
        mixed->split_values[i] =
            (uint16_t *)mixed->params.tensors[segment->tensor] + segment->first;
    }
}

// Where the caller has them.
static gs_status borrow_params(gs_mixed_precision *mixed) {
    size_t num_params = mixed->options.num_params;
    mixed->params.tensors = calloc(num_params + 1, sizeof *mixed->params.tensors);
    if (!mixed->params.tensors)
        return gs_error(GS_RESOURCE_EXHAUSTED, "mixed precision: out of memory");
    for (size_t i = 0; i < num_params; i++) mixed->params.tensors[i] = mixed->options.places[i];
    return gs_ok();
}

static gs_status make_params(gs_mixed_precision *mixed) {
    if (mixed->options.places) return borrow_params(mixed);
    return make_block(&mixed->params, mixed, gs_dtype_bytes(mixed->options.dtype));
}

// Params and remainders in one block, one behind the other; params of the caller's are where they
// are.
static gs_status place_halves(gs_mixed_precision *mixed) {
    size_t num_params = mixed->options.num_params, num_segments = mixed->num_segments;
    tensor_block *values = &mixed->params, *remainders = &mixed->remainders;
    if (mixed->options.places)
        GS_TRY(borrow_params(mixed));
    else
        GS_TRY(place_tensors(values, mixed->counts, num_params, sizeof(uint16_t)));
    GS_TRY(place_tensors(remainders, mixed->segment_counts, num_segments, sizeof(uint16_t)));
    void *memory;
    GS_TRY(gs_device_alloc(mixed->options.device, &memory,
                           values->bytes + remainders->bytes + GS_LINE_BYTES));
    if (mixed->options.places)
        remainders->memory = memory;
    else
        set_tensors(values, mixed->counts, num_params, values->memory = memory, sizeof(uint16_t));
    set_tensors(remainders, mixed->segment_counts, num_segments, (char *)memory + values->bytes,
                sizeof(uint16_t));
    return gs_ok();
}

static gs_status make_halves(gs_mixed_precision *mixed) {
    gs_device *device = mixed->options.device;
    size_t num_segments = mixed->num_segments;
    GS_TRY(place_halves(mixed));
    mixed->split_values = calloc(num_segments + 1, sizeof *mixed->split_values);
    if (!mixed->split_values)
        return gs_error(GS_RESOURCE_EXHAUSTED, "mixed precision: out of memory");
    point_values(mixed);
    if (gs_device_is_host(device)) return gs_ok();
    void *piece;
    GS_TRY(gs_device_alloc(device, &piece, PIECE_COUNT * sizeof(float)));
    mixed->piece = piece;
    return gs_ok();
}

// Where a segment lies in a block of whole tensors.
static void *segment_in(const tensor_block *block, const gs_segment *segment, gs_dtype dtype) {
    return (char *)block->tensors[segment->tensor] + segment->first * gs_dtype_bytes(dtype);
}

static gs_status list_casts(gs_mixed_precision *mixed) {
    void *memory;
    GS_TRY(gs_device_alloc_pinned(mixed->options.device, &memory,
                                  (mixed->num_segments + 1) * sizeof *mixed->casts));
    mixed->casts = memory;
    mixed->first_cast = calloc(mixed->options.num_params + 1, sizeof *mixed->first_cast);
    if (!mixed->first_cast)
        return gs_error(GS_RESOURCE_EXHAUSTED, "mixed precision: out of memory");
    size_t num_casts = 0;
    for (size_t param = 0; param < mixed->options.num_params; param++) {
        for (size_t i = mixed->first_segment[param]; i < mixed->first_segment[param + 1]; i++) {
            const gs_segment *segment = &mixed->segments[i];
            if (segment->count)
                mixed->casts[num_casts++] =
                    (gs_cast_item){segment_in(&mixed->params, segment, mixed->options.dtype),
                                   mixed->options.masters[i], segment->count};
        }
        mixed->first_cast[param + 1] = num_casts;
    }
    return gs_ok();
}

static void release_block(tensor_block *block, gs_device *device) {
    if (block->memory) gs_device_free(device, block->memory);
    free(block->tensors);
}

static gs_status count_tensors(gs_mixed_precision *mixed) {
    const gs_mixed_precision_options *options = &mixed->options;
    GS_TRY(gs_status_prefix(gs_param_segments_copy(&mixed->segments, &mixed->num_segments,
                                                   options->params, options->num_params,
                                                   options->segments, options->num_segments),
                            "mixed precision"));
    mixed->counts = calloc(options->num_params + 1, sizeof *mixed->counts);
    mixed->segment_counts = calloc(mixed->num_segments + 1, sizeof *mixed->segment_counts);
    mixed->first_segment = calloc(options->num_params + 1, sizeof *mixed->first_segment);
    if (!mixed->counts || !mixed->segment_counts || !mixed->first_segment)
        return gs_error(GS_RESOURCE_EXHAUSTED, "mixed precision: out of memory");
    gs_param_segments_index(mixed->first_segment, options->num_params, mixed->segments,
                            mixed->num_segments);
    for (size_t i = 0; i < options->num_params; i++)
        mixed->counts[i] = gs_param_spec_count(&options->params[i]);
    for (size_t i = 0; i < mixed->num_segments; i++)
        mixed->segment_counts[i] = mixed->segments[i].count;
    return gs_ok();
}

static gs_status make_blocks(gs_mixed_precision *mixed) {
    const gs_mixed_precision_options *options = &mixed->options;
    GS_TRY(count_tensors(mixed));
    if (options->splits_masters)
        GS_TRY(make_halves(mixed));
    else if (options->keeps_params)
        GS_TRY(make_params(mixed));
    if (mixed->params.tensors && !options->splits_masters && !gs_device_is_host(options->device))
        GS_TRY(list_casts(mixed));
    if (options->keeps_values) GS_TRY(make_block(&mixed->values, mixed, sizeof(float)));
    if (options->adds_passes) GS_TRY(make_block(&mixed->pass_grads, mixed, sizeof(float)));
    return gs_ok();
}

static gs_status create_mixed(gs_mixed_precision **out, const gs_mixed_precision_options *options) {
    *out = NULL;
    if (options->dtype != GS_FP16 && options->dtype != GS_BF16)
        return gs_error(GS_INVALID_ARGUMENT, "mixed precision: %s, must be fp16 or bf16",
                        gs_dtype_name(options->dtype));
    if (options->splits_masters && (options->dtype != GS_BF16 || options->keeps_values))
        return gs_error(GS_INVALID_ARGUMENT,
                        "mixed precision: masters are split for bf16 alone, and have no values");
    bool has_masters = options->segments ? options->num_segments > 0 : options->num_params > 0;
    if (!options->splits_masters && !options->masters && has_masters)
        return gs_error(GS_INVALID_ARGUMENT, "mixed precision: no masters");
    if (options->places && !options->keeps_params && !options->splits_masters)
        return gs_error(GS_INVALID_ARGUMENT,
                        "mixed precision: places for params that are not kept");
    GS_TRY(gs_param_specs_check(options->params, options->num_params));
    gs_mixed_precision *mixed = calloc(1, sizeof *mixed);
    if (!mixed) return gs_error(GS_RESOURCE_EXHAUSTED, "mixed precision: out of memory");
    mixed->options = *options;
    gs_status status = make_blocks(mixed);
    mixed->options.params = NULL;  // the caller's
    mixed->options.places = options->places ? mixed->params.tensors : NULL;
    mixed->options.segments = NULL;
    if (status.code) {
        gs_mixed_precision_destroy(mixed);
        return status;
    }
    *out = mixed;
    return gs_ok();
}

gs_status gs_mixed_precision_create_sized(gs_mixed_precision **out,
                                          const gs_mixed_precision_options *options,
                                          size_t options_bytes) {
    gs_mixed_precision_options known;
    GS_TRY(gs_options_take(&known, sizeof known, options, options_bytes,
                           "gs_mixed_precision_options"));
    return create_mixed(out, &known);
}

void gs_mixed_precision_destroy(gs_mixed_precision *mixed) {
    if (!mixed) return;
    release_block(&mixed->params, mixed->options.device);
    release_block(&mixed->values, mixed->options.device);
    release_block(&mixed->pass_grads, mixed->options.device);
    release_block(&mixed->remainders, mixed->options.device);
    gs_device_free(mixed->options.device, mixed->piece);
    gs_device_free_pinned(mixed->options.device, mixed->casts);
    free(mixed->first_cast);
    free(mixed->split_values);
    free(mixed->segment_counts);
    free(mixed->first_segment);
    free(mixed->segments);
    free(mixed->counts);
    free(mixed);
}

void gs_mixed_precision_move(gs_mixed_precision *mixed, void *const *places) {
    for (size_t i = 0; i < mixed->options.num_params; i++) mixed->params.tensors[i] = places[i];
    if (mixed->split_values) point_values(mixed);
}

gs_dtype gs_mixed_precision_dtype(const gs_mixed_precision *mixed) {
    return mixed->options.dtype;
}

void *const *gs_mixed_precision_params(const gs_mixed_precision *mixed) {
    return mixed->params.tensors;
}

void *const *gs_mixed_precision_values(const gs_mixed_precision *mixed) {
    return mixed->values.tensors;
}

uint16_t *const *gs_mixed_precision_remainders(const gs_mixed_precision *mixed) {
    return (uint16_t *const *)mixed->remainders.tensors;
}

uint16_t *const *gs_mixed_precision_uppers(const gs_mixed_precision *mixed) {
    return mixed->split_values;
}

void *gs_mixed_precision_halves(const gs_mixed_precision *mixed, size_t *bytes) {
    bool are_one = mixed->options.splits_masters && mixed->params.memory;
    *bytes = are_one ? mixed->params.bytes + mixed->remainders.bytes : 0;
    return are_one ? mixed->params.memory : NULL;
}

static size_t piece_of(size_t count) {
    return count < PIECE_COUNT ? count : PIECE_COUNT;
}

// The master of segment `index`, whatever is kept of it.
static void write_back_segment(gs_mixed_precision *mixed, size_t index) {
    const gs_mixed_precision_options *options = &mixed->options;
    const gs_kernels *kernels = gs_device_kernels(options->device);
    gs_stream *stream = gs_device_stream(options->device);
    const gs_segment *segment = &mixed->segments[index];
    if (!segment->count) return;
    if (options->keeps_params && !mixed->casts)
        kernels->cast(stream, segment_in(&mixed->params, segment, options->dtype), options->dtype,
                      options->masters[index], GS_FP32, 1.0f, segment->count);
    if (options->keeps_values)
        kernels->round(stream, segment_in(&mixed->values, segment, GS_FP32),
                       options->masters[index], options->dtype, segment->count, false);
}

void gs_mixed_precision_take_param(gs_mixed_precision *mixed, size_t param) {
    const gs_mixed_precision_options *options = &mixed->options;
    if (!options->keeps_values || !mixed->counts[param]) return;
    gs_device_kernels(options->device)
        ->cast(gs_device_stream(options->device), mixed->values.tensors[param], GS_FP32,
               mixed->params.tensors[param], options->dtype, 1.0f, mixed->counts[param]);
}

// What the upper half of a split master is; kernels.h says which.
static uint16_t upper_half(float master) {
    uint32_t bits;
    memcpy(&bits, &master, sizeof bits);
    return (uint16_t)((bits + 0x8000u) >> 16);
}

static uint16_t round_master(const gs_mixed_precision_options *options, float master) {
    if (options->splits_masters) return upper_half(master);
    return options->dtype == GS_FP16 ? gs_fp32_to_fp16(master) : gs_fp32_to_bf16(master);
}

// By the host, which has them: a device would want room for both.
gs_status gs_mixed_precision_put_param(gs_mixed_precision *mixed, size_t param, size_t first,
                                       const float *host, size_t count) {
    const gs_mixed_precision_options *options = &mixed->options;
    bool is_inside = param < options->num_params && first <= mixed->counts[param] &&
                     count <= mixed->counts[param] - first;
    if (!is_inside || !mixed->params.tensors)
        return gs_error(GS_INVALID_ARGUMENT,
                        "mixed precision: no elements [%zu, %zu + %zu) of parameter %zu to put",
                        first, first, count, param);
    uint16_t *halves = malloc(piece_of(count) * sizeof *halves + 1);
    if (!halves) return gs_error(GS_RESOURCE_EXHAUSTED, "mixed precision: out of memory");
    gs_status status = gs_ok();
    for (size_t at = 0, num; at < count && !status.code; at += num) {
        num = piece_of(count - at);
        for (size_t i = 0; i < num; i++) halves[i] = round_master(options, host[at + i]);
        status = gs_device_upload(options->device,
                                  (uint16_t *)mixed->params.tensors[param] + first + at, halves,
                                  num * sizeof *halves);
    }
    free(halves);
    return status;
}

// Of the parameters [first, end), in one launch.
static void cast_params(gs_mixed_precision *mixed, size_t first, size_t end) {
    const gs_mixed_precision_options *options = &mixed->options;
    if (!mixed->casts || mixed->first_cast[first] == mixed->first_cast[end]) return;
    gs_device_kernels(options->device)
        ->cast_many(gs_device_stream(options->device), mixed->casts + mixed->first_cast[first],
                    mixed->first_cast[end] - mixed->first_cast[first], options->dtype, GS_FP32,
                    1.0f);
}

void gs_mixed_precision_write_back(gs_mixed_precision *mixed) {
    if (mixed->options.splits_masters) return;
    cast_params(mixed, 0, mixed->options.num_params);
    for (size_t i = 0; i < mixed->num_segments; i++) write_back_segment(mixed, i);
}

void gs_mixed_precision_write_back_params(gs_mixed_precision *mixed, const size_t *which,
                                          size_t num_which) {
    if (mixed->options.splits_masters) return;
    for (size_t w = 0; w < num_which; w++) {
        cast_params(mixed, which[w], which[w] + 1);
        for (size_t i = mixed->first_segment[which[w]]; i < mixed->first_segment[which[w] + 1]; i++)
            write_back_segment(mixed, i);
    }
}

gs_status gs_mixed_precision_step(gs_mixed_precision *mixed, gs_optimizer *optimizer,
                                  void *const *grads, const uint8_t *used, float lr,
                                  float grad_scale) {
    const gs_mixed_precision_options *options = &mixed->options;
    if (options->splits_masters)
        return gs_optimizer_step_halves(optimizer, mixed->split_values,
                                        gs_mixed_precision_remainders(mixed), grads, used, lr,
                                        grad_scale);
    GS_TRY(
        gs_optimizer_step(optimizer, (void *const *)options->masters, grads, used, lr, grad_scale));
    gs_mixed_precision_write_back(mixed);
    return gs_ok();
}

gs_status gs_mixed_precision_step_params(gs_mixed_precision *mixed, gs_optimizer *optimizer,
                                         const size_t *which, size_t num_which, void *const *grads,
                                         const uint8_t *used, float lr, float grad_scale) {
    const gs_mixed_precision_options *options = &mixed->options;
    if (options->splits_masters)
        return gs_optimizer_step_halves_params(optimizer, which, num_which, mixed->split_values,
                                               gs_mixed_precision_remainders(mixed), grads, used,
                                               lr, grad_scale);
    GS_TRY(gs_optimizer_step_params(optimizer, which, num_which, (void *const *)options->masters,
                                    grads, used, lr, grad_scale));
    gs_mixed_precision_write_back_params(mixed, which, num_which);
    return gs_ok();
}

// Elements `part` of the master of segment `index`, which they lie in.
static gs_status read_part(const gs_mixed_precision *mixed, float *host, size_t index,
                           gs_segment part) {
    gs_device *device = mixed->options.device;
    gs_stream *stream = gs_device_stream(device);
    size_t offset = part.first - mixed->segments[index].first;
    if (!mixed->options.splits_masters)
        return gs_device_download(device, host, mixed->options.masters[index] + offset,
                                  part.count * sizeof *host);
    const uint16_t *values = mixed->split_values[index] + offset;
    const uint16_t *remainders = gs_mixed_precision_remainders(mixed)[index] + offset;
    for (size_t at = 0, count; at < part.count; at += count) {
        count = piece_of(part.count - at);
        gs_device_kernels(device)->join_master(stream, mixed->piece ? mixed->piece : host + at,
                                               values + at, remainders + at, count);
        GS_TRY(gs_stream_wait(stream, gs_deadline_in_seconds(PIECE_SECONDS)));
        if (mixed->piece)
            GS_TRY(gs_device_download(device, host + at, mixed->piece, count * sizeof *host));
    }
    return gs_ok();
}

static gs_status write_part(gs_mixed_precision *mixed, size_t index, gs_segment part,
                            const float *host) {
    gs_device *device = mixed->options.device;
    gs_stream *stream = gs_device_stream(device);
    size_t offset = part.first - mixed->segments[index].first;
    if (!mixed->options.splits_masters)
        return gs_device_upload(device, mixed->options.masters[index] + offset, host,
                                part.count * sizeof *host);
    uint16_t *values = mixed->split_values[index] + offset;
    uint16_t *remainders = gs_mixed_precision_remainders(mixed)[index] + offset;
    for (size_t at = 0, count; at < part.count; at += count) {
        count = piece_of(part.count - at);
        if (mixed->piece)
            GS_TRY(gs_device_upload(device, mixed->piece, host + at, count * sizeof *host));
        gs_device_kernels(device)->split_master(stream, values + at, remainders + at,
                                                mixed->piece ? mixed->piece : host + at, count);
        GS_TRY(gs_stream_wait(stream, gs_deadline_in_seconds(PIECE_SECONDS)));
    }
    return gs_ok();
}

// All of `range` has its masters here, before any of it is touched.
static gs_status check_range(const gs_mixed_precision *mixed, gs_segment range) {
    bool is_inside = range.tensor < mixed->options.num_params &&
                     range.first <= mixed->counts[range.tensor] &&
                     range.count <= mixed->counts[range.tensor] - range.first;
    size_t found = 0;
    for (size_t i = 0; i < mixed->num_segments && is_inside; i++)
        found += gs_segment_intersect(range, mixed->segments[i]).count;
    if (is_inside && found == range.count) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT,
                    "mixed precision: elements [%zu, %zu + %zu) of parameter %zu are not all here",
                    range.first, range.first, range.count, range.tensor);
}

gs_status gs_mixed_precision_read(const gs_mixed_precision *mixed, float *host, size_t param,
                                  size_t first, size_t count) {
    const gs_segment range = {param, first, count};
    GS_TRY(check_range(mixed, range));
    for (size_t i = 0; i < mixed->num_segments; i++) {
        gs_segment part = gs_segment_intersect(range, mixed->segments[i]);
        if (part.count) GS_TRY(read_part(mixed, host + (part.first - first), i, part));
    }
    return gs_ok();
}

gs_status gs_mixed_precision_write(gs_mixed_precision *mixed, size_t param, size_t first,
                                   const float *host, size_t count) {
    const gs_segment range = {param, first, count};
    GS_TRY(check_range(mixed, range));
    for (size_t i = 0; i < mixed->num_segments; i++) {
        gs_segment part = gs_segment_intersect(range, mixed->segments[i]);
        if (part.count) GS_TRY(write_part(mixed, i, part, host + (part.first - first)));
    }
    return gs_ok();
}

void *const *gs_mixed_precision_pass_grads(const gs_mixed_precision *mixed, void *const *main_grads,
                                           bool accumulate) {
    return accumulate ? (void *const *)mixed->pass_grads.tensors : main_grads;
}

void gs_mixed_precision_finish_grad(const gs_mixed_precision *mixed, void *const *main_grads,
                                    bool accumulate, size_t param) {
    const gs_mixed_precision_options *options = &mixed->options;
    void *const *pass_grads = gs_mixed_precision_pass_grads(mixed, main_grads, accumulate);
    gs_device_kernels(options->device)
        ->round(gs_device_stream(options->device), main_grads[param], pass_grads[param],
                options->dtype, mixed->counts[param], accumulate);
}
