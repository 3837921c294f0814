#include "tests/simulation/disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/store/transaction.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/fences.h"
#include "tests/simulation/files.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/rows.h"
#include "tests/simulation/promises.h"

#define WRITE_NS (4 * MILLISECONDS)
#define ANSWER_NS (MILLISECONDS / 2)  // from done to told
#define MOST_TOGETHER 256

// One thing asked of the disk.
typedef struct disk_work {
    gs_effect_kind kind;
    uint64_t life, ticket;
    row_write row;       // also names job and directory of looks at files
    bool all_reported;
    gs_life_look look;
    char cluster[GS_CLUSTER_NAME_LEN];  // that looks for it, or whose coordinator asks what there is
    uint32_t left_by;    // of that cluster's generations
    char (*known)[GS_CHECKPOINT_NAME_LEN];  // owned; of the job's checkpoints, as it was asked
    size_t num_known;
    gs_job_savers savers;  // what others left, and nobody told of, is not the job's
    gs_status status;
    struct disk_work *next;
} disk_work;

typedef struct work_queue {
    disk_work *first, **end;
} work_queue;

// A thread.
typedef struct disk_lane {
    work_queue waiting;
    size_t num_begun;  // of those that wait: one transaction, or one thing done with files
} disk_lane;

struct sim_disk {
    disk_lane lanes[GS_NUM_LANES];
    work_queue done;  // and not told yet
    bool tells;
    int64_t extra_ns;
};

static void clear_queue(work_queue *queue) { *queue = (work_queue){.end = &queue->first}; }

static void push(work_queue *queue, disk_work *work) {
    work->next = NULL;
    *queue->end = work;
    queue->end = &work->next;
}

static disk_work *pop(work_queue *queue) {
    disk_work *work = queue->first;
    if (!work) return NULL;
    queue->first = work->next;
    if (!queue->first) queue->end = &queue->first;
    return work;
}

static void free_work(disk_work *work) {
    row_write_release(&work->row);
    free(work->known);
    free(work);
}

static void drop(work_queue *queue) {
    for (disk_work *work; (work = pop(queue));) free_work(work);
}

void disk_create(sim_world *world) {
    world->disk = calloc(1, sizeof *world->disk);
    for (int i = 0; i < GS_NUM_LANES; i++) clear_queue(&world->disk->lanes[i].waiting);
    clear_queue(&world->disk->done);
    rows_create(world);
}

void disk_destroy(sim_world *world) {
    for (int i = 0; i < GS_NUM_LANES; i++) drop(&world->disk->lanes[i].waiting);
    drop(&world->disk->done);
    rows_destroy(world);
    files_destroy(world);
    fences_destroy(world);
    free(world->disk);
}

void disk_slow(sim_world *world, int64_t extra_ns) { world->disk->extra_ns = extra_ns; }

bool disk_is_well(sim_world *world) { return !world->disk->extra_ns && rows_trouble_of(world)->reads_fail <= 0; }

static gs_write_lane lane_of(gs_effect_kind kind) {
    if (kind <= GS_DO_PRUNE_KEYS) return GS_LANE_ROWS;
    bool is_bulk = kind == GS_DO_VERIFY || kind == GS_DO_REMOVE_CHECKPOINT || kind == GS_DO_PURGE;
    return is_bulk ? GS_LANE_BULK : GS_LANE_LOOKS;
}

static bool read_fails(sim_world *world) {
    double chance = rows_trouble_of(world)->reads_fail;
    return chance > 0 && dice_chance(&world->dice, chance);
}

static gs_status read_checkpoint(sim_world *world, const disk_work *work) {
    const saved_file *file = files_find(world, work->row.job, work->row.directory);
    if (read_fails(world)) return gs_error(GS_UNAVAILABLE, "%s: Input/output error", work->row.directory);
    if (!file) return gs_error(GS_NOT_FOUND, "%s: no such checkpoint", work->row.directory);
    // Parts are looked at without reading them.
    bool reads_all = work->kind == GS_DO_VERIFY;
    if (!reads_all && !gs_job_savers_include(&work->savers, file->generation, file->step, file->directory)) return gs_error(GS_DATA_LOSS, "%s: of an older generation", work->row.directory);
    return reads_all && file->is_damaged ? gs_error(GS_DATA_LOSS, "%s: digest", work->row.directory) : gs_ok();
}

static void remove_files(sim_world *world, const disk_work *work) {
    const char *directory = work->kind == GS_DO_PURGE ? NULL : work->row.directory;
    if (work->kind != GS_DO_REMOVE_PARTS) promises_removed(world, work->row.job, directory);
    files_remove(world, work->row.job, directory);
}

static void look_at_files(sim_world *world, disk_work *work) {
    switch (work->kind) {
    case GS_DO_REMOVE_CHECKPOINT:
    case GS_DO_REMOVE_PARTS:
    case GS_DO_PURGE: remove_files(world, work); break;
    case GS_DO_VERIFY:
    case GS_DO_LOOK_AT_PARTS: work->status = read_checkpoint(world, work); break;
    default:
        if (read_fails(world)) work->status = gs_error(GS_UNAVAILABLE, "Input/output error");
        else if (work->kind == GS_DO_LOOK_FOR_LIFE) fences_look(world, work->row.job, work->cluster, &work->look);
        else if (work->kind == GS_DO_FIND_DIRECTORIES) work->left_by = fences_left_by(world, work->row.job, work->cluster);
        break;
    }
}

static size_t count_together(const disk_lane *lane) {
    size_t count = 0;
    size_t most = lane->waiting.first && lane_of(lane->waiting.first->kind) == GS_LANE_ROWS ? MOST_TOGETHER : 1;
    for (const disk_work *work = lane->waiting.first; work && count < most; work = work->next) count++;
    return count;
}

// The first `count` of those that wait; they are done then.
static void do_together(sim_world *world, disk_lane *lane, size_t count) {
    sim_disk *disk = world->disk;
    row_write *rows[MOST_TOGETHER];
    disk_work *works[MOST_TOGETHER];
    bool are_rows = lane == &disk->lanes[GS_LANE_ROWS];
    for (size_t i = 0; i < count; i++) {
        works[i] = pop(&lane->waiting);
        rows[i] = &works[i]->row;
    }
    if (are_rows) rows_commit(world, rows, count);
    else look_at_files(world, works[0]);
    for (size_t i = 0; i < count; i++) {
        if (are_rows) works[i]->status = rows[i]->status;
        push(&disk->done, works[i]);
    }
}

static const gs_engine_event_kind answers[GS_NUM_EFFECTS] = {
    [GS_DO_WRITE_JOB] = GS_ON_STORED,         [GS_DO_DELETE_JOB] = GS_ON_STORED,
    [GS_DO_RESERVE_GENERATIONS] = GS_ON_STORED, [GS_DO_WRITE_CHECKPOINT] = GS_ON_STORED,
    [GS_DO_DELETE_CHECKPOINT] = GS_ON_STORED, [GS_DO_VERIFY] = GS_ON_VERIFIED,
    [GS_DO_LOOK_AT_PARTS] = GS_ON_PARTS_LOOKED, [GS_DO_FIND_DIRECTORIES] = GS_ON_DIRECTORIES_FOUND,
    [GS_DO_CHECK_CHECKPOINTS] = GS_ON_CHECKPOINTS_CHECKED, [GS_DO_REMOVE_CHECKPOINT] = GS_ON_FILES_REMOVED,
    [GS_DO_LOOK_FOR_LIFE] = GS_ON_LIFE_LOOKED,
};

static const gs_stored_kind stored_kinds[GS_NUM_EFFECTS] = {
    [GS_DO_WRITE_JOB] = GS_STORED_JOB,
    [GS_DO_DELETE_JOB] = GS_STORED_JOB_DELETED,
    [GS_DO_RESERVE_GENERATIONS] = GS_STORED_GENERATIONS,
    [GS_DO_WRITE_CHECKPOINT] = GS_STORED_CHECKPOINT,
    [GS_DO_DELETE_CHECKPOINT] = GS_STORED_CHECKPOINT_DELETED,
};

#define MAX_NAMES 64

static bool is_known(const disk_work *work, const char *directory) {
    for (size_t i = 0; i < work->num_known; i++) {
        if (!strcmp(work->known[i], directory)) return true;
    }
    return false;
}

// Directories of the job that it does not know, or that it knows and that are gone.
static size_t collect(const sim_world *world, const disk_work *work, const char *names[]) {
    size_t count = 0;
    if (work->status.code) return 0;
    if (work->kind == GS_DO_FIND_DIRECTORIES) {
        for (const saved_file *file = world->files; file && count < MAX_NAMES; file = file->next) {
            bool is_its = file->job == work->row.job && gs_job_savers_include(&work->savers, file->generation, file->step, file->directory);
            if (is_its && !is_known(work, file->directory)) names[count++] = file->directory;
        }
    } else if (work->kind == GS_DO_CHECK_CHECKPOINTS) {
        for (size_t i = 0; i < work->num_known && count < MAX_NAMES; i++) {
            if (!files_find(world, work->row.job, work->known[i])) names[count++] = work->known[i];
        }
    }
    return count;
}

static void report_found(gs_checkpoint_report *found, const saved_file *file) {
    *found = (gs_checkpoint_report){.step = file->step, .bytes = 1000, .world_size = 1, .generation = file->generation};
    snprintf(found->reason, sizeof found->reason, "periodic");
    snprintf(found->state_digest, sizeof found->state_digest, "s%lld", (long long)file->step);
}

static void answer(sim_world *world, const disk_work *work) {
    const char *names[MAX_NAMES];
    if (!answers[work->kind] || coordinator_life(world) != work->life) return;
    gs_engine_event event = {.kind = answers[work->kind]};
    event.done = (gs_completion){.status = work->status,
                                 .stored = stored_kinds[work->kind],
                                 .ticket = work->ticket,
                                 .job = work->row.job,
                                 .directory = work->row.directory,
                                 .generation_end = work->row.generation_end,
                                 .all_reported = work->all_reported,
                                 .life = work->look,
                                 .left_by = work->left_by,
                                 .names = names,
                                 .num_names = collect(world, work, names)};
    const saved_file *file = files_find(world, work->row.job, work->row.directory);
    if (work->kind == GS_DO_LOOK_AT_PARTS && !work->status.code) {
        if (file) report_found(&event.done.found, file);
        else event.done.status = gs_error(GS_NOT_FOUND, "no such checkpoint");
    }
    coordinator_complete(world, work->life, &event);
}

static void tell(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    sim_disk *disk = world->disk;
    disk->tells = false;
    // A process that stands still does nothing and hears of nothing.
    int64_t stands_ns = coordinator_stands_ns(world);
    if (stands_ns > 0) {
        disk->tells = true;
        world_after(world, stands_ns, tell, 0, NULL);
        return;
    }
    // Not those that are done while it is told.
    const disk_work *last = NULL;
    for (const disk_work *work = disk->done.first; work; work = work->next) last = work;
    disk_work *work;
    bool is_last = !last;
    while (!is_last && (work = pop(&disk->done))) {
        is_last = work == last;
        answer(world, work);
        free_work(work);
    }
}

static void finish(sim_world *world, uint64_t life, void *what);

static void begin(sim_world *world, disk_lane *lane) {
    sim_disk *disk = world->disk;
    if (lane->num_begun || !lane->waiting.first) return;
    lane->num_begun = count_together(lane);
    int64_t ns = dice_delay_ns(&world->dice, WRITE_NS) + disk->extra_ns;
    disk_lane **what = malloc(sizeof(disk_lane *));
    *what = lane;
    world_after(world, ns, finish, lane->waiting.first->life, what);
}

static void finish(sim_world *world, uint64_t life, void *what) {
    sim_disk *disk = world->disk;
    disk_lane *lane = *(disk_lane **)what;
    bool is_over = !lane->num_begun || lane->waiting.first->life != life;  // its process has died
    int64_t stands_ns = coordinator_stands_ns(world);
    if (!is_over && stands_ns > 0) {
        world_after(world, stands_ns, finish, life, what);
        return;
    }
    free(what);
    if (is_over) return;
    size_t count = lane->num_begun;
    lane->num_begun = 0;
    do_together(world, lane, count);
    if (rows_have_ended(world)) {
        coordinator_kill(world, dice_delay_ns(&world->dice, 3 * SECONDS));
        return;
    }
    begin(world, lane);
    if (disk->tells) return;
    disk->tells = true;
    world_after(world, dice_delay_ns(&world->dice, ANSWER_NS), tell, 0, NULL);
}

static bool is_asked(gs_effect_kind kind) { return kind >= GS_DO_WRITE_JOB && kind <= GS_DO_PURGE; }

static void note_known(disk_work *work, const gs_job *job, bool only_startable) {
    work->known = calloc(job->checkpoints.count + 1, sizeof *work->known);
    for (size_t i = 0; i < job->checkpoints.count; i++) {
        const gs_checkpoint *item = &job->checkpoints.items[i];
        if (!only_startable || gs_checkpoint_may_start(item)) memcpy(work->known[work->num_known++], item->directory, GS_CHECKPOINT_NAME_LEN);
    }
}

void disk_perform(sim_world *world, uint64_t life, const gs_effect *effect, const gs_state *state) {
    if (!is_asked(effect->kind) || effect->kind == GS_DO_SWEEP) return;
    disk_work *work = calloc(1, sizeof *work);
    work->kind = effect->kind;
    work->life = life;
    work->ticket = effect->ticket;
    row_write_fill(world, &work->row, effect, state);
    if (effect->kind == GS_DO_LOOK_AT_PARTS) work->all_reported = effect->all_reported;
    if (effect->job) work->savers = gs_job_savers_of(effect->job);
    if (effect->kind == GS_DO_LOOK_FOR_LIFE) {
        work->look = effect->life;
        snprintf(work->cluster, sizeof work->cluster, "%s",
                 gs_job_cluster_of(effect->job, &state->cluster, effect->life.generation));
    }
    bool finds = effect->kind == GS_DO_FIND_DIRECTORIES;
    if (finds) snprintf(work->cluster, sizeof work->cluster, "%s", state->cluster.id);
    if (finds || effect->kind == GS_DO_CHECK_CHECKPOINTS) note_known(work, effect->job, !finds);
    disk_lane *lane = &world->disk->lanes[lane_of(work->kind)];
    push(&lane->waiting, work);
    begin(world, lane);
}

void disk_crash(sim_world *world, bool power_failed) {
    sim_disk *disk = world->disk;
    for (int i = 0; i < GS_NUM_LANES; i++) {
        disk_lane *lane = &disk->lanes[i];
        // Its thread may have come further than anybody was told: any number of transactions, each of any number of rows.
        while (lane->waiting.first && !rows_have_ended(world) && dice_chance(&world->dice, 0.4))
            do_together(world, lane, (size_t)dice_between(&world->dice, 1, (int64_t)count_together(lane)));
        drop(&lane->waiting);
        lane->num_begun = 0;
    }
    rows_crash(world, power_failed);
    drop(&disk->done);
    disk->tells = false;  // who stood still tells nothing any more, and the next life does not wait for that
}
