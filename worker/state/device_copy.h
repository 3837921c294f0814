// Bytes between a device's memory and the host, piece by piece through pinned memory on a stream of its
// own: the host works on one piece while the next is on its way, and the compute stream goes on. Where the
// host reads the device's memory as its own nothing is copied.
//
// Nothing is allocated after create. One transfer at a time; compute thread.
#ifndef WORKER_STATE_DEVICE_COPY_H
#define WORKER_STATE_DEVICE_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "kernels/device.h"

// Pinned, in two pieces; of a CPU's memory none.
#define GS_DEVICE_COPY_PIECES_BYTES ((size_t)16 << 20)

typedef struct gs_device_copy gs_device_copy;

// A run of bytes as the host sees them: memory of the device; or fp32 masters that the device keeps in two
// halves (gs_adamw_item), `data` NULL; or memory of the host.
typedef struct gs_copy_run {
    void *data;
    uint16_t *value, *remainder;
    size_t bytes;
    bool is_on_host;
} gs_copy_run;

// The bytes of a run from `begin_byte` on; masters on a boundary of 4.
static inline gs_copy_run gs_copy_run_part(const gs_copy_run *run, size_t begin_byte, size_t bytes) {
    gs_copy_run part = {.bytes = bytes, .is_on_host = run->is_on_host};
    if (run->data) {
        part.data = (char *)run->data + begin_byte;
    } else {
        part.value = run->value + begin_byte / sizeof(float);
        part.remainder = run->remainder + begin_byte / sizeof(float);
    }
    return part;
}

GS_NODISCARD gs_status gs_device_copy_create(gs_device_copy **out, gs_device *device);
void gs_device_copy_destroy(gs_device_copy *copy);

// Takes, or fills, the next bytes of the transfer.
typedef void (*gs_copy_take)(void *ctx, const void *bytes, size_t num_bytes);
typedef void (*gs_copy_fill)(void *ctx, void *bytes, size_t num_bytes);

// Starts to read runs (borrowed until end_read) as they are behind all that the compute stream was given so
// far, and does not wait. Nobody writes them until end_read has returned, which hands them to `take` in
// order.
void gs_device_copy_begin_read(gs_device_copy *copy, const gs_copy_run *runs, size_t num_runs);
GS_NODISCARD gs_status gs_device_copy_end_read(gs_device_copy *copy, gs_copy_take take, void *ctx);
// Both.
GS_NODISCARD gs_status gs_device_copy_read(gs_device_copy *copy, const gs_copy_run *runs,
                                           size_t num_runs, gs_copy_take take, void *ctx);

// Overwrites runs behind all that the compute stream was given so far; done when it returns.
GS_NODISCARD gs_status gs_device_copy_write(gs_device_copy *copy, const gs_copy_run *runs,
                                            size_t num_runs, gs_copy_fill fill, void *ctx);

#endif
