// What ranks tell each other before rows travel: samples, how many rows each has, and which. One
// all-gather of fixed size, whatever there is to say.
#ifndef GRADSYNC_SPARSE_ROW_MESSAGES_H
#define GRADSYNC_SPARSE_ROW_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "gradsync/sparse/row_set.h"

typedef struct gs_row_messages {
    int world_size;
    size_t most_rows;  // that a rank may have
    bool has_indices;  // no: all ranks know them, and none travel
    int32_t *own;      // this rank's message
    int32_t *inbox;    // messages, rank after rank
    size_t num_words;  // of a message
} gs_row_messages;

GS_NODISCARD gs_status gs_row_messages_init(gs_row_messages *messages, size_t most_rows,
                                            bool has_indices, int world_size);
void gs_row_messages_release(gs_row_messages *messages);

static inline size_t gs_row_messages_bytes(const gs_row_messages *messages) {
    return messages->num_words * sizeof(int32_t);  // of one
}

// Tells which rows this rank has. Never waits; what others told is there when *work is done.
GS_NODISCARD gs_status gs_row_messages_post(gs_row_messages *messages, gs_work *work,
                                            const gs_row_set *rows, int64_t samples, gs_comm *comm,
                                            int64_t step);
// What came: samples of all ranks, and, where indices travel, their sorted union in `all`, which
// has room for what all ranks may have. DATA_LOSS names the rank whose words make no sense.
GS_NODISCARD gs_status gs_row_messages_read(const gs_row_messages *messages, int64_t *samples,
                                            gs_row_set *all);
// After read.
size_t gs_row_messages_count(const gs_row_messages *messages, int rank);
const int32_t *gs_row_messages_indices(const gs_row_messages *messages, int rank);

#endif
