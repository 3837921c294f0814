// Proof that somebody knows a secret, without saying it.
#ifndef GRADSYNC_COMM_NET_SECRET_H
#define GRADSYNC_COMM_NET_SECRET_H

#include <stddef.h>
#include <stdint.h>

#include "core/siphash.h"
#include "core/status.h"

#define GS_NET_SECRET_BYTES GS_SIPHASH_BYTES

typedef struct gs_net_secret {
    uint8_t bytes[GS_NET_SECRET_BYTES];
} gs_net_secret;

// Of the kernel's random numbers: nobody can foretell it.
GS_NODISCARD gs_status gs_net_secret_draw(gs_net_secret *out);
gs_net_secret gs_net_secret_prove(const gs_net_secret *key, const void *data, size_t bytes);
// In a time that does not tell how many bytes were right.
int gs_net_secret_differs(const gs_net_secret *a, const gs_net_secret *b);

#endif
