#include "gradsync/hooks/code_message.h"

#include "core/memory.h"
#include "gradsync/hooks/hook_calls.h"

// Of codes and of scales: whole vectors, and doubles lie where they may.
#define BOUNDARY_BYTES ((size_t)16)

static size_t scales_bytes(const gs_code_message *message) {
    size_t segments = message->count / message->segment_count +
                      (message->count % message->segment_count != 0);
    return gs_round_up(2 * gs_dtype_bytes(message->dtype) * segments, BOUNDARY_BYTES);
}

static size_t codes_bytes(const gs_code_message *message) {
    return gs_round_up(message->count, BOUNDARY_BYTES);
}

size_t gs_code_message_bytes(const gs_code_message *message) {
    return codes_bytes(message) + scales_bytes(message);
}

gs_quantized gs_code_message_at(const gs_code_message *message, void *messages, int rank) {
    uint8_t *own = (uint8_t *)messages + (size_t)rank * gs_code_message_bytes(message);
    return (gs_quantized){.codes = own,
                          .scales = own + codes_bytes(message),
                          .count = message->count,
                          .segment_count = message->segment_count,
                          .dtype = message->dtype};
}

gs_collective gs_code_message_gather(const gs_code_message *message, void *messages, int rank) {
    return (gs_collective){.kind = GS_ALLGATHER,
                           .send = gs_code_message_at(message, messages, rank).codes,
                           .recv = messages,
                           .count = gs_code_message_bytes(message),
                           .dtype = GS_U8};
}

// Scales take up to a boundary for each segment; a message has a segment that is not full, and two ends.
size_t gs_code_message_most_bytes(const gs_hook_setup *setup, size_t segment_count, int num_ranks,
                                  bool is_shared) {
    size_t once = gs_hook_most_bytes(setup, 1), bytes, ends;
    if (once > SIZE_MAX / 4) return SIZE_MAX;
    once += once / (segment_count / BOUNDARY_BYTES);
    ends = gs_round_up(3 * BOUNDARY_BYTES * (size_t)num_ranks, GS_HOOK_PLACE_BYTES);
    if (__builtin_mul_overflow(once, is_shared ? 1 : (size_t)num_ranks, &bytes) ||
        __builtin_mul_overflow(ends + GS_HOOK_PLACE_BYTES, setup->num_params, &ends) ||
        __builtin_add_overflow(bytes, ends, &bytes))
        return SIZE_MAX;
    return bytes;
}
