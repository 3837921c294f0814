#include "gradsync/hooks/hook_calls.h"

#include <string.h>

#include "core/clock.h"
#include "core/memory.h"

double gs_hook_option_value(const gs_hook_choice *choice, const char *name) {
    for (size_t i = 0; i < choice->num_numbers; i++) {
        if (strcmp(choice->numbers[i].name, name) == 0) return choice->numbers[i].number;
    }
    for (size_t i = 0; i < choice->hook->num_options; i++) {
        if (strcmp(choice->hook->options[i].name, name) == 0) return choice->hook->options[i].fallback;
    }
    return 0;
}

gs_status gs_hook_refuse_exact(const gs_hook_setup *setup) {
    if (!setup->exact) return gs_ok();
    return gs_error(GS_FAILED_PRECONDITION, "exact mode has plain sums alone");
}

gs_status gs_hook_check_own(const gs_hook_setup *setup) {
    GS_TRY(gs_hook_refuse_exact(setup));
    if (setup->divides_later)
        return gs_error(GS_FAILED_PRECONDITION,
                        "a sample mean is divided by the samples of all ranks");
    return gs_ok();
}

gs_status gs_hook_check_feedback(const gs_hook_setup *setup) {
    if (gs_hook_option_value(setup->choice, "error_feedback") == 0) return gs_ok();
    if (setup->exact)
        return gs_error(GS_FAILED_PRECONDITION, "option error_feedback: not in exact mode");
    if (setup->divides_later)
        return gs_error(GS_FAILED_PRECONDITION, "option error_feedback: not with a mean over samples");
    return gs_ok();
}

// A bucket of each parameter alone is the worst: rounding up a sum never passes the sum of the parts
// rounded up.
size_t gs_hook_most_bytes(const gs_hook_setup *setup, size_t element_bytes) {
    size_t total = 0, bytes;
    for (size_t i = 0; i < setup->num_params; i++) {
        if (__builtin_mul_overflow(setup->params[i].room, element_bytes, &bytes) ||
            __builtin_add_overflow(bytes, GS_HOOK_PLACE_BYTES - 1, &bytes) ||
            __builtin_add_overflow(total, bytes - bytes % GS_HOOK_PLACE_BYTES, &total))
            return SIZE_MAX;
    }
    return total;
}

gs_status gs_hook_place(void **memory, const gs_hook_plan *plan, size_t bytes) {
    gs_hook_memory *from = plan->memory;
    if (bytes > from->bytes - from->used)
        return gs_error(GS_RESOURCE_EXHAUSTED,
                        "its buckets need %zu bytes more than the %zu that it declared",
                        bytes - (from->bytes - from->used), from->bytes);
    *memory = from->data + from->used;
    from->used += gs_round_up(bytes, GS_HOOK_PLACE_BYTES);
    return gs_ok();
}

// In bytes of an all-reduce, of which a rank in a ring sends 2 (world - 1) / world: a gather or a
// scatter sends a part for every other rank, a sum for one of them half of one for all.
static size_t wire_bytes_of(const gs_collective *collective, int world_size) {
    size_t bytes = gs_collective_sent_bytes(collective);
    switch (collective->kind) {
    case GS_ALLGATHER:
    case GS_REDUCE_SCATTER: return bytes * (size_t)world_size / 2;
    case GS_BROADCAST:
    case GS_REDUCE: return bytes / 2;
    case GS_BARRIER: return 0;
    default: return bytes;
    }
}

gs_status gs_hook_post(gs_hook_work *work, const gs_hook_bucket *bucket,
                       const gs_collective *collective) {
    gs_collective posted = *collective;
    // Before other ranks could meet it, where they post something else.
    if (work->most_posts && work->num_posted == work->most_posts)
        return gs_error(GS_FAILED_PRECONDITION, "phase %d posted %d collectives, it declared %d",
                        work->phase, work->num_posted + 1, work->most_posts);
    posted.lane = work->lane;
    posted.step = bucket->step;
    posted.bucket = bucket->index;
    posted.num_active = bucket->num_active;
    int64_t begin_ns = gs_now_ns();
    GS_TRY(gs_comm_post(bucket->comm, &work->last, &posted));
    work->posting_ns += gs_now_ns() - begin_ns;
    size_t bytes = gs_collective_sent_bytes(&posted);
    if (!work->num_posted || bytes >= work->largest_bytes) {
        work->algorithm = gs_comm_algorithm(bucket->comm, &posted);
        work->largest_bytes = bytes;
    }
    work->num_posted++;
    work->wire_bytes += wire_bytes_of(&posted, gs_comm_world_size(bucket->comm));
    return gs_ok();
}

double gs_hook_scale_for(const gs_hook_bucket *bucket, int num_ranks) {
    return bucket->mean_ranks ? bucket->scale * bucket->mean_ranks / num_ranks : bucket->scale;
}

gs_status gs_hook_post_reserved(gs_hook_work *work, const gs_hook_bucket *bucket) {
    void *reserved = (char *)bucket->data + bucket->count * gs_dtype_bytes(bucket->dtype);
    return gs_hook_post(work, bucket,
                        &(gs_collective){.kind = GS_ALLREDUCE,
                                         .send = reserved,
                                         .recv = reserved,
                                         .count = bucket->reserved_count,
                                         .dtype = bucket->dtype,
                                         .op = GS_OP_SUM,
                                         .scale = bucket->scale});
}

void gs_hook_decide_nothing(void *state) {
    (void)state;
}

bool gs_hook_no_tensor(void *state, size_t index, gs_hook_tensor *tensor) {
    (void)state, (void)index, (void)tensor;
    return false;
}

gs_status gs_hook_load_nothing(void *state) {
    (void)state;
    return gs_ok();
}
