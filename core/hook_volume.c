#include "core/hook_volume.h"

#include <string.h>

#include "core/low_rank.h"
#include "core/memory.h"

typedef struct bucket_shape {
    const gs_hook_rule *rule;
    const gs_param_spec *params;
    const size_t *members;
    size_t num_members;
    uint64_t room;         // elements, padding included
    uint64_t float_bytes;  // of one that is summed, on its way
} bucket_shape;

// A gradient begins on a line.
static uint64_t room_of(const gs_param_spec *param, size_t element_bytes) {
    return param->sparse ? 0 : gs_round_up(gs_param_spec_grad_bytes(param), GS_LINE_BYTES) / element_bytes;
}

static void count_sums(gs_hook_volume *volume, const bucket_shape *bucket) {
    volume->wire_bytes = bucket->room * bucket->float_bytes;
}

static void count_16_bits(gs_hook_volume *volume, const bucket_shape *bucket) {
    volume->wire_bytes = bucket->room * 2;
    volume->num_compressed = bucket->num_members;
}

// Two factors in the place of each matrix that pays.
static void count_factors(gs_hook_volume *volume, const bucket_shape *bucket) {
    volume->elements_sent = 0;
    for (size_t i = 0; i < bucket->num_members; i++) {
        const gs_param_spec *param = &bucket->params[bucket->members[i]];
        gs_low_rank shape = gs_low_rank_of(param, bucket->rule->rank, bucket->rule->min_compression_rate);
        uint64_t sent = gs_low_rank_sent(shape);
        volume->elements_sent += sent;
        volume->num_compressed += shape.rank > 0;
        volume->wire_bytes += sent * bucket->float_bytes;
    }
}

// Two factors of the square that the whole bucket makes.
static void count_square(gs_hook_volume *volume, const bucket_shape *bucket) {
    uint64_t side = gs_low_rank_side((size_t)bucket->room), rank = (uint64_t)bucket->rule->rank;
    volume->elements_sent = 2 * side * (rank < side ? rank : side);
    volume->num_compressed = bucket->num_members;
    volume->wire_bytes = volume->elements_sent * bucket->float_bytes;
}

static const struct {
    const char *kind;
    void (*count)(gs_hook_volume *volume, const bucket_shape *bucket);
} counts[] = {
    {"allreduce", count_sums},       {"fp16", count_16_bits},            {"bf16", count_16_bits},
    {"powersgd", count_factors},     {"batched_powersgd", count_square},
};

gs_hook_volume gs_hook_volume_of(const gs_hook_rule *rule, const gs_param_spec *params,
                                 const size_t *members, size_t num_members) {
    gs_hook_volume volume = {0};
    size_t element_bytes = sizeof(float);
    bucket_shape bucket = {
        .rule = rule, .params = params, .members = members, .num_members = num_members};
    for (size_t i = 0; i < num_members; i++) {
        const gs_param_spec *param = &params[members[i]];
        if (param->dtype == GS_FP64) element_bytes = sizeof(double);
        if (param->sparse) continue;  // its rows travel apart
        bucket.room += room_of(param, element_bytes);
        volume.elements += gs_param_spec_count(param);
    }
    bucket.float_bytes = rule->wire_dtype ? gs_dtype_bytes(rule->wire_dtype) : element_bytes;
    volume.elements_sent = volume.elements;
    void (*count)(gs_hook_volume *, const bucket_shape *) = count_sums;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (strcmp(counts[i].kind, rule->kind) == 0) count = counts[i].count;
    if (volume.elements) count(&volume, &bucket);
    return volume;
}
