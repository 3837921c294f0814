#include "tests/simulation/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/store/record/checkpoint_record.h"
#include "coordinator/store/record/job_record.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/sets.h"

#define ROW_BYTES 100  // beside its text
#define CLUSTER "c-simulation"

typedef enum row_table { ROWS_OF_JOBS = 0, ROWS_OF_CHECKPOINTS, ROWS_OF_KEYS } row_table;

// Of a row and of its copies in other states.
typedef struct shared_text {
    int users;
    char text[];
} shared_text;

typedef struct stored_row {
    row_table table;
    uint64_t job;
    char name[GS_CHECKPOINT_NAME_LEN];  // directory, key
    shared_text *text;
    int64_t expires_ms;
    bool is_spoilt;
} stored_row;

// All of a database.
typedef struct rows_state {
    stored_row *rows;  // in order of table, job, name
    size_t num_rows, max_rows;
    uint64_t *lives;  // of each epoch, from 1
    uint32_t epoch, max_epochs, generation_end;
} rows_state;

struct sim_rows {
    rows_state now;
    // What a commit that failed may have left: taken by a crash, gone with the next commit.
    rows_state *ghost;
    rows_state *honest;  // what is on a disk that lies; NULL: it does not
    rows_trouble trouble;
};

static shared_text *share(const char *text) {
    size_t bytes = strlen(text) + 1;
    shared_text *shared = malloc(sizeof *shared + bytes);
    shared->users = 1;
    memcpy(shared->text, text, bytes);
    return shared;
}

static void leave(shared_text *text) {
    if (text && --text->users == 0) free(text);
}

static void release_state(rows_state *state) {
    for (size_t i = 0; i < state->num_rows; i++) leave(state->rows[i].text);
    free(state->rows);
    free(state->lives);
}

static rows_state *copy_state(const rows_state *state) {
    rows_state *copy = malloc(sizeof *copy);
    *copy = *state;
    copy->max_rows = state->num_rows;
    copy->rows = malloc((state->num_rows + 1) * sizeof *copy->rows);
    for (size_t i = 0; i < state->num_rows; i++) {
        copy->rows[i] = state->rows[i];
        copy->rows[i].text->users++;
    }
    copy->max_epochs = state->epoch;
    copy->lives = malloc((state->epoch + 1) * sizeof *copy->lives);
    if (state->epoch) memcpy(copy->lives, state->lives, state->epoch * sizeof *copy->lives);
    return copy;
}

static void drop_copy(rows_state **copy) {
    if (!*copy) return;
    release_state(*copy);
    free(*copy);
    *copy = NULL;
}

// It is taken.
static void replace_state(rows_state *state, rows_state *by) {
    release_state(state);
    *state = *by;
    free(by);
}

void rows_create(sim_world *world) {
    world->rows = calloc(1, sizeof *world->rows);
    world->rows->now.generation_end = 1;
    world->rows->trouble.room = -1;
}

void rows_destroy(sim_world *world) {
    drop_copy(&world->rows->ghost);
    drop_copy(&world->rows->honest);
    release_state(&world->rows->now);
    free(world->rows);
}

rows_trouble *rows_trouble_of(sim_world *world) { return &world->rows->trouble; }

static char *record_of(const gs_job *job, const gs_state *state) {
    gs_job_documents documents = gs_job_documents_of(&job->spec);
    char *text = NULL;
    gs_status status = gs_job_to_record(&text, job, &documents, state->now_ns);
    gs_job_documents_release(&documents);
    if (status.code) abort();
    return text;
}

void row_write_fill(row_write *write, const gs_effect *effect, const gs_state *state) {
    write->kind = effect->kind;
    write->job = effect->job_id;
    if (effect->text) snprintf(write->directory, sizeof write->directory, "%s", effect->text);
    if (effect->kind == GS_DO_RESERVE_GENERATIONS) write->generation_end = effect->generation_end;
    if (effect->kind == GS_DO_WRITE_CHECKPOINT && gs_checkpoint_to_record(&write->text, effect->checkpoint).code) abort();
    if (effect->kind != GS_DO_WRITE_JOB) return;
    write->text = record_of(effect->job, state);
    const gs_request_key *key = effect->write.key;
    if (!key) return;
    write->key = strdup(key->key);
    snprintf(write->fingerprint, sizeof write->fingerprint, "%s", key->fingerprint);
    write->expires_ms = key->expires_ms;
}

void row_write_release(row_write *write) {
    free(write->text);
    free(write->key);
}

static int compare(const stored_row *row, row_table table, uint64_t job, const char *name) {
    if (row->table != table) return row->table < table ? -1 : 1;
    // One request made one job: a key is a key whichever it names.
    if (table != ROWS_OF_KEYS && row->job != job) return row->job < job ? -1 : 1;
    return strcmp(row->name, name);
}

static stored_row *put(rows_state *state, row_table table, uint64_t job, const char *name, const char *text) {
    size_t at = 0;
    int order = 1;
    while (at < state->num_rows && (order = compare(&state->rows[at], table, job, name)) < 0) at++;
    if (at == state->num_rows || order > 0) {
        if (state->num_rows == state->max_rows) {
            state->max_rows = state->max_rows ? state->max_rows * 2 : 16;
            state->rows = realloc(state->rows, state->max_rows * sizeof *state->rows);
        }
        memmove(&state->rows[at + 1], &state->rows[at], (state->num_rows++ - at) * sizeof *state->rows);
        state->rows[at] = (stored_row){.table = table};
        snprintf(state->rows[at].name, sizeof state->rows[at].name, "%s", name);
    }
    stored_row *row = &state->rows[at];
    leave(row->text);
    row->text = share(text);
    row->job = job;
    row->is_spoilt = false;
    return row;
}

// directory NULL: all of the job.
static void delete(rows_state *state, row_table table, uint64_t job, const char *directory) {
    size_t kept = 0;
    for (size_t i = 0; i < state->num_rows; i++) {
        stored_row *row = &state->rows[i];
        if (row->table == table && row->job == job && (!directory || !strcmp(row->name, directory))) leave(row->text);
        else state->rows[kept++] = *row;
    }
    state->num_rows = kept;
}

static void apply(rows_state *state, const row_write *write) {
    switch (write->kind) {
    case GS_DO_WRITE_JOB:
        put(state, ROWS_OF_JOBS, write->job, "", write->text);
        if (write->key) put(state, ROWS_OF_KEYS, write->job, write->key, write->fingerprint)->expires_ms = write->expires_ms;
        break;
    case GS_DO_DELETE_JOB:
        delete(state, ROWS_OF_JOBS, write->job, NULL);
        delete(state, ROWS_OF_CHECKPOINTS, write->job, NULL);
        break;
    case GS_DO_RESERVE_GENERATIONS: state->generation_end = write->generation_end; break;
    case GS_DO_WRITE_CHECKPOINT: put(state, ROWS_OF_CHECKPOINTS, write->job, write->directory, write->text); break;
    case GS_DO_DELETE_CHECKPOINT: delete(state, ROWS_OF_CHECKPOINTS, write->job, write->directory); break;
    default: break;
    }
}

static gs_status try_one(sim_world *world, const row_write *write) {
    rows_trouble *trouble = &world->rows->trouble;
    int64_t bytes = ROW_BYTES + (write->text ? (int64_t)strlen(write->text) : 0);
    if (trouble->room >= 0 && bytes > trouble->room) return gs_error(GS_RESOURCE_EXHAUSTED, "disk full");
    if (trouble->one_fails > 0 && dice_chance(&world->dice, trouble->one_fails)) return gs_error(GS_UNAVAILABLE, "I/O error");
    if (trouble->room >= 0) trouble->room -= bytes;
    return gs_ok();
}

static void keep_honest(sim_rows *rows) {
    if (rows->trouble.lies && !rows->honest) rows->honest = copy_state(&rows->now);
}

void rows_commit(sim_world *world, row_write **writes, size_t num_writes) {
    sim_rows *rows = world->rows;
    keep_honest(rows);
    bool fails = rows->trouble.all_fail > 0 && dice_chance(&world->dice, rows->trouble.all_fail);
    rows_state *before = fails ? copy_state(&rows->now) : NULL;
    for (size_t i = 0; i < num_writes; i++) {
        writes[i]->status = try_one(world, writes[i]);
        if (!writes[i]->status.code) apply(&rows->now, writes[i]);
    }
    drop_copy(&rows->ghost);
    if (fails) {
        // Nobody knows whether it is there: the log may have got all of it before the disk said no.
        rows->ghost = copy_state(&rows->now);
        replace_state(&rows->now, before);
        for (size_t i = 0; i < num_writes; i++) {
            if (!writes[i]->status.code) writes[i]->status = gs_error(GS_UNAVAILABLE, "commit: I/O error");
        }
    }
    // Also a disk that lies writes now and then.
    if (!rows->trouble.lies || dice_chance(&world->dice, 0.1)) drop_copy(&rows->honest);
}

static const stored_row *find_job(const rows_state *state, uint64_t job) {
    for (size_t i = 0; i < state->num_rows && state->rows[i].table == ROWS_OF_JOBS; i++) {
        if (state->rows[i].job == job) return &state->rows[i];
    }
    return NULL;
}

// A promise about a row that is gone cannot be kept.
static void excuse_lost(sim_world *world, const rows_state *lost, const rows_state *left) {
    for (size_t i = 0; i < lost->num_rows && lost->rows[i].table == ROWS_OF_JOBS; i++) {
        if (!find_job(left, lost->rows[i].job)) promises_excuse_job(world, lost->rows[i].job);
    }
}

void rows_crash(sim_world *world, bool power_failed) {
    sim_rows *rows = world->rows;
    if (power_failed && rows->honest) {
        world_tell(world, "disk: what it said was written is lost");
        excuse_lost(world, &rows->now, rows->honest);
        promises_forget_rows(world);
        sets_forget_numbers(world);
        replace_state(&rows->now, rows->honest);
        rows->honest = NULL;
    } else if (rows->ghost && dice_chance(&world->dice, 0.5)) {
        world_tell(world, "disk: a commit that failed is there");
        replace_state(&rows->now, rows->ghost);
        rows->ghost = NULL;
    }
    drop_copy(&rows->ghost);
}

// As gs_stored_load does: what cannot be read is left out, and stays where it is.
static gs_job *read_job(sim_world *world, const stored_row *row) {
    gs_job *job = NULL;
    gs_job_documents documents = {0};
    char *text = strdup(row->text->text);
    if (row->is_spoilt) text[strlen(text) / 2] = 0;
    gs_status status = gs_job_from_record(&job, &documents, row->job, text, world->now_ns, world->wall_ms);
    free(text);
    if (!status.code) gs_job_documents_release(&documents);
    promises_can_read(world, row->job, !row->is_spoilt);
    if (row->is_spoilt) {
        if (!status.code) oracle_fail(world, "half a record is read as a job");
        return NULL;
    }
    if (status.code) oracle_fail(world, "a record cannot be read: %s", status.message);
    return job;
}

static void adopt_jobs(sim_world *world, gs_engine *engine) {
    const rows_state *state = &world->rows->now;
    for (size_t i = 0; i < state->num_rows && state->rows[i].table == ROWS_OF_JOBS; i++) {
        gs_job *job = read_job(world, &state->rows[i]);
        for (size_t k = 0; job && k < state->num_rows; k++) {
            const stored_row *row = &state->rows[k];
            gs_checkpoint read = {0};
            if (row->table != ROWS_OF_CHECKPOINTS || row->job != job->id) continue;
            if (gs_checkpoint_from_record(&read, row->text->text).code) oracle_fail(world, "the record of a checkpoint cannot be read");
            gs_checkpoint *item = gs_checkpoints_add(&job->checkpoints, row->name);
            memcpy(read.directory, item->directory, sizeof read.directory);
            *item = read;
        }
        if (job) gs_engine_adopt_job(engine, job);
    }
}

static void count_start(sim_world *world, rows_state *state) {
    if (state->epoch == state->max_epochs) {
        state->max_epochs = state->max_epochs * 2 + 8;
        state->lives = realloc(state->lives, state->max_epochs * sizeof *state->lives);
    }
    state->lives[state->epoch++] = dice_roll(&world->dice) >> 1 | 1;
    state->generation_end += GS_GENERATION_BLOCK;
}

gs_engine *rows_wake_engine(sim_world *world, const gs_timing *timing) {
    rows_state *state = &world->rows->now;
    uint32_t first_generation = state->generation_end;
    count_start(world, state);
    drop_copy(&world->rows->honest);  // a start waits until what it read is there
    gs_engine *engine = NULL;
    gs_engine_options options = {.timing = timing,
                                 .checkpoints_dir = "/checkpoints",
                                 .cluster = CLUSTER,
                                 .epoch = state->epoch,
                                 .life = state->lives[state->epoch - 1],
                                 .first_generation = first_generation};
    gs_status status = gs_engine_create(&engine, &options);
    if (status.code) {
        oracle_fail(world, "no engine: %s", status.message);
        abort();
    }
    for (uint32_t i = 0; i < state->epoch; i++) gs_engine_adopt_life(engine, i + 1, state->lives[i]);
    for (size_t i = 0; i < state->num_rows; i++) {
        const stored_row *row = &state->rows[i];
        if (row->table == ROWS_OF_KEYS) gs_engine_adopt_key(engine, row->name, row->text->text, row->job, row->expires_ms);
    }
    adopt_jobs(world, engine);
    return engine;
}

void rows_spoil(sim_world *world) {
    rows_state *state = &world->rows->now;
    size_t num_jobs = 0;
    while (num_jobs < state->num_rows && state->rows[num_jobs].table == ROWS_OF_JOBS) num_jobs++;
    if (!num_jobs) return;
    stored_row *row = &state->rows[dice_between(&world->dice, 0, (int64_t)num_jobs - 1)];
    row->is_spoilt = true;
    world_tell(world, "disk: a job's record cannot be read any more");
}

bool rows_repair(sim_world *world) {
    bool any = false;
    for (size_t i = 0; i < world->rows->now.num_rows; i++) {
        any |= world->rows->now.rows[i].is_spoilt;
        world->rows->now.rows[i].is_spoilt = false;
    }
    return any;
}
