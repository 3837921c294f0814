// Hooks whose results come from elsewhere, or to one rank alone; and ranks that do not choose
// alike.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/hooks/hook_calls.h"
#include "tests/multiprocess/hooked_rank.h"
#include "tests/support/asserts.h"
#include "tests/support/soon.h"

// A hook that reduces with what is not the library's: here another communicator, all of it in
// finish.
typedef struct elsewhere {
    gs_comm *comm;
    int next_finish, num_started;
    bool may_finish;
} elsewhere;
static elsewhere abroad;

static gs_status start_elsewhere(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    (void)state, (void)bucket;
    abroad.num_started++;
    work->is_elsewhere = true;
    return gs_ok();
}

static gs_status finish_elsewhere(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                                  gs_deadline deadline) {
    (void)state, (void)result;
    if (!abroad.may_finish || bucket->index != abroad.next_finish)
        return gs_error(GS_INTERNAL, "bucket %d is not the one to be waited for", bucket->index);
    abroad.next_finish = bucket->is_last ? 0 : bucket->index + 1;
    return gs_comm_run(abroad.comm,
                       &(gs_collective){.kind = GS_ALLREDUCE,
                                        .send = bucket->data,
                                        .recv = bucket->data,
                                        .count = bucket->count + bucket->reserved_count,
                                        .dtype = bucket->dtype,
                                        .bucket = -1},
                       deadline);
}

static gs_status body_elsewhere(const gs_rank_env *env) {
    hooked_rank self;
    gs_comm_hook hook = gs_hook_allreduce;
    hook.name = "elsewhere";
    hook.run = start_elsewhere;
    hook.finish = finish_elsewhere;
    GS_TRY(hooked_rank_open(&self, env, &hook, GS_HELPER_OFF));
    gs_status status = hooked_rank_open_comm(&abroad.comm, &self, 9, false);
    for (int64_t step = 0; step < HOOKED_STEPS && !status.code; step++) {
        gs_reduce_result result;
        abroad.may_finish = false;
        abroad.num_started = 0;
        status = gs_reducer_begin(self.reducer, step);
        if (!status.code) status = hooked_rank_run_pass(&self, step, hooked_rank_value);
        if (!status.code && abroad.num_started != HOOKED_PARAMS)
            status = gs_error(GS_INTERNAL, "%d buckets started", abroad.num_started);
        abroad.may_finish = true;
        if (!status.code) status = gs_reducer_finish(self.reducer, &result, soon());
        if (!status.code) status = hooked_rank_check_sums(&self, step);
    }
    hooked_rank_close(&self);
    gs_comm_destroy(abroad.comm);
    return status;
}

static void hook_of_another_library_is_waited_for_at_the_end(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("elsewhere", 3, "", gs_deadline_in_seconds(60)));
}

// A hook that reduces each bucket to one rank: the others hold nothing of it.
static const gs_segment *segments_of(const gs_hook_bucket *bucket) {
    static gs_segment segments[HOOKED_PARAMS];
    for (size_t i = 0; i < bucket->num_params; i++)
        segments[bucket->params[i].index] =
            (gs_segment){.tensor = bucket->params[i].index, .count = bucket->params[i].count};
    return &segments[bucket->params[0].index];
}

static int owner_of(const gs_hook_bucket *bucket) {
    return bucket->index % gs_comm_world_size(bucket->comm);
}

static gs_status run_owner(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    (void)state;
    return gs_hook_post(work, bucket,
                        &(gs_collective){.kind = GS_REDUCE,
                                         .send = bucket->data,
                                         .recv = bucket->data,
                                         .count = bucket->count,
                                         .dtype = bucket->dtype,
                                         .root = owner_of(bucket)});
}

static gs_status finish_owner(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                              gs_deadline deadline) {
    (void)state, (void)deadline;
    bool owns = owner_of(bucket) == gs_comm_rank(bucket->comm);
    *result = (gs_hook_result){
        .is_partial = true, .segments = segments_of(bucket), .num_segments = owns ? 1 : 0};
    return gs_ok();
}

// Each bucket has one parameter, in the order of registration turned around.
static gs_status check_owned(const hooked_rank *self, const gs_reduce_result *result,
                             int64_t step) {
    double squares = 0;
    for (size_t p = 0; p < HOOKED_PARAMS; p++) {
        const float *grad = gs_reducer_grads(self->reducer)[p];
        int owner = (int)(HOOKED_PARAMS - 1 - p) % self->env->world_size;
        for (size_t k = 0; k < hooked_rank_count(p); k++) {
            float sum = 0;
            for (int r = 0; r < self->env->world_size; r++) sum += hooked_rank_value(step, r, p, k);
            squares += (double)sum * (double)sum;
            if (owner == self->env->rank && grad[k] != sum)
                return gs_error(GS_INTERNAL, "element %zu of parameter %zu is %g, not %g", k, p,
                                (double)grad[k], (double)sum);
        }
    }
    if (fabs(result->grad_norm - sqrt(squares)) <= 1e-6 * sqrt(squares) && !result->num_unused)
        return gs_ok();
    return gs_error(GS_INTERNAL, "a norm of %.9g, not %.9g", result->grad_norm, sqrt(squares));
}

static gs_status run_owned_steps(hooked_rank *self, gs_tally_carrier tally) {
    gs_status status = gs_ok();
    self->options.tally = tally;
    gs_reducer_destroy(self->reducer);
    self->reducer = NULL;
    GS_TRY(gs_reducer_create(&self->reducer, &self->options, self->rank.comm, soon()));
    for (int64_t step = 0; step < HOOKED_STEPS && !status.code; step++) {
        gs_reduce_result result;
        status = gs_reducer_begin(self->reducer, step);
        if (!status.code) status = hooked_rank_run_pass(self, step, hooked_rank_value);
        if (!status.code) status = gs_reducer_finish(self->reducer, &result, soon());
        if (!status.code) status = check_owned(self, &result, step);
    }
    return status;
}

static gs_status body_owners(const gs_rank_env *env) {
    hooked_rank self;
    gs_comm_hook hook = gs_hook_allreduce;
    hook.name = "owners";
    hook.run = run_owner;
    hook.finish = finish_owner;
    GS_TRY(hooked_rank_open(&self, env, &hook, GS_HELPER_OFF));
    gs_status status = run_owned_steps(&self, GS_TALLY_APART);
    if (!status.code) {  // where every rank has to read the counts in each bucket
        gs_status refused = run_owned_steps(&self, GS_TALLY_IN_BUCKETS);
        if (!strstr(refused.message, "hook \"owners\""))
            status = gs_error(GS_INTERNAL, "partial results in buckets: %s", refused.message);
    }
    hooked_rank_close(&self);
    return status;
}

static void buckets_that_one_rank_receives_need_the_tally_apart(void **state) {
    (void)state;
    for (int world_size = 2; world_size <= 3; world_size++)
        assert_ok(gs_ranks_run("owners", world_size, "", gs_deadline_in_seconds(60)));
}

// Rank 1 gives bucket 5 to another hook than rank 0.
static gs_status body_choices(const gs_rank_env *env) {
    hooked_rank self;
    GS_TRY(hooked_rank_open(&self, env, &gs_hook_allreduce, GS_HELPER_OFF));
    gs_reducer_destroy(self.reducer);
    const gs_hook_choice choices[] = {{.hook = &gs_hook_allreduce}, {.hook = &gs_hook_allreduce}};
    self.options.hooks = choices;
    self.options.num_hooks = 2;
    self.plans[0].buckets[5].hook = env->rank == 1;
    gs_status status = gs_reducer_create(&self.reducer, &self.options, self.rank.comm, soon());
    hooked_rank_close(&self);
    if (strstr(status.message, "rank 1 against rank 0: bucket plan: bucket 5 has hook 1 against 0"))
        return gs_ok();
    return gs_error(GS_INTERNAL, "%s", status.message);
}

static void buckets_hooks_are_compared(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("choices", 3, "", gs_deadline_in_seconds(60)));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"elsewhere", body_elsewhere},
                                          {"owners", body_owners},
                                          {"choices", body_choices},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hook_of_another_library_is_waited_for_at_the_end),
        cmocka_unit_test(buckets_that_one_rank_receives_need_the_tally_apart),
        cmocka_unit_test(buckets_hooks_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
