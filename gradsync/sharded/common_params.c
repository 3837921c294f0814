#include "gradsync/sharded/common_params.h"

#include <stdint.h>
#include <stdlib.h>

// What a rank says of its parameters.
typedef struct common_place {
    int64_t offset;  // in its arena; NOT_COMMON: they stay its own
    int64_t bytes;
} common_place;

#define NOT_COMMON (-1)
#define NUM_WORDS (sizeof(common_place) / sizeof(int64_t))

static bool lies_in(const void *memory, size_t memory_bytes, const void *params, size_t bytes) {
    uintptr_t first = (uintptr_t)memory, at = (uintptr_t)params;
    return memory && at >= first && at - first <= memory_bytes &&
           bytes <= memory_bytes - (at - first);
}

// Where a rank's lie says where rank 0's do only if it sees them.
static common_place find_place(const gs_comm *comm, const void *params, size_t bytes) {
    size_t own_bytes, first_bytes;
    const char *own = gs_comm_peer_arena(comm, gs_comm_rank(comm), &own_bytes);
    bool sees = gs_comm_peer_arena(comm, 0, &first_bytes) && first_bytes >= bytes;
    common_place place = {NOT_COMMON, (int64_t)bytes};
    if (params && sees && lies_in(own, own_bytes, params, bytes))
        place.offset = (const char *)params - own;
    return place;
}

static gs_status choose(void **out, const gs_comm *comm, const common_place *places) {
    size_t first_bytes;
    char *first = gs_comm_peer_arena(comm, 0, &first_bytes);
    for (int rank = 0; rank < gs_comm_world_size(comm); rank++) {
        if (places[rank].bytes != places[0].bytes)
            return gs_error(GS_FAILED_PRECONDITION,
                            "common parameters: rank %d against rank 0: %lld bytes against %lld",
                            rank, (long long)places[rank].bytes, (long long)places[0].bytes);
    }
    for (int rank = 0; rank < gs_comm_world_size(comm); rank++)
        if (places[rank].offset == NOT_COMMON) return gs_ok();
    if (!lies_in(first, first_bytes, first + places[0].offset, (size_t)places[0].bytes))
        return gs_error(GS_DATA_LOSS, "common parameters: rank 0's lie outside of its arena");
    *out = first + places[0].offset;
    return gs_ok();
}

static gs_status agree(void **out, gs_comm *comm, const common_place *mine, gs_deadline deadline) {
    common_place *places = calloc((size_t)gs_comm_world_size(comm), sizeof *places);
    if (!places) return gs_error(GS_RESOURCE_EXHAUSTED, "common parameters: out of memory");
    gs_status status = gs_comm_run(comm,
                                   &(gs_collective){.kind = GS_ALLGATHER,
                                                    .send = mine,
                                                    .recv = places,
                                                    .count = NUM_WORDS,
                                                    .dtype = GS_I64,
                                                    .step = -1,
                                                    .bucket = -1},
                                   deadline);
    if (!status.code) status = choose(out, comm, places);
    free(places);
    return status;
}

gs_status gs_common_params_find(void **out, gs_comm *comm, const void *params, size_t bytes,
                                gs_deadline deadline) {
    *out = NULL;
    const common_place mine = find_place(comm, params, bytes);
    gs_status status = agree(out, comm, &mine, deadline);
    if (status.code) gs_comm_abort(comm, status.message);
    return status;
}
