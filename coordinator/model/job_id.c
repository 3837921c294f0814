#include "coordinator/model/job_id.h"

#include <string.h>

static const char alphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";

uint64_t gs_job_id_make(int64_t wall_ms, uint64_t random) {
    uint64_t time_bits = (uint64_t)wall_ms & ((UINT64_C(1) << 42) - 1);
    return time_bits << 18 | (random & ((UINT64_C(1) << 18) - 1));
}

void gs_job_id_format(char text[GS_JOB_ID_LEN], uint64_t id) {
    memcpy(text, "j-", 2);
    for (int i = 0; i < 12; i++) text[2 + i] = alphabet[id >> (55 - 5 * i) & 31];
    text[14] = '\0';
}

bool gs_job_id_parse(uint64_t *id, const char *text) {
    if (strncmp(text, "j-", 2) != 0 || strlen(text) != 14) return false;
    uint64_t value = 0;
    for (int i = 2; i < 14; i++) {
        const char *at = strchr(alphabet, text[i]);
        if (!at) return false;
        value = value << 5 | (uint64_t)(at - alphabet);
    }
    *id = value;
    return true;
}
