// How a process lays out the memory that ranks share, said by each before any of it is.
//
// Ranks of one host may come from containers with other builds and other C libraries. Whoever takes
// a struct or a mutex for something else than its peers do would read garbage and write worse. A
// layout itself has no size or offset that follows from the build, so that any two can be compared.
#ifndef GRADSYNC_COMM_SHM_LAYOUT_H
#define GRADSYNC_COMM_SHM_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// To be raised when what ranks say to each other changes its meaning, but no size.
#define GS_SHM_PROTOCOL 2
#define GS_SHM_LAYOUT_FACTS 39

typedef struct gs_shm_layout {
    uint32_t facts[GS_SHM_LAYOUT_FACTS];  // byte order, protocol, sizes, offsets; the rest is 0
    uint32_t page_bytes;
    char libc[32];  // "glibc 2.36"; whose mutex it is
} gs_shm_layout;

gs_shm_layout gs_shm_layout_here(void);
// Whether they differ; `what` gets the first difference: "sizeof(pthread_mutex_t) is 48, not 40".
bool gs_shm_layouts_differ(const gs_shm_layout *one, const gs_shm_layout *other, char *what,
                           size_t what_bytes);

#endif
