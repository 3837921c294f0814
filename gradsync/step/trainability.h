// Which parameters train, and which are frozen: a frozen one has no gradient, is in no reduction,
// no norm and no update, until it trains again. What an optimizer keeps of it stays.
//
// A value of one rank; that all ranks have the same is whoever changes it who compares.
#ifndef GRADSYNC_STEP_TRAINABILITY_H
#define GRADSYNC_STEP_TRAINABILITY_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

typedef struct gs_trainability {
    size_t num_params;
    bool *trainable;              // owned
    size_t *frozen, num_frozen;   // owned; those that are not, ascending
} gs_trainability;                // {0} is empty

// `trainable` NULL: all. Release after an error, too.
GS_NODISCARD gs_status gs_trainability_init(gs_trainability *out, const bool *trainable,
                                            size_t num_params);
void gs_trainability_release(gs_trainability *trainability);

// INVALID_ARGUMENT: no parameter is left that trains.
GS_NODISCARD gs_status gs_trainability_check(const bool *trainable, size_t num_params);
// Whether they are others than before, which they replace.
bool gs_trainability_take(gs_trainability *trainability, const bool *trainable);

static inline bool gs_trainability_is_frozen(const gs_trainability *trainability, size_t param) {
    return !trainability->trainable[param];
}
// Whether none of these parameters trains.
bool gs_trainability_all_frozen(const gs_trainability *trainability, const size_t *params,
                                size_t num_params);

#endif
