// Drawn programs over several lanes: whatever ranks post first, collectives meet those of their
// lane, and a rank that dies is named.
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

#include "core/random.h"
#include "tests/multiprocess/lane_ranks.h"
#include "tests/support/comm_rank.h"
#include "tests/support/comm_trial.h"

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
    GS_TRY(gs_comm_wait(self->rank.comm, one->work, lane_ranks_soon()));
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
    gs_deadline deadline = lane_ranks_soon();
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

static const gs_rank_body bodies[] = {
    {"programs", run_programs}, {"killed", run_killed}, {"chains", run_chains}, {0}};

static void drawn_orders_between_lanes_give_exact_results(void **state) {
    (void)state;
    uint64_t count = number_from_environment("PROPERTY_SEEDS", NUM_SEEDS);
    uint64_t first = number_from_environment("PROPERTY_FIRST", 1);
    printf("seeds %" PRIu64 " to %" PRIu64 "\n", first, first + count - 1);
    char arg[64];
    snprintf(arg, sizeof arg, "%" PRIu64 " %" PRIu64, first, count);
    for (int world_size = 2; world_size <= LANE_RANKS_MOST; world_size++)
        lane_ranks_expect_ok("programs", world_size, arg);
}

static void a_killed_rank_is_named_whatever_is_in_flight(void **state) {
    (void)state;
    uint64_t first = number_from_environment("PROPERTY_FIRST", 1);
    printf("seeds %" PRIu64 " to %" PRIu64 "\n", first, first + 3);
    for (uint64_t i = 0; i < 4; i++) {
        char arg[32];
        snprintf(arg, sizeof arg, "%" PRIu64, first + i);
        lane_ranks_expect_end("killed", 2 + (int)i % 3, arg, 1, GS_ABORTED, "rank 1 died");
    }
}

static void phases_follow_each_other_in_lanes_of_their_own(void **state) {
    (void)state;
    uint64_t first = number_from_environment("PROPERTY_FIRST", 1);
    printf("seeds %" PRIu64 " to %" PRIu64 "\n", first, first + 3);
    for (uint64_t i = 0; i < 4; i++) {
        char arg[32];
        snprintf(arg, sizeof arg, "%" PRIu64, first + i);
        lane_ranks_expect_ok("chains", 2 + (int)i % 3, arg);
    }
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_orders_between_lanes_give_exact_results),
        cmocka_unit_test(a_killed_rank_is_named_whatever_is_in_flight),
        cmocka_unit_test(phases_follow_each_other_in_lanes_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
