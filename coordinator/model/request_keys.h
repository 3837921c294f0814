// Idempotency keys of CreateJob: which key made which job, for 24 hours in which a coordinator is there.
#ifndef COORDINATOR_MODEL_REQUEST_KEYS_H
#define COORDINATOR_MODEL_REQUEST_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/u64_map.h"

typedef struct gs_request_key {
    char *key;  // owned
    char fingerprint[GS_DIGEST_TEXT_LEN];
    uint64_t job;
    int64_t expires_ns;  // on this life's clock
    bool in_flight;      // the job is not durable yet
} gs_request_key;

typedef struct gs_request_keys {  // {0} is empty
    gs_request_key *items;        // owned
    size_t count, reserved;
    gs_u64_map by_hash;           // index + 1; of keys that have one hash, of one of them
    size_t num_twins;             // keys that came with the hash of another, ever
} gs_request_keys;

#define GS_KEY_LIFE_NS (INT64_C(24) * 3600 * 1000000000)

void gs_request_keys_release(gs_request_keys *keys);
gs_request_key *gs_request_keys_find(const gs_request_keys *keys, const char *key, int64_t now_ns);  // NULL: not known
gs_request_key *gs_request_keys_add(gs_request_keys *keys, const char *key, const char *fingerprint, uint64_t job,
                                    int64_t expires_ns);
void gs_request_keys_remove(gs_request_keys *keys, const char *key);
void gs_request_keys_remove_job(gs_request_keys *keys, uint64_t job);  // all that name it
void gs_request_keys_expire(gs_request_keys *keys, int64_t now_ns);

#endif
