#include "tests/support/comm_rank.h"

#define PERIOD 11
#define OPEN_SECONDS 30.0

gs_status comm_rank_open(comm_rank *self, const gs_rank_env *env, size_t arena_bytes,
                         const gs_comm_options *options) {
    *self = (comm_rank){.rank = env->rank, .world_size = env->world_size};
    GS_TRY(gs_device_open(&self->device, "cpu", &(gs_device_options){.num_threads = 1}));
    if (arena_bytes) GS_TRY(gs_arena_create(&self->arena, arena_bytes));
    gs_comm_options all = options ? *options : (gs_comm_options){0};
    if (!all.generation) all.generation = 1;
    all.rank = env->rank;
    all.world_size = env->world_size;
    if (!all.exchange) {
        all.exchange = gs_rank_exchange;
        all.exchange_ctx = env->exchange;
    }
    all.arena = self->arena;
    all.device = self->device;
    return gs_comm_create(&self->comm, &all, gs_deadline_in_seconds(OPEN_SECONDS));
}

void comm_rank_close(comm_rank *self) {
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_device_close(self->device);
    *self = (comm_rank){0};
}

int pattern_value(uint64_t seed, int rank, size_t index) {
    size_t phase = (index + (size_t)(seed % PERIOD)) % PERIOD;
    return (int)(phase * 7 % PERIOD) + rank % 5;  // 0 … 14
}

static void put_value(void *data, gs_dtype dtype, size_t index, int value) {
    switch (dtype) {
    case GS_FP32:
        ((float *)data)[index] = (float)value;
        break;
    case GS_FP64:
        ((double *)data)[index] = (double)value;
        break;
    case GS_FP16:
        ((uint16_t *)data)[index] = gs_fp32_to_fp16((float)value);
        break;
    case GS_BF16:
        ((uint16_t *)data)[index] = gs_fp32_to_bf16((float)value);
        break;
    case GS_I64:
        ((int64_t *)data)[index] = value;
        break;
    case GS_I32:
        ((int32_t *)data)[index] = value;
        break;
    default:
        ((uint8_t *)data)[index] = (uint8_t)value;
        break;
    }
}

static double value_at(const void *data, gs_dtype dtype, size_t index) {
    switch (dtype) {
    case GS_FP32:
        return (double)((const float *)data)[index];
    case GS_FP64:
        return ((const double *)data)[index];
    case GS_FP16:
        return (double)gs_fp16_to_fp32(((const uint16_t *)data)[index]);
    case GS_BF16:
        return (double)gs_bf16_to_fp32(((const uint16_t *)data)[index]);
    case GS_I64:
        return (double)((const int64_t *)data)[index];
    case GS_I32:
        return (double)((const int32_t *)data)[index];
    default:
        return (double)((const uint8_t *)data)[index];
    }
}

void fill_pattern(void *data, gs_dtype dtype, size_t count, uint64_t seed, int rank, size_t first) {
    int values[PERIOD];
    for (size_t i = 0; i < PERIOD; i++) values[i] = pattern_value(seed, rank, first + i);
    for (size_t i = 0; i < count; i++) put_value(data, dtype, i, values[i % PERIOD]);
}

gs_status check_pattern(const void *data, gs_dtype dtype, size_t count, uint64_t seed, int rank,
                        int world_size, size_t first) {
    double expected[PERIOD] = {0};
    for (size_t i = 0; i < PERIOD; i++) {
        for (int r = rank < 0 ? 0 : rank; r < (rank < 0 ? world_size : rank + 1); r++)
            expected[i] += pattern_value(seed, r, first + i);
    }
    for (size_t i = 0; i < count; i++) {
        double value = value_at(data, dtype, i);
        if (value != expected[i % PERIOD])
            return gs_error(GS_DATA_LOSS, "%s element %zu of %zu is %g instead of %g",
                            gs_dtype_name(dtype), i, count, value, expected[i % PERIOD]);
    }
    return gs_ok();
}
