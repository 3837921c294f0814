// Memory of the model. A transition that has begun is finished or never was: where there is no memory for its next
// piece, the process ends, and its next life knows everything that was answered (as after kill −9). What strangers
// choose the size of is asked for before, and refused.
#ifndef COORDINATOR_MODEL_MEMORY_H
#define COORDINATOR_MODEL_MEMORY_H

#include <stddef.h>

// Zeroed. Never NULL.
void *gs_model_alloc(size_t count, size_t bytes);
// Room for one more of `count` items: the array, perhaps moved; what is new is not zeroed. Never NULL.
void *gs_model_grow(void *items, size_t count, size_t *reserved, size_t bytes);

#endif
