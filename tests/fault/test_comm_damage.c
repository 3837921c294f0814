// A rank gone wild writes anything into its own control block: the others end with its number, and
// neither hang nor take its words for true.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "gradsync/comm/shm/segment.h"
#include "tests/support/comm_rank.h"
#include "tests/support/own_block.h"
#include "tests/support/ranks.h"

#define WORLD 3
#define COUNT 200000
#define RUN_SECONDS 60.0
#define ROUNDS_BEFORE 3

#define NUM_LANES 2
// All that the ranks do here they do in the last lane.
#define IN_LANE(member)                                                                            \
    (sizeof(gs_shm_control) + (NUM_LANES - 1) * sizeof(gs_shm_lane_block) +                        \
     offsetof(gs_shm_lane_block, member))

// What of the block is overwritten.
static const struct {
    const char *name;
    size_t offset, bytes;
} places[] = {
    {"everything", 0, sizeof(gs_shm_control) + NUM_LANES * sizeof(gs_shm_lane_block)},
    {"header", 0, 16},
    {"done", IN_LANE(done), 8},
    {"chunks_in", IN_LANE(chunks_in), 8},
    {"chunks_out", IN_LANE(chunks_out), 8},
    {"chunks_read", IN_LANE(chunks_read), 8},
    {"posts", IN_LANE(posts), sizeof(gs_shm_post[GS_SHM_MAX_POSTED])},
    {"claim", IN_LANE(posts[ROUNDS_BEFORE + 1].claim), sizeof(gs_collective_claim)},
    {"send_offset", IN_LANE(posts[ROUNDS_BEFORE + 1].send_offset), 8},
    {"recv_offset", IN_LANE(posts[ROUNDS_BEFORE + 1].recv_offset), 8},
    {"between", IN_LANE(posts[ROUNDS_BEFORE + 1].send_offset), 8},
};
#define NUM_PLACES (sizeof places / sizeof *places)

static gs_status scribble(const char *what, uint64_t seed) {
    unsigned char *block = own_block_find();
    if (!block) return gs_error(GS_INTERNAL, "own control block is not mapped");
    gs_random_key key = {.seed = seed, .stream = 9};
    for (size_t p = 0; p < NUM_PLACES; p++) {
        if (strcmp(places[p].name, what) != 0) continue;
        for (size_t i = 0; i < places[p].bytes; i += 8) {
            uint64_t garbage = gs_random_u64(key, i) | 1;
            if (strcmp(what, "between") == 0) garbage = 1 + 2;  // in the middle of the first float
            size_t left = places[p].bytes - i;
            memcpy(block + places[p].offset + i, &garbage, left < 8 ? left : 8);
        }
    }
    return gs_ok();
}

typedef struct setting {
    char memory[16], what[16];
    unsigned seed;
} setting;

// Rank 1 arrives, scribbles, and never moves again.
static gs_status run_damaged(comm_rank *self, const gs_rank_env *env, const setting *how) {
    static float outside[COUNT];
    char note = 0, all[WORLD];
    gs_deadline deadline = gs_deadline_in_seconds(RUN_SECONDS);
    float *data = strcmp(how->memory, "outside") == 0 ? outside : gs_arena_data(self->arena);
    gs_collective sum = {.kind = GS_ALLREDUCE,
                         .send = data,
                         .recv = data,
                         .count = strcmp(how->memory, "small") == 0 ? 100 : COUNT,
                         .dtype = GS_FP32,
                         .bucket = 3,
                         .lane = NUM_LANES - 1};
    for (int i = 0; i < ROUNDS_BEFORE; i++) GS_TRY(gs_comm_run(self->comm, &sum, deadline));
    gs_status status = gs_ok();
    gs_work work;
    // A rank may be through with a collective in which others still read its block.
    GS_TRY(gs_rank_exchange(env->exchange, "rounds", NULL, 0, &note, 1, all, deadline));
    if (self->rank == 1) {
        GS_TRY(gs_comm_post(self->comm, &work, &sum));
        GS_TRY(scribble(how->what, how->seed));
    }
    GS_TRY(gs_rank_exchange(env->exchange, "damaged", NULL, 0, &note, 1, all, deadline));
    if (self->rank != 1) status = gs_comm_run(self->comm, &sum, deadline);
    GS_TRY(gs_rank_exchange(env->exchange, "over", NULL, 0, &note, 1, all, deadline));
    return status;
}

static gs_status meet_damage(const gs_rank_env *env) {
    setting how;
    if (sscanf(env->arg, "%15s %15s %u", how.memory, how.what, &how.seed) != 3)
        return gs_error(GS_INVALID_ARGUMENT, "\"%s\"", env->arg);
    comm_rank self;
    // The wild rank moves only when it is told to.
    bool helps = env->rank != 1 && how.seed % 2;
    gs_comm_options options = {.helper = helps ? GS_HELPER_ON : GS_HELPER_OFF,
                               .num_lanes = NUM_LANES};
    gs_status status = comm_rank_open(&self, env, COUNT * sizeof(float), &options);
    if (!status.code) status = run_damaged(&self, env, &how);
    comm_rank_close(&self);
    return status;
}

static const gs_rank_body bodies[] = {{"damage", meet_damage}, {0}};

static void expect_culprit(const char *memory, const char *what, unsigned seed) {
    char arg[64];
    snprintf(arg, sizeof arg, "%s %s %u", memory, what, seed);
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    assert_int_equal(gs_ranks_start(&ranks, "damage", WORLD, arg, NULL).code, GS_OK);
    assert_int_equal(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)).code, GS_OK);
    gs_ranks_destroy(ranks);
    for (int rank = 0; rank < WORLD; rank += 2) {
        bool named = strstr(statuses[rank].message, "rank 1 ") != NULL;
        if (!named || statuses[rank].code == GS_DEADLINE_EXCEEDED)
            print_error("%s, rank %d: %s: %s\n", arg, rank, gs_code_name(statuses[rank].code),
                        statuses[rank].message);
        assert_true(named);
        assert_int_not_equal(statuses[rank].code, GS_DEADLINE_EXCEEDED);
    }
}

static void damage_of_the_whole_block_is_blamed_on_its_owner(void **state) {
    (void)state;
    static const char *const memories[] = {"arena", "outside", "small"};
    for (unsigned seed = 0; seed < 6; seed++)
        expect_culprit(memories[seed % 3], seed < 3 ? "everything" : "posts", seed);
}

static void a_damaged_header_or_claim_is_blamed_on_its_owner(void **state) {
    (void)state;
    expect_culprit("arena", "claim", 2);
    expect_culprit("small", "claim", 3);
    expect_culprit("arena", "header", 4);
}

static void impossible_counters_hold_nobody_up_and_mislead_nobody(void **state) {
    (void)state;
    expect_culprit("arena", "done", 2);
    expect_culprit("outside", "chunks_in", 2);
    expect_culprit("outside", "chunks_out", 3);
    expect_culprit("outside", "chunks_read", 2);
}

static void offsets_outside_the_arena_are_never_followed(void **state) {
    (void)state;
    expect_culprit("arena", "send_offset", 2);
    expect_culprit("arena", "recv_offset", 3);
}

static void offsets_between_numbers_are_never_followed(void **state) {
    (void)state;
    expect_culprit("arena", "between", 2);
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damage_of_the_whole_block_is_blamed_on_its_owner),
        cmocka_unit_test(a_damaged_header_or_claim_is_blamed_on_its_owner),
        cmocka_unit_test(impossible_counters_hold_nobody_up_and_mislead_nobody),
        cmocka_unit_test(offsets_outside_the_arena_are_never_followed),
        cmocka_unit_test(offsets_between_numbers_are_never_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
