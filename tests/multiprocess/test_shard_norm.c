// Norms of gradients that ranks own in pieces, and what fairscale's and torch's ways of taking them
// got wrong: what was found before is not remembered, who owns nothing takes part, and ranks are
// those of the communicator.
#include "gradsync/sharded/shard_norm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/bucket/grad_norm.h"
#include "gradsync/optim/grad_scaler.h"
#include "gradsync/sharded/shards.h"
#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"

#define NUM_PARAMS 3
#define MAX_ELEMENTS 400
#define MAX_NORM 2.5
#define DEADLINE gs_deadline_in_seconds(60)

static const int64_t counts[NUM_PARAMS] = {130, 3, 200};
static const double norms[] = {1, 2, 3.5, INFINITY};
#define NUM_NORMS (sizeof norms / sizeof *norms)

// All gradients, and what a rank owns of them.
typedef struct pieces {
    comm_rank rank;
    gs_comm *comm;  // that shares the gradients: of all ranks, or of some
    gs_shards *shards;
    float memory[MAX_ELEMENTS], whole[MAX_ELEMENTS];
    void *tensors[NUM_PARAMS], *wholes[NUM_PARAMS];
    void *own_grads[NUM_PARAMS];
    size_t sizes[NUM_PARAMS];
} pieces;

static void fill(pieces *self) {
    for (size_t p = 0, at = 0; p < NUM_PARAMS; p++) {
        self->tensors[p] = self->memory + at;
        self->wholes[p] = self->whole + at;
        self->sizes[p] = (size_t)counts[p];
        at += self->sizes[p];
    }
    for (size_t i = 0; i < MAX_ELEMENTS; i++)
        self->memory[i] = self->whole[i] = (float)((int)(i * 13 % 31) - 15) / 4;
}

static gs_status cut(pieces *self, gs_partition partition) {
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan;
    for (size_t p = 0; p < NUM_PARAMS; p++)
        params[p] = gs_param_spec_make(GS_FP32, counts[p], 0, "p%zu", p);
    GS_TRY(gs_bucket_plan_parity(&plan, params, NUM_PARAMS, 600, 600, NULL));
    gs_shards_destroy(self->shards);
    gs_status status = gs_shards_create(
        &self->shards, &(gs_shards_options){.partition = partition,
                                            .plan = &plan,
                                            .params = params,
                                            .num_params = NUM_PARAMS,
                                            .world_size = gs_comm_world_size(self->comm)});
    gs_bucket_plan_release(&plan);
    if (!status.code) fill(self);
    return status;
}

static gs_shard_grads own_of(pieces *self) {
    gs_shard_grads own = {.grads = self->own_grads, .device = self->rank.device};
    int rank = gs_comm_rank(self->comm);
    own.segments = gs_shards_of_rank(self->shards, rank, &own.num_segments);
    gs_shards_point(self->own_grads, self->shards, rank, self->tensors, sizeof(float));
    return own;
}

static gs_status expect(const char *what, double got, double wanted) {
    if (is_near(got, wanted, (gs_near){.relative = 1e-12, .nonfinite = true})) return gs_ok();
    return gs_error(GS_INTERNAL, "%s %.17g, not %.17g", what, got, wanted);
}

// Everything that is owned here is what all of it, clipped in one process, is.
static gs_status expect_own(const pieces *self, const gs_shard_grads *own) {
    for (size_t i = 0; i < own->num_segments; i++) {
        const gs_segment *segment = &own->segments[i];
        const float *wanted = (const float *)self->wholes[segment->tensor] + segment->first;
        if (memcmp(own->grads[i], wanted, segment->count * sizeof *wanted) != 0)
            return gs_error(GS_INTERNAL, "parameter %zu is another", segment->tensor);
    }
    return gs_ok();
}

static gs_status clip_both(pieces *self, double p, const bool *in_norm, gs_comm *over) {
    gs_shard_grads own = own_of(self);
    own.counts = in_norm;
    double norm;
    void *counted[NUM_PARAMS];
    size_t sizes[NUM_PARAMS];
    gs_grad_list some = {counted, sizes, 0}, all = {self->wholes, self->sizes, NUM_PARAMS};
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        if (in_norm && !in_norm[i]) continue;
        counted[some.num_grads] = self->wholes[i];
        sizes[some.num_grads++] = self->sizes[i];
    }
    double wanted = gs_grad_list_norm(&some, p, self->rank.device);
    // As often as groups hold the same.
    int groups = gs_comm_world_size(over) / gs_comm_world_size(self->comm);
    if (groups > 1 && !isinf(p)) wanted *= pow(groups, 1 / p);
    GS_TRY(gs_shard_clip(&norm, &own, p, MAX_NORM, over, DEADLINE));
    GS_TRY(expect("norm", norm, wanted));
    gs_grad_list_clip(&all, norm, MAX_NORM, self->rank.device);
    return expect_own(self, &own);
}

static gs_status clip_all_ways(pieces *self, gs_comm *over) {
    static const bool in_norm[NUM_PARAMS] = {true, false, true};
    for (gs_partition kind = GS_PARTITION_FLAT; kind <= GS_PARTITION_SORTED; kind++) {
        for (size_t n = 0; n < NUM_NORMS; n++) {
            GS_TRY(cut(self, kind));
            GS_TRY(gs_status_prefix(clip_both(self, norms[n], NULL, over), "%s, %g",
                                    gs_partition_name(kind), norms[n]));
            GS_TRY(cut(self, kind));
            GS_TRY(gs_status_prefix(clip_both(self, norms[n], in_norm, over), "%s, some, %g",
                                    gs_partition_name(kind), norms[n]));
        }
    }
    return gs_ok();
}

static gs_status clip_everywhere(pieces *self) {
    return clip_all_ways(self, self->rank.comm);
}

// Groups of every other rank: rank 1 of one is rank 2 or 3 of all. The norm is over all ranks, once
// over the group.
static gs_status clip_in_groups(pieces *self) {
    GS_TRY(gs_comm_split(&self->comm, self->rank.comm,
                         &(gs_comm_split_options){.color = self->rank.rank % 2}, DEADLINE));
    GS_TRY(clip_all_ways(self, self->comm));
    return clip_all_ways(self, self->rank.comm);
}

// The first call finds no gradient on any rank; those that come later count.
static gs_status clip_before_there_are_gradients(pieces *self) {
    double norm;
    GS_TRY(cut(self, GS_PARTITION_FLAT));
    gs_shard_grads own = own_of(self);
    void *none[NUM_PARAMS] = {NULL};
    own.grads = none;
    GS_TRY(gs_shard_clip(&norm, &own, 2, MAX_NORM, self->comm, DEADLINE));
    GS_TRY(expect("norm of nothing", norm, 0));
    return clip_both(self, 2, NULL, self->comm);
}

// More ranks than parameters: some own nothing, and are in all of it.
static gs_status find_in_few(pieces *self) {
    bool found;
    GS_TRY(cut(self, GS_PARTITION_GREEDY));
    gs_shard_grads own = own_of(self);
    GS_TRY(gs_shard_nonfinite(&found, &own, self->comm, DEADLINE));
    if (found) return gs_error(GS_INTERNAL, "all of them are finite");
    // Two ranks have something: more than one says so.
    for (size_t i = 0; i < own.num_segments; i++) {
        size_t param = own.segments[i].tensor;
        if (param < 2) ((float *)own.grads[i])[own.segments[i].count - 1] = param ? NAN : INFINITY;
    }
    const gs_grad_scaler_options options = {
        .init_scale = 1024, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 10};
    gs_grad_scaler scaler;
    GS_TRY(gs_shard_nonfinite(&found, &own, self->comm, DEADLINE));
    if (!found) return gs_error(GS_INTERNAL, "some of them are not finite");
    GS_TRY(gs_grad_scaler_init(&scaler, &options));
    gs_grad_scaler_update(&scaler, &options, found);
    GS_TRY(expect("scale", (double)scaler.scale, 512));
    // No factor saves them, and what is finite stays as it is.
    double norm;
    GS_TRY(gs_shard_clip(&norm, &own, INFINITY, MAX_NORM, self->comm, DEADLINE));
    if (isfinite(norm)) return gs_error(GS_INTERNAL, "norm %g", norm);
    for (size_t i = 0; i < own.num_segments; i++)
        if (own.segments[i].tensor == 2) GS_TRY(expect_own(self, &own));
    return gs_ok();
}

// Of several gradients of a rank the last; and one that the norm leaves out.
static gs_status find_in_the_last(pieces *self) {
    static const bool in_norm[NUM_PARAMS] = {false};
    bool found;
    GS_TRY(cut(self, GS_PARTITION_GREEDY));
    gs_shard_grads own = own_of(self);
    own.counts = in_norm;
    for (size_t i = 0; i < own.num_segments; i++)
        if (own.segments[i].tensor == NUM_PARAMS - 1) ((float *)own.grads[i])[0] = NAN;
    GS_TRY(gs_shard_nonfinite(&found, &own, self->comm, DEADLINE));
    return found ? gs_ok() : gs_error(GS_INTERNAL, "the last of them is not finite");
}

static gs_status take_no_norm(pieces *self) {
    double norm;
    GS_TRY(cut(self, GS_PARTITION_FLAT));
    gs_shard_grads own = own_of(self);
    return gs_shard_norm(&norm, &own, self->rank.rank ? 2 : 0, self->comm, DEADLINE);
}

static const struct {
    const char *name;
    gs_status (*run)(pieces *self);
} bodies_of[] = {{"everywhere", clip_everywhere},
                 {"groups", clip_in_groups},
                 {"early", clip_before_there_are_gradients},
                 {"few", find_in_few},
                 {"last", find_in_the_last},
                 {"no norm", take_no_norm}};

static gs_status body(const gs_rank_env *env) {
    static pieces self;
    gs_status status = comm_rank_open(&self.rank, env, 0, NULL);
    self.comm = self.rank.comm;
    for (size_t i = 0; i < sizeof bodies_of / sizeof *bodies_of && !status.code; i++)
        if (strcmp(bodies_of[i].name, env->arg) == 0) status = bodies_of[i].run(&self);
    gs_shards_destroy(self.shards);
    if (self.comm != self.rank.comm) gs_comm_destroy(self.comm);
    comm_rank_close(&self.rank);
    return status;
}

static void run(const char *what, int world_size) {
    assert_ok(gs_ranks_run("body", world_size, what, gs_deadline_in_seconds(60)));
}

static void pieces_have_the_norm_of_the_whole(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 4; world_size++) run("everywhere", world_size);
}

static void ranks_are_those_of_the_group(void **state) {
    (void)state;
    run("groups", 4);
}

static void a_call_before_any_gradient_is_not_remembered(void **state) {
    (void)state;
    run("early", 2);
}

static void a_rank_without_gradients_hears_of_what_is_not_finite(void **state) {
    (void)state;
    run("few", 5);
}

static void no_gradient_of_a_rank_is_overlooked(void **state) {
    (void)state;
    run("last", 1);
    run("last", 2);
}

static void what_is_no_norm_is_refused_everywhere(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[3];
    assert_ok(gs_ranks_start(&ranks, "body", 3, "no norm", NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    gs_ranks_destroy(ranks);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(statuses[rank].code, rank ? GS_ABORTED : GS_INVALID_ARGUMENT);
        if (!strstr(statuses[rank].message, "norm: p is 0")) fail_msg("%s", statuses[rank].message);
    }
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"body", body}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_have_the_norm_of_the_whole),
        cmocka_unit_test(ranks_are_those_of_the_group),
        cmocka_unit_test(a_call_before_any_gradient_is_not_remembered),
        cmocka_unit_test(a_rank_without_gradients_hears_of_what_is_not_finite),
        cmocka_unit_test(no_gradient_of_a_rank_is_overlooked),
        cmocka_unit_test(what_is_no_norm_is_refused_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
