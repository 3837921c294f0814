// The files of a data set, and which file holds which sample: samples are numbered over all
// files in name order.
#ifndef WORKER_DATA_FILE_SET_H
#define WORKER_DATA_FILE_SET_H

#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/status.h"
#include "worker/data/dataset.h"
#include "worker/data/data_file.h"

typedef struct gs_file_set {
    gs_data_file *files;  // owned
    size_t count;
    int64_t *first_sample; // owned; count + 1 of them, filled by gs_file_set_number
    int64_t num_samples;
} gs_file_set; // {0} is closed

GS_NODISCARD gs_status gs_file_set_open(gs_file_set *set, const gs_dataset_options *options);
void gs_file_set_close(gs_file_set *set);

// Numbers the samples: samples_of says how many a file holds, or what is wrong with it.
// INVALID_ARGUMENT when there are none at all.
GS_NODISCARD gs_status gs_file_set_number(gs_file_set *set,
                                          gs_status (*samples_of)(void *ctx, int64_t *samples,
                                                                  const gs_data_file *file),
                                          void *ctx);
// The file of sample `index` and its number inside that file.
const gs_data_file *gs_file_set_locate(const gs_file_set *set, int64_t index, int64_t *within);

// Names, sizes and the first header_bytes of each file, and contents: all of them up to 16 MiB, of more as much in blocks of 4 KiB, evenly
// spread over all files.
GS_NODISCARD gs_status gs_file_set_digest(gs_digest *digest, const gs_file_set *set,
                                          size_t header_bytes);

#endif
