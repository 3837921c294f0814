#include "tests/support/phased_hook.h"

#include <stdlib.h>

#include "gradsync/comm/work_stream.h"
#include "gradsync/hooks/hook_calls.h"
#include "tests/support/device_memory.h"

typedef struct phased {
    gs_hook_choice inner_choice;
    void *inner;
    int num_tokens, world_size;
    gs_device *device;
    int64_t **tokens;  // of each bucket
    void **copies;     // the same; NULL: exact mode
    bool exact;
} phased;

static const gs_hook_option options[] = {
    {.name = "tokens", .fallback = 1, .least = 0, .most = 6, .is_whole = true}};

static gs_hook_setup inner_setup(const gs_hook_setup *setup) {
    gs_hook_setup inner = *setup;
    inner.choice = setup->choice->inner;
    return inner;
}

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    gs_hook_setup inner = inner_setup(setup);
    GS_TRY(inner.choice->hook->measure(needs, &inner));
    if (!needs->num_phases) needs->num_phases = 1;
    needs->num_phases += (int)gs_hook_option_value(setup->choice, "tokens");
    needs->bucket_bytes += setup->num_params * GS_HOOK_PLACE_BYTES;
    // Behind gradients the reserved elements, a line and 8 for each parameter at most.
    if (!setup->exact)
        needs->bucket_bytes += gs_hook_most_bytes(setup, sizeof(double)) +
                               setup->num_params * 2 * GS_HOOK_PLACE_BYTES;
    return gs_ok();
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    gs_hook_setup inner = inner_setup(setup);
    phased *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->inner_choice = *inner.choice;
    self->num_tokens = (int)gs_hook_option_value(setup->choice, "tokens");
    self->device = setup->device;
    self->exact = setup->exact;
    gs_status status = inner.choice->hook->create(&self->inner, &inner);
    if (status.code) free(self);
    else *state = self;
    return status;
}

static size_t bytes_of(const gs_hook_layout *bucket) {
    return (bucket->count + bucket->reserved_count) * gs_dtype_bytes(bucket->dtype);
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    phased *self = state;
    self->world_size = gs_comm_world_size(plan->comm);
    free(self->tokens);
    free(self->copies);
    self->tokens = calloc(plan->num_buckets, sizeof *self->tokens);
    self->copies = calloc(plan->num_buckets, sizeof *self->copies);
    for (size_t b = 0; b < plan->num_buckets; b++) {
        void *memory;
        if (plan->buckets[b].hook != plan->hook) continue;
        GS_TRY(gs_hook_place(&memory, plan, sizeof(int64_t)));
        self->tokens[b] = memory;
        if (!self->exact)
            GS_TRY(gs_hook_place(&self->copies[b], plan, bytes_of(&plan->buckets[b])));
    }
    return self->inner_choice.hook->on_plan(self->inner, plan);
}

// The sum over ranks of what phase `phase` sent: each rank its number and what came before.
static int64_t expected(const phased *self, const gs_hook_bucket *bucket, int phase) {
    int64_t n = self->world_size, sum = bucket->step * 1000 + bucket->index;
    for (int p = 0; p <= phase; p++) sum = n * sum + n * (n - 1) / 2;
    return sum;
}

static gs_status check_token(const phased *self, const gs_hook_bucket *bucket, int phase,
                             int64_t *token) {
    device_memory_read(self->device, token, self->tokens[bucket->index], sizeof *token);
    int64_t wanted = expected(self, bucket, phase);
    if (*token == wanted) return gs_ok();
    return gs_error(GS_INTERNAL, "phase %d left the token %lld, not %lld", phase,
                    (long long)*token, (long long)wanted);
}

static void copy(const gs_hook_bucket *bucket, gs_stream *stream, void *to, const void *from) {
    gs_device_kernels(bucket->device)
        ->copy(stream, to, from,
               (bucket->count + bucket->reserved_count) * gs_dtype_bytes(bucket->dtype));
}

// What the inner hook gets to see.
static gs_hook_bucket inner_bucket(const phased *self, const gs_hook_bucket *bucket) {
    gs_hook_bucket inner = *bucket;
    if (self->copies[bucket->index]) inner.data = self->copies[bucket->index];
    return inner;
}

static gs_status run_inner(phased *self, const gs_hook_bucket *bucket, gs_hook_work *work) {
    gs_hook_bucket inner = inner_bucket(self, bucket);
    if (!work->phase && inner.data != bucket->data)
        copy(bucket, gs_work_stream_before_post(bucket->comm).stream, inner.data, bucket->data);
    return self->inner_choice.hook->run(self->inner, &inner, work);
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    phased *self = state;
    int64_t token = bucket->step * 1000 + bucket->index, *at = self->tokens[bucket->index];
    if (work->phase && work->phase <= self->num_tokens)
        GS_TRY(check_token(self, bucket, work->phase - 1, &token));
    if (work->phase >= self->num_tokens) {
        work->phase -= self->num_tokens;
        gs_status status = run_inner(self, bucket, work);
        work->phase += self->num_tokens;
        return status;
    }
    token += gs_comm_rank(bucket->comm);
    device_memory_write(self->device, at, &token, sizeof token);
    return gs_hook_post(work, bucket,
                        &(gs_collective){.kind = GS_ALLREDUCE,
                                         .send = at,
                                         .recv = at,
                                         .count = 1,
                                         .dtype = GS_I64,
                                         .op = GS_OP_SUM});
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    phased *self = state;
    gs_hook_bucket inner = inner_bucket(self, bucket);
    GS_TRY(self->inner_choice.hook->finish(self->inner, &inner, result, deadline));
    if (inner.data != bucket->data)
        copy(bucket, gs_device_stream(bucket->device), bucket->data, inner.data);
    return gs_ok();
}

static void commit(void *state) {
    const phased *self = state;
    self->inner_choice.hook->commit(self->inner);
}

static void roll_back(void *state) {
    const phased *self = state;
    self->inner_choice.hook->rollback(self->inner);
}

static bool find_tensor(void *state, size_t index, gs_hook_tensor *tensor) {
    const phased *self = state;
    return self->inner_choice.hook->tensor(self->inner, index, tensor);
}

static gs_status take_loaded(void *state) {
    const phased *self = state;
    return self->inner_choice.hook->loaded(self->inner);
}

static void destroy(void *state) {
    phased *self = state;
    self->inner_choice.hook->destroy(self->inner);
    free(self->tokens);
    free(self->copies);
    free(self);
}

const gs_comm_hook phased_hook = {.name = "phased",
                                  .options = options,
                                  .num_options = sizeof options / sizeof options[0],
                                  .wraps = true,
                                  .measure = measure,
                                  .create = create,
                                  .on_plan = on_plan,
                                  .run = run,
                                  .finish = finish,
                                  .commit = commit,
                                  .rollback = roll_back,
                                  .tensor = find_tensor,
                                  .loaded = take_loaded,
                                  .destroy = destroy};
