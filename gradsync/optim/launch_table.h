// The parameters of one launch (gs_kernels.adamw_many), while launches of earlier steps may still be
// reading theirs: the host writes one of two pinned tables by turns, kernels read a copy in the device's
// memory. Launches of a part of the parameters lie behind each other in a table as long as there is room. Where
// the host's memory is the device's there is one table and no copy.
#ifndef GRADSYNC_OPTIM_LAUNCH_TABLE_H
#define GRADSYNC_OPTIM_LAUNCH_TABLE_H

#include <stddef.h>

#include "core/status.h"
#include "kernels/device.h"

typedef struct gs_launch_table {
    gs_device *device;  // borrowed
    gs_adamw_item *items[2];
    gs_event *copied[2];      // the last copy of each has been taken; NULL on the host
    gs_adamw_item *resident;  // what kernels read; NULL: items[0]
    int writing;
    size_t max_items, num_taken;  // of them, of the table that is being written
} gs_launch_table;

// Room for `max_items`; nothing is allocated after that. Release after an error, too.
GS_NODISCARD gs_status gs_launch_table_init(gs_launch_table *table, size_t max_items,
                                            gs_device *device);
void gs_launch_table_release(gs_launch_table *table);

// Where to write the next launch's items, at most `most_items`. Waits only when a launch that took the other table's
// place has not begun: of launches that name each parameter once a step that is one of the step before the last.
GS_NODISCARD gs_status gs_launch_table_open(gs_launch_table *table, size_t most_items,
                                            gs_adamw_item **items);
// On the compute stream; never waits.
void gs_launch_table_run(gs_launch_table *table, size_t num_items, const gs_adamw *step);

#endif
