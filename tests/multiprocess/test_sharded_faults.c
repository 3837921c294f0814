// Sharded gradients and parameters where ranks come and go, differ, or stay away: another world
// takes other shards, and whatever does not fit is named on every rank.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/reducer/reducer.h"
#include "gradsync/sharded/param_gather.h"
#include "gradsync/sharded/shard_reduce.h"
#include "gradsync/sharded/shards.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"

#define NUM_PARAMS 4
#define MAX_WORLD 4
#define GATHER_LANE 1
#define DEADLINE gs_deadline_in_seconds(60)

static const int64_t counts[NUM_PARAMS] = {300, 7, 41, 90};

typedef struct sharded_rank {
    comm_rank rank;
    gs_param_spec params[NUM_PARAMS];
    int owners[NUM_PARAMS];
    gs_bucket_plan plan;
    gs_partition partition;
    gs_shards *shards;
    gs_hook_choice choices[2];
    gs_reducer_options options;
    gs_reducer *reducer;
    gs_param_gather *gather;
} sharded_rank;

// Everything but what takes ranks together.
static gs_status open_rank(sharded_rank *self, const gs_rank_env *env, gs_partition partition) {
    *self = (sharded_rank){.partition = partition};
    GS_TRY(comm_rank_open(&self->rank, env, 64 << 10, &(gs_comm_options){.num_lanes = 2}));
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        self->params[i] = gs_param_spec_make(GS_FP32, counts[i], 0, "p%zu", i);
        self->owners[i] = (int)i % env->world_size;
    }
    return gs_bucket_plan_parity(&self->plan, self->params, NUM_PARAMS, 400, 400, NULL);
}

static gs_status cut(sharded_rank *self) {
    const gs_shards_options options = {
        .partition = self->partition,
        .owners = self->partition == GS_PARTITION_GIVEN ? self->owners : NULL,
        .plan = &self->plan,
        .params = self->params,
        .num_params = NUM_PARAMS,
        .world_size = self->rank.world_size};
    GS_TRY(gs_shards_create(&self->shards, &options));
    self->choices[0] = (gs_hook_choice){.hook = &gs_hook_shard_reduce, .user = self->shards};
    self->choices[1] = (gs_hook_choice){.hook = &gs_hook_allreduce};
    self->options = (gs_reducer_options){.params = self->params,
                                         .num_params = NUM_PARAMS,
                                         .plan = &self->plan,
                                         .shards = {.num_shards = MAX_WORLD,
                                                    .world_size = self->rank.world_size,
                                                    .rank = self->rank.rank},
                                         .op = GS_SUM,
                                         .hooks = self->choices,
                                         .num_hooks = 1,
                                         .arena = self->rank.arena,
                                         .device = self->rank.device,
                                         .tally = GS_TALLY_APART};
    return gs_ok();
}

static gs_status make_reducer(sharded_rank *self) {
    return gs_reducer_create(&self->reducer, &self->options, self->rank.comm, DEADLINE);
}

static gs_status make_gather(sharded_rank *self) {
    const gs_param_gather_options options = {.shards = self->shards,
                                             .comm = self->rank.comm,
                                             .params = gs_arena_data(self->rank.arena),
                                             .lane = GATHER_LANE};
    return gs_param_gather_create(&self->gather, &options, DEADLINE);
}

static void close_rank(sharded_rank *self) {
    gs_param_gather_destroy(self->gather);
    gs_reducer_destroy(self->reducer);
    gs_shards_destroy(self->shards);
    gs_bucket_plan_release(&self->plan);
    comm_rank_close(&self->rank);
}

static float grad_of(int rank, size_t param, size_t i) {
    return (float)((rank + 1) * (int)(i % 7 + param + 1));
}

// One step of the sum over the communicator's ranks; what is owned here has it.
static gs_status take_step(const sharded_rank *self, const gs_comm *comm, int64_t step) {
    gs_reduce_result result;
    gs_reducer_pass pass = {0};
    GS_TRY(gs_reducer_begin(self->reducer, step));
    while (!pass.reduces) {
        GS_TRY(gs_reducer_begin_pass(self->reducer, &pass, 1));
        for (size_t p = NUM_PARAMS; p-- > 0;) {
            for (size_t i = 0; i < (size_t)counts[p]; i++) {
                float *grad = &((float *)pass.grads[p])[i];
                *grad = grad_of(pass.shard, p, i) + (pass.accumulate ? *grad : 0);
            }
            GS_TRY(gs_reducer_mark_ready(self->reducer, p));
        }
        GS_TRY(gs_reducer_end_pass(self->reducer));
    }
    GS_TRY(gs_reducer_finish(self->reducer, &result, DEADLINE));
    size_t num_segments;
    const gs_segment *own = gs_shards_of_rank(self->shards, gs_comm_rank(comm), &num_segments);
    for (size_t s = 0; s < num_segments; s++) {
        const float *grad = gs_reducer_grads(self->reducer)[own[s].tensor];
        for (size_t i = own[s].first; i < own[s].first + own[s].count; i++) {
            float sum = 0;
            for (int shard = 0; shard < MAX_WORLD; shard++) sum += grad_of(shard, own[s].tensor, i);
            if (grad[i] != sum)
                return gs_error(GS_INTERNAL, "step %lld: gradient %zu[%zu] is %g, not %g",
                                (long long)step, own[s].tensor, i, (double)grad[i], (double)sum);
        }
    }
    return gs_reducer_commit(self->reducer);
}

// To another communicator with the shards of its world.
static gs_status move_to(sharded_rank *self, gs_comm *comm) {
    const int *owners = NULL;
    if (self->partition == GS_PARTITION_GIVEN) {
        for (size_t i = 0; i < NUM_PARAMS; i++) self->owners[i] = (int)i % gs_comm_world_size(comm);
        owners = self->owners;
    }
    GS_TRY(gs_shards_redo(self->shards, gs_comm_world_size(comm), NULL, owners));
    return gs_reducer_reset(self->reducer, comm, DEADLINE);
}

// The last rank stays out for two steps.
static gs_status shrink_and_grow(sharded_rank *self) {
    gs_comm *few = NULL, *all = self->rank.comm;
    bool stays = self->rank.rank < self->rank.world_size - 1;
    GS_TRY(cut(self));
    GS_TRY(make_reducer(self));
    GS_TRY(take_step(self, all, 0));
    GS_TRY(gs_comm_split(&few, all, &(gs_comm_split_options){.color = stays ? 0 : GS_COMM_NO_COLOR},
                         DEADLINE));
    gs_status status = stays ? move_to(self, few) : gs_ok();
    for (int64_t step = 1; step < 3 && stays && !status.code; step++)
        status = take_step(self, few, step);
    if (!status.code) status = move_to(self, all);
    gs_comm_destroy(few);
    return status.code ? status : take_step(self, all, 3);
}

static gs_status body_worlds(const gs_rank_env *env) {
    for (gs_partition kind = GS_PARTITION_FLAT; kind <= GS_PARTITION_GIVEN; kind++) {
        sharded_rank self;
        gs_status status = open_rank(&self, env, kind);
        if (!status.code) status = shrink_and_grow(&self);
        close_rank(&self);
        GS_TRY(gs_status_prefix(status, "%s", gs_partition_name(kind)));
    }
    return gs_ok();
}

static void another_world_has_other_shards(void **state) {
    (void)state;
    for (int world_size = 2; world_size <= MAX_WORLD; world_size++)
        assert_ok(gs_ranks_run("worlds", world_size, "", gs_deadline_in_seconds(60)));
}

// Each of two groups shares a model of its own: rank 1 of it is rank 2 or 3 of all.
static gs_status gather_in_group(sharded_rank *self) {
    GS_TRY(cut(self));
    GS_TRY(make_reducer(self));
    GS_TRY(take_step(self, self->rank.comm, 0));
    gs_reducer_destroy(self->reducer);
    self->reducer = NULL;
    GS_TRY(make_gather(self));
    void *const *params = gs_param_gather_params(self->gather);
    size_t num_segments;
    const gs_segment *own = gs_shards_of_rank(self->shards, self->rank.rank, &num_segments);
    for (size_t s = 0; s < num_segments; s++)
        for (size_t i = own[s].first; i < own[s].first + own[s].count; i++)
            ((float *)params[own[s].tensor])[i] = grad_of(7, own[s].tensor, i);
    GS_TRY(gs_param_gather_start(self->gather, 0));
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        GS_TRY(gs_param_gather_wait(self->gather, p, DEADLINE));
        for (size_t i = 0; i < (size_t)counts[p]; i++)
            if (((float *)params[p])[i] != grad_of(7, p, i))
                return gs_error(GS_INTERNAL, "parameter %zu[%zu] did not come", p, i);
    }
    return gs_ok();
}

static gs_status body_groups(const gs_rank_env *env) {
    for (gs_partition kind = GS_PARTITION_FLAT; kind <= GS_PARTITION_SORTED; kind++) {
        sharded_rank self;
        gs_comm *part = NULL;
        gs_status status = open_rank(&self, env, kind);
        if (!status.code)
            status = gs_comm_split(&part, self.rank.comm,
                                   &(gs_comm_split_options){.color = env->rank % 2, .num_lanes = 2},
                                   DEADLINE);
        gs_comm *whole = self.rank.comm;
        self.rank.comm = part;
        self.rank.rank = env->rank / 2;
        self.rank.world_size = env->world_size / 2;
        if (!status.code) status = gather_in_group(&self);
        close_rank(&self);
        gs_comm_destroy(whole);
        GS_TRY(gs_status_prefix(status, "%s", gs_partition_name(kind)));
    }
    return gs_ok();
}

static void ranks_of_a_group_share_among_themselves(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("groups", MAX_WORLD, "", gs_deadline_in_seconds(60)));
}

// ---- what does not fit

static gs_status forget_to_redo(sharded_rank *self) {
    gs_comm *few;
    GS_TRY(make_reducer(self));
    GS_TRY(gs_comm_split(&few, self->rank.comm, &(gs_comm_split_options){.color = self->rank.rank},
                         DEADLINE));
    gs_status status = gs_reducer_reset(self->reducer, few, DEADLINE);
    gs_reducer_destroy(self->reducer);
    self->reducer = NULL;
    gs_comm_destroy(few);
    return status;
}

static gs_status take_another_plan(sharded_rank *self) {
    gs_bucket_plan plan;
    GS_TRY(make_reducer(self));
    GS_TRY(gs_bucket_plan_parity(&plan, self->params, NUM_PARAMS, 1 << 20, 1 << 20, NULL));
    gs_status status = gs_reducer_set_plan(self->reducer, &plan, DEADLINE);
    gs_bucket_plan_release(&plan);
    return status;
}

static gs_status step_with(sharded_rank *self) {
    GS_TRY(make_reducer(self));
    return take_step(self, self->rank.comm, 0);
}

// Rank 1 never sends what it owns.
static gs_status gather_late(sharded_rank *self) {
    GS_TRY(make_gather(self));
    if (self->rank.rank == 1) {
        gs_sleep_ns(4 * GS_NS_PER_SEC);  // until the others have given up
        return gs_ok();
    }
    GS_TRY(gs_param_gather_start(self->gather, 5));
    return gs_param_gather_wait(self->gather, 3, gs_deadline_in_seconds(0.3));
}

static gs_status gather_and_die(sharded_rank *self) {
    GS_TRY(make_gather(self));
    GS_TRY(gs_param_gather_start(self->gather, 5));
    GS_TRY(gs_param_gather_finish(self->gather, DEADLINE));
    if (self->rank.rank == 1) raise(SIGKILL);
    GS_TRY(gs_param_gather_start(self->gather, 6));
    return gs_param_gather_finish(self->gather, DEADLINE);
}

static void choose_other_owners(sharded_rank *self) {
    for (size_t i = 0; i < NUM_PARAMS && self->rank.rank == 1; i++)
        self->owners[i] = (self->owners[i] + 1) % self->rank.world_size;
}

static void choose_other_kind(sharded_rank *self) {
    if (self->rank.rank == 1) self->partition = GS_PARTITION_GREEDY;
}

static void take_no_shards(sharded_rank *self) {
    self->choices[0].user = NULL;
}

static void take_two_hooks(sharded_rank *self) {
    self->options.num_hooks = 2;
}

static void count_in_buckets(sharded_rank *self) {
    self->options.tally = GS_TALLY_IN_BUCKETS;
}

typedef struct misfit {
    const char *name;
    gs_partition partition;
    void (*before)(sharded_rank *self);  // shards are made
    void (*behind)(sharded_rank *self);  // they are
    gs_status (*run)(sharded_rank *self);
    gs_code code;       // of all ranks but `except`; 0: any
    const char *words;  // what one of them says
    int except;         // -1: none
} misfit;

static const misfit misfits[] = {
    {"redo", GS_PARTITION_FLAT, NULL, NULL, forget_to_redo, 0,
     "its shards are of 3 ranks, the communicator has 1", -1},
    {"plan", GS_PARTITION_SORTED, NULL, NULL, take_another_plan, 0,
     "its shards are of another plan", -1},
    {"owners", GS_PARTITION_GIVEN, choose_other_owners, NULL, make_reducer, 0,
     "rank 1 against rank 0: another owner of some element", -1},
    {"gathered owners", GS_PARTITION_GIVEN, choose_other_owners, NULL, make_gather, 0,
     "another owner of some element of the parameter gather", -1},
    {"kind", GS_PARTITION_GIVEN, choose_other_kind, NULL, make_gather, 0,
     "rank 1 against rank 0: partition of the parameter gather", -1},
    {"no shards", GS_PARTITION_FLAT, NULL, take_no_shards, make_reducer, 0,
     "hook \"shard_reduce\": has no shards", -1},
    {"two hooks", GS_PARTITION_FLAT, NULL, take_two_hooks, make_reducer, 0,
     "cuts buckets into even parts, so it has all of them", -1},
    {"tally", GS_PARTITION_FLAT, NULL, count_in_buckets, step_with, 0, "GS_TALLY_APART is for that",
     -1},
    {"late", GS_PARTITION_FLAT, NULL, NULL, gather_late, 0, "step 5: rank 1 did not arrive", 1},
    {"late whole", GS_PARTITION_GIVEN, NULL, NULL, gather_late, 0,
     "bucket 1 in lane 1, step 5: rank 1 did not arrive", 1},
    {"dies", GS_PARTITION_FLAT, NULL, NULL, gather_and_die, GS_ABORTED, "rank 1 died", 1},
};
#define NUM_MISFITS (sizeof misfits / sizeof *misfits)

static gs_status body_misfit(const gs_rank_env *env) {
    const misfit *of = &misfits[strtol(env->arg, NULL, 10)];
    sharded_rank self;
    gs_status status = open_rank(&self, env, of->partition);
    if (of->before) of->before(&self);
    if (!status.code) status = cut(&self);
    if (of->behind) of->behind(&self);
    if (!status.code) status = of->run(&self);
    close_rank(&self);
    return status;
}

static void what_does_not_fit_is_named(void **state) {
    (void)state;
    for (size_t m = 0; m < NUM_MISFITS; m++) {
        const misfit *of = &misfits[m];
        gs_ranks *ranks;
        gs_status statuses[3];
        char arg[8];
        int said = 0;
        snprintf(arg, sizeof arg, "%zu", m);
        assert_ok(gs_ranks_start(&ranks, "misfit", 3, arg, NULL));
        assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
        for (int r = 0; r < 3; r++) {
            if (r == of->except) continue;
            if (!statuses[r].code || (of->code && statuses[r].code != of->code))
                fail_msg("%s: rank %d: %d \"%s\"", of->name, r, statuses[r].code,
                         statuses[r].message);
            said += strstr(statuses[r].message, of->words) != NULL;
        }
        if (!said) fail_msg("%s: \"%s\"", of->name, statuses[0].message);
        gs_ranks_destroy(ranks);
    }
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"worlds", body_worlds}, {"groups", body_groups}, {"misfit", body_misfit}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_world_has_other_shards),
        cmocka_unit_test(ranks_of_a_group_share_among_themselves),
        cmocka_unit_test(what_does_not_fit_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
