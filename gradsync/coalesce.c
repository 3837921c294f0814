#include "gradsync/coalesce.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

#define DEFAULT_LIMIT_BYTES ((size_t)250 << 20)
#define ALONE_BYTES ((size_t)1 << 20)  // from here a copy costs more than a collective of its own
#define NUM_IN_FLIGHT 2
#define LETTING_GO_SECONDS 10  // a moving thread leaves an aborted collective within one block

// Tensors [first, end) in one collective of `bytes`.
typedef struct chunk {
    size_t first, end, bytes;
} chunk;

typedef struct chunk_flight {
    chunk chunk;
    gs_work work;
    void *data;  // the tensors themselves, or the staging memory
    bool in_flight;
} chunk_flight;

static size_t bytes_of_view(const gs_tensor_view *view) {
    return view->count * gs_dtype_bytes(view->dtype);
}

// The chunk that starts at `first`. A function of sizes alone, so that all ranks cut alike.
static chunk cut_chunk(const gs_tensor_view *tensors, size_t num_tensors, size_t first,
                       size_t limit_bytes) {
    chunk cut = {.first = first, .end = first + 1, .bytes = bytes_of_view(&tensors[first])};
    while (cut.bytes < ALONE_BYTES && cut.end < num_tensors) {
        size_t bytes = bytes_of_view(&tensors[cut.end]);
        if (bytes >= ALONE_BYTES || cut.bytes + bytes > limit_bytes) break;
        cut.bytes += bytes;
        cut.end++;
    }
    return cut;
}

static bool is_one_run(const gs_tensor_view *tensors, const chunk *run) {
    for (size_t i = run->first; i + 1 < run->end; i++) {
        if ((char *)tensors[i].data + bytes_of_view(&tensors[i]) != tensors[i + 1].data)
            return false;
    }
    return true;
}

static void gather_chunk(char *staging, const gs_tensor_view *tensors, const chunk *from) {
    for (size_t i = from->first; i < from->end; i++) {
        size_t bytes = bytes_of_view(&tensors[i]);
        if (bytes) memcpy(staging, tensors[i].data, bytes);
        staging += bytes;
    }
}

static void scatter_chunk(const char *staging, const gs_tensor_view *tensors, const chunk *to) {
    for (size_t i = to->first; i < to->end; i++) {
        size_t bytes = bytes_of_view(&tensors[i]);
        if (bytes) memcpy(tensors[i].data, staging, bytes);
        staging += bytes;
    }
}

static gs_status post_chunk(chunk_flight *out, const chunk *next, void *staging, gs_comm *comm,
                            const gs_tensor_view *tensors, int root) {
    out->chunk = *next;
    out->data = is_one_run(tensors, next) ? tensors[next->first].data : staging;
    if (out->data == staging && gs_comm_rank(comm) == root) gather_chunk(staging, tensors, next);
    GS_TRY(gs_comm_post(comm, &out->work,
                        &(gs_collective){.kind = GS_BROADCAST,
                                         .send = out->data,
                                         .recv = out->data,
                                         .count = next->bytes,
                                         .dtype = GS_U8,
                                         .root = root,
                                         .step = -1,
                                         .bucket = -1}));
    out->in_flight = true;
    return gs_ok();
}

static gs_status finish_chunk(chunk_flight *flight, gs_comm *comm, const gs_tensor_view *tensors,
                              int root, gs_deadline deadline) {
    if (!flight->in_flight) return gs_ok();
    flight->in_flight = false;
    GS_TRY(gs_comm_wait(comm, flight->work, deadline));
    const chunk *done = &flight->chunk;
    if (gs_comm_rank(comm) != root && flight->data != tensors[done->first].data)
        scatter_chunk(flight->data, tensors, done);
    return gs_ok();
}

// After an error the communicator may still move bytes of the chunks: their memory is the caller's
// again once it has let go of them.
static void end_flights(const chunk_flight flights[NUM_IN_FLIGHT], gs_comm *comm,
                        const char *reason) {
    gs_comm_abort(comm, reason);
    for (int i = 0; i < NUM_IN_FLIGHT; i++) {
        gs_status ended =
            gs_comm_wait(comm, flights[i].work, gs_deadline_in_seconds(LETTING_GO_SECONDS));
        (void)ended;
    }
}

static size_t most_staging_bytes(const gs_tensor_view *tensors, size_t num_tensors,
                                 size_t limit_bytes) {
    size_t most = 0;
    for (size_t first = 0; first < num_tensors;) {
        chunk cut = cut_chunk(tensors, num_tensors, first, limit_bytes);
        if (!is_one_run(tensors, &cut) && cut.bytes > most) most = cut.bytes;
        first = cut.end;
    }
    return gs_round_up(most, 64);
}

gs_status gs_coalesced_broadcast(gs_comm *comm, const gs_tensor_view *tensors, size_t num_tensors,
                                 int root, size_t limit_bytes, gs_deadline deadline) {
    if (!limit_bytes) limit_bytes = DEFAULT_LIMIT_BYTES;
    size_t staging_bytes = most_staging_bytes(tensors, num_tensors, limit_bytes);
    char *staging = gs_alloc_aligned(NUM_IN_FLIGHT * staging_bytes, 64);
    if (!staging) return gs_error(GS_RESOURCE_EXHAUSTED, "broadcast: out of memory");

    chunk_flight flights[NUM_IN_FLIGHT] = {{.in_flight = false}};
    gs_status status = gs_ok();
    size_t first = 0;
    for (size_t turn = 0; first < num_tensors && !status.code; turn++) {
        chunk_flight *flight = &flights[turn % NUM_IN_FLIGHT];
        chunk next = cut_chunk(tensors, num_tensors, first, limit_bytes);
        first = next.end;
        status = finish_chunk(flight, comm, tensors, root, deadline);
        if (!status.code && next.bytes)
            status = post_chunk(flight, &next, staging + turn % NUM_IN_FLIGHT * staging_bytes, comm,
                                tensors, root);
    }
    for (int i = 0; i < NUM_IN_FLIGHT && !status.code; i++)
        status = finish_chunk(&flights[i], comm, tensors, root, deadline);
    if (status.code) end_flights(flights, comm, status.message);
    free(staging);
    return gs_status_prefix(status, "broadcast");
}
