// Communicators between hosts are made and left again and again, in peace and by an abort amid a
// sum: all form, and nothing of them stays: no descriptor, no thread, no memory.
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"

#define WORLD 4
#define COUNT 200000
#define FAR_SECONDS 90.0
#define NUM_FORMATIONS 30
#define NUM_GENERATIONS 12
#define NUM_WARM 6  // generations behind which nothing grows any more
#define MOST_GROWTH_KIB 4096

static int count_entries(const char *folder) {
    int count = 0;
    DIR *dir = opendir(folder);
    while (dir && readdir(dir)) count++;
    if (dir) closedir(dir);
    return count;
}

static long resident_kib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return pages * 4;
}

static gs_status add(comm_rank *self, float *data, uint64_t seed) {
    gs_collective sum = {
        .kind = GS_ALLREDUCE, .send = data, .recv = data, .count = COUNT, .dtype = GS_FP32};
    fill_pattern(data, GS_FP32, COUNT, seed, self->rank, 0);
    GS_TRY(gs_comm_run(self->comm, &sum, gs_deadline_in_seconds(FAR_SECONDS)));
    return check_pattern(data, GS_FP32, COUNT, seed, -1, self->world_size, 0);
}

// Rank 0 ends it, whatever the others have come to.
static gs_status add_until_abort(comm_rank *self, float *data, uint64_t seed) {
    if (self->rank == 0) {
        GS_TRY(add(self, data, seed));
        gs_comm_abort(self->comm, "as asked");
        return gs_ok();
    }
    gs_status status = gs_ok();
    while (!status.code) status = add(self, data, seed);
    return status.code == GS_ABORTED ? gs_ok() : status;
}

static gs_status live(const gs_rank_env *env, float *data, int generation, bool adds) {
    comm_rank self;
    gs_comm_options options = {.backend = "net", .generation = (uint32_t)generation};
    gs_status status = comm_rank_open(&self, env, 0, &options);
    bool aborts = generation % 2 != 0;
    if (!status.code && adds)
        status = aborts ? add_until_abort(&self, data, (uint64_t)generation)
                        : add(&self, data, (uint64_t)generation);
    comm_rank_close(&self);
    return gs_status_prefix(status, "generation %d", generation);
}

static gs_status form(const gs_rank_env *env) {
    int num_formations = (int)strtol(env->arg, NULL, 10);
    for (int i = 1; i <= num_formations; i++) GS_TRY(live(env, NULL, i, false));
    return gs_ok();
}

static gs_status live_often(const gs_rank_env *env) {
    int num_generations = (int)strtol(env->arg, NULL, 10);
    int num_files = 0, num_threads = 0;
    long kib = 0;
    float *data = malloc(COUNT * sizeof *data);
    gs_status status = gs_ok();
    for (int i = 1; i <= num_generations && !status.code; i++) {
        status = live(env, data, i, true);
        if (i != NUM_WARM) continue;
        num_files = count_entries("/proc/self/fd");
        num_threads = count_entries("/proc/self/task");
        kib = resident_kib();
    }
    free(data);
    GS_TRY(status);
    int more_files = count_entries("/proc/self/fd") - num_files;
    int more_threads;
    gs_deadline deadline = gs_deadline_in_seconds(FAR_SECONDS);
    do  // one that has ended is listed for a moment
        more_threads = count_entries("/proc/self/task") - num_threads;
    while (more_threads > 0 && !gs_deadline_passed(deadline));
    long more_kib = resident_kib() - kib;
    char note[96];
    snprintf(note, sizeof note, "%d descriptors, %d threads, %ld KiB more", more_files,
             more_threads, more_kib);
    gs_rank_note(env, note);
#ifdef __SANITIZE_ADDRESS__
    more_kib = 0;  // it keeps what was freed, for a while
#elif defined(__SANITIZE_THREAD__)
    more_kib = 0;
#endif
    if (more_files > 0 || more_threads > 0 || more_kib > MOST_GROWTH_KIB)
        return gs_error(GS_INTERNAL, "%s", note);
    return gs_ok();
}

static const gs_rank_body bodies[] = {{"form", form}, {"live", live_often}, {0}};

static void run_all(const char *body, const char *variable, int few) {
    const char *told = getenv(variable);
    int count = told ? (int)strtol(told, NULL, 10) : few;
    gs_status statuses[WORLD];
    gs_ranks *ranks;
    char arg[16];
    snprintf(arg, sizeof arg, "%d", count);
    assert_ok(gs_ranks_start(&ranks, body, WORLD, arg, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(FAR_SECONDS + 2.0 * count)));
    for (int i = 0; i < WORLD; i++) {
        print_message("rank %d: %s\n", i, gs_ranks_note(ranks, i));
        assert_ok(statuses[i]);
    }
    gs_ranks_destroy(ranks);
}

static void all_communicators_form(void **state) {
    (void)state;
    run_all("form", "GRADSYNC_FORMATIONS", NUM_FORMATIONS);
}

static void generations_leave_nothing_behind(void **state) {
    (void)state;
    run_all("live", "GRADSYNC_GENERATIONS", NUM_GENERATIONS);
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_communicators_form),
        cmocka_unit_test(generations_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
