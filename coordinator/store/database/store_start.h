// The tables of the store, made or brought to what this version knows; and the count of starts, one transaction.
#ifndef COORDINATOR_STORE_DATABASE_STORE_START_H
#define COORDINATOR_STORE_DATABASE_STORE_START_H

#include <stdint.h>

#include "coordinator/store/database/database.h"
#include "core/status.h"

// Numbers of events that are reserved ahead, by a start and by what is written: neither a deletion nor a crash behind
// what people have seen lets one be used twice. No life uses up half of them, also where nothing can be written; and two
// million starts stay below 2^53, which every reader of JSON takes.
#define GS_EVENT_BLOCK ((int64_t)1 << 32)

typedef struct gs_store_start {
    uint32_t coordinator_epoch;  // of this start, durable already
    uint32_t first_generation;   // [first, first + GS_GENERATION_BLOCK) belong to this start
    uint64_t next_sequence;      // of events
    char cluster[24];            // drawn when the database was made, or by the first version that knows of it
    uint64_t life;               // of this start; no other has it
} gs_store_start;

// The start is counted, and its numbers are reserved, before anybody sees either. *lived_ms: how long coordinators of this
// database have lived. FAILED_PRECONDITION: a later version has made it.
GS_NODISCARD gs_status gs_store_start_count(gs_store_start *start, int64_t *lived_ms, gs_database *database);

#endif
