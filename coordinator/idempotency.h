// Idempotency keys of CreateJob: which key made which job, for 24 hours. Loop thread; kept in the store.
#ifndef COORDINATOR_IDEMPOTENCY_H
#define COORDINATOR_IDEMPOTENCY_H

#include <stdint.h>

#include "coordinator/job_store.h"
#include "core/digest.h"
#include "core/status.h"

typedef struct gs_keys gs_keys;

typedef struct gs_key {
    char *key;  // owned
    char fingerprint[GS_DIGEST_TEXT_LEN];
    uint64_t job;
    int64_t expires_ms;
    int in_flight;  // the job is not committed yet
} gs_key;

#define GS_KEY_LIFE_MS (INT64_C(24) * 3600 * 1000)

GS_NODISCARD gs_status gs_keys_create(gs_keys **out, gs_job_store *store);
void gs_keys_destroy(gs_keys *keys);
gs_key *gs_keys_find(gs_keys *keys, const char *key, int64_t now_ms);  // NULL: not known
gs_key *gs_keys_add(gs_keys *keys, const char *key, const char *fingerprint, uint64_t job,
                    int64_t expires_ms);  // NULL: out of memory
void gs_keys_remove(gs_keys *keys, const char *key);
void gs_keys_expire(gs_keys *keys, int64_t now_ms);

#endif
