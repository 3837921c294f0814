// Files of tokens cut into windows: a sample is positions + 1 tokens at stride positions, numbered
// over all files in name order. What stays after a file's last whole window is left out.
#ifndef WORKER_DATA_WINDOW_FILES_H
#define WORKER_DATA_WINDOW_FILES_H

#include "worker/data/dataset.h"
#include "worker/data/file_set.h"

typedef struct gs_window_files {
    gs_file_set set;
    int64_t positions, vocab;
} gs_window_files;

// What differs between the kinds of files.
typedef struct gs_window_kind {
    const char *name;     // for messages
    size_t header_bytes;  // seen by the digest
    int64_t least_vocab;
    // How many tokens a file holds, or what is wrong with it.
    gs_status (*count_tokens)(int64_t *tokens, const gs_mapped_file *file);
} gs_window_kind;

// The open slot of gs_dataset_ops; *out is a gs_window_files.
GS_NODISCARD gs_status gs_window_files_open(void **out, const gs_dataset_options *options,
                                            gs_dataset_shape *shape, const gs_window_kind *kind);
void gs_window_files_close(void *dataset);  // the close slot
// The file of window `index` and its first token in it.
const gs_mapped_file *gs_window_files_locate(const gs_window_files *data, int64_t index,
                                             int64_t *first_token);

#endif
