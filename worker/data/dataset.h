// The contract of a data set: how many samples, fill one. Files are read with 64-bit offsets, and
// validated at open.
//
// Evaluation data that a job does not name is held out of its training data: the last twentieth of
// the samples, at least one global batch, at most half; nothing is held out when a job never
// evaluates. Synthetic data needs no such thing: evaluation draws from counters that training never
// uses.
//
// To add one: a file in worker/data/, a line in the table of data_source.c.
#ifndef WORKER_DATA_DATASET_H
#define WORKER_DATA_DATASET_H

#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/status.h"

typedef struct gs_dataset_options {
    const char *root;                 // the worker's data root
    const char *const *patterns;      // names with *, below root
    size_t num_patterns;
    const char *labels;               // idx: the label file, below root
    int64_t positions;                // tokens of a sample
    int64_t vocab;                    // ids must be below it
    int64_t row_features, classes;    // of a classifier
    int64_t synthetic_samples;        // synthetic: how many; 0: 65536
    uint64_t seed;
} gs_dataset_options;

typedef struct gs_dataset_shape {
    int64_t num_samples;
    int64_t positions;     // token sets: of a sample; classifiers: 1
    int64_t row_features;  // 0 for token sets
    gs_digest digest;      // names, sizes and headers: compared across ranks before step 1
    // Where each file's samples begin, and the last one's end: num_files + 1 of them. Borrows until close;
    // NULL: no files, or one for all.
    const int64_t *file_begins;
    size_t num_files;
} gs_dataset_shape;

typedef struct gs_dataset_ops {
    const char *name;  // "bytes", "token_shards", "idx", "synthetic"
    // NOT_FOUND for a pattern without files, DATA_LOSS for a wrong magic or size: file and reason named.
    gs_status (*open)(void **out, const gs_dataset_options *options, gs_dataset_shape *shape);
    // Sample `index` into one row: tokens and targets (positions each), or features and one target.
    // DATA_LOSS names file and position of a token ≥ vocab, or the file that was cut short. One
    // thread at a time.
    gs_status (*fill)(void *dataset, int64_t index, int32_t *tokens, float *features,
                      int32_t *targets);
    void (*close)(void *dataset);
} gs_dataset_ops;

extern const gs_dataset_ops gs_dataset_bytes, gs_dataset_token_shards, gs_dataset_idx,
    gs_dataset_synthetic;

// Files below `root` that match the patterns, sorted by name, symbolic links out of root refused.
// The list and its strings are the caller's: gs_file_list_release.
typedef struct gs_file_list {
    char **names;  // relative to root
    size_t count;
} gs_file_list;
GS_NODISCARD gs_status gs_file_list_find(gs_file_list *list, const char *root,
                                         const char *const *patterns, size_t num_patterns);
void gs_file_list_release(gs_file_list *list);

#endif
