// Files of tokens cut into windows: a sample is positions + 1 tokens at stride positions, numbered
// over all files in name order. What stays after a file's last whole window is left out.
#ifndef WORKER_DATA_WINDOW_FILES_H
#define WORKER_DATA_WINDOW_FILES_H

#include "worker/data/dataset.h"
#include "worker/data/file_set.h"

typedef struct gs_window_files {
    gs_file_set set;
    int64_t positions, vocab;
    size_t header_bytes;
    uint8_t *token_bytes;  // owned; of each file
    uint8_t *raw;          // owned; the window that was read last
} gs_window_files;

// What differs between the kinds of files.
typedef struct gs_window_kind {
    const char *name;     // for messages
    size_t header_bytes;  // before the tokens; seen by the digest
    int64_t least_vocab;
    // How many tokens a file holds and the bytes of one (4 at most), or what is wrong with it.
    gs_status (*count_tokens)(int64_t *tokens, uint8_t *token_bytes, const gs_data_file *file);
} gs_window_kind;

typedef struct gs_window {
    const gs_data_file *file;
    int64_t first_token;  // in the file
    size_t token_bytes;
    const uint8_t *tokens;  // positions + 1 of them, until the next read
} gs_window;

// The open slot of gs_dataset_ops; *out is a gs_window_files.
GS_NODISCARD gs_status gs_window_files_open(void **out, const gs_dataset_options *options,
                                            gs_dataset_shape *shape, const gs_window_kind *kind);
void gs_window_files_close(void *dataset);  // the close slot
GS_NODISCARD gs_status gs_window_files_read(gs_window *window, gs_window_files *data,
                                            int64_t index);

#endif
