// Whatever lies in a part file: an entry that is found for a segment is as long as the segment and inside the
// bytes. Segments are asked for by the names that the file itself has, "NAME@BEGIN" or whole.
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "rpc/checkpoint/part_entry.h"

static void look_up(const gs_safetensors *file, const gs_safetensor *entry, const uint8_t *data,
                    size_t bytes) {
    char name[200];
    gs_checkpoint_tensor tensor = {.name = name, .dtype = entry->dtype, .num_dims = 1};
    size_t element_bytes = gs_dtype_bytes(entry->dtype);
    const char *at = strrchr(entry->name, '@');
    if (!element_bytes || strlen(entry->name) >= sizeof name) return;
    gs_segment segment = {.count = entry->bytes / element_bytes};
    strcpy(name, entry->name);
    if (at) {
        name[at - entry->name] = '\0';
        segment.first = strtoul(at + 1, NULL, 10);
    }
    for (size_t more = 0; more < 2; more++) {
        const gs_safetensor *found;
        tensor.count = segment.count + segment.first + more;
        tensor.shape[0] = (int64_t)tensor.count;
        if (gs_part_entry_find(&found, file, &tensor, segment).code) continue;
        const uint8_t *from = found->data;
        if (found->bytes != segment.count * element_bytes) abort();
        if (found->bytes && (from < data || from + found->bytes > data + bytes)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    gs_safetensors *file;
    if (gs_safetensors_open_memory(&file, data, bytes).code) return 0;
    for (size_t i = 0; i < gs_safetensors_count(file); i++)
        look_up(file, gs_safetensors_at(file, i), data, bytes);
    gs_safetensors_close(file);
    return 0;
}
