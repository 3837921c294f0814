// The GPUs that an agent gives out: those of the host that its options name, per_slot of them to each slot in
// order. A slot behind the last full group has none and runs on the CPU.
#ifndef WORKER_AGENT_HOST_HOST_DEVICES_H
#define WORKER_AGENT_HOST_HOST_DEVICES_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/json/json.h"

typedef struct gs_host_devices {
    gs_json *items;  // owned; as the probe found them, only those that are given out
    int count, per_slot;
    char nccl[48];     // version; "" where there is none
    char reason[192];  // why there is none
} gs_host_devices;

// `wanted`: "auto", "none", or ordinals, "0,2,3"; NULL is none. With "auto" a driver that does not answer is
// a reason, with ordinals an error, as is one that is not there. `probe`: what gs_device_probe_ask found,
// NULL with `failed` saying why there is nothing.
GS_NODISCARD gs_status gs_host_devices_choose(gs_host_devices *out, const char *wanted,
                                              int64_t per_slot, const gs_json *probe,
                                              gs_status failed);
void gs_host_devices_release(gs_host_devices *devices);

int gs_host_devices_of_slot(const gs_host_devices *devices, int slot);  // how many it has
// For CUDA_VISIBLE_DEVICES: "GPU-…,GPU-…"; "" without.
void gs_host_devices_visible(char *text, size_t text_bytes, const gs_host_devices *devices, int slot);
// Slots that the devices fill; at least 1.
int gs_host_devices_slots(const gs_host_devices *devices);
// Into AgentHello: devices, devices_per_slot, devices_reason, nccl.
void gs_host_devices_describe(gs_json *hello, const gs_host_devices *devices);

#endif
