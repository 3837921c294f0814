#include "worker/data/file_set.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_HEADER_BYTES 1024
// What is compared of the files' contents: 16 MiB.
#define BLOCK_BYTES 4096
#define MOST_BLOCKS 4096

gs_status gs_file_set_open(gs_file_set *set, const gs_dataset_options *options) {
    *set = (gs_file_set){0};
    gs_file_list list;
    GS_TRY(gs_file_list_find(&list, options->root, options->patterns, options->num_patterns));

    gs_status status = gs_ok();
    int root_fd = open(options->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0) status = gs_error_from_errno(errno, "data directory %s", options->root);
    set->files = calloc(list.count + 1, sizeof *set->files);
    set->first_sample = calloc(list.count + 1, sizeof *set->first_sample);
    if (!status.code && (!set->files || !set->first_sample))
        status = gs_error(GS_RESOURCE_EXHAUSTED, "data files: out of memory");
    for (size_t i = 0; i < list.count && !status.code; i++) {
        status = gs_data_file_open(&set->files[i], root_fd, list.names[i]);
        if (!status.code) set->count++;
    }
    if (root_fd >= 0) close(root_fd);
    gs_file_list_release(&list);
    if (status.code) gs_file_set_close(set);
    return status;
}

void gs_file_set_close(gs_file_set *set) {
    if (!set) return;
    for (size_t i = 0; i < set->count; i++) gs_data_file_close(&set->files[i]);
    free(set->files);
    free(set->first_sample);
    *set = (gs_file_set){0};
}

gs_status gs_file_set_number(gs_file_set *set,
                             gs_status (*samples_of)(void *ctx, int64_t *samples,
                                                     const gs_data_file *file),
                             void *ctx) {
    int64_t total = 0;
    for (size_t i = 0; i < set->count; i++) {
        int64_t samples = 0;
        GS_TRY(samples_of(ctx, &samples, &set->files[i]));
        set->first_sample[i] = total;
        total += samples;
    }
    set->first_sample[set->count] = total;
    set->num_samples = total;
    if (total == 0)
        return gs_error(GS_INVALID_ARGUMENT, "%s%s: too short for a single sample",
                        set->files[0].name, set->count > 1 ? " and the other data files" : "");
    return gs_ok();
}

const gs_data_file *gs_file_set_locate(const gs_file_set *set, int64_t index, int64_t *within) {
    size_t low = 0, high = set->count; // first_sample[low] ≤ index < first_sample[high]
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (set->first_sample[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    *within = index - set->first_sample[low];
    return &set->files[low];
}

static gs_status add_file(gs_digest_stream *stream, const gs_data_file *file, size_t header_bytes) {
    uint8_t header[MOST_HEADER_BYTES];
    uint64_t bytes = file->bytes;
    gs_digest_stream_add(stream, file->name, strlen(file->name) + 1);
    gs_digest_stream_add(stream, &bytes, sizeof bytes);
    if (header_bytes > file->bytes) header_bytes = file->bytes;
    GS_TRY(gs_data_file_read(file, header, 0, header_bytes));
    gs_digest_stream_add(stream, header, header_bytes);
    return gs_ok();
}

// Blocks of what lies in all files, one behind the other: all of them, or as many as may be read, evenly spread. One that begins in a
// file ends with it at the latest.
static gs_status add_blocks(gs_digest_stream *stream, const gs_file_set *set) {
    uint8_t block[BLOCK_BYTES];
    uint64_t total = 0, end = 0;  // of the file at hand
    for (size_t i = 0; i < set->count; i++) total += set->files[i].bytes;
    uint64_t stride = total / MOST_BLOCKS > BLOCK_BYTES ? total / MOST_BLOCKS : BLOCK_BYTES;
    uint64_t next = 0;
    for (size_t i = 0; i < set->count; i++) {
        const gs_data_file *file = &set->files[i];
        uint64_t begin = end;
        end += file->bytes;
        for (; next < end; next += stride) {
            uint64_t at = next - begin, rest = file->bytes - at;
            size_t bytes = rest < BLOCK_BYTES ? (size_t)rest : BLOCK_BYTES;
            GS_TRY(gs_data_file_read(file, block, (size_t)at, bytes));
            gs_digest_stream_add(stream, block, bytes);
            if (stride == BLOCK_BYTES && rest <= BLOCK_BYTES) {
                next = end;
                break;
            }
        }
    }
    return gs_ok();
}

gs_status gs_file_set_digest(gs_digest *digest, const gs_file_set *set, size_t header_bytes) {
    assert(header_bytes <= MOST_HEADER_BYTES);
    gs_digest_stream *stream = gs_digest_stream_create();
    if (!stream) return gs_error(GS_RESOURCE_EXHAUSTED, "data files: out of memory");
    gs_status status = gs_ok();
    for (size_t i = 0; i < set->count && !status.code; i++)
        status = add_file(stream, &set->files[i], header_bytes);
    if (!status.code) status = add_blocks(stream, set);
    if (!status.code) *digest = gs_digest_stream_value(stream);
    gs_digest_stream_destroy(stream);
    return status;
}
