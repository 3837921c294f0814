// Whatever a manifest or the records of parts say: the reader says what is wrong, or every element of every
// tensor is in exactly one part. A list of values is a list of records, an object is a manifest.
#include <stdlib.h>
#include <string.h>

#include "rpc/checkpoint/checkpoint_layout.h"
#include "rpc/checkpoint/part_record.h"
#include "tests/fuzz/fuzz.h"

static void read_layout(const gs_json *manifest) {
    gs_checkpoint_layout layout;
    if (gs_checkpoint_layout_parse(&layout, manifest).code) return;
    size_t next = 0;
    for (size_t t = 0; t < layout.num_tensors; t++) {
        size_t end = 0;
        for (; next < layout.num_pieces && layout.pieces[next].segment.tensor == t; next++) {
            const gs_checkpoint_piece *piece = &layout.pieces[next];
            if (piece->segment.first != end || piece->part >= layout.num_parts) abort();
            end += piece->segment.count;
        }
        if (end != layout.tensors[t].count) abort();
    }
    if (next != layout.num_pieces) abort();
    gs_checkpoint_layout_release(&layout);
}

static void join_records(const gs_json *list) {
    size_t num_parts = gs_json_count(list);
    gs_json **records = calloc(num_parts + 1, sizeof *records), *manifest = NULL;
    if (!records) abort();
    for (size_t i = 0; i < num_parts; i++)
        records[i] = (gs_json *)(uintptr_t)gs_json_at(list, i);
    if (!gs_part_records_join(&manifest, records, num_parts).code) read_layout(manifest);
    gs_json_release(manifest);
    free(records);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    gs_json *json;
    if (gs_json_parse(&json, (const char *)data, bytes).code) return 0;
    if (gs_json_type_of(json) == GS_JSON_ARRAY) join_records(json);
    else read_layout(json);
    gs_json_release(json);
    return 0;
}
