// Bytes from a peer's arena into memory of this rank's.
#ifndef GRADSYNC_COMM_SHM_COPY_H
#define GRADSYNC_COMM_SHM_COPY_H

#include <stddef.h>

// Past the caches: no line of `to` is read in to be written over, none that is there is driven out. Stored
// before whatever this thread stores next.
void gs_shm_copy_past_caches(void *to, const void *from, size_t bytes);

#endif
