// What ranks must all know about a step when no rank receives all of it: hooks of the test's own
// reduce each bucket to an owner, or cut it among the ranks, and leave NaN where a rank has no
// result. With a tally apart the step says what the flat all-reduce said, on every rank.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/hooks/hook_calls.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/asserts.h"
#include "tests/support/ranks.h"

#define NUM_PARAMS 7
#define NUM_STEPS 6
#define MAX_WORLD 4
#define MAX_BUCKETS NUM_PARAMS
#define DEADLINE gs_deadline_in_seconds(60)

// The third is fp64, the fifth sparse without rows: a bucket of nothing.
static const int64_t counts[NUM_PARAMS] = {3000, 17, 500, 1, 10, 800, 64};
#define SPARSE 4

// ---- hooks that leave ranks with a part

typedef enum share_kind {
    BUCKETS,  // bucket b is rank (b mod world)'s
    PIECES,   // of each bucket every rank has a piece, which may begin inside a gradient
    TWICE,    // as buckets, but rank 0 says to have those of rank 1 as well
    HALVES    // as buckets, but ranks 0 and 1 say to have the first half of everything: as many as
              // there are
} share_kind;

typedef struct sharer {
    share_kind kind;
    int rank, world_size;
    gs_segment *segments;  // of all buckets
    size_t first_segment[MAX_BUCKETS + 1];
} sharer;

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    (void)setup;
    *needs = (gs_hook_needs){.most_posts = MAX_WORLD};
    return gs_ok();
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    sharer *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->kind = *(const share_kind *)setup->choice->user;
    *state = self;
    return gs_ok();
}

// Elements [first, end) of a bucket of `count` that `rank` gets.
static void range_of(const sharer *self, size_t *first, size_t *end, int bucket, size_t count,
                     int rank) {
    size_t world = (size_t)self->world_size, at = (size_t)rank;
    bool owns = bucket % self->world_size == rank;
    bool pieces = self->kind == PIECES;
    *first = pieces ? count * at / world : 0;
    *end = pieces ? count * (at + 1) / world : owns ? count : 0;
}

static void claim_range(sharer *self, size_t *num_segments, const gs_hook_layout *bucket,
                        size_t first, size_t end) {
    for (size_t i = 0; i < bucket->num_params; i++) {
        const gs_hook_param *param = &bucket->params[i];
        size_t from = first > param->first ? first : param->first;
        size_t to = end < param->first + param->count ? end : param->first + param->count;
        if (from >= to) continue;
        self->segments[(*num_segments)++] =
            (gs_segment){.tensor = param->index, .first = from - param->first, .count = to - from};
    }
}

static void claim_halves(sharer *self, size_t *num_segments, const gs_hook_layout *bucket) {
    for (size_t i = 0; i < bucket->num_params && self->rank < 2; i++)
        self->segments[(*num_segments)++] =
            (gs_segment){.tensor = bucket->params[i].index, .count = bucket->params[i].count / 2};
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    sharer *self = state;
    size_t num_segments = 0;
    self->rank = gs_comm_rank(plan->comm);
    self->world_size = gs_comm_world_size(plan->comm);
    free(self->segments);
    self->segments = calloc(NUM_PARAMS, sizeof *self->segments);
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const gs_hook_layout *bucket = &plan->buckets[b];
        size_t first, end;
        int claimed = self->kind == TWICE && self->rank == 0 && b % 2 ? 1 : self->rank;
        range_of(self, &first, &end, (int)b, bucket->count, claimed);
        self->first_segment[b] = num_segments;
        if (self->kind == HALVES)
            claim_halves(self, &num_segments, bucket);
        else
            claim_range(self, &num_segments, bucket, first, end);
    }
    self->first_segment[plan->num_buckets] = num_segments;
    return gs_ok();
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    const sharer *self = state;
    for (int rank = 0; rank < self->world_size; rank++) {
        size_t first, end;
        range_of(self, &first, &end, bucket->index, bucket->count, rank);
        char *data = (char *)bucket->data + first * gs_dtype_bytes(bucket->dtype);
        if (first == end) continue;
        GS_TRY(gs_hook_post(work, bucket,
                            &(gs_collective){.kind = GS_REDUCE,
                                             .send = data,
                                             .recv = data,
                                             .count = end - first,
                                             .dtype = bucket->dtype,
                                             .op = GS_OP_SUM,
                                             .scale = bucket->scale,
                                             .root = rank}));
    }
    return gs_ok();
}

// Nothing may be read where this rank has no result.
static void spoil(const gs_hook_bucket *bucket, size_t first, size_t end) {
    for (size_t i = 0; i < bucket->count; i++) {
        if (i >= first && i < end) continue;
        if (bucket->dtype == GS_FP64)
            ((double *)bucket->data)[i] = (double)NAN;
        else
            ((float *)bucket->data)[i] = NAN;
    }
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    (void)deadline;
    const sharer *self = state;
    size_t first, end, begin = self->first_segment[bucket->index];
    range_of(self, &first, &end, bucket->index, bucket->count, self->rank);
    if (self->kind != TWICE) spoil(bucket, first, end);
    *result = (gs_hook_result){.is_partial = true,
                               .segments = self->segments + begin,
                               .num_segments = self->first_segment[bucket->index + 1] - begin};
    return gs_ok();
}

static void destroy(void *state) {
    sharer *self = state;
    free(self->segments);
    free(self);
}

static const gs_comm_hook share_hook = {.name = "share",
                                        .measure = measure,
                                        .create = create,
                                        .on_plan = on_plan,
                                        .run = run,
                                        .finish = finish,
                                        .commit = gs_hook_decide_nothing,
                                        .rollback = gs_hook_decide_nothing,
                                        .tensor = gs_hook_no_tensor,
                                        .loaded = gs_hook_load_nothing,
                                        .destroy = destroy};

// ---- a rank that runs the same steps by one reducer after the other

typedef struct way {
    const share_kind *share;  // NULL: all-reduce
    gs_tally_carrier tally;
    gs_reducer_op op;
    bool uneven, static_graph, exact, unused_is_error;
    const int *measured_by;
    const gs_separate_grad *separate;
    int num_steps;
} way;

typedef struct rank_state {
    int rank, world_size, num_shards;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan;
} rank_state;

// What a step said.
typedef struct said {
    gs_reduce_result result;
    uint8_t used[NUM_PARAMS];
} said;

// As many as there were ranks at first, whoever shares them now.
static gs_logical_shards shards_of(const rank_state *self, const way *how) {
    return (gs_logical_shards){.num_shards = self->num_shards,
                               .world_size = self->world_size,
                               .rank = self->rank,
                               .exact = how->exact};
}

static gs_reducer_options options_for(const rank_state *self, const way *how,
                                      gs_hook_choice *choice) {
    *choice = (gs_hook_choice){.hook = how->share ? &share_hook : &gs_hook_allreduce,
                               .user = (void *)(uintptr_t)how->share};
    return (gs_reducer_options){.params = self->params,
                                .num_params = NUM_PARAMS,
                                .plan = &self->plan,
                                .shards = shards_of(self, how),
                                .op = how->op,
                                .static_graph = how->static_graph,
                                .separate = how->separate,
                                .unused_is_error = how->unused_is_error,
                                .hooks = choice,
                                .num_hooks = 1,
                                .arena = self->arena,
                                .device = self->device,
                                .tally = how->tally,
                                .measured_by = how->measured_by};
}

static gs_status open_rank(rank_state *self, const gs_rank_env *env) {
    *self = (rank_state){
        .rank = env->rank, .world_size = env->world_size, .num_shards = env->world_size};
    for (size_t p = 0; p < NUM_PARAMS; p++)
        self->params[p] = gs_param_spec_make(p == 2 ? GS_FP64 : GS_FP32, counts[p], 0, "p%zu", p);
    self->params[SPARSE].sparse = true;
    GS_TRY(gs_bucket_plan_parity(&self->plan, self->params, NUM_PARAMS, 2000, 8000, NULL));
    GS_TRY(gs_device_open(&self->device, "cpu", &(gs_device_options){.num_threads = 1}));
    gs_hook_choice choice;
    gs_reducer_options options = options_for(self, &(way){.exact = true}, &choice);
    size_t bytes;
    GS_TRY(gs_reducer_arena_bytes(&bytes, &options));
    GS_TRY(gs_arena_create(&self->arena, bytes));
    return gs_comm_create(&self->comm,
                          &(gs_comm_options){.rank = env->rank,
                                             .world_size = env->world_size,
                                             .generation = 1,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = env->exchange,
                                             .arena = self->arena,
                                             .device = self->device},
                          DEADLINE);
}

static void close_rank(rank_state *self) {
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_device_close(self->device);
    gs_bucket_plan_release(&self->plan);
}

// Parameter 1 is used by the last rank alone, 6 by nobody, unless the step is even.
static bool is_used(const rank_state *self, const way *how, size_t param, int64_t step) {
    if (param == 6) return !how->static_graph && !how->unused_is_error && step % 2 == 0;
    return param != 1 || self->rank == self->world_size - 1;
}

// In step 3 one element of the largest gradient, at its end, is infinite on the last rank.
static void write_grad(const rank_state *self, const gs_reducer_pass *pass, size_t param,
                       int64_t step) {
    for (size_t i = 0; i < (size_t)counts[param] && param != SPARSE; i++) {
        double value = (double)((int)((i * 7 + param + (size_t)step) % 23) - 11) *
                       (1 + (double)self->rank / 3) * (double)pass->grad_factor;
        if (step == 3 && param == 0 && i == 2990 && self->rank == self->world_size - 1)
            value = (double)INFINITY;
        if (self->params[param].dtype == GS_FP64)
            ((double *)pass->grads[param])[i] = value;
        else
            ((float *)pass->grads[param])[i] = (float)value;
    }
}

static gs_status run_pass(const rank_state *self, gs_reducer *reducer, const way *how,
                          int64_t step) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin_pass(reducer, &pass, 3 + self->rank));
    for (size_t p = NUM_PARAMS; p-- > 0;) {
        if (!is_used(self, how, p, step)) continue;
        write_grad(self, &pass, p, step);
        GS_TRY(gs_reducer_mark_ready(reducer, p));
    }
    return gs_reducer_end_pass(reducer);
}

// A tail that changes a gradient behind the buckets: half of it.
static gs_status halve_first(void *ctx, void *const *grads, gs_deadline deadline) {
    (void)ctx, (void)deadline;
    float *grad = grads[0];
    for (size_t i = 0; i < (size_t)counts[0]; i++) grad[i] *= 0.5f;
    return gs_ok();
}

static int num_passes(const rank_state *self, const way *how) {
    const gs_logical_shards shards = shards_of(self, how);
    return gs_logical_shards_count(&shards);
}

static gs_status run_step(const rank_state *self, gs_reducer *reducer, const way *how, int64_t step,
                          said *out) {
    static const size_t first = 0;
    // From step 2 on rank 0 has no data.
    bool uneven = how->uneven && step >= 2;
    gs_join_round round = {.num_active = self->world_size - uneven,
                           .source = self->world_size - 1,
                           .active = !uneven || self->rank != 0};
    GS_TRY(gs_reducer_begin_uneven(reducer, step, &round));
    for (int i = 0; i < num_passes(self, how) && round.active; i++)
        GS_TRY(run_pass(self, reducer, how, step));
    if (step == 4)
        GS_TRY(gs_reducer_add_tail(
            reducer, &(gs_reducer_tail){.finish = halve_first, .params = &first, .num_params = 1}));
    GS_TRY(gs_reducer_finish(reducer, &out->result, DEADLINE));
    memcpy(out->used, out->result.used, NUM_PARAMS);
    return gs_ok();
}

static gs_status run_steps_by(gs_reducer *reducer, const rank_state *self, const way *how,
                              said *out) {
    int num_steps = how->num_steps ? how->num_steps : NUM_STEPS;
    for (int step = 0; step < num_steps; step++)
        GS_TRY(gs_status_prefix(run_step(self, reducer, how, step, &out[step]), "step %d", step));
    return gs_ok();
}

static gs_status run_steps(const rank_state *self, const way *how, said *out) {
    gs_hook_choice choice;
    gs_reducer_options options = options_for(self, how, &choice);
    gs_reducer *reducer = NULL;
    gs_status status = gs_reducer_create(&reducer, &options, self->comm, DEADLINE);
    if (!status.code) status = run_steps_by(reducer, self, how, out);
    gs_reducer_destroy(reducer);
    return status;
}

// `cut`: squares of parts of a gradient were added to each other.
static gs_status compare(const said *got, const said *flat, bool cut) {
    const gs_reduce_result *a = &got->result, *b = &flat->result;
    if (memcmp(got->used, flat->used, NUM_PARAMS) != 0 || a->num_unused != b->num_unused)
        return gs_error(GS_INTERNAL, "%zu unused, not %zu", a->num_unused, b->num_unused);
    if (a->samples != b->samples || a->active_ranks != b->active_ranks)
        return gs_error(GS_INTERNAL, "%lld samples of %d, not %lld of %d", (long long)a->samples,
                        a->active_ranks, (long long)b->samples, b->active_ranks);
    if (a->nonfinite != b->nonfinite) return gs_error(GS_INTERNAL, "nonfinite %d", a->nonfinite);
    if (a->nonfinite && isnan(a->grad_norm) && isnan(b->grad_norm)) return gs_ok();
    double off = fabs(a->grad_norm - b->grad_norm);
    if (!(off <= (cut ? 1e-7 * b->grad_norm : 0)))
        return gs_error(GS_INTERNAL, "norm %a, not %a", a->grad_norm, b->grad_norm);
    return gs_ok();
}

// Where every rank has all results, and takes the squares of some of them.
static gs_status compare_dealt(const rank_state *self, way how, const said *flat,
                               uint64_t *digest) {
    int measured_by[NUM_PARAMS];
    said got[NUM_STEPS];
    for (int i = 0; i < NUM_PARAMS; i++) measured_by[i] = (i + 1) % self->world_size;
    how.measured_by = measured_by;
    GS_TRY(run_steps(self, &how, got));
    for (int step = 0; step < NUM_STEPS; step++) {
        GS_TRY(gs_status_prefix(compare(&got[step], &flat[step], false), "step %d", step));
        uint64_t bits;
        memcpy(&bits, &got[step].result.grad_norm, sizeof bits);
        if (!got[step].result.nonfinite) *digest = *digest * 31 + bits;
    }
    return gs_ok();
}

// The same steps by all hooks; the norms of the last one go to the parent.
static gs_status compare_ways(const rank_state *self, way how, uint64_t *digest) {
    static const share_kind kinds[] = {BUCKETS, PIECES};
    const share_kind *shares[] = {NULL, &kinds[0], &kinds[1]};
    said flat[NUM_STEPS], got[NUM_STEPS];
    how.tally = GS_TALLY_IN_BUCKETS;
    GS_TRY(gs_status_prefix(run_steps(self, &how, flat), "flat"));
    if (!flat[3].result.nonfinite || flat[2].result.nonfinite)
        return gs_error(GS_INTERNAL, "step 3 alone is not finite, it seems not");
    GS_TRY(gs_status_prefix(compare_dealt(self, how, flat, digest), "dealt"));
    how.tally = GS_TALLY_APART;
    for (int i = 0; i < (how.exact ? 1 : 3); i++) {
        how.share = shares[i];
        GS_TRY(gs_status_prefix(run_steps(self, &how, got), "way %d", i));
        for (int step = 0; step < NUM_STEPS; step++) {
            GS_TRY(gs_status_prefix(compare(&got[step], &flat[step], i == 2), "way %d, step %d", i,
                                    step));
            uint64_t bits;
            memcpy(&bits, &got[step].result.grad_norm, sizeof bits);
            if (!got[step].result.nonfinite) *digest = *digest * 31 + bits;
        }
    }
    return gs_ok();
}

static gs_status body_compare(const gs_rank_env *env) {
    static const way ways[] = {{.op = GS_MEAN},
                               {.op = GS_SUM, .uneven = true},
                               {.op = GS_SAMPLE_MEAN, .uneven = true},
                               {.op = GS_SAMPLE_MEAN, .static_graph = true},
                               {.op = GS_MEAN, .exact = true}};
    rank_state self;
    uint64_t digest = 0;
    gs_status status = open_rank(&self, env);
    for (size_t i = 0; i < sizeof ways / sizeof *ways && !status.code; i++)
        status = gs_status_prefix(compare_ways(&self, ways[i], &digest), "case %zu", i);
    char note[32];
    snprintf(note, sizeof note, "%016llx", (unsigned long long)digest);
    gs_rank_note(env, note);
    close_rank(&self);
    return status;
}

static void parts_say_what_the_whole_said(void **state) {
    (void)state;
    for (int world_size = 2; world_size <= MAX_WORLD; world_size++) {
        gs_ranks *ranks;
        gs_status statuses[MAX_WORLD];
        assert_ok(gs_ranks_start(&ranks, "compare", world_size, "", NULL));
        assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(120)));
        for (int r = 0; r < world_size; r++) assert_string_equal(statuses[r].message, "");
        for (int r = 1; r < world_size; r++)
            assert_string_equal(gs_ranks_note(ranks, r), gs_ranks_note(ranks, 0));
        gs_ranks_destroy(ranks);
    }
}

// ---- ranks change, squares stay dealt

// The same steps by a reducer of its own and by `dealt`, which was reset to here.
static gs_status compare_here(const rank_state *self, gs_reducer *dealt, const way *how) {
    way taking_all = *how;
    said flat[NUM_STEPS], got[NUM_STEPS];
    taking_all.measured_by = NULL;
    GS_TRY(gs_status_prefix(run_steps(self, &taking_all, flat), "every rank takes all"));
    GS_TRY(gs_reducer_reset(dealt, self->comm, DEADLINE));
    GS_TRY(gs_status_prefix(run_steps_by(dealt, self, how, got), "dealt"));
    for (int step = 0; step < NUM_STEPS; step++)
        GS_TRY(gs_status_prefix(compare(&got[step], &flat[step], false), "step %d", step));
    return gs_ok();
}

// To a part, in which ranks have other numbers and one of those that were named is missing, and
// back.
static gs_status go_to_part_and_back(const rank_state *self, const rank_state *part) {
    int measured_by[NUM_PARAMS];
    for (int i = 0; i < NUM_PARAMS; i++) measured_by[i] = self->world_size - 1 - i % 3;
    const way how = {.op = GS_MEAN, .measured_by = measured_by};
    gs_hook_choice choice;
    gs_reducer_options options = options_for(self, &how, &choice);
    gs_reducer *reducer = NULL;
    gs_status status = gs_reducer_create(&reducer, &options, self->comm, DEADLINE);
    if (!status.code) status = gs_status_prefix(compare_here(self, reducer, &how), "all");
    if (!status.code) status = gs_status_prefix(compare_here(part, reducer, &how), "part");
    if (!status.code) status = gs_status_prefix(compare_here(self, reducer, &how), "all again");
    gs_reducer_destroy(reducer);
    return status;
}

static gs_status body_reset(const gs_rank_env *env) {
    rank_state self, part;
    gs_status status = open_rank(&self, env);
    part = self;
    part.comm = NULL;
    if (!status.code)
        status = gs_comm_split(&part.comm, self.comm,
                               &(gs_comm_split_options){.color = self.rank > 0}, DEADLINE);
    if (!status.code) {
        part.rank = gs_comm_rank(part.comm);
        part.world_size = gs_comm_world_size(part.comm);
        status = go_to_part_and_back(&self, &part);
    }
    gs_comm_destroy(part.comm);
    close_rank(&self);
    return status;
}

static void squares_stay_dealt_among_other_ranks(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("reset", MAX_WORLD, "", gs_deadline_in_seconds(60)));
}

// ---- what cannot be

static gs_status die(void *ctx, void *const *grads, gs_deadline deadline) {
    (void)ctx, (void)grads, (void)deadline;
    raise(SIGKILL);
    return gs_ok();
}

// Rank 1 dies behind all buckets: the others are in the tally, and wait for it.
static gs_status die_before_tally(const rank_state *self, const way *how) {
    gs_hook_choice choice;
    gs_reducer_options options = options_for(self, how, &choice);
    gs_reducer *reducer = NULL;
    said out;
    gs_status status = gs_reducer_create(&reducer, &options, self->comm, DEADLINE);
    if (!status.code) status = run_step(self, reducer, how, 0, &out);
    if (!status.code) status = gs_reducer_begin(reducer, 1);
    if (!status.code) status = run_pass(self, reducer, how, 1);
    if (!status.code && self->rank == 1)
        status = gs_reducer_add_tail(reducer, &(gs_reducer_tail){.finish = die});
    if (!status.code) status = gs_reducer_finish(reducer, &out.result, DEADLINE);
    if (gs_reducer_complete(reducer))
        status = gs_error(GS_INTERNAL, "the step is complete without the tally");
    gs_reducer_destroy(reducer);
    return status;
}

static gs_status body_wrong(const gs_rank_env *env) {
    static const share_kind kinds[] = {BUCKETS, TWICE, HALVES};
    const share_kind *kind = strcmp(env->arg, "twice") == 0    ? &kinds[1]
                             : strcmp(env->arg, "halves") == 0 ? &kinds[2]
                                                               : &kinds[0];
    way how = {.share = kind, .tally = GS_TALLY_APART, .num_steps = 1};
    static double memory[NUM_PARAMS][3000];
    gs_separate_grad tensors[NUM_PARAMS] = {0};
    said out[NUM_STEPS];
    rank_state self;
    gs_status status = open_rank(&self, env);
    for (size_t p = 0; p < NUM_PARAMS; p++)
        if (p != SPARSE) tensors[p] = (gs_separate_grad){memory[p], p == 2 ? GS_FP64 : GS_FP32};
    if (strcmp(env->arg, "separate") == 0) how.separate = tensors;
    if (strcmp(env->arg, "in buckets") == 0) how.tally = GS_TALLY_IN_BUCKETS;
    if (strcmp(env->arg, "other carrier") == 0 && env->rank == 1) how.tally = GS_TALLY_IN_BUCKETS;
    if (strncmp(env->arg, "squares", 7) == 0) {
        // Rank 2 has it that all are rank 2's.
        static const int ours[NUM_PARAMS] = {0}, others[NUM_PARAMS] = {2, 2, 2, 2, 2, 2, 2};
        static const int nobodys[NUM_PARAMS] = {0, 1, -1};
        how = (way){.op = GS_MEAN, .num_steps = 1, .measured_by = env->rank == 2 ? others : ours};
        if (strcmp(env->arg, "squares of some") == 0 && env->rank == 2) how.measured_by = NULL;
        if (strcmp(env->arg, "squares of nobody") == 0) how.measured_by = nobodys;
    }
    if (strcmp(env->arg, "unused") == 0) how.unused_is_error = true;
    if (!status.code && strcmp(env->arg, "die") == 0)
        status = die_before_tally(&self, &how);
    else if (!status.code)
        status = run_steps(&self, &how, out);
    close_rank(&self);
    return status;
}

// Where one rank's error aborts, the others leave with its words and ABORTED: code 0 is any.
static void expect_everywhere(const char *arg, gs_code code, const char *words, int except) {
    gs_ranks *ranks;
    gs_status statuses[3];
    assert_ok(gs_ranks_start(&ranks, "wrong", 3, arg, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    for (int r = 0; r < 3; r++) {
        if (r == except) continue;
        if (!statuses[r].code || (code && statuses[r].code != code) ||
            !strstr(statuses[r].message, words))
            fail_msg("%s: rank %d: %d \"%s\"", arg, r, statuses[r].code, statuses[r].message);
    }
    gs_ranks_destroy(ranks);
}

static void what_two_ranks_hold_is_named(void **state) {
    (void)state;
    expect_everywhere("twice", 0, "elements of the result of parameter", -1);
}

static void halves_that_ranks_hold_twice_are_no_whole(void **state) {
    (void)state;
    expect_everywhere("halves", 0, "hold some elements twice and others not at all", -1);
}

static void a_part_needs_a_tally_apart(void **state) {
    (void)state;
    expect_everywhere("in buckets", 0, "GS_TALLY_APART is for that", -1);
}

static void separate_gradients_need_the_whole(void **state) {
    (void)state;
    expect_everywhere("separate", 0, "separate gradients, but a hook leaves parts", -1);
}

static void ranks_agree_on_the_carrier(void **state) {
    (void)state;
    expect_everywhere("other carrier", 0,
                      "rank 1 against rank 0: tally (in buckets 0, apart 1, in buckets and squares "
                      "dealt 2) 0 against 1",
                      -1);
    expect_everywhere("squares of some", 0, "0 against 2", -1);
}

static void squares_that_two_ranks_took_are_named(void **state) {
    (void)state;
    expect_everywhere("squares", 0, "2 ranks took the squares of parameter 0 \"p0\", must be one",
                      -1);
    expect_everywhere("squares of nobody", 0, "measured_by: parameter 2 \"p2\": rank -1", -1);
}

static void what_nobody_used_is_an_error_on_every_rank(void **state) {
    (void)state;
    expect_everywhere("unused", 0, "parameter 6 \"p6\" was used by no rank", -1);
}

static void a_rank_that_dies_before_the_tally_is_named(void **state) {
    (void)state;
    expect_everywhere("die", GS_ABORTED, "rank 1 died", 1);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"compare", body_compare}, {"reset", body_reset}, {"wrong", body_wrong}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_say_what_the_whole_said),
        cmocka_unit_test(squares_stay_dealt_among_other_ranks),
        cmocka_unit_test(what_two_ranks_hold_is_named),
        cmocka_unit_test(halves_that_ranks_hold_twice_are_no_whole),
        cmocka_unit_test(a_part_needs_a_tally_apart),
        cmocka_unit_test(separate_gradients_need_the_whole),
        cmocka_unit_test(ranks_agree_on_the_carrier),
        cmocka_unit_test(squares_that_two_ranks_took_are_named),
        cmocka_unit_test(what_nobody_used_is_an_error_on_every_rank),
        cmocka_unit_test(a_rank_that_dies_before_the_tally_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
