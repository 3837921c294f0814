#include "rpc/checkpoint/checkpoint_reader.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/directory.h"
#include "rpc/checkpoint/manifest_part.h"
#include "rpc/checkpoint/part_entry.h"
#include "rpc/checkpoint/safetensors.h"
#include "rpc/json/sealed_json.h"

#define NEWEST_FORMAT 2

struct gs_checkpoint_reader {
    gs_json *manifest;  // owned
    gs_checkpoint_layout layout;
    gs_safetensors **files;         // owned; one for each part
    const gs_safetensor **entries;  // owned; one for each piece of the layout
};

static gs_status check_format(const gs_json *manifest) {
    int64_t version = gs_json_int_or(manifest, "format_version", 0);
    if (version >= 1 && version <= NEWEST_FORMAT) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "checkpoint format %lld, this build reads 1 to %d",
                    (long long)version, NEWEST_FORMAT);
}

static gs_status check_parts(const gs_checkpoint_reader *reader, const gs_directory *directory) {
    const gs_json *parts = gs_json_get(reader->manifest, "parts");
    for (size_t i = 0; i < reader->layout.num_parts; i++) {
        char name[GS_CHECKPOINT_FILE_LEN];
        gs_manifest_part part;
        gs_checkpoint_part_name(name, i);
        GS_TRY(gs_manifest_part_read(&part, (gs_file_place){directory, name}));
        gs_status status = gs_manifest_part_check(&part, gs_json_at(parts, i));
        gs_manifest_part_release(&part);
        if (status.code) return status;
    }
    return gs_ok();
}

static gs_status open_parts(gs_checkpoint_reader *reader, const gs_directory *directory) {
    const gs_checkpoint_layout *layout = &reader->layout;
    reader->files = calloc(layout->num_parts + 1, sizeof(gs_safetensors *));
    reader->entries = calloc(layout->num_pieces + 1, sizeof(const gs_safetensor *));
    if (!reader->files || !reader->entries) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < layout->num_parts; i++) {
        char name[GS_CHECKPOINT_FILE_LEN];
        gs_checkpoint_part_name(name, i);
        GS_TRY(gs_safetensors_open_at(&reader->files[i], (gs_file_place){directory, name}));
    }
    for (size_t i = 0; i < layout->num_pieces; i++) {
        const gs_checkpoint_piece *piece = &layout->pieces[i];
        gs_status status =
            gs_part_entry_find(&reader->entries[i], reader->files[piece->part],
                               &layout->tensors[piece->segment.tensor], piece->segment);
        if (status.code) return gs_status_prefix(status, "part-%zu.safetensors", piece->part);
    }
    return gs_ok();
}

static gs_status open_in(gs_checkpoint_reader *reader, const gs_directory *directory) {
    GS_TRY(gs_sealed_json_read_at(&reader->manifest, (gs_file_place){directory, GS_CHECKPOINT_MANIFEST}));
    GS_TRY(check_format(reader->manifest));
    GS_TRY(gs_checkpoint_layout_parse(&reader->layout, reader->manifest));
    GS_TRY(check_parts(reader, directory));
    return open_parts(reader, directory);
}

static gs_status open_reader(gs_checkpoint_reader *reader, const char *path, int levels) {
    gs_directory directory;
    GS_TRY(gs_directory_open(&directory, path, levels));
    gs_status status = open_in(reader, &directory);
    gs_directory_close(&directory);
    return status;
}

gs_status gs_checkpoint_reader_open(gs_checkpoint_reader **out, const char *path, int levels) {
    gs_checkpoint_reader *reader = calloc(1, sizeof *reader);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    if (reader) status = open_reader(reader, path, levels);
    if (!status.code) {
        *out = reader;
        return status;
    }
    gs_checkpoint_reader_close(reader);
    const char *slash = strrchr(path, '/');
    return gs_status_prefix(status, "checkpoint %s", slash ? slash + 1 : path);
}

void gs_checkpoint_reader_close(gs_checkpoint_reader *reader) {
    if (!reader) return;
    for (size_t i = 0; reader->files && i < reader->layout.num_parts; i++)
        gs_safetensors_close(reader->files[i]);
    free(reader->files);
    free(reader->entries);
    gs_checkpoint_layout_release(&reader->layout);
    gs_json_release(reader->manifest);
    free(reader);
}

const gs_json *gs_checkpoint_reader_manifest(const gs_checkpoint_reader *reader) {
    return reader->manifest;
}

const gs_checkpoint_layout *gs_checkpoint_reader_layout(const gs_checkpoint_reader *reader) {
    return &reader->layout;
}

gs_status gs_checkpoint_reader_find(const gs_checkpoint_reader *reader, size_t *tensor,
                                    const char *name, size_t guess) {
    const gs_checkpoint_layout *layout = &reader->layout;
    for (size_t i = 0; i < layout->num_tensors; i++) {
        *tensor = (guess + i) % layout->num_tensors;
        if (strcmp(layout->tensors[*tensor].name, name) == 0) return gs_ok();
    }
    return gs_error(GS_INVALID_ARGUMENT, "the checkpoint has no tensor \"%s\"", name);
}

static size_t first_piece_of(const gs_checkpoint_layout *layout, size_t tensor) {
    size_t low = 0, high = layout->num_pieces;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (layout->pieces[middle].segment.tensor < tensor) low = middle + 1;
        else high = middle;
    }
    return low;
}

gs_status gs_checkpoint_reader_read(const gs_checkpoint_reader *reader, size_t tensor, void *to,
                                    size_t begin, size_t bytes) {
    const gs_checkpoint_layout *layout = &reader->layout;
    size_t element_bytes = gs_dtype_bytes(layout->tensors[tensor].dtype);
    char *next = to;
    for (size_t i = first_piece_of(layout, tensor); bytes && i < layout->num_pieces; i++) {
        const gs_checkpoint_piece *piece = &layout->pieces[i];
        assert(piece->segment.tensor == tensor);  // bytes of it alone are asked for
        size_t first = piece->segment.first * element_bytes;
        size_t end = first + piece->segment.count * element_bytes;
        if (end <= begin) continue;
        size_t here = end - begin < bytes ? end - begin : bytes;
        gs_status status = gs_safetensors_read(reader->files[piece->part], reader->entries[i], next,
                                               begin - first, here);
        if (status.code)
            return gs_status_prefix(status, "part-%zu.safetensors: tensor \"%.100s\"", piece->part,
                                    layout->tensors[tensor].name);
        next += here;
        begin += here;
        bytes -= here;
    }
    return gs_ok();
}
