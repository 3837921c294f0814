// Parameters in one memory for all ranks of a host: what an owner writes there all ranks read once
// they are told that it is whole. One rank that cannot have it so, or does not want to, and all keep
// their own.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/comm/comm.h"
#include "gradsync/sharded/common_params.h"
#include "gradsync/tensor/arena.h"
#include "tests/support/asserts.h"
#include "tests/support/ranks.h"

enum { WORLD = 3, COUNT = 1000 };

#define BYTES (COUNT * sizeof(int32_t))
#define DEADLINE gs_deadline_in_seconds(60)

typedef struct one_rank {
    int rank;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
    int32_t *params;  // each rank's elsewhere in its arena
} one_rank;

static gs_status open_rank(one_rank *self, const gs_rank_env *env) {
    *self = (one_rank){.rank = env->rank};
    GS_TRY(gs_device_open(&self->device, "cpu", &(gs_device_options){.num_threads = 1}));
    GS_TRY(gs_arena_create(&self->arena, 3 * BYTES));
    self->params = (int32_t *)gs_arena_data(self->arena) + 64 * env->rank;
    for (int32_t i = 0; i < COUNT; i++) self->params[i] = i + 10000 * env->rank;
    return gs_comm_create(&self->comm,
                          &(gs_comm_options){.rank = env->rank,
                                             .world_size = env->world_size,
                                             .generation = 1,
                                             .exchange = gs_rank_exchange,
                                             .exchange_ctx = env->exchange,
                                             .arena = self->arena,
                                             .device = self->device,
                                             .num_lanes = 1},
                          DEADLINE);
}

static void close_rank(one_rank *self) {
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    gs_device_close(self->device);
}

static gs_status meet(const one_rank *self) {
    return gs_comm_run(self->comm, &(gs_collective){.kind = GS_BARRIER, .bucket = -1}, DEADLINE);
}

// Each rank writes every third element, and finds all that the others have written.
static gs_status take_turns(const one_rank *self) {
    void *found;
    GS_TRY(gs_common_params_find(&found, self->comm, self->params, BYTES, DEADLINE));
    if (!found) return gs_error(GS_INTERNAL, "no common memory");
    int32_t *common = found;
    for (int32_t i = 0; i < COUNT; i++)
        if (common[i] != i) return gs_error(GS_INTERNAL, "[%d]: not what rank 0 has", i);
    GS_TRY(meet(self));
    for (int32_t i = self->rank; i < COUNT; i += WORLD) common[i] = 7 * i;
    GS_TRY(meet(self));
    for (int32_t i = 0; i < COUNT; i++)
        if (common[i] != 7 * i) return gs_error(GS_INTERNAL, "[%d]: not what its owner wrote", i);
    return gs_ok();
}

// Of rank `of` something else.
static gs_status find_none(const one_rank *self, int of, const void *params) {
    void *found = self->params;
    const void *mine = self->rank == of ? params : self->params;
    GS_TRY(gs_common_params_find(&found, self->comm, mine, BYTES, DEADLINE));
    return found ? gs_error(GS_INTERNAL, "rank %d has none, but the others do", of) : gs_ok();
}

static gs_status keep_own(const one_rank *self) {
    static int32_t elsewhere[COUNT];
    const char *last = (char *)gs_arena_data(self->arena) + gs_arena_bytes(self->arena);
    for (int rank = 0; rank < WORLD; rank++) {
        GS_TRY(find_none(self, rank, NULL));
        GS_TRY(find_none(self, rank, elsewhere));
        GS_TRY(find_none(self, rank, last - BYTES + 4));
    }
    return gs_ok();
}

static gs_status body_common(const gs_rank_env *env) {
    one_rank self;
    gs_status status = open_rank(&self, env);
    if (!status.code) status = keep_own(&self);
    if (!status.code) status = take_turns(&self);
    close_rank(&self);
    return status;
}

static void owners_write_where_all_read_or_all_keep_their_own(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("common", WORLD, "", DEADLINE));
}

static gs_status body_differ(const gs_rank_env *env) {
    one_rank self;
    void *found;
    GS_TRY(open_rank(&self, env));
    gs_status status = gs_common_params_find(&found, self.comm, self.params,
                                             env->rank == 1 ? BYTES - 4 : BYTES, DEADLINE);
    // Another rank's end of it may come first, with the same words.
    bool is_refused = status.code == GS_FAILED_PRECONDITION || status.code == GS_ABORTED;
    bool is_named = is_refused && strstr(status.message, "rank 1 against rank 0: 3996 bytes");
    bool has_ended = meet(&self).code == GS_ABORTED;
    close_rank(&self);
    if (is_named && has_ended && !found) return gs_ok();
    return gs_error(GS_INTERNAL, "got %d, ended %d: %s", status.code, has_ended, status.message);
}

static void a_rank_with_other_bytes_is_named(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("differ", WORLD, "", DEADLINE));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"common", body_common}, {"differ", body_differ}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owners_write_where_all_read_or_all_keep_their_own),
        cmocka_unit_test(a_rank_with_other_bytes_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
