#include "gradsync/comm/net/secret.h"

#include <errno.h>
#include <sys/random.h>

gs_net_secret gs_net_secret_prove(const gs_net_secret *key, const void *data, size_t bytes) {
    gs_net_secret proof;
    gs_siphash(proof.bytes, key->bytes, data, bytes);
    return proof;
}

gs_status gs_net_secret_draw(gs_net_secret *out) {
    ssize_t got = getrandom(out->bytes, sizeof out->bytes, 0);
    if (got != (ssize_t)sizeof out->bytes) return gs_error_from_errno(errno, "random numbers");
    return gs_ok();
}

int gs_net_secret_differs(const gs_net_secret *a, const gs_net_secret *b) {
    unsigned difference = 0;
    for (size_t i = 0; i < sizeof a->bytes; i++) difference |= a->bytes[i] ^ b->bytes[i];
    return difference != 0;
}
