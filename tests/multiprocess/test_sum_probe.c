// What `gradsync bench allreduce` lets workers add up: right sums of growing sizes, the same facts on all ranks, over what a job's ranks
// would take between them; a link too slow for large ones is asked for small ones alone.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/ranks.h"
#include "tests/support/soon.h"
#include "worker/probes/sum_probe.h"

static gs_status check_sizes(const gs_sum_facts *facts, int num_sizes) {
    if (facts->num_sizes < num_sizes) return gs_error(GS_INTERNAL, "%d sizes", facts->num_sizes);
    for (int i = 0; i < facts->num_sizes; i++) {
        const gs_sum_size *size = &facts->sizes[i];
        if (size->bytes != gs_sum_sizes[i] || size->num_wrong || !(size->seconds > 0))
            return gs_error(GS_INTERNAL, "%zu bytes: %g s, %llu are wrong", size->bytes, size->seconds, (unsigned long long)size->num_wrong);
    }
    return gs_ok();
}

// arg: "BACKEND SECONDS SIZES": what is to be taken, how long they may take, and how many sizes there are at least.
static gs_status body_add_up(const gs_rank_env *env) {
    char backend[16];
    double seconds;
    int num_sizes;
    gs_sum_facts facts, all[4];
    if (sscanf(env->arg, "%15s %lf %d", backend, &seconds, &num_sizes) != 3) return gs_error(GS_INTERNAL, "what?");
    const gs_sum_options options = {.rank = env->rank,
                                    .world_size = env->world_size,
                                    .generation = 7,
                                    .exchange = gs_rank_exchange,
                                    .exchange_ctx = env->exchange,
                                    .backend = strcmp(backend, "net") == 0 ? "net" : NULL,
                                    .data_address = "127.0.0.1"};
    GS_TRY(gs_sum_probe_run(&facts, &options, seconds, gs_deadline_in_seconds(90)));
    GS_TRY(check_sizes(&facts, num_sizes));
    if (seconds < 1 && facts.num_sizes == GS_SUM_NUM_SIZES) return gs_error(GS_INTERNAL, "%d sizes in %g s", facts.num_sizes, seconds);
    if (strcmp(facts.backend, backend) != 0) return gs_error(GS_INTERNAL, "over %s: %s", facts.backend, facts.reason);
    GS_TRY(gs_rank_exchange(env->exchange, "facts", NULL, env->world_size, &facts, sizeof facts, all, soon()));
    for (int rank = 0; rank < env->world_size; rank++)
        if (memcmp(all[rank].sizes, facts.sizes, sizeof facts.sizes) != 0) return gs_error(GS_INTERNAL, "rank %d found something else", rank);
    return gs_ok();
}

static gs_status refuse(void *ctx, const char *tag, const int *ranks, int num_ranks, const void *mine, size_t bytes, void *all,
                        gs_deadline deadline) {
    (void)ctx, (void)tag, (void)ranks, (void)num_ranks, (void)mine, (void)bytes, (void)all, (void)deadline;
    return gs_error(GS_CANCELLED, "the measurement has been given up");
}

static void sums_between_hosts_are_right_and_alike(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("add_up", 3, "net 10 4", gs_deadline_in_seconds(100)));
}

static void workers_of_a_host_add_up_in_its_memory(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("add_up", 2, "shm 10 4", gs_deadline_in_seconds(100)));
}

static void what_would_take_too_long_is_left_out(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("add_up", 2, "net 0.001 1", gs_deadline_in_seconds(100)));
}

static void without_the_words_of_others_there_are_no_sums(void **state) {
    (void)state;
    gs_sum_facts facts;
    gs_status status = gs_sum_probe_run(&facts, &(gs_sum_options){.world_size = 2, .generation = 1, .exchange = refuse}, 1, soon());
    assert_int_equal(status.code, GS_CANCELLED);
    assert_int_equal(facts.num_sizes, 0);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"add_up", body_add_up}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_between_hosts_are_right_and_alike),
        cmocka_unit_test(workers_of_a_host_add_up_in_its_memory),
        cmocka_unit_test(what_would_take_too_long_is_left_out),
        cmocka_unit_test(without_the_words_of_others_there_are_no_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
