#include "gradsync/comm/coalesce.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/bucket_plan.h"
#include "core/memory.h"

#define DEFAULT_LIMIT_BYTES ((size_t)250 << 20)
#define ALONE_BYTES ((size_t)1 << 20)  // from here a copy costs more than a collective of its own
#define NUM_IN_FLIGHT 2

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

// A list on its way: what every chunk of it has in common.
typedef struct coalesced {
    gs_comm *comm;
    const gs_tensor_view *tensors;  // chunks are runs of it
    size_t num_tensors;
    gs_collective collective;  // without buffers, count and dtype
    chunk *chunks;             // owned
    size_t num_chunks;
    chunk_flight flights[NUM_IN_FLIGHT];
    gs_device *device;  // of the tensors; NULL: they are the host's
} coalesced;

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

static void copy_bytes(const coalesced *list, void *to, const void *from, size_t bytes) {
    if (!bytes) return;
    if (list->device)
        gs_device_kernels(list->device)->copy(gs_device_stream(list->device), to, from, bytes);
    else
        memcpy(to, from, bytes);
}

static void gather_chunk(const coalesced *list, char *staging, const chunk *from) {
    for (size_t i = from->first; i < from->end; i++) {
        size_t bytes = bytes_of_view(&list->tensors[i]);
        copy_bytes(list, staging, list->tensors[i].data, bytes);
        staging += bytes;
    }
}

static void scatter_chunk(const coalesced *list, const char *staging, const chunk *to) {
    for (size_t i = to->first; i < to->end; i++) {
        size_t bytes = bytes_of_view(&list->tensors[i]);
        copy_bytes(list, list->tensors[i].data, staging, bytes);
        staging += bytes;
    }
}

// A broadcast moves bytes; what this rank's tensors hold counts at the root alone.
static bool is_broadcast(const coalesced *list) {
    return list->collective.kind == GS_BROADCAST;
}

static bool is_root(const coalesced *list) {
    return gs_comm_rank(list->comm) == list->collective.root;
}

static gs_status post_chunk(coalesced *list, chunk_flight *out, const chunk *next, void *staging) {
    const gs_tensor_view *first = &list->tensors[next->first];
    out->chunk = *next;
    out->data = is_one_run(list->tensors, next) ? first->data : staging;
    if (out->data == staging && (!is_broadcast(list) || is_root(list)))
        gather_chunk(list, staging, next);
    gs_collective collective = list->collective;
    collective.send = collective.recv = out->data;
    collective.dtype = is_broadcast(list) ? GS_U8 : first->dtype;
    collective.count = next->bytes / gs_dtype_bytes(collective.dtype);
    GS_TRY(gs_comm_post(list->comm, &out->work, &collective));
    out->in_flight = true;
    return gs_ok();
}

static gs_status finish_chunk(coalesced *list, chunk_flight *flight, gs_deadline deadline) {
    if (!flight->in_flight) return gs_ok();
    flight->in_flight = false;
    GS_TRY(gs_comm_wait(list->comm, flight->work, deadline));
    const chunk *done = &flight->chunk;
    if (flight->data != list->tensors[done->first].data && (!is_broadcast(list) || !is_root(list)))
        scatter_chunk(list, flight->data, done);
    return gs_ok();
}

static size_t most_staging_bytes(const coalesced *list) {
    size_t most = 0;
    for (size_t c = 0; c < list->num_chunks; c++) {
        const chunk *cut = &list->chunks[c];
        if (!is_one_run(list->tensors, cut) && cut->bytes > most) most = cut->bytes;
    }
    return gs_round_up(most, 64);
}

// Whose memory the tensors are: all of them the device's, or all of them the host's.
static gs_status find_device(coalesced *list) {
    gs_device *device = gs_comm_device(list->comm);
    bool is_first = true;
    for (size_t i = 0; i < list->num_tensors && !gs_device_is_host(device); i++) {
        const gs_tensor_view *view = &list->tensors[i];
        if (!bytes_of_view(view)) continue;
        bool on_device = gs_device_is_device_memory(device, view->data);
        if (!is_first && on_device != (list->device != NULL))
            return gs_error(GS_INVALID_ARGUMENT, "tensor %zu is memory of %s, earlier ones are not",
                            i, on_device ? gs_device_name(device) : "the host");
        is_first = false;
        list->device = on_device ? device : NULL;
    }
    return gs_ok();
}

// None where every chunk is one run of memory: a step that broadcasts such a list allocates nothing.
static gs_status alloc_staging(const coalesced *list, void **staging, size_t bytes) {
    if (!bytes) return gs_ok();
    if (list->device) return gs_device_alloc(list->device, staging, bytes + 1);
    *staging = gs_alloc_aligned(bytes, 64);
    return *staging ? gs_ok() : gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
}

static void free_staging(const coalesced *list, void *staging) {
    if (staging && list->device)
        gs_device_free(list->device, staging);
    else
        free(staging);
}

static gs_status run_flights(coalesced *list, char *staging, size_t staging_bytes,
                             gs_deadline deadline) {
    gs_status status = gs_ok();
    for (size_t c = 0; c < list->num_chunks && !status.code; c++) {
        chunk_flight *flight = &list->flights[c % NUM_IN_FLIGHT];
        status = finish_chunk(list, flight, deadline);
        char *place = staging ? staging + c % NUM_IN_FLIGHT * staging_bytes : NULL;
        if (!status.code && list->chunks[c].bytes)
            status = post_chunk(list, flight, &list->chunks[c], place);
    }
    for (size_t i = 0; i < NUM_IN_FLIGHT && !status.code; i++)
        status =
            finish_chunk(list, &list->flights[(list->num_chunks + i) % NUM_IN_FLIGHT], deadline);
    return status;
}

static gs_status run_chunks(coalesced *list, gs_deadline deadline) {
    void *staging = NULL;
    gs_status status = find_device(list);
    size_t staging_bytes = most_staging_bytes(list);
    if (!status.code) status = alloc_staging(list, &staging, NUM_IN_FLIGHT * staging_bytes);
    if (!status.code) status = run_flights(list, staging, staging_bytes, deadline);
    if (status.code) gs_comm_let_go(list->comm, status.message);
    free_staging(list, staging);
    return status;
}

gs_status gs_coalesced_broadcast(gs_comm *comm, const gs_tensor_view *tensors, size_t num_tensors,
                                 int root, size_t limit_bytes, gs_deadline deadline) {
    if (!limit_bytes) limit_bytes = DEFAULT_LIMIT_BYTES;
    coalesced list = {.comm = comm,
                      .tensors = tensors,
                      .num_tensors = num_tensors,
                      .collective = {.kind = GS_BROADCAST, .root = root, .step = -1, .bucket = -1}};
    list.chunks = calloc(num_tensors + 1, sizeof *list.chunks);
    if (!list.chunks) {
        // Whoever alone cannot go on must tell the ranks that wait for it.
        gs_comm_abort(comm, "broadcast: out of memory");
        return gs_error(GS_RESOURCE_EXHAUSTED, "broadcast: out of memory");
    }
    for (size_t first = 0; first < num_tensors; first = list.chunks[list.num_chunks++].end)
        list.chunks[list.num_chunks] = cut_chunk(tensors, num_tensors, first, limit_bytes);
    gs_status status = run_chunks(&list, deadline);
    free(list.chunks);
    return gs_status_prefix(status, "broadcast");
}

// Puts the tensors of each chunk behind each other in `sorted`, in list order.
static void sort_by_chunk(coalesced *list, gs_tensor_view *sorted, const gs_tensor_view *tensors,
                          const size_t *chunk_of) {
    for (size_t i = 0; i < list->num_tensors; i++) {
        list->chunks[chunk_of[i]].end++;
        list->chunks[chunk_of[i]].bytes += bytes_of_view(&tensors[i]);
    }
    size_t first = 0;
    for (size_t c = 0; c < list->num_chunks; c++) {
        size_t num_members = list->chunks[c].end;
        list->chunks[c].first = list->chunks[c].end = first;
        first += num_members;
    }
    for (size_t i = 0; i < list->num_tensors; i++)
        sorted[list->chunks[chunk_of[i]].end++] = tensors[i];
}

static gs_status cut_by_dtype(coalesced *list, gs_tensor_view *sorted, size_t *chunk_of,
                              gs_plan_tensor *sizes, const gs_tensor_view *tensors,
                              size_t limit_bytes) {
    if (!list->chunks || !sorted || !chunk_of || !sizes)
        return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < list->num_tensors; i++) {
        if (!gs_dtype_bytes(tensors[i].dtype))
            return gs_error(GS_INVALID_ARGUMENT, "tensor %zu: dtype unset", i);
        sizes[i] = (gs_plan_tensor){.count = tensors[i].count, .dtype = tensors[i].dtype};
    }
    GS_TRY(
        gs_take_tensors(chunk_of, &list->num_chunks, sizes, list->num_tensors, limit_bytes, true));
    sort_by_chunk(list, sorted, tensors, chunk_of);
    return gs_ok();
}

gs_status gs_coalesced_allreduce(gs_comm *comm, const gs_tensor_view *tensors, size_t num_tensors,
                                 gs_reduce_op op, double scale, size_t limit_bytes,
                                 gs_deadline deadline) {
    if (!limit_bytes) limit_bytes = DEFAULT_LIMIT_BYTES;
    gs_tensor_view *sorted = calloc(num_tensors + 1, sizeof *sorted);
    size_t *chunk_of = calloc(num_tensors + 1, sizeof *chunk_of);
    gs_plan_tensor *sizes = calloc(num_tensors + 1, sizeof *sizes);
    coalesced list = {
        .comm = comm,
        .tensors = sorted,
        .num_tensors = num_tensors,
        .chunks = calloc(num_tensors + 1, sizeof *list.chunks),
        .collective = {.kind = GS_ALLREDUCE, .op = op, .scale = scale, .step = -1, .bucket = -1}};
    gs_status status = cut_by_dtype(&list, sorted, chunk_of, sizes, tensors, limit_bytes);
    // Whoever alone cannot go on must tell the ranks that wait for it.
    if (status.code) gs_comm_abort(comm, status.message);
    if (!status.code) status = run_chunks(&list, deadline);
    free(list.chunks);
    free(sizes);
    free(chunk_of);
    free(sorted);
    return gs_status_prefix(status, "all-reduce");
}
