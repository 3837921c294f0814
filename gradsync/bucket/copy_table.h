// Copies between gradients of the caller's own and buckets of a GPU: one launch for the members of
// a bucket instead of one each, from tables that are made with the layout. Where the host's memory
// is the device's there are none, and each tensor is copied by itself.
#ifndef GRADSYNC_BUCKET_COPY_TABLE_H
#define GRADSYNC_BUCKET_COPY_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/bucket/grad_layout.h"
#include "gradsync/bucket/separate_grad.h"
#include "gradsync/comm/work_stream.h"

typedef struct gs_copy_table {
    gs_device *device;  // NULL: there is none
    gs_cast_item *in;   // pinned: slot · num_params + place; tensor → slot
    gs_cast_item *out;  // pinned: place; result → tensor
    size_t
        *params;  // place → parameter: buckets in order of the plan, members by the tensor's type
    size_t *first;  // bucket → its first place, and one more
    int num_slots;
} gs_copy_table;

// For any plan; none for the host. Release after an error, too.
GS_NODISCARD gs_status gs_copy_table_init(gs_copy_table *table, size_t num_params, int num_slots,
                                          gs_device *device);
void gs_copy_table_release(gs_copy_table *table);
// After each change of the layout, with at most as many slots as it was made for.
void gs_copy_table_place(gs_copy_table *table, const gs_separate_grad *tensors,
                         const gs_grad_layout *layout);

// Members of bucket `index` whose flag is set: tensors → slot, results → tensors. Enqueued.
void gs_copy_table_in(const gs_copy_table *table, const gs_separate_grad *tensors,
                      const gs_grad_layout *layout, int slot, size_t index, const uint8_t *flags,
                      gs_work_stream on);
void gs_copy_table_out(const gs_copy_table *table, const gs_separate_grad *tensors,
                       const gs_grad_layout *layout, size_t index, const uint8_t *flags);

#endif
