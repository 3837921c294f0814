#include "worker/pass/batch_stage.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "kernels/event_wait.h"

// Passes that the host may be ahead of the device.
#define NUM_SLOTS 4
#define PART_BOUNDARY_BYTES ((size_t)256)

struct gs_batch_stage {
    gs_device *device;
    size_t rows, token_bytes, feature_bytes;  // of the largest batch
    char *memory;                             // the device's: inputs, then targets
    struct {
        char *memory;     // pinned, laid out alike
        gs_event *event;  // it was copied
    } slots[NUM_SLOTS];
    int next;
};

static size_t input_bytes(const gs_batch_stage *stage) {
    size_t bytes = stage->feature_bytes ? stage->feature_bytes : stage->token_bytes;
    return gs_round_up(bytes, PART_BOUNDARY_BYTES);
}

static gs_status make_memory(gs_batch_stage *stage) {
    size_t bytes = input_bytes(stage) + stage->token_bytes;
    void *memory;
    GS_TRY(gs_device_alloc(stage->device, &memory, bytes));
    stage->memory = memory;
    for (int i = 0; i < NUM_SLOTS; i++) {
        GS_TRY(gs_device_alloc_pinned(stage->device, &memory, bytes));
        stage->slots[i].memory = memory;
        GS_TRY(gs_event_create(&stage->slots[i].event, stage->device, false));
    }
    return gs_ok();
}

gs_status gs_batch_stage_create(gs_batch_stage **out, gs_device *device, const gs_batch *largest) {
    *out = NULL;
    if (gs_device_is_host(device)) return gs_ok();
    gs_batch_stage *stage = calloc(1, sizeof *stage);
    if (!stage) return gs_error(GS_RESOURCE_EXHAUSTED, "batches: out of memory");
    stage->device = device;
    stage->rows = largest->rows;
    gs_status status = gs_ok();
    if (!gs_bytes_of(&stage->token_bytes, largest->rows, largest->positions * sizeof(int32_t)) ||
        !gs_bytes_of(&stage->feature_bytes, largest->rows, largest->row_features * sizeof(float)))
        status = gs_error(GS_INVALID_ARGUMENT, "batches: %zu rows are too many", largest->rows);
    else
        status = gs_status_prefix(make_memory(stage), "batches");
    if (status.code) {
        gs_batch_stage_destroy(stage);
        return status;
    }
    *out = stage;
    return gs_ok();
}

void gs_batch_stage_destroy(gs_batch_stage *stage) {
    if (!stage) return;
    for (int i = 0; i < NUM_SLOTS; i++) {
        gs_event_destroy(stage->slots[i].event);
        gs_device_free_pinned(stage->device, stage->slots[i].memory);
    }
    if (stage->memory) gs_device_free(stage->device, stage->memory);
    free(stage);
}

static void copy_part(gs_batch_stage *stage, char *slot, size_t offset, const void *from,
                      size_t bytes) {
    memcpy(slot + offset, from, bytes);
    gs_device_kernels(stage->device)
        ->copy(gs_device_stream(stage->device), stage->memory + offset, slot + offset, bytes);
}

static gs_status stage_batch(gs_batch_stage *stage, gs_batch *batch, gs_deadline deadline) {
    int at = stage->next;
    if (batch->rows > stage->rows)
        return gs_error(GS_INTERNAL, "batches: one of %zu rows, made for %zu", batch->rows,
                        stage->rows);
    GS_TRY(gs_event_wait(stage->slots[at].event, "the device is behind with batches", deadline));
    char *slot = stage->slots[at].memory;
    size_t targets = input_bytes(stage);
    if (batch->features)
        copy_part(stage, slot, 0, batch->features, batch->rows * batch->row_features * sizeof(float));
    else
        copy_part(stage, slot, 0, batch->tokens, batch->rows * batch->positions * sizeof(int32_t));
    copy_part(stage, slot, targets, batch->targets,
              batch->rows * batch->positions * sizeof(int32_t));
    gs_event_record(stage->slots[at].event, gs_device_stream(stage->device));
    stage->next = (at + 1) % NUM_SLOTS;
    if (batch->features) batch->features = (const float *)(const void *)stage->memory;
    else batch->tokens = (const int32_t *)(const void *)stage->memory;
    batch->targets = (const int32_t *)(const void *)(stage->memory + targets);
    return gs_ok();
}

gs_status gs_batch_stage_next(gs_batch_stage *stage, gs_batch *batch, gs_data_loader *loader,
                              gs_deadline deadline) {
    GS_TRY(gs_data_loader_next(loader, batch, deadline));
    return stage && batch->rows ? stage_batch(stage, batch, deadline) : gs_ok();
}

const int32_t *gs_batch_stage_host_tokens(const gs_batch_stage *stage, const gs_batch *batch) {
    if (!stage) return batch->tokens;
    int last = (stage->next + NUM_SLOTS - 1) % NUM_SLOTS;
    return (const int32_t *)(const void *)stage->slots[last].memory;
}
