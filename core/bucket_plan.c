#include "core/bucket_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

// The exposed last bucket of a one-host plan: what one rank reduces in some ten microseconds.
#define LAST_BUCKET_BYTES UINT64_C(65536)

static uint64_t add_saturating(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t bytes_of_tensor(const gs_plan_tensor *tensor) {
    uint64_t bytes;
    return __builtin_mul_overflow(tensor->count, (uint64_t)gs_dtype_bytes(tensor->dtype), &bytes)
               ? UINT64_MAX
               : bytes;
}

// The open bucket of one (dtype, device), and how far its limits are used up.
typedef struct key_state {
    gs_dtype dtype;
    int device;
    size_t cursor;
    uint64_t bytes;
    size_t *members, num_members;
    size_t opened_at;  // position of the first member, for the order of leftovers
} key_state;

typedef struct assignment {
    const gs_plan_request *request;
    gs_bucket_plan plan;   // grows
    key_state *keys;       // num_tensors places
    size_t num_keys;
    size_t *next;          // open buckets as lists: tensor → the next one of its bucket
} assignment;

#define NO_TENSOR SIZE_MAX

static key_state *find_key(assignment *work, const gs_plan_tensor *tensor) {
    for (size_t k = 0; k < work->num_keys; k++) {
        if (work->keys[k].dtype == tensor->dtype && work->keys[k].device == tensor->device)
            return &work->keys[k];
    }
    key_state *key = &work->keys[work->num_keys++];
    *key = (key_state){.dtype = tensor->dtype, .device = tensor->device};
    return key;
}
