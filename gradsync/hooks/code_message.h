// What a rank sends of its numbers in 8 bits: their codes, then scale and zero of each segment. All ranks'
// messages are equally long and lie behind each other, in the memory of one all-gather.
#ifndef GRADSYNC_HOOKS_CODE_MESSAGE_H
#define GRADSYNC_HOOKS_CODE_MESSAGE_H

#include <stddef.h>

#include "core/dtype.h"
#include "gradsync/comm/collective.h"
#include "gradsync/hooks/comm_hook.h"
#include "kernels/kernels.h"

typedef struct gs_code_message {
    size_t count, segment_count;  // elements
    gs_dtype dtype;               // of the numbers
} gs_code_message;

size_t gs_code_message_bytes(const gs_code_message *message);
// Rank `rank`'s in the memory of all.
gs_quantized gs_code_message_at(const gs_code_message *message, void *messages, int rank);
// Of this rank's into that of all.
gs_collective gs_code_message_gather(const gs_code_message *message, void *messages, int rank);

// Room for each bucket of any plan in messages of `num_ranks` ranks, of which each has all elements or, with
// `is_shared`, a part of them. SIZE_MAX, which no hook gets, when there is no such number.
size_t gs_code_message_most_bytes(const gs_hook_setup *setup, size_t segment_count, int num_ranks,
                                  bool is_shared);

#endif
