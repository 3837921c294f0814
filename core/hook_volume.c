#include "core/hook_volume.h"

#include <math.h>
#include <string.h>

#include "core/low_rank.h"
#include "core/memory.h"

typedef struct bucket_shape {
    const gs_hook_rule *rule;
    const gs_param_spec *params;
    const size_t *members;
    size_t num_members;
    uint64_t room;           // elements, padding included
    uint64_t elements;       // without
    uint64_t element_bytes;  // of one in the bucket
    uint64_t float_bytes;    // of one that is summed, on its way
} bucket_shape;

// What hooks have constants for.
#define BYTES_MOST_RANKS 8      // in larger worlds "int8" sends plain sums
#define CHANNEL_COUNT 512       // elements of a row
#define SEGMENT_COUNT 65536     // of a segment of "uint8_gather"
#define LEAST_PART 4096         // elements of a rank's part, below which it sends plain sums
#define PART_BOUNDARY 64

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

// Two factors in the place of each matrix that pays; what travels as it is takes its padding along.
static void count_factors(gs_hook_volume *volume, const bucket_shape *bucket) {
    volume->elements_sent = 0;
    for (size_t i = 0; i < bucket->num_members; i++) {
        const gs_param_spec *param = &bucket->params[bucket->members[i]];
        gs_low_rank shape = gs_low_rank_of(param, bucket->rule->rank, bucket->rule->min_compression_rate);
        uint64_t sent = gs_low_rank_sent(shape);
        volume->elements_sent += sent;
        volume->num_compressed += shape.rank > 0;
        volume->wire_bytes +=
            (shape.rank ? sent : room_of(param, bucket->element_bytes)) * bucket->float_bytes;
    }
}

// Two factors of the square that the whole bucket makes.
static void count_square(gs_hook_volume *volume, const bucket_shape *bucket) {
    uint64_t side = gs_low_rank_side((size_t)bucket->room), rank = (uint64_t)bucket->rule->rank;
    volume->elements_sent = 2 * side * (rank < side ? rank : side);
    volume->num_compressed = bucket->num_members;
    volume->wire_bytes = volume->elements_sent * bucket->float_bytes;
}

// Of as many bytes to every other rank.
static uint64_t to_all(const bucket_shape *bucket, uint64_t bytes) {
    return bytes * (uint64_t)bucket->rule->world_size / 2;
}

// A byte for each, and two numbers for each segment.
static uint64_t coded_bytes(const bucket_shape *bucket, uint64_t count, uint64_t segment_count) {
    uint64_t segments = (count + segment_count - 1) / segment_count;
    return gs_round_up((size_t)count, 16) +
           gs_round_up((size_t)(2 * segments * bucket->element_bytes), 16);
}

static void count_codes(gs_hook_volume *volume, const bucket_shape *bucket, uint64_t segment_count) {
    if (bucket->rule->world_size > BYTES_MOST_RANKS) {
        count_sums(volume, bucket);
        return;
    }
    volume->num_compressed = bucket->num_members;
    volume->wire_bytes = to_all(bucket, coded_bytes(bucket, bucket->room, segment_count));
}

static void count_bytes(gs_hook_volume *volume, const bucket_shape *bucket) {
    count_codes(volume, bucket, bucket->room);
}

static void count_rows(gs_hook_volume *volume, const bucket_shape *bucket) {
    count_codes(volume, bucket, CHANNEL_COUNT);
}

// Sums of a part, its codes, and what is left when all have equal parts.
static void count_parts(gs_hook_volume *volume, const bucket_shape *bucket) {
    uint64_t ranks = (uint64_t)bucket->rule->world_size;
    uint64_t part = ranks ? bucket->room / ranks / PART_BOUNDARY * PART_BOUNDARY : 0;
    if (ranks < 2 || part < LEAST_PART) {
        count_sums(volume, bucket);
        return;
    }
    volume->num_compressed = bucket->num_members;
    volume->wire_bytes =
        to_all(bucket, part * bucket->float_bytes + coded_bytes(bucket, part, SEGMENT_COUNT)) +
        (bucket->room - ranks * part) * bucket->element_bytes;
}

// Values and places.
static void count_largest(gs_hook_volume *volume, const bucket_shape *bucket) {
    double wanted = ceil(bucket->rule->ratio * (double)bucket->elements);
    uint64_t chosen = wanted < (double)bucket->elements ? (uint64_t)wanted : bucket->elements;
    uint64_t values = gs_round_up((size_t)(chosen * bucket->float_bytes), sizeof(uint32_t));
    volume->num_compressed = bucket->num_members;
    volume->elements_sent = chosen;
    volume->wire_bytes =
        to_all(bucket, gs_round_up((size_t)(values + chosen * sizeof(uint32_t)), GS_LINE_BYTES));
}

// A bit for each, padding included at its most, and two means for each gradient.
static void count_signs(gs_hook_volume *volume, const bucket_shape *bucket) {
    uint64_t bits = bucket->elements + 16 * bucket->num_members;
    uint64_t means = gs_round_up((size_t)(2 * bucket->num_members * bucket->element_bytes), 8);
    volume->num_compressed = bucket->num_members;
    uint64_t message = gs_round_up((size_t)(means + bits / 8 + 1), GS_LINE_BYTES);
    volume->wire_bytes = to_all(bucket, message);
    volume->elements_sent = message / bucket->element_bytes;
}

// Ranks keep their gradients.
static void count_nothing(gs_hook_volume *volume, const bucket_shape *bucket) {
    (void)bucket;
    volume->elements_sent = 0;
}

// Sums among a rank's neighbours, where it has any; who is all that there is goes by plain sums.
static void count_neighbours(gs_hook_volume *volume, const bucket_shape *bucket) {
    if (bucket->rule->local_ranks == 1 && bucket->rule->world_size > 1) count_nothing(volume, bucket);
    else count_sums(volume, bucket);
}

static const struct {
    const char *kind;
    void (*count)(gs_hook_volume *volume, const bucket_shape *bucket);
} counts[] = {
    {"allreduce", count_sums},       {"fp16", count_16_bits},            {"bf16", count_16_bits},
    {"powersgd", count_factors},     {"batched_powersgd", count_square}, {"int8", count_bytes},
    {"int8_channel", count_rows},    {"uint8_gather", count_parts},      {"topk", count_largest},
    {"onebit", count_signs},         {"noop", count_nothing},
    {"local_sgd", count_neighbours},
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
    bucket.elements = volume.elements;
    bucket.element_bytes = element_bytes;
    bucket.float_bytes = rule->wire_dtype ? gs_dtype_bytes(rule->wire_dtype) : element_bytes;
    volume.elements_sent = volume.elements;
    void (*count)(gs_hook_volume *, const bucket_shape *) = count_sums;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (strcmp(counts[i].kind, rule->kind) == 0) count = counts[i].count;
    if (volume.elements) count(&volume, &bucket);
    return volume;
}
