// Sharded training in a program of one's own: each of N processes has the gradients and the
// optimizer state of an equal part of the parameters, updates these, and gets all others from their
// owners.
//
//     embed_sharded [NUM_RANKS]
//
// The ranks fit y = layers of x on samples of their own. What differs from embed_reducer.c is in
// open_shards, update and the two gs_param_gather_wait.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gradsync/extras.h"
#include "gradsync/gradsync.h"

enum { MAX_RANKS = 16, NUM_LAYERS = 6, WIDTH = 40, NUM_SAMPLES = 8, NUM_STEPS = 120 };
enum { GATHER_LANE = 1, MAX_SEGMENTS = NUM_LAYERS };

// How a few bytes of each rank reach all ranks: through memory that they share since fork.
typedef struct meeting_place {
    atomic_int num_arrived;
    char bytes[MAX_RANKS][65536];
} meeting_place;

typedef struct trainer {
    int rank, world_size, num_meetings;
    meeting_place *place;
    gs_param_spec params[NUM_LAYERS];
    gs_bucket_plan plan;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_shards *shards;
    gs_hook_choice hook;
    gs_reducer *reducer;
    gs_param_gather *gather;
    gs_optimizer *optimizer;
} trainer;

static gs_status meet(trainer *self, const char *tag, gs_deadline deadline) {
    int expected = ++self->num_meetings * self->world_size;
    atomic_fetch_add(&self->place->num_arrived, 1);
    while (atomic_load(&self->place->num_arrived) < expected) {
        if (gs_deadline_passed(deadline))
            return gs_error(GS_DEADLINE_EXCEEDED, "exchange \"%s\": a rank did not come", tag);
        gs_sleep_ns(GS_NS_PER_MS);
    }
    return gs_ok();
}

static gs_status exchange(void *ctx, const char *tag, const int *ranks, int num_ranks,
                          const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    trainer *self = ctx;
    (void)ranks, (void)num_ranks;  // always all
    memcpy(self->place->bytes[self->rank], mine, bytes);
    GS_TRY(meet(self, tag, deadline));
    for (int r = 0; r < self->world_size; r++)
        memcpy((char *)all + (size_t)r * bytes, self->place->bytes[r], bytes);
    return meet(self, tag, deadline);
}

// Parameters lie behind what the reducer needs, in the order of their gradients, so that they are
// gathered in place.
static gs_status open_shards(trainer *self, gs_deadline deadline) {
    GS_TRY(gs_shards_create(&self->shards, &(gs_shards_options){.partition = GS_PARTITION_FLAT,
                                                                .plan = &self->plan,
                                                                .params = self->params,
                                                                .num_params = NUM_LAYERS,
                                                                .world_size = self->world_size}));
    self->hook = (gs_hook_choice){.hook = gs_shard_reduce_hook(), .user = self->shards};
    gs_reducer_options options = {.params = self->params,
                                  .num_params = NUM_LAYERS,
                                  .plan = &self->plan,
                                  .shards = {.num_shards = self->world_size,
                                             .world_size = self->world_size,
                                             .rank = self->rank},
                                  .hooks = &self->hook,
                                  .num_hooks = 1,
                                  .tally = GS_TALLY_APART,
                                  .device = self->device};
    size_t reducer_bytes;
    GS_TRY(gs_reducer_arena_bytes(&reducer_bytes, &options));
    GS_TRY(gs_arena_create(&self->arena, reducer_bytes + gs_shards_param_bytes(self->shards)));
    GS_TRY(gs_comm_create(&self->comm,
                          &(gs_comm_options){.rank = self->rank,
                                             .world_size = self->world_size,
                                             .exchange = exchange,
                                             .exchange_ctx = self,
                                             .arena = self->arena,
                                             .device = self->device,
                                             .num_lanes = GATHER_LANE + 1},
                          deadline));
    options.arena = self->arena;
    GS_TRY(gs_reducer_create(&self->reducer, &options, self->comm, deadline));
    GS_TRY(gs_param_gather_create(
        &self->gather,
        &(gs_param_gather_options){.shards = self->shards,
                                   .comm = self->comm,
                                   .params = (char *)gs_arena_data(self->arena) + reducer_bytes,
                                   .lane = GATHER_LANE},
        deadline));
    gs_optimizer_options optimizer = {.kind = "adam", .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    optimizer.segments = gs_shards_of_rank(self->shards, self->rank, &optimizer.num_segments);
    return gs_optimizer_create(&self->optimizer, &optimizer, self->params, NULL, NUM_LAYERS,
                               self->device);
}

// Own elements, by own gradients and own state; then all are on their way to all.
static gs_status update(trainer *self, const gs_reduce_result *result, int64_t step) {
    void *params[MAX_SEGMENTS], *grads[MAX_SEGMENTS];
    gs_shards_point(params, self->shards, self->rank, gs_param_gather_params(self->gather),
                    sizeof(float));
    gs_shards_point(grads, self->shards, self->rank, gs_reducer_grads(self->reducer),
                    sizeof(float));
    float clip = gs_grad_clip_factor(result->grad_norm, 1.0);  // the norm is that of all gradients
    GS_TRY(gs_optimizer_step(self->optimizer, params, grads, result->used, 0.01f, clip));
    return gs_param_gather_start(self->gather, step);
}

// Layer l is (WIDTH, WIDTH): out = in + weight · in. The truth of every weight is 0.1 off its
// diagonal's neighbour.
static void run_layer(float *out, const float *in, const float *weight) {
    for (int i = 0; i < WIDTH; i++) {
        out[i] = in[i];
        for (int k = 0; k < WIDTH; k++) out[i] += weight[i * WIDTH + k] * in[k];
    }
}

static void add_layer_grad(float *weight_grad, float *in_grad, const float *out_grad,
                           const float *in, const float *weight) {
    memcpy(in_grad, out_grad, WIDTH * sizeof *in_grad);
    for (int i = 0; i < WIDTH; i++) {
        for (int k = 0; k < WIDTH; k++) {
            weight_grad[i * WIDTH + k] += out_grad[i] * in[k];
            in_grad[k] += out_grad[i] * weight[i * WIDTH + k];
        }
    }
}

static gs_status run_pass(trainer *self, float *loss, unsigned short seed[3]) {
    float *const *weights = (float *const *)gs_param_gather_params(self->gather);
    float values[NUM_SAMPLES][NUM_LAYERS + 1][WIDTH], grads[2][NUM_SAMPLES][WIDTH];
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, NUM_SAMPLES));
    for (int s = 0; s < NUM_SAMPLES; s++)
        for (int i = 0; i < WIDTH; i++) values[s][0][i] = (float)erand48(seed) * 2 - 1;
    for (size_t l = 0; l < NUM_LAYERS; l++) {
        // What the owners sent: layers behind this one may still be on their way.
        GS_TRY(gs_param_gather_wait(self->gather, l, gs_deadline_in_seconds(30)));
        for (int s = 0; s < NUM_SAMPLES; s++) run_layer(values[s][l + 1], values[s][l], weights[l]);
    }
    *loss = 0;
    for (int s = 0; s < NUM_SAMPLES; s++) {
        for (int i = 0; i < WIDTH; i++) {
            float off = values[s][NUM_LAYERS][i] - values[s][0][(i + 1) % WIDTH] / 2;
            *loss += off * off / NUM_SAMPLES;
            grads[0][s][i] = 2 * off / NUM_SAMPLES;
        }
    }
    for (size_t l = NUM_LAYERS, from = 0; l-- > 0; from = !from) {
        memset(pass.grads[l], 0, sizeof(float) * WIDTH * WIDTH);
        for (int s = 0; s < NUM_SAMPLES; s++)
            add_layer_grad(pass.grads[l], grads[!from][s], grads[from][s], values[s][l],
                           weights[l]);
        GS_TRY(gs_reducer_mark_ready(self->reducer, l));
    }
    return gs_reducer_end_pass(self->reducer);
}

static gs_status take_steps(trainer *self) {
    unsigned short seed[3] = {(unsigned short)self->rank, 2, 3};
    for (int64_t step = 0; step < NUM_STEPS; step++) {
        gs_reduce_result result;
        float loss;
        GS_TRY(gs_reducer_begin(self->reducer, step));
        GS_TRY(run_pass(self, &loss, seed));
        GS_TRY(gs_reducer_finish(self->reducer, &result, gs_deadline_in_seconds(30)));
        if (!result.nonfinite) GS_TRY(update(self, &result, step));
        if (self->rank == 0 && step % 40 == 0)
            printf("step %3lld: loss %.4f\n", (long long)step, (double)loss);
    }
    return gs_param_gather_finish(self->gather, gs_deadline_in_seconds(30));
}

static gs_status compare_ranks(const trainer *self) {
    gs_digest all[MAX_RANKS];
    void *const *params = gs_param_gather_params(self->gather);
    gs_digest mine = {0};
    for (size_t l = 0; l < NUM_LAYERS; l++) {
        gs_digest layer = gs_digest_of(params[l], sizeof(float) * WIDTH * WIDTH);
        mine.high = mine.high * 31 + layer.high;
        mine.low = mine.low * 31 + layer.low;
    }
    GS_TRY(gs_comm_run(self->comm,
                       &(gs_collective){.kind = GS_ALLGATHER,
                                        .send = &mine,
                                        .recv = all,
                                        .count = sizeof mine,
                                        .dtype = GS_U8,
                                        .bucket = -1},
                       gs_deadline_in_seconds(30)));
    for (int r = 1; r < self->world_size; r++)
        if (!gs_digest_equal(all[r], all[0]))
            return gs_error(GS_DATA_LOSS, "rank %d differs from rank 0", r);
    if (self->rank == 0)
        printf("the same bits on %d ranks, each with the state of %zu of %d elements\n",
               self->world_size, gs_shards_elements(self->shards, 0), NUM_LAYERS * WIDTH * WIDTH);
    return gs_ok();
}

static gs_status run_rank(trainer *self) {
    for (int l = 0; l < NUM_LAYERS; l++)
        self->params[l] = gs_param_spec_make(GS_FP32, WIDTH, WIDTH, "layer%d", l);
    GS_TRY(gs_bucket_plan_parity(&self->plan, self->params, NUM_LAYERS, 8192, 8192, NULL));
    gs_status status = gs_device_open(&self->device, "cpu", &(gs_device_options){0});
    if (!status.code) status = open_shards(self, gs_deadline_in_seconds(30));
    if (!status.code) status = take_steps(self);
    if (!status.code) status = compare_ranks(self);
    gs_optimizer_destroy(self->optimizer);
    gs_param_gather_destroy(self->gather);
    gs_reducer_destroy(self->reducer);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_shards_destroy(self->shards);
    gs_device_close(self->device);
    gs_bucket_plan_release(&self->plan);
    return status;
}

int main(int argc, char **argv) {
    trainer self = {.world_size = argc > 1 ? atoi(argv[1]) : 3};
    self.place =
        mmap(NULL, sizeof *self.place, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (self.world_size < 1 || self.world_size > MAX_RANKS || self.place == MAP_FAILED) return 2;
    for (self.rank = 0; self.rank < self.world_size; self.rank++) {
        if (fork() != 0) continue;
        gs_status status = run_rank(&self);
        if (status.code) fprintf(stderr, "rank %d: %s\n", self.rank, status.message);
        fflush(stdout);
        _exit(status.code != GS_OK);
    }
    int failed = 0, wait_status;
    while (wait(&wait_status) > 0) failed |= wait_status;
    return failed != 0;
}
