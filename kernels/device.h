// A device: memory, a compute stream, and the table of kernels that runs on it.
//
// "cpu" is always there. "cuda:N" is UNIMPLEMENTED in a build without CUDA. On the CPU a stream is the
// calling thread with the device's helper threads: a launcher returns when its work is done. On a GPU
// it returns when the work is enqueued. Errors of kernels stick to the stream and come out of
// gs_stream_wait. A device and its stream belong to one thread at a time.
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/clock.h"
#include "core/status.h"
#include "kernels/kernels.h"

typedef struct gs_device gs_device;

typedef struct gs_device_options {
    int num_threads;  // CPU: compute threads, matrix products included; 0: one
    const char *isa;  // CPU: "baseline", "avx2", "avx512"; NULL: the best the machine has
} gs_device_options;

//   name  "cpu", "cuda:0"
GS_NODISCARD gs_status gs_device_open(gs_device **out, const char *name,
                                      const gs_device_options *options);
void gs_device_close(gs_device *device);

const char *gs_device_name(const gs_device *device);
int gs_device_num_threads(const gs_device *device);
const gs_kernels *gs_device_kernels(const gs_device *device);
gs_stream *gs_device_stream(gs_device *device);  // the compute stream; owned by the device

// Zeroed memory on 64-byte boundaries.
GS_NODISCARD gs_status gs_device_alloc(gs_device *device, void **memory, size_t bytes);
void gs_device_free(gs_device *device, void *memory);
// Between device memory and the host; done when it returns.
GS_NODISCARD gs_status gs_device_upload(gs_device *device, void *to, const void *host, size_t bytes);
GS_NODISCARD gs_status gs_device_download(gs_device *device, void *host, const void *from,
                                          size_t bytes);

// Everything enqueued so far is done; the first error that stuck since the last wait.
GS_NODISCARD gs_status gs_stream_wait(gs_stream *stream, gs_deadline deadline);
// Makes an error stick (launchers only). The first one wins.
void gs_stream_fail(gs_stream *stream, gs_status status);

// What decides the bits of a result on this device: "cpu/avx512 threads=1 openblas=SkylakeX …".
// Ranks of an exact job must agree on it.
void gs_device_arithmetic(const gs_device *device, char *text, size_t text_bytes);

// Runs body(ctx, i) for i in [0, num_items) on the device's threads; which thread takes which item is
// free, so that each item's result must depend on the item alone. CPU only.
void gs_stream_for_each(gs_stream *stream, size_t num_items, void (*body)(void *ctx, size_t item),
                        void *ctx);

#endif
