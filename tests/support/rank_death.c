#include "tests/support/rank_death.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEATH_SECONDS 60.0
#define END_SECONDS 120.0
#define MOST_RANKS 16

char rank_process_state(pid_t pid) {
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = pid > 0 ? fopen(path, "r") : NULL;
    if (!file) return 'X';
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
    fclose(file);
    return state;
}

gs_status rank_death_await(gs_ranks *ranks, int rank, const char *dir) {
    gs_deadline deadline = gs_deadline_in_seconds(DEATH_SECONDS);
    while (!strchr("ZX", rank_process_state(gs_ranks_pid(ranks, rank)))) {
        if (gs_deadline_passed(deadline))
            return gs_error(GS_INTERNAL, "rank %d did not die", rank);
        gs_sleep_ns(GS_NS_PER_MS);
    }
    trainer_rank_declare_dead(dir, rank);
    return gs_ok();
}

gs_status rank_death_finish(gs_ranks *ranks, int world_size, int victim) {
    gs_status statuses[MOST_RANKS];
    GS_TRY(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(END_SECONDS)));
    for (int rank = 0; rank < world_size; rank++) {
        const char *note = gs_ranks_note(ranks, rank);
        if (rank == victim) {
            if (strcmp(statuses[rank].message, "killed by signal 9") == 0) continue;
            return gs_error(GS_INTERNAL, "rank %d was not killed: %s", rank, statuses[rank].message);
        }
        if (statuses[rank].code) return gs_status_prefix(statuses[rank], "rank %d", rank);
        if (strncmp(note, "end aborted", 11) != 0)
            return gs_error(GS_INTERNAL, "rank %d: %s", rank, note);
    }
    return gs_ok();
}

gs_status rank_death_run(const char *dir, const char *spec, int world_size,
                         const rank_death *death) {
    gs_ranks *ranks;
    char armed[128], *arg = trainer_rank_arg(spec, dir, NULL);
    snprintf(armed, sizeof armed, "GRADSYNC_FAILPOINTS=%s#%d=kill@%d", death->place, death->rank,
             death->pass);
    printf("  %s\n", armed + strlen("GRADSYNC_FAILPOINTS="));
    fflush(stdout);
    gs_status status =
        gs_ranks_start(&ranks, "train", world_size, arg, (const char *const[]){armed, NULL});
    free(arg);
    if (status.code) return status;
    status = rank_death_await(ranks, death->rank, dir);
    if (!status.code) status = rank_death_finish(ranks, world_size, death->rank);
    gs_ranks_destroy(ranks);
    return gs_status_prefix(status, "%s", death->place);
}

gs_status rank_death_check_record(int64_t *last, const char *dir, int rank,
                                  const gs_digest undisturbed[TRAINER_RANK_MAX_STEPS]) {
    gs_digest held[TRAINER_RANK_MAX_STEPS];
    char problem[160];
    if (!trainer_rank_read_record(held, dir, rank, problem))
        return gs_error(GS_INTERNAL, "%s", problem);
    *last = trainer_rank_last_step(held);
    for (int64_t step = 1; step <= *last; step++) {
        if (gs_digest_fold(held[step]) && !gs_digest_equal(held[step], undisturbed[step]))
            return gs_error(GS_INTERNAL, "rank %d: step %lld is not that of the undisturbed run",
                            rank, (long long)step);
    }
    return gs_ok();
}
