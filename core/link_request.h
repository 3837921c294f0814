// What a plan for a link is made of: parameters along the order in which their gradients become ready.
#ifndef CORE_LINK_REQUEST_H
#define CORE_LINK_REQUEST_H

#include <stddef.h>

#include "core/param_spec.h"

// Parameters, in an order.
typedef struct gs_link_request {
    const gs_param_spec *params;
    size_t num_params;
    const size_t *order;          // as they become ready; a permutation
    const double *ready_seconds;  // by parameter, since the backward pass began; below 0: not known, as the one before
    const int *keys;              // parameters of different ones share no bucket; NULL: all may
    size_t max_buckets;           // 0: any number
} gs_link_request;

#endif
