#include "worker/telemetry/link_timing.h"

#include "core/clock.h"

gs_status gs_link_agree_on_most(gs_comm *comm, double *numbers, size_t count, double timeout_seconds) {
    return gs_comm_run(comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = numbers,
                                        .recv = numbers,
                                        .count = count,
                                        .dtype = GS_FP64,
                                        .op = GS_OP_MAX,
                                        .bucket = -1},
                       gs_deadline_in_seconds(timeout_seconds));
}

gs_status gs_link_time_sum(double *seconds, gs_comm *comm, float *memory, size_t bytes, double timeout_seconds) {
    GS_TRY(gs_comm_run(comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}, gs_deadline_in_seconds(timeout_seconds)));
    int64_t begin_ns = gs_now_ns();
    GS_TRY(gs_comm_run(comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = memory,
                                        .recv = memory,
                                        .count = bytes / sizeof *memory,
                                        .dtype = GS_FP32,
                                        .op = GS_OP_SUM,
                                        .bucket = -1},
                       gs_deadline_in_seconds(timeout_seconds)));
    *seconds = gs_seconds_since(begin_ns);
    return gs_link_agree_on_most(comm, seconds, 1, timeout_seconds);
}
