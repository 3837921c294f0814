// Bytes of which most are zeros, written short: a zero stands for as many as the byte behind it says. Plain.
#ifndef WORKER_CONTROL_SQUEEZED_H
#define WORKER_CONTROL_SQUEEZED_H

#include <stdbool.h>
#include <stddef.h>

// How many bytes `bytes` of them become at most.
#define GS_SQUEEZED_MOST(bytes) (2 * (bytes))

// To `out`, which has room for GS_SQUEEZED_MOST(bytes). Returns how many they are.
size_t gs_squeeze(unsigned char *out, const void *data, size_t bytes);
// False when they do not become as many as that.
bool gs_unsqueeze(void *data, size_t bytes, const unsigned char *squeezed, size_t squeezed_bytes);

#endif
