// Whatever lies in a checkpoint: the reader says what is wrong, or every tensor lies inside the
// bytes.
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "rpc/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    gs_safetensors *file;
    if (gs_safetensors_open_memory(&file, data, bytes).code) return 0;
    size_t total = 0;
    for (size_t i = 0; i < gs_safetensors_count(file); i++) {
        const gs_safetensor *tensor = gs_safetensors_at(file, i);
        const uint8_t *from = tensor->data;
        if (tensor->bytes && (from < data || from + tensor->bytes > data + bytes)) abort();
        for (size_t b = 0; b < tensor->bytes; b++) total += from[b];
        if (gs_safetensors_find(file, tensor->name) != tensor) abort();
    }
    (void)gs_safetensors_metadata(file, "step");
    gs_safetensors_close(file);
    return total == SIZE_MAX;
}
