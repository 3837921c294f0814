#include "tests/simulation/disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/store/record/job_record.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/oracle.h"

#define WRITE_NS (4 * MILLISECONDS)

typedef struct job_row {
    uint64_t id;
    char *text;
    struct job_row *next;
} job_row;

typedef struct checkpoint_row {
    uint64_t job;
    gs_checkpoint item;
    struct checkpoint_row *next;
} checkpoint_row;

typedef struct key_row {
    gs_request_key key;
    struct key_row *next;
} key_row;

typedef struct saved_file {
    uint64_t job;
    char directory[GS_CHECKPOINT_NAME_LEN];
    int64_t step;
    uint32_t generation;
    bool is_damaged;
    struct saved_file *next;
} saved_file;

// One thing asked of the disk.
typedef struct disk_work {
    gs_effect_kind kind;
    uint64_t life, ticket, job;
    char directory[GS_CHECKPOINT_NAME_LEN];
    char *text;      // owned; a record
    bool has_key;
    gs_request_key key;  // owned text
    uint32_t generation_end;
    gs_checkpoint checkpoint;
    bool all_reported;
    struct disk_work *next;
} disk_work;

struct sim_disk {
    job_row *jobs;
    checkpoint_row *checkpoints;
    key_row *keys;
    saved_file *files;
    uint32_t epoch, generation_end;
    disk_work *queue, **queue_end;
    bool is_working, is_full;
    int64_t extra_ns;
};

void disk_create(sim_world *world) {
    world->disk = calloc(1, sizeof *world->disk);
    world->disk->generation_end = 1;
    world->disk->queue_end = &world->disk->queue;
}

static void free_work(disk_work *work) {
    free(work->text);
    if (work->has_key) free(work->key.key);
    free(work);
}

static void drop_queue(sim_disk *disk) {
    while (disk->queue) {
        disk_work *work = disk->queue;
        disk->queue = work->next;
        free_work(work);
    }
    disk->queue_end = &disk->queue;
}

void disk_destroy(sim_world *world) {
    sim_disk *disk = world->disk;
    drop_queue(disk);
    for (job_row *row = disk->jobs, *next; row; row = next) {
        next = row->next;
        free(row->text);
        free(row);
    }
    for (checkpoint_row *row = disk->checkpoints, *next; row; row = next) {
        next = row->next;
        free(row);
    }
    for (key_row *row = disk->keys, *next; row; row = next) {
        next = row->next;
        free(row->key.key);
        free(row);
    }
    for (saved_file *file = disk->files, *next; file; file = next) {
        next = file->next;
        free(file);
    }
    free(disk);
}

static saved_file *find_file(const sim_disk *disk, uint64_t job, const char *directory) {
    for (saved_file *file = disk->files; file; file = file->next) {
        if (file->job == job && !strcmp(file->directory, directory)) return file;
    }
    return NULL;
}

bool disk_has(const sim_world *world, uint64_t job, const char *directory) {
    const saved_file *file = find_file(world->disk, job, directory);
    return file && !file->is_damaged;
}

void disk_save(sim_world *world, uint64_t job, const char *directory, int64_t step, uint32_t generation) {
    saved_file *file = find_file(world->disk, job, directory);
    if (!file) {
        file = calloc(1, sizeof *file);
        file->next = world->disk->files;
        world->disk->files = file;
    }
    file->job = job;
    snprintf(file->directory, sizeof file->directory, "%s", directory);
    file->step = step;
    file->generation = generation;
}

static void remove_file(sim_disk *disk, uint64_t job, const char *directory) {
    for (saved_file **link = &disk->files; *link;) {
        saved_file *file = *link;
        bool matches = file->job == job && (!directory || !strcmp(file->directory, directory));
        if (!matches) {
            link = &file->next;
            continue;
        }
        *link = file->next;
        free(file);
    }
}

void disk_damage_newest(sim_world *world) {
    const saved_file *newest = world->disk->files;
    if (!newest) return;
    saved_file file = *newest;
    world_tell(world, "disk: checkpoint %s is found damaged, and renamed", file.directory);
    oracle_damaged(world, file.job, file.step);
    remove_file(world->disk, file.job, file.directory);
}

void disk_fill(sim_world *world, bool is_full) { world->disk->is_full = is_full; }
void disk_slow(sim_world *world, int64_t extra_ns) { world->disk->extra_ns = extra_ns; }

static job_row *find_job(sim_disk *disk, uint64_t id) {
    for (job_row *row = disk->jobs; row; row = row->next) {
        if (row->id == id) return row;
    }
    return NULL;
}

static void put_job(sim_disk *disk, disk_work *work) {
    job_row *row = find_job(disk, work->job);
    if (!row) {
        job_row **end = &disk->jobs;
        while (*end && (*end)->id < work->job) end = &(*end)->next;
        row = calloc(1, sizeof *row);
        row->id = work->job;
        row->next = *end;
        *end = row;
    }
    free(row->text);
    row->text = work->text;
    work->text = NULL;
    if (!work->has_key) return;
    key_row *key = calloc(1, sizeof *key);
    key->key = work->key;
    key->next = disk->keys;
    disk->keys = key;
    work->has_key = false;
}

static void delete_checkpoints(sim_disk *disk, uint64_t job, const char *directory) {
    for (checkpoint_row **link = &disk->checkpoints; *link;) {
        checkpoint_row *row = *link;
        if (row->job != job || (directory && strcmp(row->item.directory, directory) != 0)) {
            link = &row->next;
            continue;
        }
        *link = row->next;
        free(row);
    }
}

static void delete_job(sim_disk *disk, uint64_t id) {
    for (job_row **link = &disk->jobs; *link; link = &(*link)->next) {
        job_row *row = *link;
        if (row->id != id) continue;
        *link = row->next;
        free(row->text);
        free(row);
        break;
    }
    delete_checkpoints(disk, id, NULL);
}

static void put_checkpoint(sim_disk *disk, uint64_t job, const gs_checkpoint *item) {
    checkpoint_row **link = &disk->checkpoints;
    while (*link && ((*link)->job != job || strcmp((*link)->item.directory, item->directory) != 0))
        link = &(*link)->next;
    if (!*link) *link = calloc(1, sizeof **link);
    (*link)->job = job;
    (*link)->item = *item;
}

static bool is_row(gs_effect_kind kind) { return kind <= GS_DO_PRUNE_KEYS; }

// What is durable once it is done.
static void make_durable(sim_disk *disk, disk_work *work) {
    switch (work->kind) {
    case GS_DO_WRITE_JOB: put_job(disk, work); break;
    case GS_DO_DELETE_JOB: delete_job(disk, work->job); break;
    case GS_DO_RESERVE_GENERATIONS: disk->generation_end = work->generation_end; break;
    case GS_DO_WRITE_CHECKPOINT: put_checkpoint(disk, work->job, &work->checkpoint); break;
    case GS_DO_DELETE_CHECKPOINT: delete_checkpoints(disk, work->job, work->directory); break;
    case GS_DO_REMOVE_CHECKPOINT:
    case GS_DO_REMOVE_PARTS: remove_file(disk, work->job, work->directory); break;
    case GS_DO_PURGE: remove_file(disk, work->job, NULL); break;
    default: break;
    }
}

static const gs_engine_event_kind answers[GS_NUM_EFFECTS] = {
    [GS_DO_WRITE_JOB] = GS_ON_STORED,         [GS_DO_DELETE_JOB] = GS_ON_STORED,
    [GS_DO_RESERVE_GENERATIONS] = GS_ON_STORED, [GS_DO_WRITE_CHECKPOINT] = GS_ON_STORED,
    [GS_DO_DELETE_CHECKPOINT] = GS_ON_STORED, [GS_DO_VERIFY] = GS_ON_VERIFIED,
    [GS_DO_LOOK_AT_PARTS] = GS_ON_PARTS_LOOKED, [GS_DO_FIND_DIRECTORIES] = GS_ON_DIRECTORIES_FOUND,
    [GS_DO_CHECK_CHECKPOINTS] = GS_ON_CHECKPOINTS_CHECKED, [GS_DO_REMOVE_CHECKPOINT] = GS_ON_FILES_REMOVED,
};

static const gs_stored_kind stored_kinds[GS_NUM_EFFECTS] = {
    [GS_DO_WRITE_JOB] = GS_STORED_JOB,
    [GS_DO_DELETE_JOB] = GS_STORED_JOB_DELETED,
    [GS_DO_RESERVE_GENERATIONS] = GS_STORED_GENERATIONS,
    [GS_DO_WRITE_CHECKPOINT] = GS_STORED_CHECKPOINT,
    [GS_DO_DELETE_CHECKPOINT] = GS_STORED_CHECKPOINT_DELETED,
};

#define MAX_NAMES 64

// Directories of the job that no row knows, or rows whose directory is gone.
static size_t collect(const sim_disk *disk, const disk_work *work, const gs_state *state, const char *names[]) {
    size_t count = 0;
    const gs_job *job = state ? gs_job_table_get(&state->jobs, work->job) : NULL;
    if (work->kind == GS_DO_FIND_DIRECTORIES) {
        for (const saved_file *file = disk->files; file && count < MAX_NAMES; file = file->next) {
            if (file->job == work->job && !(job && gs_checkpoints_find(&job->checkpoints, file->directory)))
                names[count++] = file->directory;
        }
    } else if (work->kind == GS_DO_CHECK_CHECKPOINTS && job) {
        for (size_t i = 0; i < job->checkpoints.count && count < MAX_NAMES; i++) {
            const gs_checkpoint *item = &job->checkpoints.items[i];
            if ((item->state == GS_CHECKPOINT_GOOD || item->state == GS_CHECKPOINT_RECORDING) && !find_file(disk, work->job, item->directory))
                names[count++] = item->directory;
        }
    }
    return count;
}

static void report_found(gs_checkpoint_report *found, const saved_file *file) {
    *found = (gs_checkpoint_report){.step = file->step, .bytes = 1000, .world_size = 1};
    snprintf(found->reason, sizeof found->reason, "periodic");
    snprintf(found->state_digest, sizeof found->state_digest, "s%lld", (long long)file->step);
}

static void answer(sim_world *world, const disk_work *work, gs_status status) {
    const char *names[MAX_NAMES];
    const gs_state *state = coordinator_life(world) == work->life ? coordinator_state(world) : NULL;
    if (!answers[work->kind] || !state) return;
    gs_engine_event event = {.kind = answers[work->kind]};
    event.done = (gs_completion){.status = status,
                                 .stored = stored_kinds[work->kind],
                                 .ticket = work->ticket,
                                 .job = work->job,
                                 .directory = work->directory,
                                 .generation_end = work->generation_end,
                                 .all_reported = work->all_reported,
                                 .names = names,
                                 .num_names = collect(world->disk, work, state, names)};
    const saved_file *file = find_file(world->disk, work->job, work->directory);
    bool looks = work->kind == GS_DO_VERIFY || work->kind == GS_DO_LOOK_AT_PARTS;
    if (looks && (!file || file->is_damaged)) event.done.status = gs_error(GS_NOT_FOUND, "no such checkpoint");
    if (work->kind == GS_DO_LOOK_AT_PARTS && !event.done.status.code) report_found(&event.done.found, file);
    coordinator_complete(world, work->life, &event);
}

static void work_next(sim_world *world, uint64_t whom, void *what) {
    (void)whom;
    (void)what;
    sim_disk *disk = world->disk;
    disk_work *work = disk->queue;
    disk->is_working = false;
    if (!work) return;
    disk->queue = work->next;
    if (!disk->queue) disk->queue_end = &disk->queue;
    bool fails = disk->is_full && is_row(work->kind);
    if (!fails) make_durable(disk, work);
    if (disk->queue) {
        disk->is_working = true;
        world_after(world, dice_delay_ns(&world->dice, WRITE_NS) + disk->extra_ns, work_next, 0, NULL);
    }
    answer(world, work, fails ? gs_error(GS_RESOURCE_EXHAUSTED, "disk full") : gs_ok());
    free_work(work);
}

static bool is_asked(gs_effect_kind kind) { return kind >= GS_DO_WRITE_JOB && kind <= GS_DO_PURGE; }

static char *record_of(const gs_effect *effect, const gs_state *state) {
    gs_job_documents documents = gs_job_documents_of(&effect->job->spec);
    char *text = NULL;
    gs_status status = gs_job_to_record(&text, effect->job, &documents, state->now_ns);
    gs_job_documents_release(&documents);
    if (status.code) abort();
    return text;
}

void disk_perform(sim_world *world, uint64_t life, const gs_effect *effect, const gs_state *state) {
    if (!is_asked(effect->kind)) return;
    sim_disk *disk = world->disk;
    disk_work *work = calloc(1, sizeof *work);
    work->kind = effect->kind;
    work->life = life;
    work->ticket = effect->ticket;
    work->job = effect->job_id;
    if (effect->text) snprintf(work->directory, sizeof work->directory, "%s", effect->text);
    if (effect->kind == GS_DO_RESERVE_GENERATIONS) work->generation_end = effect->generation_end;
    if (effect->kind == GS_DO_WRITE_CHECKPOINT) work->checkpoint = *effect->checkpoint;
    if (effect->kind == GS_DO_LOOK_AT_PARTS) work->all_reported = effect->all_reported;
    if (effect->kind == GS_DO_WRITE_JOB) {
        work->text = record_of(effect, state);
        work->has_key = effect->write.key != NULL;
        if (work->has_key) {
            work->key = *effect->write.key;
            work->key.key = strdup(effect->write.key->key);
        }
    }
    *disk->queue_end = work;
    disk->queue_end = &work->next;
    if (disk->is_working) return;
    disk->is_working = true;
    world_after(world, dice_delay_ns(&world->dice, WRITE_NS) + disk->extra_ns, work_next, 0, NULL);
}

void disk_crash(sim_world *world) {
    sim_disk *disk = world->disk;
    // What was just being done may be done all the same, though nobody was told.
    while (disk->queue && !disk->is_full && dice_chance(&world->dice, 0.4)) {
        disk_work *work = disk->queue;
        disk->queue = work->next;
        if (is_row(work->kind)) make_durable(disk, work);
        free_work(work);
    }
    drop_queue(disk);
}

static void adopt_jobs(sim_world *world, gs_engine *engine) {
    for (const job_row *row = world->disk->jobs; row; row = row->next) {
        gs_job *job = NULL;
        gs_job_documents documents = {0};
        gs_status status = gs_job_from_record(&job, &documents, row->id, row->text, world->now_ns, world->wall_ms);
        if (status.code) {
            oracle_fail(world, "a record cannot be read: %s", status.message);
            continue;
        }
        gs_job_documents_release(&documents);
        for (const checkpoint_row *saved = world->disk->checkpoints; saved; saved = saved->next) {
            if (saved->job != row->id) continue;
            gs_checkpoint *item = gs_checkpoints_add(&job->checkpoints, saved->item.directory);
            *item = saved->item;
            if (item->state != GS_CHECKPOINT_DELETING) item->state = GS_CHECKPOINT_GOOD;
        }
        gs_engine_adopt_job(engine, job);
    }
}

gs_engine *disk_wake_engine(sim_world *world, const gs_timing *timing) {
    sim_disk *disk = world->disk;
    gs_engine *engine = NULL;
    gs_engine_options options = {.timing = timing,
                                 .checkpoints_dir = "/checkpoints",
                                 .epoch = ++disk->epoch,
                                 .first_generation = disk->generation_end};
    disk->generation_end += GS_GENERATION_BLOCK;
    gs_status status = gs_engine_create(&engine, &options);
    if (status.code) {
        oracle_fail(world, "no engine: %s", status.message);
        abort();
    }
    for (const key_row *row = disk->keys; row; row = row->next)
        gs_engine_adopt_key(engine, row->key.key, row->key.fingerprint, row->key.job, row->key.expires_ms);
    adopt_jobs(world, engine);
    return engine;
}
