#include "gradsync/step/buffers.h"

#include <stdlib.h>

#include "core/memory.h"
#include "gradsync/comm/coalesce.h"

// What passes read and write goes around: a step starts from one of two banks by turns, a pass
// writes into one of three, so that what a pass read outlives the next pass and the next begin. The
// result waits for the commit: what shard 0 left (exact mode), or what was shared.
enum {
    BANK_COMMITTED,
    BANK_START,
    BANK_WORK = BANK_START + 2,
    BANK_RESULT = BANK_WORK + 3,
    NUM_BANKS
};

// Types that are averaged lie first in a bank, each in one run; all others follow and are
// broadcast.
static const gs_dtype averaged[] = {GS_FP32, GS_FP64, GS_FP16, GS_BF16};
#define NUM_AVERAGED (sizeof averaged / sizeof averaged[0])

struct gs_buffers {
    size_t num_buffers, bank_bytes;
    size_t run_bytes[NUM_AVERAGED + 1];  // of each type's run; the last: of all others
    gs_buffers_policy policy;
    bool exact, has_hook;
    gs_buffers_hook hook;
    gs_join_round round;  // of the step in progress
    gs_device *device;
    gs_param_spec *specs;  // owned
    void *memory;          // all banks, one after the other
    void **pointers;       // NUM_BANKS · num_buffers
    int start;             // bank that the step started from
    int last_start;        // of the two, the one taken last
    int current;           // bank that the next pass reads
    int writing;           // bank of the pass in progress; of the three, the one taken last
    int shard;             // of the pass in progress
    bool has_result;       // BANK_RESULT holds what this step adopts
    bool has_common;       // and is the same on all ranks
    bool is_common;        // what is committed is, on those of this generation
    uint32_t generation;   // of the last step
};

static void **bank_of(const gs_buffers *buffers, int bank) {
    return buffers->pointers + (size_t)bank * buffers->num_buffers;
}

static char *bank_memory(const gs_buffers *buffers, int bank) {
    return (char *)buffers->memory + (size_t)bank * buffers->bank_bytes;
}

static void copy_bank(gs_buffers *buffers, int to, int from) {
    if (!buffers->bank_bytes || to == from) return;
    gs_device_kernels(buffers->device)
        ->copy(gs_device_stream(buffers->device), bank_memory(buffers, to),
               bank_memory(buffers, from), buffers->bank_bytes);
}

static size_t run_of(gs_dtype dtype) {
    size_t run = 0;
    while (run < NUM_AVERAGED && averaged[run] != dtype) run++;
    return run;
}

static void set_pointers(gs_buffers *buffers) {
    size_t offset = 0;
    for (size_t run = 0; run <= NUM_AVERAGED; run++) {
        for (size_t i = 0; i < buffers->num_buffers; i++) {
            if (run_of(buffers->specs[i].dtype) != run) continue;
            for (int bank = 0; bank < NUM_BANKS; bank++)
                bank_of(buffers, bank)[i] = bank_memory(buffers, bank) + offset;
            gs_add_padded(&offset, gs_param_spec_bytes(&buffers->specs[i]));
        }
    }
}

static bool add_bank_bytes(gs_buffers *buffers) {
    for (size_t i = 0; i < buffers->num_buffers; i++) {
        size_t bytes = gs_param_spec_bytes(&buffers->specs[i]);
        if (!gs_add_padded(&buffers->bank_bytes, bytes)) return false;
        gs_add_padded(&buffers->run_bytes[run_of(buffers->specs[i].dtype)], bytes);
    }
    return true;
}

static gs_status alloc_banks(gs_buffers *buffers, const gs_param_spec *specs) {
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "buffers: out of memory");
    size_t num_buffers = buffers->num_buffers, all_bytes;
    buffers->specs = calloc(num_buffers + 1, sizeof *buffers->specs);
    buffers->pointers = calloc(NUM_BANKS * num_buffers + 1, sizeof *buffers->pointers);
    if (!buffers->specs || !buffers->pointers) return status;
    for (size_t i = 0; i < num_buffers; i++) buffers->specs[i] = specs[i];
    if (!add_bank_bytes(buffers) || !gs_bytes_of(&all_bytes, buffers->bank_bytes, NUM_BANKS))
        return status;
    GS_TRY(gs_device_alloc(buffers->device, &buffers->memory, all_bytes + 1));
    set_pointers(buffers);
    return gs_ok();
}

gs_status gs_buffers_create(gs_buffers **out, const gs_param_spec *specs, size_t num_buffers,
                            gs_buffers_policy policy, bool exact, gs_device *device) {
    *out = NULL;
    GS_TRY(gs_status_prefix(gs_param_specs_check(specs, num_buffers), "buffers"));
    if (exact && policy == GS_BUFFERS_AVERAGE)
        return gs_error(GS_INVALID_ARGUMENT,
                        "buffers: an average over ranks depends on their number, exact mode not");
    gs_buffers *buffers = calloc(1, sizeof *buffers);
    if (!buffers) return gs_error(GS_RESOURCE_EXHAUSTED, "buffers: out of memory");
    *buffers = (gs_buffers){.num_buffers = num_buffers,
                            .policy = policy,
                            .exact = exact,
                            .device = device,
                            .last_start = BANK_START,
                            .writing = BANK_WORK};
    gs_status status = alloc_banks(buffers, specs);
    if (status.code) {
        gs_buffers_destroy(buffers);
        return status;
    }
    *out = buffers;
    return gs_ok();
}

void gs_buffers_destroy(gs_buffers *buffers) {
    if (!buffers) return;
    if (buffers->memory) gs_device_free(buffers->device, buffers->memory);
    free(buffers->pointers);
    free(buffers->specs);
    free(buffers);
}

void gs_buffers_set_hook(gs_buffers *buffers, const gs_buffers_hook *hook) {
    buffers->has_hook = hook != NULL;
    buffers->hook = hook ? *hook : (gs_buffers_hook){0};
}

void *const *gs_buffers_committed(const gs_buffers *buffers) {
    return bank_of(buffers, BANK_COMMITTED);
}

static gs_status run_hook(gs_buffers *buffers, int bank, gs_comm *comm, gs_deadline deadline) {
    gs_status status = buffers->hook.run(buffers->hook.ctx, bank_of(buffers, bank), buffers->specs,
                                         buffers->num_buffers, &buffers->round, comm, deadline);
    // What came from another rank names that one.
    if (status.code == GS_ABORTED)
        status = gs_status_prefix(status, "buffers: hook");
    else
        status = gs_status_prefix(status, "buffers, rank %d: hook", gs_comm_rank(comm));
    // Whoever alone cannot go on must tell the ranks that wait for it.
    if (status.code) gs_comm_abort(comm, status.message);
    return status;
}

// A part of a bank is one run of memory: it travels as it is.
static gs_status broadcast_bytes(gs_buffers *buffers, char *memory, size_t bytes, gs_comm *comm,
                                 gs_deadline deadline) {
    if (!bytes) return gs_ok();
    const gs_tensor_view view = {memory, bytes, GS_U8};
    return gs_status_prefix(
        gs_coalesced_broadcast(comm, &view, 1, buffers->round.source, 0, deadline), "buffers");
}

static gs_status average_bank(gs_buffers *buffers, int bank, gs_comm *comm, gs_deadline deadline) {
    char *memory = bank_memory(buffers, bank);
    if (!buffers->round.active)
        gs_device_kernels(buffers->device)
            ->fill(gs_device_stream(buffers->device), (float *)(void *)memory, 0.0f,
                   buffers->bank_bytes / sizeof(float));
    for (size_t run = 0; run < NUM_AVERAGED; run++) {
        size_t bytes = buffers->run_bytes[run];
        if (!bytes) continue;
        gs_collective collective = {.kind = GS_ALLREDUCE,
                                    .send = memory,
                                    .recv = memory,
                                    .count = bytes / gs_dtype_bytes(averaged[run]),
                                    .dtype = averaged[run],
                                    .op = GS_OP_SUM,
                                    .scale = 1.0 / buffers->round.num_active,
                                    .bucket = -1};
        GS_TRY(gs_status_prefix(gs_comm_run(comm, &collective, deadline), "buffers"));
        memory += bytes;
    }
    return broadcast_bytes(buffers, memory, buffers->run_bytes[NUM_AVERAGED], comm, deadline);
}

// Ranks that came with another generation have values of their own.
static void note_generation(gs_buffers *buffers, const gs_comm *comm) {
    if (buffers->generation != gs_comm_generation(comm)) buffers->is_common = false;
    buffers->generation = gs_comm_generation(comm);
}

gs_status gs_buffers_begin(gs_buffers *buffers, gs_comm *comm, gs_deadline deadline) {
    gs_join_round all = {.num_active = gs_comm_world_size(comm), .active = true};
    return gs_buffers_begin_uneven(buffers, &all, comm, deadline);
}

gs_status gs_buffers_begin_uneven(gs_buffers *buffers, const gs_join_round *round, gs_comm *comm,
                                  gs_deadline deadline) {
    if (round->num_active < 1 || round->source < 0)
        return gs_error(GS_FAILED_PRECONDITION, "buffers: no rank has data for this step");
    note_generation(buffers, comm);
    buffers->round = *round;
    buffers->has_result = buffers->has_common = false;
    buffers->start = buffers->current = BANK_COMMITTED;
    bool hooked = buffers->has_hook && buffers->hook.before_forward;
    bool broadcasts = !buffers->has_hook && buffers->policy == GS_BUFFERS_BROADCAST &&
                      !buffers->is_common && gs_comm_world_size(comm) > 1;
    if (!hooked && !broadcasts) return gs_ok();

    buffers->last_start = buffers->last_start == BANK_START ? BANK_START + 1 : BANK_START;
    buffers->start = buffers->current = buffers->last_start;
    copy_bank(buffers, buffers->start, BANK_COMMITTED);
    if (hooked) return run_hook(buffers, buffers->start, comm, deadline);
    return broadcast_bytes(buffers, bank_memory(buffers, buffers->start), buffers->bank_bytes, comm,
                           deadline);
}

void gs_buffers_pass(gs_buffers *buffers, int shard, bool first_of_shard, const void *const **read,
                     void *const **write) {
    if (buffers->exact && first_of_shard) buffers->current = buffers->start;
    if (++buffers->writing == BANK_RESULT) buffers->writing = BANK_WORK;
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
    bool hooked = buffers->has_hook && !buffers->hook.before_forward;
    if (!hooked && (buffers->policy == GS_BUFFERS_LOCAL || buffers->has_hook)) return gs_ok();
    if (!buffers->has_result) copy_bank(buffers, BANK_RESULT, buffers->current);
    if (hooked)
        GS_TRY(run_hook(buffers, BANK_RESULT, comm, deadline));
    else if (buffers->policy == GS_BUFFERS_AVERAGE)
        GS_TRY(average_bank(buffers, BANK_RESULT, comm, deadline));
    else
        GS_TRY(broadcast_bytes(buffers, bank_memory(buffers, BANK_RESULT), buffers->bank_bytes,
                               comm, deadline));
    buffers->has_result = true;
    buffers->has_common = !hooked;
    return gs_ok();
}

void gs_buffers_adopt(gs_buffers *buffers) {
    int adopted = buffers->exact ? buffers->start : buffers->current;
    copy_bank(buffers, BANK_COMMITTED, buffers->has_result ? BANK_RESULT : adopted);
    buffers->start = buffers->current = BANK_COMMITTED;
    buffers->is_common = buffers->has_common;
    buffers->has_result = buffers->has_common = false;
}
