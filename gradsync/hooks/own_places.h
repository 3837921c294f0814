// Where a rank's own tensors lie, and of which step: noted in the arena, in front of the state that it speaks of.
// So a rank of the same host that outlives another finds in that one's arena what it had yet to add.
//
// Two steps are known at most: one of the copies that a hook keeps, and the other. A step is noted when its values
// are whole and stand still, and forgotten before anybody writes there again; a rank may die between any two
// stores. What the memory of another rank holds is read as hostile input.
#ifndef GRADSYNC_HOOKS_OWN_PLACES_H
#define GRADSYNC_HOOKS_OWN_PLACES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gs_own_places {
    uint64_t magic, num_tensors;
    _Atomic int64_t steps[2];  // applied ones; −1: nothing is known
    uint64_t offsets[];        // of both steps, each num_tensors: bytes from here
} gs_own_places;

size_t gs_own_places_bytes(size_t num_tensors);
void gs_own_places_init(gs_own_places *places, size_t num_tensors);

// Nothing is known any more of what follows `step` applied steps: it will be written over.
void gs_own_places_forget(gs_own_places *places, int64_t step);
// Where each tensor lies behind `step` applied steps, which was forgotten; then that it is known.
void gs_own_places_set(gs_own_places *places, int64_t step, size_t tensor, const void *data);
void gs_own_places_know(gs_own_places *places, int64_t step);

// Tensor `tensor` of `num_tensors` as it is behind `step` applied steps, `bytes` of it, in the `arena_bytes` that
// begin with `places`. NULL: it is not there.
const void *gs_own_places_find(const void *places, size_t arena_bytes, size_t num_tensors,
                               int64_t step, size_t tensor, size_t bytes);

#endif
