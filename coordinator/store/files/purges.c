#include "coordinator/store/files/purges.h"

#include <stdlib.h>

#include "coordinator/model/memory.h"

typedef struct purge {
    uint64_t job;
    int64_t at_ns;
} purge;

struct gs_purges {
    purge *items;  // owned
    size_t count, reserved;
};

gs_purges *gs_purges_create(void) { return gs_model_alloc(1, sizeof(gs_purges)); }

void gs_purges_destroy(gs_purges *purges) {
    if (!purges) return;
    free(purges->items);
    free(purges);
}

void gs_purges_owe(gs_purges *purges, uint64_t job, int64_t at_ns) {
    purges->items = gs_model_grow(purges->items, purges->count, &purges->reserved, sizeof *purges->items);
    purges->items[purges->count++] = (purge){job, at_ns};
}

bool gs_purges_next(gs_purges *purges, uint64_t *job, int64_t now_ns) {
    for (size_t i = 0; i < purges->count; i++) {
        if (purges->items[i].at_ns > now_ns) continue;
        *job = purges->items[i].job;
        purges->items[i] = purges->items[--purges->count];
        return true;
    }
    return false;
}
