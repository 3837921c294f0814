#include "coordinator/observe/reports/past_ranks.h"

#include <stdlib.h>
#include <string.h>

#include "core/digest.h"

static uint64_t hash_name(const char *worker) { return gs_hash64(worker, strlen(worker), 0); }

void gs_past_ranks_release(gs_past_ranks *past) {
    free(past->items);
    *past = (gs_past_ranks){0};
}

static bool make_room(gs_past_ranks *past) {
    if (past->count < past->reserved || past->reserved == GS_MOST_PAST_RANKS) return true;
    size_t reserved = past->reserved ? 2 * past->reserved : 4;
    gs_past_rank *items = realloc(past->items, reserved * sizeof *items);
    if (!items) return false;
    past->items = items;
    past->reserved = reserved;
    return true;
}

void gs_past_ranks_add(gs_past_ranks *past, const char *worker, int rank, uint32_t generation) {
    if (!make_room(past)) return;
    gs_past_rank added = {hash_name(worker), generation, rank};
    if (past->count < past->reserved) {
        past->items[past->count++] = added;
        return;
    }
    past->items[past->next] = added;
    past->next = (past->next + 1) % past->count;
}

bool gs_past_ranks_have(const gs_past_ranks *past, const char *worker, int64_t rank, int64_t generation) {
    uint64_t hash = hash_name(worker);
    for (size_t i = past->count; i-- > 0;) {
        const gs_past_rank *item = &past->items[i];
        if (item->worker == hash && item->rank == rank && (!generation || item->generation == generation)) return true;
    }
    return false;
}
