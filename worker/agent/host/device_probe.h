// Which GPUs this host has, asked of a child process: the agent itself never touches a driver, which may
// hang, crash or keep memory, and its trainers come from a fork.
#ifndef WORKER_AGENT_HOST_DEVICE_PROBE_H
#define WORKER_AGENT_HOST_DEVICE_PROBE_H

#include "core/clock.h"
#include "core/status.h"
#include "rpc/json/json.h"
#include "worker/trainer_user.h"

// {devices: [{ordinal, uuid, name, memory_bytes, capability, driver, runtime}…], devices_reason, nccl,
// nccl_reason}: a reason where there is none. Touches the driver; for the child and for people who run
// `gradsync-worker devices`.
gs_json *gs_device_probe_here(void);

// Drivers are asked as trainers would ask them: by their user, with their variables (NULL: this process's own).
typedef struct gs_device_asker {
    const gs_trainer_user *user;
    char *const *environment;
} gs_device_asker;

// The same from a child of this program. Not OK: it did not answer by the deadline (killed then), or not
// with such a document.
GS_NODISCARD gs_status gs_device_probe_ask(gs_json **found, const gs_device_asker *asker, gs_deadline deadline);

#endif
