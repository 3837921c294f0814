// The safetensors file format, and nothing else: read as hostile input, written atomically.
//
// Source: the format's own description (8-byte header length, JSON header, data), with the checks of its
// reference reader: no holes, no overlap, lengths against shapes and the file before anything is allocated.
#ifndef WORKER_CHECKPOINT_SAFETENSORS_H
#define WORKER_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "core/directory.h"
#include "core/dtype.h"
#include "core/param_spec.h"
#include "core/status.h"

typedef struct gs_safetensors gs_safetensors;  // an open file

typedef struct gs_safetensor {
    const char *name;
    const char *dtype_name;  // "F32"
    gs_dtype dtype;          // GS_DTYPE_UNSET for types we do not compute with
    int num_dims;
    int64_t shape[GS_MAX_DIMS];
    size_t begin, bytes;  // in the data of the file
    // On any byte: copy before reading wider than bytes. NULL where the file is not in memory.
    const void *data;
} gs_safetensor;

// Only the header is brought to memory: gs_safetensors_read. DATA_LOSS or INVALID_ARGUMENT says
// what is wrong and with which tensor.
GS_NODISCARD gs_status gs_safetensors_open(gs_safetensors **out, const char *path);
GS_NODISCARD gs_status gs_safetensors_open_at(gs_safetensors **out, gs_file_place place);
// With all of its data in memory; for tests.
GS_NODISCARD gs_status gs_safetensors_load(gs_safetensors **out, const char *path);
// The same checks over bytes in memory (borrowed until close); for tests and fuzzing.
GS_NODISCARD gs_status gs_safetensors_open_memory(gs_safetensors **out, const void *data,
                                                  size_t bytes);
void gs_safetensors_close(gs_safetensors *file);
// Bytes [begin, begin + bytes) of a tensor. DATA_LOSS: the file was cut short since it was opened,
// which would kill a process that had it mapped.
GS_NODISCARD gs_status gs_safetensors_read(const gs_safetensors *file, const gs_safetensor *tensor,
                                           void *to, size_t begin, size_t bytes);
size_t gs_safetensors_count(const gs_safetensors *file);
const gs_safetensor *gs_safetensors_at(const gs_safetensors *file, size_t index);
const gs_safetensor *gs_safetensors_find(const gs_safetensors *file, const char *name);
const char *gs_safetensors_metadata(const gs_safetensors *file, const char *key);  // NULL: absent

typedef struct gs_safetensors_entry {
    const char *name;
    gs_dtype dtype;
    int num_dims;
    int64_t shape[GS_MAX_DIMS];
    const void *data;
} gs_safetensors_entry;

typedef struct gs_safetensors_metadata_entry {
    const char *key, *value;
} gs_safetensors_metadata_entry;

// Writes `path` by a temporary name, fsync, rename and fsync of the directory; data 64-byte aligned.
// RESOURCE_EXHAUSTED when the disk is full: nothing is left behind. *bytes and *digest (of the whole file)
// may be NULL.
GS_NODISCARD gs_status gs_safetensors_write(const char *path, const gs_safetensors_entry *entries,
                                            size_t num_entries,
                                            const gs_safetensors_metadata_entry *metadata,
                                            size_t num_metadata, size_t *bytes,
                                            gs_digest *digest);
GS_NODISCARD gs_status gs_safetensors_write_at(gs_file_place place, const gs_safetensors_entry *entries, size_t num_entries,
                                               const gs_safetensors_metadata_entry *metadata, size_t num_metadata);

// What a file is made of when its data is not in memory: entries' data is not looked at.
typedef struct gs_safetensors_source {
    const gs_safetensors_entry *entries;
    size_t num_entries;
    const gs_safetensors_metadata_entry *metadata;
    size_t num_metadata;
    void *ctx;
    // Bytes [begin, begin + bytes) of an entry, 1 MiB at most.
    gs_status (*read)(void *ctx, size_t entry, void *to, size_t begin, size_t bytes);
} gs_safetensors_source;

GS_NODISCARD gs_status gs_safetensors_write_source_at(gs_file_place place, const gs_safetensors_source *source);
// Writes `path` in the same way, piece by piece. ALREADY_EXISTS: something has that name, and keeps it.
GS_NODISCARD gs_status gs_safetensors_create(const char *path, const gs_safetensors_source *source,
                                             size_t *bytes);

#endif
