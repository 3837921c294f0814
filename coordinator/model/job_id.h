// Names of jobs for machines: 42 bits of time in milliseconds, 18 random bits; for people `j-` and 12
// characters of lower-case base32 (Crockford's alphabet), which sort like the numbers.
#ifndef COORDINATOR_MODEL_JOB_ID_H
#define COORDINATOR_MODEL_JOB_ID_H

#include <stdbool.h>
#include <stdint.h>

#define GS_JOB_ID_LEN 15  // "j-", 12 characters, NUL

uint64_t gs_job_id_make(int64_t wall_ms, uint64_t random);
void gs_job_id_format(char text[GS_JOB_ID_LEN], uint64_t id);
bool gs_job_id_parse(uint64_t *id, const char *text);

#endif
