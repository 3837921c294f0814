// A device: memory, a compute stream, and the table of kernels that runs on it.
//
// "cpu" is always there. "cuda:N" is UNIMPLEMENTED in a build without CUDA, UNAVAILABLE on a machine
// without such a device. On the CPU a stream is the calling thread with the device's helper threads: a
// launcher returns when its work is done. On a GPU it returns when the work is enqueued. Errors of kernels
// stick to the stream and come out of gs_stream_wait.
//
// Threads: one at a time calls a device and what belongs to it, any; the next call begins behind the end of the
// last. Its helper threads are its own. Names and facts may be read from anywhere while it is open.
//
// Three kinds of memory: the host's, the device's, and pinned host memory, which both may touch. What
// kernels write to pinned memory is there for the host after gs_stream_wait; what the host writes there is
// for kernels that are launched later. On the CPU all three are one.
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/status.h"
#include "kernels/device_options.h"
#include "kernels/kernels.h"

GS_BEGIN_DECLS

struct gs_half_kernels;            // kernels/half.h

// What a GPU is, for those who give them out. Strings end with 0.
typedef struct gs_device_facts {
    char name[96];                 // "NVIDIA H200"
    char uuid[48];                 // "GPU-…"
    uint64_t memory_bytes, free_bytes;
    int capability_major, capability_minor;
    int driver_version, runtime_version;  // as CUDA counts: 13000 is 13.0
    int num_multiprocessors;
} gs_device_facts;

//   name  "cpu", "cuda:0"
GS_NODISCARD gs_status gs_device_open_sized(gs_device **out, const char *name,
                                            const gs_device_options *options, size_t options_bytes);
GS_NODISCARD static inline gs_status gs_device_open(gs_device **out, const char *name,
                                                    const gs_device_options *options) {
    return gs_device_open_sized(out, name, options, sizeof *options);
}
void gs_device_close(gs_device *device);

// How many CUDA devices this process sees; 0 with the reason in `why` where there is no driver, no device,
// or no CUDA in this build. Touches the driver: the agent asks a child process (worker/agent/host/device_probe.h).
int gs_cuda_device_count(char *why, size_t why_bytes);
GS_NODISCARD gs_status gs_cuda_device_facts(gs_device_facts *facts, int ordinal);

const char *gs_device_name(const gs_device *device);
// Whether the host reads and writes the device's memory as its own.
bool gs_device_is_host(const gs_device *device);
// An error was seen after which every call of this process to it fails: what it held is gone.
bool gs_device_is_lost(gs_device *device);
int gs_device_num_threads(const gs_device *device);
const gs_kernels *gs_device_kernels(const gs_device *device);
// Of 16-bit training; NULL where the device has none of this type (kernels/half.h).
const struct gs_half_kernels *gs_device_half_kernels(const gs_device *device, gs_dtype dtype);
gs_stream *gs_device_stream(gs_device *device);  // the compute stream; owned by the device

// Zeroed memory on 64-byte boundaries.
GS_NODISCARD gs_status gs_device_alloc(gs_device *device, void **memory, size_t bytes);
void gs_device_free(gs_device *device, void *memory);
// Between device memory and the host; done when it returns.
GS_NODISCARD gs_status gs_device_upload(gs_device *device, void *to, const void *host, size_t bytes);
GS_NODISCARD gs_status gs_device_download(gs_device *device, void *host, const void *from,
                                          size_t bytes);

// Whether `memory` is of a device: the host cannot touch it, and collectives may move it without the host.
// False on the CPU, and for pinned memory.
bool gs_device_is_device_memory(gs_device *device, const void *memory);

// Zeroed pinned memory of the host on 64-byte boundaries, which kernels reach as well, and to and from which copies
// run beside the host. It is never paged out, so what is large there is foretold: an optimizer's state
// (gs_optimizer_options.state_on_host), else tables and pieces. On the CPU it is memory as any other.
GS_NODISCARD gs_status gs_device_alloc_pinned(gs_device *device, void **memory, size_t bytes);
void gs_device_free_pinned(gs_device *device, void *memory);

// Another stream of the device. Its kernels run beside those of other streams.
GS_NODISCARD gs_status gs_stream_create(gs_stream **out, gs_device *device,
                                        gs_stream_priority priority);
void gs_stream_destroy(gs_stream *stream);  // waits for its work, 10 s at most; not the compute stream
// The stream as the vendor's libraries know it (a cudaStream_t); NULL on the CPU.
void *gs_stream_native(gs_stream *stream);
// What `follower` is given from now on starts behind the point of `leader`: all that it was given so far, or
// the event that gs_stream_set_point said.
void gs_stream_follow(gs_stream *follower, gs_stream *leader);
// Until it is NULL again, `event` is where others that follow this stream start: for the host that launched
// a graph as a whole and now hands out its parts. Borrowed.
void gs_stream_set_point(gs_stream *stream, gs_event *event);

// Until it is NULL again, `factor` counts for updates that this stream is given: adamw, adamw_many and sgd read it in the
// device's memory when they run, instead of grad_scale, and leave everything as it is where it does not apply. For a host
// that enqueues an update before it knows what grad_factor makes of the norm. Those that write beside fail. Borrowed
// until they have run.
void gs_stream_set_factor(gs_stream *stream, const gs_grad_factor *factor);

// An event that was never recorded is done. `timed`: gs_event_elapsed may be asked.
GS_NODISCARD gs_status gs_event_create(gs_event **out, gs_device *device, bool timed);
void gs_event_destroy(gs_event *event);
void gs_event_record(gs_event *event, gs_stream *stream);  // while capturing: each launch records it
// *done without waiting. An error of the machine is returned, not kept.
GS_NODISCARD gs_status gs_event_query(gs_event *event, bool *done);
GS_NODISCARD gs_status gs_event_elapsed(const gs_event *from, const gs_event *to, int64_t *ns);
void gs_stream_wait_event(gs_stream *stream, gs_event *event);

// From begin to end what the stream is given is kept and not run; launchers called between must be given
// the same pointers and scalars as at every later launch. UNIMPLEMENTED where the device has no graphs.
bool gs_device_has_graphs(const gs_device *device);
GS_NODISCARD gs_status gs_graph_begin(gs_stream *stream);
GS_NODISCARD gs_status gs_graph_end(gs_graph **out, gs_stream *stream);  // ends capturing in any case
GS_NODISCARD gs_status gs_graph_launch(gs_graph *graph, gs_stream *stream);
void gs_graph_destroy(gs_graph *graph);

// Everything enqueued so far is done; the first error that stuck since the last wait.
GS_NODISCARD gs_status gs_stream_wait(gs_stream *stream, gs_deadline deadline);
// The first error that has stuck by now, taken off without a wait: that of a launch sticks when it is made.
GS_NODISCARD gs_status gs_stream_take_error(gs_stream *stream);
// Makes an error stick (launchers only). The first one wins.
void gs_stream_fail(gs_stream *stream, gs_status status);

// What decides the bits of a result on this device: "cpu/avx512 threads=1 openblas=SkylakeX …".
// Ranks of an exact job must agree on it.
void gs_device_arithmetic(const gs_device *device, char *text, size_t text_bytes);
// What of the environment makes this device slower than it is: "openblas held below AVX-512 by
// OPENBLAS_CORETYPE=Haswell", or "". Not part of the arithmetic: a faster machine that is held so
// has the bits of a slower one, and both may share an exact job.
void gs_device_limit(const gs_device *device, char *text, size_t text_bytes);

// Runs body(ctx, i) for i in [0, num_items) on the device's threads; which thread takes which item is
// free, so that each item's result must depend on the item alone. CPU only.
void gs_stream_for_each(gs_stream *stream, size_t num_items, void (*body)(void *ctx, size_t item),
                        void *ctx);

GS_END_DECLS

#endif
