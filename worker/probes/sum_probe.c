#include "worker/probes/sum_probe.h"

#include <stdio.h>

#include "gradsync/comm/comm.h"

#define BURST_SECONDS 0.4
#define LEAST_SUMS 2
#define MOST_SUMS 50
#define PATTERN 7  // small whole numbers, whose sums are exact

const size_t gs_sum_sizes[GS_SUM_NUM_SIZES] = {1024, 8192, 65536, 262144, 1048576, 4194304, 16777216, 26214400};

typedef struct probe {
    gs_comm *comm;
    float *data;
    int rank, world_size;
    gs_deadline deadline;
} probe;

static gs_status add_up(const probe *self, size_t bytes, double scale) {
    return gs_comm_run(self->comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = self->data,
                                        .recv = self->data,
                                        .count = bytes / sizeof *self->data,
                                        .dtype = GS_FP32,
                                        .scale = scale,
                                        .bucket = -1},
                       self->deadline);
}

static gs_status agree(const probe *self, double *number, gs_reduce_op op) {
    return gs_comm_run(
        self->comm,
        &(gs_collective){
            .kind = GS_ALLREDUCE, .send = number, .recv = number, .count = 1, .dtype = GS_FP64, .op = op, .bucket = -1},
        self->deadline);
}

static gs_status meet(const probe *self) {
    return gs_comm_run(self->comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}, self->deadline);
}

static float value_of(size_t element, int rank) { return (float)((int)(element % PATTERN) + rank); }

// The first of a size: whether it is right, and how long about one takes.
static gs_status check(const probe *self, gs_sum_size *size) {
    size_t count = size->bytes / sizeof *self->data;
    double num_wrong = 0;
    for (size_t i = 0; i < count; i++) self->data[i] = value_of(i, self->rank);
    GS_TRY(meet(self));
    int64_t begin_ns = gs_now_ns();
    GS_TRY(add_up(self, size->bytes, 1));
    size->seconds = gs_seconds_since(begin_ns);
    for (size_t i = 0; i < count; i++) {
        float wanted = 0;
        for (int rank = 0; rank < self->world_size; rank++) wanted += value_of(i, rank);
        num_wrong += self->data[i] != wanted;
    }
    GS_TRY(agree(self, &num_wrong, GS_OP_SUM));
    size->num_wrong = (uint64_t)num_wrong;
    return agree(self, &size->seconds, GS_OP_MAX);
}

static int num_sums_for(double seconds) {
    double num_sums = seconds > 0 ? BURST_SECONDS / seconds : MOST_SUMS;
    return num_sums < LEAST_SUMS ? LEAST_SUMS : num_sums > MOST_SUMS ? MOST_SUMS : (int)num_sums;
}

// A mean of equal numbers stays what it is.
static gs_status time_sums(const probe *self, gs_sum_size *size, int num_sums) {
    GS_TRY(meet(self));
    int64_t begin_ns = gs_now_ns();
    for (int i = 0; i < num_sums; i++) GS_TRY(add_up(self, size->bytes, 1.0 / self->world_size));
    size->seconds = gs_seconds_since(begin_ns) / num_sums;
    return agree(self, &size->seconds, GS_OP_MAX);
}

// What ranks go by is agreed, so all of them leave out the same sizes.
static gs_status measure(const probe *self, gs_sum_facts *out, double most_seconds) {
    double spent_seconds = 0;
    for (int i = 0; i < GS_SUM_NUM_SIZES; i++) {
        const gs_sum_size *before = i ? &out->sizes[i - 1] : NULL;
        gs_sum_size *size = &out->sizes[i];
        size->bytes = gs_sum_sizes[i];
        double expected = before ? before->seconds * (double)size->bytes / (double)before->bytes : 0;
        if (spent_seconds + (1 + LEAST_SUMS) * expected > most_seconds) break;
        GS_TRY(check(self, size));
        spent_seconds += size->seconds;
        int num_sums = num_sums_for(size->seconds);
        GS_TRY(time_sums(self, size, num_sums));
        spent_seconds += num_sums * size->seconds;
        out->num_sizes = i + 1;
    }
    return gs_ok();
}

static gs_status run(gs_sum_facts *out, const gs_sum_options *options, gs_device *device, gs_arena *arena, double most_seconds,
                     gs_deadline deadline) {
    const gs_comm_options wanted = {.backend = options->backend,
                                    .rank = options->rank,
                                    .world_size = options->world_size,
                                    .generation = options->generation,
                                    .exchange = options->exchange,
                                    .exchange_ctx = options->exchange_ctx,
                                    .arena = arena,
                                    .device = device,
                                    .interrupt = options->interrupt,
                                    .interrupt_ctx = options->interrupt_ctx,
                                    .data_address = options->data_address};
    probe self = {.data = gs_arena_data(arena), .rank = options->rank, .world_size = options->world_size, .deadline = deadline};
    GS_TRY(gs_comm_create(&self.comm, &wanted, deadline));
    snprintf(out->backend, sizeof out->backend, "%s", gs_comm_backend_name(self.comm));
    snprintf(out->reason, sizeof out->reason, "%s", gs_comm_backend_reason(self.comm));
    gs_status status = measure(&self, out, most_seconds);
    gs_comm_destroy(self.comm);
    return status;
}

gs_status gs_sum_probe_run(gs_sum_facts *out, const gs_sum_options *options, double most_seconds, gs_deadline deadline) {
    gs_device *device;
    gs_arena *arena = NULL;
    *out = (gs_sum_facts){0};
    GS_TRY(gs_device_open(&device, "cpu", &(gs_device_options){.num_threads = 1}));
    gs_status status = gs_arena_create(&arena, gs_sum_sizes[GS_SUM_NUM_SIZES - 1]);
    if (!status.code) status = run(out, options, device, arena, most_seconds, deadline);
    gs_arena_destroy(arena);
    gs_device_close(device);
    return status;
}
