#include "gradsync/sparse/row_messages.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

// The head of a message; indices of rows behind it.
typedef struct message_head {
    int64_t samples;
    int32_t count, unused;
} message_head;
#define HEAD_WORDS (sizeof(message_head) / sizeof(int32_t))

gs_status gs_row_messages_init(gs_row_messages *messages, size_t most_rows, bool has_indices,
                               int world_size) {
    size_t num_words = HEAD_WORDS + (has_indices ? most_rows : 0);
    *messages = (gs_row_messages){.world_size = world_size,
                                  .most_rows = most_rows,
                                  .has_indices = has_indices,
                                  // A message starts on eight bytes.
                                  .num_words = gs_round_up(num_words, 2)};
    messages->own = calloc(messages->num_words, sizeof *messages->own);
    messages->inbox = calloc(messages->num_words * (size_t)world_size, sizeof *messages->inbox);
    if (messages->own && messages->inbox) return gs_ok();
    return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
}

void gs_row_messages_release(gs_row_messages *messages) {
    free(messages->own);
    free(messages->inbox);
    *messages = (gs_row_messages){0};
}

gs_status gs_row_messages_post(gs_row_messages *messages, gs_work *work, const gs_row_set *rows,
                               int64_t samples, gs_comm *comm, int64_t step) {
    const message_head head = {.samples = samples, .count = (int32_t)rows->count};
    memcpy(messages->own, &head, sizeof head);
    if (messages->has_indices && rows->count)
        memcpy(messages->own + HEAD_WORDS, rows->rows, rows->count * sizeof *rows->rows);
    return gs_comm_post(comm, work,
                        &(gs_collective){.kind = GS_ALLGATHER,
                                         .send = messages->own,
                                         .recv = messages->inbox,
                                         .count = messages->num_words,
                                         .dtype = GS_I32,
                                         .step = step,
                                         .bucket = -1});
}

static const int32_t *message_of(const gs_row_messages *messages, int rank) {
    return messages->inbox + (size_t)rank * messages->num_words;
}

static message_head head_of(const gs_row_messages *messages, int rank) {
    message_head head;
    memcpy(&head, message_of(messages, rank), sizeof head);
    return head;
}

size_t gs_row_messages_count(const gs_row_messages *messages, int rank) {
    return (size_t)head_of(messages, rank).count;
}

const int32_t *gs_row_messages_indices(const gs_row_messages *messages, int rank) {
    return message_of(messages, rank) + HEAD_WORDS;
}

gs_status gs_row_messages_read(const gs_row_messages *messages, int64_t *samples, gs_row_set *all) {
    *samples = 0;
    for (int r = 0; r < messages->world_size; r++) {
        const message_head head = head_of(messages, r);
        if (head.count < 0 || (size_t)head.count > messages->most_rows)
            return gs_error(GS_DATA_LOSS, "rank %d says it has %d rows", r, (int)head.count);
        *samples += head.samples;
        const int32_t *indices = gs_row_messages_indices(messages, r);
        for (size_t i = 0; messages->has_indices && i < (size_t)head.count; i++) {
            if (indices[i] < 0 || (size_t)indices[i] >= all->num_rows)
                return gs_error(GS_DATA_LOSS, "rank %d sends row %d", r, (int)indices[i]);
            gs_row_set_add(all, indices[i]);
        }
    }
    if (messages->has_indices) gs_row_set_sort(all);
    return gs_ok();
}
