#include "rpc/checkpoint/part_entry.h"

#include <stdio.h>
#include <string.h>

void gs_part_entry_name(char name[GS_PART_ENTRY_NAME_LEN], const char *tensor, size_t first,
                        bool is_whole) {
    if (is_whole) snprintf(name, GS_PART_ENTRY_NAME_LEN, "%s", tensor);
    else snprintf(name, GS_PART_ENTRY_NAME_LEN, "%.*s@%zu", GS_PART_ENTRY_NAME_LEN - 24, tensor, first);
}

static bool is_segment(const gs_safetensor *entry, const gs_checkpoint_tensor *tensor,
                       gs_segment segment) {
    if (!entry || entry->dtype != tensor->dtype ||
        entry->bytes != segment.count * gs_dtype_bytes(tensor->dtype))
        return false;
    if (segment.count != tensor->count) return entry->num_dims == 1;
    return entry->num_dims == tensor->num_dims &&
           memcmp(entry->shape, tensor->shape,
                  (size_t)tensor->num_dims * sizeof *tensor->shape) == 0;
}

gs_status gs_part_entry_find(const gs_safetensor **entry, const gs_safetensors *file,
                            const gs_checkpoint_tensor *tensor, gs_segment segment) {
    char name[GS_PART_ENTRY_NAME_LEN];
    gs_part_entry_name(name, tensor->name, segment.first, segment.count == tensor->count);
    *entry = gs_safetensors_find(file, name);
    if (is_segment(*entry, tensor, segment)) return gs_ok();
    return gs_error(GS_DATA_LOSS, "tensor \"%.100s\": %zu elements from %zu on are %s",
                    tensor->name, segment.count, segment.first,
                    *entry ? "something else" : "not in it");
}
