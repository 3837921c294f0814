// The parameters of one launch (gs_kernels.adamw_many), while launches of earlier steps may still be
// reading theirs: the host writes one of two pinned tables by turns, kernels read a copy in the device's
// memory. Where the host's memory is the device's there is one table and no copy.
#ifndef GRADSYNC_OPTIM_LAUNCH_TABLE_H
#define GRADSYNC_OPTIM_LAUNCH_TABLE_H

#include <stddef.h>

#include "core/status.h"
#include "kernels/device.h"

typedef struct gs_launch_table {
    gs_device *device;  // borrowed
    gs_adamw_item *items[2];
    gs_event *copied[2];      // the copy of each has been taken; NULL on the host
    gs_adamw_item *resident;  // what kernels read; NULL: items[0]
    int writing;
} gs_launch_table;

// Room for `max_items`; nothing is allocated after that. Release after an error, too.
GS_NODISCARD gs_status gs_launch_table_init(gs_launch_table *table, size_t max_items,
                                            gs_device *device);
void gs_launch_table_release(gs_launch_table *table);

// Where to write the next launch's items. Waits only when the launch before the last has not begun.
GS_NODISCARD gs_status gs_launch_table_open(gs_launch_table *table, gs_adamw_item **items);
// On the compute stream; never waits.
void gs_launch_table_run(gs_launch_table *table, size_t num_items, const gs_adamw *step);

#endif
