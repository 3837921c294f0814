// A hook that carries residuals from step to step, and what survivors find of a dead rank's.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/hooks/hook_calls.h"
#include "tests/multiprocess/hooked_rank.h"
#include "tests/support/asserts.h"
#include "tests/support/soon.h"

#define STEPS_OF_STATE 12

// A hook that sends even numbers alone, and carries what is left to the next step that counts: two
// copies of the residuals, of which one holds.
typedef struct carrier {
    size_t first[HOOKED_PARAMS], total;  // elements
    float *residuals[2];
    int holding, rank;
    int64_t failing_step;
    bool dies;  // there, instead
} carrier;
static carrier *this_carrier;

static gs_status measure_carrier(gs_hook_needs *needs, const gs_hook_setup *setup) {
    size_t total = 0;
    for (size_t i = 0; i < setup->num_params; i++) total += setup->params[i].room;
    *needs = (gs_hook_needs){.state_bytes = 2 * total * sizeof(float)};
    return gs_ok();
}

static gs_status create_carrier(void **state, const gs_hook_setup *setup) {
    carrier *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < setup->num_params; i++) {
        self->first[i] = self->total;
        self->total += setup->params[i].room;
    }
    self->residuals[0] = setup->state;
    self->residuals[1] = self->residuals[0] + self->total;
    self->rank = setup->rank;
    self->failing_step = -1;
    *state = this_carrier = self;
    return gs_ok();
}

static gs_status place_carrier(void *state, const gs_hook_plan *plan) {
    (void)state, (void)plan;
    return gs_ok();
}

static gs_status run_carrier(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    carrier *self = state;
    if (bucket->step == self->failing_step && bucket->index == 3) {
        self->failing_step = -1;
        if (self->dies) raise(SIGKILL);
        return gs_error(GS_INTERNAL, "lost its residuals");
    }
    for (size_t i = 0; i < bucket->num_params; i++) {
        const gs_hook_param *param = &bucket->params[i];
        float *grad = (float *)bucket->data + param->first;
        const float *before = self->residuals[self->holding] + self->first[param->index];
        float *after = self->residuals[!self->holding] + self->first[param->index];
        for (size_t k = 0; k < param->count; k++) {
            float all = grad[k] + before[k];
            grad[k] = 2 * floorf(all / 2);
            after[k] = all - grad[k];
        }
    }
    return gs_hook_allreduce.run(NULL, bucket, work);
}

static void commit_carrier(void *state) {
    carrier *self = state;
    self->holding = !self->holding;
}

static bool tensor_of_carrier(void *state, size_t index, gs_hook_tensor *tensor) {
    carrier *self = state;
    if (index >= HOOKED_PARAMS) return false;
    *tensor = (gs_hook_tensor){.name = "residual",
                               .param = (int64_t)index,
                               .dtype = GS_FP32,
                               .count = hooked_rank_count(index),
                               .data = self->residuals[self->holding] + self->first[index],
                               .is_own = true,
                               .beside = self->residuals[!self->holding] + self->first[index]};
    return true;
}

static const gs_comm_hook *carrier_hook(void) {
    static gs_comm_hook hook;
    hook = gs_hook_allreduce;
    hook.name = "carrier";
    hook.measure = measure_carrier;
    hook.create = create_carrier;
    hook.on_plan = place_carrier;
    hook.run = run_carrier;
    hook.commit = commit_carrier;
    hook.tensor = tensor_of_carrier;
    hook.destroy = free;
    return &hook;
}

static float whole_value(int64_t step, int rank, size_t param, size_t index) {
    return floorf(hooked_rank_value(step, rank, param, index));
}

// Step 3 of rank 1 overflows once.
static bool overflows;
static float value_that_overflows(int64_t step, int rank, size_t param, size_t index) {
    return overflows && rank == 1 && param == 5 && index == 0
               ? INFINITY
               : whole_value(step, rank, param, index);
}

// What all ranks carry, serially.
typedef struct referee {
    float *residuals[HOOKED_MAX_WORLD][HOOKED_PARAMS];
} referee;

static void init_referee(referee *all) {
    for (int r = 0; r < HOOKED_MAX_WORLD; r++) {
        for (size_t p = 0; p < HOOKED_PARAMS; p++) {
            all->residuals[r][p] = calloc(hooked_rank_count(p), sizeof(float));
            if (!all->residuals[r][p]) abort();
        }
    }
}

static void release_referee(referee *all) {
    for (int r = 0; r < HOOKED_MAX_WORLD; r++)
        for (size_t p = 0; p < HOOKED_PARAMS; p++) free(all->residuals[r][p]);
}

// The step's sums, and the residuals after it where it counts.
static gs_status judge(referee *all, const hooked_rank *self, int64_t step, bool counts) {
    for (size_t p = 0; p < HOOKED_PARAMS; p++) {
        const float *grad = gs_reducer_grads(self->reducer)[p];
        for (size_t k = 0; k < hooked_rank_count(p); k++) {
            float sum = 0;
            for (int r = 0; r < self->env->world_size; r++) {
                float whole = whole_value(step, r, p, k) + all->residuals[r][p][k];
                float sent = 2 * floorf(whole / 2);
                sum += sent;
                if (counts) all->residuals[r][p][k] = whole - sent;
            }
            if (grad[k] != sum)
                return gs_error(GS_INTERNAL, "step %d: element %zu of parameter %zu is %g, not %g",
                                (int)step, k, p, (double)grad[k], (double)sum);
        }
    }
    return gs_ok();
}

static gs_status run_carried_step(hooked_rank *self, int64_t step, gs_reduce_result *result) {
    GS_TRY(gs_reducer_begin(self->reducer, step));
    GS_TRY(hooked_rank_run_pass(self, step, value_that_overflows));
    return gs_reducer_finish(self->reducer, result, soon());
}

// A step that overflows is skipped, and taken again with finite gradients.
static gs_status skip_step(hooked_rank *self, int64_t step) {
    gs_reduce_result result;
    overflows = true;
    gs_status status = run_carried_step(self, step, &result);
    overflows = false;
    GS_TRY(status);
    if (!result.nonfinite) return gs_error(GS_INTERNAL, "the overflow is lost");
    return gs_reducer_rollback(self->reducer);
}

// Rank 0 fails within the step; all go on with another communicator. Nobody is left in the step
// before, which would fail as well.
static gs_status fail_and_reset(hooked_rank *self, int64_t step, uint32_t generation) {
    gs_reduce_result result;
    gs_comm *next;
    GS_TRY(hooked_rank_meet(self, "before", step));
    if (!self->env->rank) this_carrier->failing_step = step;
    gs_status status = run_carried_step(self, step, &result);
    if (!status.code || !strstr(status.message, "lost its residuals"))
        return gs_error(GS_INTERNAL, "the step ended with: %s", status.message);
    GS_TRY(gs_comm_wait_ended(self->rank.comm, soon()));
    GS_TRY(hooked_rank_open_comm(&next, self, generation, true));
    GS_TRY(gs_reducer_reset(self->reducer, next, soon()));
    gs_comm_destroy(self->rank.comm);
    self->rank.comm = next;
    return gs_ok();
}

// Out of this reducer, whose state is then wiped, and into it again.
static gs_status save_and_load(hooked_rank *self) {
    float *saved[HOOKED_PARAMS];
    gs_hook_state_tensor tensor;
    size_t num = 0;
    for (; gs_reducer_hook_state(&tensor, self->reducer, num); num++) {
        char name[64];
        snprintf(name, sizeof name, "carrier/residual/layer.%zu", num);
        if (num >= HOOKED_PARAMS || strcmp(tensor.name, name) || !tensor.tensor.is_own ||
            tensor.tensor.param != (int64_t)num || tensor.tensor.count != hooked_rank_count(num))
            return gs_error(GS_INTERNAL, "tensor %zu is \"%.150s\"", num, tensor.name);
        saved[num] = malloc(tensor.tensor.count * sizeof(float));
        if (!saved[num]) abort();
        memcpy(saved[num], tensor.tensor.data, tensor.tensor.count * sizeof(float));
    }
    if (num != HOOKED_PARAMS) return gs_error(GS_INTERNAL, "%zu tensors", num);
    gs_reducer_destroy(self->reducer);
    self->options.plan = &self->plans[0];
    GS_TRY(gs_reducer_create(&self->reducer, &self->options, self->rank.comm, soon()));
    for (size_t i = 0; gs_reducer_hook_state(&tensor, self->reducer, i); i++) {
        const float *data = tensor.tensor.data;
        for (size_t k = 0; k < hooked_rank_count(i); k++)
            if (data[k] != 0) return gs_error(GS_INTERNAL, "a new reducer's state is not zero");
        memcpy(tensor.tensor.data, saved[i], hooked_rank_count(i) * sizeof(float));
        free(saved[i]);
    }
    return gs_reducer_hook_state_loaded(self->reducer);
}

static gs_status take_carried_step(hooked_rank *self, referee *all, int64_t step) {
    gs_reduce_result result;
    if (step == 3) GS_TRY(skip_step(self, step));
    if (step == 6) GS_TRY(gs_reducer_set_plan(self->reducer, &self->plans[1], soon()));
    if (step == 8) GS_TRY(fail_and_reset(self, step, 2));
    if (step == 10) GS_TRY(save_and_load(self));
    GS_TRY(run_carried_step(self, step, &result));
    if (step == 5) {  // it is reduced, but not applied, and redone
        GS_TRY(judge(all, self, step, false));
        GS_TRY(gs_reducer_rollback(self->reducer));
        GS_TRY(run_carried_step(self, step, &result));
    }
    if (step != 7)
        GS_TRY(gs_reducer_commit(self->reducer));  // step 7: by the next begin, which fails later
    return judge(all, self, step, true);
}

static gs_status body_carried(const gs_rank_env *env) {
    hooked_rank self;
    referee all;
    init_referee(&all);
    gs_status status = hooked_rank_open(&self, env, carrier_hook(), GS_HELPER_OFF);
    for (int64_t step = 0; step < STEPS_OF_STATE && !status.code; step++)
        status = gs_status_prefix(take_carried_step(&self, &all, step), "step %d", (int)step);
    hooked_rank_close(&self);
    release_referee(&all);
    return status;
}

static void residuals_follow_steps_plans_resets_and_checkpoints(void **state) {
    (void)state;
    for (int world_size = 2; world_size <= 3; world_size++)
        assert_ok(gs_ranks_run("carried", world_size, "", gs_deadline_in_seconds(60)));
}

// A rank is killed, and the others find in its arena what it had yet to add.

static bool peer_has(const hooked_rank *self, const referee *all, int rank, int64_t step) {
    for (size_t p = 0; p < HOOKED_PARAMS; p++) {
        const float *found = gs_reducer_peer_hook_data(self->reducer, p, rank, step);
        if (!found ||
            memcmp(found, all->residuals[rank][p], hooked_rank_count(p) * sizeof *found) != 0)
            return false;
    }
    return true;
}

static bool peer_has_none(const hooked_rank *self, int rank, int64_t step) {
    return !gs_reducer_peer_hook_data(self->reducer, 0, rank, step);
}

enum { ORPHANED_STEP = 5, VICTIM = 1 };

static gs_status meet_as_survivors(const hooked_rank *self) {
    static const int survivors[] = {0, 2};
    char here = 1, all[2];
    return gs_rank_exchange(self->env->exchange, "survivors", survivors, 2, &here, 1, all, soon());
}

// Rank 1 ends in step 5, at the place that the argument names; the others hear of it. Neither of
// them is left behind by the other, whose abort would end the step before.
static gs_status take_last_step(hooked_rank *self, const char *place) {
    gs_reduce_result result;
    bool is_victim = self->env->rank == VICTIM;
    this_carrier->dies = true;
    if (is_victim && !strcmp(place, "phase")) this_carrier->failing_step = ORPHANED_STEP;
    GS_TRY(hooked_rank_meet(self, "before", ORPHANED_STEP));
    GS_TRY(gs_reducer_begin(self->reducer, ORPHANED_STEP));
    if (is_victim && !strcmp(place, "begun")) raise(SIGKILL);
    GS_TRY(hooked_rank_run_pass(self, ORPHANED_STEP, whole_value));
    GS_TRY(gs_reducer_finish(self->reducer, &result, soon()));
    if (is_victim && !strcmp(place, "reduced")) raise(SIGKILL);
    GS_TRY(gs_reducer_commit(self->reducer));
    if (is_victim) raise(SIGKILL);
    GS_TRY(meet_as_survivors(self));
    return gs_comm_run(self->rank.comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}, soon());
}

static gs_status find_what_is_left(hooked_rank *self, referee *all, const char *place) {
    bool was_reduced = !strcmp(place, "reduced") || !strcmp(place, "committed");
    GS_TRY(gs_comm_wait_ended(self->rank.comm, soon()));
    if (!peer_has(self, all, VICTIM, ORPHANED_STEP))
        return gs_error(GS_INTERNAL, "what it had before the step is not there");
    if (was_reduced) GS_TRY(judge(all, self, ORPHANED_STEP, true));
    if (was_reduced != peer_has(self, all, VICTIM, ORPHANED_STEP + 1) ||
        was_reduced == peer_has_none(self, VICTIM, ORPHANED_STEP + 1))
        return gs_error(GS_INTERNAL, "what it had after the step");
    // It lives, or has left, and is no further than this rank.
    int other = 2 - self->env->rank;
    if (!peer_has(self, all, other, ORPHANED_STEP + was_reduced))
        return gs_error(GS_INTERNAL, "what rank %d has", other);
    bool is_bounded =
        peer_has_none(self, VICTIM, ORPHANED_STEP - 1) &&
        peer_has_none(self, VICTIM, ORPHANED_STEP + 2) && peer_has_none(self, 3, ORPHANED_STEP) &&
        peer_has_none(self, -1, ORPHANED_STEP) &&
        !gs_reducer_peer_hook_data(self->reducer, HOOKED_PARAMS, VICTIM, ORPHANED_STEP);
    return is_bounded ? gs_ok() : gs_error(GS_INTERNAL, "finds what is not there");
}

static gs_status body_orphaned(const gs_rank_env *env) {
    hooked_rank self;
    referee all;
    gs_reduce_result result;
    init_referee(&all);
    gs_status status = hooked_rank_open(&self, env, carrier_hook(), GS_HELPER_OFF);
    for (int64_t step = 0; step < ORPHANED_STEP && !status.code; step++) {
        status = run_carried_step(&self, step, &result);
        if (!status.code) status = gs_reducer_commit(self.reducer);
        if (!status.code) status = judge(&all, &self, step, true);
    }
    if (!status.code) {
        gs_status end = take_last_step(&self, env->arg);
        status = end.code ? find_what_is_left(&self, &all, env->arg)
                          : gs_error(GS_INTERNAL, "rank %d did not die", VICTIM);
    }
    hooked_rank_close(&self);
    release_referee(&all);
    return status;
}

static void residuals_of_a_dead_rank_are_found_wherever_it_died(void **state) {
    (void)state;
    static const char *const places[] = {"begun", "phase", "reduced", "committed"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        gs_ranks *ranks;
        gs_status statuses[3];
        assert_ok(gs_ranks_start(&ranks, "orphaned", 3, places[i], NULL));
        assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
        assert_ok(statuses[0]);
        assert_non_null(strstr(statuses[VICTIM].message, "killed by signal 9"));
        assert_ok(statuses[2]);
        gs_ranks_destroy(ranks);
    }
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"carried", body_carried}, {"orphaned", body_orphaned}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(residuals_follow_steps_plans_resets_and_checkpoints),
        cmocka_unit_test(residuals_of_a_dead_rank_are_found_wherever_it_died),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
