// Lanes: whatever ranks post first, collectives meet those of their lane, and no lane waits for
// another.
//
//   PROPERTY_SEEDS=200   seeds for each world, instead of a handful
//   PROPERTY_FIRST=17    the first of them
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/digest.h"
#include "core/random.h"
#include "tests/support/comm_rank.h"
#include "tests/support/comm_trial.h"
#include "tests/support/ranks.h"

#define MAX_WORLD 4
#define RUN_SECONDS 60.0
#define ARENA_BYTES ((size_t)8 << 20)
#ifdef __SANITIZE_THREAD__
#define NUM_SEEDS 3
#else
#define NUM_SEEDS 5
#endif

static const gs_collective_kind kinds[] = {GS_ALLREDUCE, GS_REDUCE, GS_REDUCE_SCATTER, GS_ALLGATHER,
                                           GS_BROADCAST};
static const gs_dtype dtypes[] = {GS_FP32, GS_BF16, GS_FP64, GS_I32};
static const gs_dtype wires[] = {GS_DTYPE_UNSET, GS_FP16, GS_BF16};

static gs_deadline soon_enough(void) {
    return gs_deadline_in_seconds(RUN_SECONDS);
}

static uint64_t number_from_environment(const char *name, uint64_t fallback) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : fallback;
}

// A random program: what each lane is posted in each round, equal on all ranks. What a rank draws
// alone is in what order it serves the lanes of a round, where it dawdles, for which older
// collective it waits, and which buffers lie in its arena.
//
// It waits for collectives of earlier rounds only: those all ranks post without waiting for a later
// one, so that no program hangs by itself.
#define NUM_ROUNDS 4
#define MOST_PER_ROUND 10
#define MAX_ITEMS (NUM_ROUNDS * MOST_PER_ROUND * GS_COMM_MAX_LANES)

typedef struct item {
    comm_trial trial;
    unsigned char *memory;  // outside of the arena; NULL: in it
    gs_work work;
} item;

typedef struct program {
    uint64_t seed;
    int num_lanes;
    int num_posts[NUM_ROUNDS][GS_COMM_MAX_LANES];
    size_t num_items;  // of all rounds
} program;

static program draw_program(uint64_t seed) {
    gs_random_key key = {seed, 1};
    program all = {.seed = seed, .num_lanes = 2 + (int)(gs_random_u64(key, 0) % 7)};
    for (int round = 0; round < NUM_ROUNDS; round++) {
        for (int lane = 0; lane < all.num_lanes; lane++) {
            uint64_t place = 1 + (uint64_t)round * GS_COMM_MAX_LANES + (uint64_t)lane;
            all.num_posts[round][lane] = (int)(gs_random_u64(key, place) % (MOST_PER_ROUND + 1));
            all.num_items += (size_t)all.num_posts[round][lane];
        }
    }
    return all;
}

// Elements of what is flat, of what is direct or a pipeline, and of many chunks.
static size_t draw_count(uint64_t dice) {
    if (dice % 8 < 4) return 1 + (size_t)(dice >> 8) % 500;
    if (dice % 8 < 7) return 1 + (size_t)(dice >> 8) % 9000;
    return 40000 + (size_t)(dice >> 8) % 30000;
}

// Collective `sequence` of a lane, the same on all ranks.
static comm_trial draw_trial(const program *all, int lane, uint64_t sequence, int world_size) {
    uint64_t dice = gs_random_u64((gs_random_key){all->seed, 100 + (uint64_t)lane}, sequence);
    comm_trial trial =
        comm_trial_make(kinds[(dice >> 40) % 5], dtypes[(dice >> 44) % 4], draw_count(dice),
                        world_size, (int)((dice >> 48) % (uint64_t)world_size), dice % 1000);
    trial.collective.lane = lane;
    bool may_round = trial.collective.dtype == GS_FP32 || trial.collective.dtype == GS_FP64;
    if (gs_collective_reduces(&trial.collective) && may_round)
        trial.collective.wire_dtype = wires[(dice >> 52) % 3];
    return trial;
}

typedef struct runner {
    comm_rank rank;
    const program *all;
    gs_random_key own;
    uint64_t num_draws;
    item items[MAX_ITEMS];
    size_t num_posted, num_waitable;  // items; those of earlier rounds
    uint64_t posted[GS_COMM_MAX_LANES];
    size_t arena_used, dies_at;  // before that item; SIZE_MAX: not at all
} runner;

static uint64_t draw(runner *self, uint64_t below) {
    return gs_random_u64(self->own, self->num_draws++) % below;
}

static gs_status give_memory(runner *self, item *one) {
    const gs_collective *collective = &one->trial.collective;
    size_t bytes =
        collective->count * gs_dtype_bytes(collective->dtype) * (size_t)self->rank.world_size;
    bytes = (bytes + 63) / 64 * 64;
    unsigned char *buffers = (unsigned char *)gs_arena_data(self->rank.arena) + self->arena_used;
    // One rank outside makes all go along.
    bool fits = self->arena_used + 2 * bytes <= ARENA_BYTES;
    if (fits && draw(self, 6)) {
        self->arena_used += 2 * bytes;
    } else {
        buffers = one->memory = malloc(2 * bytes);
        if (!buffers) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    }
    comm_trial_place(&one->trial, buffers, draw(self, 2) ? buffers + bytes : NULL, self->rank.rank);
    return gs_ok();
}

static gs_status post_item(runner *self, int lane) {
    if (self->num_posted == self->dies_at) raise(SIGKILL);
    item *one = &self->items[self->num_posted++];
    *one = (item){.trial = draw_trial(self->all, lane, self->posted[lane], self->rank.world_size)};
    GS_TRY(give_memory(self, one));
    GS_TRY(gs_comm_post(self->rank.comm, &one->work, &one->trial.collective));
    if (one->work.lane != lane || one->work.sequence != ++self->posted[lane])
        return gs_error(GS_INTERNAL, "collective %" PRIu64 " of lane %d is %" PRIu64 " of lane %d",
                        self->posted[lane], lane, one->work.sequence, one->work.lane);
    return gs_ok();
}

static gs_status wait_for_item(runner *self, const item *one) {
    gs_work_times times;
    char name[48];
    gs_work_name(name, sizeof name, one->work);
    GS_TRY(gs_comm_wait(self->rank.comm, one->work, soon_enough()));
    if (!gs_comm_done(self->rank.comm, one->work))
        return gs_error(GS_INTERNAL, "%s was waited for and is not done", name);
    GS_TRY(gs_status_prefix(comm_trial_check(&one->trial, self->rank.rank, self->rank.world_size),
                            "%s", name));
    if (!gs_comm_times(self->rank.comm, one->work, &times) || !times.posted_ns ||
        times.posted_ns > times.all_arrived_ns || times.all_arrived_ns > times.started_ns ||
        times.started_ns > times.finished_ns)
        return gs_error(GS_INTERNAL, "%s: times are out of order", name);
    return gs_ok();
}

// What a rank does between two posts.
static gs_status dawdle(runner *self) {
    switch (draw(self, 12)) {
    case 0:
        gs_sleep_ns((int64_t)draw(self, 400) * 1000);
        return gs_ok();
    case 1:
        return gs_comm_progress(self->rank.comm);
    case 2:
        if (!self->num_waitable) return gs_ok();
        return wait_for_item(self, &self->items[draw(self, self->num_waitable)]);
    default:
        return gs_ok();
    }
}

static gs_status run_round(runner *self, const int *num_posts) {
    int left[GS_COMM_MAX_LANES], num_left = 0;
    for (int i = 0; i < self->all->num_lanes; i++) num_left += left[i] = num_posts[i];
    self->num_waitable = self->num_posted;
    while (num_left--) {
        int lane = (int)draw(self, (uint64_t)self->all->num_lanes);
        while (!left[lane]) lane = (lane + 1) % self->all->num_lanes;
        left[lane]--;
        GS_TRY(post_item(self, lane));
        GS_TRY(dawdle(self));
    }
    return gs_ok();
}

static gs_status run_program(runner *self) {
    for (int round = 0; round < NUM_ROUNDS; round++)
        GS_TRY(run_round(self, self->all->num_posts[round]));
    for (size_t i = 0; i < self->num_posted; i++) GS_TRY(wait_for_item(self, &self->items[i]));
    return gs_ok();
}

// After an error with kills: the value says the same as the text.
static gs_status check_cause(runner *self, gs_status status) {
    gs_comm_failure cause;
    gs_comm_explain(self->rank.comm, &cause);
    if (cause.kind == GS_COMM_FAILURE_PEER_LOST && gs_comm_failure_names(&cause, 1) &&
        cause.lane >= 0 && cause.lane < self->all->num_lanes && cause.sequence)
        return status;
    return gs_status_prefix(status, "told as %s in lane %d, which is wrong",
                            gs_comm_failure_kind_name(cause.kind), cause.lane);
}

static gs_status run_seed(const gs_rank_env *env, uint64_t seed, bool kills) {
    program all = draw_program(seed);
    runner *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->all = &all;
    self->own = (gs_random_key){seed, 1000 + (uint64_t)env->rank};
    self->dies_at = SIZE_MAX;
    if (kills && env->rank == 1)
        self->dies_at = gs_random_u64((gs_random_key){seed, 2}, 0) % all.num_items;
    gs_comm_options options = {.helper = seed % 2 ? GS_HELPER_ON : GS_HELPER_OFF,
                               .num_lanes = all.num_lanes};
    gs_status status = comm_rank_open(&self->rank, env, ARENA_BYTES, &options);
    if (!status.code) {
        status = run_program(self);
        if (status.code) gs_comm_let_go(self->rank.comm, status.message);
        if (status.code && kills) status = check_cause(self, status);
    }
    comm_rank_close(&self->rank);
    for (size_t i = 0; i < self->num_posted; i++) free(self->items[i].memory);
    free(self);
    return gs_status_prefix(status, "seed %" PRIu64, seed);
}

static gs_status run_programs(const gs_rank_env *env) {
    uint64_t first, count;
    if (sscanf(env->arg, "%" SCNu64 " %" SCNu64, &first, &count) != 2)
        return gs_error(GS_INVALID_ARGUMENT, "arguments: %s", env->arg);
    for (uint64_t seed = first; seed < first + count; seed++) GS_TRY(run_seed(env, seed, false));
    return gs_ok();
}

static gs_status run_killed(const gs_rank_env *env) {
    return run_seed(env, strtoull(env->arg, NULL, 10), true);
}

// Phases that follow each other: phase p of a bucket is posted in lane p once phase p - 1 is done
// here, in the order of buckets, and each rank looks at the phases in an order of its own.
#define NUM_BUCKETS 64
#define NUM_PHASES 3
#define BUCKET_COUNT 700  // elements of the largest

typedef struct chains {
    comm_rank rank;
    float data[NUM_BUCKETS][BUCKET_COUNT];
    size_t counts[NUM_BUCKETS];
    gs_work works[NUM_PHASES][NUM_BUCKETS];
    int num_posted[NUM_PHASES];
} chains;

static gs_status post_phase(chains *self, int phase, bool *posted) {
    int bucket = self->num_posted[phase];
    *posted = bucket < NUM_BUCKETS &&
              (phase == 0 || (bucket < self->num_posted[phase - 1] &&
                              gs_comm_done(self->rank.comm, self->works[phase - 1][bucket])));
    if (!*posted) return gs_ok();
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = self->data[bucket],
                         .recv = self->data[bucket],
                         .count = self->counts[bucket],
                         .dtype = GS_FP32,
                         .bucket = bucket,
                         .lane = phase};
    self->num_posted[phase]++;
    return gs_comm_post(self->rank.comm, &self->works[phase][bucket], &sum);
}

static gs_status post_chains(chains *self, gs_random_key own) {
    gs_deadline deadline = soon_enough();
    for (uint64_t i = 0; self->num_posted[NUM_PHASES - 1] < NUM_BUCKETS; i++) {
        if (gs_deadline_passed(deadline))
            return gs_error(GS_DEADLINE_EXCEEDED, "posted %d, %d and %d", self->num_posted[0],
                            self->num_posted[1], self->num_posted[2]);
        uint64_t dice = gs_random_u64(own, i);
        bool posted;
        GS_TRY(post_phase(self, (int)(dice % NUM_PHASES), &posted));
        if (!posted) GS_TRY(gs_comm_progress(self->rank.comm));
        if ((dice >> 8) % 32 == 0) gs_sleep_ns((int64_t)((dice >> 16) % 200) * 1000);
    }
    return gs_comm_wait(self->rank.comm, self->works[NUM_PHASES - 1][NUM_BUCKETS - 1], deadline);
}

static gs_status check_chains(const chains *self) {
    int world_size = self->rank.world_size;
    for (int bucket = 0; bucket < NUM_BUCKETS; bucket++) {
        for (size_t i = 0; i < self->counts[bucket]; i++) {
            int sum = 0;
            for (int r = 0; r < world_size; r++) sum += pattern_value((uint64_t)bucket, r, i);
            float expected = (float)(sum * world_size * world_size);
            if (self->data[bucket][i] != expected)
                return gs_error(GS_DATA_LOSS, "bucket %d, element %zu is %g instead of %g", bucket,
                                i, (double)self->data[bucket][i], (double)expected);
        }
    }
    return gs_ok();
}

static gs_status run_chains(const gs_rank_env *env) {
    static chains self;
    uint64_t seed = strtoull(env->arg, NULL, 10);
    for (int bucket = 0; bucket < NUM_BUCKETS; bucket++) {
        uint64_t dice = gs_random_u64((gs_random_key){seed, 3}, (uint64_t)bucket);
        self.counts[bucket] = 1 + dice % BUCKET_COUNT;
        fill_pattern(self.data[bucket], GS_FP32, self.counts[bucket], (uint64_t)bucket, env->rank,
                     0);
    }
    gs_comm_options options = {.helper = seed % 2 ? GS_HELPER_ON : GS_HELPER_OFF,
                               .num_lanes = NUM_PHASES};
    gs_status status = comm_rank_open(&self.rank, env, 0, &options);
    if (!status.code) status = post_chains(&self, (gs_random_key){seed, 50 + (uint64_t)env->rank});
    if (!status.code) status = check_chains(&self);
    comm_rank_close(&self.rank);
    return gs_status_prefix(status, "seed %" PRIu64, seed);
}

// Rank 1 takes two collectives of lane 2 in the other order.
static gs_status run_swapped(comm_rank *self) {
    float data[2][8] = {{0}};
    gs_work works[2];
    for (int i = 0; i < 2; i++) {
        int which = self->rank == 1 ? 1 - i : i;
        gs_collective sum = {.kind = GS_ALLREDUCE,
                             .send = data[which],
                             .recv = data[which],
                             .count = 3 + (size_t)which,
                             .dtype = GS_FP32,
                             .bucket = -1,
                             .lane = 2};
        GS_TRY(gs_comm_post(self->comm, &works[i], &sum));
    }
    return gs_comm_wait(self->comm, works[1], soon_enough());
}

static gs_status swap_in_a_lane(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_failure cause = {0};
    gs_status status = comm_rank_open(&self, env, 0, &(gs_comm_options){.num_lanes = 3});
    if (!status.code) {
        status = run_swapped(&self);
        gs_comm_explain(self.comm, &cause);
    }
    comm_rank_close(&self);
    if (cause.kind != GS_COMM_FAILURE_MISMATCH || cause.lane != 2 ||
        !gs_comm_failure_names(&cause, 1))
        return gs_error(GS_INTERNAL, "told as %s in lane %d: %s",
                        gs_comm_failure_kind_name(cause.kind), cause.lane, status.message);
    return status;
}

static gs_status sum_in_lane(comm_rank *self, int lane, float *data, size_t count,
                             gs_deadline deadline) {
    for (size_t i = 0; i < count; i++) data[i] = (float)(self->rank + 1);
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = count,
                         .dtype = GS_FP32,
                         .bucket = -1,
                         .lane = lane};
    gs_work work;
    GS_TRY(gs_comm_post(self->comm, &work, &sum));
    return gs_comm_wait(self->comm, work, deadline);
}

static gs_status check_sum(const comm_rank *self, const float *data, size_t count) {
    float expected = (float)(self->world_size * (self->world_size + 1) / 2);
    for (size_t i = 0; i < count; i++) {
        if (data[i] != expected)
            return gs_error(GS_DATA_LOSS, "element %zu is %g", i, (double)data[i]);
    }
    return gs_ok();
}

// Rank 1 does not come to lane 1 until the lanes beside it have been through with everything, large
// and small.
#define LATE_COUNT 300000

static gs_status go_on_beside(comm_rank *self) {
    static float data[LATE_COUNT];
    for (int i = 0; i < 20; i++) {
        size_t count = i % 10 ? 50 : LATE_COUNT;
        GS_TRY(sum_in_lane(self, i % 3 ? 0 : 2, data, count, soon_enough()));
        GS_TRY(check_sum(self, data, count));
    }
    return gs_ok();
}

static gs_status expect_late(comm_rank *self, gs_work work) {
    gs_comm_failure cause;
    gs_status late = gs_comm_wait(self->comm, work, gs_deadline_in_ms(200));
    gs_comm_explain(self->comm, &cause);
    if (late.code != GS_DEADLINE_EXCEEDED ||
        !strstr(late.message, "collective 1 of lane 1, step 0: rank 1 did not arrive within 0."))
        return gs_error(GS_INTERNAL, "waited in vain: %s", late.message);
    if (cause.kind != GS_COMM_FAILURE_TIMEOUT || cause.lane != 1 || cause.sequence != 1 ||
        !gs_comm_failure_names(&cause, 1))
        return gs_error(GS_INTERNAL, "told as %s in lane %d", gs_comm_failure_kind_name(cause.kind),
                        cause.lane);
    return gs_ok();
}

// Nobody but rank 1 is to be missing when the first of the others asks.
static gs_status meet_without_rank_1(const gs_rank_env *env) {
    static const int ranks[] = {0, 2, 3};
    char note = 0, all[MAX_WORLD];
    return gs_rank_exchange(env->exchange, "in time", ranks, env->world_size - 1, &note, 1, all, soon_enough());
}

static gs_status run_late(comm_rank *self, const gs_rank_env *env) {
    static float data[LATE_COUNT];
    for (size_t i = 0; i < LATE_COUNT; i++) data[i] = (float)(self->rank + 1);
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = LATE_COUNT,
                         .dtype = GS_FP32,
                         .bucket = -1,
                         .lane = 1};
    gs_work work;
    if (self->rank != 1) {
        GS_TRY(gs_comm_post(self->comm, &work, &sum));
        GS_TRY(meet_without_rank_1(env));
        GS_TRY(expect_late(self, work));
    }
    GS_TRY(go_on_beside(self));
    if (self->rank == 1) GS_TRY(gs_comm_post(self->comm, &work, &sum));
    // Half-way in all lanes now, and not at the same place on all ranks.
    GS_TRY(go_on_beside(self));
    GS_TRY(gs_comm_wait(self->comm, work, soon_enough()));
    return check_sum(self, data, LATE_COUNT);
}

static gs_status come_late_to_a_lane(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {
        .helper = strcmp(env->arg, "helper") == 0 ? GS_HELPER_ON : GS_HELPER_OFF, .num_lanes = 3};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    if (!status.code) status = run_late(&self, env);
    comm_rank_close(&self);
    return status;
}

// Rank 1 dies when all is done, and the others begin one more in the lane that the test names.
static gs_status outlive(const gs_rank_env *env) {
    comm_rank self;
    float data[4];
    int lane = env->arg[0] - '0';
    gs_comm_options options = {.helper = env->arg[1] == 'h' ? GS_HELPER_ON : GS_HELPER_OFF,
                               .num_lanes = 3};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    for (int i = 0; i < 3 && !status.code; i++)
        status = sum_in_lane(&self, i, data, 4, soon_enough());
    if (env->rank == 1 && !status.code) raise(SIGKILL);
    if (!status.code) status = sum_in_lane(&self, lane, data, 4, soon_enough());
    comm_rank_close(&self);
    return status;
}

// Rank 0 fills lane 1 while rank 1 posts nothing there.
static gs_status run_full(comm_rank *self, const gs_rank_env *env) {
    float data[4];
    char note = 0, all[MAX_WORLD];
    gs_work work = {0};
    gs_collective barrier = {.kind = GS_BARRIER, .bucket = -1, .lane = 1};
    for (int round = 0; round < 2; round++) {
        if (self->rank == 0) {
            for (int i = 0; i < 1024; i++) GS_TRY(gs_comm_post(self->comm, &work, &barrier));
            gs_work more;
            gs_status full = gs_comm_post(self->comm, &more, &barrier);
            if (full.code != GS_RESOURCE_EXHAUSTED)
                return gs_error(GS_INTERNAL, "collective 1025: %s", full.message);
        }
        GS_TRY(sum_in_lane(self, 0, data, 4, soon_enough()));
        GS_TRY(check_sum(self, data, 4));
        GS_TRY(gs_rank_exchange(env->exchange, "full", NULL, 0, &note, 1, all, soon_enough()));
        for (int i = 0; self->rank != 0 && i < 1024; i++)
            GS_TRY(gs_comm_post(self->comm, &work, &barrier));
        GS_TRY(gs_comm_wait(self->comm, work, soon_enough()));
        if (gs_comm_done(self->comm, (gs_work){work.sequence + 1, 1}))
            return gs_error(GS_INTERNAL, "what was refused is done");
    }
    return gs_ok();
}

static gs_status fill_a_lane(const gs_rank_env *env) {
    comm_rank self;
    gs_status status = comm_rank_open(&self, env, 0, &(gs_comm_options){.num_lanes = 2});
    if (!status.code) status = run_full(&self, env);
    comm_rank_close(&self);
    return status;
}

// Rank 0 lets go in the middle of pipelines, and nothing of them moves afterwards. The others wait
// in the last lane, where it has not come.
#define ABANDONED_LANES 4
#define ABANDONED_COUNT ((size_t)1000000)

static gs_status post_abandoned(comm_rank *self, float *data, int lane, gs_work *work) {
    float *own = data + (size_t)lane * ABANDONED_COUNT;
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = own,
                         .recv = own,
                         .count = ABANDONED_COUNT,
                         .dtype = GS_FP32,
                         .bucket = -1,
                         .lane = lane};
    return gs_comm_post(self->comm, work, &sum);
}

static gs_status run_abandoned(comm_rank *self, float *data) {
    const size_t bytes = ABANDONED_LANES * ABANDONED_COUNT * sizeof *data;
    const int last = ABANDONED_LANES - 1;
    gs_work work;
    for (int lane = 0; lane < last; lane++) GS_TRY(post_abandoned(self, data, lane, &work));
    if (self->rank != 0) {
        GS_TRY(post_abandoned(self, data, last, &work));
        return gs_comm_wait(self->comm, work, soon_enough());
    }
    gs_comm_let_go(self->comm, "rank 0 has seen enough");
    uint64_t before = gs_hash64(data, bytes, 0);
    gs_sleep_ns(20 * GS_NS_PER_MS);
    if (gs_hash64(data, bytes, 0) != before)
        return gs_error(GS_INTERNAL, "buffers changed after let_go");
    return post_abandoned(self, data, last, &work);
}

static gs_status abandon_lanes(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.helper =
                                   strcmp(env->arg, "helper") == 0 ? GS_HELPER_ON : GS_HELPER_OFF,
                               .num_lanes = ABANDONED_LANES};
    float *data = calloc(ABANDONED_LANES * ABANDONED_COUNT, sizeof *data);
    if (!data) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = comm_rank_open(&self, env, 0, &options);
    if (!status.code) status = run_abandoned(&self, data);
    comm_rank_close(&self);
    free(data);
    return status;
}

// The thread of rank 0 is held inside a move of lane 2, where alone there is anything: for HELD_MS from when the
// collective has started.
#ifdef GRADSYNC_FAILPOINTS
#define HELD_MS 400  // comm.slice sleeps as long

static gs_status run_held(comm_rank *self) {
    static float data[LATE_COUNT];
    gs_work work;
    gs_work_times times = {0};
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = LATE_COUNT,
                         .dtype = GS_FP32,
                         .bucket = -1,
                         .lane = 2};
    gs_deadline deadline = soon_enough();
    GS_TRY(gs_comm_post(self->comm, &work, &sum));
    if (self->rank != 0) return gs_comm_wait(self->comm, work, deadline);
    while (gs_comm_times(self->comm, work, &times) && !times.started_ns && !gs_deadline_passed(deadline))
        gs_sleep_ns(GS_NS_PER_MS);
    gs_sleep_ns(HELD_MS / 4 * GS_NS_PER_MS);
    gs_comm_let_go(self->comm, "rank 0 has seen enough");
    if (!times.started_ns || gs_now_ns() - times.started_ns < HELD_MS * GS_NS_PER_MS)
        return gs_error(GS_INTERNAL, "let go while a thread was inside a move");
    return gs_comm_post(self->comm, &work, &sum);
}

static gs_status hold_in_a_lane(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.helper = GS_HELPER_ON, .num_lanes = 3};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    if (!status.code) status = run_held(&self);
    comm_rank_close(&self);
    return status;
}
#endif

static gs_status disagree_about_lanes(const gs_rank_env *env) {
    comm_rank self;
    gs_comm_options options = {.num_lanes = env->rank == 1 ? 3 : 0};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {{"programs", run_programs},
                                      {"killed", run_killed},
                                      {"chains", run_chains},
                                      {"swap", swap_in_a_lane},
                                      {"late", come_late_to_a_lane},
                                      {"outlive", outlive},
                                      {"full", fill_a_lane},
                                      {"abandon", abandon_lanes},
#ifdef GRADSYNC_FAILPOINTS
                                      {"held", hold_in_a_lane},
#endif
                                      {"disagree", disagree_about_lanes},
                                      {0}};

static void run_all(const char *name, int world_size, const char *arg, gs_status *statuses) {
    gs_ranks *ranks;
    // For those that let themselves be held.
    const char *held[] = {"GRADSYNC_FAILPOINTS=comm.slice#0=sleep:400", NULL};
    const char *const *environment = strcmp(name, "held") == 0 ? held : NULL;
    assert_int_equal(gs_ranks_start(&ranks, name, world_size, arg, environment).code, GS_OK);
    gs_status status = gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(3 * RUN_SECONDS));
    gs_ranks_destroy(ranks);
    assert_string_equal(status.message, "");
}

static void expect_ok(const char *name, int world_size, const char *arg) {
    gs_status statuses[MAX_WORLD];
    run_all(name, world_size, arg, statuses);
    for (int r = 0; r < world_size; r++) assert_string_equal(statuses[r].message, "");
}

// All ranks but `except` end alike.
static void expect_end(const char *name, int world_size, const char *arg, int except, gs_code code,
                       const char *text) {
    gs_status statuses[MAX_WORLD];
    run_all(name, world_size, arg, statuses);
    for (int r = 0; r < world_size; r++) {
        if (r == except) continue;
        if (!strstr(statuses[r].message, text))
            print_error("rank %d: %s\n", r, statuses[r].message);
        assert_non_null(strstr(statuses[r].message, text));
        assert_int_equal(statuses[r].code, code);
    }
}

static void drawn_orders_between_lanes_give_exact_results(void **state) {
    (void)state;
    uint64_t count = number_from_environment("PROPERTY_SEEDS", NUM_SEEDS);
    uint64_t first = number_from_environment("PROPERTY_FIRST", 1);
    printf("seeds %" PRIu64 " to %" PRIu64 "\n", first, first + count - 1);
    char arg[64];
    snprintf(arg, sizeof arg, "%" PRIu64 " %" PRIu64, first, count);
    for (int world_size = 2; world_size <= MAX_WORLD; world_size++)
        expect_ok("programs", world_size, arg);
}

static void a_killed_rank_is_named_whatever_is_in_flight(void **state) {
    (void)state;
    uint64_t first = number_from_environment("PROPERTY_FIRST", 1);
    printf("seeds %" PRIu64 " to %" PRIu64 "\n", first, first + 3);
    for (uint64_t i = 0; i < 4; i++) {
        char arg[32];
        snprintf(arg, sizeof arg, "%" PRIu64, first + i);
        expect_end("killed", 2 + (int)i % 3, arg, 1, GS_ABORTED, "rank 1 died");
    }
}

static void a_death_is_seen_in_every_lane(void **state) {
    (void)state;
    expect_end("outlive", 2, "0o", 1, GS_ABORTED, "collective 2, step 0: rank 1 died");
    expect_end("outlive", 2, "1h", 1, GS_ABORTED, "collective 2 of lane 1, step 0: rank 1 died");
    expect_end("outlive", 3, "2o", 1, GS_ABORTED, "collective 2 of lane 2, step 0: rank 1 died");
}

static void phases_follow_each_other_in_lanes_of_their_own(void **state) {
    (void)state;
    uint64_t first = number_from_environment("PROPERTY_FIRST", 1);
    printf("seeds %" PRIu64 " to %" PRIu64 "\n", first, first + 3);
    for (uint64_t i = 0; i < 4; i++) {
        char arg[32];
        snprintf(arg, sizeof arg, "%" PRIu64, first + i);
        expect_ok("chains", 2 + (int)i % 3, arg);
    }
}

static void another_order_within_a_lane_is_told_with_rank_and_lane(void **state) {
    (void)state;
    expect_end("swap", 3, "", -1, GS_FAILED_PRECONDITION,
               "collective 1 of lane 2: rank 1 posted all-reduce sum 4 x fp32");
}

static void who_comes_late_to_a_lane_holds_up_no_other(void **state) {
    (void)state;
    expect_ok("late", 3, "owner");
    expect_ok("late", 2, "helper");
}

static void a_full_lane_leaves_the_others_theirs(void **state) {
    (void)state;
    expect_ok("full", 2, "");
}

static void who_lets_go_has_let_go_in_all_lanes(void **state) {
    (void)state;
    expect_end("abandon", 3, "owner", -1, GS_ABORTED, "rank 0 has seen enough");
    expect_end("abandon", 2, "helper", -1, GS_ABORTED, "rank 0 has seen enough");
}

static void letting_go_waits_for_a_move_in_any_lane(void **state) {
    (void)state;
#ifdef GRADSYNC_FAILPOINTS
    expect_end("held", 2, "", 1, GS_ABORTED, "rank 0 has seen enough");
#else
    skip();
#endif
}

static void numbers_of_lanes_that_differ_are_named(void **state) {
    (void)state;
    expect_end("disagree", 2, "", -1, GS_FAILED_PRECONDITION, "rank 1 has 3 lanes, rank 0 has 1");
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_orders_between_lanes_give_exact_results),
        cmocka_unit_test(a_killed_rank_is_named_whatever_is_in_flight),
        cmocka_unit_test(a_death_is_seen_in_every_lane),
        cmocka_unit_test(phases_follow_each_other_in_lanes_of_their_own),
        cmocka_unit_test(another_order_within_a_lane_is_told_with_rank_and_lane),
        cmocka_unit_test(who_comes_late_to_a_lane_holds_up_no_other),
        cmocka_unit_test(a_full_lane_leaves_the_others_theirs),
        cmocka_unit_test(who_lets_go_has_let_go_in_all_lanes),
        cmocka_unit_test(letting_go_waits_for_a_move_in_any_lane),
        cmocka_unit_test(numbers_of_lanes_that_differ_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
