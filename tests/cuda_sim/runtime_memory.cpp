// Memory, copies and fills of the runtime.
#include <cstdlib>
#include <cstring>

#include "tests/cuda_sim/call.h"
#include "tests/cuda_sim/memory.h"

using namespace sim;

namespace {

struct copy_plan {
    void *to;
    const void *from;
    size_t bytes;
    bool reads_pageable, writes_pageable;
};

bool holds(const memory_range &range, const void *address, size_t bytes) {
    return bytes <=
           range.bytes - static_cast<size_t>(static_cast<const char *>(address) - range.base);
}

// Whether an address is what a direction says, and what was allocated there is long enough.
bool fits(const memory_range &range, const void *address, size_t bytes, bool on_device) {
    if ((range.kind == DEVICE_MEMORY) != on_device) return false;
    return range.kind == HOST_MEMORY || (range.base && holds(range, address, bytes));
}

cudaError_t plan_copy(copy_plan *plan, void *to, const void *from, size_t bytes,
                      cudaMemcpyKind kind) {
    memory_range target = memory_find(to), source = memory_find(from);
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault) {
        to_device = target.kind == DEVICE_MEMORY;
        from_device = source.kind == DEVICE_MEMORY;
    } else if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
        return cudaErrorInvalidMemcpyDirection;
    }
    if (!to || !from) return cudaErrorInvalidValue;
    if (!fits(target, to, bytes, to_device) || !fits(source, from, bytes, from_device))
        return cudaErrorInvalidValue;
    *plan = {to, from, bytes, source.kind == HOST_MEMORY, target.kind == HOST_MEMORY};
    return cudaSuccess;
}

bool still_there(const void *address, size_t bytes) {
    memory_range range = memory_find(address);
    return range.kind != DEVICE_MEMORY || (range.base && holds(range, address, bytes));
}

task copy_task(const copy_plan &plan, bool staged) {
    task what;
    what.name = "copy";
    std::shared_ptr<std::vector<char>> kept;
    if (plan.reads_pageable && staged) {
        // Staged before the call returns, as the driver does.
        const char *from = static_cast<const char *>(plan.from);
        kept = std::make_shared<std::vector<char>>(from, from + plan.bytes);
    }
    what.run = [plan, kept](std::string *why) {
        if (!still_there(plan.to, plan.bytes) || !still_there(plan.from, plan.bytes)) {
            *why = "a copy ran after its device memory was freed";
            return GS_SIM_FAILED;
        }
        memmove(plan.to, kept ? kept->data() : plan.from, plan.bytes);
        return GS_SIM_DONE;
    };
    return what;
}

cudaError_t copy_async(call &here, void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                       cudaStream_t handle, bool wait) {
    if (here.error) return here.error;
    CUstream_st *stream = here.find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!bytes) return cudaSuccess;
    copy_plan plan;
    cudaError_t error = plan_copy(&plan, to, from, bytes, kind);
    if (error) return error;
    bool captured = stream->capturing != nullptr;
    error = stream_submit(here.self, stream, copy_task(plan, !captured && !wait));
    if (error) return error;
    here.self.counters.copies++;
    bool pageable = plan.reads_pageable || plan.writes_pageable;
    if (pageable && !wait) here.self.counters.pageable_copies++;
    if (captured || !(wait || plan.writes_pageable)) return cudaSuccess;
    return here.wait({stream->tail});
}

cudaError_t fill_async(call &here, void *to, int value, size_t bytes, cudaStream_t handle) {
    if (here.error) return here.error;
    CUstream_st *stream = here.find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!bytes) return cudaSuccess;
    memory_range target = memory_find(to);
    if (target.kind == HOST_MEMORY || !target.base || !holds(target, to, bytes))
        return cudaErrorInvalidValue;
    task what;
    what.name = "fill";
    what.run = [to, value, bytes](std::string *why) {
        if (!still_there(to, bytes)) {
            *why = "a fill ran after its device memory was freed";
            return GS_SIM_FAILED;
        }
        memset(to, value, bytes);
        return GS_SIM_DONE;
    };
    return stream_submit(here.self, stream, what);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    call here;
    cudaError_t error = memory ? here.check_safe() : cudaErrorInvalidValue;
    if (error) return keep_error(error);
    *memory = nullptr;
    if (!bytes) return cudaSuccess;
    if (!memory_allocate(memory, here.device, bytes)) return keep_error(cudaErrorMemoryAllocation);
    here.self.counters.mallocs++;
    return cudaSuccess;
}

// Waits for all work of the device first, as the driver does.
cudaError_t cudaFree(void *memory) {
    call here;
    if (!memory) return keep_error(here.error);
    cudaError_t error = here.check_safe();
    if (error) return keep_error(error);
    error = here.wait(device_tails(here.self, here.device));
    if (error) return keep_error(error);
    if (!memory_free(memory)) return keep_error(cudaErrorInvalidValue);
    here.self.counters.frees++;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
    call here;
    if (here.error) return keep_error(here.error);
    if (left) *left = memory_left(here.device);
    if (total) *total = memory_total();
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags) {
    call here;
    unsigned known = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    cudaError_t error = memory && !(flags & ~known) ? here.check_safe() : cudaErrorInvalidValue;
    if (error) return keep_error(error);
    *memory = nullptr;
    if (!bytes) return cudaSuccess;
    void *made = nullptr;
    if (posix_memalign(&made, 4096, bytes)) return keep_error(cudaErrorMemoryAllocation);
    memset(made, 0xff, bytes);
    pinned_add(made, bytes, here.device, false);
    here.self.counters.mallocs++;
    *memory = made;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes) {
    return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *memory) {
    call here;
    if (!memory) return keep_error(here.error);
    cudaError_t error = here.check_safe();
    if (error) return keep_error(error);
    error = here.wait(device_tails(here.self, here.device));
    if (!pinned_remove(memory, false)) return keep_error(cudaErrorInvalidValue);
    free(memory);
    here.self.counters.frees++;
    return keep_error(error);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags) {
    (void)flags;
    call here;
    cudaError_t error = memory && bytes ? here.check_safe() : cudaErrorInvalidValue;
    if (error) return keep_error(error);
    if (memory_find(memory).kind == DEVICE_MEMORY) return keep_error(cudaErrorInvalidValue);
    bool added = pinned_add(memory, bytes, here.device, true);
    return keep_error(added ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void *memory) {
    call here;
    cudaError_t error = here.check_safe();
    if (error) return keep_error(error);
    return keep_error(pinned_remove(memory, true) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags) {
    call here;
    if (here.error) return keep_error(here.error);
    if (!out || flags || memory_find(host).kind != PINNED_MEMORY)
        return keep_error(cudaErrorInvalidValue);
    *out = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *address) {
    call here;
    if (!out) return keep_error(cudaErrorInvalidValue);
    if (here.error) return keep_error(here.error);
    memory_range range = memory_find(address);
    memset(out, 0, sizeof *out);
    bool registered = range.kind == PINNED_MEMORY,
         on_device = range.kind == DEVICE_MEMORY && range.base;
    out->type = on_device    ? cudaMemoryTypeDevice
                : registered ? cudaMemoryTypeHost
                             : cudaMemoryTypeUnregistered;
    out->device = on_device || registered ? range.device : -2;
    if (on_device || registered) out->devicePointer = const_cast<void *>(address);
    if (!on_device) out->hostPointer = const_cast<void *>(address);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    call here;
    return keep_error(copy_async(here, to, from, bytes, kind, stream, false));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    call here;
    cudaError_t error = here.check_safe();
    if (error) return keep_error(error);
    return keep_error(copy_async(here, to, from, bytes, kind, nullptr, true));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    call here;
    return keep_error(fill_async(here, to, value, bytes, stream));
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    call here;
    cudaError_t error = here.check_safe();
    if (error) return keep_error(error);
    return keep_error(fill_async(here, to, value, bytes, nullptr));
}
}
