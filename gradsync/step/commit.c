#include "gradsync/step/commit.h"

#include <math.h>
#include <string.h>

#include "core/digest.h"
#include "core/failpoint.h"
#include "gradsync/comm/same_words.h"

#define LOSS_UNIT 0x1p24       // fixed point: losses are summed in units of 2^-24
#define LOSS_MAX_UNITS 0x1p50  // of one rank, so that 4096 ranks cannot overflow

// A value that must be equal everywhere takes two words: its sum and the sum of its squares, mod
// 2^64. A digest takes four, since a difference of 2^32 would hide in one pair: the same for a hash
// of it.
enum {
    VOTE_RANKS,
    VOTE_STEP,
    VOTE_GENERATION = VOTE_STEP + 2,
    VOTE_PLAN = VOTE_GENERATION + 2,
    VOTE_PARAMS = VOTE_PLAN + 4,
    VOTE_NONFINITE = VOTE_PARAMS + 4,
    VOTE_DRAIN,
    VOTE_CHECKPOINT,
    VOTE_FAILED,
    VOTE_SAVING,
    VOTE_LOSS,
    VOTE_LOSSES,
    VOTE_BAD_LOSSES,
    VOTE_SAMPLES,
    VOTE_NEXT_PLAN,
    VOTE_SAVE = VOTE_NEXT_PLAN + 4,
    VOTE_ORPHANED,
    VOTE_END,
    VOTE_WORDS = 32
};

_Static_assert(VOTE_END <= VOTE_WORDS, "all votes fit");

static void write_equal(int64_t *words, uint64_t value) {
    words[0] = (int64_t)value;
    words[1] = (int64_t)(value * value);
}

static void write_digest(int64_t *words, uint64_t value) {
    write_equal(words, value);
    write_equal(words + 2, gs_hash64(&value, sizeof value, 0));
}

// n · Σx² - (Σx)² is the sum of all squared differences; a function of the sums alone, so that
// every rank comes to the same verdict.
static bool all_equal(const int64_t *words, int64_t num_ranks) {
    uint64_t sum = (uint64_t)words[0], squares = (uint64_t)words[1];
    return (uint64_t)num_ranks * squares == sum * sum;
}

static bool all_digests_equal(const int64_t *words, int64_t num_ranks) {
    return all_equal(words, num_ranks) && all_equal(words + 2, num_ranks);
}

static int64_t loss_units(double loss_sum) {
    double units = loss_sum * LOSS_UNIT;
    if (units > LOSS_MAX_UNITS) units = LOSS_MAX_UNITS;
    if (units < -LOSS_MAX_UNITS) units = -LOSS_MAX_UNITS;
    return llrint(units);
}

static void write_vote(int64_t words[VOTE_WORDS], const gs_commit_vote *vote) {
    memset(words, 0, VOTE_WORDS * sizeof words[0]);
    words[VOTE_RANKS] = 1;
    write_equal(words + VOTE_STEP, (uint64_t)vote->step);
    write_equal(words + VOTE_GENERATION, vote->generation);
    write_digest(words + VOTE_PLAN, vote->plan_digest);
    write_digest(words + VOTE_PARAMS, vote->params_digest);
    write_digest(words + VOTE_NEXT_PLAN, vote->next_plan_digest);
    words[VOTE_NONFINITE] = vote->nonfinite;
    words[VOTE_DRAIN] = vote->wants_drain;
    words[VOTE_CHECKPOINT] = vote->wants_checkpoint;
    words[VOTE_FAILED] = vote->failed;
    words[VOTE_SAVING] = vote->is_saving;
    words[VOTE_SAVE] = vote->wants_save;
    words[VOTE_ORPHANED] = vote->is_orphaned;
    words[VOTE_LOSSES] = vote->num_losses;
    if (isfinite(vote->loss_sum)) words[VOTE_LOSS] = loss_units(vote->loss_sum);
    else words[VOTE_BAD_LOSSES] = 1;
    words[VOTE_SAMPLES] = vote->samples;
}

// The sums say that ranks differ, everywhere alike; one more exchange says which and in what.
static gs_status explain_difference(gs_comm *comm, const gs_commit_vote *vote,
                                    gs_deadline deadline) {
    const gs_same_word words[] = {{"step", vote->step, false},
                                  {"generation", vote->generation, false},
                                  {"plan digest", (int64_t)vote->plan_digest, false}};
    gs_status status = gs_same_words_check(words, sizeof words / sizeof *words, comm, deadline);
    if (status.code == GS_FAILED_PRECONDITION) return gs_status_prefix(status, "commit");
    if (status.code) return status;
    return gs_error(GS_INTERNAL, "commit: sums of ranks differ, ranks do not");
}

static void read_result(gs_commit_result *result, const int64_t sums[VOTE_WORDS]) {
    result->nonfinite_ranks = (int)sums[VOTE_NONFINITE];
    result->drain_ranks = (int)sums[VOTE_DRAIN];
    result->checkpoint_ranks = (int)sums[VOTE_CHECKPOINT];
    result->failed_ranks = (int)sums[VOTE_FAILED];
    result->saving_ranks = (int)sums[VOTE_SAVING];
    result->save_ranks = (int)sums[VOTE_SAVE];
    result->all_orphaned = sums[VOTE_ORPHANED] == sums[VOTE_RANKS];
    result->samples = sums[VOTE_SAMPLES];
    result->params_differ = !all_digests_equal(sums + VOTE_PARAMS, sums[VOTE_RANKS]);
    result->loss = sums[VOTE_BAD_LOSSES] || !sums[VOTE_LOSSES]
                       ? (double)NAN
                       : (double)sums[VOTE_LOSS] / LOSS_UNIT / (double)sums[VOTE_LOSSES];
}

gs_status gs_commit_run(gs_commit_result *result, gs_comm *comm, const gs_commit_vote *vote,
                        gs_deadline deadline) {
    GS_FAILPOINT("commit.enter");
    int64_t mine[VOTE_WORDS], sums[VOTE_WORDS];
    write_vote(mine, vote);
    GS_TRY(gs_comm_run(comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = mine,
                                        .recv = sums,
                                        .count = VOTE_WORDS,
                                        .dtype = GS_I64,
                                        .op = GS_OP_SUM,
                                        .step = vote->step,
                                        .bucket = -1},
                       deadline));
    int64_t num_ranks = sums[VOTE_RANKS];
    if (!all_equal(sums + VOTE_STEP, num_ranks) || !all_equal(sums + VOTE_GENERATION, num_ranks) ||
        !all_digests_equal(sums + VOTE_PLAN, num_ranks))
        return explain_difference(comm, vote, deadline);
    read_result(result, sums);
    result->switches_plan =
        vote->next_plan_digest && all_digests_equal(sums + VOTE_NEXT_PLAN, num_ranks);
    GS_FAILPOINT("commit.leave");
    return gs_ok();
}
