// The directory of all checkpoints, and whether it is the one that this cluster has marked (rpc/checkpoint/place_mark.h): below a
// mount point without its disk there is a directory, too, or one is easily made, and nothing is in it. So a file in the data
// directory remembers which one was marked; there nothing is made and nothing is taken for gone until the mark is seen again, or
// an operator says that this directory is a new one.
#ifndef COORDINATOR_STORE_FILES_MARKED_ROOT_H
#define COORDINATOR_STORE_FILES_MARKED_ROOT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#define GS_ROOT_PATH_LEN 1024

typedef struct gs_marked_root gs_marked_root;

typedef enum gs_root_claim {
    GS_ROOT_UNCLAIMED = 0,  // it has not been tried
    GS_ROOT_TRIED,          // it is ours, or its disk is away, or has no locks: nothing is known against it
    GS_ROOT_OF_ANOTHER      // a coordinator of the same cluster lives and has it (root_lock.h)
} gs_root_claim;

typedef struct gs_marked_root_options {
    const char *data_dir;
    const char *path, *given;  // absolute; as somebody wrote it
    const char *cluster;
    uint64_t life;
    bool is_new;  // an operator says so
} gs_marked_root_options;

// What `given` was when it was marked, by whichever cluster. False: it never was, nothing is known of it.
bool gs_marked_root_recall(char path[GS_ROOT_PATH_LEN], const char *data_dir, const char *given);

gs_marked_root *gs_marked_root_create(const gs_marked_root_options *options);  // never NULL; reads the data directory alone
void gs_marked_root_destroy(gs_marked_root *root);                             // NULL is fine
// Leaves the mark of this life: waits for the disk. UNAVAILABLE: it is not there. ALREADY_EXISTS: another coordinator of this
// cluster lives and has it; its mark stays.
GS_NODISCARD gs_status gs_marked_root_leave(gs_marked_root *root);
gs_root_claim gs_marked_root_claim(const gs_marked_root *root);          // any thread
GS_NODISCARD gs_status gs_marked_root_refused(const gs_marked_root *root);  // any thread: that ALREADY_EXISTS, for good. Of NULL it is ok
// Any thread that may wait for the disk: something was not found there. Reads the mark: UNAVAILABLE where that is not there either,
// and from then on, until it is left again. Of NULL, and of one that was never marked, what is not there is gone.
GS_NODISCARD gs_status gs_marked_root_confirm(gs_marked_root *root);
// Any thread: UNAVAILABLE while the last look did not find it. Of NULL it is there.
GS_NODISCARD gs_status gs_marked_root_check(const gs_marked_root *root);

#endif
