#include "gradsync/buffers.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "gradsync/coalesce.h"

#define TENSOR_BYTES ((size_t)64)  // each buffer starts on a cache line

// Passes read and write the two working banks by turns, so that nothing is read and written at
// once. The result waits for the commit: what shard 0 left (exact mode), or what was shared.
enum { BANK_COMMITTED, BANK_WORK_A, BANK_WORK_B, BANK_RESULT, NUM_BANKS };

struct gs_buffers {
    size_t num_buffers, bank_bytes;
    gs_buffers_policy policy;
    bool exact;
    gs_device *device;
    void *memory;     // all banks, one after the other
    void **pointers;  // NUM_BANKS · num_buffers
    int current;      // bank that the next pass reads
    int writing;      // bank of the pass in progress
    int shard;        // of the pass in progress
    bool has_result;  // BANK_RESULT holds what this step adopts
};

static void **bank_of(const gs_buffers *buffers, int bank) {
    return buffers->pointers + (size_t)bank * buffers->num_buffers;
}

static void copy_bank(gs_buffers *buffers, int to, int from) {
    if (!buffers->bank_bytes || to == from) return;
    char *memory = buffers->memory;
    gs_device_kernels(buffers->device)
        ->copy(gs_device_stream(buffers->device), memory + (size_t)to * buffers->bank_bytes,
               memory + (size_t)from * buffers->bank_bytes, buffers->bank_bytes);
}

static void set_pointers(gs_buffers *buffers, const gs_param_spec *specs) {
    size_t offset = 0;
    for (size_t i = 0; i < buffers->num_buffers; i++) {
        for (int bank = 0; bank < NUM_BANKS; bank++)
            bank_of(buffers, bank)[i] =
                (char *)buffers->memory + (size_t)bank * buffers->bank_bytes + offset;
        offset += gs_round_up(gs_param_spec_bytes(&specs[i]), TENSOR_BYTES);
    }
}

static bool add_bank_bytes(size_t *bank_bytes, const gs_param_spec *specs, size_t num_buffers) {
    for (size_t i = 0; i < num_buffers; i++) {
        size_t bytes = gs_param_spec_bytes(&specs[i]);
        if (bytes > SIZE_MAX / 2 ||
            __builtin_add_overflow(*bank_bytes, gs_round_up(bytes, TENSOR_BYTES), bank_bytes))
            return false;
    }
    return true;
}

gs_status gs_buffers_create(gs_buffers **out, const gs_param_spec *specs, size_t num_buffers,
                            gs_buffers_policy policy, bool exact, gs_device *device) {
    *out = NULL;
    GS_TRY(gs_status_prefix(gs_param_specs_check(specs, num_buffers), "buffers"));
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "buffers: out of memory");
    gs_buffers *buffers = calloc(1, sizeof *buffers);
    if (!buffers) return status;
    *buffers = (gs_buffers){
        .num_buffers = num_buffers, .policy = policy, .exact = exact, .device = device};
    size_t all_bytes;
    if (!add_bank_bytes(&buffers->bank_bytes, specs, num_buffers) ||
        !gs_bytes_of(&all_bytes, buffers->bank_bytes, NUM_BANKS))
        goto fail;
    buffers->pointers = calloc(NUM_BANKS * num_buffers + 1, sizeof *buffers->pointers);
    if (!buffers->pointers) goto fail;
    status = gs_device_alloc(device, &buffers->memory, all_bytes + 1);
    if (status.code) goto fail;
    set_pointers(buffers, specs);
    *out = buffers;
    return gs_ok();
fail:
    gs_buffers_destroy(buffers);
    return status;
}

void gs_buffers_destroy(gs_buffers *buffers) {
    if (!buffers) return;
    if (buffers->memory) gs_device_free(buffers->device, buffers->memory);
    free(buffers->pointers);
    free(buffers);
}

void *const *gs_buffers_committed(const gs_buffers *buffers) {
    return bank_of(buffers, BANK_COMMITTED);
}

// A bank is one run of memory: it travels as it is.
static gs_status broadcast_bank(gs_buffers *buffers, int bank, gs_comm *comm,
                                gs_deadline deadline) {
    if (!buffers->bank_bytes) return gs_ok();
    const gs_tensor_view view = {(char *)buffers->memory + (size_t)bank * buffers->bank_bytes,
                                 buffers->bank_bytes, GS_U8};
    return gs_status_prefix(gs_coalesced_broadcast(comm, &view, 1, 0, 0, deadline), "buffers");
}

gs_status gs_buffers_begin(gs_buffers *buffers, gs_comm *comm, gs_deadline deadline) {
    buffers->current = BANK_COMMITTED;
    buffers->has_result = false;
    if (buffers->policy == GS_BUFFERS_LOCAL) return gs_ok();
    return broadcast_bank(buffers, BANK_COMMITTED, comm, deadline);
}

void gs_buffers_pass(gs_buffers *buffers, int shard, bool first_of_shard, const void *const **read,
                     void *const **write) {
    if (buffers->exact && first_of_shard) buffers->current = BANK_COMMITTED;
    buffers->writing = buffers->current == BANK_WORK_A ? BANK_WORK_B : BANK_WORK_A;
    buffers->shard = shard;
    // A pass need not write every buffer: what it leaves alone keeps its value.
    copy_bank(buffers, buffers->writing, buffers->current);
    *read = (const void *const *)bank_of(buffers, buffers->current);
    *write = bank_of(buffers, buffers->writing);
}

void gs_buffers_end_pass(gs_buffers *buffers) {
    buffers->current = buffers->writing;
    if (!buffers->exact || buffers->shard != 0) return;
    copy_bank(buffers, BANK_RESULT, buffers->current);
    buffers->has_result = true;
}

// Rank 0 owns shard 0 in every world.
gs_status gs_buffers_share(gs_buffers *buffers, gs_comm *comm, gs_deadline deadline) {
    if (buffers->policy == GS_BUFFERS_LOCAL) return gs_ok();
    if (!buffers->has_result) copy_bank(buffers, BANK_RESULT, buffers->current);
    GS_TRY(broadcast_bank(buffers, BANK_RESULT, comm, deadline));
    buffers->has_result = true;
    return gs_ok();
}

void gs_buffers_adopt(gs_buffers *buffers) {
    if (buffers->has_result)
        copy_bank(buffers, BANK_COMMITTED, BANK_RESULT);
    else if (!buffers->exact)
        copy_bank(buffers, BANK_COMMITTED, buffers->current);
    buffers->current = BANK_COMMITTED;
    buffers->has_result = false;
}

gs_digest gs_buffers_digest(const gs_buffers *buffers) {
    return gs_digest_of(buffers->memory, buffers->bank_bytes);
}
