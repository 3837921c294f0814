#include "tests/support/failure_case.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/thread.h"
#include "gradsync/comm/shm/segment.h"
#include "tests/support/own_block.h"

#define FAR_SECONDS 60.0
#define LATE_MS 1000
#define MOST_RANKS 16
#define STEP 7
#define BUCKET 5

static bool is_victim(const failure_case *how, int rank) {
    return how->victims >> rank & 1;
}

static bool damages(const failure_case *how) {
    return how->way == FAILS_BAD_HEADER || how->way == FAILS_BAD_OFFSET;
}

// All who are there at that point; the dead are not, and the late are not in time.
static gs_status meet(const gs_rank_env *env, const failure_case *how, int number, const char *point,
                      const void *mine, size_t bytes, void *all) {
    char tag[64];
    int ranks[MOST_RANKS], num_ranks = 0;
    bool without = failure_case_kills(how) ? strcmp(point, "begin") != 0 : strcmp(point, "in time") == 0;
    for (int i = 0; i < how->world_size; i++) {
        if (!without || !is_victim(how, i)) ranks[num_ranks++] = i;
    }
    snprintf(tag, sizeof tag, "failure-%d/%s", number, point);
    return gs_rank_exchange(env->exchange, tag, ranks, num_ranks, mine, bytes, all,
                            gs_deadline_in_seconds(FAR_SECONDS));
}

static gs_status meet_all(const gs_rank_env *env, const failure_case *how, int number,
                          const char *point) {
    char mine = 0, all[MOST_RANKS];
    return meet(env, how, number, point, &mine, 1, all);
}

// A life ends with its threads, and the first may end before the one that moves; the parent may not have looked yet.
void failure_wait_for_death(pid_t pid) {
    static const char format[] = "%*d (%*[^)]) %c%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%d";
    char path[40], state = 0;
    int num_threads;
    gs_deadline deadline = gs_deadline_in_seconds(FAR_SECONDS);
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    while (!gs_deadline_passed(deadline)) {
        FILE *file = fopen(path, "re");
        if (!file) return;
        bool is_read = fscanf(file, format, &state, &num_threads) == 2;
        fclose(file);
        if (is_read && (state == 'Z' || state == 'X') && num_threads <= 1) return;
        gs_sleep_ns(GS_NS_PER_MS);
    }
}

static gs_comm_failure_kind kind_of(failure_way way) {
    switch (way) {
    case FAILS_LATE: return GS_COMM_FAILURE_TIMEOUT;
    case FAILS_LEFT:
    case FAILS_KILLED:
    case FAILS_KILLED_AMID: return GS_COMM_FAILURE_PEER_LOST;
    case FAILS_BAD_HEADER:
    case FAILS_BAD_OFFSET: return GS_COMM_FAILURE_DAMAGED;
    case FAILS_TOLD: return GS_COMM_FAILURE_ABORTED;
    case FAILS_DEVICE: return GS_COMM_FAILURE_DEVICE;
    default: return GS_COMM_FAILURE_MISMATCH;
    }
}

static gs_collective meant(comm_rank *self, const failure_backend *backend) {
    void *data = gs_arena_data(self->arena);
    return (gs_collective){.kind = GS_ALLREDUCE,
                           .send = data,
                           .recv = data,
                           .count = FAILURE_COUNT,
                           .dtype = GS_FP32,
                           .lane = backend->num_lanes - 1,
                           .step = STEP,
                           .bucket = BUCKET};
}

static gs_collective posted_instead(gs_collective wrong, failure_way way) {
    switch (way) {
    case FAILS_OTHER_KIND: wrong.kind = GS_BROADCAST; break;
    case FAILS_OTHER_COUNT: wrong.count--; break;
    case FAILS_OTHER_DTYPE: wrong.dtype = GS_I32; break;
    case FAILS_OTHER_STEP: wrong.step++; break;
    case FAILS_OTHER_BUCKET: wrong.bucket = -1; break;
    default: break;
    }
    return wrong;
}

static gs_status damage(failure_way way, int lane) {
    unsigned char *block = own_block_find();
    if (!block) return gs_error(GS_INTERNAL, "own control block is not mapped");
    size_t header = offsetof(gs_shm_control, magic);
    size_t place = sizeof(gs_shm_control) + (size_t)lane * sizeof(gs_shm_lane_block) +
                   offsetof(gs_shm_lane_block, posts[2].send_offset);
    memset(block + (way == FAILS_BAD_HEADER ? header : place), 0x5b, 8);
    return gs_ok();
}

// Whoever is gone wild moves no more until the others have found out.
static gs_status go_wild(comm_rank *self, const gs_rank_env *env, const failure_case *how, int number,
                         const gs_collective *collective) {
    gs_work work;
    GS_TRY(gs_comm_post(self->comm, &work, collective));
    GS_TRY(damage(how->way, collective->lane));
    GS_TRY(meet_all(env, how, number, "damaged"));
    GS_TRY(meet_all(env, how, number, "over"));
    return gs_comm_wait(self->comm, work, gs_deadline_in_seconds(FAR_SECONDS));
}

static gs_status run_victim(comm_rank *self, const gs_rank_env *env, const failure_backend *backend,
                            const failure_case *how, int number) {
    gs_deadline far = gs_deadline_in_seconds(FAR_SECONDS);
    gs_collective collective = posted_instead(meant(self, backend), how->way);
    gs_work work;
    switch (how->way) {
    case FAILS_LATE: {
        GS_TRY(meet_all(env, how, number, "over"));
        return gs_comm_run(self->comm, &collective, gs_deadline_in_ms(LATE_MS));
    }
    case FAILS_LEFT:
        gs_comm_destroy(self->comm);
        self->comm = NULL;
        GS_TRY(meet_all(env, how, number, "gone"));
        return gs_error(GS_ABORTED, "left");
    case FAILS_BAD_HEADER:
    case FAILS_BAD_OFFSET: return go_wild(self, env, how, number, &collective);
    case FAILS_TOLD:
        gs_comm_abort(self->comm, "rank 0 did it");
        break;
    case FAILS_DEVICE:
        if (!how->failpoints) GS_TRY(backend->break_device(self));
        break;
    case FAILS_KILLED:
        kill(getpid(), SIGKILL);
        break;
    case FAILS_KILLED_AMID:
        if (how->failpoints) break;  // within the copy
        GS_TRY(gs_comm_post(self->comm, &work, &collective));
        kill(getpid(), SIGKILL);
        break;
    default: GS_TRY(meet_all(env, how, number, "posted")); break;
    }
    return gs_comm_run(self->comm, &collective, far);
}

// Who is mistaken comes last, and so is the first to compare: it says what was meant, and not what it posted. And
// nobody misses more ranks than those that stay away.
static gs_status post_first(comm_rank *self, const gs_rank_env *env, const failure_case *how, int number,
                            const gs_collective *collective) {
    bool late = how->way == FAILS_LATE;
    gs_work work;
    gs_status status = gs_comm_post(self->comm, &work, collective);
    GS_TRY(meet_all(env, how, number, late ? "in time" : "posted"));
    gs_deadline deadline = late ? gs_deadline_in_ms(LATE_MS) : gs_deadline_in_seconds(FAR_SECONDS);
    if (!status.code) status = gs_comm_wait(self->comm, work, deadline);
    gs_comm_let_go(self->comm, status.message);
    return status;
}

static gs_status run_other(comm_rank *self, const gs_rank_env *env, const failure_backend *backend,
                           const failure_case *how, int number) {
    bool damaged = damages(how);
    if (damaged) GS_TRY(meet_all(env, how, number, "damaged"));
    // Who is looked for is gone by then: of several all are to be found.
    if (how->way == FAILS_LEFT) GS_TRY(meet_all(env, how, number, "gone"));
    gs_collective collective = meant(self, backend);
    bool late = how->way == FAILS_LATE, first = late || kind_of(how->way) == GS_COMM_FAILURE_MISMATCH;
    gs_status status = first ? post_first(self, env, how, number, &collective)
                             : gs_comm_run(self->comm, &collective, gs_deadline_in_seconds(FAR_SECONDS));
    if (damaged || late) GS_TRY(meet_all(env, how, number, "over"));
    return status;
}

// Who may have been first to know: whoever aborts knows it itself, a claim is compared by all.
static bool may_report(const failure_case *how, int rank) {
    bool victim = is_victim(how, rank);
    switch (kind_of(how->way)) {
    case GS_COMM_FAILURE_MISMATCH: return true;
    case GS_COMM_FAILURE_ABORTED:
    case GS_COMM_FAILURE_DEVICE: return victim;
    default: return !victim;
    }
}

static bool accuses(const gs_comm_failure *seen, int world_size, uint64_t wanted) {
    for (int rank = 0; rank < GS_COMM_MAX_RANKS; rank++) {
        bool accused = rank < world_size && (wanted >> rank & 1);
        if (gs_comm_failure_names(seen, rank) != accused) return false;
    }
    return true;
}

static bool is_placed(const gs_comm_failure *seen, const failure_backend *backend) {
    return seen->lane == backend->num_lanes - 1 && seen->sequence == 2 && seen->step == STEP &&
           seen->bucket == BUCKET;
}

// Everybody knows all of it, whoever was told and whoever found out.
static bool knows_all(const failure_backend *backend, const failure_case *how,
                      const gs_comm_failure *seen) {
    gs_comm_failure_kind kind = kind_of(how->way);
    bool told = kind == GS_COMM_FAILURE_ABORTED;
    return seen->kind == kind && seen->reporter >= 0 && seen->reporter < how->world_size &&
           may_report(how, seen->reporter) && (told || is_placed(seen, backend)) &&
           accuses(seen, how->world_size, told ? 0 : how->victims);
}

// What went wrong at others looks like one that is gone, or that does not come. Nobody but the rank itself can
// be accused, and only of its device.
static bool knows_itself(const failure_backend *backend, const failure_case *how, int rank,
                         const gs_comm_failure *seen) {
    gs_comm_failure_kind kind = kind_of(how->way);
    bool own = is_victim(how, rank) &&
               (kind == GS_COMM_FAILURE_ABORTED || kind == GS_COMM_FAILURE_DEVICE);
    bool guesses = kind == GS_COMM_FAILURE_MISMATCH;  // the library fails, or its peers do
    bool of_device = seen->kind == GS_COMM_FAILURE_DEVICE;
    bool of_others = seen->kind == GS_COMM_FAILURE_PEER_LOST || seen->kind == GS_COMM_FAILURE_TIMEOUT;
    if (how->way == FAILS_LATE && !is_victim(how, rank) && seen->kind != GS_COMM_FAILURE_TIMEOUT &&
        how->world_size - __builtin_popcountll(how->victims) == 1)
        return false;
    if (seen->reporter != rank || (own && seen->kind != kind)) return false;
    if (!own && !of_others && !(guesses && of_device)) return false;
    if (seen->kind != GS_COMM_FAILURE_ABORTED && !is_placed(seen, backend)) return false;
    return accuses(seen, how->world_size, of_device ? UINT64_C(1) << rank : 0);
}

typedef struct record {
    bool is_there;
    gs_comm_failure seen;
} record;

static gs_status check_records(const failure_backend *backend, const failure_case *how,
                               const record *all, int num_records, const int *ranks) {
    for (int i = 0; i < num_records; i++) {
        const gs_comm_failure *seen = &all[i].seen;
        if (!all[i].is_there) continue;
        bool right = backend->knows_all ? knows_all(backend, how, seen)
                                        : knows_itself(backend, how, ranks[i], seen);
        if (right) continue;
        return gs_error(GS_INTERNAL,
                        "%s of %d: rank %d knows: %s, reporter %d, lane %d, collective %llu, step %lld, "
                        "bucket %d, %d accused, the first %#llx",
                        how->name, how->world_size, ranks[i], gs_comm_failure_kind_name(seen->kind),
                        seen->reporter, seen->lane, (unsigned long long)seen->sequence,
                        (long long)seen->step, seen->bucket, gs_comm_failure_num_accused(seen),
                        (unsigned long long)seen->accused[0]);
    }
    return gs_ok();
}

// Who died behind its post, at no place of a failpoint, may have given all that it had: then somebody has the sum, and nothing to tell.
static bool may_have_given_all(const failure_case *how) { return how->way == FAILS_KILLED_AMID && !how->failpoints; }

static gs_status compare_records(comm_rank *self, const gs_rank_env *env, const failure_backend *backend,
                                 const failure_case *how, int number, bool has_failed) {
    record mine = {.is_there = self->comm != NULL && has_failed}, all[MOST_RANKS];
    int ranks[MOST_RANKS], num_records = 0;
    if (self->comm) gs_comm_explain(self->comm, &mine.seen);
    for (int i = 0; i < how->world_size; i++) {
        if (!failure_case_kills(how) || !is_victim(how, i)) ranks[num_records++] = i;
    }
    GS_TRY(meet(env, how, number, "told", &mine, sizeof mine, all));
    return check_records(backend, how, all, num_records, ranks);
}

gs_status failure_case_run(comm_rank *self, const gs_rank_env *env, const failure_backend *backend,
                           const failure_case *how, int number) {
    pid_t mine = getpid(), all[MOST_RANKS];
    // Who is to write over what it posted moves only when it is told to.
    GS_TRY(backend->connect(self, env, (uint32_t)number + 1, number % 2 && !damages(how)));
    gs_collective warm_up = meant(self, backend);
    warm_up.step--;
    warm_up.count = 16;
    GS_TRY(gs_comm_run(self->comm, &warm_up, gs_deadline_in_seconds(FAR_SECONDS)));
    GS_TRY(meet(env, how, number, "begin", &mine, sizeof mine, all));
    bool victim = is_victim(how, env->rank);
    for (int i = 0; i < how->world_size && how->way == FAILS_KILLED && !victim; i++) {
        if (is_victim(how, i)) failure_wait_for_death(all[i]);
    }
    gs_status status = victim ? run_victim(self, env, backend, how, number)
                              : run_other(self, env, backend, how, number);
    if (!status.code && !may_have_given_all(how))
        return gs_error(GS_INTERNAL, "%s of %d: it ended well", how->name, how->world_size);
    gs_status known = compare_records(self, env, backend, how, number, status.code != GS_OK);
    if (known.code)
        known = gs_status_prefix(known, "rank %d (%.60s)", env->rank, status.message);
    gs_comm_destroy(self->comm);
    gs_arena_destroy(self->arena);
    self->comm = NULL;
    self->arena = NULL;
    return known;
}
