#include "tests/fault/summands.h"

#include <stdlib.h>
#include <string.h>

#define SMALL_COUNT 240

// The last is small: all of it is there long before the one that it comes behind is done.
void summands_init(summands *own, size_t large) {
    *own = (summands){.counts = {SMALL_COUNT, large, SMALL_COUNT}};
    for (int k = 0; k < SUMMANDS; k++) own->data[k] = malloc(own->counts[k] * sizeof *own->data[k]);
}

void summands_release(summands *own) {
    for (int k = 0; k < SUMMANDS; k++) free(own->data[k]);
}

gs_status summands_add(summands *own, comm_rank *self, double seconds) {
    gs_deadline deadline = gs_deadline_in_seconds(seconds);
    for (int k = 0; k < SUMMANDS; k++)
        fill_pattern(own->data[k], GS_FP32, own->counts[k], own->seed + (uint64_t)k, self->rank, 0);
    memset(own->works, 0xff, sizeof own->works);  // none that was posted
    for (int k = 0; k < SUMMANDS; k++) {
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = own->data[k],
                             .recv = own->data[k],
                             .count = own->counts[k],
                             .dtype = GS_FP32,
                             .step = (int64_t)own->seed,
                             .bucket = k};
        GS_TRY(gs_comm_post(self->comm, &own->works[k], &sum));
    }
    for (int k = 0; k < SUMMANDS; k++) GS_TRY(gs_comm_wait(self->comm, own->works[k], deadline));
    return gs_ok();
}

gs_status summands_check(const summands *own, const comm_rank *self) {
    for (int k = 0; k < SUMMANDS; k++) {
        bool is_done = gs_comm_done(self->comm, own->works[k]);
        int rank = is_done ? -1 : self->rank;
        gs_status status = check_pattern(own->data[k], GS_FP32, own->counts[k], own->seed + (uint64_t)k, rank, self->world_size, 0);
        GS_TRY(gs_status_prefix(status, "sum %d is %s", k, is_done ? "done" : "not done"));
    }
    return gs_ok();
}
